"""Vector clocks: which of two accesses comes first in every order that events, waits and the host allow.

A step of an agent carries a clock, one count for each agent: how many steps of that agent come before it whatever the
schedule, itself included. Of two steps that touch the same thing, one of them to write it, one must be in the other's
clock. Otherwise they race, even in a schedule in which the right one happens to be first.

Whom a step waits for is known when the host queues it, so clocks are made then, and a race does not depend on when a
stream runs its steps. Steps are told in an order that respects the waits, so that of each thing the last write and the
reads since are enough.

Source: Flanagan, Freund, "FastTrack: Efficient and Precise Dynamic Race Detection", PLDI 2009, for those two.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from specsim.engine.agents import AGENTS, HOST, Clock, Race, Step, Thing


@dataclass(slots=True)
class _Columns:
    """The accesses of a row: steps with the columns `[start, end)` that they touch, by agent, the latest last. One
    agent writes rows.
    """

    written: dict[int, list[tuple[Step, int, int]]] = field(default_factory=dict)
    read: dict[int, list[tuple[Step, int, int]]] = field(default_factory=dict)


class HappensBefore:
    """The clocks of all agents, and the accesses of things that streams share. `race` is the first that was seen."""

    __slots__ = ("_now", "_read", "_rows", "_written", "race")

    def __init__(self) -> None:
        self._now: list[Clock] = [(0,) * len(AGENTS)] * len(AGENTS)
        self._written: dict[Thing, Step] = {}
        self._read: dict[Thing, dict[int, Step]] = {}
        self._rows: dict[int, _Columns] = {}
        self.race: Race | None = None

    def step(self, agent: int, name: str, after: Iterable[Step]) -> Step:
        """The next step of an agent: behind its own before, what the host has done by now, and `after`."""
        clock = self._now[agent]
        host = self._now[HOST]
        if host[HOST] > clock[HOST]:
            clock = tuple(map(max, clock, host))
        for other in after:
            if other.clock[other.agent] > clock[other.agent]:  # else all that comes before it is known, too
                clock = tuple(map(max, clock, other.clock))
        clock = (*clock[:agent], clock[agent] + 1, *clock[agent + 1 :])
        self._now[agent] = clock
        return Step(agent, clock, name)

    def read(self, thing: Thing, step: Step) -> None:
        written = self._written.get(thing)
        if written is not None and not written.comes_before(step):
            self._races(thing[0], str(thing[1]), written, step)
        self._read.setdefault(thing, {})[step.agent] = step

    def write(self, thing: Thing, step: Step) -> None:
        written = self._written.get(thing)
        if written is not None and not written.comes_before(step):
            self._races(thing[0], str(thing[1]), written, step)
        for read in self._read.pop(thing, {}).values():
            if not read.comes_before(step):
                self._races(thing[0], str(thing[1]), read, step)
        self._written[thing] = step

    def read_row(self, row: int, start: int, end: int, step: Step) -> None:
        """Read columns `[start, end)` of a row of `req_to_token`."""
        columns = self._rows.setdefault(row, _Columns())
        for written in columns.written.values():
            self._look(row, written, start, end, step)
        columns.read.setdefault(step.agent, []).append((step, start, end))

    def write_row(self, row: int, start: int, end: int, step: Step) -> None:
        columns = self._rows.setdefault(row, _Columns())
        for accesses in (columns.written, columns.read):
            for agent, touched in accesses.items():
                self._look(row, touched, start, end, step)
                if touched and agent != step.agent and touched[-1][0].comes_before(step):
                    touched.clear()  # who comes behind this step comes behind them
        own = columns.written.setdefault(step.agent, [])
        own[:] = [(was, low, high) for was, low, high in own if low < start or high > end]
        own.append((step, start, end))

    def _look(self, row: int, touched: list[tuple[Step, int, int]], start: int, end: int, step: Step) -> None:
        if not touched or touched[-1][0].comes_before(step):
            return  # an agent's steps follow one another
        for other, low, high in reversed(touched):
            if low < end and start < high and not other.comes_before(step):
                self._races("row", f"{row}, columns {max(low, start)} to {min(high, end) - 1}", other, step)

    def _races(self, kind: str, which: str, one: Step, two: Step) -> None:
        if self.race is None:
            self.race = Race(kind, which, one, two)
