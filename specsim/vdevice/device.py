"""The virtual device: streams, events, what they run and when, and what nothing orders.

Semantics are those of CUDA as PyTorch uses it. A stream runs its operations in the order of their launch. Streams that
`torch.cuda.Stream()` makes do not block, so the default stream is a stream like any other and nothing is implied
between them. An event stands for what its stream was given up to `record`; to wait for one that was never recorded is
no wait. A call that blocks the host (`synchronize`, a copy that is not `non_blocking`, a successful `query`) orders
what the host does next after what it waited for.
"""

from __future__ import annotations

import linecache
import re
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch

from specsim.choices.chooser import Chooser
from specsim.vdevice import policies
from specsim.vdevice.findings import Access, Finding, Identity, Kind, Place, Site, Sites, place_of
from specsim.vdevice.history import (
    Array,
    Clock,
    Elements,
    Memory,
    Operation,
    Use,
    Uses,
    is_covered,
    joined,
    uses_of,
    with_own,
)

CUDA = torch.device("cuda", 0)
SMALL_BYTES_MAX = 1 << 20
"""Up to which size PyTorch's allocator takes memory out of blocks for small ones."""
ASKS_MAX = 4
"""How often the host may ask for an event before it has come, on the slowest device: who polls waits for it."""
Skip = Callable[[str, Place, Any, Any], bool]
_TARGET = re.compile(r"\s*(?:\w+\.)*(\w+)\s*(?::[^=]*)?=[^=]")


class Active:
    """The device that `simulate` installed: what `torch.cuda.Stream()` belongs to."""

    device: Device | None = None


def active() -> Device:
    if Active.device is None:
        raise RuntimeError("this stream or event of a virtual device is used outside of specsim.vdevice.simulate")
    return Active.device


class Host:
    """The host among the streams: it runs what it does at once."""

    index = 0
    name = "host"


class Stream:
    """In place of `torch.cuda.Stream`. Streams of one call site are told apart by the order in which they are made."""

    def __new__(cls, device: Any = None, priority: int = 0, **_of_pytorch: Any) -> Stream:
        owner = active()
        site = owner.sites.here()
        name = _assigned_name(site)
        place = place_of(site)
        ordinal = owner.ordinals[place.file, place.function, name]
        owner.ordinals[place.file, place.function, name] += 1
        key = (place.file, place.function, name, ordinal)
        stream = owner.known_streams.get(key)
        if stream is None:
            stream = owner.known_streams[key] = owner.new_stream(name if not ordinal else f"{name}:{ordinal + 1}")
            stream.priority = priority
        return stream

    owner: Device
    index: int
    name: str
    priority: int
    device = CUDA
    device_index = 0
    device_type = 1

    def _begin(self, owner: Device, index: int, name: str) -> None:
        self.owner, self.index, self.name, self.priority = owner, index, name, 0
        self.queue: deque[Operation] = deque()
        self.clock: Clock = ()  # of what it waited for; of itself it has done `n`
        self.seen: Clock = ()  # the host's clock at the last launch
        self.n = self.done = 0

    @property
    def cuda_stream(self) -> int:
        return 0 if self.index == 1 else 0x1000 + self.index

    @property
    def stream_id(self) -> int:
        return self.index - 1

    def now(self) -> Clock:
        """The clock of what was launched so far."""
        return with_own(self.clock, self.index, self.n)

    def wait_stream(self, stream: Stream) -> None:
        owner = self.owner
        if owner.skips and owner.is_skipped("wait_stream", self, stream):
            return
        if owner.capture is not None and owner.capture.takes(self, stream):
            owner.capture.join(self, owner.capture.now(stream))
            return
        self._wait(stream, stream.n, stream.now())

    def wait_event(self, event: Event) -> None:
        owner = self.owner
        if event.stream is None or (owner.skips and owner.is_skipped("wait_event", self, event)):
            return
        if owner.capture is not None and owner.capture.takes(self, event.stream):
            owner.capture.join(self, event.clock)
            return
        self._wait(event.stream, event.n, event.clock)

    def _wait(self, stream: Stream, n: int, clock: Clock) -> None:
        self.owner.policy.launched(self.owner)
        self.clock = joined(self.clock, clock)
        if stream is not self and stream.done < n:
            self.n += 1
            self.queue.append(Operation(self, self.n, (), 0, "wait", (), waits=(stream, n)))

    def record_event(self, event: Event | None = None) -> Event:
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        owner = self.owner
        owner.policy.launched(owner)
        if not (owner.skips and owner.is_skipped("stream.synchronize", self, None)):
            owner.wait_for(self, self.n, self.now())

    def query(self) -> bool:
        owner = self.owner
        owner.policy.launched(owner)
        if self.queue:
            return False
        owner.join_host(self.now())
        return True

    def __enter__(self) -> Stream:
        self.owner.entered.append(self.owner.current)
        self.owner.current = self
        return self

    def __exit__(self, *_of_exception: object) -> None:
        self.owner.current = self.owner.entered.pop()

    def __repr__(self) -> str:
        return f"<virtual stream {self.name}>"


