"""The state of an engine between two steps: copied for an explorer, and as a value that distinguishes states.

The value holds everything that can decide what happens next or whether a rule is kept: requests, rows, allocator,
ledgers, the device's stream and the content of every slot, the relay, sessions, and where the host is. It leaves out
what is history alone: the event log and its digest, marks, counters of iterations and of stale results, and the numbers
of launches. Slots that nobody owns and rows behind their end count too: a defect may read them.

A scenario whose state lives in parts that are not copied (`require_forkable`) is refused.

A test holds that no attribute of the classes that are copied is forgotten here.
"""

from __future__ import annotations

import hashlib
import marshal
from collections import deque
from typing import Any

from specsim.choices.chooser import Chooser
from specsim.engine.accounting import Held, Memory
from specsim.engine.device import Device
from specsim.engine.launch import DecodeResult, Launch, LaunchRow, RowCopies, Sequence
from specsim.engine.loop import Engine
from specsim.engine.memory.allocator import Allocator, SlotWatcher
from specsim.engine.memory.sessions import Sessions, SessionSlot
from specsim.engine.request import Request
from specsim.engine.seam import Seam
from specsim.engine.shallow_copy import shallow_copy
from specsim.engine.workload import Scenario
from specsim.errors import UsageError

HOST, DEVICE = 0, 1

# Labels whose bound is a probability: what their values lead to, one value for each outcome.
OUTCOMES = dict.fromkeys(("arrives later", "admit later", "abort", "retract on demand", "pause", "timeout"), (0, 1))
# Choices that a schedule may make any number of times without getting anywhere; a scope says how often.
DELAYS = frozenset({"arrives later", "admit later", "idle batch"})


def require_forkable(scenario: Scenario) -> None:
    """Raises UsageError for a scenario with a part that a fork does not copy."""
    config = scenario.config
    parts = {
        "radix": config.radix,
        "window": config.window,
        "draft_layers": config.draft_layers,
        "mixed_chunk": config.mixed_chunk,
        "graph_sizes": config.graph_sizes,
        "relaxed_penalties": config.relaxed_penalties,
        "streams": config.streams,
        "sampling or return_logprob of a request": scenario.workload.has_distributions,
    }
    on = [name for name, is_on in parts.items() if is_on]
    if on:
        raise UsageError(
            f"no exploration copies the state of {', '.join(on)}", "turn it off, or draw schedules with specsim check"
        )


class EngineState:
    """An engine that an explorer forks and steps (`specsim.choices.exhaustive.System`).

    `delays` is how often the schedule may still let a request arrive or be admitted later than it could, or run a
    batch of nobody. UsageError for a scenario that cannot be forked.
    """

    __slots__ = ("delays", "engine")

    def __init__(self, engine: Engine, delays: int) -> None:
        require_forkable(Scenario(engine.config, engine.workload))
        self.engine = engine
        self.delays = delays
        engine.log.is_quiet = True

    def agents(self) -> tuple[int, ...]:
        """Who can go next; the host first, as choice 0 does. Nobody when the run is over."""
        engine = self.engine
        if engine.ended:
            return ()
        if not engine.device_can_go:
            return (HOST,)
        return (HOST, DEVICE) if engine.host_can_go else (DEVICE,)

    def chooses(self, agent: int) -> bool:
        """Whether the agent's next step may ask for a choice. The device never does."""
        engine = self.engine
        if agent == DEVICE:
            return False
        if engine.phase in ("schedule", "pause"):
            faults_left = engine.pauses_left or engine.arrivals.timeouts_left or engine.paused
            return bool(engine.batch.running or engine.batch.merging or faults_left or engine.config.idle_batches)
        return bool(engine.arrivals.to_come or engine.arrivals.aborts_left)

    def step(self, agent: int, chooser: Chooser) -> None:
        engine: Any = self.engine
        engine.chooser = chooser
        engine.step(agent == DEVICE)
        engine.chooser = None  # a chooser knows this state: no cycle is left for the collector

    def outcomes(self, bound: int, label: str) -> tuple[int, ...] | range:
        """The values of a choice that lead to different states."""
        if label in DELAYS and not self.delays:
            return (0,)
        return OUTCOMES.get(label) or range(bound)

    def chosen(self, value: int, label: str) -> None:
        if value and label in DELAYS:
            self.delays -= 1

    def broken(self) -> tuple[str, ...]:
        """Signatures of the rules that were broken on the way here."""
        return tuple(violation.signature for violation in self.engine.observer.violations)

    def fork(self) -> EngineState:
        forked = EngineState.__new__(EngineState)
        forked.engine = fork(self.engine)
        forked.delays = self.delays
        return forked

    def key(self) -> bytes:
        return hashlib.blake2b(marshal.dumps((self.delays, value(self.engine)), 2), digest_size=16).digest()


