"""The accounting seam: what the scheduler's loop calls, and the model's own implementation of it.

Another accounting may take the model's place behind the same protocol, as those of the tests do. Each counts in its own
conventions, so the loop and the rules read abstract observables only (`Observed`), and the model is written against
KVready: the positions whose KV is written, or will be when launched work is done.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from specsim.engine.config import EngineConfig
from specsim.engine.launch import DecodeResult
from specsim.engine.locations import Locations
from specsim.engine.memory.allocator import Allocator, OutOfSlotsError, SlotWatcher, ceil_to
from specsim.engine.memory.radix import RadixCache, TreeWatcher
from specsim.engine.memory.rows import Rows, RowsExhaustedError
from specsim.engine.memory.sessions import Sessions, SessionSlot
from specsim.engine.memory.swa import SwaAllocator
from specsim.engine.memory.tree_node import TreeNode
from specsim.engine.memory.window_tree import TreeWindow
from specsim.engine.model import EOS, STOP
from specsim.engine.request import Request
from specsim.engine.sampling_params import Counts
from specsim.engine.stop_strings import stop_string_end
from specsim.errors import described


@dataclass(slots=True)
class Memory:
    """What host functions call back: rows, slots, sessions and the radix cache, hooked by ledgers."""

    config: EngineConfig
    rows: Rows
    allocator: Allocator | SwaAllocator
    sessions: Sessions
    tree: RadixCache | None = None
    swa: SwaAllocator | None = None  # the allocator again, when there is a sliding window
    steps: int = 0  # of the launch in flight and the next one, the larger; 0 where they do not change
    next_steps: int = 0  # of the next launch alone

    @property
    def reserve(self) -> int:
        """As the configuration's, of the steps that are taken now."""
        return 2 * (self.steps + 1) if self.steps else self.config.reserve

    @property
    def available(self) -> int:
        """Slots that can be had: the free ones, and those that the tree gives up."""
        if self.tree is None:
            return self.allocator.available
        if self.swa is None or self.tree.window is None:
            return self.allocator.available + self.tree.evictable
        in_window = self.swa.swa.available + self.tree.window.evictable
        return min(self.swa.full.available + self.tree.evictable, in_window)

    def make_room(self, slots: int) -> None:
        """Let the tree give up what is missing of so many free slots."""
        if self.tree is None:
            return
        full = self.allocator.available if self.swa is None else self.swa.full.available
        if slots > full:
            self.tree.evict(slots - full)
        if self.swa is not None and slots > self.swa.swa.available:
            self.tree.evict_window(slots - self.swa.swa.available)


class MemoryWatcher(SlotWatcher, TreeWatcher, Protocol):
    """Sees what the allocator and the radix cache do."""


def make_memory(config: EngineConfig, watcher: MemoryWatcher, window_watcher: SlotWatcher) -> Memory:
    """The memory of one run; `window_watcher` sees the slots of a sliding window."""
    page_size, pool_slots, swa, tree = config.page_size, config.pool_slots, None, None
    if config.window:
        swa = SwaAllocator(pool_slots, config.swa_pool_slots or pool_slots, page_size, watcher, window_watcher)
    allocator = swa or Allocator(pool_slots, page_size, watcher)
    if config.radix:
        window = TreeWindow(swa, config.window) if swa else None
        tree = RadixCache(page_size, allocator, bigram=config.bigram, watcher=watcher, window=window)
    return Memory(config, Rows(config.rows, config.row_width), allocator, Sessions(), tree, swa)


@dataclass(slots=True)
class Observed:
    """What an accounting says of a request, whatever its fields are called."""

    row: int | None
    committed: int
    allocated: int
    outputs: int
    finished: bool
    finished_len: int | None
    verify_count: int
    accepted_drafts: int
    histogram: tuple[int, ...]
    launches: int
    protected: int = 0  # positions whose slots are the tree's
    node: TreeNode | None = None  # where the request's lock is
    evicted: int = 0  # positions whose slots of a sliding window were given back


