"""The account of who owns which page, kept from one check to the next: a check costs what has changed since the last.

It says only that nothing is wrong. When it cannot, `specsim.engine.rules.ledger` looks at everything, and the account
is made anew from what that finds.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from specsim.engine.accounting import Memory
from specsim.engine.rules.ledger import Owner, SlotLedger, is_sound, rows_match


class Account:
    """The pages that owners hold, each of one of them. Slots that the ledger saw change hands, and rows whose entries
    differ from those of the last check, are looked at; all others were sound then and are what they were.
    """

    def __init__(self, memory: Memory, ledger: SlotLedger) -> None:
        self._memory = memory
        self._ledger = ledger
        self._page_size = ledger.page_size
        self._entries: dict[str, array[int]] = {}
        self._owned: set[int] = set()

    def is_sound(self, owners: Sequence[Owner]) -> bool:
        """As `specsim.engine.rules.ledger.is_sound`."""
        touched = self._updated(owners)
        if touched is not None and self._agrees(touched) and rows_match(self._memory.rows, owners):
            self._ledger.changed.clear()
            return True
        self._entries, self._owned = {}, set()
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
            self._owned -= left
        self._entries = entries
        for name, kept in differ:
            taken = self._taken(entries[name], kept)
            if taken is None or not self._owned.isdisjoint(taken):
                return None
            self._owned |= taken
            pages |= taken
        return pages

    def _taken(self, entries: array[int], kept: int) -> set[int] | None:
        """The pages of all but the first `kept` entries, without the one that those end in. None when a slot may be
        there twice: the slots of a page have to be in order, whether they are distinct otherwise is not looked at here.
        """
        slots, page_size = entries[kept:].tolist(), self._page_size
        if page_size == 1:
            taken = set(slots)
            return taken if len(taken) == len(slots) else None
        pages: set[int] = set()
        before = entries[kept - 1] if kept else -1
        for slot in slots:
            page = slot // page_size
            if slot != before + 1 or before // page_size != page:
                if page in pages:
                    return None
                pages.add(page)
            before = slot
        return pages

    def _agrees(self, pages: set[int]) -> bool:
        """Whether the ledger says the same of these pages and of those whose slots changed hands."""
        ledger, page_size, owned = self._ledger, self._page_size, self._owned
        used, in_tree = ledger.used, ledger.tree_slots
        if len(used) != len(owned) * page_size + len(in_tree):
            return False
        if page_size == 1:
            touched = ledger.changed | pages
            of_tree = {slot for slot in touched if slot in in_tree} if in_tree else set()
            of_owners = touched & owned
            return of_owners.isdisjoint(of_tree) and touched & used == of_owners | of_tree
        tree_slots = in_tree.keys()
        for page in {slot // page_size for slot in ledger.changed} | pages:
            slots = range(page * page_size, (page + 1) * page_size)
            is_owned, is_of_tree = page in owned, not tree_slots.isdisjoint(slots)
            if is_owned and is_of_tree:
                return False
            if not (used.issuperset(slots) if is_owned or is_of_tree else used.isdisjoint(slots)):
                return False
        return True
