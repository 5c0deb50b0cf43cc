"""What a run leaves behind: the lines of its event log, and what the schedule showed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

from specsim.engine.observer import Violation


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One line of the event log. Columns: number, agent, what happens, to whom, details."""

    number: int
    agent: str
    event: str
    who: str
    details: str

    def __str__(self) -> str:
        return f"{self.number:>4}  {self.agent:<6}  {self.event:<8}  {self.who:<8}  {self.details}".rstrip()


@dataclass(frozen=True, slots=True)
class Run:
    """What a schedule showed. `marks` are the interleavings and features that it reached (`specsim.engine.marks`)."""

    violations: tuple[Violation, ...]
    log: tuple[LoggedEvent, ...]
    digest: str
    stale_finished: int
    stale_retracted: int
    marks: frozenset[str]

    @property
    def switches(self) -> int:
        """How often an event of the device follows one of the host, or the other way round."""
        return sum(one.agent != two.agent for one, two in pairwise(self.log))
