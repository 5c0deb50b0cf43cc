"""The rules of the radix cache, held against the ledger's own account of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from specsim.check.ledger import Owner, SlotLedger
from specsim.memory.radix import RadixCache
from specsim.memory.rows import Rows
from specsim.sim import model

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
