"""What `specsim bisect` prints and writes. The text of the functions that changed is printed, never written."""

from __future__ import annotations

import shlex
import textwrap
from pathlib import Path
from typing import Any

from specsim.findings.bisect.changes import ChangedFunction, FunctionLines
from specsim.findings.bisect.run import CheckedRevision, FoundChange
from specsim.findings.bisect.verdicts import BisectState

FORMAT = "specsim.bisect/1"
LINES_MAX = 24  # of one function's difference
SKIPPED_MAX = 10


def step_line(step: CheckedRevision) -> str:
    """One verdict, as it comes."""
    state, revision = step.verdict.state, step.revision
    title = "" if revision.title.endswith(revision.name.rpartition("==")[2]) else f"  {revision.title}"
    why = f"  ({_short(step.verdict.why, 100)})" if state is BisectState.SKIPPED else ""
    return f"{revision.name:22}  {state.text:11}  {step.seconds:5.1f} s{title}{why}"


def commands(found: FoundChange, replay: Path) -> tuple[str, str]:
    """How to see the good and the bad side again."""
    base = ("specsim", "replay", str(replay), "--target")
    return shlex.join((*base, found.good.revision.target)), shlex.join((*base, found.bad.revision.target))


def lines_of(
    found: FoundChange, changed: list[ChangedFunction], files: list[str], replay: Path, question: str
) -> list[str]:
    """The report. `files` are those that the commit changed, [] for a release."""
    revision = found.after.revision
    lines = [f"{found.what}: {revision.name}", f"   title      {revision.title}"]
    if revision.target.partition("#")[2] not in ("", revision.name):
        lines.append(f"   commit     {revision.target.rpartition('#')[2]}")
    if revision.merged:
        lines.append("   a merge    no commit of what it merged shows the change by itself")
    if found.skipped:
        lines.append(f"   or one of  {len(found.skipped)} before it that could not be checked:")
        lines += [f"              {s.revision.name}: {_short(s.verdict.why, 200)}" for s in found.skipped[:SKIPPED_MAX]]
        if len(found.skipped) > SKIPPED_MAX:
            lines.append(f"              and {len(found.skipped) - SKIPPED_MAX} more")
    lines += [
        f"   question   {question}",
        f"   before     {found.before.revision.name} is {found.before.verdict.state.text}: {found.before.verdict.why}",
        f"   after      {revision.name} is {found.after.verdict.state.text}: {found.after.verdict.why}",
        *_changed(found, changed, files),
    ]
    good, bad = commands(found, replay)
    return [*lines, f"   good side  {good}", f"   bad side   {bad}", f"   verdicts   {found.steps}"]


def _printable(line: str) -> str:
    return "".join(letter if letter.isprintable() else " " for letter in line)


def _short(text: str, width: int) -> str:
    return textwrap.shorten(text, width, placeholder=" ...")


def _changed(found: FoundChange, changed: list[ChangedFunction], files: list[str]) -> list[str]:
    if not changed:
        of = f", which changed {', '.join(files[:SKIPPED_MAX])}" if files else ""
        return [f"   changed    none of the functions that were lifted: what they use did{of}"]
    blamed = blamed_of(found)
    shown = [each for each in changed if each.name == blamed] or changed
    lines = []
    for each in changed:
        lines += [f"   changed    {each.name}", f"      was     {each.before or 'not there'}"]
        lines.append(f"      is      {each.after or 'not there'}")
        if each in shown:
            lines += [f"      {_printable(line)}" for line in each.difference(LINES_MAX)]
    return lines


def blamed_of(found: FoundChange) -> str:
    """The code that the finding on the bad side is of."""
    return found.bad.verdict.blamed


def to_json(found: FoundChange, changed: list[ChangedFunction], replay: Path, question: str) -> dict[str, Any]:
    """The report as JSON: hashes and line ranges of the functions that changed, and no line of them."""
    good, bad = commands(found, replay)
    return {
        "format": FORMAT,
        "question": question,
        "what": found.what,
        "exact": not found.skipped,
        "before": _step_json(found.before),
        "after": _step_json(found.after),
        "skipped": [_step_json(step) for step in found.skipped],
        "changed": [{"name": c.name, "before": _place_json(c.before), "after": _place_json(c.after)} for c in changed],
        "replays": {"good": good, "bad": bad},
        "verdicts": found.steps,
    }


def _step_json(step: CheckedRevision) -> dict[str, Any]:
    revision, verdict = step.revision, step.verdict
    return {"target": revision.target, "title": revision.title, "verdict": str(verdict.state), "why": verdict.why}


def _place_json(place: FunctionLines | None) -> dict[str, Any] | None:
    if place is None:
        return None
    names = ("path", "first", "last", "function", "source_hash")
    return {name: getattr(place, name) for name in names}
