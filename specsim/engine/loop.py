"""The run loop of the simulated engine: a host and a device, and a chooser that picks whose step is next.

One iteration of the host, with overlap: receive; choose a batch (a prefill first, if a request waits and fits, else a
decode step); prepare and launch it; then take the result of the launch before. So a step is launched before the host
knows what the step before it gave: a request may turn out to be finished, or be retracted, while a launch of it is
still under way, and the result of that launch is *stale*. Without overlap the host takes each result at once.

Events are logged, one line each, and make a running digest: two runs are the same when their digests are.
"""

from __future__ import annotations

import contextlib
import hashlib
from array import array
from collections import deque
from dataclasses import replace
from typing import Literal

from specsim.choices.chooser import Chooser
from specsim.engine.acceptance_plan import draw_plan
from specsim.engine.accounting import Accounting, HostFunctionError, Memory
from specsim.engine.admission import out_of_memory
from specsim.engine.device import Device, Move
from specsim.engine.event_log import LoggedEvent, Run
from specsim.engine.launch import Launch, LaunchRow, advance_grammar
from specsim.engine.lifecycle import Event, State
from specsim.engine.logprobs import take_first_row
from specsim.engine.marks import abort_marks, features_of, retract_marks, reused_memory
from specsim.engine.memory.allocator import OutOfSlotsError
from specsim.engine.memory.rows import RowsExhaustedError
from specsim.engine.observer import Observer, RunStopped
from specsim.engine.relay import Futures
from specsim.engine.request import Request, Turn, make_request
from specsim.engine.results import Results
from specsim.engine.sampling import cumulate
from specsim.engine.streams import Streams
from specsim.engine.workload import Scenario

ITERATIONS_MAX = 600

Phase = Literal["receive", "schedule", "pause", "launch", "resolve", "ended"]


class UnjudgeableError(Exception):
    """The accounting does not run this scenario; the schedule is not judged."""


