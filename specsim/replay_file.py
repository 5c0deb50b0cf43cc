"""The replay file: everything that is needed to see a finding again, in another process, on another machine.

Versioned JSON. It holds the target, the operation and the explicit case (or, for a schedule, configuration, workload
and tape of choices), what was expected, and a digest of what happened. It carries FILE:LINE and hashes of other
people's code, never its text.
A file is checked before anything of it is used, and a bad one is refused with one sentence.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from specsim.errors import UsageError
from specsim.verdict import write_json

FORMAT = "specsim.replay/1"


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


def save(path: Path, replay: OpReplay, specsim_version: str) -> None:
    """Write a replay file, whole or not at all."""
    write_json(path, {"format": FORMAT, "specsim": specsim_version, **asdict(replay)})


def load(path: Path) -> OpReplay:
    """Read and check a replay file. Raises UsageError for one that is missing, truncated or of another format."""
    remedy = "give a replay file that `specsim check --out DIR` wrote"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path} ({error.strerror})", remedy) from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not a text file", remedy) from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"{path} is not complete JSON ({error}), it may be truncated", remedy) from error
    if not isinstance(data, dict) or not str(data.get("format", "")).startswith("specsim.replay/"):
        raise UsageError(f"{path} is not a specsim replay file (no format {FORMAT!r})", remedy)
    if data["format"] != FORMAT:
        raise UsageError(
            f"{path} has format {data['format']!r}, this specsim reads {FORMAT!r}",
            f"replay it with specsim {data.get('specsim', 'of its time')}, or find it again with `specsim check`",
        )
    return _parse(path, data, remedy)


_TYPES = {"str": str, "int": int, "dict": dict, "list": list}


def _parse(path: Path, data: Mapping[str, Any], remedy: str) -> OpReplay:
    values: dict[str, Any] = {}
    for field in fields(OpReplay):
        kind = _TYPES[str(field.type).split("[")[0]]
        value = data.get(field.name)
        if not isinstance(value, kind) or isinstance(value, bool):
            found = "is missing" if field.name not in data else f"is {value!r}, a {type(value).__name__}"
            raise UsageError(f"{path}: field {field.name!r} {found}, must be {kind.__name__}", remedy)
        values[field.name] = value
    if values["tier"] != "ops":
        raise UsageError(f"{path}: tier {values['tier']!r} is unknown, must be 'ops'", remedy)
    for name, size in values["sizes"].items():
        if not isinstance(size, int) or isinstance(size, bool) or size < 0:
            raise UsageError(f"{path}: sizes[{name!r}] is {size!r}, must be an integer of at least 0", remedy)
    for name, tensor in values["tensors"].items():
        if not (
            isinstance(tensor, dict) and isinstance(tensor.get("shape"), list) and isinstance(tensor.get("data"), list)
        ):
            raise UsageError(f"{path}: tensors[{name!r}] must be an object with shape and data", remedy)
    return OpReplay(**values)
