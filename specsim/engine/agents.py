"""The agents of an engine whose device has streams: the host, and each stream.

A step of an agent carries a vector clock, which whoever watches the engine makes (`specsim.engine.observer`).
"""

from __future__ import annotations

from typing import NamedTuple

AGENTS = ("host", "schedule", "forward", "copy", "plan")
HOST, SCHEDULE, FORWARD, COPY, PLAN = range(len(AGENTS))

Clock = tuple[int, ...]
Thing = tuple[str, int]  # what it is, and which of them


class Step(NamedTuple):
    """A step of an agent. `clock[agent]` is its own number."""

    agent: int
    clock: Clock
    name: str

    def __str__(self) -> str:
        return f"{AGENTS[self.agent]}: {self.name}"

    def comes_before(self, other: Step) -> bool:
        """Whether it does in every schedule."""
        return self.clock[self.agent] <= other.clock[self.agent]


class Race(NamedTuple):
    """Two steps that touch a thing, one of them to write it, in an order that nothing fixes."""

    kind: str
    which: str
    one: Step
    two: Step
