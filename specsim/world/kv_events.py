"""What an engine publishes of its prefix cache: KV cache events, by which routers know what it has."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


class BlockId(NamedTuple):
    """A block as events name it: its hash, which is of its tokens and of all blocks before it, and the group of layers
    whose KV it has.
    """

    hash: int
    group: int = 0


class Stored(NamedTuple):
    """Blocks are in the prefix cache from now on: those of these hashes, one behind the other, with these `tokens`
    together. The first one is behind the block of the hash `parent`, None for a sequence that begins with it. Where a
    hash is of tokens behind its block, too, `ahead` has these for each block. `tier` is the memory that has them, by
    the engine's name; "" where it does not say.
    """

    hashes: tuple[int, ...]
    parent: int | None
    tokens: tuple[int, ...]
    block_size: int
    group: int = 0
    ahead: tuple[tuple[int, ...], ...] = ()
    tier: str = ""

    @property
    def blocks(self) -> tuple[BlockId, ...]:
        return tuple(BlockId(each, self.group) for each in self.hashes)


class Removed(NamedTuple):
    """They are no longer in it, or not in the memory `tier`."""

    hashes: tuple[int, ...]
    group: int = 0
    tier: str = ""

    @property
    def blocks(self) -> tuple[BlockId, ...]:
        return tuple(BlockId(each, self.group) for each in self.hashes)


class Cleared(NamedTuple):
    """No block is in it any more."""


Event = Stored | Removed | Cleared


@dataclass(frozen=True, slots=True)
class Published:
    """Events that were published together, and the blocks that a new request would find in the prefix cache then."""

    events: tuple[Event, ...]
    cached: tuple[BlockId, ...]


class CachedBlock(NamedTuple):
    """A block of the prefix cache, the tokens of its sequence up to its end, and those behind it that its hash is of,
    too.
    """

    id: BlockId
    tokens: tuple[int, ...]
    ahead: tuple[int, ...] = ()
