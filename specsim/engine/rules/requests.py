"""Requests: their lengths and outputs, from admission to release."""

from __future__ import annotations

from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import Admitted, Appended, Prepared, RunNotTaken, SessionSlotSaved, Waiting
from specsim.verdict import Rule, Severity


class CompleteOutputs(Check):
    rule = Rule(
        "I03",
        "complete-outputs",
        "the outputs of a live request are those before its prefill, one of the prefill, and the accepted runs",
        Severity.WRONG_RESULT,
    )
    after = (Appended, RunNotTaken)

    def check(self, view: Appended | RunNotTaken) -> Broken | None:
        if isinstance(view, RunNotTaken):
            return self.broken("result handling", view.rid, "the run of a live request is taken", "it is not")
        request = view.request
        expected = request.outputs_before + 1 + request.resolved
        if len(request.outputs) == expected:
            return None
        return self.broken(view.part, request.rid, f"{expected} outputs", len(request.outputs))


class HonestClaim(Check):
    rule = Rule(
        "I04",
        "honest-claim",
        "a live request claims its honest length, or one more while a verification of it is in flight",
        Severity.WRONG_RESULT,
    )
    after = (Appended,)

    def check(self, view: Appended) -> Broken | None:
        request, committed = view.request, view.now.committed
        allowed = (request.honest_len, request.kv_ready)
        if committed in allowed:
            return None
        expected = f"a claim of {' or '.join(map(str, sorted(set(allowed))))}"
        aspect = "short" if committed < min(allowed) else "long"
        return self.broken(view.part, request.rid, expected, committed, aspect)


class LaunchCount(Check):
    rule = Rule(
        "I11", "launch-count", "launches since the prefill are counted, and none after a retraction", Severity.METRIC
    )
    after = (Prepared, Waiting)

    def check(self, view: Prepared | Waiting) -> Broken | None:
        launches = view.now.launches
        if isinstance(view, Prepared):
            expected = view.was.launches + 1
        elif view.part == "retract":
            expected = 0
        else:
            return None
        if launches == expected:
            return None
        return self.broken(view.part, view.request.rid, f"{expected} launches", launches)


class LengthsInOrder(Check):
    rule = Rule(
        "I01",
        "lengths-in-order",
        "0 <= committed <= allocated <= row width for every request and session that owns a row",
        Severity.WRONG_RESULT,
    )
    after = (Admitted, Prepared, Appended, SessionSlotSaved)

    def check(self, view: Admitted | Prepared | Appended | SessionSlotSaved) -> Broken | None:
        width = view.width
        if isinstance(view, SessionSlotSaved):
            claim, allocated = view.slot.claim, view.slot.allocated
            if 0 <= claim <= allocated <= width:
                return None
            actual = f"claim {claim}, allocated {allocated}"
            return self.broken("session save", view.request.rid, "claim <= allocated", actual)
        now = view.now
        if now.row is None or 0 <= now.committed <= now.allocated <= width:
            return None
        expected = f"0 <= committed <= allocated <= {width}"
        actual = f"committed {now.committed}, allocated {now.allocated}"
        return self.broken(view.part, view.request.rid, expected, actual)


class WaitingOwnsNothing(Check):
    rule = Rule(
        "I02",
        "waiting-owns-nothing",
        "a request that waits without a session owns no row and claims and holds no position",
        Severity.WRONG_RESULT,
    )
    after = (Waiting,)

    def check(self, view: Waiting) -> Broken | None:
        now = view.now
        if (now.row, now.committed, now.allocated) == (None, 0, 0):
            return None
        actual = f"row {now.row}, committed {now.committed}, allocated {now.allocated}"
        return self.broken(view.part, view.request.rid, "no row, committed 0, allocated 0", actual)
