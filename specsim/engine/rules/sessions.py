"""Sessions: what they keep of a turn, and what the next turn reuses."""

from __future__ import annotations

from specsim.engine.memory.sessions import SessionSlot
from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.slots import leak_of
from specsim.engine.rules.views import (
    PromptMade,
    SessionMatched,
    SessionSaved,
    SessionSlotSaved,
    Shown,
    SlotsCounted,
    TurnAborted,
)
from specsim.verdict import Rule, Severity


class SessionClaim(Check):
    rule = Rule(
        "I53", "session-claim", "a session keeps the shorter of its visible tokens and KVready", Severity.WRONG_RESULT
    )
    after = (SessionSaved, PromptMade)

    def applies(self, shown: Shown) -> bool:
        return any(shown.turns[rid].session for rid in shown.requests("finish") - shown.aborted)

    def check(self, view: SessionSaved | PromptMade) -> Broken | None:
        if isinstance(view, PromptMade):
            # The run goes on with the client's prompt, unless the session's memory is of a turn that it does not know.
            aspect = "retracted" if view.follows_retracted else ""
            return self.broken(
                "session controller", view.request.rid, view.expected, view.made, aspect, can_go_on=not aspect
            )
        request, now, slot = view.request, view.now, view.slot
        visible = len(request.outputs) if now.finished_len is None else now.finished_len
        keep = min(len(request.prompt) + visible, view.kv_ready)
        if slot is None:
            return self.broken("session save", request.rid, f"a claim of {keep}", "no memory kept")
        if slot.claim != keep:
            aspect = "short" if slot.claim < keep else "long"
            return self.broken("session save", request.rid, f"a claim of {keep}", slot.claim, aspect)
        return None


class SessionLock(Check):
    rule = Rule(
        "I55",
        "session-lock",
        "a session protects no more than its next turn reuses, and keeps its first lock",
        Severity.WRONG_RESULT,
    )
    after = (SessionSlotSaved,)

    def applies(self, shown: Shown) -> bool:
        return any(shown.turns[rid].session for rid in shown.requests("finish") - shown.aborted)

    def check(self, view: SessionSlotSaved) -> Broken | None:
        slot = view.slot
        if slot.protected <= slot.claim and (slot.node is None) != view.has_tree:
            return None
        return self.broken(
            "session save",
            view.request.rid,
            f"a lock, and at most {slot.claim} protected",
            f"{'no' if slot.node is None else 'a'} lock, {slot.protected} protected",
        )


class AbortedTurn(Check):
    rule = Rule(
        "I57",
        "aborted-turn",
        "a turn that is aborted while it waits leaves its session's memory, one that ran leaves none",
        Severity.LEAK,
    )
    after = (TurnAborted,)

    def applies(self, shown: Shown) -> bool:
        gone = shown.aborted | shown.requests("drop")
        return bool(shown.requests("prefill")) and any(shown.turns[rid].session for rid in gone)

    def check(self, view: TurnAborted) -> Broken | None:
        expected, actual = _kept(view.before), _kept(view.now)
        return self.broken("session save", view.request.rid, expected, actual) if expected != actual else None


class SessionReuse(Check):
    rule = Rule(
        "I54",
        "session-reuse",
        "a turn reuses no more than its session kept, and nothing of the session leaks",
        Severity.LEAK,
    )
    after = (SessionMatched, SlotsCounted)

    def applies(self, shown: Shown) -> bool:
        return "session resumed" in shown.marks

    def check(self, view: SessionMatched | SlotsCounted) -> Broken | None:
        if isinstance(view, SlotsCounted):
            leaked = view.leaked if view.at_match else []
            what = "slot" if view.page_size == 1 else "page"
            if not leaked:
                return None
            return self.broken(view.part, "", f"an owner for every {what}", leak_of(what, leaked), "leak")
        if view.reused is None:
            return None
        right = view.reusable
        if view.reused <= right:
            return None
        return self.broken("session match", view.request.rid, f"{right} positions reused", view.reused, "reuse")


class SessionRecompute(Check):
    rule = Rule("S4", "session-recompute", "a turn reuses all that its session kept", Severity.METRIC)
    after = (SessionMatched,)

    def applies(self, shown: Shown) -> bool:
        return "session resumed" in shown.marks

    def check(self, view: SessionMatched) -> Broken | None:
        rid = view.request.rid
        if view.reused is None:
            if view.request.abort_wanted:  # it leaves the session as it is
                return None
            expected, actual = f"{view.claim} positions reused", "the turn does without its session"
            return self.broken("session match", rid, expected, actual, "left", can_go_on=True)
        right = view.reusable
        if view.reused >= right:
            return None
        # What is not reused is computed again.
        return self.broken("session match", rid, f"{right} positions reused", view.reused, can_go_on=True)


def _kept(slot: SessionSlot | None) -> str:
    return "nothing" if slot is None else f"row {slot.row}, a claim of {slot.claim}, {slot.allocated} allocated"