def _assigned_name(site: Site) -> str:
    """The name to which the call at a site is assigned, or the function that makes it."""
    place = place_of(site)
    found = _TARGET.match(linecache.getline(place.file, place.line))
    return found.group(1) if found else f"stream of {place.function}"


class Event:
    """In place of `torch.cuda.Event`."""

    def __init__(
        self, enable_timing: bool = False, blocking: bool = False, interprocess: bool = False, external: bool = False
    ) -> None:
        self.stream: Stream | None = None
        self.n = self.asked = 0
        self.clock: Clock = ()

    def record(self, stream: Stream | None = None) -> None:
        owner = active()
        stream = owner.current if stream is None else stream
        self.stream, self.n, self.asked = stream, stream.n, 0
        if owner.capture is not None and stream.index in owner.capture.numbers:
            self.clock = owner.capture.now(stream)
            return
        owner.hear_host(stream)
        self.clock = stream.now()
        owner.policy.launched(owner)

    def wait(self, stream: Stream | None = None) -> None:
        (active().current if stream is None else stream).wait_event(self)

    def query(self) -> bool:
        owner = active()
        owner.policy.launched(owner)
        if self.stream is None:
            return True
        if self.stream.done < self.n:
            self.asked += 1
            if self.asked < ASKS_MAX:
                return False
            owner.run_until(self.stream, self.n)
        owner.join_host(self.clock)
        return True

    def synchronize(self) -> None:
        owner = active()
        owner.policy.launched(owner)
        if self.stream is None or (owner.skips and owner.is_skipped("event.synchronize", self.stream, self)):
            return
        owner.wait_for(self.stream, self.n, self.clock)

    def elapsed_time(self, end_event: Event) -> float:
        """Milliseconds: none pass."""
        return 0.0

    def __repr__(self) -> str:
        return f"<virtual event of {self.stream} after operation {self.n}>"


class StreamContext:
    """In place of `torch.cuda.StreamContext`: its stream is the current one inside; None changes nothing."""

    def __init__(self, stream: Stream | None) -> None:
        self.stream = stream

    def __enter__(self) -> None:
        owner = active()
        owner.entered.append(owner.current)
        if self.stream is not None:
            owner.current = self.stream

    def __exit__(self, *_of_exception: object) -> None:
        owner = active()
        owner.current = owner.entered.pop()


class Capture:
    """What is launched while a CUDA graph is captured: on the stream where it began, and on those that wait for it.

    numbers  of each stream that takes part, by index, how many operations it has
    clocks   what each of them waited for, inside the capture
    """

    def __init__(self, stream: Stream) -> None:
        self.operations: list[Operation] = []
        self.numbers = {stream.index: 0}
        self.clocks: dict[int, Clock] = {stream.index: ()}

    def takes(self, stream: Stream, other: Stream) -> bool:
        """Whether a wait of `stream` for `other` is part of the capture."""
        if other.index in self.numbers:
            return True
        if stream.index in self.numbers:
            raise RuntimeError(f"{stream} is captured into a CUDA graph and cannot wait for {other}, which is not")
        return False

    def join(self, stream: Stream, clock: Clock) -> None:
        self.numbers.setdefault(stream.index, 0)
        self.clocks[stream.index] = joined(self.clocks.get(stream.index, ()), clock)

    def now(self, stream: Stream) -> Clock:
        return with_own(self.clocks[stream.index], stream.index, self.numbers[stream.index])

    def operation(self, stream: Stream, sequence: int, what: str, site: Site, reads: Uses, writes: Uses) -> Operation:
        index = stream.index
        self.numbers[index] += 1
        return Operation(stream, self.numbers[index], self.clocks[index], sequence, what, site, None, reads, writes)


