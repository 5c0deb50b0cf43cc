"""Every schedule of a small system: agents take turns, and a step may ask for choices.

A *schedule* is a path from the first state to one where nobody can go: who went at each step, and what was chosen in
it. Three ways to go through them, which differ in cost and agree in what they find:

`stateless`  every schedule by itself, depth first. Nothing is remembered; the reference for the other two.
`visited`    a state is gone on from once. The number of schedules is still exact: the schedules from a state are
             the sum of those from the states after it.
`reduced`    as `visited`, and of two agents whose next steps commute only the first is let go: every order of
             independent steps reaches the same states at last, so one order stands for all. Ends and broken rules
             are those of `visited`; schedules and states are fewer.

The reduction needs that a step of one agent neither enables nor disables the other's and that both orders give the
same state (Godefroid, "Partial-Order Methods for the Verification of Concurrent Systems", 1996: a persistent set of
one agent). Systems here have no cycle, so no agent is put off for ever. A step that breaks a rule ends its run and
would hide what the other agent was about to show: there both are let go. Every `CHECKED_EVERY`th pair of steps is run
in both orders, and one that does not commute ends the exploration with `NotIndependentError`.

This module imports neither torch nor triton.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, TypeVar

from specsim.choices.chooser import Chooser, Tape

Method = Literal["stateless", "visited", "reduced"]
METHODS: tuple[Method, ...] = ("visited", "reduced", "stateless")
CHECKED_EVERY = 64
S = TypeVar("S", bound="System")


class System(Protocol):
    """What is explored. Agents are small numbers; `key` is equal for equal states and for no others."""

    def agents(self) -> Sequence[int]:
        """Who can go next, the simplest first; nobody at the end."""
        ...

    def chooses(self, agent: int) -> bool:
        """Whether the agent's next step may ask for a choice."""
        ...

    def step(self, agent: int, chooser: Chooser) -> None: ...

    def outcomes(self, bound: int, label: str) -> Sequence[int]:
        """The values of a choice that lead to different states, the simplest first."""
        ...

    def chosen(self, value: int, label: str) -> None:
        """A value was chosen: budgets go down."""
        ...

    def broken(self) -> tuple[str, ...]:
        """The rules that were broken on the way to this state."""
        ...

    def fork(self: S) -> S: ...

    def key(self) -> bytes: ...


class NotIndependentError(Exception):
    """Two steps that the reduction takes for independent do not commute."""


class CycleError(Exception):
    """A state comes again on its own schedule, which has no end. `tape` leads to where it comes again."""

    def __init__(self, text: str, tape: Tape) -> None:
        super().__init__(text)
        self.tape = tape


@dataclass(slots=True)
class Explored:
    """What an exploration saw. `complete` says that nothing was left out.

    `schedules`  of the whole system with `stateless` and `visited`; with `reduced` those that were needed
    `states`     distinct states, the first and the last ones included; 0 with `stateless`, which does not know
    `steps`      steps that were executed
    `ends`       keys of the states where nobody can go
    `broken`     for each broken rule, the tape of a schedule that breaks it: who went where two could, and the choices

    When it is not complete, the counts are of what was seen.
    """

    method: Method
    schedules: int = 0
    states: int = 0
    steps: int = 0
    ends: set[bytes] = field(default_factory=set)
    broken: dict[str, Tape] = field(default_factory=dict)
    complete: bool = True


class _Scripted:
    """A chooser for one step: the values of `script`, then the simplest; remembers what else it could have said."""

    __slots__ = ("options", "script", "system", "values")

    def __init__(self, system: System, script: list[int]) -> None:
        self.system = system
        self.script = script
        self.values: list[int] = []
        self.options: list[Sequence[int]] = []

    def choose(self, bound: int, label: str) -> int:
        options = self.system.outcomes(bound, label)
        at = len(self.values)
        value = self.script[at] if at < len(self.script) else options[0]
        self.values.append(value)
        self.options.append(options)
        self.system.chosen(value, label)
        return value

    def following(self) -> list[int] | None:
        """The next script in lexicographic order of outcomes; None after the last."""
        for at in range(len(self.values) - 1, -1, -1):
            options = self.options[at]
            place = options.index(self.values[at]) + 1
            if place < len(options):
                return [*self.values[:at], options[place]]
        return None


@dataclass(slots=True)
class _Frame:
    """A state on the current path: the successors that are still to come, and the schedules from it so far."""

    key: bytes
    successors: Iterator[tuple[Tape, System]]
    schedules: int


