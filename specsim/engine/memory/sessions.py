"""Streaming sessions: what one turn leaves in memory for the next.

Between turns a session owns a row and the slots `[protected, allocated)` of it; those before are the tree's, which
keeps them by the lock of the session's first turn on `node`. `claim` is the length whose KV holds, or will hold when
launched work is done, exactly the session's tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from specsim.engine.memory.tree_node import TreeNode


@dataclass(slots=True)
class SessionSlot:
    """The memory of one session between turns."""

    row: int
    claim: int
    allocated: int
    protected: int = 0
    node: TreeNode | None = None
    evicted: int = 0  # positions whose slots of a sliding window were given back


class Sessions:
    """Sessions by id. A session without a slot has no memory yet, or is closed."""

    def __init__(self) -> None:
        self.slots: dict[str, SessionSlot] = {}
