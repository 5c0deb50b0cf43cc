"""What the host and the streams do, in the order in which it happens: noted while `recorded` is active, and then only.

The device's own methods are wrapped for that time, so that a run which nobody wants to see costs nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Literal, NamedTuple

from specsim.vdevice.device import Device, Stream
from specsim.vdevice.findings import Place, Site, place_of
from specsim.vdevice.history import Clock, Memory, Operation

Kind = Literal["launch", "run", "order", "wait", "access", "mark"]


class RecordedStep(NamedTuple):
    """One thing that the host or a stream does.

    lane    the stream's name, or "host"
    kind    launch  the host launches operation `number`, for `stream`
            run     the stream runs operation `number`, its `n`-th
            order   the host has `lane` wait for the `n`-th operation of `stream`
            wait    the host waits for the `n`-th operation of `stream`; the steps up to `end` happen meanwhile
            access  the host reads or writes memory of a copy, as operation `number`
            mark    `what` begins
    what    the operation
    where   the place in the program
    who     whom a mark is of
    """

    lane: str
    kind: Kind
    what: str
    where: Place
    number: int = 0
    stream: str = ""
    n: int = 0
    end: int = 0
    who: str = ""


class Recording:
    """`steps` in their order. `pairs` has, by its place in `Device.findings`, the numbers of the operations of a
    finding. `shown` has, by each number from which `count()` grew, that of the operation in whose run it did.
    """

    def __init__(self, device: Device, count: Callable[[], int]) -> None:
        self.steps: list[RecordedStep] = []
        self.pairs: dict[int, tuple[int, ...]] = {}
        self.shown: dict[int, int] = {}
        self._device, self._count = device, count

    def mark(self, text: str, who: str = "") -> None:
        """Something of the program begins."""
        self.steps.append(RecordedStep("host", "mark", text, place_of(()), who=who))

    def _note(self, lane: str, kind: Kind, what: str, site: Site, **more: Any) -> None:
        self.steps.append(RecordedStep(lane, kind, what, place_of(site), **more))

    def wrapped(self) -> dict[str, Callable[..., Any]]:
        """What takes the places of methods of the device."""
        device, note, here = self._device, self._note, self._device.sites.here
        enqueue, carry_out, wait_for, host_access = (
            device.enqueue,
            device.carry_out,
            device.wait_for,
            device.host_access,
        )

        def enqueued(operation: Operation) -> None:
            stream = operation.stream.name
            note("host", "launch", operation.what, operation.site, number=operation.sequence, stream=stream)
            enqueue(operation)

        def carried_out(operation: Operation) -> None:
            if operation.waits is None:  # a stream's wait for another was noted when the host asked for it
                stream, number = operation.stream.name, operation.sequence
                note(stream, "run", operation.what, operation.site, number=number, stream=stream, n=operation.n)
            before = self._count()
            carry_out(operation)
            self.shown.update(dict.fromkeys(range(before, self._count()), operation.sequence))

        def waited_for(stream: Stream, n: int, clock: Clock) -> None:
            at = len(self.steps)
            note("host", "wait", f"wait for {stream.name}", here(), stream=stream.name, n=n)
            wait_for(stream, n, clock)
            self.steps[at] = self.steps[at]._replace(end=len(self.steps) - 1)

        def accessed(memory: Memory, what: str, *, is_write: bool) -> None:
            way = "write" if is_write else "read"
            note("host", "access", f"{way} by {what}", here(), number=device.launched + 1)
            host_access(memory, what, is_write=is_write)

        def blaming(report: Callable[..., None]) -> Callable[..., None]:
            def reported(*arguments: Any) -> None:
                before = len(device.findings)
                report(*arguments)
                if len(device.findings) > before:
                    numbers = sorted(by.sequence for by in arguments if isinstance(by, Operation))
                    self.pairs[before] = tuple(numbers)

            return reported

        return {
            "enqueue": enqueued,
            "carry_out": carried_out,
            "wait_for": waited_for,
            "host_access": accessed,
            **{name: blaming(getattr(device, name)) for name in ("report", "strayed", "failed")},
        }

    def ordered(self, wait: Callable[..., None]) -> Callable[..., None]:
        """`Stream._wait`, noted."""

        def waited(waiting: Stream, stream: Stream, n: int, clock: Clock) -> None:
            here = self._device.sites.here()
            self._note(waiting.name, "order", f"wait for {stream.name}", here, stream=stream.name, n=n)
            wait(waiting, stream, n, clock)

        return waited


@contextmanager
def recorded(device: Device, count: Callable[[], int] = lambda: 0) -> Iterator[Recording]:
    """Note what happens. `count` is what the run of an operation may raise, of errors that its kernel sees say."""
    recording, wait = Recording(device, count), Stream._wait
    methods = recording.wrapped()
    try:
        vars(device).update(methods)
        Stream._wait = recording.ordered(wait)  # type: ignore[method-assign]
        yield recording
    finally:
        Stream._wait = wait  # type: ignore[method-assign]
        for name in methods:
            del vars(device)[name]
