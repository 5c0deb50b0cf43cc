"""The relay: how a launch gets what the launch before it left on the device, without a look of the host.

Every launch takes an entry for each row of its batch, padding included, from a ring. The device writes there what the
request's next launch begins with, and the host hands the index on: it travels with the batch, through filters and
merges, index by index beside the requests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from specsim.engine.config import EngineConfig


class Left(NamedTuple):
    """What a launch left for the next one: whose it is, and the root of the next tree."""

    key: tuple[str, int]
    root: int


class Ring:
    """The entries. A launch's are consecutive, and it takes as many as the largest batch has rows."""

    def __init__(self, config: EngineConfig) -> None:
        self._padded_rows = config.rows
        self.entries: list[Left | None] = [None] * ring_size(config)
        self._next = 0

    def take(self, count: int) -> list[int]:
        """Indices for the `count` requests of a launch."""
        first = self._next
        self._next = (first + max(count, self._padded_rows)) % len(self.entries)
        return [(first + i) % len(self.entries) for i in range(count)]


def ring_size(config: EngineConfig) -> int:
    """Entries that are read late must outlive every launch between: a running request waits while each other row
    is filled by launches of its own, and all of them are padded.
    """
    launches = -(-config.context_len // config.chunk_size) if config.chunk_size else 1
    return (config.rows * launches + 2) * config.rows


@dataclass(slots=True)
class Futures:
    """The ring indices of a batch, in the order of its requests."""

    indices: list[int] = field(default_factory=list)

    def filter(self, kept: Sequence[int]) -> None:
        """Keep the entries of the requests that stay, which stood at the places `kept`."""
        self.indices = [self.indices[place] for place in kept]

    def merge(self, other: Sequence[int]) -> None:
        self.indices = [*self.indices, *other]
