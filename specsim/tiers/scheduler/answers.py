"""The scheduler tier in the child: what it answers to a request."""

from __future__ import annotations

import re
import time
from collections import Counter
from dataclasses import dataclass, field, replace
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from msgspec import structs

from specsim import interrupts, replay_file
from specsim.choices.shrinker import Shrinker
from specsim.errors import UsageError
from specsim.lifting.probes import statement_at
from specsim.replay_file import SchedulerReplay
from specsim.rules.device import StreamRace
from specsim.rules.process import HostException, violation_of_end
from specsim.rules.table import BY_ID, CHECKS, depth_of
from specsim.tiers.messages import At, CheckWork, Differs, End, FailureWork, Replay, Replayed, Request, Search, Shrink
from specsim.tiers.scheduler.loading import load_target
from specsim.tiers.transfer import broken
from specsim.tiers.transfer import found as found_message
from specsim.tiers.transfer import shrunk as shrunk_message
from specsim.verdict import Covered, Finding, NotRun, Severity
from specsim.world.case import ScheduleCase
from specsim.world.forks import EndedSchedule, NotStarted, Outcome, Ran, Starters, WantedSchedule, wanted
from specsim.world.rule import Violation
from specsim.world.schedule import Record, first_other_launch, plain_violation
from specsim.world.scheduler import IN_RUST, Setup, rows_of
from specsim.world.workload import told

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from specsim.choices.chooser import Tape
    from specsim.isolation.messages import Messages
    from specsim.world.scheduler import SchedulerTarget

RACE = StreamRace.rule.id
SUBJECT = "schedules"
IMPORT = "the import of its scheduler"
ATTEMPTS = 240  # at a smaller schedule of each finding; `specsim shrink` takes more
SHRINK_SHARE = 0.3  # of the time that is left when a finding is made
OF_THE_DEVICE = frozenset(["device policy", "slow stream", "advance", "steps", "pause"])
"""Choices of how fast its streams are; without them it is eager."""
CHANCE = 0.001
"""The least chance of having met a symptom by its race alone in each of its schedules, for it to be none."""
PER_RUST = 5  # schedules on the radix tree in Python, for one more on that in Rust


@dataclass(slots=True)
class _Hit:
    """A signature that schedules showed: its smallest one, and how many that were drawn did. `fixture` is the replay
    file of a known finding that showed it, `known` the same while that is the smallest; "" for none. `after` counts
    what came first in schedules that showed it, until one shows it first: what comes after something else may be no
    more than its symptom.
    """

    violation: Violation
    wanted: WantedSchedule
    outcome: Outcome
    count: int = 0
    known: str = ""
    fixture: str = ""
    is_first: bool = False
    after: Counter[str] = field(default_factory=Counter)
    beside: frozenset[str] = frozenset()
    """What each of those schedules showed, too, in which it came first."""
    is_shrunk: bool = False
    """A schedule that is drawn later has fewer iterations at most because something ends it, too."""
    is_own: bool = False
    """It came after a race whenever it was drawn, and is shown without it, too."""
    trees: set[str] = field(default_factory=set)
    """On which it was shown."""
    tree: str = ""
    """The one alone on which it is shown; "" where it is any, or nobody looked."""

    @property
    def record(self) -> Record | None:
        """Of a schedule that came to its end."""
        return self.outcome.record if isinstance(self.outcome, Ran) else None

    @property
    def case(self) -> ScheduleCase | None:
        """The schedule said outright; None where it ended before it ran."""
        return case_of(self.wanted, self.outcome)


