"""Pinning a finding: a pytest that replays it, to be committed beside the replay file.

The test asserts that the finding is gone, or, for a defect that is known and stays for now, that it is still there, so
that the day on which it goes is noticed. What the target does not run is skipped with the reason, never passed.
"""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from pathlib import Path

from specsim import replay_file
from specsim.engines.target import parse_target
from specsim.errors import UsageError
from specsim.files import write_text
from specsim.lifting.cache import open_cache
from specsim.replay_file import Replay, SchedulerReplay
from specsim.tiers.process import ask_again
from specsim.tiers.replaying import outcome_of, replay, request_of
from specsim.tiers.tier import State

HANG_SECONDS = 20.0


@dataclass(frozen=True, slots=True)
class Pinned:
    """What a pinned replay showed: whether it still applies, whether the finding is there, and why, one sentence."""

    applies: bool
    shown: bool
    reason: str


def replay_pinned(file: Path, target: str, hang_seconds: float = HANG_SECONDS) -> Pinned:
    """Replay a file on a target. Raises UsageError for a file or target that cannot be used."""
    stored = replay_file.load(file)
    text = parse_target(target).text
    answer = replay(request_of(stored, text, open_cache(None).folder, hang_seconds), file, ask=ask_again)
    outcome = outcome_of(stored, text, answer)
    return Pinned(outcome.state in (State.SHOWN, State.GONE), outcome.state is State.SHOWN, outcome.reason)


def default_name(stored: Replay) -> str:
    """The file name of the test of a finding."""
    return f"test_{_identifier(stored.signature)}.py"


def pin(file: Path, out: Path, target: str, still: bool) -> None:
    """Write the test `out`, and the replay file beside it with the suffix .json. Refuses to replace a file."""
    stored = replay_file.load(file)
    _require_name(out)
    beside = out.with_suffix(".json")
    for path in (out, beside):
        if path.exists() and path.resolve() != file.resolve():
            raise UsageError(f"{path} is there already", "remove it, or name another file with --out")
    content, test = file.read_text(encoding="utf-8"), source_of_test(stored, target, still)
    write_text(beside, content)
    write_text(out, test)


def pin_schedule(file: Path, out: Path, target: str) -> None:
    """Write the test `out`, in which the schedule of a replay file of the scheduler tier stands as calls. Refuses to
    replace a file.
    """
    from specsim.findings.by_hand import source_of

    stored = replay_file.load(file)
    if not isinstance(stored, SchedulerReplay):
        raise UsageError(f"{file} is of the {stored.tier} tier", "a schedule by hand is one of the scheduler tier")
    _require_name(out)
    if out.exists():
        raise UsageError(f"{out} is there already", "remove it, or name another file with --out")
    head = "\n".join(_about(stored))
    body = textwrap.indent(source_of(stored), "    ")
    text = f'''"""{head}
Written by `specsim pin --schedule`.
"""

from specsim.testing import schedule

TARGET = {_literal(target)}


def {_name_of(stored, "gone")}() -> None:
{body}
'''
    write_text(out, text)


def source_of_test(stored: Replay, target: str, still: bool) -> str:
    """The test as text: clean for ruff at 120 columns, whatever the finding's title says."""
    name = _name_of(stored, "still_there" if still else "gone")
    lines = [*_about(stored), "Written by `specsim pin`; the replay file lies beside this one."]
    assertion = "assert_still_there" if still else "assert_gone"
    prose = "\n".join(lines)
    return f'''"""{prose}
"""

from pathlib import Path

from specsim.testing import {assertion}

REPLAY = Path(__file__).with_suffix(".json")
TARGET = {_literal(target)}


def {name}() -> None:
    {assertion}(REPLAY, TARGET)
'''


def _require_name(out: Path) -> None:
    if out.suffix != ".py" or not re.fullmatch(r"test_\w+|\w+_test", out.stem):
        raise UsageError(f"--out {out} is not a file that pytest collects", "name it test_SOMETHING.py")


def _name_of(stored: Replay, state: str) -> str:
    name = f"test_{_identifier(stored.signature)}_is_{state}"
    return name if len(name) <= 90 else f"test_the_finding_is_{state}"


def _about(stored: Replay) -> list[str]:
    return [
        *_wrapped(f"{stored.title[:1].upper()}{stored.title[1:]}."),
        "",
        *_wrapped(f"Rule {stored.rule}, found on {stored.target}. Signature: {stored.signature}."),
    ]


def _literal(text: str) -> str:
    """A string of Python that is the text, in ASCII: nothing in it ends the string or its line."""
    escaped = text.encode("unicode_escape").decode("ascii").replace('"', '\\"')
    return f'"{escaped}"'


def _identifier(text: str) -> str:
    return "_".join(re.findall(r"[a-z0-9]+", text.lower()))


def _wrapped(text: str) -> list[str]:
    """Lines of a docstring: nothing in them ends it or escapes."""
    plain = text.replace("\\", "/").replace('"', "'")
    plain = "".join(character if character.isprintable() else " " for character in plain)
    return textwrap.wrap(plain, 100)
