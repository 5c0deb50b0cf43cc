"""The two events whose order matters: the pair of a schedule that, the other way round, does not break the rule.

A schedule is taken apart into steps: of the host (it receives, schedules, takes a result) and of the device (it runs a
launch). Two steps that follow one another are swapped, and the schedule is run again with the same other choices:

- the host schedules, then takes the result of the launch before (that is overlap); swapped, it takes the result first;
- a step of the host and one of the device, where the stream and the wait for a result leave the order open.

The swaps nearest to the broken rule are tried first. Where none alone helps, the first kind is tried everywhere at
once, and the pair nearest to the broken rule stands for all. The smallest schedule may need overlap for another reason
than the defect does (a stale step is the shortest way to a decode step), so larger schedules of the same defect are run
without any overlap too: when one of them still breaks the rule, overlap is not what matters. That no pair is found says
that no such swap helps: the defect happens in every order.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from specsim.explore.chooser import RecordingChooser, Tape, replayed
from specsim.sim.device import Launch
from specsim.sim.engine import ITERATIONS_MAX, Engine
from specsim.sim.log import LoggedEvent, Run
from specsim.sim.target import AccountingTarget, move_of
from specsim.sim.workload import Scenario, draw_scenario

UNLOGGED = -1  # number of an event that the log does not have: it would come after the broken rule, or is not logged
_WHO_GOES_NEXT = "device goes first"
_WHICH_STREAM = "stream"
# What a step of the host is named by: the first of these that it has, else its first event.
_TELLING = ("retract", "launch", "resolve", "admit")

Pair = tuple[LoggedEvent, LoggedEvent]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that logged events `[start, end)`. `ordinal` counts steps of its kind; `resumed` how often the host had
    gone on when it began.
    """

    kind: str  # "receive", "schedule", "resolve" or "device"
    ordinal: int
    resumed: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Orders:
    """How a run departs from what was chosen. `results_first`: before these calls of the scheduler the host takes all
    results. `device_at[k]`: launch k is run when the host has gone on so often.
    """

    results_first: frozenset[int] = frozenset()
    device_at: tuple[int, ...] = ()


_NO_OVERLAP = _Orders(results_first=frozenset(range(ITERATIONS_MAX + 1)))


class _SteppedEngine(Engine):
    """Notes its steps, and runs them in the order that is asked for, as far as that can be."""

    def __init__(
        self,
        scenario: Scenario,
        chooser: RecordingChooser,
        target: AccountingTarget,
        stop_at: str,
        orders: _Orders,
    ) -> None:
        super().__init__(scenario, chooser, target.make, stop_at, move_of(target))
        self.steps: list[_Step] = []
        self.resumed = 0
        self._orders = orders
        self._begun = {"receive": 0, "schedule": 0, "resolve": 0, "device": 0}

    def wants_device(self, chosen: int) -> int:
        """Whose step is next, where `chosen` was."""
        number = self._begun["device"]
        at = self._orders.device_at
        return chosen if number >= len(at) else int(at[number] <= self.resumed)

    def step(self, of_device: bool) -> None:
        super().step(of_device)
        self.resumed += not of_device

    def _receive(self) -> None:
        self._step("receive", super()._receive)

    def _schedule(self) -> None:
        if self._begun["schedule"] in self._orders.results_first:
            while self._unresolved:
                oldest = self._unresolved[0]
                while not oldest.done:
                    self._execute()
                self._resolve(oldest)
        self._step("schedule", super()._schedule)

    def _resolve(self, launch: Launch) -> None:
        self._step("resolve", lambda: super(_SteppedEngine, self)._resolve(launch))

    def _execute(self) -> None:
        self._step("device", super()._execute)

    def _step(self, kind: str, body: Callable[[], None]) -> None:
        ordinal, start = self._begun[kind], len(self._log)
        self._begun[kind] += 1
        try:
            body()
        finally:
            self.steps.append(_Step(kind, ordinal, self.resumed, start, len(self._log)))


def decisive_pair(target: AccountingTarget, tape: Tape, signature: str, larger: Sequence[Tape] = ()) -> Pair | None:
    """The two events of the schedule of `tape`, in its order, whose other order does not break the rule of `signature`;
    None when it breaks in every order. `larger` are other schedules that break it.
    """
    run, steps = _run(target, tape, signature, _Orders())
    overlapped = list(_overlapped(steps))
    if any(_breaks(target, other, signature, _NO_OVERLAP) for other in larger):
        overlapped = []
    swaps = _between_agents(steps)
    swaps += [(step, result, _Orders(results_first=frozenset([step.ordinal]))) for step, result in overlapped]
    swaps.sort(key=lambda swap: -swap[0].start)
    if overlapped:
        swaps.append((*overlapped[-1], _NO_OVERLAP))
    for one, two, orders in swaps:
        other, _ = _run(target, tape, signature, orders)
        if _holds(run, other, signature):
            first = _telling_event(run, one)
            return first, _telling_event(run, two) if two else _missing_event(other, one, bool(orders.device_at))
    return None


