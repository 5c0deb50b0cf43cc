"""Streams of the device: the host queues operations, events order them, and the chooser picks whose head runs next.

    schedule   writes the device's copies of `req_to_token`, of the window's mapping and of penalties
    plan       makes the attention metadata of the next verification, slots and lengths, and the mask of its grammars
    forward    prefills; for a decode step the verification, then the draft extend
    copy       copies tokens and accept lengths to a host buffer

An operation runs when those before it on its stream and those that it waits for have run, and reads what is there then.
What a right engine waits for, and why:

- the schedule stream for the last read of the launch that was queued before (write after read: of what launches write
  sgl-project/sglang#26380, of what results write #31687);
- a plan for the rows of its launch, and for the lengths of the launch before, whose verification has used the plan;
- a prefill for its rows, a verification for its plan and its mask, the copy of either for its tokens;
- a forward for the copy of the launch before, before it writes the tokens to the same buffer;
- a mask for the tokens that the launch before has given its grammar;
- the host for the copy of the result that it takes. Host buffers are used in turn.

Every access of something that two agents share is told to `specsim.check.happens_before` when its operation is queued.
KV slots are the forward stream's alone, whose order protects a slot that is given to somebody else.

Not simulated: a draft that runs beside its own plan; copies to the device; the events of several ranks.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from specsim.check.happens_before import AGENTS, COPY, FORWARD, HOST, PLAN, SCHEDULE, HappensBefore, Race, Step
from specsim.explore.chooser import Chooser
from specsim.sim.accounting import DecodeResult, Memory
from specsim.sim.device import Device, Launch, LaunchRow
from specsim.sim.grammar import advance_grammar
from specsim.sim.lifecycle import State
from specsim.sim.sampling import Counts

HOST_BUFFERS = 2  # as many as launches whose results the host has not taken

_PLAN, _OUTPUT, _MASK = ("plan", 0), ("output", 0), ("mask", 0)


@dataclass(slots=True, eq=False)
class Operation:
    """What one stream does at one time. `run` returns a launch that it has computed, or None. `of` names its launch, or
    what it is for.

    `number` counts operations in the order in which they were queued; an event that is recorded behind an operation is
    the operation itself.
    """

    stream: int
    name: str
    of: str
    number: int
    step: Step
    waits: tuple[Operation, ...]
    run: Callable[[], Launch | None]
    launch: Launch | None = None
    done: bool = False

    @property
    def agent(self) -> str:
        return AGENTS[self.stream]

    @property
    def is_ready(self) -> bool:
        """Whether what it waits for has run. It must be the first of its stream, too."""
        return all(other.done for other in self.waits)


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What a launch gives the host. `accept_lens` are a verification's."""

    tokens: tuple[int, ...] = ()
    accept_lens: tuple[int, ...] = ()
    hidden_states: tuple[int, ...] = ()
    logprobs: tuple[int, ...] = ()


def _nothing() -> None:
    pass


