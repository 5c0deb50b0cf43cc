"""What a schedule raises, and what ends its process or keeps it from its end, which the process's parent sees."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from specsim.errors import described
from specsim.verdict import Rule, Severity
from specsim.world.rule import Check, Lie, Run, Violation
from specsim.world.users import NeverEndsError


def _raise(_load: Any) -> Any:
    raise IndexError("out of range")


def _hang(_load: Any) -> Any:
    while True:
        pass


class HostException(Check):
    """The innermost function of the target is to blame."""

    rule = Rule("X1", "host-exception", "the host functions raise nothing", Severity.CRASH)
    defects = (Lie("raises", "load", _raise),)

    def after(self, run: Run) -> Iterator[Violation]:
        error = run.error
        if error is None or isinstance(error, NeverEndsError):
            return
        came_through = run.started.traceback_of(error)
        function, where = came_through[-1] if came_through else ("unknown", "")
        yield self.broken(
            f"{function}:{type(error).__name__}",
            "",
            "no exception",
            described(error),
            where=where,
            details=tuple(f"raised through {place} {name}" for name, place in came_through),
        )


class ScheduleTimeout(Check):
    """Its process is ended when it has run for longer."""

    rule = Rule("X2", "schedule-timeout", "a schedule ends within the time limit", Severity.CRASH)
    defects = (Lie("hangs", "load", _hang),)


class ScheduleCrash(Check):
    """No signal ends it, and nothing else ends it early."""

    rule = Rule("X3", "schedule-crash", "a schedule leaves its process alive", Severity.CRASH)
    defects = (Lie("ends its process", "load", lambda _load: os._exit(3)),)


def violation_of_end(hung: bool, text: str) -> Violation:
    """A schedule whose process hung, or ended before its time."""
    rule = (ScheduleTimeout if hung else ScheduleCrash).rule
    return Violation(rule=rule.id, part="process", who="", expected=rule.sentence, actual=text)
