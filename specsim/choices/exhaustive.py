"""Every schedule of a small system, whose steps ask for choices.

A *schedule* is a path from the first state to one that is over: what was chosen in each of its steps. A state is gone
on from once, and the number of schedules is still exact: the schedules from a state are the sum of those from the
states after it. `Explorer(remembers=False)` runs every schedule by itself instead, and is the reference for that.

A system that cannot be copied is run again from its start, once for each schedule: `following` is the next one.

This module imports neither torch nor triton.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from specsim.choices.chooser import Chooser, Tape

S = TypeVar("S", bound="System")


class System(Protocol):
    """What is explored. `key` is equal for equal states and for no others."""

    @property
    def is_over(self) -> bool: ...

    def step(self, chooser: Chooser) -> None:
        """The next step. Each value of a choice leads to another state."""
        ...

    def broken(self) -> tuple[str, ...]:
        """The rules that were broken on the way to this state, which is over."""
        ...

    def fork(self: S) -> S: ...

    def key(self) -> bytes: ...


class CycleError(Exception):
    """A state comes again on its own schedule, which has no end. `tape` leads to where it comes again."""

    def __init__(self, text: str, tape: Tape) -> None:
        super().__init__(text)
        self.tape = tape


@dataclass(slots=True)
class Explored:
    """What an exploration saw. `complete` says that nothing was left out; else the counts are of what was seen.

    `states`  distinct states, the first and the last ones included; 0 where they are not remembered
    `steps`   steps that were executed
    `ends`    keys of the states that are over
    `broken`  for each broken rule, the choices of a schedule that breaks it
    """

    schedules: int = 0
    states: int = 0
    steps: int = 0
    ends: set[bytes] = field(default_factory=set)
    broken: dict[str, Tape] = field(default_factory=dict)
    complete: bool = True


def following(values: Sequence[int], bounds: Sequence[int]) -> Tape | None:
    """What the next schedule chooses after one that chose these values below these bounds, depth first: its first
    choices, the others are zeros. None after the last.
    """
    for at in range(len(values) - 1, -1, -1):
        if values[at] + 1 < bounds[at]:
            return (*values[:at], values[at] + 1)
    return None


class Scripted:
    """A chooser that gives the values of a script, then zeros, and notes what it was asked for. A choice among one
    thing is none.
    """

    __slots__ = ("bounds", "script", "values")

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.values: list[int] = []
        self.bounds: list[int] = []

    def choose(self, bound: int, _label: str) -> int:
        if bound == 1:
            return 0
        at = len(self.values)
        value = self.script[at] if at < len(self.script) else 0
        self.values.append(value)
        self.bounds.append(bound)
        return value


@dataclass(slots=True)
class _Frame:
    """A state on the current path: the successors that are still to come, and the schedules from it so far."""

    key: bytes
    successors: Iterator[tuple[Tape, System]]
    schedules: int


class Explorer:
    """One exploration. `explored` is what was seen so far. It is cut short after `states_max` states, or schedules
    where states are not remembered.
    """

    def __init__(self, states_max: int = 10_000_000, *, remembers: bool = True) -> None:
        self._states_max = states_max
        self._remembers = remembers
        self.explored = Explored()
        self._schedules_from: dict[bytes, int] = {}
        self._ended = 0

    def stop(self) -> None:
        """End the exploration before its next step; from another thread or a signal's handler too."""
        self._states_max = 0

    @property
    def counted(self) -> int:
        """States, or schedules where states are not remembered, that were reached so far."""
        return len(self._schedules_from) if self._remembers else self._ended

    def run(self, start: System) -> Explored:
        """Explore from `start`, which is used up. Raises CycleError."""
        gc.collect()
        gc.freeze()  # what was there before is not looked at again and again
        try:
            return self._run(start)
        finally:
            gc.unfreeze()

    def _run(self, start: System) -> Explored:
        explored, known = self.explored, self._schedules_from
        path: list[Tape] = []
        stack = [self._enter(start, path, start.key() if self._remembers else b"")]
        while True:
            frame = stack[-1]
            if self.counted >= self._states_max:
                explored.complete = False
                explored.schedules = sum(frame.schedules for frame in stack)
                break
            after = next(frame.successors, None)
            if after is None:
                known[frame.key] = frame.schedules
                stack.pop()
                if not stack:
                    explored.schedules = frame.schedules
                    break
                stack[-1].schedules += frame.schedules
                path.pop()
                continue
            step, state = after
            explored.steps += 1
            key = state.key() if self._remembers else b""
            schedules = known.get(key) if self._remembers else None
            if schedules is None:
                path.append(step)
                stack.append(self._enter(state, path, key))
            elif schedules < 0:
                tape = tuple(value for step in (*path, step) for value in step)
                raise CycleError(f"a schedule comes back to a state after {len(stack)} steps", tape)
            else:
                frame.schedules += schedules
        explored.states = len(known) if self._remembers else 0
        return explored

    def _enter(self, state: System, path: list[Tape], key: bytes) -> _Frame:
        if self._remembers:
            self._schedules_from[key] = -1  # until its frame is left
        if not state.is_over:
            return _Frame(key, _steps(state), 0)
        self._ended += 1
        self.explored.ends.add(key or state.key())
        for signature in state.broken():
            self.explored.broken.setdefault(signature, tuple(value for step in path for value in step))
        return _Frame(key, iter(()), 1)


def _steps(state: System) -> Iterator[tuple[Tape, System]]:
    """Every way in which the next step can go: what was chosen, and where it leads."""
    script: Tape | None = ()
    while script is not None:
        forked = state.fork()
        chooser = Scripted(script)
        forked.step(chooser)
        script = following(chooser.values, chooser.bounds)
        yield tuple(chooser.values), forked
