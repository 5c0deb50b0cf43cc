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
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from specsim.check.checker import Checker, RunStopped, Violation
from specsim.check.ledger import SlotLedger
from specsim.explore.chooser import Chooser
from specsim.memory.allocator import Allocator, OutOfSlotsError, ceil_to
from specsim.memory.rows import Rows, RowsExhaustedError
from specsim.memory.sessions import Sessions
from specsim.sim.accounting import Accounting, HostFunctionError, Memory, ModelAccounting, Observed
from specsim.sim.config import require_runnable
from specsim.sim.device import Device, DraftPlan, Launch, LaunchRow
from specsim.sim.lifecycle import Event, State
from specsim.sim.relay import Futures
from specsim.sim.request import Request, Turn, make_request
from specsim.sim.workload import Scenario

ITERATIONS_MAX = 600


class UnjudgeableError(Exception):
    """The accounting does not run this scenario; the schedule is not judged."""


@dataclass(frozen=True, slots=True)
class LoggedEvent:
    """One line of the event log. Columns: number, agent, what happens, to whom, details."""

    number: int
    agent: str
    event: str
    who: str
    details: str

    def __str__(self) -> str:
        return f"{self.number:>4}  {self.agent:<6}  {self.event:<8}  {self.who:<8}  {self.details}".rstrip()


@dataclass(frozen=True, slots=True)
class Run:
    """What a schedule showed."""

    violations: tuple[Violation, ...]
    log: tuple[LoggedEvent, ...]
    digest: str
    stale_finished: int
    stale_retracted: int


@contextlib.contextmanager
def _memory_errors_of(part: str) -> Iterator[None]:
    """What an allocation raises for want of memory, as an error of the host function that asked for it."""
    try:
        yield
    except (OutOfSlotsError, RowsExhaustedError) as error:
        raise HostFunctionError(part, f"{type(error).__name__}: {error}") from error


