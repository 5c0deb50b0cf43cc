"""Rules of an engine's worker functions, which probes check."""

from __future__ import annotations

from specsim.verdict import Rule, Severity

REQUEST_PENALTIES = Rule(
    "W1",
    "request-penalties",
    "verification applies penalties, logit bias and min_new_tokens of each request",
    Severity.WRONG_RESULT,
)
NODE_PENALTIES = Rule(
    "W2", "node-penalties", "verification penalises each node of a tree for its own path", Severity.BY_DESIGN
)
STALE_METADATA = Rule(
    "W3",
    "stale-metadata",
    "a draft step attends with metadata that was planned for its batch",
    Severity.UNDEFINED_BEHAVIOUR,
)
