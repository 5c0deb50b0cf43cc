"""The model that is none, under a release's own runner: a forward pass, a sampling, a verification and a drafting are
one launch each on the virtual device.

A pass reads the KV of every position of a request by the block table, and writes that of its tokens to the slots, that
the runner gives it; KV is a hash of the tokens up to there. The first stage of a pipeline reads tokens and hands on the
hashes of their prefixes, which the next one writes. The last one samples, of logits that the hash ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from specsim.engines.vllm.scheduler.pools import KvOwner, read, slots_of, write
from specsim.world.hash_model import FIRST_TOKEN, VOCABULARY, Prefixes, extended, likely, next_token
from specsim.world.kv import REJECTED, Kv
from specsim.world.scheduler import Setup

_HASH = 2**62 - 1
"""Bits of a hash: what nobody has written is none."""


@dataclass(frozen=True, slots=True)
class BatchSeat(KvOwner):
    """A request of a batch. Its last `drafts` tokens are drafts; `blocks` are those that the scheduler has for it, by
    group of layers.
    """

    drafts: int
    blocks: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Pass:
    """What a forward pass reads: the release's InputBatch, and by group of layers the block tables, int32 [requests,
    blocks], and the slots, int64 [groups, tokens].
    """

    seats: Sequence[BatchSeat]
    batch: Any
    tables: tuple[Any, ...]
    slots: Any


@dataclass(frozen=True, slots=True)
class Row:
    """A request in a pass: the places of its tokens, how many it has with them, and its block tables."""

    seat: BatchSeat
    span: slice[int, int, None]
    length: int
    tables: Sequence[Any]

    @property
    def first(self) -> int:
        """The position of its first token in the pass."""
        return self.length - (self.span.stop - self.span.start)

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

    def _forward(self, seats: Sequence[BatchSeat], arrays: Sequence[Any], hidden: Any) -> None:
        positions, starts, lengths, slots, *tables, given = arrays
        rows = [
            Row(seat, slice(int(starts[at]), int(starts[at + 1])), int(lengths[at]), [table[at] for table in tables])
            for at, seat in enumerate(seats)
        ]
        for row in self._in_order(rows, slots):
            self._compare(row, int(positions[row.span.start]))
            done = max(row.first, 0)
            tables = [slots_of(table, done, self.setup.page_size) for table in row.tables]
            prefix = read(self.kv, row.seat, row.phase, tables, done, self.setup.window)
            hidden[row.span] = self._extend(row, prefix, given[row.span].tolist(), slots[:, row.span])

    def _in_order(self, rows: Sequence[Row], slots: Any) -> list[Row]:
        """A layer writes the KV of all rows before any reads: a row that reads what another one writes comes later."""
        writer = {slot: number for number, row in enumerate(rows) for slot in slots[0, row.span].tolist()}
        ordered: dict[int, Row] = {}

        def visit(number: int, above: tuple[int, ...]) -> None:
            row = rows[number]
            reads = slots_of(row.tables[0], max(row.first, 0), self.setup.page_size).tolist()
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

    def _extend(self, row: Row, prefix: int, given: Sequence[int], slots: Any) -> list[int]:
        seat, made, right = row.seat, list[int](), True
        known = len(given) - seat.drafts
        for at, one in enumerate(given):
            prefix = extended(prefix, one) if self.is_first else one
            right = right and (at < known or prefix == seat.prefixes.of(row.first + at + 1))
            write(self.kv, seat, slots[:, at].tolist(), prefix if right else REJECTED)
            if at == known - 1 and prefix != (expected := seat.prefixes.of(row.first + known)):
                self.kv.wrong(seat, row.phase, "input", row.first + at, int(slots[0, at]), expected, prefix)
            made.append(prefix)
        return made

    # ---- sampling and drafting, on the last stage

    def logits(self, hidden: Any) -> Any:
        """float32 [rows, VOCABULARY]: 0 for the most likely token, -1 for the next one, and so on."""
        made = unwritten((hidden.shape[0], VOCABULARY), torch.float32)

        def rank(access: Any) -> None:
            for number, row in enumerate(access.host(hidden).tolist()):
                access.host(made)[number, likely(row & _HASH, len(_RANKED))] = _RANKED
                access.host(made)[number, :FIRST_TOKEN] = -VOCABULARY

        self.device.launch(rank, [hidden], [made], "logits")
        return made

    def sample(self, logits: Any, batch: Any) -> tuple[Any, Any]:
        """int64 [requests, 1]: the most likely token of each; int32 [requests]: that it is one."""
        tokens = unwritten((batch.num_reqs, 1))

        def sample(access: Any) -> None:
            access.host(tokens)[:, 0] = access.host(logits).argmax(-1)

        self.device.launch(sample, [logits], [tokens], "sample")
        return tokens, batch.seq_lens.new_ones(batch.num_reqs)

    def verify(self, logits: Any, batch: Any, invalid: Any = None) -> tuple[Any, Any]:
        """int64 [requests, steps + 1]: the tokens up to the first draft that is wrong, and the one that is right there,
        then 0; int32 [requests]: how many those are. `invalid`, bool [rows], are drafts to reject.
        """
        tokens, counts = unwritten((batch.num_reqs, self.setup.steps + 1)), unwritten(batch.num_reqs, torch.int32)
        reads = [logits, batch.input_ids, batch.logits_indices, batch.cu_num_logits]

        def verify(access: Any) -> None:
            best = access.host(logits).argmax(-1).tolist()
            ids, at, starts = (access.host(tensor).tolist() for tensor in reads[1:])
            is_invalid = access.host(invalid).tolist() if invalid is not None else [False] * len(best)
            for request in range(batch.num_reqs):
                begin, end = starts[request], starts[request + 1]
                said = [best[begin]]
                while begin + len(said) < end:
                    row = begin + len(said)
                    if is_invalid[row] or ids[at[row]] != said[-1]:
                        break
                    said.append(best[row])
                access.host(tokens)[request] = torch.tensor([*said, *[0] * (self.setup.steps + 1 - len(said))])
                access.host(counts)[request] = len(said)

        self.device.launch(verify, [*reads, *([invalid] if invalid is not None else [])], [tokens, counts], "verify")
        return tokens, counts

    def draft(self, seats: Sequence[BatchSeat], batch: Any, rejected: Any, last: Any, right: Sequence[int]) -> Any:
        """int64 [requests, steps]: drafts behind the `last` tokens that were sampled, int64 [rows, 1]. By request so
        many of them are right.
        """
        drafts = unwritten((batch.num_reqs, self.setup.steps))
        reads = [self._hidden, last, rejected, batch.query_start_loc, batch.idx_mapping, batch.seq_lens]

        def draft(access: Any) -> None:
            rows, token, wrong, starts, index, lengths = (access.host(tensor).tolist() for tensor in reads)
            for request, count in enumerate(right):
                at, known = starts[request + 1] - 1 - wrong[request], lengths[request] - wrong[request] + 1
                prefix = extended(rows[at] & _HASH, token[index[request]][0])
                made = self._drafts(seats[request].prefixes, known, prefix, count)
                access.host(drafts)[request] = torch.tensor(made)

        self.device.launch(draft, reads, [drafts], "draft")
        return drafts

    def _drafts(self, prefixes: Prefixes, known: int, prefix: int, right: int) -> list[int]:
        """Behind the first `known` tokens, whose hash is `prefix`."""
        made = []
        for step in range(self.setup.steps):
            is_right = prefix == prefixes.of(known + step)
            one = prefixes.token(known + step) if is_right else next_token(prefix)
            made.append(one if step < right else next(other for other in likely(prefix, 2) if other != one))
            prefix = extended(prefix, one)
        return made


_RANKED = -torch.arange(VOCABULARY - FIRST_TOKEN, dtype=torch.float32)


def unwritten(shape: Any, dtype: torch.dtype = torch.int64) -> Any:
    """A tensor for a launch to write."""
    return torch.empty(shape, dtype=dtype, device="cuda")