class Accesses:
    """What a kernel in Python is given when its turn comes."""

    __slots__ = ("_by", "_report")

    def __init__(self, by: Operation, report: Callable[..., None]) -> None:
        self._by, self._report = by, report

    def host(self, tensor: Any) -> torch.Tensor:
        """The CPU tensor with the bytes of a tensor of the device."""
        return tensor.host_bytes  # type: ignore[no-any-return]

    def failed(self, error: Exception) -> None:
        """The kernel stops here, as one on a real device does at an assertion; what it has not written stays poison."""
        active().failed(self._by, error)

    def read(self, tensor: Any, elements: Any = None, is_used: Callable[[], bool] | None = None) -> None:
        """Reads these elements: flat indices into the storage, [n] int64. None for all of the tensor. A race on them is
        reported only while `is_used()`: what a kernel computes may be for nobody, as is known later.
        """
        at = _flat(tensor, elements)
        if is_used is not None and at is not None:
            self._by.matters = (*self._by.matters, (at, is_used))
        tensor.memory.read(self._by, self._report, at)

    def write(self, tensor: Any, elements: Any = None) -> None:
        """Writes these elements, as `read`."""
        tensor.memory.write(self._by, self._report, _flat(tensor, elements))


def _flat(tensor: Any, elements: Any) -> Array | None:
    tracked: Elements | None = tensor.memory.elements
    if tracked is None:
        return None
    if elements is None:
        return tracked.of(tensor.host_bytes)
    return np.asarray(elements, np.int64).reshape(-1)


