"""Streams of the device: the host queues operations, events order them, and the chooser picks whose head runs next.

    schedule   writes the device's copies of `req_to_token`, of the window's mapping and of penalties
    plan       makes the attention metadata of the next verification, slots and lengths, and the mask of its grammars
    forward    prefills; for a decode step the verification, then the draft extend
    copy       copies tokens and accept lengths to a host buffer

An operation runs when those before it on its stream and those that it waits for have run, and reads what is there then.
What a correct engine waits for, and why:

- the schedule stream for the last read of the launch that was queued before (write after read: of what launches write
  sgl-project/sglang#26380, of what results write #31687);
- a plan for the rows of its launch, and for the lengths of the launch before, whose verification has used the plan;
- a prefill for its rows, a verification for its plan and its mask, the copy of either for its tokens;
- a forward for the copy of the launch before, before it writes the tokens to the same buffer;
- a mask for the tokens that the launch before has given its grammar;
- the host for the copy of the result that it takes. Host buffers are used in turn.

Every access of something that two agents share is reported when its operation is queued
(`specsim.engine.observer.Accesses`). KV slots are the forward stream's alone, whose order protects a slot that is given
to somebody else.

Not simulated: a draft that runs beside its own plan; copies to the device; the events of several ranks.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from specsim.choices.chooser import Chooser
from specsim.engine.accounting import Memory
from specsim.engine.agents import AGENTS, COPY, FORWARD, HOST, PLAN, SCHEDULE, Race, Step
from specsim.engine.device import Device
from specsim.engine.launch import DecodeResult, Launch, LaunchRow, advance_grammar
from specsim.engine.lifecycle import State
from specsim.engine.observer import Accesses
from specsim.engine.sampling_params import Counts

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
        for other in self.waits:  # noqa: SIM110 - of one or two, and evaluated at every step
            if not other.done:
                return False
        return True


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

    def __init__(self, memory: Memory, device: Device, accesses: Accesses) -> None:
        self._memory = memory
        self._device = device
        self._accesses = accesses
        self._queues: list[deque[Operation]] = [deque() for _ in AGENTS]
        self._queued = 0
        start = Operation(HOST, "start", "", 0, self._accesses.step(HOST, "start", ()), (), _nothing, done=True)
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
        self._output: list[_Tokens] = []
        self._host_buffers: list[list[_Tokens]] = [[]] * HOST_BUFFERS

    @property
    def race(self) -> Race | None:
        return self._accesses.race

    @property
    def can_go(self) -> bool:
        for queue in self._queues:  # noqa: SIM110 - evaluated at every step
            if queue and queue[0].is_ready:
                return True
        return False

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
                self._accesses.write(("window slot", slot), writes.step)
            self._written = writes
        if self._rows:
            rows = self._rows[:]
            self._rows.clear()
            writes = self._queue(SCHEDULE, "write", of, partial(self._write, rows), barrier)
            for row, start, slots in rows:
                self._accesses.write_row(row, start, start + len(slots), writes.step)
            self._written = writes

    def launch(self, launch: Launch) -> None:
        """Queue the operations of a launch."""
        counts = {row.row: row.counts for part in launch.parts for row in part.rows if row.counts is not None}
        if counts:
            penalties = partial(self._penalties.update, counts)
            self._written = self._queue(SCHEDULE, "penalize", launch, penalties, (self._reads_done,))
            for of_row in counts:
                self._accesses.write(("penalties", of_row), self._written.step)
        self.write_tables(launch.name)
        verifies = launch.verifies
        ready = self._written if verifies is None else self._plan_of(launch, verifies)
        # Who has finished since the preparation has given back its window slots: what was looked up then stays.
        rows = [row for part in launch.parts for row in part.rows]
        ended = frozenset(row.key for row in rows if row.request.state is State.FINISHED)
        name = "verify" if launch.kind == "decode" else "prefill"
        compute = partial(self._compute, launch, ended)
        computed = self._queue(FORWARD, name, launch, compute, (ready, self._copied))
        if verifies is not None:
            self._accesses.read(_PLAN, computed.step)
            self._accesses.read(_MASK, computed.step)
            for row in verifies.rows:
                self._accesses.read(("relay", row.relay_in), computed.step)
                if row.counts is not None:
                    self._accesses.read(("penalties", row.row), computed.step)
        self._reads_rows(computed, rows)
        for row in rows:
            self._accesses.write(("relay", row.relay_out), computed.step)
        self._accesses.write(_OUTPUT, computed.step)
        self._published = self._reads_done = computed
        if verifies is not None:
            extend = self._queue(FORWARD, "extend", launch, partial(self._extend, verifies), ())
            self._reads_rows(extend, verifies.rows)
            self._reads_done = extend
        copied = self._queue(COPY, "copy", launch, partial(self._copy, launch), (computed,))
        self._accesses.read(_OUTPUT, copied.step)
        self._accesses.write(_host_buffer(launch), copied.step)
        self._results[launch.number] = copied
        self._copied = copied
        self._before = launch

    def _plan_of(self, launch: Launch, verifies: Launch) -> Operation:
        """The operation that a verification waits for: its plan, or the mask behind it."""
        make_plan = partial(self._make_plan, verifies)
        plan = self._queue(PLAN, "plan", launch, make_plan, (self._written, self._published))
        self._reads_rows(plan, verifies.rows)
        for row in verifies.rows:
            self._accesses.read(("relay", row.relay_in), plan.step)
        self._accesses.write(_PLAN, plan.step)
        before = self._before
        unread = before is not None and not all(part.grammar_advanced for part in before.parts)
        if before is None or not unread or not any(row.request.matcher for row in verifies.rows):
            return plan
        mask = self._queue(PLAN, "mask", launch, partial(self._read_grammars, before), (self._copied,))
        self._accesses.read(_host_buffer(before), mask.step)
        self._accesses.write(_MASK, mask.step)
        return mask

    def take(self, launch: Launch) -> None:
        """The host takes the result of a launch, which it has waited for."""
        copied = self._results.pop(launch.number)
        self._accesses.read(_host_buffer(launch), self._accesses.step(HOST, f"take {launch.name}", (copied.step,)))
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
        step = self._accesses.step(stream, f"{name} {of}", [other.step for other in waits])
        self._queued += 1
        operation = Operation(stream, name, of, self._queued, step, waits, run, launch)
        self._queues[stream].append(operation)
        return operation

    def _reads_rows(self, operation: Operation, rows: list[LaunchRow]) -> None:
        """It reads all that these rows have been given, and where the window's layers have it."""
        for row in rows:
            self._accesses.read_row(row.row, 0, len(row.slots), operation.step)
            if row.swa_slots:
                for slot in row.slots:
                    self._accesses.read(("window slot", slot), operation.step)

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

    def _make_plan(self, verifies: Launch) -> None:
        sequences = self._device.sequences
        self._plan = [
            (self._slots_of(row), len(sequences[row.key].chain) if row.key in sequences else 0) for row in verifies.rows
        ]

    def _read_grammars(self, before: Launch) -> None:
        self._read_host_buffer(before)
        for part in before.parts:
            advance_grammar(part)

    def _compute(self, launch: Launch, ended: frozenset[tuple[str, int]]) -> Launch:
        for row in launch.rows if launch.kind == "prefill" else ():
            self._give_slots(row, self._slots_of(row), ended)
        verifies = launch.verifies
        for row, (slots, length) in zip(verifies.rows if verifies else (), self._plan, strict=False):
            self._give_slots(row, slots, ended)
            row.planned_len = length
            if row.counts is not None:
                row.counts = self._penalties[row.row]
        self._device.execute_next()
        launch.done = False  # not for the host yet
        self._output = [_tokens_of(part) for part in launch.parts]
        return launch

    def _extend(self, verifies: Launch) -> None:
        for row in verifies.rows:
            row.slots = self._slots_of(row)
        self._device.draft_extend()

    def _copy(self, launch: Launch) -> None:
        self._host_buffers[_host_buffer(launch)[1]] = self._output

    def _slots_of(self, row: LaunchRow) -> list[int]:
        """The slots of a launch's row, as the device has them now."""
        base = row.row * self._memory.rows.width
        return self._table[base : base + len(row.slots)].tolist()

    def _give_slots(self, row: LaunchRow, slots: list[int], ended: frozenset[tuple[str, int]]) -> None:
        row.slots = slots
        if row.swa_slots and row.key not in ended:
            row.swa_slots = [self._mapping[slot] for slot in slots]

    def _read_host_buffer(self, launch: Launch) -> None:
        """Give a launch what its host buffer holds, which is another's when nobody has waited."""
        held = self._host_buffers[_host_buffer(launch)[1]]
        for part, of_part in zip(launch.parts, [*held, _Tokens(), _Tokens()], strict=False):
            count = len(part.rows)
            old = part.result
            if old is None:
                part.first_tokens = _resized(of_part.tokens, count, 0)
                part.first_hidden_states = tuple(_resized(of_part.hidden_states, count, 0))
            else:
                part.result = DecodeResult(
                    _resized(of_part.tokens, count * old.stride, 0),
                    _resized(of_part.accept_lens, count, 1),
                    old.stride,
                    hidden_states=of_part.hidden_states,
                    logprobs=of_part.logprobs,
                )


def _tokens_of(part: Launch) -> _Tokens:
    result = part.result
    if result is None:
        return _Tokens(tuple(part.first_tokens), (), part.first_hidden_states)
    tokens, accept_lens = tuple(result.next_token_ids), tuple(result.accept_lens)
    return _Tokens(tokens, accept_lens, result.hidden_states, result.logprobs)


def _host_buffer(launch: Launch) -> tuple[str, int]:
    return ("host buffer", launch.number % HOST_BUFFERS)


def _resized(values: tuple[int, ...], count: int, filler: int) -> list[int]:
    """`count` values, with what lies in the rest of the buffer."""
    return [*values[:count], *[filler] * (count - len(values))]
