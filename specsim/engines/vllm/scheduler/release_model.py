"""The model that is none, under a release's own runner: a forward pass, a sampling, a verification and a drafting are
one launch each on the virtual device.

A pass reads the KV of every position of a request by the block table, and writes that of its tokens to the slots, that
the runner gives it; KV is a hash of the tokens up to there. The first stage of a pipeline reads tokens and hands on the
hashes of their prefixes, which the next one writes. The last one samples: a hash is as good as logits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from specsim.engines.vllm.scheduler.imports import PAD_SLOT
from specsim.engines.vllm.scheduler.model import POOLS
from specsim.world.hash_model import EMPTY, Prefixes, extended, likely, next_token
from specsim.world.kv import REJECTED, Ints, Kv
from specsim.world.scheduler import Setup

_HASH = 2**62 - 1
"""Bits of a hash: what nobody has written is none."""


@dataclass(frozen=True, slots=True)
class Seat:
    """A request of a batch. Its last `drafts` tokens are drafts; `blocks` are those that the scheduler has for it, by
    group of layers.
    """

    rid: str
    prefixes: Prefixes
    drafts: int
    blocks: tuple[tuple[int, ...], ...]

    @property
    def owner(self) -> str:
        return self.rid

    @property
    def is_read(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass reads: the release's InputBatch, and by group of layers the block tables, int32 [requests,
    blocks], and the slots, int64 [groups, tokens].
    """

    seats: Sequence[Seat]
    batch: Any
    tables: tuple[Any, ...]
    slots: Any


@dataclass(frozen=True, slots=True)
class Row:
    """A request in a pass: the places of its tokens, how many it has with them, and its block tables."""

    seat: Seat
    span: slice
    length: int
    tables: Sequence[Any]

    @property
    def first(self) -> int:
        """The position of its first token in the pass."""
        return self.length - len(range(self.span.start, self.span.stop))

    @property
    def phase(self) -> str:
        return "verify" if self.seat.drafts or self.first >= len(self.seat.prefixes.prompt) else "extend"


