"""Rules without a check: what raises ends the run, and a process that hangs or dies is seen by its parent.

Whoever starts a process names these before the simulator is imported: this module imports none of it.
"""

from __future__ import annotations

from specsim.verdict import Rule, Severity

HOST_EXCEPTION = Rule("X1", "host-exception", "the host functions raise nothing", Severity.CRASH)
SCHEDULE_TIMEOUT = Rule("X2", "schedule-timeout", "a schedule ends within the time limit", Severity.CRASH)
SCHEDULE_CRASH = Rule("X3", "schedule-crash", "a schedule leaves its process alive", Severity.CRASH)
