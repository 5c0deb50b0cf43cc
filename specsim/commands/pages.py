"""Pages of findings: what `specsim replay --html` writes, and `specsim report`."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from queue import Empty, Queue
from threading import Thread
from typing import TYPE_CHECKING, Any, NoReturn

import typer

from specsim.commands.options import tell
from specsim.deadline import SPENT, Deadline
from specsim.errors import UsageError
from specsim.files import attempt, save_json, save_text, write_text
from specsim.verdict import FORMAT, Severity

if TYPE_CHECKING:
    from specsim.replay_file import Replay
    from specsim.report.page.index import Entry
    from specsim.tiers.tier import ReplayOutcome

REMEDY = "give the folder that `specsim check --out DIR` filled, or the file that its --json wrote"


def write_page(
    stored: Replay, file: Path, answer: Mapping[str, Any], target: str, cache_dir: Path | None, html: Path
) -> None:
    """Write the page of a replay; says where."""
    from specsim.report.page.render import html_of

    save_text(html, html_of(payload_of(stored, file, answer, target, cache_dir)))
    typer.echo(f"page: {html}")


def payload_of(
    stored: Replay, file: Path, answer: Mapping[str, Any], target: str, cache_dir: Path | None
) -> dict[str, Any]:
    """What a page of this replay shows."""
    from specsim.commands.source_lines import source_of
    from specsim.lifting.cache import open_cache
    from specsim.replay_file import command
    from specsim.report.page.payload import PageContext
    from specsim.report.page.payload import payload_of as made
    from specsim.tiers.registry import TIERS

    tier = TIERS[stored.tier]
    mutant = stored.mutant if target == stored.target else ""
    where = answer.get("where", stored.where if target == stored.target else "")
    shown = PageContext(
        target=f"{target} with mutant {mutant}" if mutant else target,
        command=command(str(file), target, stored.target),
        verdict=_verdict(stored, answer, tier.outcome(stored, target, answer), target),
        severity=str(tier.rules[stored.rule].severity) if stored.rule in tier.rules else "",
        source=source_of(target, mutant, where, open_cache(cache_dir)),
    )
    return made(stored, answer, shown)


def _verdict(stored: Replay, answer: Mapping[str, Any], outcome: ReplayOutcome, target: str) -> str:
    from specsim.tiers.tier import State

    if outcome.state is State.GONE:
        return f"{target} does not show it."
    if outcome.state is State.UNHEARD:
        return f"Not checked: {outcome.reason}."
    if outcome.state is not State.SHOWN:
        return "The file no longer applies."
    if target != stored.target:
        return f"Found on {stored.target}, and {target} shows it."
    if answer.get("digest") == stored.digest:
        return "Reproduced, bit for bit."
    return "Reproduced; the code has changed since it was found."


@dataclass(frozen=True, slots=True)
class Listed:
    """A replay file of a report. `group` is the heading of the index that it stands under, and `finding` the one of the
    verdict that names it, None where a folder was given.
    """

    file: Path
    group: str = "Findings"
    finding: Mapping[str, Any] | None = None


def listed_in(given: Path) -> list[Listed]:
    """The replay files of a folder, or those that a verdict of `specsim check --json` names: what is new first, in the
    order of the verdict. Raises UsageError where there are none.
    """
    from specsim.files import read_json
    from specsim.report.github import new_of

    if given.is_dir():
        files = [Listed(file) for file in sorted(given.glob("*.json"))]
        if not files:
            raise UsageError(f"there is no replay file in {given}", REMEDY)
        return files
    if not given.is_file():
        raise UsageError(f"{given} is not there", REMEDY)
    verdict = read_json(given, REMEDY)
    if not isinstance(verdict, dict) or verdict.get("format") != FORMAT:
        raise UsageError(f"{given} is no verdict of this specsim ({FORMAT})", REMEDY)
    new = {finding["signature"] for finding in new_of(verdict)}
    heading = "New" if verdict.get("baseline") else "Findings"
    findings = [finding for finding in verdict["findings"] if finding["replay"]]
    found = [
        Listed(_where(finding["replay"], given), heading if finding["signature"] in new else "Not new", finding)
        for finding in sorted(findings, key=lambda one: one["signature"] not in new)
    ]
    if not found:
        raise UsageError(f"{given} names no replay file", REMEDY)
    return found


def _where(replay: str, verdict: Path) -> Path:
    """The replay file that a verdict names: seen from here, or from where the verdict lies."""
    file = Path(replay)
    return file if file.exists() or file.is_absolute() else verdict.parent / file


def write_report(
    given: Path,
    html: Path,
    data: Path,
    noted: Callable[[Replay, Path], Mapping[str, Any]],
    cache_dir: Path | None,
    json_file: Path | None = None,
    budget_seconds: float | None = None,
    target: str | None = None,
    announced: Callable[[Replay, Path], None] = lambda _stored, _file: None,
) -> int:
    """The index of the replay files of a folder or verdict, with a page for each; how many pages there are. `noted`
    replays a file, on `target` where one is named, states or outputs noted; one runs on each core. `announced` says
    before what is run. `data` is a checkout of specsim, or has none of its data. What was not replayed within the
    budget is listed so.
    """
    deadline = Deadline.after(budget_seconds)
    from specsim.report.page.index import Entry, index_of
    from specsim.report.page.render import html_of
    from specsim.report.page.tables import tables_of

    listed = listed_in(given)
    entries: list[Entry] = []
    is_replay = False
    pages = page_names([one.file.stem for one in listed])
    answers = _answers(listed, noted, announced, deadline)
    for one, page, answered in zip(listed, pages, answers, strict=True):
        file = one.file
        try:
            stored, answer = answered()
            is_replay = True
            if answer is None:
                raise UsageError(SPENT, "give a larger --budget-seconds")
            on = target or stored.target
            if not answer.get("judged", True):
                raise UsageError(f"{on} does not run it", "replay it on another target")
            payload = payload_of(stored, file, answer, on, cache_dir)
        except UsageError as error:
            is_replay = is_replay or _is_replay(file)
            entries.append(Entry(file.name, "", {}, f"{error.problem}; {error.remedy}"))
            continue
        if not attempt(partial(write_text, html / page, html_of(payload))):
            entries.append(Entry(file.name, "", {}, f"its page {page} could not be written"))
            continue
        entries.append(Entry(file.name, page, payload["finding"], "", one.group, _facts(one, stored, payload)))
        tell(f"{html / page}: {payload['finding']['signature']}")
    if given.is_dir():
        entries.sort(key=_unknown_first)
    save_text(html / "index.html", index_of(str(given), entries, tables_of(data)))
    shown = sum(bool(entry.page) for entry in entries)
    typer.echo(f"{html / 'index.html'}: {_counted(shown, len(entries) - shown)}")
    for why, files in _without_a_page(entries).items():
        more = f" and {len(files) - 1} more" if len(files) > 1 else ""
        tell(f"   without a page: {files[0]}{more}: {why}")
    if json_file is not None:
        rows = [
            {name: getattr(entry, name) for name in ("file", "page", "finding", "why_not", "group")}
            for entry in entries
        ]
        save_json(json_file, {"index": str(html / "index.html"), "entries": rows})
    if not is_replay:
        raise UsageError(f"no file in {given} is a replay file", REMEDY)
    return shown


def _without_a_page(entries: Sequence[Entry]) -> dict[str, list[str]]:
    """The files that have none, by why."""
    found: dict[str, list[str]] = {}
    for entry in entries:
        if not entry.page:
            found.setdefault(entry.why_not, []).append(entry.file)
    return found


Answered = Callable[[], tuple["Replay", Mapping[str, Any] | None]]


def _answers(
    listed: Sequence[Listed],
    noted: Callable[[Replay, Path], Mapping[str, Any]],
    announced: Callable[[Replay, Path], None],
    deadline: Deadline,
) -> list[Answered]:
    """For each file what waits for it and gives the file and its answer, None where the time did not suffice, or raises
    the UsageError that it has. As many are replayed at a time as there are cores.
    """
    from specsim import replay_file
    from specsim.isolation.limits import allowed_jobs

    waiting: Queue[tuple[Replay, Path, Future[Mapping[str, Any]]]] = Queue()

    def worker() -> None:
        while not deadline.is_over:
            try:
                stored, file, future = waiting.get_nowait()
            except Empty:
                return
            try:
                future.set_result(noted(stored, file))
            except BaseException as error:
                future.set_exception(error)

    def loaded(file: Path) -> Answered:
        future: Future[Mapping[str, Any]] = Future()
        try:
            stored = replay_file.load(file)
            announced(stored, file)
        except UsageError as error:
            return partial(_raise, error)
        waiting.put((stored, file, future))

        def answered() -> tuple[Replay, Mapping[str, Any] | None]:
            try:
                return stored, future.result(deadline.left if deadline.left < math.inf else None)
            except TimeoutError:
                return stored, None

        return answered

    answers = [loaded(one.file) for one in listed]
    for _ in range(min(allowed_jobs(None), waiting.qsize())):  # which an interrupt does not wait for
        Thread(target=worker, daemon=True).start()
    return answers


def _raise(error: UsageError) -> NoReturn:
    raise error


def _is_replay(file: Path) -> bool:
    from specsim import replay_file

    try:
        replay_file.load(file)
    except UsageError:
        return False
    return True


def _unknown_first(entry: Entry) -> tuple[bool, int, str]:
    """Where no verdict says what is new: what nobody knows comes first, then what is worst."""
    severity = entry.finding.get("severity", "")
    worst = list(Severity).index(Severity(severity)) if severity in set(Severity) else len(Severity)
    return bool(dict(entry.facts).get("triage")), worst, entry.file


def _facts(one: Listed, stored: Replay, payload: Mapping[str, Any]) -> list[tuple[str, str]]:
    """What the index says beside a finding."""
    from specsim.engines.triage import known_line
    from specsim.report.page.plain import visible

    found, shown = one.finding or {}, payload["finding"]
    reach = found.get("reach", "")
    facts = {
        "rule": shown["sentence"],
        "triage": found.get("triage") or known_line(stored.target, stored.signature),
        "changed": ", ".join(found.get("changed", ())),
        "where": shown["where"],
        "reach": "" if reach == "unknown" else reach,
        "replay": shown["verdict"],
        "signature": stored.signature,
    }
    return [(name, visible(str(text))) for name, text in facts.items()]


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
