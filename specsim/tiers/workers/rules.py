"""What must be true of an engine's worker functions."""

from __future__ import annotations

from specsim.rules.table import BY_ID as RULES_OF_ACCOUNTING
from specsim.verdict import Rule, Severity

WORKER_RULES: tuple[Rule, ...] = (
    Rule(
        "W1",
        "request-penalties",
        "verification applies penalties, logit bias and min_new_tokens of each request",
        Severity.WRONG_RESULT,
    ),
    Rule("W2", "node-penalties", "verification penalises each node of a tree for its own path", Severity.BY_DESIGN),
    Rule(
        "W3",
        "stale-metadata",
        "a draft step attends with metadata that was planned for its batch",
        Severity.UNDEFINED_BEHAVIOUR,
    ),
)
# Those of the accounting tier are checked by probes too.
BY_ID = {rule.id: rule for rule in WORKER_RULES} | {
    name: RULES_OF_ACCOUNTING[name] for name in ("I48", "I58", "I59", "X1", "X2", "X3")
}


def signature_of(probe: str, rule: str) -> str:
    """The signature of a finding: the same on every release."""
    return f"workers:{probe}:{rule}"
