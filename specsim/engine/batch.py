"""The batch that decodes: who is in it, its next step, and who is retracted from it."""

from __future__ import annotations

from specsim.choices.chooser import Chooser
from specsim.engine.acceptance_plan import draw_plan
from specsim.engine.accounting import out_of_memory
from specsim.engine.launch import LaunchRow, RowCopies
from specsim.engine.lifecycle import Event, State
from specsim.engine.marks import retract_marks
from specsim.engine.memory.allocator import OutOfSlotsError
from specsim.engine.memory.rows import RowsExhaustedError
from specsim.engine.relay import Futures
from specsim.engine.request import Request
from specsim.engine.request_table import RequestTable
from specsim.engine.sampling import cumulate
from specsim.engine.seam import Seam


class Batch:
    """Who decodes.

    `running`  the requests of the next decode step, and `futures` where the relay has what each begins with
    `merging`  those whose prefill is launched and who join next, and `merging_rows` their rows in that launch
    `is_full`  whether the last admission ended for want of memory, and nobody has left since
    `steps`    draft steps of the next launch
    """

    __slots__ = (
        "_accounting",
        "_config",
        "_log",
        "_memory",
        "_observer",
        "_penalty_counts",
        "_requests",
        "futures",
        "is_full",
        "merging",
        "merging_rows",
        "retractions_left",
        "running",
        "steps",
    )

    def __init__(
        self,
        seam: Seam,
        requests: RequestTable,
        *,
        retractions_max: int,
        has_distributions: bool,
    ) -> None:
        self._config, self._memory, self._accounting, self._observer, self._log = seam
        self._requests = requests
        self._penalty_counts = seam.accounting.own.penalty_counts if has_distributions else None
        self.running: list[Request] = []
        self.futures = Futures()
        self.merging: list[Request] = []
        self.merging_rows: list[LaunchRow] = []
        self.is_full = False
        self.steps = seam.config.num_steps
        self.retractions_left = retractions_max

    def fork(self, seam: Seam, requests: RequestTable, copies: RowCopies) -> Batch:
        """A copy over copies of what it uses."""
        new = Batch.__new__(Batch)
        new._config, new._memory, new._accounting, new._observer, new._log = seam
        new._requests = requests
        new._penalty_counts = self._penalty_counts
        new.running = [copies.requests[request] for request in self.running]
        new.futures = Futures(self.futures.indices[:])
        new.merging = [copies.requests[request] for request in self.merging]
        new.merging_rows = [copies.of(row) for row in self.merging_rows]
        new.is_full = self.is_full
        new.steps = self.steps
        new.retractions_left = self.retractions_left
        return new

    def merge(self) -> None:
        """Who has finished leaves; whose prefill was launched joins."""
        batch = [*self.running, *self.merging]
        kept = [i for i, r in enumerate(batch) if r.state is not State.FINISHED]
        if self.merging and len(kept) < len(batch):
            self._log.marks.add("batch_lost_and_gained")
        self.running = [batch[i] for i in kept]
        self.futures.merge([row.relay_out for row in self.merging_rows])
        self.futures.filter(kept)
        self.merging, self.merging_rows = [], []

    def disband(self) -> list[Request]:
        """Everybody leaves; returns who has not finished."""
        batch = [r for r in [*self.running, *self.merging] if r.state is not State.FINISHED]
        self.running, self.merging = [], []
        self.futures, self.merging_rows, self.is_full = Futures(), [], False
        return batch

    def prepare_beside(self, chooser: Chooser) -> list[LaunchRow]:
        """The decode rows that a prefill takes along: everybody who runs, if there is memory for their next step."""
        if not self.running:
            return []
        self._choose_steps(chooser)
        if self._accounting.decode_need(self.running) > self._memory.available:
            return []
        self._log.marks.add("mixed chunk")
        return self._prepare(chooser, self.running)

    def prepare_decode(self, chooser: Chooser) -> list[LaunchRow]:
        """The rows of the next decode step, none when nobody runs."""
        batch = self.running
        if not batch:
            return []
        self._choose_steps(chooser)
        on_demand = bool(self.retractions_left and len(batch) > 1 and chooser.choose(4, "retract on demand") == 1)
        if on_demand or self._accounting.decode_need(batch) > self._memory.available:
            self.retractions_left -= on_demand
            batch = self._retract(batch, "on demand" if on_demand else "pressure")
            if not batch:
                return []
        return self._prepare(chooser, batch)

    def note_window(self, rows: list[LaunchRow]) -> None:
        """The slots of the sliding window, as they are now."""
        if self._memory.swa is not None:
            for row in rows:
                row.swa_slots = [self._memory.swa.swa_slots[slot] for slot in row.slots]
                if not all(row.swa_slots):
                    self._log.marks.add("window slots given back")

    def retracted(self, request: Request, why: str) -> None:
        """A request waits again, whose memory was taken."""
        self._log.record("host", "retract", request.rid, why)
        self._log.marks |= retract_marks(request, why)
        self._log.retracted_in[request.rid] = self._log.iterations
        if request.turn.session:
            self._requests.retracted_turns[request.turn.session] = request.rid
        self._observer.before_release(request)
        request.happens(Event.RETRACT)
        self._observer.waiting(request, "retract")
        self._observer.inserted_nothing(request, "retract")
        self._requests.waiting.append(request)

    def _choose_steps(self, chooser: Chooser) -> None:
        if self._config.adaptive:
            before_last = self.steps
            self.steps = self._config.num_steps - chooser.choose(self._config.num_steps, "fewer steps")
            self._memory.steps, self._memory.next_steps = max(before_last, self.steps), self.steps

    def _prepare(self, chooser: Chooser, batch: list[Request]) -> list[LaunchRow]:
        before = [self._accounting.observe(request) for request in batch]
        self._observer.before_prepare(batch)
        try:
            self._accounting.prepare(batch)
        except (OutOfSlotsError, RowsExhaustedError) as error:
            raise out_of_memory("prepare", error) from error
        after = [self._accounting.observe(request) for request in batch]
        if not self._log.is_quiet:
            growth = [
                f"{request.rid}:{was.allocated}>{now.allocated}"
                for request, was, now in zip(batch, before, after, strict=True)
            ]
            self._log.record("host", "prepare", "", " ".join(growth))
        self._observer.after_memory_calls("prepare")
        self._observer.after_prepare(batch, before, after)
        self._observer.ownership("prepare", self._requests.everybody, self._requests.open_sessions)
        rows = []
        for request, now in zip(batch, after, strict=True):
            assert now.row is not None
            slots = self._memory.rows.read(now.row, 0, now.allocated)
            fed = self._penalty_counts(request) if self._penalty_counts is not None else None
            counts = (cumulate(request) if fed is None else fed) if self._config.relaxed_penalties else None
            plan = draw_plan(chooser, self._config, self.steps)
            rows.append(LaunchRow(request, request.key, slots, plan, row=now.row, counts=counts, fed=fed))
            request.pending += 1
        for launch_row, index in zip(rows, self.futures.indices, strict=False):
            launch_row.relay_in = index
        self.note_window(rows)
        return rows

    def _retract(self, batch: list[Request], why: str) -> list[Request]:
        marks = self._log.marks
        self._observer.before_tree_calls()
        outcome = self._accounting.retract(batch)
        self._observer.after_memory_calls("retract")
        for request in outcome.retracted:
            if request.state is State.PREFILLING:
                marks.add("prefill_result_of_retracted")
            self.retracted(request, why)
        for request in outcome.aborted:
            self._log.record("host", "drop", request.rid, "not even one request fits")
            marks.add("retract: last request")
            if request.pending or request.state is State.PREFILLING:
                marks.add("dropped_in_flight")
            self._observer.before_release(request)
            request.abort_wanted = True
            request.happens(Event.DROP)
            if self._requests.has_session(request):
                self._observer.session_aborted(request, None)
        self.futures.filter([batch.index(request) for request in outcome.kept])
        self.running = outcome.kept
        self.is_full = False
        self._observer.ownership("retract", self._requests.everybody, self._requests.open_sessions)
        return outcome.kept
