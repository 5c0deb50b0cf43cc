"""The worker that drafts and verifies, over a virtual device: each phase of a forward pass is one launch.

Its model is `hash_model`. It reads KV as attention would, through `req_to_token` at *every* position of the prefix
(and through the mapping of the sliding window's pool), and what it reads must be what the position should hold. What
is not is a record and no exception: the schedule goes on, with tokens that are wrong as a model's would be. Not looked
at are rows of requests that have finished or were retracted: nobody reads what they compute.

How many drafts a request accepts is drawn when the pass is launched, never when it runs: what is drawn must not depend
on the order in which the device does its work.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain, repeat, zip_longest
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from specsim.engines.sglang.scheduler.configuration import FULL_LAYER
from specsim.engines.sglang.scheduler.transfers import elements_of
from specsim.world.fakes import Answers, Fake
from specsim.world.hash_model import EMPTY, Prefixes, extended, logprob_row, next_token
from specsim.world.kv import (
    REJECTED,
    UNMASKED,
    BadValue,
    BatchInput,
    Disagreement,
    Ints,
    Kv,
    Masked,
    NoSlot,
    Penalized,
    Penalties,
    Reports,
)


@dataclass(frozen=True, slots=True)
class Parts:
    """What the worker is given of a release: classes and the names of fields, which differ between families."""

    result: Callable[..., Any]  # GenerationBatchResult
    result_fields: frozenset[str]
    draft_input: Callable[..., Any]  # EagleDraftInput
    draft_fields: frozenset[str]
    bonus: str  # the field of the draft input with the last token of each request
    logits: Callable[[], Any]  # LogitsProcessorOutput


class Tables:
    """What a forward pass finds KV by."""

    def __init__(self, rows: Any, mapping: Any = None, window: int = 0, pool: Any = None) -> None:
        self.rows = rows  # req_to_token, int32 [requests, positions], on the device
        self.mapping = mapping  # full_to_swa_index_mapping, int64 [slots], on the device; None without a window
        self.window_size = window  # positions that a query attends to, itself included
        self.pool = pool  # the release's, with KV that a hierarchical cache copies; None where the worker has all KV


@dataclass(slots=True)
class Seat:
    """One request of a batch, as the launch found it."""

    request: Any
    stale: bool  # finished or retracted when the pass was launched
    prefixes: Prefixes
    accepted: int = 1  # tokens that verify keeps, the bonus token included
    grammar: Any = None
    read: int = 0  # tokens that its grammar had read when masks were made
    said: frozenset[int] = frozenset()  # tokens that may be penalized
    fed: int = 0  # verifications since its prefill, for each of which penalties were fed a token

    @property
    def rid(self) -> str:
        return str(self.request.rid)

    @property
    def owner(self) -> str:
        """Whose its KV is: its session's, else its own."""
        session = getattr(self.request, "session", None)
        return self.rid if session is None else str(session.session_id)

    def matters(self) -> bool:
        """Whether what is computed for it is used: a request that ended or was retracted meanwhile takes no result."""
        return self.is_read

    @property
    def is_read(self) -> bool:
        return not (self.stale or self.request.finished() or self.request.is_retracted)


class _Logprobs:
    """Rows of logprobs that one launch computes, when a request of the batch wants them: float32 values, one for each
    token or [requests, tokens], and beside each, as many most likely tokens as the batch says.
    """

    def __init__(self, batch: Any, *shape: int) -> None:
        self.tensors: list[torch.Tensor] = []
        self._tops: list[int] = []
        if not batch.return_logprob:
            return
        self.tensors.append(torch.empty(shape, dtype=torch.float32, device="cuda"))
        tokens = math.prod(shape[1:])
        self._tops = [int(number) for number in batch.top_logprobs_nums for _ in range(tokens)]
        if most := max(self._tops, default=0):
            for dtype in (torch.float32, torch.int64):
                self.tensors.append(torch.empty((shape[0] * tokens, most), dtype=dtype, device="cuda"))

    def write(self, access: Any, at: int, prefix: int, token: int) -> None:
        """The row of the `at`-th token, which comes after a prefix of that hash."""
        if not self.tensors:
            return
        values, *tops = (access.host(tensor).numpy() for tensor in self.tensors)
        (values.reshape(-1)[at], _token), *likely = logprob_row(prefix, token, tops[0].shape[1] if tops else 0)
        for out, column in zip(tops, zip(*likely, strict=True), strict=False):
            out[at] = column

    def put_into(self, logits: Any) -> None:
        """As the release's sampler does: for each token as many of the most likely ones as its request asks for."""
        if not self.tensors:
            return
        logits.next_token_logprobs, *tops = self.tensors
        if tops:
            values, tokens = ([rows[at][:top] for at, top in enumerate(self._tops)] for rows in tops)
            logits.next_token_top_logprobs_val, logits.next_token_top_logprobs_idx = values, tokens


