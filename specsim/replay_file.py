"""The replay file: everything that is needed to see a finding again, in another process, on another machine.

Versioned JSON. A finding of the ops tier holds the operation and its explicit case; those of the other tiers hold the
choices of a schedule. All hold the target, the rule, and a digest of what happened. A file carries FILE:LINE and hashes
of other people's code, never its text, and is checked before anything of it is used: a bad one is refused with one
sentence.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

import specsim
from specsim.errors import UsageError
from specsim.files import read_json, write_text

FINDINGS = Path("specsim-findings")
"""Where replay files are written unless another folder is named."""

FORMAT = "specsim.replay/1"
NAME_MAX = 240  # bytes; file systems of Linux take 255, with the suffix
HASH_CHARACTERS = 16
REMEDY = "give a replay file that `specsim check --out DIR` wrote"


@dataclass(frozen=True, slots=True)
class OpReplay:
    """A finding of the ops tier.

    `target`       the TARGET it was found on
    `op`           the operation's name
    `subject`      name of the implementation, e.g. "caller:EAGLEWorkerV2.verify"
    `where`        FILE:LINE of that implementation when it was found
    `source_hash`  hash of its code then; another hash means that the code has changed since
    `sizes`        the case's symbolic sizes
    `tensors`      the case's input tensors by name: {"shape": [...], "data": flat list}
    `tape`         the choices that made the case
    `seed`         the seed of the run that found it
    `rule`, `signature`, `title`  of the finding
    `digest`       of inputs, defined outputs and violations: equal when it is reproduced bit for bit
    `generator`    "bulk" when the tape is one of bulk cases, "" for a tape of single ones
    """

    target: str
    tier: str
    op: str
    subject: str
    where: str
    source_hash: str
    device: str
    sizes: dict[str, int]
    tensors: dict[str, dict[str, Any]]
    tape: list[int]
    seed: int
    rule: str
    signature: str
    title: str
    digest: str
    generator: str = ""
    source: str = ""
    mutant: ClassVar[str] = ""
    events: ClassVar[Sequence[str]] = ()

    @property
    def size(self) -> tuple[int, str]:
        return sum(len(tensor["data"]) for tensor in self.tensors.values()), "input elements"

    def is_shown(self, violation: Mapping[str, Any]) -> bool:
        return bool(violation["rule"] == self.rule)

    def problem(self) -> str:
        for name, size in self.sizes.items():
            if not _is_natural(size):
                return f"sizes[{name!r}] is {size!r}, must be an integer of at least 0"
        for name, tensor in self.tensors.items():
            is_tensor = isinstance(tensor, dict) and all(isinstance(tensor.get(k), list) for k in ("shape", "data"))
            if not is_tensor:
                return f"tensors[{name!r}] must be an object with shape and data"
        return ""


@dataclass(frozen=True, slots=True)
class SchedulerReplay:
    """A finding of the scheduler tier.

    `part`      what is blamed, without line numbers; `where` and `source_hash` are of the release's scheduler
    `setup`     how the scheduler is started, beside the default
    `workload`  what users do
    `choices`   of the model and of the device, in the order of each label: all three say what is replayed
    `tape`      every choice that drew it, from which it is shrunk
    `digest`    of all that happened
    `events`    a line for each launch
    """

    target: str
    tier: str
    part: str
    where: str
    source_hash: str
    tape: list[int]
    setup: dict[str, Any]
    workload: dict[str, Any]
    choices: dict[str, list[int]]
    seed: int
    rule: str
    signature: str
    title: str
    digest: str
    events: list[str] = field(default_factory=list)
    mutant: str = ""
    source: str = ""
    device: ClassVar[str] = ""

    @property
    def size(self) -> tuple[int, str]:
        return len(self.events), "launches"

    def is_shown(self, violation: Mapping[str, Any]) -> bool:
        return bool(violation["signature"] == self.signature)

    def problem(self) -> str:
        for label, values in self.choices.items():
            if not isinstance(values, list) or not all(map(_is_natural, values)):
                return f"choices[{label!r}] must be a list of integers of at least 0"
        return "" if all(isinstance(text, str) for text in self.events) else "events must hold lines of text"


Replay = OpReplay | SchedulerReplay
"""What every tier's file has: `target`, `tier`, `where`, `source_hash`, `tape`, `seed`, `rule`, `signature`, `title`
and `digest`; `source`, of a folder that is the target its commit or version; `device`, `mutant` and `events`, empty
where a tier has none; `size`, how large the case is and in what; `is_shown(violation)`, whether a violation of a replay
is the file's; and `problem()`, what is wrong with its values, "" for nothing.
"""
_KINDS: dict[str, type[Replay]] = {
    "ops": OpReplay,
    "scheduler": SchedulerReplay,
}


def save(path: Path, replay: Replay) -> None:
    """Write a replay file, whole or not at all."""
    write_text(path, to_text(replay))


def to_text(replay: Replay) -> str:
    """The text of a replay file."""
    return json.dumps(to_json(replay), indent=2, ensure_ascii=False) + "\n"


def to_json(replay: Replay) -> dict[str, Any]:
    """What a replay file holds."""
    data = {"format": FORMAT, "specsim": specsim.__version__, **asdict(replay)}
    if not replay.source:
        del data["source"]
    return data


def name_of(replay: Replay) -> str:
    """The name of the file of a finding: one for each target and signature."""
    parts = [replay.target, *filter(None, (replay.mutant,)), replay.signature]
    return f"{file_name('-'.join(parts))}.json"


def save_in(folder: Path, replay: Replay) -> Path:
    """Write a replay file into a folder, under the name of its finding. git is told to ignore FINDINGS when that is
    made: it lies in the checkout that is checked.
    """
    if folder.name == FINDINGS.name and not folder.exists():
        write_text(folder / ".gitignore", "*\n")
    path = folder / name_of(replay)
    save(path, replay)
    return path


def load(path: Path) -> Replay:
    """Read and check a replay file. Raises UsageError for one that is missing, truncated or of another format."""
    return from_json(read_json(path, REMEDY, nan=True), path)  # tensors hold NaN


def from_json(data: Any, path: Path) -> Replay:
    """The replay that JSON holds, checked; `path` is what an error names. Raises UsageError."""
    if not isinstance(data, dict) or not str(data.get("format", "")).startswith("specsim.replay/"):
        raise UsageError(f"{path} is not a specsim replay file (no format {FORMAT!r})", REMEDY)
    if data["format"] != FORMAT:
        raise UsageError(
            f"{path} has format {data['format']!r}, this specsim reads {FORMAT!r}",
            f"replay it with specsim {data.get('specsim', 'of its time')}, or find it again with `specsim check`",
        )
    kind = _KINDS.get(str(data.get("tier")))
    if kind is None:
        raise UsageError(f"{path}: tier {data.get('tier')!r} is unknown, must be one of {', '.join(_KINDS)}", REMEDY)
    return _checked(path, kind(**_values(path, data, kind)))


def load_all(folder: str | Path) -> list[tuple[Path, Replay]]:
    """The replay files of a folder by name; what is none is passed over. No folder ("") has none."""
    found = []
    for path in sorted(Path(folder).glob("*.json")) if str(folder) else ():
        with contextlib.suppress(UsageError):
            found.append((path, load(path)))
    return found


_TYPES = {"str": str, "int": int, "dict": dict, "list": list}


def _values(path: Path, data: Mapping[str, Any], kind: type[Replay]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for known in fields(kind):
        name = known.name
        if name not in data and (known.default_factory is not MISSING or known.default is not MISSING):
            continue  # a field that files of older versions lack
        wanted = _TYPES[str(known.type).split("[")[0]]
        value = data.get(name)
        if not isinstance(value, wanted) or isinstance(value, bool):
            found = "is missing" if name not in data else f"is {value!r}, a {type(value).__name__}"
            raise UsageError(f"{path}: field {name!r} {found}, must be {wanted.__name__}", REMEDY)
        values[name] = value
    return values


def _checked(path: Path, replay: Replay) -> Replay:
    if not all(_is_natural(choice) for choice in replay.tape):
        raise UsageError(f"{path}: tape must hold integers of at least 0", REMEDY)
    if problem := replay.problem():
        raise UsageError(f"{path}: {problem}", REMEDY)
    return replay


def _is_natural(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


# Rules that say how the process of a case or schedule ended, and not what it does.
ENDED = ("O7", "O8", "X2", "X3")


def is_module(target: str) -> bool:
    """Whether a target is `module:object`, which a file alone does not choose."""
    return ":" in target and "==" not in target and "@" not in target


def command(file: str, target: str, found_on: str) -> str:
    """What replays a file on a target. `module:object` is named in it."""
    elsewhere = f" --target {shlex.quote(target)}" if is_module(target) or target != found_on else ""
    return f"specsim replay {shlex.quote(file)}{elsewhere}"


def unheard(broken: Sequence[Mapping[str, Any]]) -> str:
    """What ended the process of a replay before it could show or not show its finding, a sentence; "" when it lived.

    A machine that is busy takes longer than the limit: that is no sign that a finding is gone.
    """
    ended = next((entry["actual"] for entry in broken if entry["rule"] in ENDED), "")
    return f"the replay {ended}; --hang-seconds gives it longer" if ended else ""


def file_name(text: str) -> str:
    """`text` as a file name: what is not a letter, digit, dot or underscore becomes a dash. One that is longer than a
    file system takes with a suffix is cut, and ends with a hash of the whole text.
    """
    name = "-".join(re.findall(r"[\w.]+", text, re.ASCII))
    if len(name) <= NAME_MAX:
        return name
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:HASH_CHARACTERS]
    return f"{name[: NAME_MAX - HASH_CHARACTERS - 1]}-{digest}"
