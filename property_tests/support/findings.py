"""A finding of which a test says only what matters to it."""

from __future__ import annotations

from typing import Any

from specsim.verdict import Finding, Severity


def found(signature: str, **fields: Any) -> Finding:
    """A finding, with these `fields`; its tier and rule are those of its signature, as far as that has them."""
    tier, _, rest = signature.partition(":")
    texts = dict.fromkeys(("where", "expected", "actual", "replay"), "")
    told = {"rule": rest.partition(":")[0], "sentence": "s", "title": "t", "severity": Severity.LEAK, "count": 1}
    return Finding(**{**texts, **told, "tier": tier, "reach": "unknown", "signature": signature, **fields})
