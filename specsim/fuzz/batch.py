"""One batch of schedules, run on a target that is loaded: what a process of a campaign does.

Run `index` of a shard is made from (campaign, shard, index). A batch that is cut short has run its first indexes.

This module imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from specsim.choices.chooser import RecordingChooser, Tape, replayed
from specsim.deadline import NEVER, Deadline
from specsim.engine.accounting_target import AccountingTarget
from specsim.engine.loop import Engine
from specsim.engine.observer import Violation
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.workload import Scenario, draw_scenario
from specsim.fuzz.batches import seed_of
from specsim.fuzz.reached import Reached
from specsim.fuzz.scenario_families import FAMILIES
from specsim.fuzz.work import Batch, BatchResult, RunFinding
from specsim.replay_file import Replay, to_text
from specsim.tiers.accounting.answers import ScheduleOrigin, finding_of, title_of
from specsim.tiers.accounting.answers import failure_of as process_failure_of
from specsim.tiers.accounting.decisive_pair import StoppedError, decisive_pair
from specsim.tiers.accounting.schedules import (
    LARGER_SCHEDULES,
    SHRINK_ATTEMPTS_MAX,
    RanSchedule,
    ScheduleFinding,
    first_difference,
    run_schedule,
    shrink,
)
from specsim.tiers.accounting.schedules import chooser_of as drawn_chooser
from specsim.verdict import Finding

DOUBLED_EVERY = 250  # runs are made twice: what is not deterministic is not checked
SHRINK_SECONDS = 20.0  # of a batch, for everything that it found
SHRINK_SHARE = 0.25  # of the time until a deadline
SHRINKING, ORDERING = -1, -2  # told in place of an index
NONDETERMINISTIC = "two runs"  # how a batch says that it ended so


@dataclass(slots=True)
class _BatchHits:
    """The runs of a batch that broke a rule in one way: how many, the first one, and the smallest schedule so far."""

    first: int
    cpu_seconds: float
    smallest: RanSchedule
    violation: Violation
    count: int = 0
    tapes: list[Tape] = field(default_factory=list)


def runs_of(
    target: AccountingTarget, batch: Batch, refused: dict[str, int], on_run: Callable[[int], None]
) -> Iterator[tuple[int, RanSchedule | None]]:
    """The runs of a batch, each with its index; None for one that the target does not run, counted in `refused`.
    `on_run` is told an index before it is run.
    """
    for index in range(batch.first, batch.first + batch.count):
        on_run(index)
        yield index, run_one(target, chooser_of(batch, index), refused)


def run_one(
    target: AccountingTarget, chooser: RecordingChooser, refused: dict[str, int] | None = None
) -> RanSchedule | None:
    """One schedule, whose choices are biased until its scenario is drawn; None when the target does not run it."""

    def make(scenario: Scenario, choices: RecordingChooser, *rest: Any) -> Engine:
        chooser.unbias()
        return checked_engine(scenario, choices, *rest)

    return run_schedule(target, chooser, refused, engine=make)


def chooser_of(batch: Batch, index: int) -> RecordingChooser:
    """The choices of run `index`: those of its scenario are the family's."""
    chooser = drawn_chooser(seed_of(batch), index)
    values = FAMILIES[batch.family].values
    if values:
        chooser.bias(values)
    return chooser


def run_batch_here(
    target: AccountingTarget,
    batch: Batch,
    version: str,
    on_run: Callable[[int], None] = lambda _index: None,
    seconds: float = math.inf,
    stopped: Callable[[], bool] = lambda: False,
    shrinks: bool = True,
    deadline: Deadline = NEVER,
) -> BatchResult:
    """Run a batch in this process, for `seconds` at most or until it is `stopped`, and make smaller what it found. All
    of it ends at the `deadline`: when there is something to make smaller, runs end before it.
    """
    started, cpu_started = time.monotonic(), time.process_time()
    refused: dict[str, int] = {}
    reached = Reached()
    hits: dict[str, _BatchHits] = {}
    runs = events = 0
    ended = ""
    ends = min(started + seconds, deadline.at)
    ends_to_shrink = min(ends, deadline.at - min(SHRINK_SECONDS, SHRINK_SHARE * deadline.left))
    for index, schedule in runs_of(target, batch, refused, on_run):
        if schedule is not None:
            runs += 1
            events += len(schedule.run.log)
            reached.take(schedule)
            for violation in schedule.run.violations:
                cpu_seconds = time.process_time() - cpu_started
                if shrinks and violation.signature not in batch.known:
                    ends = ends_to_shrink
                hit = hits.setdefault(violation.signature, _BatchHits(index, cpu_seconds, schedule, violation))
                hit.count += 1
                hit.tapes = [*hit.tapes, schedule.tape][:LARGER_SCHEDULES]
                hit.smallest = min(hit.smallest, schedule, key=RanSchedule.size)
            if index % DOUBLED_EVERY == 0 and (difference := first_difference(target, schedule)):
                ended = f"{NONDETERMINISTIC} of schedule {index} differ: {difference}"
                break
        if time.monotonic() > ends or stopped():
            break
    no_later = deadline.sooner(SHRINK_SECONDS).at
    findings = []
    for number, (signature, hit) in enumerate(hits.items()):
        if signature not in batch.known and not _shown_again(target, hit.smallest, signature):
            ended = ended or f"{NONDETERMINISTIC} of a schedule differ: {signature} in the first one alone"
            continue
        now = time.monotonic()
        ends = now + max(0.0, no_later - now) / (len(hits) - number)
        wanted = shrinks and not ended and signature not in batch.known
        goes_on = (lambda ends=ends: time.monotonic() < ends and not stopped()) if wanted else lambda: False
        findings.append(_found(target, batch, signature, hit, on_run, goes_on))
    return BatchResult(
        batch=batch,
        version=version,
        runs=runs,
        events=events,
        seconds=time.monotonic() - started,
        cpu_seconds=time.process_time() - cpu_started,
        refused=refused,
        features=dict(reached.features),
        findings=tuple(findings),
        ended=ended,
    )


