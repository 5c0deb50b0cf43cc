"""Pages of findings: what `specsim replay --html` and `--perfetto` write, and `specsim report`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from specsim.commands.options import tell
from specsim.deadline import SPENT, Deadline, TimeSpent
from specsim.errors import UsageError
from specsim.files import attempt, save_json, save_text, write_text

if TYPE_CHECKING:
    from specsim.replay_file import Replay
    from specsim.tiers.tier import Outcome

REMEDY = "give the folder that `specsim check --out DIR` filled"


def write_pages(
    stored: Replay,
    file: Path,
    answer: Mapping[str, Any],
    target: str,
    cache_dir: Path | None,
    html: Path | None,
    perfetto: Path | None,
) -> None:
    """Write the page and the trace of a replay; says where."""
    from specsim.report.page.render import html_of
    from specsim.report.perfetto import trace_of

    payload = payload_of(stored, file, answer, target, cache_dir)
    if html is not None:
        save_text(html, html_of(payload))
        typer.echo(f"page: {html}")
    if perfetto is not None:
        save_text(perfetto, json.dumps(trace_of(payload)) + "\n")
        typer.echo(f"trace: {perfetto}, for https://ui.perfetto.dev")


def payload_of(
    stored: Replay, file: Path, answer: Mapping[str, Any], target: str, cache_dir: Path | None
) -> dict[str, Any]:
    """What a page of this replay shows."""
    from specsim.commands.source_lines import source_of
    from specsim.lifting.cache import open_cache
    from specsim.replay_file import command
    from specsim.report.page.payload import Shown
    from specsim.report.page.payload import payload_of as made
    from specsim.tiers.registry import TIERS

    tier = TIERS[stored.tier]
    mutant = stored.mutant if target == stored.target else ""
    where = answer.get("where") or (stored.where if target == stored.target else "")
    shown = Shown(
        target=f"{target} with mutant {mutant}" if mutant else target,
        command=command(str(file), target, stored.target),
        verdict=_verdict(stored, answer, tier.outcome(stored, target, answer), target),
        severity=str(tier.rules[stored.rule].severity) if stored.rule in tier.rules else "",
        source=source_of(target, mutant, where, open_cache(cache_dir)),
    )
    return made(stored, answer, shown)


def _verdict(stored: Replay, answer: Mapping[str, Any], outcome: Outcome, target: str) -> str:
    from specsim.tiers.tier import State

    if outcome.state is State.GONE:
        return f"Not reproduced on {target}."
    if outcome.state is State.UNHEARD:
        return f"Not checked: {outcome.reason}."
    if outcome.state is not State.SHOWN:
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
        raise UsageError(f"{folder} is not a folder", REMEDY)
    files = sorted(folder.glob("*.json"))
    if not files:
        raise UsageError(f"there is no replay file in {folder}", REMEDY)
    entries: list[Entry] = []
    is_replay = False
    pages = page_names([file.stem for file in files])
    for file, page in zip(files, pages, strict=True):
        try:
            stored = replay_file.load(file)
            is_replay = True
            try:
                with deadline.enforced():
                    answer = noted(stored, file)
            except TimeSpent:
                raise UsageError(SPENT, "give a larger --budget-seconds") from None
            if not answer.get("judged", True):
                raise UsageError(f"{stored.target} does not run it", "replay it on another target")
            payload = payload_of(stored, file, answer, stored.target, cache_dir)
        except UsageError as error:
            entries.append(Entry(file.name, "", {}, f"{error.problem}; {error.remedy}"))
            continue
        if not attempt(partial(write_text, html / page, html_of(payload))):
            entries.append(Entry(file.name, "", {}, f"its page {page} could not be written"))
            continue
        entries.append(Entry(file.name, page, payload["finding"], ""))
        tell(f"{html / page}: {payload['finding']['signature']}")
    save_text(html / "index.html", index_of(str(folder), entries, tables_of(data)))
    shown = sum(bool(entry.page) for entry in entries)
    typer.echo(f"{html / 'index.html'}: {_counted(shown, len(entries) - shown)}")
    for entry in entries:
        if not entry.page:
            tell(f"   without a page: {entry.file}: {entry.why_not}")
    if json_file is not None:
        listed = [{name: getattr(entry, name) for name in Entry._fields} for entry in entries]
        save_json(json_file, {"index": str(html / "index.html"), "entries": listed})
    if not is_replay:
        raise UsageError(f"no file in {folder} is a replay file", REMEDY)


def _counted(shown: int, others: int) -> str:
    said = f"{shown} finding{'' if shown == 1 else 's'}"
    return f"{said}, and {others} file{'' if others == 1 else 's'} without a page" if others else said


def page_names(stems: Sequence[str]) -> list[str]:
    """A page for each of the files, none of which two share."""
    from specsim.replay_file import file_name

    taken = {"index"}
    return [f"{free_name(file_name(stem), taken)}.html" for stem in stems]


def free_name(name: str, taken: set[str]) -> str:
    """`name`, with a number where another one has it; notes it in `taken`."""
    free, number = name or "page", 1
    while free.casefold() in taken:
        number += 1
        free = f"{name or 'page'}-{number}"
    taken.add(free.casefold())
    return free