class Retracted(NamedTuple):
    """What a retraction did to a batch."""

    kept: list[Request]
    retracted: list[Request]
    aborted: list[Request]


class ResultSteps(NamedTuple):
    """What the loop does between the steps of taking the result of a decode step. An accounting with a function of its
    own for all of them (`OwnFunctions.take_decode_result`) calls these where that function has got so far.

    `resolved`  the runs are known
    `appended`  the request has its run; `checked` and it is decided whether it ends
    `releasing` the request has ended, and its memory goes next; `released` it is gone
    """

    resolved: Callable[[list[list[int]]], None]
    begin_frees: Callable[[], None]
    end_frees: Callable[[], None]
    appended: Callable[[Request], None]
    checked: Callable[[Request], None]
    releasing: Callable[[Request], None]
    released: Callable[[Request], None]


@dataclass(frozen=True, slots=True)
class OwnFunctions:
    """Functions that an accounting has and the model has not; the loop does without those that are None.

    `take_decode_result(result, batch, steps)`  takes the result of a decode step as a whole
    `locations`  say where drafts and nodes are written
    `penalty_counts`  what penalizers of its own count of a request at the launch that is prepared; None for a request
                      without any
    `tree_gets_the_claim`  whether a release hands the tree all positions that are claimed, KV of the outputs too
    """

    take_decode_result: Callable[[DecodeResult, list[Request], ResultSteps], None] | None = None
    locations: Locations | None = None
    penalty_counts: Callable[[Request], Counts | None] | None = None
    tree_gets_the_claim: bool = False


class HostFunctionError(Exception):
    """A host function of the accounting raised: `part` of the seam."""

    def __init__(self, part: str, text: str) -> None:
        super().__init__(f"{part}: {text}")
        self.part = part
        self.text = text


def out_of_memory(part: str, error: OutOfSlotsError | RowsExhaustedError) -> HostFunctionError:
    """What an allocation raises for want of memory, as an error of the host function that asked for it."""
    return HostFunctionError(part, described(error))


class Accounting(Protocol):
    """What the loop calls. Order within an iteration and meaning of the calls: `specsim.engine.loop`."""

    own: OwnFunctions

    def refuses(self, config: EngineConfig) -> str:
        """Why this accounting cannot run the configuration, "" when it can."""
        ...

    def arrive(self, request: Request) -> tuple[str, str] | None:
        """Make the accounting's own state of a new request; returns, where a session would have made another prompt of
        the turn, what was expected and what it made.
        """
        ...

    def extend_alloc(self, request: Request, prefix_len: int, fill_len: int) -> None:
        """Row and slots for a prefill of positions `[prefix_len, fill_len)`."""
        ...

    def match_prefix(self, request: Request, key_len: int) -> int:
        """Row for a request, with the slots that the tree holds of its first `key_len` positions but one, and a lock on
        them; returns how many.
        """
        ...

    def cache_unfinished(self, request: Request) -> None:
        """Hand the tree the positions of the prefill that was launched last, and move the lock to their end. Never
        called of a turn whose session had memory.
        """
        ...

    def drop(self, request: Request) -> None:
        """Give back the memory of a request that is answered before its prefill is done."""
        ...

    def retract_all(self, batch: list[Request]) -> None:
        """Take the memory of every request."""
        ...

    def prepare(self, batch: list[Request]) -> None:
        """Slots for the next decode step of each request, before its launch."""
        ...

    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        """The accepted run of every request; brings lengths and statistics of live requests up to date."""
        ...

    def append(self, request: Request, run: list[int]) -> None:
        """Append accepted tokens to the outputs."""
        ...

    def check_finish(self, request: Request, new_tokens: int) -> None:
        """Decide whether the last `new_tokens` outputs end the request."""
        ...

    def release(self, request: Request) -> None:
        """Give back the memory of a finished request, or hand it to its session. A tree gets the visible positions that
        are claimed; of an accounting with `own.tree_gets_the_claim` all that are, which is KV of the outputs too.
        """
        ...

    def decode_need(self, batch: list[Request]) -> int:
        """Slots that the next decode step of the batch needs."""
        ...

    def retract(self, batch: list[Request]) -> Retracted:
        """Take memory from requests until the next decode step fits; at least one request when there are two."""
        ...

    def abort(self, request: Request) -> None:
        """Ask that the request finish at its next result."""
        ...

    def session_match(self, request: Request, key_len: int) -> int | None:
        """Restore the memory of the request's session; returns how many positions are reused, None when the request
        does without its session from here on.
        """
        ...

    def session_close(self, session: str) -> None:
        """Give back the memory of a session."""
        ...

    def session_slot(self, session: str) -> SessionSlot | None:
        """What the session holds between turns."""
        ...

    def observe(self, request: Request) -> Observed: ...

    def restore(self, request: Request, observed: Observed) -> None:
        """Put lengths and statistics back to what was observed: a rule that was broken is recorded, and the run goes
        on.
        """
        ...


