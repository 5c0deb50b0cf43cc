"""Many schedules of one accounting: findings, one for each defect, with a smallest schedule.

Schedule `i` is made from (seed, i) alone, the same for every target: a scenario first, then the choices of the run.
Every twentieth schedule is run twice, and a digest that differs ends the suite: what is not deterministic is not
judged.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from specsim.check.checker import Violation
from specsim.explore.chooser import RecordingChooser, Tape, replayed, seeded
from specsim.explore.shrink import Shrinker, shortlex
from specsim.sim.engine import Engine, Run, UnjudgeableError
from specsim.sim.marks import INTERLEAVINGS, note
from specsim.sim.target import AccountingTarget
from specsim.sim.workload import Scenario, draw_scenario

SHRINK_ATTEMPTS_MAX = 250  # from each start
SHRINK_STARTS = 3  # a schedule shrinks to a local minimum: the best of several is taken
DOUBLED_EVERY = 20


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule that was run. `tape` are all its choices, the scenario's first."""

    scenario: Scenario
    tape: Tape
    run: Run

    def size(self) -> tuple[int, int, tuple[int, Tape]]:
        """Fewer requests are smaller, then fewer events, then a smaller tape."""
        return (len(self.scenario.workload.turns), len(self.run.log), shortlex(self.tape))

    def violation(self, signature: str) -> Violation | None:
        return next((v for v in self.run.violations if v.signature == signature), None)


@dataclass(frozen=True, slots=True)
class ScheduleFinding:
    """A defect: the violation on its smallest schedule, and how many schedules hit it."""

    signature: str
    violation: Violation
    schedule: Schedule
    count: int


@dataclass(slots=True)
class SimulationResult:
    """What a suite of schedules showed. `nondeterministic` names the first event that differed between two runs of a
    schedule; `marks` counts the schedules that reached each mark or pair of marks.
    """

    schedules: int = 0
    events: int = 0
    findings: list[ScheduleFinding] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    nondeterministic: str = ""
    cut_short: bool = False
    marks: Counter[str] = field(default_factory=Counter)


def run_schedule(
    target: AccountingTarget, chooser: RecordingChooser, refused: dict[str, int] | None = None
) -> Schedule | None:
    """One schedule from the chooser's choices; None when the target does not run its scenario, counted in `refused`."""
    scenario = draw_scenario(chooser, target.features)
    try:
        run = Engine(scenario, chooser, target.make).run()
    except UnjudgeableError as error:
        if refused is not None:
            refused[str(error)] = refused.get(str(error), 0) + 1
        return None
    return Schedule(scenario, chooser.tape, run)


def chooser_of(seed: int, index: int) -> RecordingChooser:
    return seeded(seed, "schedules", index)


def simulate(
    target: AccountingTarget,
    *,
    seed: int,
    schedules: int,
    deadline: float,
    on_schedule: Callable[[int], None],
) -> SimulationResult:
    """Run up to `schedules` schedules until `deadline` (of time.monotonic), then shrink what was found.

    `on_schedule(index)` is called before each, with -1 while shrinking.
    """
    result = SimulationResult()
    shortest: dict[str, list[Tape]] = {}
    counts: dict[str, int] = {}
    for index in range(schedules):
        if index and time.monotonic() > deadline:
            result.cut_short = True
            break
        on_schedule(index)
        schedule = run_schedule(target, chooser_of(seed, index), result.refused)
        if schedule is None:
            continue
        result.schedules += 1
        result.events += len(schedule.run.log)
        note(result.marks, schedule.run.marks)
        for violation in schedule.run.violations:
            signature = violation.signature
            counts[signature] = counts.get(signature, 0) + 1
            tapes = [*shortest.get(signature, []), schedule.tape]
            shortest[signature] = sorted(tapes, key=shortlex)[:SHRINK_STARTS]
        if index % DOUBLED_EVERY == 0:
            result.nondeterministic = _first_difference(target, schedule)
            if result.nondeterministic:
                return result
    for signature, tapes in shortest.items():
        shrunk = min(
            (shrink(target, tape, signature, SHRINK_ATTEMPTS_MAX, lambda: on_schedule(-1)) for tape in tapes),
            key=Schedule.size,
        )
        shown = shrunk.violation(signature)
        assert shown is not None
        result.findings.append(ScheduleFinding(signature, shown, shrunk, counts[signature]))
    return result


def shares(target: AccountingTarget, *, seed: int, schedules: int) -> dict[str, float]:
    """The share of schedules that reach each mark and each pair of marks, by falling share; 0 for an interleaving that
    none reaches.
    """
    counts = Counter(dict.fromkeys(INTERLEAVINGS, 0))
    run = 0
    for index in range(schedules):
        schedule = run_schedule(target, chooser_of(seed, index))
        if schedule is not None:
            run += 1
            note(counts, schedule.run.marks)
    return {mark: count / max(1, run) for mark, count in counts.most_common()}


def _first_difference(target: AccountingTarget, schedule: Schedule) -> str:
    """Run a schedule again; the first event that differs, "" when none does."""
    again = run_schedule(target, replayed(schedule.tape))
    if again is not None and again.run.digest == schedule.run.digest:
        return ""
    other = again.run.log if again is not None else ()
    for one, two in zip(schedule.run.log, other, strict=False):
        if one != two:
            return f"event {one.number} was {str(one).strip()!r}, then {str(two).strip()!r}"
    return f"{len(schedule.run.log)} events, then {len(other)}"


def shrink(
    target: AccountingTarget, tape: Tape, signature: str, attempts_max: int, on_attempt: Callable[[], None]
) -> Schedule:
    """The smallest schedule that still breaks the rule of `signature`; workload and choices shrink together."""

    def attempt(candidate: Tape) -> Tape | None:
        on_attempt()
        schedule = run_schedule(target, replayed(candidate))
        return schedule.tape if schedule is not None and schedule.violation(signature) else None

    best = Shrinker(tape, attempt, attempts_max).run()
    schedule = run_schedule(target, replayed(best))
    assert schedule is not None
    return schedule
