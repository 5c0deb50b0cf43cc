"""A node of the radix cache."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(slots=True, eq=False)
class TreeNode:
    """A run of whole pages below `parent`; the root of a namespace has no parent, tokens or slots.

    `tokens`    what the node's keys are made of: a token for each, and with bigrams the one after the last
    `slots`     a slot for each key
    `children`  by the tokens of the child's first page
    `lock_ref`  how many locks are held on this node or below it
    `has_window`, `window_lock_ref`  whether its slots have slots in a window's pool, and how many locks keep those
    """

    number: int
    parent: TreeNode | None
    tokens: tuple[int, ...]
    slots: list[int]
    lock_ref: int = 0
    children: dict[tuple[int, ...], TreeNode] = field(default_factory=dict)
    has_window: bool = True
    window_lock_ref: int = 0