@dataclass(slots=True)
class Held:
    """The model's own state of a request.

    `honest` positions are written by resolved work; `in_flight` verifications are launched and unresolved. The slots of
    the first `protected` positions are the tree's, which the lock on `node` keeps; those of a sliding window are given
    back up to `evicted`.
    """

    row: int | None = None
    honest: int = 0
    in_flight: int = 0
    allocated: int = 0
    launches: int = 0
    is_retracted: bool = False
    finished: bool = False
    finished_len: int | None = None
    to_finish: bool = False
    verify_count: int = 0
    accepted_drafts: int = 0
    histogram: list[int] = field(default_factory=list)
    protected: int = 0
    node: TreeNode | None = None
    evicted: int = 0

    @property
    def kv_ready(self) -> int:
        return self.honest + (1 if self.in_flight else 0)


class ModelAccounting(Accounting):
    """The model's accounting, written against KVready."""

    def __init__(self, memory: Memory) -> None:
        self.own = OwnFunctions()
        self._memory = memory

    def refuses(self, config: EngineConfig) -> str:
        return ""

    def arrive(self, request: Request) -> tuple[str, str] | None:
        request.state_of_accounting = Held()
        return None

    def extend_alloc(self, request: Request, prefix_len: int, fill_len: int) -> None:
        held: Held = request.state_of_accounting
        held.is_retracted = False
        if held.row is None:
            held.row = self._memory.rows.alloc()
        self._grow(held, prefix_len, fill_len)
        held.honest = fill_len
        held.launches = 0

    def match_prefix(self, request: Request, key_len: int) -> int:
        tree = self._tree
        held: Held = request.state_of_accounting
        tokens = (request.prompt + request.outputs)[: key_len - 1]
        match = tree.match(tokens, request.turn.extra_key)
        tree.lock(match.node)
        held.node, held.protected = match.node, len(match.slots)
        held.row = self._memory.rows.alloc()
        self._memory.rows.write(held.row, 0, match.slots)
        held.allocated = held.protected
        return held.protected

    def cache_unfinished(self, request: Request) -> None:
        held: Held = request.state_of_accounting
        tree, rows = self._tree, self._memory.rows
        assert held.row is not None
        tokens = (request.prompt + request.outputs)[: held.honest]
        self._insert(held, tokens, request.turn.extra_key)
        match = tree.match(tokens, request.turn.extra_key)
        rows.write(held.row, 0, match.slots)
        tree.lock(match.node)
        self._unlock(held)
        held.node, held.protected = match.node, len(match.slots)

    def drop(self, request: Request) -> None:
        self._take_back(request.state_of_accounting)

    def retract_all(self, batch: list[Request]) -> None:
        for request in batch:
            self._take_back(request.state_of_accounting)

    def prepare(self, batch: list[Request]) -> None:
        for request in batch:
            held: Held = request.state_of_accounting
            if self._memory.swa is not None and held.launches:
                self._evict_window(self._memory.swa, held)
            self._grow(held, held.allocated, self._next_allocated(held))
            held.in_flight += 1
            held.launches += 1

    def resolve(self, result: DecodeResult, batch: list[Request]) -> list[list[int]]:
        runs = []
        for i, (request, accept_len) in enumerate(zip(batch, result.accept_lens, strict=True)):
            runs.append(result.next_token_ids[i * result.stride : i * result.stride + accept_len])
            held: Held = request.state_of_accounting
            if held.is_retracted:
                continue
            held.in_flight -= 1
            if held.finished:
                continue
            held.honest += accept_len
            self._count(held, accept_len - 1)
            result.accepted_drafts += accept_len - 1
        return runs

    def append(self, request: Request, run: list[int]) -> None:
        request.outputs += run

    def check_finish(self, request: Request, new_tokens: int) -> None:
        held: Held = request.state_of_accounting
        if held.to_finish:
            held.finished = True
            return
        turn = request.turn
        string_end = stop_string_end(request.outputs, new_tokens, turn.stop) if turn.stop else None
        for length in range(len(request.outputs) - new_tokens + 1, len(request.outputs) + 1):
            token = request.outputs[length - 1]
            stops = token == STOP or (token == EOS and not turn.ignore_eos)
            grammar_ends = request.matcher is not None and length == request.matcher.end
            if stops or grammar_ends or length == string_end or length >= turn.max_new_tokens:
                held.finished = True
                held.finished_len = length
                return

    def release(self, request: Request) -> None:
        held: Held = request.state_of_accounting
        if request.turn.session and not held.to_finish:
            self._save_session(request, held)
            return
        start = held.protected
        if self._memory.tree is not None and not request.turn.session:
            owned = min(self._keep(request, held), held.kv_ready)
            start = self._insert(held, (request.prompt + request.outputs)[:owned], request.turn.extra_key)
        self._free(held, start)
        self._unlock(held)
        self._free_row(held)

    def decode_need(self, batch: list[Request]) -> int:
        page_size = self._memory.config.page_size
        return sum(
            ceil_to(self._next_allocated(held), page_size) - ceil_to(held.allocated, page_size)
            for held in (request.state_of_accounting for request in batch)
        )

    def retract(self, batch: list[Request]) -> Retracted:
        kept = list(batch)
        retracted: list[Request] = []
        aborted: list[Request] = []
        while len(kept) > 1 and (not retracted or not self._fits(kept)):
            retracted.append(kept.pop())
            self._take_back(retracted[-1].state_of_accounting)
        if len(kept) == 1 and not self._fits(kept):
            aborted.append(kept.pop())
            aborted[0].state_of_accounting.to_finish = True
            self._take_back(aborted[0].state_of_accounting)
        return Retracted(kept, retracted, aborted)

    def abort(self, request: Request) -> None:
        request.state_of_accounting.to_finish = True

    def session_match(self, request: Request, key_len: int) -> int:
        slot = self._memory.sessions.slots.pop(request.turn.session, None)
        if slot is None:
            return 0
        held: Held = request.state_of_accounting
        prefix_len = min(slot.claim, key_len - 1)
        held.row, held.allocated = slot.row, slot.allocated
        held.node, held.protected, held.evicted = slot.node, slot.protected, slot.evicted
        self._free(held, ceil_to(prefix_len, self._memory.config.page_size))
        held.allocated = prefix_len
        return prefix_len

    def session_close(self, session: str) -> None:
        slot = self._memory.sessions.slots.pop(session, None)
        if slot is not None:
            held = Held(row=slot.row, allocated=slot.allocated, protected=slot.protected, node=slot.node)
            self._free(held, held.protected)
            self._unlock(held)
            self._free_row(held)

    def session_slot(self, session: str) -> SessionSlot | None:
        return self._memory.sessions.slots.get(session)

    def observe(self, request: Request) -> Observed:
        held: Held = request.state_of_accounting
        return Observed(
            held.row,
            held.honest + (1 if held.in_flight else 0),  # kv_ready, for which a call is too slow here
            held.allocated,
            len(request.outputs),
            held.finished,
            held.finished_len,
            held.verify_count,
            held.accepted_drafts,
            tuple(held.histogram),
            held.launches,
            held.protected,
            held.node,
            held.evicted,
        )

    def restore(self, request: Request, observed: Observed) -> None:
        held: Held = request.state_of_accounting
        held.in_flight = max(0, held.in_flight)
        held.honest = observed.committed - (1 if held.in_flight else 0)
        held.allocated = observed.allocated
        held.verify_count = observed.verify_count
        held.accepted_drafts = observed.accepted_drafts
        held.histogram = list(observed.histogram)

    @property
    def _tree(self) -> RadixCache:
        assert self._memory.tree is not None
        return self._memory.tree

    def _next_allocated(self, held: Held) -> int:
        return max(held.allocated, held.honest + self._memory.reserve)

    def _grow(self, held: Held, start: int, end: int) -> None:
        """Slots for positions `[start, end)`."""
        assert held.row is not None
        rows, page_size = self._memory.rows, self._memory.config.page_size
        self._memory.make_room(ceil_to(end, page_size) - ceil_to(start, page_size))
        last_slot = rows.read(held.row, start - 1, start)[0] if start else 0
        rows.write(held.row, start, self._memory.allocator.extend(start, end, last_slot))
        held.allocated = end

    def _count(self, held: Held, accepted_drafts: int) -> None:
        held.verify_count += 1
        held.accepted_drafts += accepted_drafts
        held.histogram += [0] * (accepted_drafts + 1 - len(held.histogram))
        held.histogram[accepted_drafts] += 1

    def _fits(self, batch: list[Request]) -> bool:
        return self.decode_need(batch) <= self._memory.available

    def _take_back(self, held: Held) -> None:
        self._free(held, held.protected)
        self._unlock(held)
        self._free_row(held)
        held.honest = held.in_flight = held.allocated = held.launches = held.evicted = 0
        held.is_retracted = True

    def _evict_window(self, swa: SwaAllocator, held: Held) -> None:
        """Give back the window slots that no query reads again. A launch in flight starts at `honest`; a prefill in
        flight may start earlier, so nothing is given back before the second launch.
        """
        assert held.row is not None
        slots = self._memory.rows.read(held.row, 0, held.honest)
        seq_len = held.honest
        if self._memory.tree is not None:
            # The tree may take no more than this, and must find the window behind its end.
            taken = self._memory.tree.key_len(held.honest + 1)
            seq_len = min(held.honest, taken)
        start = max(held.evicted, held.protected)
        held.evicted = swa.evict_window(slots, start, seq_len, self._memory.config.window)

    def _free(self, held: Held, start: int) -> None:
        """Free the slots of positions `[start, allocated)`."""
        assert held.row is not None
        if start < held.allocated:
            self._memory.allocator.free(self._memory.rows.read(held.row, start, held.allocated))

    def _insert(self, held: Held, tokens: list[int], extra_key: str) -> int:
        """Give the tree the slots of `tokens`, and free those of positions that it held already; returns where its
        whole pages end.
        """
        assert held.row is not None
        end = self._tree.key_len(len(tokens))
        slots = self._memory.rows.read(held.row, 0, end)
        known = self._tree.insert(tokens, slots, extra_key)
        self._memory.allocator.free(slots[held.protected : known])
        return max(end, held.protected)

    def _unlock(self, held: Held) -> None:
        if held.node is not None:
            self._tree.unlock(held.node)
        held.node, held.protected = None, 0

    def _free_row(self, held: Held) -> None:
        assert held.row is not None
        self._memory.rows.free(held.row)
        held.row = None

    def _save_session(self, request: Request, held: Held) -> None:
        assert held.row is not None
        keep = self._keep(request, held)
        self._free(held, ceil_to(keep, self._memory.config.page_size))
        claim = min(keep, held.kv_ready)
        slot = SessionSlot(held.row, claim, min(held.allocated, keep), held.protected, held.node, held.evicted)
        self._memory.sessions.slots[request.turn.session] = slot
        held.row = held.node = None
        held.protected = 0

    def _keep(self, request: Request, held: Held) -> int:
        """How many positions the client saw."""
        visible = len(request.outputs) if held.finished_len is None else held.finished_len
        return len(request.prompt) + visible
