"""The two events whose order matters: the pair of a schedule that, in the opposite order, does not break the rule.

A schedule is taken apart into steps: of the host (it receives, pauses, schedules, launches what it prepared before a
result came, takes a result) and of the device (it runs a launch). Two steps that follow one another are swapped, and
the schedule is run again with the same other choices:

- the host schedules, then takes the result of the launch before (that is overlap); swapped, it takes the result first;
- the host launches what it prepared and takes a result, where a scheduler may do either first;
- a step of the host and one of the device, where the stream and the wait for a result leave the order open.

The swaps nearest to the broken rule are tried first. Where none alone helps, the first kind is tried everywhere at
once, and the pair nearest to the broken rule stands for all. The smallest schedule may need overlap for another reason
than the defect does (a stale step is the shortest way to a decode step), so larger schedules of the same defect are run
without any overlap too: when one of them still breaks the rule, overlap is not what matters. That no pair is found says
that no such swap helps: the defect happens in every order.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from specsim.choices.chooser import RecordingChooser, Tape, replayed
from specsim.engine.accounting_target import AccountingTarget
from specsim.engine.event_log import LoggedEvent, Run
from specsim.engine.launch import Launch
from specsim.engine.loop import ITERATIONS_MAX, Engine
from specsim.engine.rules.checked_engine import checked_parts
from specsim.engine.workload import Scenario, draw_scenario

UNLOGGED = -1  # number of an event that the log does not have: it would come after the broken rule, or is not logged
_WHO_GOES_NEXT = "device goes first"
_LATE = "result before launch"
# What a step of the host is named by: the first of these that it has, else its first event.
_TELLING = ("retract", "launch", "resolve", "admit")

Pair = tuple[LoggedEvent, LoggedEvent]
_Choices = dict[tuple[int, str], list[int]]


@dataclass(frozen=True, slots=True)
class _Step:
    """A step that logged events `[start, end)`. `ordinal` counts steps of its kind; `resumed` how often the host had
    gone on when it began: steps of the host with the same number have no step of the device between them.
    """

    kind: str  # "receive", "pause", "retract all", "schedule", "launch", "resolve", "close" or "device"
    ordinal: int
    resumed: int
    start: int
    end: int


@dataclass(frozen=True, slots=True)
class _Orders:
    """How a run departs from what was chosen. `results_first`: before these calls of the scheduler the host takes all
    results. `late`: whether in these calls it takes a result between preparing and launching. `device_at[k]`: launch k
    is run when the host has gone on so often.
    """

    results_first: frozenset[int] = frozenset()
    late: tuple[tuple[int, bool], ...] = ()
    device_at: tuple[int, ...] = ()


# A step, the one behind it, and the orders in which they change places; None for a step that the run ended before.
_Swap = tuple[_Step, _Step | None, _Orders]

_NO_OVERLAP = _Orders(results_first=frozenset(range(ITERATIONS_MAX + 1)))


class _SteppedEngine(Engine):
    """Notes its steps and choices, and runs the steps in the order that is asked for, as far as that can be.

    `dealt` are the choices of an earlier run, None while there is none. They are dealt by the call of the scheduler
    that they came before or in and by their label: in another order some are not asked, and others more often.
    """

    def __init__(
        self,
        orders: _Orders,
        dealt: _Choices | None,
        scenario: Scenario,
        source: RecordingChooser,
        *parts: Any,
    ) -> None:
        super().__init__(scenario, RecordingChooser(self._choose), *parts)
        self.steps: list[_Step] = []
        self.choices: _Choices = {}
        self.resumed = 0
        self.late: dict[int, bool] = {}
        self._source = source
        self._orders = orders
        self._late_orders = dict(orders.late)
        self._dealt = None if dealt is None else {key: iter(values) for key, values in dealt.items()}
        self._begun: Counter[str] = Counter()

    def _choose(self, bound: int, label: str) -> int:
        key = (self._begun["schedule"], label)
        dealt = self._dealt
        value = self._source.choose(bound, label) if dealt is None else next(dealt.get(key, iter(())), 0)
        self.choices.setdefault(key, []).append(value)
        if label == _WHO_GOES_NEXT:
            return self._wants_device(value)
        if label == _LATE:
            call = self._begun["schedule"] - 1
            value = int(self._late_orders.get(call, value == 1))
            self.late[call] = bool(value)
        return value

    def _wants_device(self, chosen: int) -> int:
        """Whose step is next, where `chosen` was."""
        number = self._begun["device"]
        at = self._orders.device_at
        return chosen if number >= len(at) else int(at[number] <= self.resumed)

    def step(self, of_device: bool) -> None:
        super().step(of_device)
        self.resumed += not of_device

    def _receive(self) -> None:
        self._step("receive", super()._receive)

    def _begin_pause(self) -> None:
        self._step("pause", super()._begin_pause)

    def _retract_everybody(self) -> None:
        self._step("retract all", super()._retract_everybody)

    def _schedule(self) -> None:
        if self._begun["schedule"] in self._orders.results_first:
            while self.launches.unresolved:
                oldest = self.launches.unresolved[0]
                while not oldest.done:
                    self._execute()
                self._resolve(oldest)
        self._step("schedule", super()._schedule)

    def _launch_prepared(self) -> None:
        self._step("launch", super()._launch_prepared)

    def _resolve(self, launch: Launch) -> None:
        self._step("resolve", lambda: super(_SteppedEngine, self)._resolve(launch))

    def _close_session(self, session: str) -> None:
        self._step("close", lambda: super(_SteppedEngine, self)._close_session(session))

    def _execute(self) -> None:
        self._step("device", super()._execute)

    def _step(self, kind: str, body: Callable[[], None]) -> None:
        ordinal, start = self._begun[kind], len(self.log.events)
        self._begun[kind] += 1
        try:
            body()
        finally:
            self.steps.append(_Step(kind, ordinal, self.resumed, start, len(self.log.events)))


class StoppedError(Exception):
    """There was no time to look at every order."""


def decisive_pair(
    target: AccountingTarget,
    tape: Tape,
    signature: str,
    larger: Sequence[Tape] = (),
    goes_on: Callable[[], bool] = lambda: True,
) -> Pair | None:
    """The two events of the schedule of `tape`, in its order, whose other order does not break the rule of `signature`;
    None when it breaks in every order. `larger` are other schedules that break it. `goes_on` is evaluated before each
    run: raises StoppedError when it says no.
    """

    def another(ran: _Ran, orders: _Orders) -> Run:
        if not goes_on():
            raise StoppedError
        return _again(target, ran, signature, orders).run

    ran = _first_run(target, tape, signature)
    run, steps = ran.run, ran.engine.steps
    overlapped = list(_overlapped(steps)) if ran.scenario.config.overlap else []
    others = (another(_first_run(target, each, signature), _NO_OVERLAP) for each in larger) if overlapped else ()
    if any(violation.signature == signature for other in others for violation in other.violations):
        overlapped = []
    swaps = _between_agents(steps)
    swaps += _around_launches(steps, ran.engine.late)
    swaps += [(step, result, _Orders(results_first=frozenset([step.ordinal]))) for step, result in overlapped]
    swaps.sort(key=lambda swap: -swap[0].start)
    if overlapped:
        swaps.append((*overlapped[-1], _NO_OVERLAP))
    for one, two, orders in swaps:
        other = another(ran, orders)
        if _holds(run, other, signature):
            first = _telling_event(run, one)
            return first, _telling_event(run, two) if two else _missing_event(run, other, one, orders)
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


@dataclass(frozen=True, slots=True)
class _Ran:
    """A run of a scenario, and the engine that ran it."""

    scenario: Scenario
    engine: _SteppedEngine
    run: Run


def _stepped(
    target: AccountingTarget,
    signature: str,
    scenario: Scenario,
    source: RecordingChooser,
    orders: _Orders,
    dealt: _Choices | None,
) -> _SteppedEngine:
    parts = checked_parts(scenario, target.make, signature)
    return _SteppedEngine(orders, dealt, scenario, source, *parts)


def _first_run(target: AccountingTarget, tape: Tape, signature: str) -> _Ran:
    """Run a tape as it is."""
    source = replayed(tape)
    scenario = draw_scenario(source, target.features)
    engine = _stepped(target, signature, scenario, source, _Orders(), None)
    return _Ran(scenario, engine, engine.run())


def _again(target: AccountingTarget, ran: _Ran, signature: str, orders: _Orders) -> _Ran:
    """Run the same choices in other orders."""
    engine = _stepped(target, signature, ran.scenario, replayed(()), orders, ran.engine.choices)
    return _Ran(ran.scenario, engine, engine.run())


def _overlapped(steps: Sequence[_Step]) -> Iterator[tuple[_Step, _Step | None]]:
    """Each step of the scheduler that logged something, with the step that takes the result of the launch before; None
    when the run ended first.
    """
    for index, step in enumerate(steps):
        if step.kind != "schedule" or step.start == step.end:
            continue
        later = [s for s in steps[index + 1 :] if s.kind in ("schedule", "pause", "resolve")]
        yield step, later[0] if later and later[0].kind == "resolve" else None


def _around_launches(steps: Sequence[_Step], late: Mapping[int, bool]) -> Iterator[_Swap]:
    """The launch of a step and the result of the launch before, where the host may take it on either side. `late` are
    the calls of the scheduler that may, and whether they took it between preparing and launching.
    """
    for index, step in enumerate(steps):
        if step.kind != "schedule" or step.ordinal not in late:
            continue
        later = [each for each in steps[index + 1 :] if each.kind in ("schedule", "resolve", "launch")]
        result = later[0] if later and later[0].kind == "resolve" else None
        orders = _Orders(late=((step.ordinal, not late[step.ordinal]),))
        if not late[step.ordinal]:
            yield step, result, orders
        elif result is not None:
            yield result, later[1] if later[1:] and later[1].kind == "launch" else None, orders


def _between_agents(steps: Sequence[_Step]) -> list[_Swap]:
    """Neighbours of which one is the device's, which is run before the host's instead of after it, or the other way
    round. What the host does in one go is one neighbour.
    """
    logged = [step for step in _in_one_go(steps) if step.start < step.end]
    device_at = [step.resumed for step in steps if step.kind == "device"]
    swaps: list[_Swap] = []
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


def _in_one_go(steps: Sequence[_Step]) -> list[_Step]:
    """The steps of the device; and those of the host, what has none of the device between it as one."""
    found: list[_Step] = []
    for step in steps:
        if found and "device" not in (step.kind, found[-1].kind) and found[-1].resumed == step.resumed:
            found[-1] = replace(found[-1], end=step.end)
        else:
            found.append(step)
    return found


def _missing_event(run: Run, other: Run, one: _Step, orders: _Orders) -> LoggedEvent:
    """The event that the other order has before those of `one`: this order ended without it."""
    if orders.late and not orders.late[0][1]:
        launched = {event.who for event in run.log if event.event == "launch"}
        missing = (event for event in other.log if event.event == "launch" and event.who not in launched)
    else:
        names = ("prefill", "verify") if orders.device_at else ("resolve", "finish", "stale")
        missing = (event for event in other.log[one.start :] if event.event in names)
    moved = next(missing, None)
    if moved is None:
        return LoggedEvent(UNLOGGED, "host", "resolve", "", "a prefill")
    return replace(moved, number=UNLOGGED)


def _telling_event(run: Run, step: _Step) -> LoggedEvent:
    events = run.log[step.start : step.end]
    named = [event for name in _TELLING for event in events if event.event == name]
    if not events:  # the result of a prefill that does not finish its request
        return LoggedEvent(UNLOGGED, "host", "resolve", "", "a prefill")
    return (named or list(events))[0]
