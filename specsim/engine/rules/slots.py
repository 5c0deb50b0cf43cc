"""KV slots and their pages: who owns each, and when it changes hands."""

from __future__ import annotations

from collections.abc import Iterable

from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import (
    IdlePools,
    IdleRows,
    OwnerSeen,
    Prepared,
    SlotMisused,
    SlotsCounted,
    TreeSlotsSeen,
)
from specsim.verdict import Rule, Severity


class AllocatedLength(Check):
    rule = Rule(
        "I08", "allocated-length", "the allocated length never shrinks between prefill and release", Severity.LEAK
    )
    after = (Prepared,)

    def check(self, view: Prepared) -> Broken | None:
        was, now = view.was.allocated, view.now.allocated
        if now < was:
            return self.broken(view.part, view.request.rid, f"allocated at least {was}", f"allocated {now}")
        return None


class SlotZero(Check):
    rule = Rule("I21", "slot-zero", "slot 0 is never handed out", Severity.WRONG_RESULT)
    after = (SlotMisused,)

    def check(self, view: SlotMisused) -> Broken | None:
        if view.misuse != "slot 0 allocated":
            return None
        return self.broken(view.part, "", "slots from 1", "slot 0 is handed out")


class FreeGroup(Check):
    rule = Rule(
        "I22",
        "free-group",
        "slots that are freed in a free group are not handed out before it ends",
        Severity.WRONG_RESULT,
    )
    after = (SlotMisused,)

    def check(self, view: SlotMisused) -> Broken | None:
        if view.misuse != "allocated in its free group":
            return None
        expected = "slots of an open free group stay there"
        return self.broken(view.part, "", expected, f"slot {view.slot} is handed out")


class DoubleFree(Check):
    rule = Rule("I23", "double-free", "a slot is freed only by whom it was handed out to, once", Severity.WRONG_RESULT)
    after = (SlotMisused,)

    def check(self, view: SlotMisused) -> Broken | None:
        if view.misuse != "freed when free":
            return None
        actual = f"slot {view.slot} is freed and is free"
        return self.broken(view.part, "", "slots in somebody's hands are freed", actual)


class SlotOwner(Check):
    """Of slots one by one; of pages with several, see `SplitPage`."""

    rule = Rule("I12", "slot-owner", "no slot has two owners", Severity.WRONG_RESULT)
    after = (SlotMisused, OwnerSeen, TreeSlotsSeen)

    def check(self, view: SlotMisused | OwnerSeen | TreeSlotsSeen) -> Broken | None:
        if isinstance(view, SlotMisused):
            if view.misuse != "inserted twice":
                return None
            actual = f"slot {view.slot} is in the tree, and is inserted again"
            return self.broken(view.part, "", "one owner", actual)
        if isinstance(view, OwnerSeen) and len(set(view.slots)) != len(view.slots):
            return self.broken(view.part, "", "distinct slots", f"{view.owner.name} has a slot at two positions")
        actual = _shared_page(view) if view.page_size == 1 else ""
        return self.broken(view.part, "", "one owner", actual) if actual else None


class SplitPage(Check):
    rule = Rule("I17", "split-page", "no page is split between owners", Severity.WRONG_RESULT)
    after = (OwnerSeen, TreeSlotsSeen)

    def check(self, view: OwnerSeen | TreeSlotsSeen) -> Broken | None:
        actual = _shared_page(view) if view.page_size > 1 else ""
        return self.broken(view.part, "", "one owner", actual) if actual else None


class FreeSlot(Check):
    rule = Rule("I16", "free-slot", "no owner's slot is free, and none is free twice", Severity.WRONG_RESULT)
    after = (SlotMisused, OwnerSeen, TreeSlotsSeen)

    def check(self, view: SlotMisused | OwnerSeen | TreeSlotsSeen) -> Broken | None:
        if isinstance(view, SlotMisused):
            slot = view.slot
            if view.misuse == "allocated when in use":
                actual = f"slot {slot} is handed out and is not free"
                return self.broken(view.part, "", "free slots are handed out", actual)
            if view.misuse == "inserted when free":
                return self.broken(view.part, "", "slots in somebody's hands are inserted", f"slot {slot} is free")
            return None
        missing = [slot for slot in view.slots if slot not in view.used]
        missing = missing or _free_slots({slot // view.page_size for slot in view.slots}, view.page_size, view.used)
        if missing:
            name = view.owner.name if isinstance(view, OwnerSeen) else "the tree"
            return self.broken(view.part, "", "owned slots are not free", f"slot {missing[0]} of {name} is free")
        return None


class LeakedSlot(Check):
    rule = Rule(
        "I13", "leaked-slot", "with pages of one token: every slot that is not free has an owner", Severity.LEAK
    )
    after = (SlotsCounted,)

    def check(self, view: SlotsCounted) -> Broken | None:
        leaked = view.leaked
        if view.page_size > 1 or view.at_match or not leaked:
            return None
        return self.broken(view.part, "", "an owner for every slot", leak_of("slot", leaked))


class LeakedPage(Check):
    rule = Rule("I14", "leaked-page", "with larger pages: every page that is not free has an owner", Severity.LEAK)
    after = (SlotsCounted,)

    def check(self, view: SlotsCounted) -> Broken | None:
        leaked = view.leaked
        if view.page_size == 1 or view.at_match or not leaked:
            return None
        return self.broken(view.part, "", "an owner for every page", leak_of("page", leaked))


class LeakAtIdle(Check):
    rule = Rule(
        "I24", "leak-at-idle", "when nothing runs, only sessions and the tree own rows and slots", Severity.LEAK
    )
    after = (IdlePools, IdleRows)

    def check(self, view: IdlePools | IdleRows) -> Broken | None:
        if isinstance(view, IdleRows):
            return self.broken("release", "", "no row in anybody's hands", f"{view.held} rows") if view.held else None
        if view.used:
            actual = f"{len(view.used)} slots, the first {view.used[:1]}"
            return self.broken("release", "", "no slot in anybody's hands", actual)
        return None


def leak_of(what: str, leaked: list[int]) -> str:
    return f"{len(leaked)} {what}s without one, the first is {leaked[0]}"


def _shared_page(view: OwnerSeen | TreeSlotsSeen) -> str:
    """The first page that an owner before has as well, and who; "" when there is none."""
    pages = {slot // view.page_size for slot in view.slots}
    if isinstance(view, OwnerSeen):
        page = next((page for page in pages if page in view.owner_of_page), None)
        name = view.owner.name
        return "" if page is None else f"page {page} belongs to {view.owner_of_page[page]} and {name}"
    shared = sorted(pages & set(view.owner_of_page))
    return f"page {shared[0]} belongs to the tree and {view.owner_of_page[shared[0]]}" if shared else ""


def _free_slots(pages: Iterable[int], page_size: int, used: set[int]) -> list[int]:
    """Slots of the pages that are free: whoever holds a slot of a page holds the page."""
    return [
        slot for page in sorted(pages) for slot in range(page * page_size, (page + 1) * page_size) if slot not in used
    ]
