"""The rules of the radix cache, held against the ledger's own account of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specsim.engine import model
from specsim.engine.memory.radix import RadixCache
from specsim.engine.memory.rows import Rows
from specsim.engine.memory.swa import SwaAllocator
from specsim.rules.ledger import Owner, SlotLedger

Problem = tuple[str, str, str, str]  # rule id, who, expected, actual


def tree_problem(tree: RadixCache, rows: Rows, ledger: SlotLedger, owners: Sequence[Owner]) -> Problem | None:
    """The first broken rule of locks, sizes and protected prefixes, or None."""
    locks = Counter(owner.node for owner in owners if owner.node is not None)
    if locks != ledger.locks:
        holders = sum(locks.values())
        held = f"{sum(ledger.locks.values())} locks on {len(ledger.locks)} nodes"
        return ("I25", "", f"one lock for each of {holders} holders, on {len(locks)} nodes", held)
    sizes = (tree.total, tree.evictable + tree.protected)
    if sizes != (len(ledger.tree_slots),) * 2:
        return ("I26", "", f"{len(ledger.tree_slots)} slots in the tree", f"{sizes[0]} in all, {sizes[1]} by locks")
    for owner in owners:
        protected = owner.protected
        if protected % tree.page_size or not 0 <= protected <= owner.committed:
            return ("I09", owner.name, f"whole pages of at most {owner.committed} positions", f"{protected} protected")
        if owner.node is None:
            continue
        slots = rows.read(owner.row, 0, protected)
        if slots != tree.path_slots(owner.node):
            return ("I19", owner.name, f"the tree's slots at positions 0 to {protected}", "others")
        gone = [slot for slot in slots if slot not in ledger.tree_slots]
        if gone:
            return ("I26", owner.name, "a locked prefix stays in the tree", f"slot {gone[0]} of it was evicted")
    return None


def tree_window_problem(tree: RadixCache, swa: SwaAllocator, ledger: SlotLedger) -> Problem | None:
    """The first broken rule of the tree's window slots, or None."""
    assert tree.window is not None
    with_window = sum(bool(swa.swa_slots[slot]) for slot in ledger.tree_slots)
    counted = tree.window.evictable + tree.window.protected
    if counted != with_window:
        return ("I26", "", f"{with_window} slots of the tree with window slots", f"{counted} by locks")
    for node in ledger.locks:
        slots = tree.path_slots(node)[-tree.window.window :]
        gone = [slot for slot in slots if not swa.swa_slots[slot]]
        if gone:
            return ("I63", "", "the window behind a locked prefix stays", f"slot {gone[0]} has lost its window slot")
    return None


def tree_problem_at_idle(tree: RadixCache, ledger: SlotLedger, content: Sequence[int]) -> Problem | None:
    """What the tree holds when nothing runs and no session is open: no locks, and the KV of its keys."""
    found: dict[int, str | None] = {}
    for entry in tree.entries():
        node = entry.node
        if node.lock_ref:
            return ("I25", "", "no lock when nothing runs", f"{node.lock_ref} on a node of {len(node.slots)} slots")
        found.update(dict.fromkeys(node.slots, entry.extra_key))
        right = model.fingerprints(list(entry.tokens))[entry.start : entry.start + len(node.slots)]
        wrong = [slot for slot, fingerprint in zip(node.slots, right, strict=True) if content[slot] != fingerprint]
        if wrong:
            return ("I27", "", "the KV of the tokens that lead to it", f"slot {wrong[0]} holds something else")
    if found != ledger.tree_slots:
        return ("I26", "", f"{len(ledger.tree_slots)} slots in the tree", f"{len(found)}, or in other namespaces")
    return None


def window_problem_at_idle(tree: RadixCache, swa: SwaAllocator, swa_content: Sequence[int]) -> Problem | None:
    """What the window slots of the tree hold when nothing runs, and that no leaf is without them."""
    for entry in tree.entries():
        node = entry.node
        swa_slots = [swa.swa_slots[slot] for slot in node.slots]
        if any(swa_slots) != node.has_window or all(swa_slots) != node.has_window:
            return ("I26", "", "window slots of whole nodes", f"a node of {len(swa_slots)} has some, or is miscounted")
        if not node.has_window:
            if not node.children:
                return ("I63", "", "a leaf has its window", "a leaf without one")
            continue
        right = model.fingerprints(list(entry.tokens))[entry.start : entry.start + len(node.slots)]
        if [swa_content[slot] for slot in swa_slots] != right:
            return ("I27", "", "the KV of the tokens that lead to it", "a window slot holds something else")
    return None
