"""The slots of a sliding window: who has them, and up to where they were given back."""

from __future__ import annotations

from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import IdlePools, Prepared, WindowCounted, WindowOwnerSeen
from specsim.verdict import Rule, Severity


class EvictionCursor(Check):
    rule = Rule(
        "I62",
        "eviction-cursor",
        "the eviction cursor is at a page's start, never goes back, and never beyond the claim",
        Severity.WRONG_RESULT,
    )
    after = (Prepared, WindowOwnerSeen)

    def check(self, view: Prepared | WindowOwnerSeen) -> Broken | None:
        if isinstance(view, Prepared):
            was, now = view.was.evicted, view.now.evicted
            return self.broken(view.part, view.request.rid, f"at least {was}", now) if now < was else None
        owner = view.owner
        if owner.evicted % view.page_size or not 0 <= owner.evicted <= owner.committed:
            expected = f"{owner.name}: whole pages of at most {owner.committed} positions"
            return self.broken(view.part, "", expected, f"{owner.evicted}")
        return None


class WindowSlots(Check):
    rule = Rule(
        "I15",
        "window-slots",
        "a request holds the window slots from its eviction cursor on, and every other is free",
        Severity.LEAK,
    )
    after = (WindowOwnerSeen, WindowCounted, IdlePools)

    def check(self, view: WindowOwnerSeen | WindowCounted | IdlePools) -> Broken | None:
        if isinstance(view, IdlePools):
            lost = view.window_slots
            return self.broken("release", "", "no window slot in anybody's hands", f"{lost} slots") if lost else None
        if isinstance(view, WindowOwnerSeen):
            name, slots, first = view.owner.name, view.slots, view.first
            if any(slots[view.owner.protected : first]) or not all(slots[first:]):
                expected = f"{name}: window slots from position {first} on"
                return self.broken(view.part, "", expected, "another position has one or none")
            if not view.owned.isdisjoint(view.pages):
                return self.broken(view.part, "", "one owner", f"a window page of {name} is another's too")
            return None
        if not view.owned.isdisjoint(view.in_tree):
            return self.broken(view.part, "", "one owner", "a window page of the tree is another's too")
        owned = view.owned | view.in_tree
        if owned != view.in_use:
            actual = f"{len(owned)} owned, {len(view.in_use)} not free"
            return self.broken(view.part, "", "an owner for every window page that is not free", actual)
        return None
