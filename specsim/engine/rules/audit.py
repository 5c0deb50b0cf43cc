"""Views of who owns what: the ledgers beside the rows of requests and sessions, owner by owner."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specsim.engine.accounting import Memory
from specsim.engine.memory.radix import RadixCache
from specsim.engine.memory.swa import SwaAllocator
from specsim.engine.rules.ledger import Owner, SlotLedger
from specsim.engine.rules.views import (
    IdleTree,
    IdleTreeEntry,
    IdleTreeWindow,
    OwnerSeen,
    RowsCounted,
    SlotsCounted,
    TreeOwnerSeen,
    TreeSeen,
    TreeSlotsSeen,
    TreeWindowSeen,
    WindowCounted,
    WindowOwnerSeen,
)


def slots_seen(
    part: str, memory: Memory, ledger: SlotLedger, owners: Sequence[Owner], *, at_match: bool = False
) -> Iterator[OwnerSeen | TreeSlotsSeen | SlotsCounted | RowsCounted]:
    """The slots and rows of every owner, then of the tree, then all."""
    page_size = memory.allocator.page_size
    owner_of_page: dict[int, str] = {}
    owner_of_row: dict[int, str] = {}
    for owner in owners:
        slots = memory.rows.read(owner.row, owner.protected, owner.allocated)
        yield OwnerSeen(part, owner, slots, page_size, ledger.used, owner_of_row, owner_of_page)
        owner_of_row[owner.row] = owner.name
        owner_of_page.update(dict.fromkeys([slot // page_size for slot in slots], owner.name))
    in_tree = list(ledger.tree_slots)
    yield TreeSlotsSeen(part, in_tree, page_size, ledger.used, owner_of_page)
    owner_of_page.update(dict.fromkeys([slot // page_size for slot in in_tree], "the tree"))
    yield SlotsCounted(part, page_size, ledger.used, owner_of_page, at_match)
    yield RowsCounted(part, memory.rows, owner_of_row)


def window_seen(
    part: str, memory: Memory, used: set[int], owners: Sequence[Owner], in_tree: Sequence[int]
) -> Iterator[WindowOwnerSeen | WindowCounted]:
    """The window slots of every owner, then all. `used` are those in use, `in_tree` the full slots of the tree."""
    swa, page_size = memory.swa, memory.allocator.page_size
    assert swa is not None
    owned: set[int] = set()
    for owner in owners:
        slots = [swa.swa_slots[slot] for slot in memory.rows.read(owner.row, 0, owner.allocated)]
        first = max(owner.evicted, owner.protected)
        pages = {slot // page_size for slot in slots[first:]}
        yield WindowOwnerSeen(part, owner, page_size, slots, first, pages, owned)
        owned |= pages
    of_tree = {swa.swa_slots[slot] // page_size for slot in in_tree if swa.swa_slots[slot]}
    yield WindowCounted(part, owned, of_tree, {slot // page_size for slot in used})


def tree_seen(
    part: str, memory: Memory, ledger: SlotLedger, owners: Sequence[Owner]
) -> Iterator[TreeSeen | TreeOwnerSeen | TreeWindowSeen]:
    """The tree, what it protects of every owner, and its window slots."""
    tree, rows = memory.tree, memory.rows
    assert tree is not None
    yield TreeSeen(part, tree, ledger, owners)
    for owner in owners:
        yield TreeOwnerSeen(part, owner, rows.read(owner.row, 0, owner.protected), tree, ledger)
    if memory.swa is not None:
        yield TreeWindowSeen(part, tree, memory.swa, ledger)


def idle_tree_seen(
    tree: RadixCache, swa: SwaAllocator | None, ledger: SlotLedger, content: Sequence[int], swa_content: Sequence[int]
) -> Iterator[IdleTreeEntry | IdleTree | IdleTreeWindow]:
    """Every entry of the tree when nothing runs, then all, then their window slots."""
    found: dict[int, str | None] = {}
    for entry in tree.entries():
        yield IdleTreeEntry(entry, content)
        found.update(dict.fromkeys(entry.node.slots, entry.extra_key))
    yield IdleTree(found, ledger)
    if swa is not None:
        for entry in tree.entries():
            yield IdleTreeWindow(entry, [swa.swa_slots[slot] for slot in entry.node.slots], swa_content)
