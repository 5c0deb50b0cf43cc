"""Pages of findings: what `specsim replay --html` and `--perfetto` write, and `specsim report`."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specsim.commands.options import require_folder
from specsim.deadline import SPENT, Deadline, TimeSpent
from specsim.errors import UsageError
from specsim.files import write_json, write_text
from specsim.verdict import FINDING, NOT_JUDGED, PASS

if TYPE_CHECKING:
    from specsim.replay_file import Replay

REPRODUCED, GONE, NO_LONGER_APPLIES = FINDING, PASS, NOT_JUDGED


def require_file(option: str, file: Path | None) -> None:
    """Refuse an output that cannot be written before the work begins."""
    if file is None:
        return
    if file.is_dir():
        raise UsageError(f"{option} {file} is a folder", "name a file")
    require_folder(option, file.parent)


def write_pages(
    stored: Replay,
    file: Path,
    answer: Mapping[str, Any],
    exit_code: int,
    target: str,
    cache_dir: Path | None,
    html: Path | None,
    perfetto: Path | None,
) -> None:
    """Write the page and the trace of a replay; says where."""
    from specsim.report.page.render import html_of
    from specsim.report.perfetto import trace_of

    payload = payload_of(stored, file, answer, exit_code, target, cache_dir)
    if html is not None:
        write_text(html, html_of(payload))
        typer.echo(f"page: {html}")
    if perfetto is not None:
        write_text(perfetto, json.dumps(trace_of(payload)) + "\n")
        typer.echo(f"trace: {perfetto}, for https://ui.perfetto.dev")


def payload_of(
    stored: Replay, file: Path, answer: Mapping[str, Any], exit_code: int, target: str, cache_dir: Path | None
) -> dict[str, Any]:
    """What a page of this replay shows."""
    from specsim.check.rules import RULES
    from specsim.commands.source_lines import source_of
    from specsim.replay_file import ScheduleReplay
    from specsim.report.page.payload import Shown
    from specsim.report.page.payload import payload_of as made
    from specsim.targets.cache import open_cache
    from specsim.targets.probe import WORKER_RULES

    severities = {rule.id: str(rule.severity) for rule in (*RULES, *WORKER_RULES)}
    severities |= {seen["rule"]: seen["severity"] for seen in answer.get("violations", ()) if "severity" in seen}
    mutant = stored.mutant if isinstance(stored, ScheduleReplay) and target == stored.target else ""
    elsewhere = f" --target {shlex.quote(target)}" if target != stored.target else ""
    where = answer.get("where") or (stored.where if target == stored.target else "")
    shown = Shown(
        target=f"{target} with mutant {mutant}" if mutant else target,
        command=f"specsim replay {shlex.quote(str(file))}{elsewhere}",
        verdict=_verdict(stored, answer, exit_code, target),
        severity=severities.get(stored.rule, ""),
        sentence=next((rule.sentence for rule in (*WORKER_RULES, *RULES) if rule.id == stored.rule), ""),
        source=source_of(target, mutant, where, open_cache(cache_dir)),
    )
    return made(stored, answer, shown)


def _verdict(stored: Replay, answer: Mapping[str, Any], exit_code: int, target: str) -> str:
    from specsim.replay_file import unheard

    if exit_code == GONE:
        return f"Not reproduced on {target}."
    if exit_code == NO_LONGER_APPLIES:
        reason = unheard(answer.get("violations", answer.get("broken", ())))
        if reason:
            return f"Not judged: {reason}."
        return "The file no longer applies."
    if target != stored.target:
        return f"Found on {stored.target}, reproduced on {target}."
    if answer.get("digest") == stored.digest:
        return "Reproduced, bit for bit."
    return "Reproduced; the code has changed since it was found."


def write_report(
    folder: Path,
    html: Path,
    data: Path,
    noted: Callable[[Replay, Path], Mapping[str, Any]],
    cache_dir: Path | None,
    json_file: Path | None = None,
    budget_seconds: float | None = None,
) -> None:
    """The index of the replay files of a folder, with a page for each. `noted` replays a file, states or outputs noted;
    `data` is a checkout of specsim, or has none of its data. What was not replayed within the budget is listed so.
    """
    deadline = Deadline.after(budget_seconds)
    from specsim import replay_file
    from specsim.report.page.index import Entry, index_of
    from specsim.report.page.render import html_of
    from specsim.report.page.tables import tables_of

    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "give the folder that `specsim check --out DIR` filled")
    require_folder("--html", html)
    require_file("--json", json_file)
    entries: list[Entry] = []
    for file in sorted(folder.glob("*.json")):
        try:
            stored = replay_file.load(file)
            try:
                with deadline.enforced():
                    answer = noted(stored, file)
            except TimeSpent:
                raise UsageError(SPENT, "give a larger --budget-seconds") from None
            if not answer.get("judged", True):
                raise UsageError(f"{stored.target} does not run it", "replay it on another target")
            payload = payload_of(stored, file, answer, exit_code_of(stored, answer), stored.target, cache_dir)
        except UsageError as error:
            entries.append(Entry(file.name, "", {}, f"{error.problem}; {error.remedy}"))
            continue
        page = f"{replay_file.file_name(file.stem)}.html"
        write_text(html / page, html_of(payload))
        entries.append(Entry(file.name, page, payload["finding"], ""))
        typer.echo(f"{html / page}: {payload['finding']['signature']}")
    write_text(html / "index.html", index_of(str(folder), entries, tables_of(data)))
    typer.echo(f"{html / 'index.html'}: {sum(bool(entry.page) for entry in entries)} findings")
    if json_file is not None:
        listed = [{name: getattr(entry, name) for name in Entry._fields} for entry in entries]
        write_json(json_file, {"index": str(html / "index.html"), "entries": listed})


def exit_code_of(stored: Replay, answer: Mapping[str, Any]) -> int:
    """Whether an answer shows the finding."""
    from specsim.replay_file import ScheduleReplay, is_shown

    broken = answer.get("violations", answer.get("broken", ()))
    if isinstance(stored, ScheduleReplay):
        return REPRODUCED if any(is_shown(stored, violation) for violation in broken) else GONE
    return REPRODUCED if any(violation["rule"] == stored.rule for violation in broken) else GONE
