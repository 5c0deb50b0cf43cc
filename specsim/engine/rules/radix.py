"""The radix cache, compared with the ledger's own account of it."""

from __future__ import annotations

from specsim.engine import model
from specsim.engine.memory.tree_node import TreeNode
from specsim.engine.rules.rule import Broken, Check
from specsim.engine.rules.views import (
    IdleTree,
    IdleTreeEntry,
    IdleTreeWindow,
    Inserted,
    LocksChanged,
    NothingToInsert,
    PrefixMatched,
    Shown,
    TreeOwnerSeen,
    TreeSeen,
    TreeWindowSeen,
)
from specsim.verdict import Rule, Severity


class ProtectedPages(Check):
    rule = Rule(
        "I09",
        "protected-pages",
        "the positions that the tree protects are whole pages, and at most those claimed",
        Severity.WRONG_RESULT,
    )
    after = (TreeOwnerSeen,)

    def applies(self, shown: Shown) -> bool:
        return shown.config.radix and bool(shown.requests("prefill"))

    def check(self, view: TreeOwnerSeen) -> Broken | None:
        owner, protected = view.owner, view.owner.protected
        if protected % view.tree.page_size or not 0 <= protected <= owner.committed:
            expected = f"whole pages of at most {owner.committed} positions"
            return self.broken(view.part, owner.name, expected, f"{protected} protected")
        return None


class LockedPath(Check):
    rule = Rule(
        "I19",
        "locked-path",
        "the slots of a row's protected positions are those of the tree's locked path",
        Severity.WRONG_RESULT,
    )
    after = (TreeOwnerSeen,)

    def applies(self, shown: Shown) -> bool:
        return shown.config.radix and bool(shown.requests("prefill"))

    def check(self, view: TreeOwnerSeen) -> Broken | None:
        owner = view.owner
        if owner.node is None:
            return None
        if view.slots != view.tree.path_slots(owner.node):
            expected = f"the tree's slots at positions 0 to {owner.protected}"
            return self.broken(view.part, owner.name, expected, "others")
        return None


class TreeInsertion(Check):
    rule = Rule(
        "I29",
        "tree-insertion",
        "a request inserts what it claims in whole pages of keys, and nothing when it is retracted",
        Severity.WRONG_RESULT,
    )
    after = (Inserted, NothingToInsert)

    def check(self, view: Inserted | NothingToInsert) -> Broken | None:
        rid = view.request.rid
        if isinstance(view, NothingToInsert):
            to = view.inserted_to
            return self.broken(view.part, rid, "nothing inserted", f"positions up to {to}") if to else None
        if view.held != view.expected or view.inserted_to not in (0, view.expected):
            expected = f"{view.expected} positions in the tree"
            return self.broken(view.part, rid, expected, f"{view.held} positions")
        return None


class LockOfFinished(Check):
    rule = Rule("I30", "lock-of-finished", "a finished request gives back its lock, once", Severity.LEAK)
    after = (LocksChanged,)

    def applies(self, shown: Shown) -> bool:
        finished = shown.requests("finish")
        return shown.config.radix and any(not shown.turns[rid].session for rid in finished)

    def check(self, view: LocksChanged) -> Broken | None:
        return _wrong_locks(self, view) if view.change < 0 else None


class TreeLocks(Check):
    rule = Rule(
        "I25",
        "tree-locks",
        "every running request and session holds one lock in the tree, and nobody else does",
        Severity.LEAK,
    )
    after = (TreeSeen, LocksChanged, IdleTreeEntry)

    def applies(self, shown: Shown) -> bool:
        return shown.config.radix and bool(shown.requests("prefill"))

    def check(self, view: TreeSeen | LocksChanged | IdleTreeEntry) -> Broken | None:
        if isinstance(view, TreeSeen):
            return self._of_owners(view)
        if isinstance(view, IdleTreeEntry):
            node = view.entry.node
            if node.lock_ref:
                actual = f"{node.lock_ref} on a node of {len(node.slots)} slots"
                return self.broken("tree insert", "", "no lock when nothing runs", actual)
            return None
        return _wrong_locks(self, view) if view.change >= 0 else None  # fewer when a request has finished

    def _of_owners(self, view: TreeSeen) -> Broken | None:
        expected: dict[TreeNode, int] = {}
        for owner in view.owners:
            if owner.node is not None:
                expected[owner.node] = expected.get(owner.node, 0) + 1
        actual = view.ledger.locks
        if expected == actual:
            return None
        return self.broken(
            view.part,
            "",
            f"one lock for each of {sum(expected.values())} holders, on {len(expected)} nodes",
            f"{sum(actual.values())} locks on {len(actual)} nodes",
        )


class TreeNamespace(Check):
    rule = Rule(
        "I28",
        "tree-namespace",
        "a request reuses only what was inserted under its own extra_key",
        Severity.WRONG_RESULT,
    )
    after = (PrefixMatched,)

    def applies(self, shown: Shown) -> bool:
        return shown.config.radix and bool(shown.requests("prefill"))

    def check(self, view: PrefixMatched) -> Broken | None:
        own = view.request.turn.extra_key
        if view.namespaces <= {own}:
            return None
        return self.broken("prefix match", view.request.rid, f"slots of {own!r}", view.namespaces)


