"""Many schedules of one accounting: findings, one for each defect, with a smallest schedule.

Schedule `i` is made from (seed, i) alone, the same for every target: a scenario first, then the choices of the run.
Every twentieth schedule is run twice, and a digest that differs ends the suite: what is not deterministic is not
checked.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace

from specsim.choices.chooser import RecordingChooser, Tape, continued, replayed, seeded
from specsim.choices.shrinker import Shrinker, shortlex
from specsim.engine.accounting_target import AccountingTarget
from specsim.engine.event_log import Run
from specsim.engine.loop import Engine, UnsupportedScenarioError
from specsim.engine.marks import INTERLEAVINGS, LIFE, note
from specsim.engine.observer import Violation
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.workload import Scenario, draw_scenario
from specsim.tiers.accounting.decisive_pair import Pair, StoppedError, decisive_pair
from specsim.tiers.accounting.scenario_reduction import without_one_item

Size = tuple[int, int, int, tuple[int, Tape]]

SHRINK_ATTEMPTS_MAX = 250  # from each start
SHRINK_STARTS = 3  # a schedule shrinks to a local minimum: the best of several is taken
SHRINK_SHARE = 0.4  # of the time, kept for shrinking as soon as there is something to shrink
REDRAWS = 40  # schedules of a scenario with one request fewer
LARGER_SCHEDULES = 10  # schedules of a defect that are run in another order
DOUBLED_EVERY = 20


@dataclass(frozen=True, slots=True)
class RanSchedule:
    """A schedule that was run. `tape` are all its choices, the scenario's first."""

    scenario: Scenario
    tape: Tape
    run: Run

    def size(self) -> Size:
        """Fewer requests are smaller, then fewer events, then fewer switches between host and device, then a smaller
        tape.
        """
        return (len(self.scenario.workload.turns), len(self.run.log), self.run.switches, shortlex(self.tape))

    def violation(self, signature: str) -> Violation | None:
        return next((v for v in self.run.violations if v.signature == signature), None)


@dataclass(frozen=True, slots=True)
class KnownSchedule:
    """The schedule of a replay file, which is run before schedules are drawn, and the signature it is known for."""

    name: str
    tape: Tape
    signature: str


@dataclass(frozen=True, slots=True)
class ScheduleFinding:
    """A defect: the violation on its smallest schedule, and how many drawn schedules hit it, the one of number `first`
    first. `order` are the two events in whose other order the rule holds, None when the defect happens in every order,
    or when nobody `looked`. `known` names the replay file whose schedule it is, "" for a drawn one.
    """

    signature: str
    violation: Violation
    schedule: RanSchedule
    count: int
    first: int
    order: Pair | None
    looked: bool = True
    known: str = ""


@dataclass(slots=True)
class SimulationResult:
    """What a suite of schedules showed. `nondeterministic` has the schedules of which two runs differ, with the first
    event that did; `marks` counts the schedules that reached each mark or pair of marks. `signatures` are those that
    broke so far, also before they are findings.
    """

    schedules: int = 0
    events: int = 0
    signatures: set[str] = field(default_factory=set)
    findings: list[ScheduleFinding] = field(default_factory=list)
    refused: dict[str, int] = field(default_factory=dict)
    nondeterministic: dict[str, str] = field(default_factory=dict)
    cut_short: bool = False
    marks: Counter[str] = field(default_factory=Counter)


def run_schedule(
    target: AccountingTarget,
    chooser: RecordingChooser,
    refused: dict[str, int] | None = None,
    stop_at: str = "",
    engine: Callable[..., Engine] = checked_engine,
) -> RanSchedule | None:
    """One schedule from the chooser's choices; None when the target does not run its scenario, counted in `refused`. It
    ends at a violation with the signature `stop_at`. `engine` makes what runs it.
    """
    scenario = draw_scenario(chooser, target.features)
    try:
        run = engine(scenario, chooser, target.make, stop_at).run()
    except UnsupportedScenarioError as error:
        if refused is not None:
            refused[str(error)] = refused.get(str(error), 0) + 1
        return None
    return RanSchedule(scenario, chooser.tape, run)


def chooser_of(seed: int, index: int) -> RecordingChooser:
    return seeded(seed, "schedules", index)


