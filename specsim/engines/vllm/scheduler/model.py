"""The model of an engine of vLLM: what is computed when a batch is launched.

A worker knows what the scheduler tells it, and that are differences: a request's data when it is new, then the blocks
that are added to it. So the tokens, the blocks and the computed positions here are the worker's own. A launch reads the
KV of every position of a request by its blocks, and writes that of the tokens that it was given, in the order of
launches, which is that of a device's stream; what it says comes back later.

The two model runners of a release are told different things. The second one keeps drafts and counts on the device. The
first one is told both where the scheduler waits for each result. What is told in another form than a runner reads is a
record.
"""

from __future__ import annotations

import functools
import pickle
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, NamedTuple

import numpy as np

from specsim.engines.vllm.scheduler.connector import Outside, Transfer, load, missing
from specsim.engines.vllm.scheduler.grammars import allowed
from specsim.engines.vllm.scheduler.pools import note_freed, note_revived, read, slots_of, write
from specsim.world.hash_model import FIRST_TOKEN, VOCABULARY, Prefixes, extended, likely, next_token
from specsim.world.kv import REJECTED, UNWRITTEN, BadValue, Disagreement, DraftRead, Ints, Kv, NoSlot, Reports
from specsim.world.ledger import Freed

PAD = -1
"""A draft that the scheduler does not know: the device has it."""
NEVER = -1_000


@dataclass(slots=True)
class Seat:
    """A request as the worker has it: all tokens that it knows, how many of them have KV, how many it was given, its
    blocks by pool, and the step in which the last token was sampled, if that is not one that it was told.
    """

    rid: str
    prefixes: Prefixes
    tokens: list[int]
    computed: int
    prefill: int
    blocks: list[list[int]] = field(default_factory=list)
    sampled_in: int = NEVER
    drafts: list[int] = field(default_factory=list)
    """Those that the scheduler was told, which the device has."""
    is_read: bool = True

    @property
    def owner(self) -> str:
        return self.rid


class Masks(NamedTuple):
    """The rows of a request's mask, int32 [positions, words], one for each draft and one more, and how many drafts may
    be accepted.
    """

    rows: Any
    drafts_max: int

    def next(self, prefix: int, at: int) -> int:
        """The most likely token after a prefix that the mask of that position allows."""
        if at >= len(self.rows) or (self.rows[at] == ALL).all():
            return next_token(prefix)
        return allowed(self.rows[at], likely(prefix, VOCABULARY - FIRST_TOKEN))


ALL = -1
"""A number of a mask that allows all."""
_NO_MASKS = Masks((), 1 << 30)