def fork(engine: Engine) -> Engine:
    """A copy of an engine that logs nothing. What is never changed is shared, and so are the marks, which nobody reads
    but a log, and what a step writes before it reads it: the prefix lengths of an admission.
    """
    unresolved, old_device = engine.launches.unresolved, engine.launches.device
    requests = {request: _fork_request(request) for request in engine.requests.everybody}
    rows = RowCopies(requests)
    launches = {id(launch): _fork_launch(launch, rows) for launch in unresolved}
    output = old_device._output[:]
    for launch in launches.values():
        # A defect hands out the buffer itself: then the copy's results are in the copy's buffer.
        if launch.result is not None and launch.result.next_token_ids is old_device._output:
            launch.result.next_token_ids = output

    observer = engine.observer.fork()
    memory = _fork_memory(engine.memory, observer.slots)
    accounting = shallow_copy(engine.accounting)
    of_model: Any = accounting
    of_model._memory = memory
    observer.attach(memory, accounting)

    new = Engine.__new__(Engine)
    new.config, new.workload, new.chooser = engine.config, engine.workload, engine.chooser
    new.memory, new.accounting, new.observer = memory, accounting, observer
    new.log = engine.log.fork(observer)
    seam = Seam(engine.config, memory, accounting, observer, new.log)
    new.requests = table = engine.requests.fork(requests)
    new.batch = batch = engine.batch.fork(seam, table, rows)
    new.arrivals = engine.arrivals.fork(seam, table, batch)
    # A launch is on the device's stream until it is executed, and unresolved until long after.
    device = _fork_device(old_device, launches, output)
    new.launches = engine.launches.fork(seam, batch, device, launches.values())
    chunked = engine.admission.chunked
    new_chunked = requests[chunked] if chunked is not None else None
    new.admission = engine.admission.fork(seam, table, batch, new.launches, new_chunked)
    new.results = engine.results.fork(seam, table, batch, new.launches, new.admission)
    new.phase, new.to_resolve = engine.phase, engine.to_resolve
    new.awaited = launches[id(engine.awaited)] if engine.awaited is not None else None
    new.prepared = [rows.of(row) for row in engine.prepared] if engine.phase == "launch" else []
    new.paused, new.pauses_left = engine.paused, engine.pauses_left
    return new


def _fork_request(request: Request) -> Request:
    held: Held = request.state_of_accounting
    new = Request(
        request.turn,
        request.prompt,
        request.specials,
        request.outputs[:],
        request.state,
        request.incarnation,
        request.extend_len,
        request.resolved,
        request.pending,
        request.abort_wanted,
        request.outputs_before,  # what follows is of sampled requests
    )
    new.state_of_accounting = Held(
        held.row,
        held.honest,
        held.in_flight,
        held.allocated,
        held.launches,
        held.is_retracted,
        held.finished,
        held.finished_len,
        held.to_finish,
        held.verify_count,
        held.accepted_drafts,
        held.histogram[:],
        held.protected,
        held.node,
        held.evicted,
    )
    return new


def _fork_launch(launch: Launch, rows: RowCopies) -> Launch:
    result = launch.result
    return Launch(
        launch.number,
        launch.kind,
        [rows.of(row) for row in launch.rows],
        launch.num_steps,
        launch.num_draft_tokens,
        launch.done,
        launch.first_tokens,
        launch.first_hidden_states,
        result
        and DecodeResult(
            result.next_token_ids,
            result.accept_lens,
            result.stride,
            result.accepted_drafts,
            result.hidden_states,
            result.logprobs,
        ),
        launch.grammar_advanced,
    )


def _fork_memory(memory: Memory, watcher: SlotWatcher) -> Memory:
    old_allocator = memory.allocator
    assert isinstance(old_allocator, Allocator)
    rows = shallow_copy(memory.rows)
    rows.buffer = memory.rows.buffer[:]
    rows.free_rows = memory.rows.free_rows[:]
    rows.writes = None  # of streams
    allocator = shallow_copy(old_allocator)
    allocator._watcher = watcher
    allocator._free_pages = old_allocator._free_pages[:]
    sessions = Sessions()
    for name, slot in memory.sessions.slots.items():
        sessions.slots[name] = SessionSlot(
            slot.row, slot.claim, slot.allocated, slot.protected, slot.node, slot.evicted
        )
    return Memory(memory.config, rows, allocator, sessions, steps=memory.steps, next_steps=memory.next_steps)