class StableMatch(Check):
    rule = Rule(
        "I56",
        "stable-match",
        "a prefix that is matched again is found again, and matching changes nothing",
        Severity.WRONG_RESULT,
    )
    after = (PrefixMatched,)

    def applies(self, shown: Shown) -> bool:
        return shown.config.radix and bool(shown.requests("prefill"))

    def check(self, view: PrefixMatched) -> Broken | None:
        if view.first == view.second:
            return None
        expected = f"(found, total, evictable, locked) {view.first}"
        return self.broken("prefix match", view.request.rid, expected, view.second)


class TreeSizes(Check):
    rule = Rule(
        "I26",
        "tree-sizes",
        "the tree's slots are evictable or locked, and what is locked is not evicted",
        Severity.WRONG_RESULT,
    )
    after = (TreeSeen, TreeOwnerSeen, TreeWindowSeen, IdleTree, IdleTreeWindow)

    def check(self, view: TreeSeen | TreeOwnerSeen | TreeWindowSeen | IdleTree | IdleTreeWindow) -> Broken | None:
        if isinstance(view, TreeSeen):
            total, by_locks = view.tree.total, view.tree.evictable + view.tree.protected
            count = len(view.ledger.tree_slots)
            if total == by_locks == count:
                return None
            return self.broken(view.part, "", f"{count} slots in the tree", f"{total} in all, {by_locks} by locks")
        if isinstance(view, TreeOwnerSeen):
            return self._of_owner(view)
        if isinstance(view, TreeWindowSeen):
            return self._of_window(view)
        if isinstance(view, IdleTree):
            if view.found == view.ledger.tree_slots:
                return None
            expected = f"{len(view.ledger.tree_slots)} slots in the tree"
            return self.broken("tree insert", "", expected, f"{len(view.found)}, or in other namespaces")
        has_window = view.entry.node.has_window
        if any(view.slots) != has_window or all(view.slots) != has_window:
            actual = f"a node of {len(view.slots)} has some, or is miscounted"
            return self.broken("tree insert", "", "window slots of whole nodes", actual)
        return None

    def _of_owner(self, view: TreeOwnerSeen) -> Broken | None:
        owner = view.owner
        if owner.node is None:
            return None
        in_tree = view.ledger.tree_slots
        gone = [slot for slot in view.slots if slot not in in_tree]
        if not gone:
            return None
        return self.broken(
            view.part, owner.name, "a locked prefix stays in the tree", f"slot {gone[0]} of it was evicted"
        )

    def _of_window(self, view: TreeWindowSeen) -> Broken | None:
        window = view.tree.window
        assert window is not None
        expected = sum(bool(view.swa.swa_slots[slot]) for slot in view.ledger.tree_slots)
        counted = window.evictable + window.protected
        if counted == expected:
            return None
        return self.broken(view.part, "", f"{expected} slots of the tree with window slots", f"{counted} by locks")


class TreeWindow(Check):
    rule = Rule(
        "I63",
        "tree-window",
        "a prefix that the tree keeps by a lock, or ends with, has the window slots behind its end",
        Severity.WRONG_RESULT,
    )
    after = (TreeWindowSeen, IdleTreeWindow)

    def applies(self, shown: Shown) -> bool:
        return shown.config.radix and bool(shown.config.window) and bool(shown.requests("prefill"))

    def check(self, view: TreeWindowSeen | IdleTreeWindow) -> Broken | None:
        if isinstance(view, IdleTreeWindow):
            node = view.entry.node
            if node.has_window or node.children:
                return None
            return self.broken("tree insert", "", "a leaf has its window", "a leaf without one")
        window = view.tree.window
        assert window is not None
        for node in view.ledger.locks:
            gone = [s for s in view.tree.path_slots(node)[-window.window :] if not view.swa.swa_slots[s]]
            if gone:
                actual = f"slot {gone[0]} has lost its window slot"
                return self.broken(view.part, "", "the window behind a locked prefix stays", actual)
        return None


class TreeContent(Check):
    rule = Rule(
        "I27", "tree-content", "a slot of the tree holds the KV of the tokens that lead to it", Severity.WRONG_RESULT
    )
    after = (IdleTreeEntry, IdleTreeWindow)

    def check(self, view: IdleTreeEntry | IdleTreeWindow) -> Broken | None:
        entry, node = view.entry, view.entry.node
        if isinstance(view, IdleTreeWindow):
            if not node.has_window:
                return None
            slots = view.slots
        else:
            slots = node.slots
        right = model.fingerprints(list(entry.tokens))[entry.start : entry.start + len(node.slots)]
        wrong = [slot for slot, expected in zip(slots, right, strict=True) if view.content[slot] != expected]
        if not wrong:
            return None
        actual = "a window slot" if isinstance(view, IdleTreeWindow) else f"slot {wrong[0]}"
        expected_text = "the KV of the tokens that lead to it"
        return self.broken("tree insert", "", expected_text, f"{actual} holds something else")


def _wrong_locks(check: Check, view: LocksChanged) -> Broken | None:
    expected = view.before + view.change
    return check.broken(view.part, view.request.rid, f"{expected} locks", view.now) if view.now != expected else None
