"""Ledgers: who owns which slot and row, kept by hooks in the memory classes.

The allocator reports every slot that changes hands, and the radix cache what it takes, gives up and locks; who owns any
other allocated slot follows from the rows of requests and sessions.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from specsim.engine.accounting import Memory
from specsim.engine.memory.rows import Rows
from specsim.engine.memory.tree_node import TreeNode

# What happened to a slot that must not.
Misuse = Literal[
    "slot 0 allocated",
    "allocated in its free group",
    "allocated when in use",
    "freed when free",
    "inserted twice",
    "inserted when free",
]


@dataclass(slots=True)
class SlotLedger:
    """The slots that are in somebody's hands.

    `misuses`     slots that changed hands as they must not, each with what happened to it, in order
    `tree_slots`  slots of the radix cache, and the namespace of each
    `locks`       locks that are held on each of its nodes
    `inserted_to` where the last insertion that brought anything ended; 0 at first and when a checker sets it
    `changed`     slots that changed hands since a checker looked
    """

    page_size: int = 1
    used: set[int] = field(default_factory=set)
    in_group: set[int] = field(default_factory=set)
    group_open: bool = False
    misuses: list[tuple[Misuse, int]] = field(default_factory=list)
    tree_slots: dict[int, str | None] = field(default_factory=dict)
    locks: Counter[TreeNode] = field(default_factory=Counter)
    inserted_to: int = 0
    changed: set[int] = field(default_factory=set)

    def allocated(self, slots: list[int]) -> None:
        for slot in slots:
            if slot == 0:
                self.misuses.append(("slot 0 allocated", slot))
            if slot in self.in_group:
                self.misuses.append(("allocated in its free group", slot))
            if slot in self.used:
                self.misuses.append(("allocated when in use", slot))
            self.used.add(slot)
        self.changed.update(slots)

    def freed(self, slots: list[int]) -> None:
        self.changed.update(slots)
        for slot in slots:
            if slot not in self.used:
                # Inside one free group a page may come back in parts: it is one set. A single slot has no parts.
                if self.page_size > 1 and slot in self.in_group:
                    continue
                self.misuses.append(("freed when free", slot))
            self.used.discard(slot)
        if self.group_open:
            self.in_group.update(slots)

    def inserted(self, extra_key: str | None, tokens: tuple[int, ...], start: int, slots: list[int]) -> None:
        for slot in slots:
            if slot in self.tree_slots:
                self.misuses.append(("inserted twice", slot))
            if slot not in self.used:
                self.misuses.append(("inserted when free", slot))
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
        misuses = self.misuses[:]
        return SlotLedger(self.page_size, set(self.used), set(self.in_group), self.group_open, misuses, *of_tree)

    def state(self) -> tuple[list[int], list[int], bool, list[tuple[Misuse, int]]]:
        """What can decide whether a rule is found broken from here on, without a radix cache."""
        return (sorted(self.used), sorted(self.in_group), self.group_open, self.misuses)


@dataclass(slots=True)  # not frozen: they are made for every check, and a frozen one takes three times as long
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


def is_sound(memory: Memory, ledger: SlotLedger, owners: Sequence[Owner]) -> bool:
    """Whether every slot and row is free or has one owner, by sets and counts: several times faster than the rules."""
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