@dataclass(slots=True)
class _Hits:
    """The schedules that break the rule of one signature: how many, the smallest, the first ones, and a known one."""

    first: int
    count: int = 0
    smallest: list[tuple[tuple[int, int, tuple[int, Tape]], Tape]] = field(default_factory=list)
    tapes: list[Tape] = field(default_factory=list)
    known: KnownSchedule | None = None

    def add(self, schedule: RanSchedule, violation: Violation, known: KnownSchedule | None) -> None:
        if known is not None and known.signature == violation.signature:
            self.known = self.known or known
            return
        self.count += known is None
        self.tapes = [*self.tapes, schedule.tape][:LARGER_SCHEDULES]
        size = (len(schedule.scenario.workload.turns), violation.event, shortlex(schedule.tape))
        self.smallest = sorted([*self.smallest, (size, schedule.tape)])[:SHRINK_STARTS]

    @property
    def starts(self) -> list[Tape]:
        return [self.known.tape] if self.known else [tape for _, tape in self.smallest]


def simulate(
    target: AccountingTarget,
    *,
    seed: int,
    schedules: int,
    deadline: float,
    on_schedule: Callable[[int], None],
    ordered: bool = True,
    result: SimulationResult | None = None,
    stopped: Callable[[], bool] = lambda: False,
    shrinks: Callable[[str], bool] = lambda _signature: True,
    attempts: int | None = None,
    known: Collection[KnownSchedule] = (),
    on_known: Callable[[str], None] = lambda _name: None,
    on_found: Callable[[ScheduleFinding], None] = lambda _found: None,
) -> SimulationResult:
    """Run up to `schedules` schedules until `deadline` (of time.monotonic), then shrink what was found in what is left.

    The schedules `known` come first, `on_known(name)` before each. `on_schedule(index)` is called before each
    schedule, with -1 while shrinking. Each finding is shrunk with `attempts` attempts at most, as many as the shrinker
    makes by itself when left out. Without `ordered`, nobody looks for the two events whose order matters. Findings are
    in `result`; `on_found` gets each as it was hit, and again when it was shrunk. `stopped` ends the run as the
    deadline does; what `shrinks(signature)` refuses stays as large as it is.
    """
    result = SimulationResult() if result is None else result
    hits: dict[str, _Hits] = {}
    shrink_from = deadline if deadline == math.inf else deadline - SHRINK_SHARE * (deadline - time.monotonic())

    def take(schedule: RanSchedule, index: int, each: KnownSchedule | None = None) -> None:
        for violation in schedule.run.violations:
            result.signatures.add(violation.signature)
            hits.setdefault(violation.signature, _Hits(index)).add(schedule, violation, each)

    for each in known:
        if stopped():
            break
        on_known(each.name)
        shown = run_schedule(target, replayed(each.tape))
        if shown is not None:
            take(shown, 0, each)
    for index in range(schedules):
        end = shrink_from if any(shrinks(name) for name, hit in hits.items() if not hit.known) else deadline
        if index and (time.monotonic() > end or stopped()):
            result.cut_short = True
            break
        on_schedule(index)
        schedule = run_schedule(target, chooser_of(seed, index), result.refused)
        if schedule is None:
            continue
        result.schedules += 1
        result.events += len(schedule.run.log)
        note(result.marks, schedule.run.marks)
        take(schedule, index)
        if index % DOUBLED_EVERY == 0 and (difference := first_difference(target, schedule)):
            result.nondeterministic[f"schedule {index} of seed {seed}"] = difference
    as_hit: dict[str, ScheduleFinding] = {}
    for signature, hit in hits.items():
        if (made := _as_hit(target, signature, hit)) is None:
            result.nondeterministic[f"the schedule of {signature}"] = "only its first run broke the rule"
            continue
        as_hit[signature] = made
        on_found(made)
    hits = {signature: hits[signature] for signature in as_hit}
    for number, (signature, hit) in enumerate(hits.items()):
        now, left = time.monotonic(), sum(map(shrinks, list(hits)[number:]))
        ends = now + (deadline - now) / max(1, left)  # each defect has its share of the time that is left
        found = as_hit[signature]
        if shrinks(signature) and now < ends and not stopped():
            found = _shrunk(target, found, hit, attempts, ends, stopped, ordered, lambda: on_schedule(-1))
            on_found(found)
        result.findings.append(found)
    return result


def _as_hit(target: AccountingTarget, signature: str, hit: _Hits) -> ScheduleFinding | None:
    """A defect on the smallest schedule that hit it, which ends where the rule breaks; None where it does not break
    again.
    """
    schedule = run_schedule(target, replayed(hit.starts[0]), stop_at=signature)
    violation = schedule.violation(signature) if schedule is not None else None
    if schedule is None or violation is None:
        return None
    known = hit.known.name if hit.known else ""
    return ScheduleFinding(signature, violation, schedule, hit.count, hit.first, None, looked=False, known=known)


