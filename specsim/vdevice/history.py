"""Who accessed a memory, and which two accesses nothing orders.

The happens-before relation has one component for the host (0) and one for each stream. Operation `n` of stream `s`
happens before `x` when both are on one stream, or `x.clock[s] >= n`. Every operation is judged when it runs, against
the latest read and write of each other stream. What runs first depends on the policy; that a pair of streams with
unordered accesses to a memory is reported does not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Protocol

import numpy as np
import torch

from specsim.vdevice.findings import Site, place_of

Clock = tuple[int, ...]
Array = Any  # np.ndarray


def joined(a: Clock, b: Clock) -> Clock:
    """The later of two clocks in each component. A component that a clock lacks is 0."""
    if len(a) < len(b):
        a, b = b, a
    return (*map(max, a, b), *a[len(b) :])


def with_own(clock: Clock, index: int, n: int) -> Clock:
    """A clock with `n` in its own component, `index`."""
    clock = clock + (0,) * (index + 1 - len(clock))
    return (*clock[:index], n, *clock[index + 1 :])


class Queue(Protocol):
    """What runs operations in order: a stream, or the host (index 0)."""

    index: int
    name: str


class Operation:
    """What a stream runs in its turn, and what the history of a memory remembers of it.

    sequence  its place in the program's own order
    waits     (stream, number): runs when that stream has finished that operation
    matters   elements that it reads, and whether what it makes of them is used by anybody
    """

    __slots__ = ("clock", "matters", "n", "reads", "run", "sequence", "site", "stream", "waits", "what", "writes")

    def __init__(
        self,
        stream: Any,
        n: int,
        clock: Clock,
        sequence: int,
        what: str,
        site: Site,
        run: Callable[[Operation], Any] | None = None,
        reads: Any = (),
        writes: Any = (),
        waits: tuple[Any, int] | None = None,
    ) -> None:
        self.stream, self.n, self.clock, self.sequence = stream, n, clock, sequence
        self.what, self.site, self.run, self.reads, self.writes, self.waits = what, site, run, reads, writes, waits
        self.matters: tuple[tuple[Array, Callable[[], bool]], ...] = ()

    def is_used(self, element: int) -> bool:
        """Whether its access to an element matters, as far as is known now."""
        return all(holds() for elements, holds in self.matters if element in elements)


def is_covered(operation: Operation, clock: Clock) -> bool:
    """Whether an operation happens before what has this clock, which is not of its own stream."""
    index: int = operation.stream.index
    return index < len(clock) and clock[index] >= operation.n


Report = Callable[..., None]
"""Takes the memory, the two operations that nothing orders, a detail, and the kind where it is not a race."""


class Memory:
    """A storage, and the latest accesses of each stream to it.

    owner     the stream on which it was allocated, whose later allocations may take it once it is freed; 0 for memory
              of the host
    is_host   pinned memory, or the result of a copy to the host that does not block
    lent_to   the streams of `record_stream`
    users     the last operation of each other stream that uses it, whether it has run or not
    whole     its elements, flat, where a kernel needed them
    previous  the memory that was freed before this one took its place, and uses of it that nothing ordered by then
    """

    __slots__ = (
        "elements",
        "given_name",
        "is_host",
        "lent_to",
        "owner",
        "previous",
        "reads",
        "site",
        "users",
        "what",
        "whole",
        "writes",
    )

    def __init__(self, owner: int, what: str, site: Site, *, is_host: bool = False) -> None:
        self.owner, self.what, self.site, self.is_host = owner, what, site, is_host
        self.given_name = ""
        self.elements: Elements | None = None
        self.whole: torch.Tensor | None = None
        self.lent_to: frozenset[int] = frozenset()
        self.users: dict[int, Operation] = {}
        self.previous: tuple[Memory, list[Operation]] | None = None
        self.reads: dict[int, Operation] = {}
        self.writes: dict[int, Operation] = {}

    @property
    def name(self) -> str:
        return self.given_name or f"{self.what} of {place_of(self.site).function}"

    def _take_over(self, by: Operation, report: Report) -> None:
        """The first access, after which what was freed is lost."""
        assert self.previous is not None
        (memory, uses), self.previous = self.previous, None
        for use in uses:
            if use.stream is not by.stream and not is_covered(use, by.clock):
                report(memory, use, by, f"freed, and given to {self.name}", "use-after-free")

    def read(self, by: Operation, report: Report, elements: Array | None = None) -> None:
        if self.previous is not None:
            self._take_over(by, report)
        if self.elements is not None:
            self.elements.access(self, by, elements, report, is_write=False)
            return
        index, clock = by.stream.index, by.clock
        for stream, write in self.writes.items():
            if stream != index and (stream >= len(clock) or clock[stream] < write.n):
                report(self, write, by, "")
        self.reads[index] = by

    def write(self, by: Operation, report: Report, elements: Array | None = None) -> None:
        if self.previous is not None:
            self._take_over(by, report)
        if self.elements is not None:
            self.elements.access(self, by, elements, report, is_write=True)
            return
        index, clock = by.stream.index, by.clock
        for accesses in (self.writes, self.reads):
            for stream, access in accesses.items():
                if stream != index and (stream >= len(clock) or clock[stream] < access.n):
                    report(self, access, by, "")
        self.writes[index] = by


Use = tuple[Memory, torch.Tensor]
"""A memory, and the part of it (in the host's memory) that an operation uses."""
Uses = Sequence[Use]


def uses_of(tensors: Iterable[Any]) -> Uses:
    """Of tensors whose accesses are followed."""
    return [(tensor.memory, tensor.host_bytes) for tensor in tensors]


OPERATIONS_MAX = 4096
"""Operations that the history of a tracked storage keeps before it looks which of them matter."""


class Elements:
    """The latest accesses of each stream to each element of a storage: [streams, elements] numbers of operations."""

    def __init__(self, bytes_: torch.Tensor, *, changes_only: bool) -> None:
        whole = bytes_.untyped_storage().nbytes() // bytes_.element_size()
        self.flat = torch.as_strided(bytes_, (whole,), (1,), 0)
        self.numbers = torch.arange(whole)
        self.changes_only = changes_only
        self.operations_max = OPERATIONS_MAX
        self.accesses: tuple[dict[int, Array], dict[int, Array]] = ({}, {})
        self.by: dict[tuple[int, int], Operation] = {}

    def of(self, view: torch.Tensor) -> Array:
        """The numbers of a view's elements, flat."""
        if view.dtype != self.flat.dtype:
            return self.numbers.numpy()
        at = self.numbers.as_strided(view.size(), view.stride(), view.storage_offset())
        return at.reshape(-1).numpy()

    def snapshot(self, view: torch.Tensor) -> torch.Tensor | None:
        """What a view holds before a write, where only changes count."""
        return view.clone() if self.changes_only else None

    def written(self, view: torch.Tensor, before: torch.Tensor | None, among: Array | None = None) -> Array:
        """The numbers of the elements that a write to a view changed since `before`, among those given."""
        at = self.of(view)
        if before is None or view.dtype != self.flat.dtype:
            return at
        changed = view != before
        if view.dtype.is_floating_point or view.dtype.is_complex:  # a NaN that stays differs from itself
            changed &= (view == view) | (before == before)
        flat = changed.reshape(-1).numpy()
        return at[flat] if among is None else among[flat[among]]

    def access(self, memory: Memory, by: Operation, elements: Array | None, report: Report, *, is_write: bool) -> None:
        at = self.numbers.numpy() if elements is None else elements
        if not at.size:
            return
        index, clock = by.stream.index, by.clock
        for kind in (1, 0) if is_write else (1,):
            for stream, numbers in self.accesses[kind].items():
                if stream == index:
                    continue
                unordered = numbers[at] > (clock[stream] if stream < len(clock) else 0)
                if unordered.any():
                    self._report(memory, by, at[unordered], stream, numbers, report)
        mine = self.accesses[int(is_write)].get(index)
        if mine is None:
            mine = self.accesses[int(is_write)][index] = np.zeros(len(self.numbers), np.int64)
        mine[at] = by.n
        self.by[index, by.n] = by
        if len(self.by) > self.operations_max:
            self._forget_the_overwritten()

    def _forget_the_overwritten(self) -> None:
        """Drop operations that are the latest of no element any more."""
        live = {
            (stream, n)
            for accesses in self.accesses
            for stream, numbers in accesses.items()
            for n in np.unique(numbers).tolist()
        }
        self.by = {key: operation for key, operation in self.by.items() if key in live}
        self.operations_max = max(OPERATIONS_MAX, 2 * len(self.by))

    def _report(self, memory: Memory, by: Operation, at: Array, stream: int, numbers: Array, report: Report) -> None:
        """Report the first of these elements whose accesses both matter, by `by` and by another stream's operations."""
        for place, element in enumerate(at.tolist()):
            before = self.by[stream, int(numbers[element])]
            if by.is_used(element) and before.is_used(element):
                report(memory, before, by, f"element {element} and {at.size - place - 1} more")
                return