class Engine:
    """One run of a scenario. `accounting` makes the accounting that is tested from the memory it calls back."""

    def __init__(
        self, scenario: Scenario, chooser: Chooser, accounting: Callable[[Memory], Accounting] = ModelAccounting
    ) -> None:
        require_runnable(scenario.config)
        self._config = scenario.config
        self._workload = scenario.workload
        self._chooser = chooser
        self._ledger = SlotLedger(self._config.page_size)
        self._memory = Memory(
            self._config,
            Rows(self._config.rows, self._config.row_width),
            Allocator(self._config.pool_slots, self._config.page_size, self._ledger),
            Sessions(),
        )
        self._accounting = accounting(self._memory)
        refusal = self._accounting.refuses(self._config)
        if refusal:
            raise UnjudgeableError(refusal)
        self._checker = Checker(self._config, self._memory, self._ledger, self._accounting)
        self._device = Device(self._config)
        self._log: list[LoggedEvent] = []
        self._digest = hashlib.blake2b(digest_size=16)
        self._arriving: deque[Turn] = deque(self._workload.turns)
        self._waiting: list[Request] = []
        self._running: list[Request] = []
        self._requests: list[Request] = []
        self._unresolved: deque[Launch] = deque()
        self._merging: list[Request] = []
        self._futures, self._merging_futures = Futures(), Futures()
        self._batch_is_full = False
        self._histories: dict[str, list[int]] = {}
        self._open_sessions: list[str] = []
        self._prefix_lens: dict[tuple[str, int], int] = {}
        self._device_lens: dict[tuple[str, int], int] = {}
        self._launches = 0
        self._iterations = 0
        self._aborts_left = self._workload.aborts_max
        self._retractions_left = self._workload.retractions_max
        self._stale_finished = 0
        self._stale_retracted = 0

    def run(self) -> Run:
        """Run to the end, or to a broken rule that the run cannot go on from."""
        host = self._host()
        awaited: Launch | None = None
        try:
            while True:
                host_ready = awaited is None or awaited.done
                if not host_ready or (self._device.stream and self._chooser.choose(2, "device goes first")):
                    self._execute()
                    continue
                awaited = next(host)
                self._checker.waits(awaited, self._unresolved[0] if self._unresolved else None)
        except StopIteration:
            pass
        except RunStopped:
            pass
        except HostFunctionError as error:
            with contextlib.suppress(RunStopped):
                self._checker.broken("X1", error.part, "", "no exception", error.text)
        return Run(
            tuple(self._checker.violations),
            tuple(self._log),
            self._digest.hexdigest(),
            self._stale_finished,
            self._stale_retracted,
        )

    # The host

    def _host(self) -> Iterator[Launch | None]:
        """The host's steps. Yields between two of them: None when it can go on, a launch when it waits for its
        result.
        """
        while self._is_busy():
            self._iterations += 1
            if self._iterations > ITERATIONS_MAX:
                self._checker.broken("S1", "loop", "", "every request ends", self._pending_reason())
            self._receive()
            yield None
            launch = self._schedule()
            yield None
            pending = len(self._unresolved) - (1 if launch and self._config.overlap else 0)
            for _ in range(pending):
                oldest = self._unresolved[0]
                yield oldest
                self._resolve(oldest)
        self._checker.at_idle()

    def _is_busy(self) -> bool:
        if self._arriving or self._waiting or self._running or self._merging or self._unresolved:
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
            self._accounting.arrive(request)
            self._requests.append(request)
            self._waiting.append(request)
            if turn.session and turn.session not in self._open_sessions:
                self._open_sessions.append(turn.session)
            self._record("host", "arrive", request.rid, f"prompt {len(request.prompt)}, max_new {turn.max_new_tokens}")
            self._checker.waiting(request, "arrive")
        if self._aborts_left and self._chooser.choose(4, "abort") == 1:
            self._abort_one()

    def _capped(self, turn: Turn) -> Turn:
        """A client that names no limit gets what the context has room for."""
        room = self._config.context_len - len(turn.tokens)
        return replace(turn, max_new_tokens=room) if turn.open_ended else turn

    def _can_arrive(self, turn: Turn) -> bool:
        """A session's turn is sent when the one before it is answered."""
        return not turn.session or all(
            r.state is State.FINISHED for r in self._requests if r.turn.session == turn.session
        )

    def _abort_one(self) -> None:
        candidates = [r for r in self._requests if r.state is not State.FINISHED and not r.abort_wanted]
        if not candidates:
            return
        self._aborts_left -= 1
        request = candidates[self._chooser.choose(len(candidates), "abort whom")]
        request.abort_wanted = True
        self._record("host", "abort", request.rid, request.state.value)
        if request.state is State.WAITING:
            self._waiting.remove(request)
            request.happens(Event.DROP)
            self._batch_is_full = False
        else:
            self._accounting.abort(request)

    def _schedule(self) -> Launch | None:
        """Launch the next batch, a prefill before a decode step."""
        self._futures.merge(self._merging_futures.indices)
        batch = [*self._running, *self._merging]
        self._futures.filter(r.state is not State.FINISHED for r in batch)
        self._running = [r for r in batch if r.state is not State.FINISHED]
        self._merging, self._merging_futures = [], Futures()
        admitted = self._admit()
        if admitted:
            return self._launch_prefill(admitted)
        return self._launch_decode()

    def _admit(self) -> list[Request]:
        """Waiting requests that fit, in order: rows and slots, with the reserve of their first step and the running
        ones' next.
        """
        admitted: list[Request] = []
        if self._running and self._waiting and self._chooser.choose(3, "admit later"):
            return admitted
        if self._batch_is_full:
            return admitted
        taken = self._accounting.decode_need(self._running) if self._running else 0
        page_size = self._config.page_size
        while self._waiting and len(self._running) + len(admitted) < self._config.rows:
            request = self._waiting[0]
            need = ceil_to(len(request.prompt) + len(request.outputs) + self._config.reserve, page_size)
            has_session_row = self._accounting.session_slot(request.turn.session) is not None
            if not has_session_row and not self._memory.rows.free_rows:
                self._batch_is_full = True
                break
            if taken + need > self._memory.allocator.available:
                self._batch_is_full = True
                break
            self._extend(request)
            admitted.append(self._waiting.pop(0))
        return admitted

    def _extend(self, request: Request) -> None:
        """Admit a request: restore its session, and allocate for its prefill."""
        fill_len = len(request.prompt) + len(request.outputs)
        prefix_len = 0
        slot = self._accounting.session_slot(request.turn.session) if request.turn.session else None
        if slot is not None:
            claim = slot.claim
            prefix_len = self._accounting.session_match(request, fill_len)
            self._checker.after_memory_calls("session match")
            self._checker.session_matched(request, claim, prefix_len)
        with _memory_errors_of("extend"):
            self._accounting.extend_alloc(request, prefix_len, fill_len)
        self._checker.after_memory_calls("extend")
        request.incarnation += 1
        request.extend_len, request.resolved, request.pending = fill_len, 0, 0
        self._prefix_lens[request.key] = prefix_len
        request.outputs_before = len(request.outputs)
        request.happens(Event.ADMIT)
        self._record("host", "admit", request.rid, f"extend {prefix_len} to {fill_len}")
        self._checker.extended(request)
        if slot is not None:
            self._checker.ownership("session match", self._requests, self._open_sessions, at_match=True)

    def _launch_prefill(self, admitted: list[Request]) -> Launch:
        rows = []
        for request in admitted:
            slots, prefix_len = self._slots_of(request), self._prefix_lens[request.key]
            rows.append(LaunchRow(request, request.key, slots, None, request.prompt + request.outputs, prefix_len))
        self._merging = list(admitted)
        return self._launch("prefill", rows, self._merging_futures)

    def _launch_decode(self) -> Launch | None:
        batch = self._running
        if not batch:
            return None
        on_demand = bool(
            self._retractions_left and len(batch) > 1 and self._chooser.choose(4, "retract on demand") == 1
        )
        if on_demand or self._accounting.decode_need(batch) > self._memory.allocator.available:
            self._retractions_left -= on_demand
            batch = self._retract(batch, "on demand" if on_demand else "out of memory")
            if not batch:
                return None
        before = [self._accounting.observe(request) for request in batch]
        self._checker.before_prepare(batch)
        with _memory_errors_of("prepare"):
            self._accounting.prepare(batch)
        self._record("host", "prepare", "", " ".join(self._growth(r, b) for r, b in zip(batch, before, strict=True)))
        self._checker.after_memory_calls("prepare")
        self._checker.after_prepare(batch, before)
        self._checker.ownership("prepare", self._requests, self._open_sessions)
        rows = [LaunchRow(r, r.key, self._slots_of(r), plan=self._draw_plan()) for r in batch]
        for request in batch:
            request.pending += 1
        return self._launch("decode", rows, self._futures)

    def _growth(self, request: Request, before: Observed) -> str:
        return f"{request.rid}:{before.allocated}>{self._accounting.observe(request).allocated}"

    def _slots_of(self, request: Request) -> list[int]:
        seen = self._accounting.observe(request)
        assert seen.row is not None
        return self._memory.rows.read(seen.row, 0, seen.allocated)

    def _launch(self, kind: str, rows: list[LaunchRow], futures: Futures) -> Launch:
        for row, index in zip(rows, futures.indices, strict=False):
            row.relay_in = index
        futures.indices = self._device.ring.take(len(rows))
        for row, index in zip(rows, futures.indices, strict=True):
            row.relay_out = index
        launch = Launch(self._launches, kind, rows)
        self._launches += 1
        self._device.launch(launch)
        self._unresolved.append(launch)
        self._record("host", "launch", launch.name, " ".join(row.request.rid for row in rows))
        self._checker.at_launch(launch, len(self._unresolved))
        return launch

    def _draw_plan(self) -> DraftPlan:
        """A tree, and how far the drafts agree with the target: an accepted path from the root."""
        config = self._config
        if config.topk == 1:
            agree = config.num_steps - self._chooser.choose(config.num_steps + 1, "drafts that disagree")
            return DraftPlan(list(range(-1, config.num_steps)), frozenset(range(1, agree + 1)))
        parents, depth, children = [-1], [0], [0]
        for _ in range(1, config.num_draft_tokens):
            open_nodes = [n for n, d in enumerate(depth) if d < config.num_steps and children[n] < config.topk]
            parent = open_nodes[-1 - self._chooser.choose(len(open_nodes), "parent")]
            children[parent] += 1
            parents.append(parent)
            depth.append(depth[parent] + 1)
            children.append(0)
        agreeing: list[int] = []
        node = 0
        while True:
            options = [child for child, parent in enumerate(parents) if parent == node]
            picked = self._chooser.choose(len(options) + 1, "agreeing child") if options else 0
            if not options or picked == len(options):
                return DraftPlan(parents, frozenset(agreeing))
            node = options[picked]
            agreeing.append(node)

    def _retract(self, batch: list[Request], why: str) -> list[Request]:
        outcome = self._accounting.retract(batch)
        self._checker.after_memory_calls("retract")
        for request in outcome.retracted:
            self._record("host", "retract", request.rid, why)
            self._checker.before_release(request)
            request.happens(Event.RETRACT)
            self._checker.after_retract(request)
            self._waiting.append(request)
        for request in outcome.aborted:
            self._record("host", "drop", request.rid, "not even one request fits")
            self._checker.before_release(request)
            request.abort_wanted = True
            request.happens(Event.DROP)
        self._futures.filter(request in outcome.kept for request in batch)
        self._running = outcome.kept
        self._batch_is_full = False
        self._checker.ownership("retract", self._requests, self._open_sessions)
        return outcome.kept

    # The device

    def _execute(self) -> None:
        try:
            launch = self._device.execute_next()
        except IndexError as error:
            self._checker.broken("X4", "device", "", "accesses inside the tensors", error)
            raise RunStopped from error
        starts = {row.key: row.request.extend_len for row in launch.rows}
        if launch.result is None:
            self._record("device", "prefill", launch.name, " ".join(row.request.rid for row in launch.rows))
        else:
            accepted = zip(launch.rows, launch.result.accept_lens, strict=True)
            self._record("device", "verify", launch.name, " ".join(f"{row.request.rid}:{a}" for row, a in accepted))
        for step in self._device.steps:
            starts[step.key] = self._device_lens.get(step.key, starts[step.key])
            self._device_lens[step.key] = starts[step.key] + len(step.path)
        self._checker.after_device(launch, self._device, starts)

    # Results

    def _resolve(self, launch: Launch) -> None:
        self._checker.resolves(launch, self._unresolved[0] if self._unresolved else None)
        self._unresolved.popleft()
        if launch.result is None:
            self._resolve_prefill(launch)
        else:
            self._resolve_decode(launch)

    def _resolve_prefill(self, launch: Launch) -> None:
        self._begin_frees()
        for row, token in zip(launch.rows, launch.first_tokens, strict=True):
            request = row.request
            if request.state is not State.PREFILLING or request.key != row.key:
                self._record("host", "stale", request.rid, launch.name)
                continue
            request.happens(Event.FIRST_TOKEN)
            self._append(request, [token], "prefill result")
        self._end_frees()

    def _resolve_decode(self, launch: Launch) -> None:
        result = launch.result
        assert result is not None
        live = [self._is_live(row) for row in launch.rows]
        before = [self._accounting.observe(row.request) for row in launch.rows]
        runs = self._accounting.resolve(result, launch.requests)
        self._checker.after_memory_calls("resolve")
        details = [
            f"{row.request.rid}:{'+' if alive else 'stale '}{accept_len}"
            for row, alive, accept_len in zip(launch.rows, live, result.accept_lens, strict=True)
        ]
        self._record("host", "resolve", launch.name, " ".join(details))
        for row, alive in zip(launch.rows, live, strict=True):
            if row.request.key == row.key:
                row.request.pending -= 1
            if not alive and row.request.state is State.FINISHED:
                self._stale_finished += 1
            elif not alive:
                self._stale_retracted += 1
        self._checker.after_resolve(launch, result, before, runs, live)
        self._begin_frees()
        for row, run, alive in zip(launch.rows, runs, live, strict=True):
            if alive:
                row.request.resolved += len(run)
                self._append(row.request, run, "resolve")
        self._end_frees()

    def _is_live(self, row: LaunchRow) -> bool:
        """Whether a result is of this incarnation of a request that runs."""
        return row.request.state is State.RUNNING and row.request.key == row.key

    def _append(self, request: Request, run: list[int], kind: str) -> None:
        self._accounting.append(request, run)
        self._checker.after_append(request, kind)
        self._accounting.check_finish(request, len(run))
        self._checker.after_finish_check(request)
        if self._accounting.observe(request).finished:
            self._finish(request)

    def _finish(self, request: Request) -> None:
        seen = self._accounting.observe(request)
        visible = len(request.outputs) if seen.finished_len is None else seen.finished_len
        self._record("host", "finish", request.rid, f"{visible} of {len(request.outputs)} outputs")
        self._batch_is_full = False  # somebody leaves
        self._checker.visible_outputs(request)
        self._checker.before_release(request)
        self._accounting.release(request)
        self._checker.after_memory_calls("release")
        request.happens(Event.FINISH)
        if request.turn.session:
            self._histories[request.turn.session] = request.prompt + request.outputs[:visible]
            self._checker.session_saved(request, request.kv_ready)

    def _close_session(self, session: str) -> None:
        self._open_sessions.remove(session)
        self._accounting.session_close(session)
        self._record("host", "close", session, "")
        self._checker.after_memory_calls("session close")

    def _begin_frees(self) -> None:
        self._memory.allocator.free_group_begin()
        self._ledger.free_group_begin()

    def _end_frees(self) -> None:
        self._memory.allocator.free_group_end()
        self._ledger.free_group_end()
        self._checker.ownership("release", self._requests, self._open_sessions)

    def _record(self, agent: str, event: str, who: str, details: str) -> None:
        number = len(self._log)
        self._checker.events = number
        self._log.append(LoggedEvent(number, agent, event, who, details))
        self._digest.update(f"{agent}\x1f{event}\x1f{who}\x1f{details}\n".encode())
