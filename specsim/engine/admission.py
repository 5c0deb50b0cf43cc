"""Admission: which waiting requests the next prefill takes, and what memory they get or reuse."""

from __future__ import annotations

from specsim.choices.chooser import Chooser
from specsim.engine.accounting import out_of_memory
from specsim.engine.batch import Batch
from specsim.engine.launch import LaunchRow
from specsim.engine.launches import Launches
from specsim.engine.lifecycle import Event, State
from specsim.engine.memory.allocator import OutOfSlotsError, ceil_to
from specsim.engine.memory.rows import RowsExhaustedError
from specsim.engine.request import Request
from specsim.engine.request_table import RequestTable
from specsim.engine.seam import Seam

NO_BOUND = 1 << 62  # tokens of a prefill: without chunks no request is cut, however many are admitted together


class Admission:
    """Who is admitted, and `chunked`, the request whose prefill is launched in parts and is not done."""

    __slots__ = (
        "_accounting",
        "_batch",
        "_config",
        "_launches",
        "_log",
        "_memory",
        "_observer",
        "_prefix_lens",
        "_requests",
        "_resumed",
        "chunked",
    )

    def __init__(
        self,
        seam: Seam,
        requests: RequestTable,
        batch: Batch,
        launches: Launches,
    ) -> None:
        self._config, self._memory, self._accounting, self._observer, self._log = seam
        self._requests = requests
        self._batch = batch
        self._launches = launches
        self.chunked: Request | None = None
        self._resumed: set[tuple[str, int]] = set()  # incarnations that go on with the memory of their session
        self._prefix_lens: dict[tuple[str, int], int] = {}

    def fork(
        self, seam: Seam, requests: RequestTable, batch: Batch, launches: Launches, chunked: Request | None
    ) -> Admission:
        """A copy over copies of what it uses. A step writes prefix lengths before it reads them, so both share them."""
        new = Admission.__new__(Admission)
        new._config, new._memory, new._accounting, new._observer, new._log = seam
        new._requests = requests
        new._batch = batch
        new._launches = launches
        new.chunked = chunked
        new._resumed = set(self._resumed)
        new._prefix_lens = self._prefix_lens
        return new

    def admit(self, chooser: Chooser) -> list[Request]:
        """Waiting requests that fit, in order: rows and slots, with the reserve of their first step and the running
        ones' next.
        """
        admitted: list[Request] = []
        budget = self._config.chunk_size or NO_BOUND
        chunked = self.chunked
        if chunked is not None:
            start = self._accounting.observe(chunked).committed
            end = self._end_of_chunk(chunked, start, budget)
            if ceil_to(end, self._config.page_size) - start > self._memory.available:
                return admitted
            self._extend(chunked, start, end)
            admitted.append(chunked)
            budget -= end - start
            if self.chunked is not None:
                return admitted
        elif self._batch.running and self._requests.waiting and chooser.choose(3, "admit later"):
            return admitted
        if self._batch.is_full:
            return admitted
        taken = self._accounting.decode_need(self._batch.running) if self._batch.running else 0
        page_size = self._config.page_size
        while self._requests.waiting and len(self._batch.running) + len(admitted) < self._memory.rows.count:
            request = self._requests.waiting[0]
            fill_len = len(request.prompt) + len(request.outputs)
            need = ceil_to(fill_len + self._config.reserve, page_size)
            if need > self._config.pool_slots and self._config.tight_pool:
                self._log.record("host", "drop", request.rid, "it has outgrown the pool")
                request.abort_wanted = True
                self._requests.waiting.pop(0).happens(Event.DROP)
                continue
            has_session_row = self._accounting.session_slot(request.turn.session) is not None
            # Who was retracted may do without its session from now on.
            needs_row = not has_session_row or request.incarnation > 0
            if needs_row and not self._memory.rows.free_rows:
                self._batch.is_full = True
                break
            if taken + need > self._memory.available:
                self._batch.is_full = True
                break
            if budget < page_size:
                break
            prefix_len = self._restore(request, fill_len)
            end = self._end_of_chunk(request, prefix_len, budget)
            self._extend(request, prefix_len, end)
            if has_session_row:
                if request.rid not in self._requests.left:
                    self._resumed.add(request.key)
                self._observer.ownership(
                    "session match", self._requests.everybody, self._requests.open_sessions, at_match=True
                )
            admitted.append(self._requests.waiting.pop(0))
            budget -= end - prefix_len
            if self.chunked is not None:
                break
        return admitted

    def rows_of(self, admitted: list[Request]) -> list[LaunchRow]:
        """The rows of a prefill; whose last part it is joins the batch."""
        if self._memory.tree is not None:
            self._observer.ownership("extend", self._requests.everybody, self._requests.open_sessions)
        rows = []
        for request in admitted:
            (row, slots), prefix_len = self._slots_of(request), self._prefix_lens[request.key]
            tokens = (request.prompt + request.outputs)[: request.extend_len]
            is_middle = request.state is State.CHUNKED
            rows.append(LaunchRow(request, request.key, slots, None, tokens, prefix_len, row, is_middle))
        self._batch.note_window(rows)
        self._batch.merging = [request for request in admitted if request.state is not State.CHUNKED]
        self._batch.merging_rows = [row for row in rows if not row.is_middle]
        return rows

    def cache_chunk(self) -> None:
        """Hand the tree the parts of a prefill that were launched, before the next part."""
        if self.chunked is not None and self._memory.tree is not None:
            self.cache_unfinished(self.chunked)

    def drop_aborted_chunk(self) -> None:
        """A request that is aborted between parts of its prefill is answered when the next one would be launched."""
        request = self.chunked
        if request is None or not request.abort_wanted:
            return
        self._log.marks.add("abort of a chunk")
        self._log.record("host", "drop", request.rid, "aborted")
        self._batch.is_full = False
        self._observer.before_release(request)
        self._observer.before_tree_calls()
        self._accounting.drop(request)
        self._observer.after_memory_calls("release")
        request.happens(Event.DROP)
        if self._memory.tree is not None:
            self._observer.inserted_nothing(request, "release")
        if self._requests.has_session(request):
            self._observer.session_aborted(request, None)
        self.chunked = None

    def _end_of_chunk(self, request: Request, start: int, budget: int) -> int:
        """Where the next part of a request's prefill ends: at a page's end, unless it is the last."""
        fill_len = len(request.prompt) + len(request.outputs)
        if fill_len - start <= budget:
            return fill_len
        return (start + budget) // self._config.page_size * self._config.page_size

    def _restore(self, request: Request, fill_len: int) -> int:
        """Reuse the memory of a request's session, or what the tree has of its prefix; returns how many positions."""
        prefix_len = 0
        slot = self._accounting.session_slot(request.turn.session) if self._requests.has_session(request) else None
        if slot is not None:
            claim = slot.claim
            matched = self._accounting.session_match(request, fill_len)
            self._observer.after_memory_calls("session match")
            if matched is not None:
                self._observer.session_matched(request, claim, matched)
                self._log.marks.add("session resumed")
                return matched
            self._requests.left.add(request.rid)
            self._observer.session_matched(request, claim, None)
        if self._memory.tree is not None:
            self._observer.before_tree_calls()
            prefix_len = self._accounting.match_prefix(request, fill_len)
            self._observer.after_memory_calls("prefix match")
            self._observer.prefix_matched(request, prefix_len)
            if prefix_len:
                self._log.marks.add("prefix hit")
        return prefix_len

    def _extend(self, request: Request, prefix_len: int, fill_len: int) -> None:
        """Allocate for a prefill of positions `[prefix_len, fill_len)`, a part of the request's or all of it."""
        try:
            self._accounting.extend_alloc(request, prefix_len, fill_len)
        except (OutOfSlotsError, RowsExhaustedError) as error:
            raise out_of_memory("extend", error) from error
        self._observer.after_memory_calls("extend")
        if request.state is State.WAITING:
            request.incarnation += 1
            if request.incarnation > 1:
                self._log.marks.add("readmission")
            request.cumulated = {}
            if self._log.retracted_in.pop(request.rid, self._log.iterations) == self._log.iterations - 1:
                self._log.marks.add("readmitted_at_once")
        request.extend_len, request.resolved, request.pending = fill_len, 0, 0
        self._prefix_lens[request.key] = prefix_len
        request.outputs_before = len(request.outputs)
        if fill_len < len(request.prompt) + len(request.outputs):
            self.chunked = request
            self._log.marks.add("chunked")
            request.happens(Event.CHUNK)
        else:
            if self.chunked is request:
                self.chunked = None
            request.happens(Event.ADMIT)
        self._log.record("host", "admit", request.rid, f"extend {prefix_len} to {fill_len}")
        self._observer.extended(request)

    def cache_unfinished(self, request: Request) -> None:
        """Hand the tree what a prefill, or a part of it, has computed. A resumed turn's memory stays its session's."""
        if request.key in self._resumed:
            return
        row, before = self._slots_of(request)
        self._observer.before_tree_calls()
        self._accounting.cache_unfinished(request)
        self._observer.after_memory_calls("tree insert")
        self._observer.inserted(request, request.extend_len, "tree insert", 0)
        if self._memory.rows.read(row, 0, len(before)) != before and self._launches.unresolved:
            self._log.marks.add("row_remapped_in_flight")

    def _slots_of(self, request: Request) -> tuple[int, list[int]]:
        """The request's row, and its slots."""
        seen = self._accounting.observe(request)
        assert seen.row is not None
        return seen.row, self._memory.rows.read(seen.row, 0, seen.allocated)
