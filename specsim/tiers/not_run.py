"""What the reason says for which something was not run."""

from __future__ import annotations

from specsim.deadline import SPENT
from specsim.interrupts import WHY
from specsim.verdict import NO_OPERATION, OTHER_CALL, NotRun

LACKS = "it has no "
"""How a reason begins where a suite knows nothing of that name."""

ABSENT = ((LACKS, "not found: "), (" has no such operation", " does not provide it"))
"""How a reason begins or ends where a target lacks something, which is no fault of who checks it."""


def is_absent(why: str) -> bool:
    """Whether something was not run since the target does not have it."""
    begins, ends = ABSENT
    return why.startswith(begins) or why.endswith(ends)


def is_mistake(why: str) -> bool:
    """Whether something was not run since whoever provides it names or defines it wrongly."""
    return why.startswith((NO_OPERATION, OTHER_CALL))


def is_rest(entry: NotRun) -> bool:
    """Whether it stands for the schedules behind the last one."""
    return entry.what == "the other schedules" or entry.what.startswith("schedules after ")


def is_for_time(why: str) -> bool:
    """Whether something was not run for want of time."""
    return why.startswith(SPENT) or why == WHY
