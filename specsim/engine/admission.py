"""Admission: which waiting requests the next prefill takes, and what memory they get or reuse."""

from __future__ import annotations

from collections import deque

from specsim.choices.chooser import Chooser
from specsim.engine.accounting import Accounting, HostFunctionError, Memory, Observed
from specsim.engine.config import EngineConfig
from specsim.engine.launch import Launch
from specsim.engine.lifecycle import Event, State
from specsim.engine.memory.allocator import OutOfSlotsError, ceil_to
from specsim.engine.memory.rows import RowsExhaustedError
from specsim.engine.observer import Observer
from specsim.engine.request import Request
from specsim.errors import described

NO_BOUND = 1 << 62  # tokens of a prefill: without chunks no request is cut, however many are admitted together


def out_of_memory(part: str, error: OutOfSlotsError | RowsExhaustedError) -> HostFunctionError:
    """What an allocation raises for want of memory, as an error of the host function that asked for it."""
    return HostFunctionError(part, described(error))


class Admission:
    """The part of the engine that admits requests. The engine makes what it works on."""

    _config: EngineConfig
    _chooser: Chooser
    _memory: Memory
    _accounting: Accounting
    _observer: Observer
    _marks: set[str]
    _waiting: list[Request]
    _running: list[Request]
    _requests: list[Request]
    _chunked: Request | None
    _resumed: set[tuple[str, int]]
    _left: set[str]
    _unresolved: deque[Launch]
    _batch_is_full: bool
    _open_sessions: list[str]
    _prefix_lens: dict[tuple[str, int], int]
    _retracted_in: dict[str, int]
    _iterations: int

    def _record(self, agent: str, event: str, who: str, details: str) -> None:
        raise NotImplementedError

    def _admit(self) -> list[Request]:
        """Waiting requests that fit, in order: rows and slots, with the reserve of their first step and the running
        ones' next.
        """
        admitted: list[Request] = []
        budget = self._config.chunk_size or NO_BOUND
        chunked = self._chunked
        if chunked is not None:
            start = self._accounting.observe(chunked).committed
            end = self._end_of_chunk(chunked, start, budget)
            if ceil_to(end, self._config.page_size) - start > self._memory.available:
                return admitted
            self._extend(chunked, start, end)
            admitted.append(chunked)
            budget -= end - start
            if self._chunked is not None:
                return admitted
        elif self._running and self._waiting and self._chooser.choose(3, "admit later"):
            return admitted
        if self._batch_is_full:
            return admitted
        taken = self._accounting.decode_need(self._running) if self._running else 0
        page_size = self._config.page_size
        while self._waiting and len(self._running) + len(admitted) < self._memory.rows.count:
            request = self._waiting[0]
            fill_len = len(request.prompt) + len(request.outputs)
            need = ceil_to(fill_len + self._config.reserve, page_size)
            if need > self._config.pool_slots and self._config.tight_pool:
                self._record("host", "drop", request.rid, "it has outgrown the pool")
                request.abort_wanted = True
                self._waiting.pop(0).happens(Event.DROP)
                continue
            has_session_row = self._accounting.session_slot(request.turn.session) is not None
            # Who was retracted may do without its session from now on.
            needs_row = not has_session_row or request.incarnation > 0
            if needs_row and not self._memory.rows.free_rows:
                self._batch_is_full = True
                break
            if taken + need > self._memory.available:
                self._batch_is_full = True
                break
            if budget < page_size:
                break
            prefix_len = self._restore(request, fill_len)
            end = self._end_of_chunk(request, prefix_len, budget)
            self._extend(request, prefix_len, end)
            if has_session_row:
                if request.rid not in self._left:
                    self._resumed.add(request.key)
                self._observer.ownership("session match", self._requests, self._open_sessions, at_match=True)
            admitted.append(self._waiting.pop(0))
            budget -= end - prefix_len
            if self._chunked is not None:
                break
        return admitted

    def _has_session(self, request: Request) -> bool:
        """Whether a request is a session's turn, and has not left it."""
        return bool(request.turn.session) and request.rid not in self._left

    def _end_of_chunk(self, request: Request, start: int, budget: int) -> int:
        """Where the next part of a request's prefill ends: at a page's end, unless it is the last."""
        fill_len = len(request.prompt) + len(request.outputs)
        if fill_len - start <= budget:
            return fill_len
        return (start + budget) // self._config.page_size * self._config.page_size

    def _restore(self, request: Request, fill_len: int) -> int:
        """Reuse the memory of a request's session, or what the tree has of its prefix; returns how many positions."""
        prefix_len = 0
        slot = self._accounting.session_slot(request.turn.session) if self._has_session(request) else None
        if slot is not None:
            claim = slot.claim
            matched = self._accounting.session_match(request, fill_len)
            self._observer.after_memory_calls("session match")
            if matched is not None:
                self._observer.session_matched(request, claim, matched)
                self._marks.add("session resumed")
                return matched
            self._left.add(request.rid)
            self._observer.session_left(request, claim)
        if self._memory.tree is not None:
            self._observer.before_tree_calls()
            prefix_len = self._accounting.match_prefix(request, fill_len)
            self._observer.after_memory_calls("prefix match")
            self._observer.prefix_matched(request, prefix_len)
            if prefix_len:
                self._marks.add("prefix hit")
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
                self._marks.add("readmission")
            request.cumulated = {}
            if self._retracted_in.pop(request.rid, self._iterations) == self._iterations - 1:
                self._marks.add("readmitted_at_once")
        request.extend_len, request.resolved, request.pending = fill_len, 0, 0
        self._prefix_lens[request.key] = prefix_len
        request.outputs_before = len(request.outputs)
        if fill_len < len(request.prompt) + len(request.outputs):
            self._chunked = request
            self._marks.add("chunked")
            request.happens(Event.CHUNK)
        else:
            if self._chunked is request:
                self._chunked = None
            request.happens(Event.ADMIT)
        self._record("host", "admit", request.rid, f"extend {prefix_len} to {fill_len}")
        self._observer.extended(request)

    def _cache_unfinished(self, request: Request) -> None:
        """Hand the tree what a prefill, or a part of it, has computed. A resumed turn's memory stays its session's."""
        if request.key in self._resumed:
            return
        row, before = self._slots_of(request)
        self._observer.before_tree_calls()
        self._accounting.cache_unfinished(request)
        self._observer.after_memory_calls("tree insert")
        self._observer.inserted(request, request.extend_len, "tree insert", 0, "I25")
        if self._memory.rows.read(row, 0, len(before)) != before and self._unresolved:
            self._marks.add("row_remapped_in_flight")

    def _slots_of(self, request: Request, observed: Observed | None = None) -> tuple[int, list[int]]:
        """The request's row, and its slots. `observed` is what the accounting says now."""
        seen = observed or self._accounting.observe(request)
        assert seen.row is not None
        return seen.row, self._memory.rows.read(seen.row, 0, seen.allocated)