class _Penalties:
    """What one verification adds to logits, and what it scales them by: float32 [requests, tokens], if anything.

    Relaxed ones, as releases have them: before each verification the last token said so far is fed, or the prompt's
    last one; a prefill begins anew. So a request's row has tokens of its own, and one for each verification.
    """

    def __init__(self, batch: Any, seats: list[Seat], fed: dict[str, int]) -> None:
        given = batch.sampling_info
        self._additive, self._scaling = given.acc_additive_penalties, given.acc_scaling_penalties
        self.tensors = [tensor for tensor in (self._additive, self._scaling) if tensor is not None]
        self._is_wanted = bool(self.tensors) or any(penalties_of(seat.request).are_some for seat in seats)
        for seat in seats if self._is_wanted else ():
            count_feed(seat, fed)

    def note(self, access: Any, at: int, seat: Seat, reports: Reports) -> None:
        """What the row of the `at`-th request has."""
        if self._is_wanted and seat.is_read:
            added, scaled = _unlike(access, self._additive, at, 0.0), _unlike(access, self._scaling, at, 1.0)
            reports.add(penalized(seat, added, scaled))


def count_feed(seat: Seat, fed: dict[str, int]) -> None:
    """Before a verification of a request: one more token is fed. `fed` counts them by request since its prefill."""
    request, rid = seat.request, seat.request.rid
    seat.said = frozenset((request.origin_input_ids[-1], *request.output_ids))
    seat.fed = fed[rid] = fed.get(rid, 0) + 1


def penalties_of(request: Any) -> Penalties:
    wanted = request.sampling_params
    return Penalties(wanted.frequency_penalty, wanted.presence_penalty, wanted.repetition_penalty)


def penalized(seat: Seat, added: dict[int, float], scaled: dict[int, float]) -> Penalized:
    return Penalized(seat.rid, penalties_of(seat.request), seat.said, seat.fed, added, scaled)


def _unlike(access: Any, tensor: Any, at: int, neutral: float) -> dict[int, float]:
    """The values of a row that are not the neutral one, by token."""
    if tensor is None:
        return {}
    row = access.host(tensor).numpy()[at]
    return {int(token): float(row[token]) for token in np.flatnonzero(row != neutral)}


class _Mirrors:
    """What the host has of what a launch reads on the device, as it is when the launch is made: the inputs that have a
    copy on the CPU, and the sum of the lengths. Attention plans by them. What a release does not keep is None there.
    """

    def __init__(self, batch: Any) -> None:
        self._copies = [
            (name, getattr(batch, name), copy.tolist())
            for name in ("req_pool_indices", "seq_lens")
            if (copy := getattr(batch, f"{name}_cpu", None)) is not None
        ]
        self._sum = batch.seq_lens_sum

    def compare(self, access: Any, seats: list[Seat], reports: Reports) -> None:
        """When the device reads them: for each request whose results are used. The sum is the host's own."""
        for name, tensor, copy in self._copies:
            for seat, there, here in zip(seats, access.host(tensor).tolist(), copy, strict=False):
                if seat.is_read and there != here:
                    reports.add_first(seat.rid, f"mirror:{name}", _mirror(name, seat.rid, there, here))
            if name == "seq_lens" and self._sum is not None and self._sum != sum(copy):
                reports.add_first("", "mirror:sum", _mirror("seq_lens_sum", "", sum(copy), self._sum))


def _mirror(name: str, rid: str, expected: int, actual: int) -> Disagreement:
    return Disagreement(f"mirror:{name}", rid, str(expected), f"{actual} on the host")


FALLBACK = 3  # a token that the model never produces: what a row computes whose inputs nobody has written