@dataclass(slots=True)
class ScheduleCounts:
    schedules: int = 0
    iterations: int = 0
    hits: dict[str, _Hit] = field(default_factory=dict)
    not_started: dict[str, str] = field(default_factory=dict)
    setups: set[str] = field(default_factory=set)
    trees: set[str] = field(default_factory=set)
    ran: dict[str, Counter[int]] = field(default_factory=dict)
    """By file in how many schedules a statement was run, by its first line."""

    def take(self, schedule: WantedSchedule, outcome: Outcome) -> list[str]:
        """Note what a schedule showed; the signatures that are new, or come first for the first time."""
        if isinstance(outcome, NotStarted):
            return []
        self.schedules += 1
        record = outcome.record if isinstance(outcome, Ran) else None
        if record is not None:
            self.iterations += record.iterations
            self.trees |= {record.tree} - {""}
            for file, lines in record.ran_lines.items():
                self.ran.setdefault(file, Counter()).update(lines)
        new = []
        shown: dict[str, Violation] = {}
        for violation in violations_of(outcome):
            shown.setdefault(violation.signature, violation)
        first = next(iter(shown), "")
        for signature, violation in shown.items():
            was_met = signature in self.hits
            hit = self.hits.setdefault(signature, _Hit(violation, schedule, outcome))
            hit.count += 1
            hit.trees.add(record.tree if record is not None else "")
            comes_first = signature == first
            if not comes_first:
                hit.after[first] += 1
            is_smaller = record is not None and hit.record is not None and record.iterations < hit.record.iterations
            is_smaller &= not hit.is_shrunk
            if comes_first > hit.is_first or (comes_first == hit.is_first and is_smaller):
                hit.violation, hit.wanted, hit.outcome, hit.known = violation, schedule, outcome, ""
                hit.is_shrunk = False
            if comes_first:
                others = frozenset(shown) - {signature}
                hit.beside = hit.beside & others if hit.is_first else others
            if comes_first > hit.is_first or not was_met:
                new.append(signature)
            hit.is_first |= comes_first
        return new

    def follows(self, signature: str) -> str:
        """The finding that a signature may be a symptom of: what came first where it was shown, most often; or, where
        it comes first itself, what each such schedule showed later that may well cause it. "" where it is a finding.
        So each schedule that shows anything shows a finding.
        """
        hit = self.hits[signature]
        if hit.is_own:
            return ""
        if not hit.is_first:
            first = min(hit.after, key=lambda first: (-hit.after[first], first))
            return self.follows(first) or first
        depth = depth_of(hit.violation.rule)
        causes = [
            other
            for other in hit.beside
            if self.hits[other].is_first
            and depth_of(self.hits[other].violation.rule) < depth
            and not self.follows(other)
        ]
        return min(causes, key=lambda other: (-self.hits[other].count, other), default="")

    def take_known(self, schedule: WantedSchedule, outcome: Outcome, signature: str, name: str) -> bool:
        """Note whether the schedule of a replay file shows its finding. It is none of those that were drawn."""
        shown = [v for v in violations_of(outcome) if v.signature == signature]
        if not shown or signature in self.hits:
            return False
        hit = self.hits[signature] = _Hit(shown[0], schedule, outcome, known=name, fixture=name, is_first=True)
        hit.trees.add(hit.record.tree if hit.record is not None else "")
        return True

    def to_show(self) -> dict[str, int]:
        """What a live line shows."""
        return {
            "schedules": self.schedules,
            "events": self.iterations,
            "findings": sum(hit.is_first for hit in self.hits.values()),
        }


def violations_of(outcome: Outcome) -> tuple[Violation, ...]:
    """The rules that a schedule broke, that of its process among them."""
    if isinstance(outcome, Ran):
        return outcome.record.violations
    if isinstance(outcome, EndedSchedule):
        return (violation_of_end(outcome.hung, outcome.text),)
    return ()


def case_of(schedule: WantedSchedule, outcome: Outcome) -> ScheduleCase | None:
    """A schedule that was run, said outright; None where it ended before it ran."""
    if schedule.case is not None:
        return schedule.case
    if isinstance(outcome, Ran):
        return ScheduleCase(outcome.record.settings, outcome.record.workload, outcome.record.choices)
    return outcome.case if isinstance(outcome, EndedSchedule) else None