def _fork_device(device: Device, launches: dict[int, Launch], output: list[int]) -> Device:
    # What a launch showed is a new list at each launch, and there is nothing that a grammar has not read.
    new = shallow_copy(device)
    new.content = device.content[:]
    new.ring = shallow_copy(device.ring)
    new.ring.entries = device.ring.entries[:]
    new._output, new._locations, new._written = output, {}, {}
    new._drafted, new._verified, new.wrong_slots = {}, {}, []  # of targets with locations of their own
    new.stream = deque([launches[id(launch)] for launch in device.stream])
    new.sequences = {key: Sequence(s.chain[:], s.root, s.state) for key, s in device.sequences.items()}
    return new


def value(engine: Engine) -> tuple[Any, ...]:
    """The state of an engine as tuples, lists, numbers, strings and bytes: equal states have equal values, and the
    same run has the same value on every machine.
    """
    requests, batch, arrivals, admission = engine.requests, engine.batch, engine.arrivals, engine.admission
    index = {request: at for at, request in enumerate(requests.everybody)}
    memory, device = engine.memory, engine.launches.device
    assert isinstance(memory.allocator, Allocator)
    return (
        (engine.phase, engine.to_resolve, engine.awaited is not None),
        (arrivals.aborts_left, batch.retractions_left, arrivals.timeouts_left, engine.pauses_left),
        (engine.paused, batch.steps, memory.steps, memory.next_steps, batch.is_full, len(arrivals.to_come)),
        [_request_value(request) for request in requests.everybody],
        [index[r] for r in requests.waiting],
        [index[r] for r in batch.running],
        [index[r] for r in batch.merging],
        [row.relay_out for row in batch.merging_rows],
        [_row_value(row, index) for row in engine.prepared] if engine.phase == "launch" else [],
        index[admission.chunked] if admission.chunked else None,
        batch.futures.indices,
        engine.observer.state(batch.running),
        sorted(admission._resumed),
        requests.open_sessions,
        sorted(requests.histories.items()),
        sorted(engine.launches._device_lens.items()),
        [_launch_value(launch, index, device._output) for launch in engine.launches.unresolved],
        len(device.stream),
        device.content,
        (device.ring._next, [left and tuple(left) for left in device.ring.entries]),
        # The last fingerprint is one of the whole sequence.
        sorted((key, len(s.chain), s.chain[-1], s.root, s.state) for key, s in device.sequences.items()),
        memory.rows.buffer.tobytes(),
        memory.rows.free_rows,
        memory.allocator._free_pages,
        [(name, slot.row, slot.claim, slot.allocated) for name, slot in sorted(memory.sessions.slots.items())],
    )


def _request_value(request: Request) -> tuple[Any, ...]:
    held: Held = request.state_of_accounting
    return (
        request.turn.rid,
        request.state._value_,
        request.incarnation,
        request.extend_len,
        request.resolved,
        request.pending,
        request.abort_wanted,
        request.outputs_before,
        request.prompt if request.turn.session else None,  # else it is the turn's
        request.outputs,
        held.row,
        held.honest,
        held.in_flight,
        held.allocated,
        held.launches,
        held.is_retracted,
        held.finished,
        held.finished_len,
        held.to_finish,
        held.verify_count,
        held.accepted_drafts,
        held.histogram,
    )


def _launch_value(launch: Launch, index: dict[Request, int], output: list[int]) -> tuple[Any, ...]:
    """Slots, trees and tokens are the device's: they do not matter when it is done."""
    result = launch.result
    if launch.done:
        names = [(index[row.request], row.key[1], row.is_middle) for row in launch.rows]
        of_result = result and (result.next_token_ids, result.accept_lens, result.stride, result.accepted_drafts)
        is_overwritten = result is not None and result.next_token_ids is output
        return (launch.kind, names, launch.first_tokens, of_result, is_overwritten)
    return (launch.kind, launch.num_steps, launch.num_draft_tokens, [_row_value(row, index) for row in launch.rows])


def _row_value(row: LaunchRow, index: dict[Request, int]) -> tuple[Any, ...]:
    return (
        index[row.request],
        row.key[1],
        row.slots,
        row.plan and (row.plan.parents, sorted(row.plan.agreeing)),
        row.tokens,
        row.prefix_len,
        row.row,
        row.is_middle,
        row.relay_in,
        row.relay_out,
    )
