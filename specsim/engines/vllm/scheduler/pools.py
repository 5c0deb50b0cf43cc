"""The KV of an engine's layers, by blocks: the pool of full attention, and the one of a sliding window.

Their blocks have numbers of one kind, and no block is of both: so each pool has a slot for every block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from specsim.engines.vllm.scheduler.imports import PAD_SLOT
from specsim.world.hash_model import EMPTY, Prefixes
from specsim.world.kv import Ints, Kv, Reader
from specsim.world.ledger import Freed

FULL, WINDOW = "full", "window"


class KvRequest(Reader, Protocol):
    """A request that has KV."""

    @property
    def prefixes(self) -> Prefixes: ...


@dataclass(frozen=True, slots=True)
class KvOwner:
    """See KvRequest. It has KV of its own."""

    rid: str
    prefixes: Prefixes
    is_read: bool = field(default=True, kw_only=True)

    @property
    def owner(self) -> str:
        return self.rid


def slots_of(blocks: Sequence[int], count: int, block_size: int) -> Ints:
    """int64 [count]: the slots of a request's first positions."""
    positions = np.arange(count)
    return np.asarray(blocks, np.int64)[positions // block_size] * block_size + positions % block_size


def read(kv: Kv, seat: KvRequest, phase: str, slots: Sequence[Ints], count: int, window: int) -> int:
    """The hash of a request's first `count` tokens, as the KV says that the first query of a launch attends to.
    `slots` are those of its positions by pool.
    """
    if not count:
        return EMPTY
    expected = seat.prefixes.first(count)
    full, *windows = slots
    prefix = kv.read(seat, phase, FULL, full[:count], expected, 0)
    low = max(0, count + 1 - window)
    for sliding in windows if low < count else ():
        prefix = kv.read(seat, phase, WINDOW, sliding[low:count], expected[low:], low, prefix)
    return prefix


def write(kv: Kv, seat: KvRequest, slots: Sequence[int], value: int) -> None:
    """To a slot of each pool."""
    full, *windows = slots
    if full != PAD_SLOT:
        kv.write(seat, full, value)
    for window in windows:
        if window != PAD_SLOT:
            kv.write_window(seat, window, value)


def slots_in(block: int, block_size: int) -> range:
    return range(block * block_size, (block + 1) * block_size)


def note_freed(kv: Kv, blocks: Sequence[int], block_sizes: Sequence[int], by: Freed) -> None:
    """In the ledgers of the pools, of which each has blocks of so many slots."""
    for block in blocks:
        for ledger, size in zip((kv.ledger, kv.window_ledger), block_sizes, strict=False):
            ledger.freed(slots_in(block, size), by)


def note_revived(kv: Kv, blocks: Sequence[int], block_sizes: Sequence[int]) -> None:
    """What is in them is what was written there."""
    pools = (kv.ledger, kv.full), (kv.window_ledger, kv.window)
    for block in blocks:
        for (ledger, held), size in zip(pools, block_sizes, strict=False):
            slots = slots_in(block, size)
            ledger.wrote(slots, held[slots.start : slots.stop].tolist())