def check(request: Request, work: CheckWork, messages: Messages) -> None:
    """Run the schedules of known findings, then drawn ones."""
    end = time.monotonic() + request.seconds
    messages.send(At(subject=IMPORT))
    target = load_target(request)
    if isinstance(target, NotRun):
        messages.send(End(not_run=[target]))
        return
    messages.send(At(subject=SUBJECT))
    counts, starters = ScheduleCounts(), Starters(target, CHECKS, request.at_once)
    trees = (False, True) if target.has_rust_tree else (False,)
    rows = {rust_tree: rows_of(target.setups, request.worker, rust_tree) for rust_tree in trees}
    setups = [target.setups[row].name for of_tree in rows.values() for row in of_tree]
    is_cut = False

    def drawn() -> Iterator[tuple[int, WantedSchedule]]:
        """Those of setups that start, as far as is known when each is taken, until the time is over."""
        nonlocal is_cut
        for index, schedule in enumerate(_drawn(request, target.setups, trees)):
            if is_cut := time.monotonic() >= end or interrupts.asked():
                return
            if schedule.setup(target.setups).name not in counts.not_started:
                messages.send(At(subject=SUBJECT, index=index, count=counts.schedules, counts=counts.to_show()))
                yield index, schedule
            elif len(counts.not_started) >= len(setups):
                return

    try:
        _run_known(request, target, starters, counts, messages, end)
        for _index, schedule, outcome in starters.run_all(drawn()):
            setup = schedule.setup(target.setups).name
            if isinstance(outcome, NotStarted):
                counts.not_started[setup] = outcome.why
            else:
                counts.setups.add(setup)
            for signature in counts.take(schedule, outcome):
                goes_on = interrupts.until(max(0.0, end - time.monotonic()) * SHRINK_SHARE)
                _send_finding(request, target, starters, counts, signature, messages, goes_on)
        look_behind_races(starters, counts, request.hang_seconds)
        for signature, hit in counts.hits.items():  # how many there were is known at the end
            hit.tree = IN_RUST if _is_of_rust(starters, hit, request.hang_seconds) else ""
            messages.send(found_message(*finding_of(request, target, hit, counts.follows(signature))))
        differing = _differing(starters, counts, request.hang_seconds)
    finally:
        starters.close()
    not_run = [NotRun(f"setup {name}", why) for name, why in sorted(counts.not_started.items())]
    not_run += [NotRun(what, why) for what, why in target.lacks(request.worker)]
    if is_cut:
        left = [name for name in setups if name not in counts.setups and name not in counts.not_started]
        not_run += [NotRun(f"setup {name}", interrupts.why_not_run()) for name in left]
        not_run.append(NotRun("the other schedules", interrupts.why_not_run()))
    messages.send(
        End(
            schedules=counts.schedules,
            events=counts.iterations,
            setups=[name for name in setups[: len(rows[False])] if name in counts.setups],
            not_run=not_run,
            nondeterministic=differing,
            ran_lines=_ran_of(request.lines, target, counts),
            coverage=coverage_of(target, counts),
            trees=sorted(counts.trees),
        )
    )