class Model:
    """`block_sizes` are the tokens of a block of each kind of layers, `context` those of the longest request. `is_told`
    says that it is told the drafts and how much is computed, and that it tells its drafts, `is_v2` that it is the
    second model runner; `window` are the tokens that some layers attend to, 0 where there are no such; `ring` are the
    steps after which a pipeline's first stage has what was sampled, 0 where it has that at once. With an `outside` what
    is launched is run later, at the latest when somebody asks what it says: KV from outside comes before or after it.
    """

    def __init__(
        self,
        blocks: int,
        block_sizes: Sequence[int],
        steps: int,
        *,
        context: int,
        is_told: bool,
        is_v2: bool = False,
        window: int = 0,
        ring: int = 0,
        outside: Outside | None = None,
    ) -> None:
        self.block_sizes, self.block_size = tuple(block_sizes), block_sizes[0]
        self.steps, self.is_told, self.window = steps, is_told, window
        self.context, self.ring, self._step, self._has_grammars = context, ring, 0, False
        self._is_v2 = is_v2
        self._last: Collection[str] = ()
        """The requests of the batch before."""
        self.outside = outside
        self._queue: deque[tuple[bool, Callable[[], Any]]] = deque()
        """What is to run, and whether it is a launch."""
        self.reports = Reports()
        self.kv = Kv(self.reports, *(blocks * size for size in self.block_sizes))
        self._draft_kv = np.full(len(self.kv.full) if steps and outside is None else 0, UNWRITTEN, np.int64)
        """The draft model's, by slot of the full pool: the hash of the tokens up to the one behind. What comes from
        outside is not followed.
        """
        self.prefixes: dict[str, Prefixes] = {}
        """By request what its user asked for, and what follows."""
        self._seats: dict[str, Seat] = {}
        self.right: Callable[[int], int] = lambda most: most
        """How many drafts of so many are right."""

    def launch(
        self, batch: Any, grammar: Any = None, loads: Sequence[tuple[Transfer, int]] = ()
    ) -> Callable[[], dict[str, list[int]]]:
        """A function that says what is sampled for each request of a SchedulerOutput, by the masks of a GrammarOutput;
        nothing for a part of a prompt. Before that KV is loaded.
        """
        if self.outside is not None:
            # As workers have it, whatever the scheduler goes on to do.
            batch, grammar = pickle.loads(pickle.dumps((batch, grammar)))
        run = functools.cache(functools.partial(self._launched, batch, grammar, loads))
        self._later(run, is_launch=True)

        def said() -> dict[str, list[int]]:
            while any(one is run for _is_launch, one in self._queue):
                self._queue.popleft()[1]()
            return run()

        return said

    def _later(self, run: Callable[[], Any], *, is_launch: bool = False) -> None:
        if self.outside is None:
            run()
        else:
            self._queue.append((is_launch, run))

    def meanwhile(self, run: Callable[[], None]) -> None:
        """See `specsim.engines.vllm.scheduler.connector.KvModel`."""
        assert self.outside is not None
        self._run_but(self.outside.draws(self.launched + 1, "launches that it comes before"))
        run()

    @property
    def launched(self) -> int:
        """Launches that have still to run."""
        return sum(is_launch for is_launch, _run in self._queue)

    def _run_but(self, count: int) -> None:
        while self.launched > count:
            self._queue.popleft()[1]()

    def _launched(self, batch: Any, grammar: Any, loads: Sequence[tuple[Transfer, int]]) -> dict[str, list[int]]:
        self._step += 1
        for transfer, end in loads:
            load(transfer, end, self)
        absent = missing(loads, self.block_size)
        if not getattr(batch, "has_sync_kv_loads", True):  # a worker may begin them behind the forward pass
            for transfer, _end in loads:
                self._differs("loads-in-the-step", transfer.rid, "told", "not told")
        self._take(batch)
        self._has_grammars = bool(getattr(batch, "has_structured_output_requests", False))
        drafts = batch.scheduled_spec_decode_tokens
        masks = self._masks(grammar, drafts) if grammar is not None else {}
        for rid in batch.num_scheduled_tokens:
            self._seats[rid].is_read = absent.isdisjoint(self._seats[rid].blocks[0])
        return {
            rid: self._run(self._seats[rid], count, drafts.get(rid, ()), masks.get(rid, _NO_MASKS))
            for rid, count in batch.num_scheduled_tokens.items()
        }

    def _masks(self, grammar: Any, drafts: Mapping[str, Sequence[int]]) -> dict[str, Masks]:
        """Each request has a row for each draft that is scheduled and one more, or as many as there may be drafts."""
        rids, rows = grammar.structured_output_request_ids, grammar.grammar_bitmask
        most = getattr(grammar, "num_acceptable_drafts", None) or [self.steps] * len(rids)
        is_even = len(rows) == len(rids) * (self.steps + 1)
        counts = [self.steps + 1 if is_even else len(drafts.get(rid, ())) + 1 for rid in rids]
        ends = list(accumulate(counts))
        return {
            rid: Masks(rows[end - count : end], limit)
            for rid, count, end, limit in zip(rids, counts, ends, most, strict=True)
        }

    def freed(self, blocks: Sequence[int], by: Freed) -> None:
        """See `specsim.engines.vllm.scheduler.freed.Holder`."""
        self._later(functools.partial(note_freed, self.kv, blocks, self.block_sizes, by))

    def revived(self, blocks: Sequence[int]) -> None:
        self._later(functools.partial(note_revived, self.kv, blocks, self.block_sizes))

    def drafts(self, rids: Sequence[str]) -> list[list[int]]:
        """The drafts of these requests' next verifications, as the scheduler is told of them."""
        self._run_but(0)
        if not (self.is_told or self._has_grammars):
            return [[PAD] * self.steps for _ in rids]
        for rid in rids:
            self._seats[rid].drafts = self._drafted(self._seats[rid])
        return [list(self._seats[rid].drafts) for rid in rids]

    def _drafted(self, seat: Seat) -> list[int]:
        known, right = len(seat.tokens), self.right(self.steps)
        drafts = []
        for at in range(self.steps):
            token = seat.prefixes.token(known + at)
            drafts.append(token if at < right else next(one for one in likely(known, 2) if one != token))
        return drafts

    def _take(self, batch: Any) -> None:
        for rid in batch.finished_req_ids:
            self._seats.pop(rid, None)
        cached = batch.scheduled_cached_reqs
        for new in batch.scheduled_new_reqs:
            tokens = new.prompt_token_ids
            if self._is_v2:
                tokens = getattr(new, "prefill_token_ids", tokens)
            if not tokens:
                self._differs("prefill-tokens", new.req_id, "told, as the second model runner reads them", "not told")
                tokens = new.prompt_token_ids
            if new.req_id in cached.req_ids:
                self._differs("told-twice", new.req_id, "new, or one that it knows", "both")
            if new.lora_request is not None:
                self._differs("lora", new.req_id, "none", str(new.lora_request))
            seat = Seat(new.req_id, self.prefixes[new.req_id], list(tokens), new.num_computed_tokens, len(tokens))
            seat.blocks = [list(blocks) for blocks in new.block_ids]
            self._seats[new.req_id] = seat
        for at, rid in enumerate(cached.req_ids):
            seat, is_resumed = self._seats[rid], rid in cached.resumed_req_ids
            needs_tokens = not (self._is_v2 or self.is_told or rid in self._last) and cached.num_output_tokens[at] > 0
            if needs_tokens and rid not in cached.all_token_ids:
                self._differs("tokens", rid, "told, of one that was not in the batch before", "not told")
            nothing: list[list[int]] = [[] for _ in seat.blocks]
            added, had = cached.new_block_ids[at] or nothing, nothing if is_resumed else seat.blocks
            seat.blocks = [[*blocks, *more] for blocks, more in zip(had, added, strict=True)]
            if is_resumed:
                seat.tokens = list(cached.all_token_ids.get(rid, seat.tokens))
                seat.prefill = len(seat.tokens)
                seat.sampled_in = NEVER
            if is_resumed or self.is_told:
                seat.computed = cached.num_computed_tokens[at]
            if self.is_told:  # of a load that failed in the step what was said is taken back
                del seat.tokens[len(seat.prefixes.prompt) + cached.num_output_tokens[at] :]
            if cached.new_token_ids:  # a pipeline's first stage samples nothing: it is told
                told = cached.new_token_ids[at]
                missing = seat.computed + len(told) - len(seat.tokens)
                seat.tokens += told[len(told) - missing :] if missing > 0 else ()
        self._last = batch.num_scheduled_tokens

    def _differs(self, what: str, rid: str, expected: str, actual: str) -> None:
        self.reports.add_first(rid, what, Disagreement(what, rid, expected, actual))

    def _run(self, seat: Seat, count: int, drafts: Sequence[int], masks: Masks) -> list[int]:
        start, known = seat.computed, seat.computed + count - len(drafts)
        phase = "verify" if drafts or start >= len(seat.prefixes.prompt) else "extend"
        if known > len(seat.tokens):
            self.reports.add_first(seat.rid, "count", BadValue(phase, seat.rid, "num_scheduled_tokens", count))
            return []
        last = len(seat.tokens) - 1
        is_early = self._step - seat.sampled_in < self.ring
        if is_early or (drafts and known <= last):  # what was said last is not there, or has no place before its drafts
            self.kv.wrong(seat, phase, "input", last, 0, seat.prefixes.of(last + 1), UNWRITTEN)
        tables = self._slots(seat, phase, start + count)
        if tables is None:
            return []
        prefix = read(self.kv, seat, phase, tables, start, self.window)
        for position in range(start, known):
            is_there = not is_early or position < last
            prefix = extended(prefix, seat.tokens[position] if is_there else PAD)
            self._write(seat, tables, position, prefix)
        expected = seat.prefixes.of(known)
        if prefix != expected:
            self.kv.wrong(seat, phase, "input", known - 1, int(tables[0][known - 1]), expected, prefix)
        seat.computed = known
        said = self._sampled(seat, tables, drafts, prefix, masks) if known == len(seat.tokens) else []
        if len(self._draft_kv):
            self._read_drafted(seat, tables[0], start)
        return said

    def _read_drafted(self, seat: Seat, slots: Ints, start: int) -> None:
        """The draft model reads its own KV of what was there before, and writes that of what was computed. That of a
        position is of the token behind it, too, which is known: a token of the prompt, or what was said last.
        """
        end = seat.computed
        wanted = seat.prefixes.first(end + 1)[1:]
        found = self._draft_kv[slots[:start]]
        wrong = np.flatnonzero(found != wanted[:start])
        if len(wrong) and seat.is_read and not self.reports.has(seat.rid, "content"):  # what follows says no more
            at = int(wrong[0])
            self.reports.add_first(seat.rid, "drafter", DraftRead(seat.rid, "KV", at, int(wanted[at]), int(found[at])))
        self._draft_kv[slots[start:end]] = wanted[start:end]

    def _write(self, seat: Seat, tables: Sequence[Ints], position: int, value: int) -> None:
        write(self.kv, seat, [int(slots[position]) for slots in tables], value)

    def _sampled(
        self, seat: Seat, tables: Sequence[Ints], drafts: Sequence[int], prefix: int, masks: Masks
    ) -> list[int]:
        """The tokens after a prefix: one, and one for each draft that is right."""
        said, known = [masks.next(prefix, 0)], seat.computed
        right = self._accepted(seat, drafts, prefix, masks)
        for at in range(len(drafts)):
            if at >= right:
                self._write(seat, tables, known + at, REJECTED)
                continue
            prefix = extended(prefix, said[-1])
            self._write(seat, tables, known + at, prefix)
            said.append(masks.next(prefix, at + 1))
        seat.tokens += said
        seat.sampled_in = self._step
        seat.computed += right
        seat.drafts = []
        self._draft(seat)
        return said

    def _draft(self, seat: Seat) -> None:
        """The draft model writes KV of each draft but the last one behind that of the tokens."""
        room = self._room(seat)
        if room < min(seat.computed + self.steps - 1, self.context):
            self.reports.add_first(seat.rid, "room", NoSlot("draft", seat.rid, room))

    def _accepted(self, seat: Seat, drafts: Sequence[int], prefix: int, masks: Masks) -> int:
        """How many of the drafts are right. Of those that the scheduler does not know it is drawn."""
        if not drafts or seat.computed <= seat.prefill:  # behind a prefill they hold the place of drafts
            return 0
        if not self.is_told and seat.drafts:
            drafts = seat.drafts[: len(drafts)]  # whatever the scheduler takes them for
        elif drafts[0] == PAD:
            return self.right(min(len(drafts), masks.drafts_max))
        for at, draft in enumerate(drafts[: masks.drafts_max]):
            if draft != masks.next(prefix, at):
                return at
            prefix = extended(prefix, draft)
        return min(len(drafts), masks.drafts_max)

    def _slots(self, seat: Seat, phase: str, count: int) -> list[Ints] | None:
        """By pool, int64 [count]: the slots of a request's first positions; None where it has fewer."""
        room = self._room(seat)
        if room < count:
            self.reports.add_first(seat.rid, "room", NoSlot(phase, seat.rid, room))
            return None
        return [slots_of(blocks, count, size) for blocks, size in zip(seat.blocks, self.block_sizes, strict=True)]

    def _room(self, seat: Seat) -> int:
        return min(len(blocks) * size for blocks, size in zip(seat.blocks, self.block_sizes, strict=True))
