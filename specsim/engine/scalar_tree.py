"""Trees on plain lists: mask and position of every node, and what a node computes from what its mask lets it read.

The masks are those of the reference's `build_tree`; a test holds them equal.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from specsim.engine import model


class Tree(NamedTuple):
    """masks [ndt]: bit `p` of a node's row is the position `p` of the prefix, bit `verified_seq_len + n` the node `n`.
    positions [ndt]: the position that each node stands for.
    """

    masks: list[int]
    positions: list[int]


def build_tree(parents: list[int], verified_seq_len: int) -> Tree:
    """Mask and position of every node of a tree whose root follows `verified_seq_len` tokens."""
    return _built(tuple(parents), verified_seq_len)


@lru_cache(maxsize=1 << 12)  # chains come back again and again
def _built(parents: tuple[int, ...], verified_seq_len: int) -> Tree:
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

    __slots__ = ("_bit", "_chain", "_read")

    def __init__(self, chain: list[int], state: int | None = None) -> None:
        """`state` is the recurrent state behind `chain`, left out for what it has to be."""
        self._chain = chain
        self._bit = 1 << len(chain)
        # By the positions that are read, in the order of the nodes.
        self._read = {self._bit - 1: chain[-1] if state is None else state}

    def node(self, token: int, mask: int, position: int) -> int:
        """The fingerprint of the next node; its KV can be read by the nodes after it."""
        before = mask ^ self._bit
        self._bit <<= 1
        read = self._read.get(before)
        if read is None or position != before.bit_count():
            read = self._mixed(before, position)
        fingerprint = self._read[mask] = model.extend(read, token)
        return fingerprint

    def _mixed(self, mask: int, position: int) -> int:
        mixed = model.extend(model.EMPTY, position)
        for at, fingerprint in enumerate([*self._chain, *list(self._read.values())[1:]]):
            if mask >> at & 1:
                mixed = model.extend(mixed, fingerprint)
        return mixed
