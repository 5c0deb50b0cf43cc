"""The window slots of a radix cache: which of its nodes have them, which are locked, and what is given up.

A node owns full slots always, and the slots of a sliding window until they are given up: then it is a tombstone, whose
full slots stay. A prefix can be reused where the window behind its end is whole, so a match ends there, and a lock
keeps, beside the path, the window behind the node. No leaf is a tombstone: nothing would ever end there.

Source: SGLang's radix cache for sliding windows; the frontier in bigram leaves sgl-project/sglang#34870.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specsim.engine.memory.allocator import ceil_to
from specsim.engine.memory.swa import SwaAllocator
from specsim.engine.memory.tree_node import TreeNode


class TreeWindow:
    """Window slots of a tree's nodes, for a `window` of at least 1 position.

    `evictable`  slots of the full pool whose window slots can be given up
    `protected`  those whose window slots a lock keeps
    """

    def __init__(self, swa: SwaAllocator, window: int) -> None:
        self.evictable = self.protected = 0
        self._swa = swa
        self.window = window
        self._kept = ceil_to(window, swa.page_size)  # a lock keeps whole pages

    def reusable(self, path: list[TreeNode]) -> list[TreeNode]:
        """The longest beginning of a path, root first, that has all window slots behind its end."""
        since: int | None = None  # positions since the last tombstone
        end = 1
        for place, node in enumerate(path[1:], 2):
            if not node.has_window:
                since = 0
                continue
            since = None if since is None else since + len(node.slots)
            if since is None or since >= self.window:
                end = place
        return path[:end]

    def without(self, slots: Sequence[int]) -> int:
        """How many of the first slots, in whole pages, have no window slot."""
        found = (at for at, slot in enumerate(slots) if self._swa.swa_slots[slot])
        return next(found, len(slots))

    def take(self, node: TreeNode) -> None:
        """A node is new: its slots have window slots, or none has."""
        node.has_window = not self.without(node.slots)
        if node.has_window:
            self.evictable += len(node.slots)

    def revive(self, node: TreeNode, slots: Sequence[int]) -> None:
        """Hand a tombstone the window slots of `slots`, which are of the same positions."""
        self._swa.hand_over(slots, node.slots)
        node.has_window = True
        self.evictable += len(node.slots)

    def lock(self, node: TreeNode, split: Callable[[TreeNode, int], TreeNode]) -> None:
        """Keep the window behind a node. Its end is made the end of a node, so that `unlock` finds it."""
        left, at = self._kept, node
        while left > 0 and at.parent is not None:
            if len(at.slots) > left:
                split(at, len(at.slots) - left)
            at.window_lock_ref += 1
            if at.window_lock_ref == 1:
                self.evictable -= len(at.slots)
                self.protected += len(at.slots)
            left -= len(at.slots)
            at = at.parent

    def unlock(self, node: TreeNode) -> None:
        left, at = self._kept, node
        while left > 0 and at.parent is not None:
            at.window_lock_ref -= 1
            if at.window_lock_ref == 0:
                self.evictable += len(at.slots)
                self.protected -= len(at.slots)
            left -= len(at.slots)
            at = at.parent

    def bury(self, node: TreeNode) -> None:
        """Give up the window slots of a node; its full slots stay."""
        self._swa.free_swa(node.slots)
        self.forget(node)

    def forget(self, node: TreeNode) -> None:
        """The window slots of a node are gone."""
        if node.has_window:
            self.evictable -= len(node.slots)
        node.has_window = False