def _shown_again(target: AccountingTarget, schedule: RanSchedule, signature: str) -> bool:
    again = run_schedule(target, replayed(schedule.tape), stop_at=signature)
    return again is not None and again.violation(signature) is not None


def _found(
    target: AccountingTarget,
    batch: Batch,
    signature: str,
    hit: _BatchHits,
    on_run: Callable[[int], None],
    goes_on: Callable[[], bool],
) -> RunFinding:
    """The finding of a signature, shrunk as long as it `goes_on`. Of a known one there is no new replay file."""
    if signature in batch.known:
        violation = hit.violation
        return RunFinding(
            signature=signature,
            tier=batch.tier,
            rule=violation.rule.id,
            title=title_of(violation),
            severity=str(violation.rule.severity),
            reach=target.reach(hit.smallest.scenario.config, violation.part),
            where="",
            index=hit.first,
            count=hit.count,
            size=(),
            replay="",
            cpu_seconds=hit.cpu_seconds,
        )
    tape, order, looked = hit.smallest.tape, None, False
    smallest = shrink(target, tape, signature, SHRINK_ATTEMPTS_MAX, lambda: on_run(SHRINKING), goes_on)
    if goes_on():
        on_run(ORDERING)
        with contextlib.suppress(StoppedError):
            order = decisive_pair(target, smallest.tape, signature, hit.tapes, goes_on)
            looked = True
    violation_now = smallest.violation(signature)
    assert violation_now is not None
    schedule_finding = ScheduleFinding(signature, violation_now, smallest, hit.count, hit.first, order, looked)
    finding, replay = finding_of(target, schedule_finding, _origin(batch))
    return found_of(finding, replay, hit.first, _size(smallest), hit.cpu_seconds)


def shown_as_found(target: AccountingTarget, batch: Batch, index: int, schedule: RanSchedule) -> list[RunFinding]:
    """What one run shows, each as it is: nothing is shrunk."""
    found = []
    for violation in {violation.signature: violation for violation in schedule.run.violations}.values():
        as_it_is = ScheduleFinding(violation.signature, violation, schedule, 1, index, None, looked=False)
        finding, replay = finding_of(target, as_it_is, _origin(batch))
        found.append(found_of(finding, replay, index, _size(schedule), 0.0))
    return found


def _size(schedule: RanSchedule) -> tuple[int, ...]:
    turns, events, switches, (length, _) = schedule.size()
    return turns, events, switches, length


def _origin(batch: Batch) -> ScheduleOrigin:
    return ScheduleOrigin(batch.target, batch.campaign)


def found_of(finding: Finding, replay: Replay, index: int, size: tuple[int, ...], cpu_seconds: float) -> RunFinding:
    """A Finding, first hit in run `index`, with the text of its replay file."""
    return RunFinding(
        signature=finding.signature,
        tier=finding.tier,
        rule=finding.rule,
        title=finding.title,
        severity=str(finding.severity),
        reach=finding.reach,
        where=finding.where,
        index=index,
        count=finding.count,
        size=size,
        replay=to_text(replay),
        cpu_seconds=cpu_seconds,
    )


def failure_of(batch: Batch, features: frozenset[str], index: int, tape: Tape, rule: str, text: str) -> RunFinding:
    """The finding of run `index`, which took its process with it: `text` says how, `tape` are its choices by then."""
    scenario = draw_scenario(replayed(tape), features)
    finding, replay = process_failure_of(tape, scenario, _origin(batch), index, rule, text)
    return found_of(finding, replay, index, (len(scenario.workload.turns), len(tape)), 0.0)
