"""Arrivals: requests that clients send, and aborts by clients and by the clock."""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from specsim.choices.chooser import Chooser
from specsim.engine.batch import Batch
from specsim.engine.lifecycle import Event, State
from specsim.engine.marks import abort_marks
from specsim.engine.request import Request, Turn, make_request
from specsim.engine.request_table import RequestTable
from specsim.engine.seam import Seam
from specsim.engine.workload import Workload


class Arrivals:
    """The turns `to_come`, in the order in which clients send them, and the aborts that a schedule may still choose."""

    __slots__ = (
        "_accounting",
        "_batch",
        "_config",
        "_log",
        "_memory",
        "_observer",
        "_requests",
        "aborts_left",
        "timeouts_left",
        "to_come",
    )

    def __init__(
        self,
        seam: Seam,
        workload: Workload,
        requests: RequestTable,
        batch: Batch,
    ) -> None:
        self._config, self._memory, self._accounting, self._observer, self._log = seam
        self._requests = requests
        self._batch = batch
        self.to_come: deque[Turn] = deque(workload.turns)
        self.aborts_left = workload.aborts_max
        self.timeouts_left = workload.timeouts_max

    def fork(self, seam: Seam, requests: RequestTable, batch: Batch) -> Arrivals:
        """A copy over copies of what it uses."""
        new = Arrivals.__new__(Arrivals)
        new._config, new._memory, new._accounting, new._observer, new._log = seam
        new._requests = requests
        new._batch = batch
        new.to_come = deque(self.to_come)
        new.aborts_left = self.aborts_left
        new.timeouts_left = self.timeouts_left
        return new

    def receive(self, chooser: Chooser) -> None:
        """Requests arrive; clients abort."""
        requests = self._requests
        while self.to_come and self._can_arrive(self.to_come[0]) and not chooser.choose(3, "arrives later"):
            turn = self.capped(self.to_come.popleft())
            request = make_request(turn, requests.histories.get(turn.session, []) if turn.session else [])
            other = self._accounting.arrive(request)
            if other is not None:
                self._other_prompt(request, *other)
            requests.everybody.append(request)
            requests.waiting.append(request)
            if turn.session and turn.session not in requests.open_sessions:
                requests.open_sessions.append(turn.session)
            details = f"prompt {len(request.prompt)}, max_new {turn.max_new_tokens}"
            self._log.record("host", "arrive", request.rid, details)
            self._observer.waiting(request, "arrive")
        if self.aborts_left and chooser.choose(4, "abort") == 1:
            self.aborts_left -= self._abort_one(chooser, "abort")

    def time_out(self, chooser: Chooser) -> None:
        """The clock aborts a request."""
        self.timeouts_left -= self._abort_one(chooser, "timeout")

    def close_session(self, session: str) -> None:
        self._requests.open_sessions.remove(session)
        self._accounting.session_close(session)
        self._log.record("host", "close", session, "")
        self._observer.after_memory_calls("session close")

    def capped(self, turn: Turn) -> Turn:
        """A client that names no limit gets what the context has room for."""
        room = self._config.context_len - len(turn.tokens)
        return replace(turn, max_new_tokens=room) if turn.open_ended else turn

    def _other_prompt(self, request: Request, expected: str, made: str) -> None:
        """A session made another prompt of a turn than its client."""
        session = request.turn.session
        before = self._requests.of_session(session)
        follows_retracted = bool(before) and self._requests.retracted_turns.get(session) == before[-1].rid
        self._observer.other_prompt(request, expected, made, follows_retracted)

    def _can_arrive(self, turn: Turn) -> bool:
        """A session's turn is sent when the one before it is answered."""
        return not turn.session or all(r.state is State.FINISHED for r in self._requests.of_session(turn.session))

    def _abort_one(self, chooser: Chooser, why: str) -> bool:
        candidates = [r for r in self._requests.everybody if r.state is not State.FINISHED and not r.abort_wanted]
        if not candidates:
            return False
        request = candidates[chooser.choose(len(candidates), f"{why} whom")]
        request.abort_wanted = True
        self._log.marks |= abort_marks(request)
        if why == "timeout":
            self._log.marks.add("timeout")
        self._log.record("host", why, request.rid, request.state.value)
        if request.state is State.WAITING:
            session = request.turn.session
            before = self._accounting.session_slot(session) if session else None
            self._requests.waiting.remove(request)
            request.happens(Event.DROP)
            self._batch.is_full = False
            if session:
                self._observer.session_aborted(request, before)
        else:
            self._accounting.abort(request)
        return True
