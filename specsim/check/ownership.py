"""The account of who owns which page, kept from one check to the next: a check costs what has changed since the last.

It says only that nothing is wrong. When it cannot, `specsim.check.ledger` looks at everything, and the account is made
anew from what that finds.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from specsim.check.ledger import Owner, SlotLedger, is_sound, rows_match
from specsim.sim.accounting import Memory


class Account:
    """Of the pages that owners hold: whose each is. Slots that the ledger saw change hands, and rows whose entries
    differ from those of the last check, are looked at; all others were sound then and are what they were.
    """

    def __init__(self, memory: Memory, ledger: SlotLedger) -> None:
        self._memory = memory
        self._ledger = ledger
        self._page_size = ledger.page_size
        self._entries: dict[str, array[int]] = {}
        self._owner_of: dict[int, str] = {}

    def is_sound(self, owners: Sequence[Owner]) -> bool:
        """As `specsim.check.ledger.is_sound`."""
        touched = self._updated(owners)
        if touched is not None and self._agrees(touched) and rows_match(self._memory.rows, owners):
            self._ledger.changed.clear()
            return True
        self._entries, self._owner_of = {}, {}
        if not is_sound(self._memory, self._ledger, owners):
            self._ledger.changed.update(self._ledger.tree_slots)  # nothing is known to be sound
            return False
        self._updated(owners)
        self._ledger.changed.clear()
        return True

    def _updated(self, owners: Sequence[Owner]) -> set[int] | None:
        """Bring the account up to date; returns the pages that came or went, None when one has two owners."""
        rows, known = self._memory.rows, self._entries
        buffer, width = rows.buffer, rows.width
        entries: dict[str, array[int]] = {}
        differ: list[tuple[str, int]] = []  # and how many entries are what they were
        for owner in owners:
            first = owner.row * width
            now = buffer[first + owner.protected : first + owner.allocated]
            was = known.get(owner.name)
            if was is None:
                differ.append((owner.name, 0))
            elif now != was:
                is_longer = len(now) > len(was) and now[: len(was)] == was
                differ.append((owner.name, len(was) if is_longer else 0))
            entries[owner.name] = now
        pages: set[int] = set()
        gone = [name for name in known if name not in entries]
        for name in [*gone, *[name for name, kept in differ if not kept and name in known]]:
            left = {slot // self._page_size for slot in known[name]}
            pages |= left
            for page in left:
                self._owner_of.pop(page, None)
        self._entries = entries
        for name, kept in differ:
            if not self._takes(name, entries[name], kept, pages):
                return None
        return pages

    def _takes(self, name: str, entries: array[int], kept: int, pages: set[int]) -> bool:
        """Give the pages of all but the first `kept` entries to an owner. A page's slots have to be in order: whether
        they are distinct otherwise is not looked at here.
        """
        page_size, owner_of = self._page_size, self._owner_of
        before = entries[kept - 1] if kept else -1
        for slot in entries[kept:]:
            page = slot // page_size
            if page in owner_of:
                if slot != before + 1 or before // page_size != page or owner_of[page] != name:
                    return False
            else:
                owner_of[page] = name
                pages.add(page)
            before = slot
        return True

    def _agrees(self, pages: Iterable[int]) -> bool:
        """Whether the ledger says the same of these pages and of those whose slots changed hands."""
        ledger, page_size, owner_of = self._ledger, self._page_size, self._owner_of
        used, in_tree = ledger.used, ledger.tree_slots
        if len(used) != len(owner_of) * page_size + len(in_tree):
            return False
        if page_size == 1:
            for slot in ledger.changed.union(pages):
                if (slot in used) != (slot in owner_of or slot in in_tree) or (slot in owner_of and slot in in_tree):
                    return False
            return True
        for page in {slot // page_size for slot in ledger.changed}.union(pages):
            slots = range(page * page_size, (page + 1) * page_size)
            of_tree = sum([slot in in_tree for slot in slots])
            holders = (page in owner_of) + (of_tree > 0)
            if holders > 1 or sum([slot in used for slot in slots]) != holders * page_size:
                return False
        return True