def unwritten(count: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.empty(count, dtype=dtype, device="cuda")


class Worker(Fake):
    """`forward_batch_generation` of an EAGLE worker with topk 1, and whatever else the scheduler reads of one."""

    def __init__(
        self,
        answers: Answers,
        device: Any,
        parts: Parts,
        tables: Tables,
        slots: tuple[int, int],
        draft_tokens: int,
        **given: Any,
    ) -> None:
        """`slots` are those of the full pool, and of the sliding window's."""
        super().__init__("draft_worker", answers, **given)
        self.device, self.parts, self.tables = device, parts, tables
        self.reports = Reports()
        self.kv = Kv(self.reports, *slots)
        self.keys = self._keep_in(tables.pool) if tables.pool is not None else None
        self.speculative_num_draft_tokens = draft_tokens
        self.speculative_num_steps = draft_tokens - 1
        self.topk = 1
        # The event after which the next batch may rewrite the tables that a pass reads; None for the coarse barrier.
        self.last_shared_read_runner = SimpleNamespace(shared_read_done_event=None, war_fastpath_read_done_event=None)
        self.war_fastpath_runner = self.last_shared_read_runner
        self.restart(lambda _rid, bound: bound)

    def restart(self, accept: Callable[[str, int], int]) -> None:
        """Forget all KV and records. `accept(rid, bound)` says how many tokens a verify keeps, in [1, bound]."""
        self.accept = accept
        self.reports.restart()
        self.launches = {"extend": 0, "decode": 0}
        self.kv.restart()
        self.row_users: dict[int, str] = {}  # by row the request that was last in it
        self._prefixes: dict[str, Prefixes] = {}
        self._fed: dict[str, int] = {}

    def forward_batch_generation(
        self, batch: Any, *_arguments: Any, on_publish: Any = None, grammar_barrier: Any = None, **_named: Any
    ) -> Any:
        """Launch the phases of one pass on the current stream; their outputs are tensors that nobody has written."""
        self._note_sizes(batch)
        self._note_forms(batch)
        self._wait_for_copies(batch)
        seats = [Seat(r, bool(r.finished() or r.is_retracted), self._prefixes_of(r)) for r in batch.reqs]
        if batch.forward_mode.is_extend():
            self.launches["extend"] += 1
            decoding = getattr(batch, "decoding_reqs", None) or ()
            for seat in seats:
                self._fed[seat.request.rid] = self._fed.get(seat.request.rid, 0) + 1 if seat.request in decoding else 0
            return self._extend(batch, seats, on_publish)
        self.launches["decode"] += 1
        return self._decode(batch, seats, on_publish, grammar_barrier)

    def _note_sizes(self, batch: Any) -> None:
        given = {name: getattr(batch, name) for name in ("req_pool_indices", "seq_lens")}
        if not batch.forward_mode.is_extend():
            given[self.parts.bonus] = getattr(batch.spec_info, self.parts.bonus)
        for name, tensor in given.items():
            self.reports.add(BatchInput(name, len(batch.reqs), len(tensor)))

    def _note_forms(self, batch: Any) -> None:
        """Models choose their kernels by the mode of a launch, and a kernel reads the slots of prefixes by address."""
        mode, expected = batch.forward_mode, "DECODE"
        if mode.is_extend():
            expected = "MIXED" if getattr(batch, "decoding_reqs", None) else "EXTEND"
            for request in batch.reqs:
                slots = getattr(request, "prefix_indices", None)  # gone in 0.5.22
                if slots is not None and slots.dtype != torch.int64:
                    rid = str(request.rid)
                    wrong = Disagreement("prefix-slots", rid, "int64", str(slots.dtype))
                    self.reports.add_first(rid, "prefix-slots", wrong)
        if mode.name != expected:
            self.reports.add_first("", "forward-mode", Disagreement("forward-mode", "", expected, mode.name))

    def _keep_in(self, pool: Any) -> Any:
        """Have KV be the keys of the pool, which are returned."""
        for buffer in (*pool.k_buffer, *pool.v_buffer):
            self.device.track_elements(buffer, "KV")
        keys = pool.k_buffer[FULL_LAYER]
        self.kv.full = keys.host_bytes.numpy().reshape(-1)
        return keys

    def _wait_for_copies(self, batch: Any) -> None:
        """As the release's worker does, for those that its batch was told of."""
        if (pool := self.tables.pool) is not None:
            pool.layer_transfer_counter.set_consumer(batch.hicache_consumer_index)
            pool.get_key_buffer(FULL_LAYER)

    def slot_content(self, slot: int) -> int:
        """The hash in a slot of the full pool."""
        return int(self.kv.full[slot])

    def window_content(self, slot: int) -> int:
        """The hash in a slot of the sliding window's pool."""
        return int(self.kv.window[slot])

    # ---- extend: compute the KV of the prompt, or of a part of it, and one token

    def _extend(self, batch: Any, seats: list[Seat], on_publish: Any) -> Any:
        starts = starts_of(batch)
        tokens = unwritten(len(seats), torch.int64)
        bonus = unwritten(len(seats), torch.int64)
        inputs, pool, lengths = batch.input_ids, batch.req_pool_indices, batch.seq_lens
        logprobs, mirrors = _Logprobs(batch, len(seats)), _Mirrors(batch)

        def extend(access: Any) -> None:
            mirrors.compare(access, seats, self.reports)
            given = access.host(inputs).tolist()
            out, last = access.host(tokens).numpy(), access.host(bonus).numpy()
            first = 0
            for i, (seat, row, length) in enumerate(self._rows(access, "extend", seats, pool, lengths)):
                prefix = None if row is None else self._extend_row(access, seat, row, starts[i], length, given, first)
                first += max(0, length - starts[i])
                out[i] = last[i] = FALLBACK if prefix is None else next_token(prefix)
                logprobs.write(access, i, prefix or EMPTY, int(out[i]))

        written = [tokens, bonus, *logprobs.tensors]
        self.device.launch(extend, reads=[inputs, pool, lengths], writes=written, name="extend")
        result = self._result(lengths, tokens, bonus, lengths, on_publish, None, logprobs)
        if logprobs.tensors:
            # Of an answer that is computed again after a retraction: the scheduler has its logprobs, and drops these.
            counts = [
                length - first for length, first in zip(lengths_of(batch), batch.extend_logprob_start_lens, strict=True)
            ]
            if any(counts):
                result.logits_output.input_token_logprobs = torch.zeros(sum(counts), device="cuda")
        return result

    def _extend_row(
        self, access: Any, seat: Seat, row: int, start: int, length: int, given: Sequence[int], first: int
    ) -> int | None:
        """The hash of all that the request's row holds then; None where a token is none."""
        slots = self._slots(access, "extend", seat, row, 0, length)
        prefix = self._read_prefix(access, "extend", seat, slots, start)
        known = seat.prefixes.prompt[start:length]
        is_known = start < length and given[first : first + length - start] == known
        if is_known and self.tables.mapping is None and prefix == seat.prefixes.of(start):
            # What is computed is what is expected.
            written = seat.prefixes.first(length)[start:]
            self._note_write(access, slots[start:])
            self.kv.write_all(seat, slots[start:], written)
            return seat.prefixes.of(length)
        for position in range(start, length):
            token = int(given[first + position - start])
            if token < 0:
                self._bad("extend", seat, "input_ids", token)
                return None
            prefix = extended(prefix, token)
            self._write(access, seat, int(slots[position]), prefix)
        expected = seat.prefixes.of(length)
        if prefix != expected:
            self.kv.wrong(seat, "extend", "input", length - 1, int(slots[length - 1]), expected, prefix)
        return prefix

    # ---- decode: draft, verify, and extend the draft model by what was accepted

    def _decode(self, batch: Any, seats: list[Seat], on_publish: Any, grammar_barrier: Any) -> Any:
        count, size = self.speculative_num_draft_tokens, len(seats)
        for seat in seats:
            seat.accepted = self.accept(seat.request.rid, count)
        pool, lengths, bonus = batch.req_pool_indices, batch.seq_lens, getattr(batch.spec_info, self.parts.bonus)
        slots = unwritten(size * count, torch.int64)
        tokens, last = unwritten(size * count, torch.int64), unwritten(size, torch.int64)
        accepted, new_lengths = unwritten(size, torch.int32), unwritten(size, lengths.dtype)
        logprobs, mirrors = _Logprobs(batch, size, count), _Mirrors(batch)
        penalties = _Penalties(batch, seats, self._fed)

        def draft(access: Any) -> None:
            mirrors.compare(access, seats, self.reports)
            out = access.host(slots).numpy()
            for i, (seat, row, length) in enumerate(self._rows(access, "draft", seats, pool, lengths, count)):
                if row is None:
                    out[i * count : (i + 1) * count] = 0
                    continue
                drafted = self._slots(access, "draft", seat, row, length, length + count)
                out[i * count : (i + 1) * count] = drafted
                if seat.is_read and not drafted.all():
                    position = length + int(np.argmin(drafted))
                    self.reports.add_first(seat.rid, "room", NoSlot("draft", seat.rid, position))

        def verify(access: Any) -> None:
            where, given = access.host(slots).tolist(), [*access.host(bonus).tolist(), *[-1] * size][:size]
            out, out_last = access.host(tokens).numpy(), access.host(last).numpy()
            out_accepted, out_lengths = access.host(accepted).numpy(), access.host(new_lengths).numpy()
            for i, (seat, row, length) in enumerate(self._rows(access, "verify", seats, pool, lengths, count)):
                prefixes: list[int] | None = None
                penalties.note(access, i, seat, self.reports)
                if row is not None:
                    self._note_grammar(seat, length)
                    where_of = where[i * count : (i + 1) * count]
                    prefixes = self._verify_row(access, seat, row, length, given[i], where_of)
                kept = [FALLBACK] * seat.accepted if prefixes is None else [next_token(prefix) for prefix in prefixes]
                for j, prefix in enumerate(prefixes or ()):
                    logprobs.write(access, i * count + j, prefix, kept[j])
                out[i * count : (i + 1) * count] = [*kept, *[0] * (count - len(kept))]
                out_last[i], out_accepted[i], out_lengths[i] = kept[-1], len(kept), length + len(kept)

        def draft_extend(access: Any) -> None:
            for seat, row, length in self._rows(access, "draft", seats, pool, lengths, count):
                if row is not None:
                    self._slots(access, "draft", seat, row, 0, length + count)

        launch = self.device.launch
        launch(draft, reads=[pool, lengths], writes=[slots], name="draft")
        self._make_masks(seats, grammar_barrier, batch.has_grammar)
        written = [tokens, accepted, last, new_lengths, *logprobs.tensors]
        launch(verify, reads=[pool, lengths, bonus, slots, *penalties.tensors], writes=written, name="verify")
        verified = torch.cuda.Event()
        verified.record()
        result = self._result(
            new_lengths, tokens, last, new_lengths, on_publish, verified, logprobs, accept_lens=accepted
        )
        launch(draft_extend, reads=[pool, lengths, tokens], name="draft_extend")
        return result

    def _make_masks(self, seats: list[Seat], barrier: Any, has_grammar: bool) -> None:
        """On the host, while the target runs: masks are made from what the grammars have read by now, of a batch that
        has one, as it says.
        """
        if has_grammar and barrier is not None:
            barrier()  # feeds them the tokens of the batch before
        for seat in seats:
            seat.grammar = seat.request.grammar
            if seat.grammar is not None:
                seat.read = seat.grammar.read if has_grammar else UNMASKED

    def _note_grammar(self, seat: Seat, length: int) -> None:
        if seat.grammar is not None and seat.is_read:
            said = length + 1 - len(seat.request.origin_input_ids)  # the bonus token is said, and not yet in KV
            self.reports.add(Masked(seat.rid, said, len(seat.grammar.tokens), seat.read))

    def _verify_row(
        self, access: Any, seat: Seat, row: int, length: int, bonus: int, slots: Sequence[int]
    ) -> list[int] | None:
        """The hashes of what comes before each token that it keeps; None where there is no bonus token."""
        prefix = self._read_prefix(access, "verify", seat, self._slots(access, "verify", seat, row, 0, length), length)
        if bonus < 0:
            self._bad("verify", seat, "bonus token", bonus)
            return None
        if bonus != (expected := seat.prefixes.token(length)):
            self.kv.wrong(seat, "verify", "input", length, slots[0], expected, bonus)
        before, token = [], bonus
        for j, slot in enumerate(slots):
            if j >= seat.accepted:
                self._write(access, seat, slot, REJECTED)
                continue
            prefix = extended(prefix, token)
            self._write(access, seat, slot, prefix)
            token = next_token(prefix)
            before.append(prefix)
        return before

    # ---- what all phases share

    def _result(
        self,
        lengths: Any,
        tokens: Any,
        bonus: Any,
        new_lengths: Any,
        on_publish: Any,
        verified: Any,
        logprobs: _Logprobs,
        **more: Any,
    ) -> Any:
        parts, size = self.parts, len(lengths)
        fields = {parts.bonus: bonus, "new_seq_lens": new_lengths, "verify_done": verified}
        draft_input = parts.draft_input(**_only(parts.draft_fields, fields))
        if on_publish is not None:
            on_publish(new_lengths)
        draft_input.topk_p = torch.ones((size, 1), device="cuda")
        draft_input.topk_index = torch.zeros((size, 1), dtype=torch.int64, device="cuda")
        draft_input.hidden_states = torch.zeros((size, 1), device="cuda")
        logits = parts.logits()
        logprobs.put_into(logits)
        fields = {
            "logits_output": logits,
            "next_token_ids": tokens,
            "next_draft_input": draft_input,
            "can_run_cuda_graph": False,
            "new_seq_lens": new_lengths,
            "speculative_num_draft_tokens": self.speculative_num_draft_tokens,
            **more,
        }
        return parts.result(**_only(parts.result_fields, fields))

    def _rows(
        self, access: Any, phase: str, seats: list[Seat], pool: Any, lengths: Any, ahead: int = 0
    ) -> list[tuple[Seat, int | None, int]]:
        """(seat, its row of `req_to_token`, its sequence length); None and 0 where either is no possible value, or is
        not there.
        """
        rows, width = self.tables.rows.shape
        found: list[tuple[Seat, int | None, int]] = []
        given = zip_longest(access.host(pool).tolist(), access.host(lengths).tolist())
        for seat, (row, length) in zip(seats, chain(given, repeat((None, None))), strict=False):
            if row is None or length is None:
                found.append((seat, None, 0))
            elif not 0 <= row < rows:
                self._bad(phase, seat, "req_pool_indices", row)
                found.append((seat, None, 0))
            elif not 0 < length <= width - ahead:
                self._bad(phase, seat, "seq_lens", length)
                found.append((seat, None, 0))
            else:
                self.row_users[row] = seat.rid
                found.append((seat, row, length))
        return found

    def _slots(self, access: Any, phase: str, seat: Seat, row: int, low: int, high: int) -> Ints:
        """int64 [high - low]: the slots of these positions of a row, now; 0 for what is none of the pool's."""
        rows = self.tables.rows
        start = row * rows.shape[1]
        access.read(rows, np.arange(start + low, start + high), seat.matters)
        slots: Ints = access.host(rows).numpy()[row, low:high].astype(np.int64)
        outside = (slots < 0) | (slots >= len(self.kv.full))
        if outside.any():
            self._bad(phase, seat, "req_to_token", int(slots[outside][0]))
            slots[outside] = 0
        return slots

    def _read_prefix(self, access: Any, phase: str, seat: Seat, slots: Ints, count: int) -> int:
        """The hash of the first `count` tokens as the KV in their slots says; compared at every position."""
        if count == 0:
            return EMPTY
        tables, expected = self.tables, seat.prefixes.first(count)
        if self.keys is not None:
            access.read(self.keys, elements_of(self.keys, slots[:count]), seat.matters)
        prefix = self.kv.read(seat, phase, "full", slots[:count], expected, 0)
        if tables.mapping is not None:
            low = max(0, count + 1 - tables.window_size)
            access.read(tables.mapping, slots[low:count], seat.matters)
            within = access.host(tables.mapping).numpy()[slots[low:count]]
            if len(within):
                prefix = self.kv.read(seat, phase, "window", within, expected[low:], low, prefix)
        return prefix

    def _note_write(self, access: Any, slots: Sequence[int] | Ints) -> None:
        if self.keys is not None:
            access.write(self.keys, elements_of(self.keys, slots))

    def _write(self, access: Any, seat: Seat, slot: int, kv: int) -> None:
        self._note_write(access, [slot])
        self.kv.write(seat, slot, kv)
        mapping = self.tables.mapping
        if mapping is not None:
            access.read(mapping, [slot], seat.matters)
            self.kv.write_window(seat, int(access.host(mapping)[slot]), kv)

    def _bad(self, phase: str, seat: Seat, name: str, value: int) -> None:
        if seat.is_read:
            self.reports.add_first(seat.rid, name, BadValue(phase, seat.rid, name, value))

    def _prefixes_of(self, request: Any) -> Prefixes:
        """Made anew when the prompt of that id has changed, as that of a session's next turn does."""
        prompt = list(request.origin_input_ids)
        prefixes = self._prefixes.get(request.rid)
        if prefixes is None or prefixes.prompt != prompt:
            prefixes = self._prefixes[request.rid] = Prefixes(prompt)
        return prefixes


def starts_of(batch: Any) -> list[int]:
    """The position from which on an extend computes each request."""
    return [int(n) for n in _first_of(batch, "extend_prefix_lens", "prefix_lens")]


def lengths_of(batch: Any) -> list[int]:
    """Tokens that an extend computes of each request."""
    return [int(n) for n in _first_of(batch, "extend_seq_lens", "extend_lens")]


def _first_of(batch: Any, *names: str) -> Any:
    return next(value for name in names if (value := getattr(batch, name, None)) is not None)


def _only(names: frozenset[str], values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name in names}
