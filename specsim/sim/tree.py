"""Trees on plain lists: mask and position of every node, and what a node computes from what its mask lets it read.

The masks are those of the reference's `build_tree`; a test holds them equal.
"""

from __future__ import annotations

from typing import NamedTuple

from specsim.sim import model


class Tree(NamedTuple):
    """masks [ndt]: bit `p` of a node's row is the position `p` of the prefix, bit `verified_seq_len + n` the node `n`.
    positions [ndt]: the position that each node stands for.
    """

    masks: list[int]
    positions: list[int]


def build_tree(parents: list[int], verified_seq_len: int) -> Tree:
    """Mask and position of every node of a tree whose root follows `verified_seq_len` tokens."""
    masks = [(2 << verified_seq_len) - 1]
    positions = [verified_seq_len]
    for node in range(1, len(parents)):
        parent = parents[node]
        masks.append(masks[parent] | 1 << verified_seq_len + node)
        positions.append(positions[parent] + 1)
    return Tree(masks, positions)


class Attention:
    """The target's forward over one tree.

    A node's fingerprint is made from its token, its position, and the KV that its mask lets it read. When that is the
    prefix and the node's own path, and the position is the path's end, it is the fingerprint of the sequence; anything
    else is a fingerprint of its own.
    """

    __slots__ = ("_kv", "_read", "_start")

    def __init__(self, chain: list[int], state: int | None = None) -> None:
        """`state` is the recurrent state behind `chain`, left out for what it has to be."""
        self._start = len(chain)
        self._kv = list(chain)
        self._read = {(1 << self._start) - 1: chain[-1] if state is None else state}

    def node(self, token: int, mask: int, position: int) -> int:
        """The fingerprint of the next node; its KV can be read by the nodes after it."""
        before = mask ^ 1 << len(self._kv)
        read = self._read.get(before)
        if read is None or position != before.bit_count():
            read = self._mixed(before, position)
        fingerprint = model.extend(read, token)
        self._kv.append(fingerprint)
        self._read[mask] = fingerprint
        return fingerprint

    def _mixed(self, mask: int, position: int) -> int:
        mixed = model.extend(model.EMPTY, position)
        for at, fingerprint in enumerate(self._kv):
            if mask >> at & 1:
                mixed = model.extend(mixed, fingerprint)
        return mixed
