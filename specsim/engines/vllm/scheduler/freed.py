"""Who gives blocks of the KV cache back, as the world's ledger notes it. The release's pool is watched from outside:
its methods are called as they are.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

from specsim.world.ledger import Freed

POOL = "/v1/core/block_pool.py"
"""The release's file whose functions free what others have them free."""


class Holder(Protocol):
    """What holds the KV of blocks."""

    def freed(self, blocks: Sequence[int], by: Freed) -> None:
        """Nobody has these blocks any more."""

    def revived(self, blocks: Sequence[int]) -> None:
        """Somebody has them again, with what was in them when they were freed."""


def watch(pool: Any, holder: Holder, below: Callable[[str], str]) -> None:
    """Tell `holder` from now on which blocks nobody has any more, and which somebody has again. `below(file)` is the
    name of a file of the release.
    """
    free, touch = pool.free_blocks, pool.touch

    def freed(blocks: Iterable[Any], *arguments: Any, **named: Any) -> None:
        given = list(blocks)
        free(given, *arguments, **named)
        numbers = [block.block_id for block in given if block.ref_cnt == 0 and not block.is_null]
        if numbers:
            holder.freed(numbers, _caller(sys._getframe(1), below))

    def touched(blocks: Sequence[Any]) -> None:
        numbers = [block.block_id for block in blocks if block.ref_cnt == 0 and not block.is_null]
        touch(blocks)
        if numbers:
            holder.revived(numbers)

    pool.free_blocks, pool.touch = freed, touched


def _caller(frame: Any, below: Callable[[str], str]) -> Freed:
    """The innermost function outside the pool."""
    while frame.f_code.co_filename.endswith(POOL):
        frame = frame.f_back
    return Freed(frame.f_code.co_qualname, f"{below(frame.f_code.co_filename)}:{frame.f_lineno}")