class StageModel:
    """The model of a stage. `differ(what, rid, expected, actual)` notes that the runner has something else than the
    scheduler.
    """

    def __init__(
        self, setup: Setup, device: Any, kv: Kv, differ: Callable[[str, str, str, str], None], *, is_first: bool
    ) -> None:
        self.setup, self.device, self.kv, self.differ, self.is_first = setup, device, kv, differ, is_first
        self._hidden: Any = None

    def forward(self, found: Pass, positions: Any, given: Any) -> Any:
        """int64 [tokens]: the hashes behind each token. `given` are the tokens, or what the stage before has made."""
        hidden = unwritten(positions.shape[0])
        batch = found.batch
        reads = [positions, batch.query_start_loc, batch.seq_lens, found.slots, *found.tables, given]

        def forward(access: Any) -> None:
            arrays = [access.host(tensor).numpy() for tensor in reads]
            self._forward(found.seats, arrays, access.host(hidden).numpy())

        self.device.launch(forward, reads, [hidden], "forward")
        self._hidden = hidden
        return hidden

    def _forward(self, seats: Sequence[Seat], arrays: Sequence[Any], hidden: Any) -> None:
        positions, starts, lengths, slots, *tables, given = arrays
        rows = [
            Row(seat, slice(int(starts[at]), int(starts[at + 1])), int(lengths[at]), [table[at] for table in tables])
            for at, seat in enumerate(seats)
        ]
        for row in self._in_order(rows, slots):
            self._compare(row, int(positions[row.span.start]))
            prefix = self._read(row, max(row.first, 0))
            hidden[row.span] = self._extend(row, prefix, given[row.span].tolist(), slots[:, row.span])

    def _in_order(self, rows: Sequence[Row], slots: Any) -> list[Row]:
        """A layer writes the KV of all rows before any reads: a row that reads what another one writes comes later."""
        writer = {slot: number for number, row in enumerate(rows) for slot in slots[0, row.span].tolist()}
        ordered: dict[int, Row] = {}

        def visit(number: int, above: tuple[int, ...]) -> None:
            row = rows[number]
            reads = self._slots(row.tables[0], max(row.first, 0)).tolist()
            for other in sorted({writer[slot] for slot in reads if slot in writer} - {number, *above}):
                visit(other, (*above, number))
            ordered.setdefault(number, row)

        for number in range(len(rows)):
            visit(number, ())
        return list(ordered.values())

    def _compare(self, row: Row, position: int) -> None:
        """With what the scheduler has. Where a window is past a block one of them has the null block."""
        seat = row.seat
        if row.first != position:
            self.differ("positions", seat.rid, f"{row.first}, by its length", str(position))
        for group, (table, blocks) in enumerate(zip(row.tables, seat.blocks, strict=True)):
            for number, block in enumerate(blocks[: len(table)]):
                is_past = bool(group) and 0 in (block, table[number])
                if block != table[number] and not is_past:
                    self.differ("block-table", seat.rid, f"block {block} at {number}", f"block {table[number]}")
                    return

    def _read(self, row: Row, count: int) -> int:
        if not count:
            return EMPTY
        seat, phase = row.seat, row.phase
        expected = seat.prefixes.first(count)
        full, *windows = (self._slots(table, count) for table in row.tables)
        prefix = self.kv.read(seat, phase, POOLS[0], full, expected, 0)
        low = max(0, count + 1 - self.setup.window)
        for window in windows if low < count else ():
            prefix = self.kv.read(seat, phase, POOLS[1], window[low:], expected[low:], low, prefix)
        return prefix

    def _slots(self, table: Any, count: int) -> Ints:
        size = self.setup.page_size
        positions = np.arange(count)
        return np.asarray(table, np.int64)[positions // size] * size + positions % size

    def _extend(self, row: Row, prefix: int, given: Sequence[int], slots: Any) -> list[int]:
        seat, made, right = row.seat, list[int](), True
        known = len(given) - seat.drafts
        for at, one in enumerate(given):
            before, prefix = prefix, extended(prefix, one) if self.is_first else one
            right = right and (at < known or prefix == extended(before, next_token(before)))
            self._write(seat, slots[:, at].tolist(), prefix if right else REJECTED)
            if at == known - 1 and prefix != (expected := seat.prefixes.of(row.first + known)):
                self.kv.wrong(seat, row.phase, "input", row.first + at, int(slots[0, at]), expected, prefix)
            made.append(prefix)
        return made

    def _write(self, seat: Seat, slots: Sequence[int], kv: int) -> None:
        full, *windows = slots
        if full != PAD_SLOT:
            self.kv.write(seat, full, kv)
        for window in windows:
            if window != PAD_SLOT:
                self.kv.write_window(seat, window, kv)

    # ---- sampling and drafting, on the last stage

    def sample(self, logits: Any, batch: Any) -> tuple[Any, Any]:
        """int64 [requests, 1]: the most likely token of each; int32 [requests]: that it is one."""
        tokens = unwritten((batch.num_reqs, 1))

        def sample(access: Any) -> None:
            rows = access.host(logits).tolist()
            access.host(tokens)[:, 0] = torch.tensor([next_token(row) for row in rows])

        self.device.launch(sample, [logits], [tokens], "sample")
        return tokens, batch.seq_lens.new_ones(batch.num_reqs)

    def verify(self, logits: Any, batch: Any) -> tuple[Any, Any]:
        """int64 [requests, steps + 1]: the tokens up to the first draft that is wrong, and the one that is right there,
        then 0; int32 [requests]: how many those are.
        """
        tokens, counts = unwritten((batch.num_reqs, self.setup.steps + 1)), unwritten(batch.num_reqs, torch.int32)
        reads = [logits, batch.input_ids, batch.logits_indices, batch.cu_num_logits]

        def verify(access: Any) -> None:
            rows, ids, at, starts = (access.host(tensor).tolist() for tensor in reads)
            for request in range(batch.num_reqs):
                begin, end = starts[request], starts[request + 1]
                said = [next_token(rows[begin])]
                while begin + len(said) < end and ids[at[begin + len(said)]] == said[-1]:
                    said.append(next_token(rows[begin + len(said)]))
                access.host(tokens)[request] = torch.tensor([*said, *[0] * (self.setup.steps + 1 - len(said))])
                access.host(counts)[request] = len(said)

        self.device.launch(verify, reads, [tokens, counts], "verify")
        return tokens, counts

    def draft(self, batch: Any, rejected: Any, last: Any, right: Sequence[int]) -> Any:
        """int64 [requests, steps]: drafts behind the `last` tokens that were sampled, int64 [rows, 1]. By request so
        many of them are right.
        """
        drafts = unwritten((batch.num_reqs, self.setup.steps))
        reads = [self._hidden, last, rejected, batch.query_start_loc, batch.idx_mapping]

        def draft(access: Any) -> None:
            rows, token, wrong, starts, index = (access.host(tensor).tolist() for tensor in reads)
            for request, count in enumerate(right):
                at = starts[request + 1] - 1 - wrong[request]
                prefix, made = extended(rows[at] & _HASH, token[index[request]][0]), []
                for step in range(self.setup.steps):
                    one, other = likely(prefix, 2)
                    made.append(one if step < count else other)
                    prefix = extended(prefix, one)
                access.host(drafts)[request] = torch.tensor(made)

        self.device.launch(draft, reads, [drafts], "draft")
        return drafts


def unwritten(shape: Any, dtype: torch.dtype = torch.int64) -> Any:
    """A tensor for a launch to write."""
    return torch.empty(shape, dtype=dtype, device="cuda")