class Engine(Results):
    """One run of a scenario on an accounting over its memory, which `observer` watches. The run ends when nothing is
    left to do, or when the observer stops it. `move` is the device's.
    """

    def __init__(
        self,
        scenario: Scenario,
        chooser: Chooser,
        memory: Memory,
        accounting: Accounting,
        observer: Observer,
        move: Move | None = None,
    ) -> None:
        refusal = accounting.refuses(scenario.config)
        if refusal:
            raise UnjudgeableError(refusal)
        self._config = scenario.config
        self._workload = scenario.workload
        self._chooser = chooser
        self._memory = memory
        self._accounting = accounting
        self._observer = observer
        self._has_laws = self._workload.has_laws
        locations = accounting.own.locations
        self._device = Device(self._config, has_laws=self._has_laws, move=move, locations=locations)
        self._needs_table = locations is not None
        self._penalty_counts = accounting.own.penalty_counts if self._has_laws else None
        self._streams = Streams(self._memory, self._device, observer.accesses()) if self._config.streams else None
        self.is_quiet = False  # nothing is logged
        self._log: list[LoggedEvent] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._arriving: deque[Turn] = deque(self._workload.turns)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._requests: list[Request] = []
        self._chunked: Request | None = None
        self._resumed: set[tuple[str, int]] = set()
        self._left: set[str] = set()  # turns that have left their session
        self._retracted_turns: dict[str, str] = {}  # by session, the last one that was retracted
        self._steps = self._config.num_steps
        self._paused = 0
        self._unresolved: deque[Launch] = deque()
        self._merging: list[Request] = []
        self._futures = Futures()
        self._merging_rows: list[LaunchRow] = []
        self._batch_is_full = False
        self._claimed = 0
        self._histories: dict[str, list[int]] = {}
        self._open_sessions: list[str] = []
        self._prefix_lens: dict[tuple[str, int], int] = {}
        self._device_lens: dict[tuple[str, int], int] = {}
        self._phase: Phase = "receive"
        self._prepared: list[LaunchRow] = []
        self._awaited: Launch | None = None
        self._to_resolve = 0
        self._launches = 0
        self._iterations = 0
        self._aborts_left = self._workload.aborts_max
        self._retractions_left = self._workload.retractions_max
        self._timeouts_left = self._workload.timeouts_max
        self._pauses_left = self._workload.pauses_max
        self._stale_finished = 0
        self._stale_retracted = 0
        self._marks = features_of(self._config)
        self._retracted_in: dict[str, int] = {}

    @property
    def ended(self) -> bool:
        """Whether the run is over: nothing is left to do, or a rule was broken that it cannot go on from."""
        return self._phase == "ended"

    @property
    def host_can_go(self) -> bool:
        return self._awaited is None or self._awaited.done

    @property
    def device_can_go(self) -> bool:
        return bool(self._device.stream) if self._streams is None else self._streams.can_go

    def run(self) -> Run:
        """Run to the end, or to a broken rule that the run cannot go on from."""
        while not self.ended:
            self.step(not self.host_can_go or bool(self.device_can_go and self._chooser.choose(2, "device goes first")))
        return Run(
            tuple(self._observer.violations),
            tuple(self._log),
            self._digest.hexdigest(),
            self._stale_finished,
            self._stale_retracted,
            frozenset(self._marks),
        )

    def step(self, of_device: bool) -> None:
        """One step of the device or of the host, which must be able to go."""
        try:
            if of_device:
                self._execute()
            else:
                self._host_step()
                self._observer.waits(self._awaited, self._unresolved[0] if self._unresolved else None)
        except RunStopped:
            self._phase = "ended"
        except HostFunctionError as error:
            self._phase = "ended"
            with contextlib.suppress(RunStopped):
                self._observer.broken(error.rule, error.part, "", error.expected, error.text)

    # The host

    def _host_step(self) -> None:
        """What the host does until the device may come between: schedule; or take a result, when it has waited for
        one; and after the last result of an iteration, receive.
        """
        if self._phase == "schedule":
            if self._pauses_left and self._chooser.choose(5, "pause") == 1:
                self._begin_pause()
            else:
                self._schedule_unless_paused()
            return
        if self._awaited is not None:
            self._resolve(self._awaited)
            self._to_resolve -= 1
        self._awaited = self._unresolved[0] if self._to_resolve > 0 else None
        if self._awaited is not None:
            return
        if self._phase == "pause":
            self._retract_everybody()
            self._schedule_unless_paused()
        elif self._phase == "launch":
            self._launch_prepared()
        else:
            self._next_iteration()

    def _next_iteration(self) -> None:
        if not self._is_busy():
            self._observer.at_idle(self._device.content, self._device.swa_content)
            self._phase = "ended"
            return
        self._iterations += 1
        if self._iterations > ITERATIONS_MAX:
            self._observer.broken("S1", "loop", "", "every request ends", self._pending_reason())
        self._receive()
        self._phase = "schedule"

    def _await_results(self, count: int, then: Phase) -> None:
        """Take so many results, each when the device has it, and go on with the phase `then`."""
        self._to_resolve = count
        self._phase = then

    def _schedule_unless_paused(self) -> None:
        if self._paused:
            self._paused -= 1
            if not self._paused:
                self._marks.add("resume")
            self._next_iteration()
        else:
            self._schedule()

    def _begin_pause(self) -> None:
        """Take the results that are due, then retract everybody, and admit nobody for a while."""
        self._pauses_left -= 1
        self._paused = self._chooser.choose(3, "iterations paused")
        self._record("host", "pause", "", f"{self._paused} iterations")
        self._marks.add("pause")
        self._await_results(len(self._unresolved), "pause")

    def _retract_everybody(self) -> None:
        batch = [r for r in [*self._running, *self._merging] if r.state is not State.FINISHED]
        self._drop_aborted_chunk()
        if self._chunked is not None:
            batch.append(self._chunked)
        self._running, self._merging, self._chunked = [], [], None
        self._futures, self._merging_rows, self._batch_is_full = Futures(), [], False
        if batch:
            self._marks.add("retracted_by_pause")
            self._observer.before_tree_calls()
            self._accounting.retract_all(batch)
            self._observer.after_memory_calls("retract")
            for request in batch:
                self._retracted(request, "pause")
            self._observer.ownership("retract", self._requests, self._open_sessions)

    def _is_busy(self) -> bool:
        if self._arriving or self._waiting or self._running or self._merging or self._unresolved or self._chunked:
            return True
        for session in list(self._open_sessions):
            self._close_session(session)
        return False

    def _pending_reason(self) -> str:
        waiting = [request.rid for request in self._waiting]
        return f"after {ITERATIONS_MAX} iterations {waiting} wait and {[r.rid for r in self._running]} run"

    def _receive(self) -> None:
        """Requests arrive; clients abort."""
        while self._arriving and self._can_arrive(self._arriving[0]) and not self._chooser.choose(3, "arrives later"):
            turn = self._capped(self._arriving.popleft())
            request = make_request(turn, self._histories.get(turn.session, []) if turn.session else [])
            other = self._accounting.arrive(request)
            if other is not None:
                self._other_prompt(request, *other)
            self._requests.append(request)
            self._waiting.append(request)
            if turn.session and turn.session not in self._open_sessions:
                self._open_sessions.append(turn.session)
            self._record("host", "arrive", request.rid, f"prompt {len(request.prompt)}, max_new {turn.max_new_tokens}")
            self._observer.waiting(request, "arrive")
        if self._aborts_left and self._chooser.choose(4, "abort") == 1:
            self._aborts_left -= self._abort_one("abort")

    def _other_prompt(self, request: Request, expected: str, made: str) -> None:
        """A session made another prompt of a turn: the run goes on with the right one, unless its session's memory is
        that of a turn that the client does not know.
        """
        session = request.turn.session
        before = [other.rid for other in self._requests if other.turn.session == session]
        aspect = "retracted" if before and self._retracted_turns.get(session) == before[-1] else ""
        self._observer.broken("I53", "session controller", request.rid, expected, made, aspect=aspect, go_on=not aspect)

    def _capped(self, turn: Turn) -> Turn:
        """A client that names no limit gets what the context has room for."""
        room = self._config.context_len - len(turn.tokens)
        return replace(turn, max_new_tokens=room) if turn.open_ended else turn

    def _can_arrive(self, turn: Turn) -> bool:
        """A session's turn is sent when the one before it is answered."""
        return not turn.session or all(
            r.state is State.FINISHED for r in self._requests if r.turn.session == turn.session
        )

    def _abort_one(self, why: str) -> bool:
        candidates = [r for r in self._requests if r.state is not State.FINISHED and not r.abort_wanted]
        if not candidates:
            return False
        request = candidates[self._chooser.choose(len(candidates), f"{why} whom")]
        request.abort_wanted = True
        self._marks |= abort_marks(request)
        if why == "timeout":
            self._marks.add("timeout")
        self._record("host", why, request.rid, request.state.value)
        if request.state is State.WAITING:
            session = request.turn.session
            before = self._accounting.session_slot(session) if session else None
            self._waiting.remove(request)
            request.happens(Event.DROP)
            self._batch_is_full = False
            if session:
                self._observer.session_aborted(request, before)
        else:
            self._accounting.abort(request)
        return True

    def _drop_aborted_chunk(self) -> None:
        """A request that is aborted between parts of its prefill is answered when the next one would be launched."""
        request = self._chunked
        if request is None or not request.abort_wanted:
            return
        self._marks.add("abort of a chunk")
        self._record("host", "drop", request.rid, "aborted")
        self._batch_is_full = False
        self._observer.before_release(request)
        self._observer.before_tree_calls()
        self._accounting.drop(request)
        self._observer.after_memory_calls("release")
        request.happens(Event.DROP)
        if self._memory.tree is not None:
            self._observer.inserted_nothing(request, "release")
        if self._has_session(request):
            self._observer.session_aborted(request, None)
        self._chunked = None

    def _schedule(self) -> None:
        """Launch the next batch, a prefill before a decode step."""
        if self._timeouts_left and self._chooser.choose(6, "timeout") == 1:
            self._timeouts_left -= self._abort_one("timeout")
        if self._chunked is not None:
            self._drop_aborted_chunk()
        if self._chunked is not None and self._memory.tree is not None:
            self._cache_unfinished(self._chunked)
        batch = [*self._running, *self._merging]
        kept = [i for i, r in enumerate(batch) if r.state is not State.FINISHED]
        if self._merging and len(kept) < len(batch):
            self._marks.add("batch_lost_and_gained")
        self._running = [batch[i] for i in kept]
        self._futures.merge([row.relay_out for row in self._merging_rows])
        self._futures.filter(kept)
        self._merging, self._merging_rows = [], []
        admitted = self._admit()
        if admitted:
            beside = self._prepare_beside() if self._config.mixed_chunk else []
            self._launched(self._launch_prefill(admitted, beside))
            return
        self._prepared = self._prepare_decode()
        if not self._prepared:
            idles = self._config.idle_batches and not self._running and self._chooser.choose(2, "idle batch") == 1
            if idles:
                self._marks.add("idle batch")
            self._launched(self._launch("decode", []) if idles else None)
        elif self._config.late_results and self._unresolved and self._chooser.choose(2, "result before launch") == 1:
            self._await_results(1, "launch")
        else:
            self._launched(self._launch("decode", self._prepared))

    def _launch_prepared(self) -> None:
        """Launch what was prepared before the last result was taken."""
        if any(row.request.state is State.FINISHED for row in self._prepared):
            self._marks.add("finished_before_prepared_launch")
        self._launched(self._launch("decode", self._prepared))

    def _launched(self, launch: Launch | None) -> None:
        """With overlap, all results but the newest launch's are due; without, all."""
        self._await_results(len(self._unresolved) - (1 if launch and self._config.overlap else 0), "resolve")

    def _launch_prefill(self, admitted: list[Request], beside: list[LaunchRow]) -> Launch:
        if self._memory.tree is not None:
            self._observer.ownership("extend", self._requests, self._open_sessions)
        rows = []
        for request in admitted:
            (row, slots), prefix_len = self._slots_of(request), self._prefix_lens[request.key]
            tokens = (request.prompt + request.outputs)[: request.extend_len]
            is_middle = request.state is State.CHUNKED
            rows.append(LaunchRow(request, request.key, slots, None, tokens, prefix_len, row, is_middle))
        self._note_window(rows)
        self._merging = [request for request in admitted if request.state is not State.CHUNKED]
        self._merging_rows = [row for row in rows if not row.is_middle]
        return self._launch("prefill", rows, beside)

    def _prepare_beside(self) -> list[LaunchRow]:
        """The decode rows that a prefill takes along: everybody who runs, if there is memory for their next step."""
        if not self._running:
            return []
        self._choose_steps()
        if self._accounting.decode_need(self._running) > self._memory.available:
            return []
        self._marks.add("mixed chunk")
        return self._prepare(self._running)

    def _choose_steps(self) -> None:
        if self._config.adaptive:
            before_last = self._steps
            self._steps = self._config.num_steps - self._chooser.choose(self._config.num_steps, "fewer steps")
            self._memory.steps, self._memory.next_steps = max(before_last, self._steps), self._steps

    def _prepare_decode(self) -> list[LaunchRow]:
        """The rows of the next decode step, none when nobody runs."""
        batch = self._running
        if not batch:
            return []
        self._choose_steps()
        on_demand = bool(
            self._retractions_left and len(batch) > 1 and self._chooser.choose(4, "retract on demand") == 1
        )
        if on_demand or self._accounting.decode_need(batch) > self._memory.available:
            self._retractions_left -= on_demand
            batch = self._retract(batch, "on demand" if on_demand else "pressure")
            if not batch:
                return []
        return self._prepare(batch)

    def _prepare(self, batch: list[Request]) -> list[LaunchRow]:
        before = [self._accounting.observe(request) for request in batch]
        self._observer.before_prepare(batch)
        try:
            self._accounting.prepare(batch)
        except (OutOfSlotsError, RowsExhaustedError) as error:
            raise out_of_memory("prepare", error) from error
        after = [self._accounting.observe(request) for request in batch]
        growth = [
            f"{request.rid}:{was.allocated}>{now.allocated}"
            for request, was, now in zip(batch, before, after, strict=True)
        ]
        self._record("host", "prepare", "", " ".join(growth))
        self._observer.after_memory_calls("prepare")
        self._observer.after_prepare(batch, before, after)
        self._observer.ownership("prepare", self._requests, self._open_sessions)
        rows = []
        for request, now in zip(batch, after, strict=True):
            row, slots = self._slots_of(request, now)
            fed = self._penalty_counts(request) if self._penalty_counts is not None else None
            counts = (cumulate(request) if fed is None else fed) if self._config.relaxed_penalties else None
            plan = draw_plan(self._chooser, self._config, self._steps)
            rows.append(LaunchRow(request, request.key, slots, plan, row=row, counts=counts, fed=fed))
            request.pending += 1
        for launch_row, index in zip(rows, self._futures.indices, strict=False):
            launch_row.relay_in = index
        self._note_window(rows)
        return rows

    def _note_window(self, rows: list[LaunchRow]) -> None:
        """The slots of the sliding window, as they are now."""
        if self._memory.swa is not None:
            for row in rows:
                row.swa_slots = [self._memory.swa.swa_slots[slot] for slot in row.slots]
                if not all(row.swa_slots):
                    self._marks.add("window slots given back")

    def _launch(self, kind: str, rows: list[LaunchRow], beside: list[LaunchRow] | None = None) -> Launch:
        config = self._config
        tree_size = self._steps + 1 if config.topk == 1 else config.num_draft_tokens
        launch = Launch(self._launches, kind, rows, self._steps, tree_size)
        if beside:
            launch.beside = Launch(self._launches, "decode", beside, self._steps, tree_size)
        everybody = [*rows, *(beside or ())]
        for row, index in zip(everybody, self._device.ring.take(len(everybody)), strict=True):
            row.relay_out = index
        if launch.verifies is not None:
            self._futures.indices = [row.relay_out for row in launch.verifies.rows]
        if self._needs_table:
            launch.table = array("i", self._memory.rows.buffer)
        self._marks |= reused_memory(self._unresolved, everybody)
        self._launches += 1
        self._device.launch(launch)
        self._unresolved.append(launch)
        for part in launch.parts:
            self._record("host", "launch", part.name, " ".join(row.request.rid for row in part.rows))
        self._observer.at_launch(launch, len(self._unresolved))
        if self._streams is not None:
            self._streams.launch(launch)
            self._observer.in_order(self._streams.race)
        return launch

    def _retract(self, batch: list[Request], why: str) -> list[Request]:
        self._observer.before_tree_calls()
        outcome = self._accounting.retract(batch)
        self._observer.after_memory_calls("retract")
        for request in outcome.retracted:
            if request.state is State.PREFILLING:
                self._marks.add("prefill_result_of_retracted")
            self._retracted(request, why)
        for request in outcome.aborted:
            self._record("host", "drop", request.rid, "not even one request fits")
            self._marks.add("retract: last request")
            if request.pending or request.state is State.PREFILLING:
                self._marks.add("dropped_in_flight")
            self._observer.before_release(request)
            request.abort_wanted = True
            request.happens(Event.DROP)
            if self._has_session(request):
                self._observer.session_aborted(request, None)
        self._futures.filter([batch.index(request) for request in outcome.kept])
        self._running = outcome.kept
        self._batch_is_full = False
        self._observer.ownership("retract", self._requests, self._open_sessions)
        return outcome.kept

    def _retracted(self, request: Request, why: str) -> None:
        self._record("host", "retract", request.rid, why)
        self._marks |= retract_marks(request, why)
        self._retracted_in[request.rid] = self._iterations
        if request.turn.session:
            self._retracted_turns[request.turn.session] = request.rid
        self._observer.before_release(request)
        request.happens(Event.RETRACT)
        self._observer.after_retract(request)
        self._observer.inserted_nothing(request, "retract")
        self._waiting.append(request)

    # The device

    def _execute(self) -> None:
        agent, launch = "device", None
        try:
            if self._streams is None:
                launch = self._device.execute_next()
            else:
                operation, launch = self._streams.run_next(self._chooser)
                agent = operation.agent
                if launch is None:
                    self._record(agent, operation.name, operation.of, "")
                    return
        except (IndexError, ValueError) as error:
            self._observer.broken("X6", "device", "", "no exception", error)
            raise RunStopped from error
        starts = {row.key: row.request.extend_len for part in launch.parts for row in part.rows}
        for part in launch.parts:
            if part.result is None:
                self._record(agent, "prefill", part.name, " ".join(row.request.rid for row in part.rows))
            else:
                accepted = zip(part.rows, part.result.accept_lens, strict=False)
                self._record(agent, "verify", part.name, " ".join(f"{row.request.rid}:{a}" for row, a in accepted))
        for step in self._device.steps:
            starts[step.key] = self._device_lens.get(step.key, starts[step.key])
            self._device_lens[step.key] = starts[step.key] + len(step.path)
        self._observer.after_device(launch, self._device, starts)

    # Results

    def _resolve(self, launch: Launch) -> None:
        self._observer.resolves(launch, self._unresolved[0] if self._unresolved else None)
        self._unresolved.popleft()
        if self._streams is not None:
            self._streams.take(launch)
            self._observer.in_order(self._streams.race)
        for part in launch.parts:
            if self._has_laws and part.grammar_advanced and any(row.request.matcher for row in part.rows):
                self._marks.add("mask_before_result")
            if part.result is None:
                self._resolve_prefill(part)
            else:
                self._resolve_decode(part)
        if self._streams is not None:
            self._streams.write_tables(f"result {launch.name}")
            self._observer.in_order(self._streams.race)

    def _resolve_prefill(self, launch: Launch) -> None:
        if self._has_laws:
            advance_grammar(launch)
        self._begin_frees()
        firsts = zip(launch.rows, launch.first_tokens, launch.first_hidden_states, strict=True)
        for row, token, hidden in firsts:
            request = row.request
            if row.is_middle:
                continue
            if request.state is not State.PREFILLING or request.key != row.key:
                self._record("host", "stale", request.rid, launch.name)
                continue
            request.happens(Event.FIRST_TOKEN)
            if request.turn.return_logprob:
                take_first_row(request, hidden, token)
            if self._append(request, [token], "prefill result"):
                if request.pending:
                    self._marks.add("finished_at_prefill")
            elif self._memory.tree is not None:
                self._cache_unfinished(request)
        self._end_frees()

    def _close_session(self, session: str) -> None:
        self._open_sessions.remove(session)
        self._accounting.session_close(session)
        self._record("host", "close", session, "")
        self._observer.after_memory_calls("session close")

    def _record(self, agent: str, event: str, who: str, details: str) -> None:
        if self.is_quiet:
            return
        number = len(self._log)
        self._observer.events = number
        self._log.append(LoggedEvent(number, agent, event, who, details))
        self._digest.update(f"{agent}\x1f{event}\x1f{who}\x1f{details}\n".encode())