def _drawn(request: Request, setups: Sequence[Setup], trees: Sequence[bool]) -> Iterator[WantedSchedule]:
    """Schedules of every setup by turns. Those on the radix tree in Rust are beside the others and come after them, so
    that a Python that cannot load it runs the same others.
    """
    for rust_tree in trees:
        for index in range(request.count // PER_RUST if rust_tree else request.count):
            yield wanted(setups, request.seed, index, request.hang_seconds, request.worker, rust_tree)


def _ran_of(lines: Mapping[str, Sequence[int]], target: SchedulerTarget, counts: ScheduleCounts) -> dict[str, int]:
    """Of these lines, by file, those that schedules ran, and how many did."""
    found = {}
    for file in sorted(lines.keys() & counts.ran.keys()):
        spans = target.statements(file)
        for line in lines[file]:
            if hits := counts.ran[file][statement_at(spans, line) or 0]:
                found[f"{file}:{line}"] = hits
    return found


def coverage_of(target: SchedulerTarget, counts: ScheduleCounts) -> dict[str, Covered]:
    """By file how much of its functions schedules ran."""
    found = {}
    for file in sorted({*target.imported, *counts.ran}):
        spans, ran = target.statements(file), counts.ran.get(file, Counter[int]())
        marked = [(first in ran, first, last) for first, last in spans]
        groups = [(is_run, list(same)) for is_run, same in groupby(marked, itemgetter(0))]
        missing = [(same[0][1], max(last for *_, last in same)) for is_run, same in groups if not is_run]
        if spans:
            found[file] = Covered(len(spans), sum(is_run for is_run, *_ in marked), tuple(missing))
    return found


def _engine_of(target: str) -> str:
    """Whose a target is, by its text; of a user's own all of that."""
    return re.split("==|@", target, maxsplit=1)[0]


def _run_known(
    request: Request,
    target: SchedulerTarget,
    starters: Starters,
    counts: ScheduleCounts,
    messages: Messages,
    end: float,
) -> None:
    """Run the schedules of the replay files in the request's folder, those of the same worker and of no mutant. What
    they show is small. Those of an engine say nothing of another one.
    """

    def known() -> Iterator[tuple[tuple[str, str], WantedSchedule]]:
        for path, stored in replay_file.load_all(request.fixtures):
            if not isinstance(stored, SchedulerReplay) or stored.mutant or stored.signature in counts.hits:
                continue
            if _engine_of(stored.target) != _engine_of(request.target):
                continue
            if stored.setup.get("worker", Setup().worker) != request.worker:
                continue
            if time.monotonic() >= end or interrupts.asked():
                return
            messages.send(At(subject=SUBJECT, known=path.name, counts=counts.to_show()))
            try:
                schedule = again(stored, request.hang_seconds)
            except UsageError:  # of another specsim
                continue
            yield (path.name, stored.signature), schedule

    for (name, signature), schedule, outcome in starters.run_all(known()):
        if counts.take_known(schedule, outcome, signature, name):
            messages.send(found_message(*finding_of(request, target, counts.hits[signature])))


def _send_finding(
    request: Request,
    target: SchedulerTarget,
    starters: Starters,
    counts: ScheduleCounts,
    signature: str,
    messages: Messages,
    goes_on: Callable[[], bool],
) -> None:
    """Send a finding, and again when it was shrunk."""
    hit, follows = counts.hits[signature], counts.follows(signature)
    messages.send(found_message(*finding_of(request, target, hit, follows)))
    is_wanted = hit.is_first and request.is_shrunk(signature, hit.violation.rule)
    if not is_wanted or hit.record is None:
        return
    attempts = ATTEMPTS if request.attempts is None else request.attempts
    _shrink(request, starters, hit, messages, attempts, goes_on)
    messages.send(found_message(*finding_of(request, target, hit, follows)))


def _shrink(
    request: Request, starters: Starters, hit: _Hit, messages: Messages, attempts: int, goes_on: Callable[[], bool]
) -> None:
    """Leave the smallest schedule in `hit` that still shows its signature: first, if it comes first."""
    signature = hit.violation.signature
    assert hit.record is not None
    comes_first = hit.record.violations[0].signature == signature
    shown: dict[Tape, tuple[Record, Violation]] = {}

    def attempt(tape: Tape) -> Tape | None:
        if not goes_on():
            return None
        messages.send(At(subject=SUBJECT, index=-1))
        outcome = starters.run(WantedSchedule(tape, seconds=request.hang_seconds))
        violations = violations_of(outcome)
        for violation in violations[:1] if comes_first else violations:
            if violation.signature == signature and isinstance(outcome, Ran):
                shown[outcome.record.tape] = (outcome.record, violation)
                return outcome.record.tape
        return None

    items = {hit.record.tape: hit.record.items}
    shrinker = Shrinker(
        hit.record.tape, attempt, attempts, items=lambda tape: shown[tape][0].items if tape in shown else items[tape]
    )
    best = shrinker.run()
    if best in shown:
        record, hit.violation = shown[best]
        hit.wanted, hit.outcome, hit.is_shrunk = WantedSchedule(best), Ran(record), True


def look_behind_races(starters: Starters, counts: ScheduleCounts, seconds: float) -> None:
    """Make what is taken for the symptom of a race, and is none, a finding of its own: a race that nearly every
    schedule has would hide all else. Of each race that is what was met most often of the symptoms that are shown
    without it, too. What is met so often that it would have come without the race is no such thing.
    """
    behind: dict[str, list[str]] = {}
    for signature, hit in counts.hits.items():
        cause = counts.follows(signature)
        if cause and hit.violation.rule != RACE and counts.hits[cause].violation.rule == RACE:
            behind.setdefault(cause, []).append(signature)
    for cause, signatures in behind.items():
        share = counts.hits[cause].count / counts.schedules
        for signature in sorted(signatures, key=lambda one: (-counts.hits[one].count, one)):
            hit = counts.hits[signature]
            hit.is_own = share**hit.count >= CHANCE and _is_shown_eagerly(starters, hit, seconds)
            if hit.is_own:
                break


def _is_shown_eagerly(starters: Starters, hit: _Hit, seconds: float) -> bool:
    """Whether a violation comes first, beside races, on an eager device. A race does harm by the order in which streams
    run, and that device does everything in the order of the program.
    """
    case = hit.case
    if case is None:
        return False
    choices = {label: values for label, values in case.choices.items() if label not in OF_THE_DEVICE}
    outcome = starters.run(WantedSchedule((), seconds=seconds, case=structs.replace(case, choices=choices)))
    shown = [violation.signature for violation in violations_of(outcome) if violation.rule != RACE]
    return shown[:1] == [hit.violation.signature]


def _is_of_rust(starters: Starters, hit: _Hit, seconds: float) -> bool:
    """Whether a finding was shown on the radix tree in Rust alone, and the one in Python does not show it."""
    case = hit.case
    if case is None or hit.trees != {IN_RUST}:
        return False
    setup = {name: value for name, value in case.setup.items() if name != "rust_tree"}
    outcome = starters.run(WantedSchedule((), seconds=seconds, case=structs.replace(case, setup=setup)))
    return all(violation.signature != hit.violation.signature for violation in violations_of(outcome))


def _differing(starters: Starters, counts: ScheduleCounts, seconds: float) -> list[Differs]:
    """Of the schedules of the findings, those that do not run the same twice."""
    differing = []
    repeats = (
        ((signature, hit.record), structs.replace(hit.wanted, seconds=seconds))
        for signature, hit in counts.hits.items()
        if hit.record is not None and hit.is_first
    )
    for (signature, record), _schedule, repeated in starters.run_all(repeats):
        if not isinstance(repeated, Ran) or repeated.record.digest != record.digest:
            is_shown = any(violation.signature == signature for violation in violations_of(repeated))
            text = _difference(record, repeated) + ("" if is_shown else "; the finding came in the first run alone")
            differing.append(Differs(f"the schedule of {signature}", text, "" if is_shown else signature))
    return differing


def _difference(record: Record, repeated: Outcome) -> str:
    """How a second run of a schedule differs from the first."""
    if not isinstance(repeated, Ran):
        return f"it ran, and then {repeated.text if isinstance(repeated, EndedSchedule) else repeated.why}"
    if other := first_other_launch(record.events, repeated.record.events):
        _number, was, now = other
        return f"a launch was {was!r}, and then {now!r}"
    return f"its digest was {record.digest}, and then {repeated.record.digest}"


def finding_of(
    request: Request, target: SchedulerTarget, hit: _Hit, follows: str = ""
) -> tuple[Finding, SchedulerReplay]:
    """The finding of a hit, and what its replay file holds."""
    violation, record = hit.violation, hit.record
    case = hit.case or ScheduleCase({}, {}, {})
    rule = BY_ID[violation.rule]
    who = f" of {violation.who}" if violation.who else ""
    title = f"{violation.part}{who}: expected {violation.expected}, got {violation.actual}"
    details = list(violation.details)
    if hit.known:
        details.append(f"the schedule of the known finding {hit.known}")
    if hit.tree:
        details.append(f"on the {hit.tree} alone: the one in Python does not show it by the same choices")
    if record is not None:
        requests = f"{record.requests} request{'s' if record.requests > 1 else ''}"
        details.append(f"{requests}, {record.iterations} iterations, setup {record.setup}")
        details += [f"{who}: {what}" for who, what in told(record.workload)]
    finding = broken(
        rule,
        title=title,
        signature=violation.signature,
        tier="scheduler",
        reach=target.reach(hit.wanted.setup(target.setups)),
        where=violation.where,
        expected=violation.expected,
        actual=violation.actual,
        count=hit.count,
        details=tuple(details),
        follows=follows,
        fixture=hit.fixture,
        wait=violation.wait,
        tree=hit.tree,
    )
    if violation.harmless:  # a race in which no token was wrong
        finding = replace(finding, severity=Severity.METRIC)
    return finding, SchedulerReplay(
        target=request.target,
        tier=finding.tier,
        part=violation.part,
        where=finding.where or target.where,
        source_hash=target.source_hash,
        tape=list(record.tape if record is not None else hit.wanted.tape),
        setup=case.setup,
        workload=case.workload,
        choices=case.choices,
        seed=request.seed,
        rule=finding.rule,
        signature=finding.signature,
        title=finding.title,
        digest=record.digest if record is not None else "",
        mutant=request.mutant,
        events=list(record.events) if record is not None else [],
    )


def failure(request: Request, work: FailureWork, messages: Messages) -> None:
    """A child that ended while no schedule ran, in the release's import or start."""
    raise UsageError(f"{request.target} ends its process before a schedule runs", "report it with `specsim doctor`")


def replay(request: Request, work: Replay, messages: Messages) -> None:
    """Run the schedule of a replay file once more."""
    stored = _stored(work.file)
    target, starters = _started(request, messages)
    try:
        schedule = structs.replace(again(stored, request.hang_seconds), records=work.record, traces=work.traces)
        outcome = starters.run(schedule)
    finally:
        starters.close()
    messages.send(Replayed(answer=answer_of(target, stored, outcome, records=work.record)))


def _code_of(target: SchedulerTarget) -> list[dict[str, str]]:
    """What a schedule runs, for whoever compares revisions."""
    return [{"name": "scheduler", "where": target.where, "source_hash": target.source_hash}]


def answer_of(
    target: SchedulerTarget, stored: SchedulerReplay, outcome: Outcome, *, records: bool = False
) -> dict[str, Any]:
    """What a schedule showed, as JSON; with what a page shows of one that was recorded."""
    if isinstance(outcome, NotStarted):
        return {"judged": False, "why": outcome.why}
    record = outcome.record if isinstance(outcome, Ran) else None
    violations = violations_of(outcome)
    answer = {
        "judged": True,
        "same_source": target.source_hash == stored.source_hash,
        "digest": record.digest if record else "",
        "workload": record.workload if record else {},
        "setup": record.setup if record else "",
        "events": list(record.events) if record else [],
        "where": next((v.where for v in violations if v.signature == stored.signature), ""),
        "code": _code_of(target),
        "ran": [list(function) for function in record.ran] if record else [],
        "violations": [{**plain_violation(violation), "signature": violation.signature} for violation in violations],
    }
    if records and record is not None:
        setup = ScheduleCase(stored.setup, stored.workload, stored.choices).started_by()
        answer["recording"] = {
            "steps": record.steps,
            "lives": record.lives,
            "states": record.states,
            "unreadable": record.unreadable,
            "pool": {name: getattr(setup, name) for name in ("slots", "page_size", "rows")},
            "blamed": {violation.signature: violation.at for violation in violations},
            "read": {v.signature: [v.slot, v.position] for v in violations if v.slot >= 0},
        }
    return answer


def _started(request: Request, messages: Messages) -> tuple[Any, Starters]:
    target = load_target(request)
    if isinstance(target, NotRun):
        raise UsageError(f"{request.target} is not run: {target.why}", "replay it where it is")
    messages.send(At(subject=SUBJECT))
    return target, Starters(target, CHECKS, request.at_once)


def search(request: Request, work: Search, messages: Messages) -> None:
    """Run the schedules of a seed until one breaks the rule that is looked for.

    The answer: {"schedules", "refused": {setup: why}, "failed", "violation": {...} | null, "code": [...]}; `failed`
    counts the schedules in which the scheduler raised.
    """
    target, starters = _started(request, messages)
    refused: dict[str, str] = {}
    checked = failed = 0
    shown: dict[str, Any] | None = None

    def drawn() -> Iterator[tuple[int, WantedSchedule]]:
        for index, schedule in enumerate(_drawn(request, target.setups, (False,))):
            if schedule.setup(target.setups).name not in refused:
                messages.send(At(subject=SUBJECT, index=index))
                yield index, schedule

    try:
        for index, schedule, outcome in starters.run_all(drawn()):
            if isinstance(outcome, NotStarted):
                refused[schedule.setup(target.setups).name] = outcome.why
                continue
            checked += 1
            violations = violations_of(outcome)
            if found := next((violation for violation in violations if violation.rule == work.what), None):
                hit = _Hit(found, schedule, outcome)
                if work.write:
                    _shrink(request, starters, hit, messages, ATTEMPTS, lambda: True)
                    messages.send(shrunk_message(*finding_of(request, target, hit)))
                    return
                shown = {
                    "signature": found.signature,
                    "part": found.part,
                    "actual": found.actual,
                    "schedule": index,
                }
                break
            failed += any(violation.rule == HostException.rule.id for violation in violations)
    finally:
        starters.close()
    answer = {"schedules": checked, "refused": refused, "failed": failed, "violation": shown}
    messages.send(Replayed(answer={**answer, "code": _code_of(target)}))


def shrink(request: Request, work: Shrink, messages: Messages) -> None:
    """Shrink the schedule of a replay file, with more attempts than `check` takes; with none, run it anew."""
    stored = _stored(work.file)
    target, starters = _started(request, messages)
    try:
        schedule = again(stored, request.hang_seconds)
        hit = _shown_by(request, work.file, stored, schedule, starters.run(schedule))
        first = hit.record
        if work.attempts:
            tape = WantedSchedule(tuple(stored.tape), seconds=request.hang_seconds)
            outcome = starters.run(tape)
            drawn = case_of(tape, outcome)
            if drawn is None or (drawn.setup, drawn.workload) != (stored.setup, stored.workload):
                raise UsageError(
                    f"{work.file} cannot be made smaller: its tape draws another schedule since specsim has changed",
                    f"it replays as it is; specsim check {request.target} --only scheduler finds it anew",
                )
            hit = _shown_by(request, work.file, stored, tape, outcome)
            _shrink(request, starters, hit, messages, work.attempts, interrupts.until(work.seconds))
    finally:
        starters.close()
    assert first is not None
    assert hit.record is not None
    before, after = ((len(record.tape), record.iterations) for record in (first, hit.record))
    messages.send(shrunk_message(*finding_of(request, target, hit), before=before, after=after))


def _shown_by(request: Request, file: str, stored: SchedulerReplay, schedule: WantedSchedule, outcome: Outcome) -> _Hit:
    """A schedule that shows the finding of a replay file. UsageError for one that does not."""
    shown = [violation for violation in violations_of(outcome) if violation.signature == stored.signature]
    if not shown or not isinstance(outcome, Ran):
        remedy = "replay it to see what it shows"
        raise UsageError(f"{file} does not show {stored.signature} on {request.target}", remedy)
    return _Hit(shown[0], schedule, outcome)


def again(stored: SchedulerReplay, seconds: float) -> WantedSchedule:
    """The schedule of a replay file. UsageError for one that there is not."""
    case = ScheduleCase(stored.setup, stored.workload, stored.choices)
    case.started_by()
    case.users()
    return WantedSchedule(tuple(stored.tape), seconds=seconds, case=case)


def _stored(file: str) -> SchedulerReplay:
    stored = replay_file.load(Path(file))
    assert isinstance(stored, SchedulerReplay)
    return stored
