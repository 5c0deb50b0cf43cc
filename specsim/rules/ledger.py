"""Ledgers: who owns which slot and row, kept by hooks in the memory classes.

The allocator tells the ledger of every slot that changes hands, and the radix cache of what it takes, gives up and
locks; who owns any other allocated slot follows from the rows of requests and sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from specsim.engine.accounting import Memory
from specsim.engine.memory.rows import Rows
from specsim.engine.memory.tree_node import TreeNode


@dataclass(slots=True)
class SlotLedger:
    """The slots that are in somebody's hands. Broken rules are noted in `broken` as (rule id, expected, actual).

    `tree_slots`  slots of the radix cache, and the namespace of each
    `locks`       locks that are held on each of its nodes
    `inserted_to` where the last insertion that brought anything ended; 0 at first and when a checker sets it
    `changed`     slots that changed hands since a checker looked
    """

    page_size: int = 1
    used: set[int] = field(default_factory=set)
    in_group: set[int] = field(default_factory=set)
    group_open: bool = False
    broken: list[tuple[str, str, str]] = field(default_factory=list)
    tree_slots: dict[int, str | None] = field(default_factory=dict)
    locks: Counter[TreeNode] = field(default_factory=Counter)
    inserted_to: int = 0
    changed: set[int] = field(default_factory=set)

    def allocated(self, slots: list[int]) -> None:
        for slot in slots:
            if slot == 0:
                self.broken.append(("I21", "slots from 1", "slot 0 is handed out"))
            if slot in self.in_group:
                self.broken.append(("I22", "slots of an open free group stay there", f"slot {slot} is handed out"))
            if slot in self.used:
                self.broken.append(("I16", "free slots are handed out", f"slot {slot} is handed out and is not free"))
            self.used.add(slot)
        self.changed.update(slots)

    def freed(self, slots: list[int]) -> None:
        self.changed.update(slots)
        for slot in slots:
            if slot not in self.used:
                # Inside one free group a page may come back in parts: it is one set. A single slot has no parts.
                if self.page_size > 1 and slot in self.in_group:
                    continue
                self.broken.append(("I23", "slots in somebody's hands are freed", f"slot {slot} is freed and is free"))
            self.used.discard(slot)
        if self.group_open:
            self.in_group.update(slots)

    def inserted(self, extra_key: str | None, tokens: tuple[int, ...], start: int, slots: list[int]) -> None:
        for slot in slots:
            if slot in self.tree_slots:
                self.broken.append(("I12", "one owner", f"slot {slot} is in the tree, and is inserted again"))
            if slot not in self.used:
                self.broken.append(("I16", "slots in somebody's hands are inserted", f"slot {slot} is free"))
            self.tree_slots[slot] = extra_key
        self.changed.update(slots)
        self.inserted_to = start + len(slots)

    def evicted(self, slots: list[int]) -> None:
        self.changed.update(slots)
        for slot in slots:
            del self.tree_slots[slot]

    def locked(self, node: TreeNode) -> None:
        self.locks[node] += 1

    def unlocked(self, node: TreeNode) -> None:
        self.locks[node] -= 1
        if not self.locks[node]:
            del self.locks[node]

    def free_group_begin(self) -> None:
        self.group_open = True

    def free_group_end(self) -> None:
        self.group_open = False
        self.in_group.clear()

    def fork(self) -> SlotLedger:
        """A copy for a run without a radix cache: nothing is put in the tree, and nothing is locked."""
        of_tree = (self.tree_slots, self.locks, self.inserted_to)
        broken = self.broken[:]
        return SlotLedger(self.page_size, set(self.used), set(self.in_group), self.group_open, broken, *of_tree)

    def state(self) -> tuple[list[int], list[int], bool, list[tuple[str, str, str]]]:
        """What can decide whether a rule is found broken from here on, without a radix cache."""
        return (sorted(self.used), sorted(self.in_group), self.group_open, self.broken)


@dataclass(frozen=True, slots=True)
class Owner:
    """Somebody who owns a row and the slots of its positions `[protected, allocated)`.

    Those before are the tree's, kept by a lock on `node`; `committed` is what it claims.
    """

    name: str
    row: int
    allocated: int
    protected: int = 0
    node: TreeNode | None = None
    committed: int = 0
    evicted: int = 0


def ownership_problem(memory: Memory, ledger: SlotLedger, owners: Sequence[Owner]) -> tuple[str, str, str] | None:
    """The first broken rule of ownership and conservation: (rule id, expected, actual), or None."""
    page_size = memory.allocator.page_size
    owner_of: dict[int, str] = {}
    rows: dict[int, str] = {}
    for owner in owners:
        if owner.row in rows:
            return ("I18", "every row has one owner", f"row {owner.row} belongs to {rows[owner.row]} and {owner.name}")
        rows[owner.row] = owner.name
        slots = memory.rows.read(owner.row, owner.protected, owner.allocated)
        if len(set(slots)) != len(slots):
            return ("I12", "distinct slots", f"{owner.name} has a slot at two positions")
        held = {slot // page_size for slot in slots}
        for page in held:
            if page in owner_of:
                rule = "I12" if page_size == 1 else "I17"
                return (rule, "one owner", f"page {page} belongs to {owner_of[page]} and {owner.name}")
            owner_of[page] = owner.name
        missing = [slot for slot in slots if slot not in ledger.used] or _free_slots(held, page_size, ledger.used)
        if missing:
            return ("I16", "owned slots are not free", f"slot {missing[0]} of {owner.name} is free")
    pages = {slot // page_size for slot in ledger.tree_slots}
    shared = sorted(pages & set(owner_of))
    if shared:
        rule = "I12" if page_size == 1 else "I17"
        return (rule, "one owner", f"page {shared[0]} belongs to the tree and {owner_of[shared[0]]}")
    missing = [slot for slot in ledger.tree_slots if slot not in ledger.used]
    missing = missing or _free_slots(pages, page_size, ledger.used)
    if missing:
        return ("I16", "owned slots are not free", f"slot {missing[0]} of the tree is free")
    owner_of.update(dict.fromkeys(pages, "the tree"))
    used_pages = {slot // page_size for slot in ledger.used}
    leaked = sorted(used_pages - set(owner_of))
    if leaked:
        rule = "I13" if page_size == 1 else "I14"
        what = "slot" if page_size == 1 else "page"
        return (rule, f"an owner for every {what}", f"{len(leaked)} {what}s without one, the first is {leaked[0]}")
    free = memory.rows.free_rows
    if len(set(free)) != len(free) or set(free) & set(rows) or len(free) + len(rows) != memory.rows.count:
        return ("I18", f"{memory.rows.count} rows, free or owned", f"free {sorted(free)}, owned {sorted(rows)}")
    return None


def _free_slots(pages: Iterable[int], page_size: int, used: set[int]) -> list[int]:
    """Slots of the pages that are free: whoever holds a slot of a page holds the page."""
    return [
        slot for page in sorted(pages) for slot in range(page * page_size, (page + 1) * page_size) if slot not in used
    ]


def window_problem(
    memory: Memory, used: set[int], owners: Iterable[Owner], in_tree: Iterable[int]
) -> tuple[str, str, str] | None:
    """The first broken rule of the pool of a sliding window, whose slots in somebody's hands are `used`; `in_tree` are
    the full slots of the radix cache.
    """
    swa, page_size = memory.swa, memory.allocator.page_size
    assert swa is not None
    owned: set[int] = set()
    for owner in owners:
        if owner.evicted % page_size or not 0 <= owner.evicted <= owner.committed:
            return ("I62", f"{owner.name}: whole pages of at most {owner.committed} positions", f"{owner.evicted}")
        slots = [swa.swa_slots[slot] for slot in memory.rows.read(owner.row, 0, owner.allocated)]
        first = max(owner.evicted, owner.protected)
        if any(slots[owner.protected : first]) or not all(slots[first:]):
            return ("I15", f"{owner.name}: window slots from position {first} on", "another position has one or none")
        pages = {slot // page_size for slot in slots[first:]}
        if not owned.isdisjoint(pages):
            return ("I15", "one owner", f"a window page of {owner.name} is another's too")
        owned |= pages
    pages = {swa.swa_slots[slot] // page_size for slot in in_tree if swa.swa_slots[slot]}
    if not owned.isdisjoint(pages):
        return ("I15", "one owner", "a window page of the tree is another's too")
    owned |= pages
    in_use = {slot // page_size for slot in used}
    if owned != in_use:
        return ("I15", "an owner for every window page that is not free", f"{len(owned)} owned, {len(in_use)} not free")
    return None


def is_sound(memory: Memory, ledger: SlotLedger, owners: Sequence[Owner]) -> bool:
    """Whether `ownership_problem` finds nothing, by sets and counts: several times faster."""
    page_size, rows = memory.allocator.page_size, memory.rows
    owned: set[int] = set()
    count = 0
    for owner in owners:
        slots = rows.read(owner.row, owner.protected, owner.allocated)
        if page_size == 1:
            owned.update(slots)
            count += len(slots)
        else:
            pages = {slot // page_size for slot in slots}
            owned |= pages
            count += len(pages)
            if len(set(slots)) != len(slots):
                return False
    if ledger.tree_slots:
        pages = {slot // page_size for slot in ledger.tree_slots}
        owned |= pages
        count += len(pages)
    if count != len(owned) or len(ledger.used) != count * page_size:
        return False
    pages_in_use = ledger.used if page_size == 1 else {slot // page_size for slot in ledger.used}
    return owned == pages_in_use and rows_match(rows, owners)


def rows_match(rows: Rows, owners: Sequence[Owner]) -> bool:
    """Whether every row is free or has one owner."""
    taken = {owner.row for owner in owners}
    free = set(rows.free_rows)
    distinct = len(taken) == len(owners) and len(free) == len(rows.free_rows) and not free & taken
    return distinct and len(free) + len(taken) == rows.count
