"""What a run leaves behind: the lines of its event log, and what the schedule showed."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol

from specsim.engine.observer import Observer, Violation


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


class Listener(Protocol):
    """Sees each event at the time when it is logged."""

    def before_event(self) -> None: ...

    def after_event(self, event: str) -> None: ...


class EventLog:
    """The events of a run, and what it reached. Nothing in here decides what happens.

    `marks`        interleavings and features that the run reached (`specsim.engine.marks`)
    `iterations`   of the host's loop so far
    `retracted_in` the iteration in which a request was retracted, until it is admitted again
    `is_quiet`     nothing is logged
    """

    __slots__ = (
        "_digest",
        "_observer",
        "events",
        "is_quiet",
        "iterations",
        "listener",
        "marks",
        "retracted_in",
    )

    def __init__(self, observer: Observer, marks: set[str]) -> None:
        self.events: list[LoggedEvent] = []
        self.marks = marks
        self.iterations = 0
        self.retracted_in: dict[str, int] = {}
        self.is_quiet = False
        self.listener: Listener | None = None
        self._observer = observer
        self._digest = hashlib.blake2b(digest_size=16)

    def fork(self, observer: Observer) -> EventLog:
        """A log for a copy of the engine that logs nothing: both share events and marks."""
        new = EventLog.__new__(EventLog)
        new.events = self.events
        new.marks = self.marks
        new.iterations = self.iterations
        new.retracted_in = self.retracted_in
        new.is_quiet = self.is_quiet
        new.listener = self.listener
        new._observer = observer
        new._digest = self._digest
        return new

    @property
    def digest(self) -> str:
        """Two runs are the same when their digests are."""
        return self._digest.hexdigest()

    def record(self, agent: str, event: str, who: str, details: str) -> None:
        if self.is_quiet:
            return
        listener = self.listener
        if listener is not None:
            listener.before_event()
        number = len(self.events)
        self._observer.events = number
        self.events.append(LoggedEvent(number, agent, event, who, details))
        self._digest.update(f"{agent}\x1f{event}\x1f{who}\x1f{details}\n".encode())
        if listener is not None:
            listener.after_event(event)
