"""The radix cache: slots of finished and unfinished requests by the tokens whose KV they hold.

A tree per namespace. The edge into a node is a run of whole pages of keys, and each key has one slot. A key is a token,
or with `bigram` a token and the one after it: the KV that a drafter such as EAGLE writes at a position depends on the
next token too, so n tokens are n - 1 keys and the last slot is not the tree's.

Its rules: a node's pages are used together, and a use that ends inside a node splits it there; a locked node has only
locked nodes above it; what is least recently used goes first. Time is an order of nodes, not a number, so no two uses
are equally old.

It does not know whose slots it is given: a slot that is in two places, or a page that does not lie in one piece, is for
a ledger to find. What a sliding window changes is `specsim.engine.memory.window_tree`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple, Protocol

from specsim.engine.memory.tree_node import TreeNode
from specsim.engine.memory.window_tree import TreeWindow


class Match(NamedTuple):
    """The slots of the longest prefix that the tree holds, and the node at which it ends: the root for none."""

    slots: list[int]
    node: TreeNode


class Entry(NamedTuple):
    """A node as a checker reads it: `node.slots[i]` belongs to key `start + i` of `tokens`, the path from the root."""

    extra_key: str | None
    tokens: tuple[int, ...]
    start: int
    node: TreeNode


class TreeWatcher(Protocol):
    """Sees what the tree takes, gives up and locks."""

    def inserted(self, extra_key: str | None, tokens: tuple[int, ...], start: int, slots: list[int]) -> None:
        """`slots` are the tree's from now on: they belong to the last `len(slots)` keys of `tokens`, from `start`."""
        ...

    def evicted(self, slots: list[int]) -> None:
        """Called before the slots are freed."""
        ...

    def locked(self, node: TreeNode) -> None: ...

    def unlocked(self, node: TreeNode) -> None: ...


class FreesSlots(Protocol):
    """Where evicted slots go. `specsim.engine.memory.allocator` is one."""

    def free(self, slots: Iterable[int]) -> None: ...


