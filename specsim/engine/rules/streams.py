"""Streams of the device: what they share is touched in an order that events and waits fix."""

from __future__ import annotations

from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import Queued, Shown
from specsim.verdict import Rule, Severity


class StreamRace(Check):
    rule = Rule(
        "S2",
        "stream-race",
        "of two accesses of what streams share, one of them a write, events and waits fix the order",
        Severity.WRONG_RESULT,
    )
    after = (Queued,)

    def applies(self, shown: Shown) -> bool:
        return shown.config.streams and bool(shown.requests("prefill"))

    def check(self, view: Queued) -> Broken | None:
        if view.race is None:
            return None
        kind, which, one, two = view.race
        return self.broken("streams", two.name, f"an order of {one} and {two}", f"none on {kind} {which}", kind)
