"""Results: what the host does when it takes the result of a launch, and when a request ends."""

from __future__ import annotations

from specsim.engine.accounting import Observed, ResultSteps
from specsim.engine.admission import Admission
from specsim.engine.batch import Batch
from specsim.engine.launch import DecodeResult, Launch, LaunchRow, advance_grammar
from specsim.engine.launches import Launches
from specsim.engine.lifecycle import Event, State
from specsim.engine.logprobs import take_first_row, take_rows
from specsim.engine.marks import finish_mark
from specsim.engine.request import Request
from specsim.engine.request_table import RequestTable
from specsim.engine.seam import Seam


class Results:
    """Takes results. `stale_finished` and `stale_retracted` count those of requests that had ended or were retracted
    when the result came.
    """

    __slots__ = (
        "_accounting",
        "_admission",
        "_batch",
        "_claimed",
        "_config",
        "_has_distributions",
        "_launches",
        "_log",
        "_memory",
        "_observer",
        "_requests",
        "stale_finished",
        "stale_retracted",
    )

    def __init__(
        self,
        seam: Seam,
        requests: RequestTable,
        batch: Batch,
        launches: Launches,
        admission: Admission,
        *,
        has_distributions: bool,
    ) -> None:
        self._config, self._memory, self._accounting, self._observer, self._log = seam
        self._requests = requests
        self._batch = batch
        self._launches = launches
        self._admission = admission
        self._has_distributions = has_distributions
        self._claimed = 0
        self.stale_finished = 0
        self.stale_retracted = 0

    def fork(
        self, seam: Seam, requests: RequestTable, batch: Batch, launches: Launches, admission: Admission
    ) -> Results:
        """A copy over copies of what it uses."""
        new = Results.__new__(Results)
        new._config, new._memory, new._accounting, new._observer, new._log = seam
        new._requests = requests
        new._batch = batch
        new._launches = launches
        new._admission = admission
        new._has_distributions = self._has_distributions
        new._claimed = self._claimed
        new.stale_finished = self.stale_finished
        new.stale_retracted = self.stale_retracted
        return new

    def take(self, launch: Launch) -> None:
        """The host has the result of a launch."""
        for part in launch.parts:
            if self._has_distributions and part.grammar_advanced and any(row.request.matcher for row in part.rows):
                self._log.marks.add("mask_before_result")
            if part.result is None:
                self._resolve_prefill(part)
            else:
                self._resolve_decode(part)

    def _resolve_decode(self, launch: Launch) -> None:
        result = launch.result
        assert result is not None
        if not launch.rows:
            self._log.record("host", "resolve", launch.name, "idle")
            return
        live = [self._is_live(row) for row in launch.rows]
        before = [self._accounting.observe(row.request) for row in launch.rows]
        if any(later.verifies and later.num_steps != launch.num_steps for later in self._launches.unresolved):
            self._log.marks.add("stride_changed")
        if self._has_distributions:
            advance_grammar(launch)
        take = self._accounting.own.take_decode_result
        if take is not None:
            take(result, launch.requests, self._steps_of(launch, result, before, live))
            return
        runs = self._accounting.resolve(result, launch.requests)
        self._resolved(launch, result, before, runs, live)
        self._begin_frees()
        for number, (row, run, alive) in enumerate(zip(launch.rows, runs, live, strict=True)):
            if alive:
                self._accounting.append(row.request, run)
                self._appended(row.request, result, number, len(run))
                self._accounting.check_finish(row.request, len(run))
                self._checked(row.request)
        self._end_frees()

    def _resolve_prefill(self, launch: Launch) -> None:
        if self._has_distributions:
            advance_grammar(launch)
        self._begin_frees()
        firsts = zip(launch.rows, launch.first_tokens, launch.first_hidden_states, strict=True)
        for row, token, hidden in firsts:
            request = row.request
            if row.is_middle:
                continue
            if request.state is not State.PREFILLING or request.key != row.key:
                self._log.record("host", "stale", request.rid, launch.name)
                continue
            request.happens(Event.FIRST_TOKEN)
            if request.turn.return_logprob:
                take_first_row(request, hidden, token)
            if self._append(request, [token], "prefill result"):
                if request.pending:
                    self._log.marks.add("finished_at_prefill")
            elif self._memory.tree is not None:
                self._admission.cache_unfinished(request)
        self._end_frees()

    def _steps_of(self, launch: Launch, result: DecodeResult, before: list[Observed], live: list[bool]) -> ResultSteps:
        """What goes with the steps of taking this result."""
        numbers = {row.request.rid: number for number, row in enumerate(launch.rows)}
        runs: list[list[int]] = []
        waiting = {row.request.rid for row, alive in zip(launch.rows, live, strict=True) if alive}

        def resolved(found: list[list[int]]) -> None:
            runs.extend(found)
            self._resolved(launch, result, before, runs, live)

        def appended(request: Request) -> None:
            number = numbers[request.rid]
            if request.rid not in waiting:
                self._observer.stale_run_taken(request)
            waiting.discard(request.rid)
            self._appended(request, result, number, len(runs[number]))

        def end_frees() -> None:
            for rid in sorted(waiting):
                self._observer.run_not_taken(rid)
            self._end_frees()

        return ResultSteps(
            resolved,
            self._begin_frees,
            end_frees,
            appended,
            self._checked_alone,
            self._releasing,
            self._released,
        )

    def _appended(self, request: Request, result: DecodeResult, number: int, count: int) -> None:
        """Request `number` of a launch has its run of `count` tokens."""
        if request.turn.return_logprob:
            take_rows(request, result, number, count)
        request.resolved += count
        self._observer.after_append(request, "resolve")

    def _checked_alone(self, request: Request) -> None:
        self._observer.after_finish_check(request)

    def _resolved(
        self, launch: Launch, result: DecodeResult, before: list[Observed], runs: list[list[int]], live: list[bool]
    ) -> None:
        self._observer.after_memory_calls("resolve")
        if not self._log.is_quiet:
            details = [
                f"{row.request.rid}:{'+' if alive else 'stale '}{accept_len}"
                for row, alive, accept_len in zip(launch.rows, live, result.accept_lens, strict=True)
            ]
            self._log.record("host", "resolve", launch.name, " ".join(details))
        for row, alive in zip(launch.rows, live, strict=True):
            if row.request.key == row.key:
                row.request.pending -= 1
            if alive:
                if not row.request.pending and self._config.overlap:
                    self._log.marks.add("live_result_without_successor")
            elif row.request.state is State.FINISHED:
                self.stale_finished += 1
                self._log.marks.add("stale_result_of_finished")
            else:
                self.stale_retracted += 1
                self._log.marks.add("stale_result_of_retracted")
        self._observer.after_resolve(launch, result, before, runs, live)

    def _is_live(self, row: LaunchRow) -> bool:
        """Whether a result is of this incarnation of a request that runs."""
        return row.request.state is State.RUNNING and row.request.key == row.key

    def _append(self, request: Request, run: list[int], kind: str) -> bool:
        """Append a run; returns whether the request has finished."""
        self._accounting.append(request, run)
        self._observer.after_append(request, kind)
        self._accounting.check_finish(request, len(run))
        return self._checked(request)

    def _checked(self, request: Request) -> bool:
        """Release the request if it has ended; returns whether it has."""
        finished = self._observer.after_finish_check(request).finished
        if finished:
            self._releasing(request)
            self._accounting.release(request)
            self._released(request)
        return finished

    def _releasing(self, request: Request) -> None:
        seen = self._accounting.observe(request)
        finished_len, self._claimed = seen.finished_len, seen.committed
        visible = _visible_len(request, finished_len)
        self._log.marks.add(finish_mark(request, finished_len))
        self._log.record("host", "finish", request.rid, f"{visible} of {len(request.outputs)} outputs")
        self._batch.is_full = False  # somebody leaves
        self._observer.visible_outputs(request)
        self._observer.before_release(request)
        self._observer.before_tree_calls()

    def _released(self, request: Request) -> None:
        session, tree = self._requests.has_session(request), self._memory.tree
        visible = _visible_len(request, self._accounting.observe(request).finished_len)
        self._observer.after_memory_calls("release")
        request.happens(Event.FINISH)
        if tree is not None and not session:
            claim = min(len(request.prompt) + visible, request.kv_ready)
            if self._accounting.own.tree_gets_the_claim:
                claim = self._claimed
            if tree.key_len(claim) > request.honest_len:
                self._log.marks.add("tree_took_unwritten_position")
            self._observer.inserted(request, claim, "release", -1)
        if request.turn.session and not request.abort_wanted:
            self._requests.histories[request.turn.session] = request.prompt + request.outputs[:visible]
        if session and request.abort_wanted:
            self._observer.session_aborted(request, None)
        elif session:
            self._observer.session_saved(request, request.kv_ready)

    def _begin_frees(self) -> None:
        self._memory.allocator.free_group_begin()
        self._observer.free_group_begin()

    def _end_frees(self) -> None:
        self._memory.allocator.free_group_end()
        self._observer.free_group_end()
        self._observer.ownership("release", self._requests.everybody, self._requests.open_sessions)


def _visible_len(request: Request, finished_len: int | None) -> int:
    """How many of its outputs the client sees: all of them when nothing cut the answer."""
    return len(request.outputs) if finished_len is None else finished_len