class RadixCache:
    """Trees of pages of `page_size` keys, one for each `extra_key`.

    `total`      slots in all trees
    `evictable`  those of nodes without a lock
    `protected`  those of locked nodes

    Raises ValueError for a page_size below 1. Source: SGLang's radix cache; bigram keys sgl-project/sglang#10846.
    """

    def __init__(
        self,
        page_size: int,
        allocator: FreesSlots,
        *,
        bigram: bool = False,
        watcher: TreeWatcher | None = None,
        window: TreeWindow | None = None,
    ) -> None:
        if page_size < 1:
            raise ValueError(f"page_size={page_size}; a page has at least 1 key")
        self.page_size = page_size
        self.bigram = bigram
        self.window = window
        self.total = self.evictable = self.protected = 0
        self._allocator = allocator
        self._watcher = watcher
        self._roots: dict[str | None, TreeNode] = {}
        self._beyond = 1 if bigram else 0  # tokens that a run of keys needs beyond their number
        # Least recently used first, roots excepted. Whoever uses a node uses those above it, and these are moved to the
        # end after it, so a node comes before its parent and one pass from the front meets every leaf that is made.
        self._by_use: OrderedDict[int, TreeNode] = OrderedDict()
        self._made = 0

    def key_len(self, num_tokens: int) -> int:
        """How many of so many tokens' slots the tree takes: whole pages of keys."""
        keys = max(num_tokens - self._beyond, 0)
        return keys - keys % self.page_size

    def match(self, key: Sequence[int], extra_key: str | None = None) -> Match:
        """The longest prefix of the tokens `key` that the tree of `extra_key` holds, in whole pages; it counts as used.
        With a sliding window, the longest behind whose end the window is whole.

        The node ends where the match ends: one that reaches further is split. A second match changes nothing.
        """
        tokens = tuple(key)
        path = self._walk(tokens, self.key_len(len(tokens)), extra_key)
        if self.window is not None:
            path = self.window.reusable(path)
        self._use(path)
        slots: list[int] = []
        for node in path:
            slots += node.slots
        return Match(slots, path[-1])

    def insert(self, key: Sequence[int], slots: Sequence[int], extra_key: str | None = None) -> int:
        """Give the tree the slots of the tokens `key`; returns how many of them it already held, in whole pages.

        Where it held a slot it keeps its own. Of `slots`, `[0, returned)` stay the caller's, who frees those that are
        not the tree's already; `[returned, key_len(len(key)))` are the tree's; the rest stay the caller's. Raises
        ValueError when there are fewer slots than keys in whole pages.
        """
        tokens = tuple(key)
        end = self.key_len(len(tokens))
        if len(slots) < end:
            raise ValueError(f"{len(slots)} slots for {len(tokens)} tokens; the tree takes {end} of them")
        path = self._walk(tokens, end, extra_key)
        held = sum([len(node.slots) for node in path])
        if self.window is not None:
            self._revive(self.window, path, slots)
        if held < end:
            taken = list(slots[held:end])
            behind = held + (self.window.without(taken) if self.window is not None else 0)
            leaf = path[-1]
            for start, stop in ((held, behind), (behind, end)):
                if start < stop:
                    leaf = self._add(leaf, tokens[start : stop + self._beyond], list(slots[start:stop]))
            if self._watcher:
                self._watcher.inserted(extra_key, tokens[: end + self._beyond], held, taken)
        self._use(path)
        return held

    def _add(self, parent: TreeNode, tokens: tuple[int, ...], taken: list[int]) -> TreeNode:
        leaf = self._made_node(parent, tokens, taken, 0)
        parent.children[self._first_page(leaf.tokens)] = leaf
        self.total += len(taken)
        self.evictable += len(taken)
        if self.window is not None:
            self.window.take(leaf)
        return leaf

    def _revive(self, window: TreeWindow, path: list[TreeNode], slots: Sequence[int]) -> None:
        """Give the tombstones of a path, which grows by what is split, the window slots that `slots` still have."""
        at = 0
        for node in list(path):
            start, at = at, at + len(node.slots)
            if node.has_window:
                continue
            behind = window.without(slots[start:at])
            if behind == len(node.slots):
                continue
            if behind:
                path.insert(path.index(node), self._split(node, behind))
            window.revive(node, slots[start + behind : at])

    def lock(self, node: TreeNode) -> None:
        """Keep the path from the root to `node` until `unlock`. A lock brings no evicted node back."""
        if self._watcher:
            self._watcher.locked(node)
        if self.window is not None:
            self.window.lock(node, self._split)
        at: TreeNode | None = node
        while at is not None:
            at.lock_ref += 1
            if at.lock_ref == 1:
                self.evictable -= len(at.slots)
                self.protected += len(at.slots)
            at = at.parent

    def unlock(self, node: TreeNode) -> None:
        """Take back one lock. One too many leaves a count below 0, and the next lock protects nothing."""
        if self._watcher:
            self._watcher.unlocked(node)
        if self.window is not None:
            self.window.unlock(node)
        at: TreeNode | None = node
        while at is not None:
            at.lock_ref -= 1
            if at.lock_ref == 0:
                self.evictable += len(at.slots)
                self.protected -= len(at.slots)
            at = at.parent

    def evict(self, num_tokens: int) -> int:
        """Free at least `num_tokens` slots, or all of the nodes without a lock; returns how many were freed.

        Leaves go whole, the least recently used first; a parent that lost its last child is a leaf.
        """
        gone: dict[int, TreeNode] = {}
        freed = 0
        for node in self._by_use.values():
            if freed >= num_tokens:
                break
            if node.lock_ref <= 0 and not node.children and node.number not in gone:
                freed += self._cut(node, gone)
        self._free(gone)
        return freed

    def evict_window(self, num_tokens: int) -> int:
        """Give up at least `num_tokens` window slots, or all that no lock keeps; returns how many. Inner nodes become
        tombstones, leaves go with their full slots; the least recently used first.
        """
        assert self.window is not None
        gone: dict[int, TreeNode] = {}
        given_up = 0
        for node in self._by_use.values():
            if given_up >= num_tokens:
                break
            if not node.has_window or node.window_lock_ref > 0 or node.number in gone:
                continue
            if node.children:
                self.window.bury(node)
            elif node.lock_ref <= 0:
                self._cut(node, gone)
            else:
                continue
            given_up += len(node.slots)
        self._free(gone)
        return given_up

    def _cut(self, node: TreeNode, gone: dict[int, TreeNode]) -> int:
        """Take a leaf out of the tree, and the tombstones above it that end nothing any more; returns how many slots
        that frees.
        """
        freed = 0
        while True:
            assert node.parent is not None
            del node.parent.children[self._first_page(node.tokens)]
            gone[node.number] = node
            freed += len(node.slots)
            node = node.parent
            if node.has_window or node.children or node.lock_ref > 0:  # a root counts as having its window
                return freed

    def _free(self, gone: dict[int, TreeNode]) -> None:
        if not gone:
            return
        freed = [slot for node in gone.values() for slot in node.slots]
        for node in gone.values():
            del self._by_use[node.number]
            if self.window is not None:
                self.window.forget(node)
        self.total -= len(freed)
        self.evictable -= len(freed)
        if self._watcher:
            self._watcher.evicted(freed)
        self._allocator.free(freed)

    def path_slots(self, node: TreeNode) -> list[int]:
        """The slots on the path from the root to `node`, in key order."""
        runs = []
        at: TreeNode | None = node
        while at is not None:
            runs.append(at.slots)
            at = at.parent
        return [slot for run in reversed(runs) for slot in run]

    def entries(self) -> Iterator[Entry]:
        """Every node but the roots, a parent before its children. The tree may not change meanwhile."""
        for extra_key, root in self._roots.items():
            waiting: list[tuple[TreeNode, tuple[int, ...], int]] = [(root, (), 0)]
            while waiting:
                node, above, start = waiting.pop()
                tokens = above[:start] + node.tokens
                if node is not root:
                    yield Entry(extra_key, tokens, start, node)
                start += len(node.slots)
                waiting += [(child, tokens, start) for child in reversed(node.children.values())]

    def _walk(self, tokens: tuple[int, ...], end: int, extra_key: str | None) -> list[TreeNode]:
        """The path, root first, that holds the longest prefix of the first `end` keys; its last node ends there."""
        node = self._roots.get(extra_key)
        if node is None:
            node = self._roots[extra_key] = TreeNode(0, None, (), [])
        path = [node]
        at, beyond, page = 0, self._beyond, self.page_size + self._beyond
        while at < end:
            child = node.children.get(tokens[at : at + page])
            if child is None:
                break
            stop = at + len(child.slots)
            if tokens[at : stop + beyond] != child.tokens:
                path.append(self._split(child, self._shared(child, tokens, at)))
                break
            path.append(child)
            node, at = child, stop
        return path

    def _shared(self, node: TreeNode, tokens: tuple[int, ...], at: int) -> int:
        """How many keys a node shares with `tokens` from `at` on, in whole pages: its first, and not all of them.

        By halves, each compared as one slice: linear in time, and without a loop over keys.
        """
        page_size, beyond, ours = self.page_size, self._beyond, node.tokens
        low, high = page_size, len(node.slots) - page_size
        while low < high:
            middle = low + -(-(high - low) // (2 * page_size)) * page_size
            if ours[low : middle + beyond] == tokens[at + low : at + middle + beyond]:
                low = middle
            else:
                high = middle - page_size
        return low

    def _split(self, node: TreeNode, length: int) -> TreeNode:
        """Put the first `length` keys of a node, not all, in a parent of their own, and return that.

        `node` stays the end of its path, so whoever holds it holds the same prefix as before, and keeps its age.
        """
        assert node.parent is not None
        upper = self._made_node(node.parent, node.tokens[: length + self._beyond], node.slots[:length], node.lock_ref)
        upper.has_window, upper.window_lock_ref = node.has_window, node.window_lock_ref
        node.parent.children[self._first_page(upper.tokens)] = upper
        node.parent, node.tokens, node.slots = upper, node.tokens[length:], node.slots[length:]
        upper.children[self._first_page(node.tokens)] = node
        return upper

    def _made_node(self, parent: TreeNode, tokens: tuple[int, ...], slots: list[int], lock_ref: int) -> TreeNode:
        self._made += 1
        node = self._by_use[self._made] = TreeNode(self._made, parent, tokens, slots, lock_ref)
        return node

    def _use(self, path: list[TreeNode]) -> None:
        move = self._by_use.move_to_end
        for node in path[:0:-1]:  # the root has no age
            move(node.number)

    def _first_page(self, tokens: tuple[int, ...]) -> tuple[int, ...]:
        return tokens[: self.page_size + self._beyond]