class Device:
    """The device of one `simulate`.

    findings  one for each pair of places, in the order in which they were met; `counts` has how often
    ignored   those that `simulate(ignored=...)` lists as harmless
    policy    how fast each stream is
    """

    def __init__(
        self,
        chooser: Chooser,
        *,
        is_site: Callable[[str], bool],
        ignored: Sequence[Callable[[Finding], bool]] = (),
    ) -> None:
        self.sites = Sites(is_site)
        self.findings: list[Finding] = []
        self.ignored: list[Finding] = []
        self.counts: Counter[Identity] = Counter()
        self.skips: list[Skip] = []
        self.addressed: dict[int, Use] = {}  # by address, what kernels may reach through a pointer in another tensor
        self._is_ignored = ignored
        self.host = Host()
        self.host_clock: Clock = (0,)
        self.launched = 0
        self.known_streams: dict[tuple[str, str, str, int], Stream] = {}
        self.ordinals: Counter[tuple[str, str, str]] = Counter()
        self.streams: list[Stream] = []
        self.default = self.new_stream("default")
        self.current = self.default
        self.entered: list[Stream] = []
        self.capture: Capture | None = None
        self.freed: dict[int, list[tuple[Memory, int, list[Operation]]]] = {}  # by the stream that owns it
        self.is_collecting = False
        self.restart(chooser)

    def new_stream(self, name: str) -> Stream:
        stream = object.__new__(Stream)
        stream._begin(self, len(self.streams) + 1, name)
        self.streams.append(stream)
        return stream

    def restart(self, chooser: Chooser) -> None:
        """Begin a schedule: run what is pending, forget findings and history, draw a policy. Tensors, streams and what
        `skip` plants stay. Everything before is ordered before everything after, which is what forgets it.
        """
        self.drain()
        for stream in self.streams:
            self.join_host(stream.now())
        self.findings, self.ignored, self.counts = [], [], Counter()
        self.ordinals.clear()
        self.freed.clear()
        self.capture = None
        self.current = self.default
        self.entered = []
        self.policy = policies.drawn(chooser, len(self.streams))

    def name(self, tensor: Any, name: str) -> None:
        """Call a tensor's storage `name` in findings."""
        tensor.memory.given_name = name

    def track_elements(self, tensor: Any, name: str = "", *, changes_only: bool = True) -> None:
        """Follow the accesses to each element of a tensor's storage, not only to the whole.

        changes_only  a write that leaves an element as it was does not count
        """
        if name:
            self.name(tensor, name)
        self.drain()
        tensor.memory.elements = Elements(tensor.host_bytes, changes_only=changes_only)

    def skip(self, predicate: Skip) -> None:
        """Leave out each wait for which `predicate(kind, place, stream, other)` holds, to plant a race.

        kind    "wait_stream", "wait_event", "event.synchronize", "stream.synchronize" or "device.synchronize"
        place   where the program waits
        stream  the stream that waits, or that the host waits for
        other   the stream or the event that is waited for, or None
        """
        self.skips.append(predicate)

    def is_skipped(self, kind: str, stream: Any, other: Any) -> bool:
        place = place_of(self.sites.here())
        return any(predicate(kind, place, stream, other) for predicate in self.skips)

    def launch(
        self,
        function: Callable[[Accesses], None],
        reads: Sequence[Any] = (),
        writes: Sequence[Any] = (),
        name: str | None = None,
    ) -> None:
        """Launch a kernel written in Python on the current stream. `function(accesses)` runs when its turn comes, on
        the CPU tensors that `accesses.host` gives. `reads` and `writes` are tensors that it uses whole; of others it
        says which elements. What it raises is raised by the call of the host that makes it run.
        """
        what = name or str(getattr(function, "__name__", "kernel"))
        operation = self.new_operation(what, self.sites.here(), uses_of(reads), uses_of(writes))
        operation.run = lambda by: function(Accesses(by, self.report))
        self.enqueue(operation)

    def after(self, stream: Stream, note: Callable[[], None]) -> None:
        """Call `note` when a stream has run what was launched on it by now. It is no operation."""
        if not stream.queue:
            note()
            return
        operation = stream.queue[-1]
        run = operation.run

        def run_and_note(by: Operation) -> None:
            if run is not None:
                run(by)
            note()

        operation.run = run_and_note

    def new_operation(self, what: str, site: Site, reads: Uses = (), writes: Uses = ()) -> Operation:
        """The next operation of the current stream."""
        stream = self.current
        if self.capture is not None and stream.index in self.capture.numbers:
            self.launched += 1
            return self.capture.operation(stream, self.launched, what, site, reads, writes)
        if stream.seen is not self.host_clock:
            self.hear_host(stream)
        stream.n += 1
        self.launched += 1
        return Operation(stream, stream.n, stream.clock, self.launched, what, site, None, reads, writes)

    def enqueue(self, operation: Operation) -> None:
        stream = operation.stream
        if self.capture is not None and stream.index in self.capture.numbers:
            self.capture.operations.append(operation)
            return
        index = stream.index
        for uses in (operation.reads, operation.writes):
            for memory, _ in uses:
                if memory.owner != index:
                    memory.users[index] = operation
        if self.policy.is_immediate and not stream.queue:
            stream.done = operation.n
            guard = torch._C._DisableTorchDispatch()
            self.carry_out(operation)
            del guard
            return
        stream.queue.append(operation)
        self.policy.launched(self)

    def is_immediate(self) -> bool:
        """Whether an operation of the current stream runs at its launch, so that its results need no poison."""
        return self.policy.is_immediate and not self.current.queue and self.capture is None

    def lend(self, operation: Operation, uses: Uses) -> None:
        """Note that an operation uses memory that another stream owns."""
        index = operation.stream.index
        for memory, _ in uses:
            if memory.owner != index:
                memory.users[index] = operation

    def free(self, memory: Memory, size: int) -> None:
        """The last tensor of a memory of `size` bytes is gone: the allocator may give it to the next one. What the
        garbage collector frees is let pass, for when it runs is not the program's choice.
        """
        if self.is_collecting or Active.device is not self:
            return
        owner = self.streams[memory.owner - 1]
        clock = joined(owner.clock, self.host_clock)
        uses = [
            use for stream, use in memory.users.items() if stream not in memory.lent_to and not is_covered(use, clock)
        ]
        if uses:
            self.freed.setdefault(memory.owner, []).append((memory, size, uses))

    def collect(self, phase: str, _info: object) -> None:
        """The garbage collector starts or stops."""
        self.is_collecting = phase == "start"

    def take(self, memory: Memory, size: int) -> None:
        """A new memory of `size` bytes takes the place of a freed one, where uses of that may be in flight.

        As in PyTorch's allocator, memory goes back to the stream that allocated it, and small memories never lie where
        large ones do. Which of the freed ones is taken is the allocator's choice: here, the one longest free.
        """
        freed = self.freed.get(self.current.index)
        if not freed:
            return
        clock = joined(self.current.clock, self.host_clock)
        left: list[tuple[Memory, int, list[Operation]]] = []
        for i, (old, freed_size, uses) in enumerate(freed):
            if all(is_covered(use, clock) for use in uses):
                continue
            if size <= freed_size and (size <= SMALL_BYTES_MAX) == (freed_size <= SMALL_BYTES_MAX):
                memory.previous = (old, uses)
                left += freed[i + 1 :]
                break
            left.append(freed[i])
        self.freed[self.current.index] = left

    def stream_of_captures(self) -> Stream:
        """The stream on which `torch.cuda.graph` captures where it is given none."""
        key = ("", "", "capture", 0)
        if key not in self.known_streams:
            self.known_streams[key] = self.new_stream("capture")
        return self.known_streams[key]

    def hear_host(self, stream: Stream) -> None:
        """What the host knows at a launch happens before what it launches."""
        stream.clock = joined(stream.clock, self.host_clock)
        stream.seen = self.host_clock

    def drain(self) -> None:
        """Run everything that is pending, without ordering the host behind it."""
        for stream in self.streams:
            if stream.queue:
                self.run_until(stream, stream.n)

    def synchronize(self, _device: Any = None) -> None:
        """`torch.cuda.synchronize`: the host waits for all streams."""
        self.policy.launched(self)
        if self.skips and self.is_skipped("device.synchronize", self.default, None):
            return
        for stream in self.streams:
            self.wait_for(stream, stream.n, stream.now())

    def advance(self, stream: Stream, steps: int) -> None:
        """Run up to `steps` operations of a stream; fewer where it must wait for another stream."""
        guard = torch._C._DisableTorchDispatch()
        queue, carry_out = stream.queue, self.carry_out
        while steps > 0 and queue:
            operation = queue[0]
            waits = operation.waits
            if waits is not None and waits[0].done < waits[1]:
                break
            queue.popleft()
            stream.done = operation.n
            carry_out(operation)
            steps -= 1
        del guard

    def run_until(self, stream: Stream, n: int) -> None:
        """Run a stream up to its operation `n`, and what that waits for."""
        guard = torch._C._DisableTorchDispatch()
        queue = stream.queue
        while stream.done < n and queue:
            waits = queue[0].waits
            if waits is not None and waits[0].done < waits[1]:
                self.run_until(*waits)
            self.advance(stream, 1)
        del guard

    def carry_out(self, operation: Operation) -> None:
        report, writes = self.report, operation.writes
        for memory, part in operation.reads:
            elements = memory.elements
            memory.read(operation, report, None if elements is None else elements.of(part))
        before = [None if memory.elements is None else memory.elements.snapshot(part) for memory, part in writes]
        if operation.run is not None:
            operation.run(operation)
            operation.run = None
        for (memory, part), was in zip(writes, before, strict=True):
            elements = memory.elements
            memory.write(operation, report, None if elements is None else elements.written(part, was))
        operation.reads = operation.writes = ()

    def wait_for(self, stream: Stream, n: int, clock: Clock) -> None:
        """The host waits for operation `n` of a stream."""
        if self.capture is not None:
            raise RuntimeError("the host cannot wait for the device while a CUDA graph is captured")
        if stream.done < n:
            self.run_until(stream, n)
        self.join_host(clock)

    def join_host(self, clock: Clock) -> None:
        host = joined(self.host_clock, clock)
        if host != self.host_clock:
            self.host_clock = host

    def host_access(self, memory: Memory, what: str, *, is_write: bool) -> None:
        """The host reads or writes memory that copies of the device reach, by `what`."""
        clock = self.host_clock
        self.host_clock = clock = (clock[0] + 1, *clock[1:])
        self.launched += 1
        what = f"{'write' if is_write else 'read'} by {what}"
        by = Operation(self.host, clock[0], clock, self.launched, what, self.sites.here())
        (memory.write if is_write else memory.read)(by, self.report)

    def report(self, memory: Memory, a: Operation, b: Operation, detail: str, kind: Kind | None = None) -> None:
        """Nothing orders `a` and `b`."""
        first, second = (a, b) if a.sequence <= b.sequence else (b, a)
        if kind is None:
            kind = "race"
            for by in (first, second):
                if by.stream is self.host:
                    kind = "host-read" if by.what.startswith("read") else "pinned-reuse"
        self.add(Finding(kind, memory.name, self._access(first), self._access(second), detail))

    def strayed(self, operation: Operation, detail: str) -> None:
        """A kernel accessed memory outside of its tensors."""
        access = self._access(operation)
        self.add(Finding("out-of-bounds", operation.what, access, access, detail))

    def failed(self, operation: Operation, error: Exception) -> None:
        """An operation raised when its turn came: a real device stops there. Its results stay poison here."""
        access = self._access(operation)
        what = str(error).partition("\n")[0]
        self.add(Finding("device-assert", operation.what, access, access, f"{type(error).__name__}: {what}"))

    def add(self, finding: Finding) -> None:
        identity = finding.identity
        self.counts[identity] += 1
        if self.counts[identity] > 1:
            return
        is_ignored = any(ignores(finding) for ignores in self._is_ignored)
        (self.ignored if is_ignored else self.findings).append(finding)

    def _access(self, operation: Operation) -> Access:
        return Access(operation.stream.name, operation.what, *place_of(operation.site))