def line(event: LoggedEvent) -> str:
    """An event of a pair as findings and replay files name it."""
    number = "not in the log" if event.number == UNLOGGED else f"event {event.number}"
    return f"{number}: {' '.join(str(event).split()[1:])}"


def _holds(run: Run, other: Run, signature: str) -> bool:
    """Whether the rule holds in the other order, and nothing else that breaks by then keeps it from being looked at."""
    known = {violation.signature for violation in run.violations}
    return not any(
        violation.signature == signature or (violation.signature not in known and violation.event < len(run.log))
        for violation in other.violations
    )


def _breaks(target: AccountingTarget, tape: Tape, signature: str, orders: _Orders) -> bool:
    run, _ = _run(target, tape, signature, orders)
    return any(violation.signature == signature for violation in run.violations)


def _run(target: AccountingTarget, tape: Tape, signature: str, orders: _Orders) -> tuple[Run, list[_Step]]:
    """Run a tape in other orders. Which step comes next, and of which stream, is chosen apart from everything else, so
    that the other choices stay what they were.
    """
    dealt = _deal(target, tape, signature) if orders != _Orders() else None
    source = replayed(tape)
    scenario = draw_scenario(source, target.features)
    engine: _SteppedEngine

    def choose(bound: int, label: str) -> int:
        if dealt is None:
            return source.choose(bound, label)
        if label == _WHO_GOES_NEXT:
            return engine.wants_device(next(dealt[label], 0))
        return next(dealt[label if label == _WHICH_STREAM else ""], 0)

    engine = _SteppedEngine(scenario, RecordingChooser(choose), target, signature, orders)
    return engine.run(), engine.steps


def _deal(target: AccountingTarget, tape: Tape, signature: str) -> dict[str, Iterator[int]]:
    """The choices of a run after its scenario: those of whose step is next, those of which stream's, and the others."""
    source = replayed(tape)
    dealt: dict[str, list[int]] = {_WHO_GOES_NEXT: [], _WHICH_STREAM: [], "": []}

    def choose(bound: int, label: str) -> int:
        value = source.choose(bound, label)
        dealt[label if label in dealt else ""].append(value)
        return value

    scenario = draw_scenario(source, target.features)
    Engine(scenario, RecordingChooser(choose), target.make, signature, move_of(target)).run()
    return {label: iter(values) for label, values in dealt.items()}


def _overlapped(steps: Sequence[_Step]) -> Iterator[tuple[_Step, _Step | None]]:
    """Each step of the scheduler that logged something, with the step that takes the result of the launch before; None
    when the run ended first.
    """
    for index, step in enumerate(steps):
        if step.kind != "schedule" or step.start == step.end:
            continue
        later = [s for s in steps[index + 1 :] if s.kind in ("schedule", "resolve")]
        yield step, later[0] if later and later[0].kind == "resolve" else None


def _between_agents(steps: Sequence[_Step]) -> list[tuple[_Step, _Step | None, _Orders]]:
    """Neighbours of which one is the device's, which is run before the host's instead of after it, or the other way
    round.
    """
    logged = [step for step in steps if step.start < step.end]
    device_at = [step.resumed for step in steps if step.kind == "device"]
    swaps: list[tuple[_Step, _Step | None, _Orders]] = []
    for one, two in pairwise(logged):
        if (one.kind == "device") == (two.kind == "device"):
            continue
        device, host = (one, two) if one.kind == "device" else (two, one)
        moved = host.resumed if device is two else host.resumed + 1
        earlier = [min(at, moved) if device is two else at for at in device_at[: device.ordinal]]
        later = [at if device is two else max(at, moved) for at in device_at[device.ordinal + 1 :]]
        swaps.append((one, two, _Orders(device_at=(*earlier, moved, *later))))
    if logged and logged[-1].kind != "device":
        swaps.append((logged[-1], None, _Orders(device_at=(*device_at, logged[-1].resumed))))
    return swaps


def _missing_event(other: Run, one: _Step, of_device: bool) -> LoggedEvent:
    """The event that the other order has before those of `one`: this order ended without it."""
    names = ("prefill", "verify") if of_device else ("resolve", "finish", "stale")
    moved = next((event for event in other.log[one.start :] if event.event in names), None)
    if moved is None:
        return LoggedEvent(UNLOGGED, "host", "resolve", "", "a prefill")
    return replace(moved, number=UNLOGGED)


def _telling_event(run: Run, step: _Step) -> LoggedEvent:
    events = run.log[step.start : step.end]
    named = [event for name in _TELLING for event in events if event.event == name]
    if not events:  # the result of a prefill that does not finish its request
        return LoggedEvent(UNLOGGED, "host", "resolve", "", "a prefill")
    return (named or list(events))[0]
