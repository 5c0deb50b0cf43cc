"""What must hold of a whole scheduler alone: the simulator's own admits at each iteration."""

from __future__ import annotations

from specsim.verdict import Rule, Severity

ADMISSION = Rule("S9", "admission", "a request that fits is admitted", Severity.METRIC)
