"""Where a step drafts and verifies: the KV slots that the worker reads out of the rows of a launch.

The model's device takes them from the row itself. A target that has functions of its own for it is called instead, with
the rows as they were at the launch, and the device writes to what it answers.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from specsim.engine.config import EngineConfig

Key = tuple[str, int]


class RowsAtLaunch(NamedTuple):
    """The requests of a step on the device.

    `table`    all rows of `req_to_token` at the launch, one after the other, int32
    `rows`     the row of each request
    `lengths`  positions of each request whose KV is written: its tree begins there
    """

    table: array[int]
    rows: list[int]
    lengths: list[int]


class Drafted(NamedTuple):
    """Where the drafter writes. `slots` are each request's, branch after branch and step after step in each; `copies`
    are (target slot, source slot) of the KV that is moved in before.
    """

    slots: list[list[int]]
    copies: list[tuple[int, int]]


class WrongSlots(NamedTuple):
    """A request whose slots are not those of its row: the rule's part, the expected slots and the actual ones."""

    part: str
    key: Key
    expected: list[int]
    seen: list[int]


@dataclass(frozen=True, slots=True)
class Locations:
    """A target's own functions: slots of `num_steps` steps of drafts, and of `num_draft_tokens` nodes. None: not its
    own. Those of a step's drafts are called before those of its nodes.
    """

    draft: Callable[[RowsAtLaunch, int], Drafted] | None = None
    verify: Callable[[RowsAtLaunch, int], list[list[int]]] | None = None


def draft_columns(config: EngineConfig, length: int, num_steps: int) -> list[int]:
    """Columns of a row that the drafter writes behind a sequence, branch after branch.

    With larger pages each branch of a tree has whole pages of its own: the first begins with as many positions as the
    sequence has in its last page.
    """
    if config.page_size == 1 or config.topk == 1:
        return list(range(length, length + config.topk * num_steps))
    tail = length % config.page_size
    pages = -(-(tail + num_steps) // config.page_size)
    starts = [length + branch * pages * config.page_size for branch in range(config.topk)]
    return [start + step for start in starts for step in range(num_steps)]


def tail_copies(config: EngineConfig, length: int, num_steps: int) -> list[tuple[int, int]]:
    """(target, source) columns: the last page's part of the sequence, which each later branch needs in its own page."""
    if config.page_size == 1 or config.topk == 1:
        return []
    tail = length % config.page_size
    pages = -(-(tail + num_steps) // config.page_size)
    base = length - tail
    return [
        (base + branch * pages * config.page_size + at, base + at)
        for branch in range(1, config.topk)
        for at in range(tail)
    ]


def wrong_drafts(
    config: EngineConfig, key: Key, slots: list[int], length: int, num_steps: int, seen: list[int]
) -> list[WrongSlots]:
    """The slots that a request's drafts are written to, against the `slots` of its row."""
    right = [slots[column] for column in draft_columns(config, length, num_steps) if column < len(slots)]
    return [] if seen == right else [WrongSlots("draft locations", key, right, seen)]


def wrong_copies(
    config: EngineConfig,
    requests: list[tuple[Key, list[int], int]],
    num_steps: int,
    seen: list[tuple[int, int]],
) -> list[WrongSlots]:
    """The copies of a step, against those of its `requests`, each (key, slots of its row, length)."""
    left = set(seen)
    for key, slots, length in requests:
        columns = tail_copies(config, length, num_steps)
        right = {(slots[to], slots[source]) for to, source in columns if to < len(slots)}
        if not right <= left:
            flat = [slot for pair in sorted(right) for slot in pair]
            return [WrongSlots("draft locations", key, flat, [slot for pair in sorted(right & left) for slot in pair])]
        left -= right
    if left and requests:
        return [WrongSlots("draft locations", requests[0][0], [], [slot for pair in sorted(left) for slot in pair])]
    return []