def _shrunk(
    target: AccountingTarget,
    found: ScheduleFinding,
    hit: _Hits,
    attempts: int | None,
    ends: float,
    stopped: Callable[[], bool],
    ordered: bool,
    on_attempt: Callable[[], None],
) -> ScheduleFinding:
    """A defect on the smallest schedule found from several starts, by `ends` (of time.monotonic) and in so many
    attempts in all; and the two events whose order matters, if it is `ordered` and there is time to look. The schedule
    of a known finding stays as it is.
    """
    left = math.inf if attempts is None else attempts

    def goes_on() -> bool:
        return left > 0 and time.monotonic() < ends and not stopped()

    def attempted() -> None:
        nonlocal left
        left -= 1
        on_attempt()

    smallest = found.schedule
    for tape in [] if hit.known else hit.starts:
        if goes_on():
            shrunk = shrink(target, tape, found.signature, SHRINK_ATTEMPTS_MAX, attempted, goes_on)
            smallest = min(smallest, shrunk, key=RanSchedule.size)
    violation = smallest.violation(found.signature)
    assert violation is not None
    found = replace(found, violation=violation, schedule=smallest)
    if not ordered:
        return found
    try:
        on_attempt()
        in_time = lambda: time.monotonic() < ends and not stopped()  # noqa: E731
        order = decisive_pair(target, smallest.tape, found.signature, hit.tapes, in_time)
    except StoppedError:
        return found
    return replace(found, order=order, looked=True)


def shares(target: AccountingTarget, *, seed: int, schedules: int) -> dict[str, float]:
    """The share of schedules that reach each mark and each pair of marks, by falling share; 0 for an interleaving and
    for a step of a life that none reaches.
    """
    counts = Counter(dict.fromkeys([*INTERLEAVINGS, *LIFE], 0))
    run = 0
    for index in range(schedules):
        schedule = run_schedule(target, chooser_of(seed, index))
        if schedule is not None:
            run += 1
            note(counts, schedule.run.marks)
    return {mark: count / max(1, run) for mark, count in counts.most_common()}


def first_difference(target: AccountingTarget, schedule: RanSchedule) -> str:
    """Run a schedule again; the first event that differs, "" when none does."""
    again = run_schedule(target, replayed(schedule.tape))
    if again is not None and again.run.digest == schedule.run.digest:
        return ""
    other = again.run.log if again is not None else ()
    for one, two in zip(schedule.run.log, other, strict=False):
        if one != two:
            return f"event {one.number} was {str(one).strip()!r}, then {str(two).strip()!r}"
    return f"{len(schedule.run.log)} events, then {len(other)}"


def fewer_requests(
    target: AccountingTarget, tape: Tape, signature: str, on_attempt: Callable[[], None], goes_on: Callable[[], bool]
) -> RanSchedule | None:
    """A schedule with fewer requests that breaks the same rule, its choices drawn anew, None when none is found before
    `goes_on` says no.
    """
    found: RanSchedule | None = None
    improved = True
    while improved:
        improved = False
        count = len(found.scenario.workload.turns) if found else len(draw_scenario(replayed(tape)).workload.turns)
        start = found.tape if found else tape
        for scenario in without_one_item(start) if count > 1 else ():
            if len(draw_scenario(replayed(scenario)).workload.turns) >= count:
                continue
            for number in range(REDRAWS):
                if not goes_on():
                    return found
                on_attempt()
                drawn = continued(scenario, seeded(0, "fewer requests", number))
                schedule = run_schedule(target, drawn, stop_at=signature)
                if schedule is not None and schedule.violation(signature):
                    found, improved = schedule, True
                    break
            if improved:
                break
    return found


def shrink(
    target: AccountingTarget,
    tape: Tape,
    signature: str,
    attempts_max: int,
    on_attempt: Callable[[], None],
    goes_on: Callable[[], bool] = lambda: True,
) -> RanSchedule:
    """The smallest schedule that still breaks the rule of `signature`; workload, configuration and choices shrink
    together. It ends where the rule breaks. `goes_on` is asked before each attempt: no keeps what there is.
    """
    best = run_schedule(target, replayed(tape), stop_at=signature)
    assert best is not None
    sizes: dict[Tape, Size] = {tape: best.size()}

    def attempt(candidate: Tape) -> Tape | None:
        if not goes_on():
            return None
        on_attempt()
        schedule = run_schedule(target, replayed(candidate), stop_at=signature)
        if schedule is None or not schedule.violation(signature):
            return None
        sizes[schedule.tape] = schedule.size()
        return schedule.tape

    fewest = fewer_requests(target, tape, signature, on_attempt, goes_on)
    if fewest is not None:
        sizes[fewest.tape] = fewest.size()
        tape = fewest.tape
    shrunk = Shrinker(tape, attempt, attempts_max, sizes.__getitem__).run()
    best = run_schedule(target, replayed(shrunk), stop_at=signature)
    assert best is not None
    return best