class Explorer:
    """One exploration. `explored` is what was seen so far. It is cut short after `states_max` states, or schedules when
    states are not remembered.
    """

    def __init__(self, method: Method, states_max: int = 10_000_000, checked_every: int = CHECKED_EVERY) -> None:
        self._states_max = states_max
        self._checked_every = checked_every
        self._remembers = method != "stateless"
        self._reduces = method == "reduced"
        self._pairs = 0
        self.explored = Explored(method)
        self._schedules_from: dict[bytes, int] = {}

    def stop(self) -> None:
        """End the exploration before its next step; from another thread or a signal's handler too."""
        self._states_max = 0

    @property
    def counted(self) -> int:
        """States, or schedules when states are not remembered, that were reached so far."""
        return len(self._schedules_from) if self._remembers else self.explored.schedules

    def run(self, start: System) -> Explored:
        """Explore from `start`, which is used up. Raises CycleError and NotIndependentError."""
        collects = gc.isenabled()
        gc.disable()  # forks make no cycles, and looking for some takes a quarter of the time
        try:
            return self._run(start)
        finally:
            if collects:
                gc.enable()

    def _run(self, start: System) -> Explored:
        explored, known = self.explored, self._schedules_from
        path: list[Tape] = []
        stack = [self._enter(start, path)]
        ended = 0
        while True:
            frame = stack[-1]
            if (len(known) if self._remembers else ended) >= self._states_max:
                explored.complete = False
                explored.schedules = sum(frame.schedules for frame in stack)
                break
            following = next(frame.successors, None)
            if following is None:
                known[frame.key] = frame.schedules
                stack.pop()
                if not stack:
                    explored.schedules = frame.schedules
                    break
                stack[-1].schedules += frame.schedules
                path.pop()
                continue
            step, state = following
            explored.steps += 1
            key = state.key() if self._remembers else b""
            schedules = known.get(key) if self._remembers else None
            if schedules is None:
                path.append(step)
                stack.append(self._enter(state, path, key))
                ended += stack[-1].schedules
            elif schedules < 0:
                tape = tuple(value for step in (*path, step) for value in step)
                raise CycleError(f"a schedule comes back to a state after {len(stack)} steps", tape)
            else:
                frame.schedules += schedules
        explored.states = len(known) if self._remembers else 0
        return explored

    def _enter(self, state: System, path: list[Tape], key: bytes = b"") -> _Frame:
        agents = state.agents()
        if self._remembers:
            key = key or state.key()
            self._schedules_from[key] = -1  # until its frame is left
        if not agents:
            self.explored.ends.add(key or state.key())
            for signature in state.broken():
                self.explored.broken.setdefault(signature, tuple(value for step in path for value in step))
        return _Frame(key, self._successors(state, agents), int(not agents))

    def _successors(self, state: System, agents: Sequence[int]) -> Iterator[tuple[Tape, System]]:
        """Every step of everybody who can go: what was chosen, and where it leads. `state` is used up."""
        if len(agents) < 2 or not self._reduces:
            for at, agent in enumerate(agents):
                number = (at,) if len(agents) > 1 else ()
                yield from _steps(state, agent, number, last=at == len(agents) - 1)
            return
        self._pairs += 1
        if self._pairs % self._checked_every == 0:
            require_independent(state, agents[0], agents[1])
        # An agent that never chooses has one step, which is also the cheapest to let go.
        first = next((at for at, agent in enumerate(agents) if not state.chooses(agent)), 0)
        before, stopped = state.broken(), False
        for step, after in _steps(state, agents[first], (first,), last=False):
            stopped |= after.broken() != before
            yield step, after
        if stopped:
            for at, agent in enumerate(agents):
                if at != first:
                    yield from _steps(state, agent, (at,), last=at == len(agents) - 1)


def _steps(state: System, agent: int, number: Tape, *, last: bool) -> Iterator[tuple[Tape, System]]:
    """Every way in which an agent's next step can go. With `last`, `state` itself may be used up."""
    chooses = state.chooses(agent)
    script: list[int] | None = []
    while script is not None:
        forked = state if last and not chooses else state.fork()
        chooser = _Scripted(forked, script)
        forked.step(agent, chooser)
        script = chooser.following()
        if script is not None and not chooses:
            raise RuntimeError(f"agent {agent} chose though it had said that it would not")
        yield (*number, *chooser.values), forked


def require_independent(state: System, one: int, other: int) -> None:
    """Raises NotIndependentError when the simplest next steps of two agents, in either order, end in different states.
    A step that breaks a rule is not compared: it ends the run.
    """
    reached = []
    for agents in ((one, other), (other, one)):
        forked = state.fork()
        for agent in agents:
            if agent not in forked.agents():
                if forked.broken() != state.broken():
                    return
                raise NotIndependentError(f"a step of agent {agents[0]} disables agent {agents[1]}")
            forked.step(agent, _Scripted(forked, []))
        if forked.broken() != state.broken():
            return
        reached.append(forked.key())
    if reached[0] != reached[1]:
        raise NotIndependentError(f"steps of agents {one} and {other} give another state in the other order")
