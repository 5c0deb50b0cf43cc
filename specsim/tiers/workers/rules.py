"""What must be true of an engine's worker functions."""

from __future__ import annotations

from specsim.engine.rules.failures import HOST_EXCEPTION, SCHEDULE_CRASH, SCHEDULE_TIMEOUT
from specsim.engine.rules.sampling import PenaltiesAfterRetraction, PenaltyCounts
from specsim.engine.rules.steps import DraftPool
from specsim.engine.rules.workers import NODE_PENALTIES, REQUEST_PENALTIES, STALE_METADATA
from specsim.verdict import Rule

WORKER_RULES: tuple[Rule, ...] = (REQUEST_PENALTIES, NODE_PENALTIES, STALE_METADATA)
# Those of the accounting tier that probes check too.
_OF_ACCOUNTING = (
    DraftPool.rule,
    PenaltyCounts.rule,
    PenaltiesAfterRetraction.rule,
    HOST_EXCEPTION,
    SCHEDULE_TIMEOUT,
    SCHEDULE_CRASH,
)
BY_ID = {rule.id: rule for rule in (*WORKER_RULES, *_OF_ACCOUNTING)}


def signature_of(probe: str, rule: str) -> str:
    """The signature of a finding: the same on every release."""
    return f"workers:{probe}:{rule}"
