"""Launches: who is in a batch, in which order results are taken, and what travels with a batch."""

from __future__ import annotations

from specsim.engine.lifecycle import State
from specsim.engine.memory.allocator import ceil_to
from specsim.engine.request import Request
from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import HostWaits, Launched, Prepared, Preparing, Releasing, Resolving
from specsim.verdict import Rule, Severity


class OverAllocation(Check):
    rule = Rule(
        "S5", "over-allocation", "a launch allocates no further than two steps beyond the known length", Severity.METRIC
    )
    after = (Prepared,)

    def check(self, view: Prepared) -> Broken | None:
        config = view.config
        most = max(view.was.allocated, view.request.kv_ready + 2 * config.alloc_len)
        if view.now.allocated <= ceil_to(most, config.page_size):
            return None
        expected = f"allocated {most} at most, rounded up to pages"
        return self.broken(view.part, view.request.rid, expected, view.now.allocated, can_go_on=True)


class BatchMembers(Check):
    rule = Rule(
        "I36",
        "batch-members",
        "a finished request is never launched, and nobody is in a batch twice",
        Severity.WRONG_RESULT,
    )
    after = (Preparing, Launched)

    def check(self, view: Preparing | Launched) -> Broken | None:
        if isinstance(view, Preparing):
            return self._finished(view.batch)
        rows = view.rows
        keys = [row.key for row in rows]
        if len(set(keys)) != len(keys):
            return self.broken("schedule", view.launch.name, "each request once", keys)
        return None if view.config.late_results else self._finished([row.request for row in rows])

    def _finished(self, batch: list[Request]) -> Broken | None:
        for request in batch:
            if request.state is State.FINISHED:
                return self.broken("schedule", request.rid, "a live request", request.state.value)
        return None


class BatchState(Check):
    rule = Rule(
        "I52",
        "batch-state",
        "what travels with a batch stays with its request through filters and merges",
        Severity.WRONG_RESULT,
    )
    after = (Launched,)

    def check(self, view: Launched) -> Broken | None:
        verifies = view.launch.verifies
        for row in verifies.rows if verifies else ():
            if row.request.state is State.FINISHED:  # its entry was given up
                continue
            left = view.left_at.get(row.key)
            if row.relay_in != left:
                return self.broken("relay", row.request.rid, f"relay entry {left}", row.relay_in)
        return None


class LaunchOrder(Check):
    rule = Rule(
        "I35",
        "launch-order",
        "every launch is resolved once, in launch order, and at most two are unresolved",
        Severity.WRONG_RESULT,
    )
    after = (Launched, Resolving)

    def check(self, view: Launched | Resolving) -> Broken | None:
        if isinstance(view, Launched):
            if view.unresolved <= 2:
                return None
            return self.broken("schedule", view.launch.name, "at most two unresolved launches", view.unresolved)
        if view.launch is view.oldest:
            return None
        return self.broken("loop", view.launch.name, "the oldest launch", view.launch.name)


class HostWait(Check):
    rule = Rule(
        "S6", "host-wait", "the host waits for no other launch than the one whose result it takes next", Severity.METRIC
    )
    after = (HostWaits,)

    def check(self, view: HostWaits) -> Broken | None:
        if view.awaited is view.oldest:
            return None
        return self.broken("loop", view.awaited.name, "the oldest launch", view.awaited.name)


class DoubleRelease(Check):
    rule = Rule("I37", "double-release", "a request is released once per incarnation", Severity.WRONG_RESULT)
    after = (Releasing,)

    def check(self, view: Releasing) -> Broken | None:
        return self.broken("release", view.request.rid, "one release", "a second one") if view.was_released else None