class Streams:
    """The streams of one engine, and what the device holds of the host's tables."""

    def __init__(self, memory: Memory, device: Device) -> None:
        self._memory = memory
        self._device = device
        self._clocks = HappensBefore()
        self._queues: list[deque[Operation]] = [deque() for _ in AGENTS]
        self._queued = 0
        start = Operation(HOST, "start", "", 0, self._clocks.step(HOST, "start", ()), (), _nothing, done=True)
        self._written = self._reads_done = self._published = self._copied = start
        self._before: Launch | None = None
        self._results: dict[int, Operation] = {}
        self._rows = memory.rows.writes = []
        self._mapped: list[tuple[int, int]] = []
        self._table = array("i", memory.rows.buffer)
        self._mapping = array("i")
        if memory.swa is not None:
            memory.swa.mapped = self._mapped
            self._mapping = array("i", memory.swa.swa_slots)
        self._penalties: dict[int, Counts] = {}
        self._plan: list[tuple[list[int], int]] = []
        self._output = _Tokens()
        self._host_buffers = [_Tokens()] * HOST_BUFFERS

    @property
    def race(self) -> Race | None:
        return self._clocks.race

    @property
    def can_go(self) -> bool:
        return any(queue and queue[0].is_ready for queue in self._queues)

    def run_next(self, chooser: Chooser) -> tuple[Operation, Launch | None]:
        """Run the head of a stream, the one that was queued first if nothing else is chosen; returns it, and the launch
        that it has computed.
        """
        heads = sorted((q[0] for q in self._queues if q and q[0].is_ready), key=lambda operation: operation.number)
        operation = heads[chooser.choose(len(heads), "stream") if len(heads) > 1 else 0]
        self._queues[operation.stream].popleft()
        computed = operation.run()
        operation.done = True
        launch = operation.launch
        if launch is not None:
            launch.done = launch.done or self._results.get(launch.number) is operation
        return operation, computed

    # What the host queues

    def write_tables(self, of: str) -> None:
        """Queue what the host has written to its tables since: the device's copies get it. `of` is the launch that it
        is for, or "result" and the launch that it came of.
        """
        barrier = (self._reads_done,)
        if self._mapped:
            mapped = self._mapped[:]
            self._mapped.clear()
            writes = self._queue(SCHEDULE, "map", of, partial(self._map, mapped), barrier)
            for slot in dict(mapped):
                self._clocks.write(("window slot", slot), writes.step)
            self._written = writes
        if self._rows:
            rows = self._rows[:]
            self._rows.clear()
            writes = self._queue(SCHEDULE, "write", of, partial(self._write, rows), barrier)
            for row, start, slots in rows:
                self._clocks.write_row(row, start, start + len(slots), writes.step)
            self._written = writes

    def launch(self, launch: Launch) -> None:
        """Queue the operations of a launch."""
        counts = {row.row: row.counts for row in launch.rows if row.counts is not None}
        if counts:
            penalties = partial(self._penalties.update, counts)
            self._written = self._queue(SCHEDULE, "penalize", launch, penalties, (self._reads_done,))
            for batch_row in counts:
                self._clocks.write(("penalties", batch_row), self._written.step)
        self.write_tables(launch.name)
        computed = self._prefill_of(launch) if launch.kind == "prefill" else self._decode_of(launch)
        copied = self._queue(COPY, "copy", launch, partial(self._copy, launch), (computed,))
        self._clocks.read(_OUTPUT, copied.step)
        self._clocks.write(_host_buffer(launch), copied.step)
        self._results[launch.number] = copied
        self._copied = copied
        self._before = launch

    def _prefill_of(self, launch: Launch) -> Operation:
        prefill = self._queue(FORWARD, "prefill", launch, partial(self._prefill, launch), (self._written, self._copied))
        self._reads_rows(prefill, launch)
        self._writes_results(prefill, launch)
        self._published = self._reads_done = prefill
        return prefill

    def _decode_of(self, launch: Launch) -> Operation:
        make_plan = partial(self._make_plan, launch)
        plan = self._queue(PLAN, "plan", launch, make_plan, (self._written, self._published))
        self._reads_rows(plan, launch)
        for each in launch.rows:
            self._clocks.read(("relay", each.relay_in), plan.step)
        self._clocks.write(_PLAN, plan.step)
        before = self._before
        ready = plan
        if before is not None and not before.grammar_advanced and any(row.request.matcher for row in launch.rows):
            mask = self._queue(PLAN, "mask", launch, partial(self._read_grammars, before), (self._copied,))
            self._clocks.read(_host_buffer(before), mask.step)
            self._clocks.write(_MASK, mask.step)
            ready = mask
        # Who has finished since the preparation has given back its window slots: what was looked up then stays.
        ended = frozenset(row.key for row in launch.rows if row.request.state is State.FINISHED)
        compute = partial(self._verify, launch, ended)
        verify = self._queue(FORWARD, "verify", launch, compute, (ready, self._copied))
        self._clocks.read(_PLAN, verify.step)
        self._clocks.read(_MASK, verify.step)
        for each in launch.rows:
            self._clocks.read(("relay", each.relay_in), verify.step)
        for each in launch.rows:
            if each.counts is not None:
                self._clocks.read(("penalties", each.row), verify.step)
        self._reads_rows(verify, launch)
        self._writes_results(verify, launch)
        extend = self._queue(FORWARD, "extend", launch, partial(self._extend, launch), ())
        self._reads_rows(extend, launch)
        self._published = verify
        self._reads_done = extend
        return verify

    def take(self, launch: Launch) -> None:
        """The host takes the result of a launch, which it has waited for."""
        copied = self._results.pop(launch.number)
        self._clocks.read(_host_buffer(launch), self._clocks.step(HOST, f"take {launch.name}", (copied.step,)))
        self._read_host_buffer(launch)

    def _queue(
        self,
        stream: int,
        name: str,
        of: Launch | str,
        run: Callable[[], Launch | None],
        waits: tuple[Operation, ...],
    ) -> Operation:
        launch = None if isinstance(of, str) else of
        of = of if isinstance(of, str) else of.name
        step = self._clocks.step(stream, f"{name} {of}", [other.step for other in waits])
        self._queued += 1
        operation = Operation(stream, name, of, self._queued, step, waits, run, launch)
        self._queues[stream].append(operation)
        return operation

    def _reads_rows(self, operation: Operation, launch: Launch) -> None:
        """It reads all that its launch has been given, and where the window's layers have it."""
        for row in launch.rows:
            self._clocks.read_row(row.row, 0, len(row.slots), operation.step)
            if row.swa_slots:
                for slot in row.slots:
                    self._clocks.read(("window slot", slot), operation.step)

    def _writes_results(self, operation: Operation, launch: Launch) -> None:
        for row in launch.rows:
            self._clocks.write(("relay", row.relay_out), operation.step)
        self._clocks.write(_OUTPUT, operation.step)

    # What streams do

    def _map(self, writes: list[tuple[int, int]]) -> None:
        for slot, swa_slot in writes:
            self._mapping[slot] = swa_slot

    def _write(self, writes: list[tuple[int, int, list[int]]]) -> None:
        width = self._memory.rows.width
        for row, start, slots in writes:
            base = row * width + start
            for at, slot in zip(range(base, len(self._table)), slots, strict=False):
                self._table[at] = slot

    def _make_plan(self, launch: Launch) -> None:
        sequences = self._device.sequences
        self._plan = [
            (self._slots_of(row), len(sequences[row.key].chain) if row.key in sequences else 0) for row in launch.rows
        ]

    def _read_grammars(self, before: Launch) -> None:
        self._read_host_buffer(before)
        advance_grammar(before)

    def _prefill(self, launch: Launch) -> Launch:
        for row in launch.rows:
            self._give_slots(row, self._slots_of(row))
        return self._compute(launch)

    def _verify(self, launch: Launch, ended: frozenset[tuple[str, int]]) -> Launch:
        for row, (slots, length) in zip(launch.rows, self._plan, strict=False):
            self._give_slots(row, slots, is_mapped=row.key not in ended)
            row.planned_len = length
            if row.counts is not None:
                row.counts = self._penalties[row.row]
        return self._compute(launch)

    def _compute(self, launch: Launch) -> Launch:
        self._device.execute_next()
        launch.done = False  # not for the host yet
        result = launch.result
        if result is None:
            self._output = _Tokens(tuple(launch.first_tokens), (), launch.first_hidden_states)
        else:
            tokens, accept_lens = tuple(result.next_token_ids), tuple(result.accept_lens)
            self._output = _Tokens(tokens, accept_lens, result.hidden_states, result.logprobs)
        return launch

    def _extend(self, launch: Launch) -> None:
        for row in launch.rows:
            row.slots = self._slots_of(row)
        self._device.draft_extend()

    def _copy(self, launch: Launch) -> None:
        self._host_buffers[_host_buffer(launch)[1]] = self._output

    def _slots_of(self, row: LaunchRow) -> list[int]:
        """The slots of a launch's row, as the device has them now."""
        base = row.row * self._memory.rows.width
        return self._table[base : base + len(row.slots)].tolist()

    def _give_slots(self, row: LaunchRow, slots: list[int], *, is_mapped: bool = True) -> None:
        row.slots = slots
        if row.swa_slots and is_mapped:
            row.swa_slots = [self._mapping[slot] for slot in slots]

    def _read_host_buffer(self, launch: Launch) -> None:
        """Give a launch what its host buffer holds, which is another's when nobody has waited."""
        held = self._host_buffers[_host_buffer(launch)[1]]
        count = len(launch.rows)
        old = launch.result
        if old is None:
            launch.first_tokens = _resized(held.tokens, count, 0)
            launch.first_hidden_states = tuple(_resized(held.hidden_states, count, 0))
        else:
            tokens = _resized(held.tokens, count * old.stride, 0)
            accept_lens = _resized(held.accept_lens, count, 1)
            launch.result = DecodeResult(
                tokens, accept_lens, old.stride, hidden_states=held.hidden_states, logprobs=held.logprobs
            )


def _host_buffer(launch: Launch) -> tuple[str, int]:
    return ("host buffer", launch.number % HOST_BUFFERS)


def _resized(values: tuple[int, ...], count: int, filler: int) -> list[int]:
    """`count` values, with what lies in the rest of the buffer."""
    return [*values[:count], *[filler] * (count - len(values))]
