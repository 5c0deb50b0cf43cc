"""Loads, stores and atomic operations of all programs at once, each lane checked.

A lane must fall into the tensor that its pointer was made from, or into another one of the launch with the same
storage: what else lies beside it is luck. An address that comes from an integer may be of any tensor, and of `extra`
memory. A lane that falls elsewhere is reported (`Checks.stray`) and has no effect; a load gives poison there. Where
several programs write one element at once, the last one's value stays.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from types import CodeType
from typing import Any, Literal

import numpy as np
import torch

from specsim.contracts.pointers import span_bytes
from specsim.interpreter.lockstep import control, limits
from specsim.interpreter.lockstep.errors import KernelError
from specsim.interpreter.lockstep.tensors import (
    BFLOAT16,
    INT1,
    NUMPY,
    Array,
    Pointer,
    Tensor,
    aligned,
    alike,
    cast,
    either,
    numpy_of,
    rounded,
    to_tensor,
)
from specsim.interpreter.lockstep.watch import (
    LaneAccess,
    Race,
    Watch,
    bits,
    element_of,
    lane_numbers,
    line_of,
    memory_at,
)

MARK = "_specsim_lockstep"


def source_place() -> tuple[CodeType, int]:
    """The code and the number of the line of the kernel's statement that runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and MARK not in frame.f_globals:
        frame = frame.f_back
    return frame.f_code, frame.f_lineno


def source_line() -> str:
    """FILE:LINE of the kernel's statement that runs."""
    return line_of(source_place())


class Span:
    """The bytes from a tensor's first element to the end of its last, by the name of the launch's argument.

    region   what a watch knows of them
    storage  the addresses of the tensor's storage
    """

    __slots__ = ("end", "itemsize", "name", "region", "start", "storage", "views")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        self.name = name
        self.itemsize = tensor.element_size()
        self.start = tensor.data_ptr()
        self.end = self.start + span_bytes(tensor)
        storage = tensor.untyped_storage()
        self.storage = (storage.data_ptr(), storage.data_ptr() + storage.nbytes())
        self.views: dict[Any, Array] = {}
        self.region: Any = None

    def view(self, dtype: Any) -> Array:
        """The memory as elements of a NumPy type."""
        found = self.views.get(dtype)
        if found is None:
            found = self.views[dtype] = memory_at(self.start, self.end - self.start, dtype)
        return found


_RAW = {dtype.name: held for dtype, held in NUMPY.items()}
_RAW |= {BFLOAT16.name: np.dtype(np.uint16), INT1.name: np.dtype(np.uint8)}
"""How memory holds a type."""


class Checks:
    """What is told of accesses. Each method may be replaced; these ignore what they are given, and poison is 0.

    touched  is given every access that is carried out, unless it is None: the span, the numbers there of its elements
             (of those in lanes that are not active, too, which are 0), the lanes that are active (None for all), the
             bytes of an element and whether it writes. An atomic operation is a read and a write.
    """

    touched: Callable[[Span, Array, Array | None, int, bool], None] | None = None

    def launch(self, kernel: str) -> None:
        """A launch begins."""

    def stray(self, kind: Literal["read", "write", "update"], name: str, index: int, size: int, count: int) -> None:
        """A lane outside of what it may reach: element `index` of the tensor that its pointer was made from, or of the
        nearest, `name` ("" where a launch has none), which has `size`; `count` lanes are.
        """

    def without_other(self) -> None:
        """A load without `other` has lanes that are masked off."""

    def poison(self, dtype: Any, count: int, *, stray: bool) -> Any:
        """What a load gives where nothing defines it: in `count` stray lanes, or in those that are masked off where it
        has no `other`. A value, or an array [count].
        """
        return 0

    def overflow(self, message: str) -> None:
        """Integer arithmetic did not fit its type."""

    def wrote(self, span: Span, places: Array, itemsize: int) -> None:
        """A store or an atomic operation to elements `places` of `itemsize` bytes."""

    def undefined_load(self, span: Span) -> None:
        """A load of what nobody wrote, or of what was stored undefined."""

    def undefined_use(self, what: str) -> None:
        """An undefined lane decides a branch, an address, or is part of an atomic operation."""

    def undefined_store(self, span: Span, places: Array, lanes: Array) -> None:
        """A store leaves elements `places[lanes]` of a tensor undefined."""

    def race(self, kind: Race, *, between: bool, line: str, element: str = "") -> None:
        """Two programs race (`between`), or two lanes of a program, in the access at `line`, for an `element`."""


class LaunchMemory:
    """The memory of one launch."""

    def __init__(self, spans: Sequence[Span], checks: Checks, watch: Watch | None = None) -> None:
        self.spans = [span for span in spans if span.end > span.start]
        self.checks = checks
        self.watch = watch
        self.touched = checks.touched
        self.changes = 0  # stores, and atomic operations that changed something

    def undefined_use(self, what: str) -> None:
        self.checks.undefined_use(what)

    def load(self, pointer: Any, mask: Any, other: Any) -> Tensor:
        of = control.machine()
        pointer, at, lanes = self._lanes(pointer, mask, of)
        dtype = pointer.dtype.element_ty
        raw = _raw(dtype)
        stray = marks = None
        index = _index(pointer, at, lanes)
        if index is None:
            data, stray, marks = self._gathered(pointer, at, lanes, raw)
        else:
            data = pointer.span.view(raw).take(index)
            if self.touched is not None:
                self.touched(pointer.span, index, lanes, pointer.itemsize, False)
            if self.watch is not None:
                marks = self._read(pointer.span, index, lanes, pointer.itemsize)
        data = _from_raw(data, dtype)
        undefined = pointer.undefined
        if undefined is not None and lanes is not None:
            undefined = np.logical_and(*aligned(undefined, lanes))
        undefined = either(undefined, marks)
        if lanes is not None:
            if other is not None:
                data, undefined = _filled(data, lanes, undefined, cast(to_tensor(other), dtype))
            else:
                data = np.where(lanes, data, data.dtype.type(0))
                undefined = self._unfilled(data, dtype, lanes if mask is not None else None, of.active, undefined)
        if stray is not None:
            data[stray] = self.checks.poison(dtype, int(np.count_nonzero(stray)), stray=True)
        return Tensor(data, dtype, undefined)

    def _unfilled(
        self, data: Array, dtype: Any, lanes: Array | None, active: Array | None, undefined: Array | None
    ) -> Array | None:
        """Enter poison in the lanes that a mask without `other` leaves out; which lanes are undefined."""
        if lanes is None:
            return undefined
        off = ~lanes
        if active is not None:
            off = off & aligned(active, off)[0]
        if not np.count_nonzero(off):
            return undefined
        off = _spread(off, data.shape)
        self.checks.without_other()
        data[off] = self.checks.poison(dtype, int(np.count_nonzero(off)), stray=False)
        return either(undefined, off) if self.watch is None or self.watch.lanes else undefined

    def store(self, pointer: Any, value: Any, mask: Any) -> None:
        self.changes += 1
        of = control.machine()
        pointer, at, lanes = self._lanes(pointer, mask, of)
        dtype = pointer.dtype.element_ty
        value = cast(to_tensor(value), dtype)
        data = _to_raw(value.data, dtype)
        if at.shape != data.shape:
            at, data = alike(at, data)
        watch = self.watch
        if (watch is not None or lanes is not None) and at.shape[0] != of.num_programs:
            shape = (of.num_programs, *at.shape[1:])
            at, data = _spread(at, shape), _spread(data, shape)
        if lanes is not None and lanes.shape != at.shape:
            lanes = _spread(lanes, at.shape)
        index = _index(pointer, at, lanes)
        if index is None:
            lanes = np.ones(at.shape, bool) if lanes is None else lanes
            for span, index, inside in list(self._parts(pointer, at, lanes, "write")):
                self._stored(span, index[inside], data[inside], value, inside, at.shape, pointer.itemsize)
        elif lanes is not None:
            self._stored(pointer.span, index[lanes], data[lanes], value, lanes, at.shape, pointer.itemsize)
        elif watch is not None:
            self._stored(pointer.span, index.reshape(-1), data.reshape(-1), value, None, at.shape, pointer.itemsize)
        else:
            pointer.span.view(data.dtype)[index] = data
            if self.touched is not None:
                self.touched(pointer.span, index, None, pointer.itemsize, True)

    def _stored(
        self,
        span: Span,
        places: Array,
        values: Array,
        value: Tensor,
        lanes: Array | None,
        shape: tuple[int, ...],
        itemsize: int,
    ) -> None:
        """Write `values` [n] to elements `places` [n], those of `value` in the active lanes of `shape`."""
        view, watch = span.view(values.dtype), self.watch
        if self.touched is not None:
            self.touched(span, places, None, itemsize, True)
        if watch is None or not places.size:
            view[places] = values
            return
        old = view[places]
        view[places] = values
        self.checks.wrote(span, places, itemsize)
        if watch.log is not None:
            self._log_write(span, places, itemsize, shape, lanes, old, values, view)
        elif watch.races:
            programs, numbers = self._who(shape, np.ones(shape, bool) if lanes is None else lanes, reads=False)
            now = lambda: view[places]  # noqa: E731
            self._tell(*watch.write(span, places, itemsize, programs, numbers, old, values, now))
        if watch.undefined:
            seen = None
            if value.undefined is not None:
                marks = _spread(aligned(value.undefined, np.empty(shape, bool))[0], shape)
                seen = marks.reshape(-1) if lanes is None else marks[lanes]
                if np.count_nonzero(seen):
                    self.checks.undefined_store(span, places, seen)
            watch.define(span, places, itemsize, seen)

    def _log_write(
        self,
        span: Span,
        places: Array,
        itemsize: int,
        shape: tuple[int, ...],
        lanes: Array | None,
        old: Array,
        values: Array,
        view: Array,
    ) -> None:
        """Lanes that change nothing do not race; nor do those that write the same at once."""
        watch = self.watch
        assert watch is not None
        assert watch.log is not None
        keys = _spread(self._keys(shape, reads=False), shape)
        keys = keys.reshape(-1) if lanes is None else keys[lanes]
        written = bits(values)
        if places.size > 1:
            lost = bits(view[places]) != written
            if np.count_nonzero(lost):
                between, within = watch.conflict(places, keys, lost)
                for at, is_between in ((between, True), (within, False)):
                    if at is not None:
                        element = element_of(span, at, itemsize)
                        self.checks.race("write-write", between=is_between, line=source_line(), element=element)
        changes = bits(old) != written
        count = np.count_nonzero(changes)
        if count < places.size:
            places, keys = places[changes], keys[changes]
        if count:
            limits.note(places.nbytes + keys.nbytes)
            watch.log.writes.append(LaneAccess(span, places, itemsize, keys, None, source_place()))

    def update(self, pointer: Any, mask: Any, operands: Sequence[Any], combine: Any, *, orders: bool = True) -> Tensor:
        """An atomic operation: `combine(old, *operands)` is the new value of an element, lane after lane. Gives the old
        values; 0 in lanes that are masked off.
        """
        of = control.machine()
        pointer, at, lanes = self._lanes(pointer, mask, of)
        dtype = pointer.dtype.element_ty
        tensors = [cast(to_tensor(value), dtype) for value in operands]
        for tensor in (pointer, *tensors):
            if tensor.undefined is not None:
                shown = alike(tensor.undefined, np.ones(at.shape, bool) if lanes is None else lanes)
                if np.logical_and(*shown).any():
                    self.checks.undefined_use("an atomic operation")
        # Every program carries it out by itself, though all do the same.
        programs = np.zeros((of.num_programs,) + (1,) * (at.ndim - 1), np.int64)
        at, _, *values = alike(at, programs, *(tensor.data for tensor in tensors))
        lanes = np.ones(at.shape, bool) if lanes is None else _spread(aligned(lanes, at)[0], at.shape)
        old = np.zeros(at.shape, numpy_of(dtype))
        for span, index, inside in self._parts(pointer, at, lanes, "update"):
            if self.watch is not None:
                self.checks.wrote(span, index[inside], pointer.itemsize)
                programs, _ = self._who(at.shape, inside, reads=True)
                found = self.watch.update(
                    span, index[inside], pointer.itemsize, programs, orders=orders, is_scalar=at.ndim == 1
                )
                self._tell(found[0], None)
                if found[1]:
                    self.checks.undefined_use("an atomic operation")
            if self.touched is not None:
                self.touched(span, index, inside, pointer.itemsize, False)
                self.touched(span, index, inside, pointer.itemsize, True)
            view = span.view(_raw(dtype))
            places, flat = index[inside], [value[inside] for value in values]
            seen = np.zeros(places.shape, old.dtype)
            for i in range(places.size):
                seen[i] = _from_raw(view[places[i] : places[i] + 1], dtype)[0]
                new = combine(seen[i], *(value[i] for value in flat))
                if new != seen[i]:
                    self.changes += 1
                view[places[i]] = _to_raw(np.array([new], old.dtype), dtype)[0]
            old[inside] = seen
        if orders and at.ndim == 1 and self.watch is not None and self.watch.log is not None:
            self.barrier()
        return Tensor(old, dtype)

    def barrier(self) -> None:
        of = control.machine()
        if self.watch is not None and self.watch.log is not None:
            for race in self.watch.part():
                self.checks.race(race.kind, between=False, line=race.line, element=race.element)
        elif self.watch is not None:
            numbers = np.arange(of.first + 1, of.first + 1 + of.num_programs)
            self.watch.barrier(numbers if of.active is None else numbers[of.active])

    def meet(self) -> None:
        """Lanes hand values to one another: a barrier, where a watch takes it for one."""
        if self.watch is not None and self.watch.warp > 1 and self.watch.within:
            self.barrier()

    def _lanes(self, pointer: Any, mask: Any, of: control.Machine) -> tuple[Pointer, Array, Array | None]:
        """The pointer, its elements and which lanes are active, None for all; both of one number of axes."""
        if not isinstance(pointer, Pointer):
            raise KernelError(f"memory is accessed through {to_tensor(pointer).dtype}; allowed: a pointer")
        at, active = pointer.data, of.active
        mixed = pointer.unit != pointer.itemsize
        if mixed:  # a lane of another type's memory may lie between two elements, where it is not active
            pointer = Pointer(pointer.data, pointer.dtype, pointer.undefined, pointer.base, pointer.span, pointer.unit)
            origin = pointer.span.start if pointer.span is not None else 0
            away = pointer.addresses() - origin
            at, pointer.base, pointer.unit = away // pointer.itemsize, origin, pointer.itemsize
        lanes = None
        if mask is not None:
            seen = to_tensor(mask)
            if seen.undefined is not None:
                self._use(seen.undefined, None, active, "the mask of an access")
            lanes = seen.data if seen.data.dtype == np.bool_ else seen.data != 0
            if lanes.size == 1 and lanes.all():
                lanes = None
            elif lanes.ndim != at.ndim:
                at, lanes = aligned(at, lanes)
        if active is not None:
            at, active = aligned(at, active)
            lanes = active if lanes is None else lanes & active
        if mixed:
            between = aligned(away % pointer.itemsize != 0, at)[0]
            if (between if lanes is None else between & lanes).any():
                raise KernelError(f"an address is no multiple of the {pointer.itemsize} bytes of its elements")
        if pointer.undefined is not None:
            self._use(pointer.undefined, lanes, None, "an address")
        return pointer, at, lanes

    def _use(self, undefined: Array, lanes: Array | None, active: Array | None, what: str) -> None:
        shown = [undefined, *(some for some in (lanes, active) if some is not None)]
        if np.logical_and.reduce(alike(*shown)).any():
            self.checks.undefined_use(what)

    def _gathered(
        self, pointer: Pointer, at: Array, lanes: Array | None, raw: Any
    ) -> tuple[Array, Array | None, Array | None]:
        """What memory holds in the lanes, 0 in others; which lanes are stray and which undefined, None for none."""
        at, lanes = alike(at, np.ones(at.shape, bool) if lanes is None else lanes)
        marks: Array | None = None
        data, left = np.zeros(at.shape, raw), lanes
        for span, index, inside in self._parts(pointer, at, lanes, "read"):
            data[inside] = span.view(raw)[index[inside]]
            if self.touched is not None:
                self.touched(span, index, inside, pointer.itemsize, False)
            left = left & ~inside
            if self.watch is not None:
                marks = either(marks, self._read(span, np.where(inside, index, 0), inside, pointer.itemsize))
        return data, left if left.any() else None, marks

    def _read(self, span: Span, index: Array, lanes: Array | None, itemsize: int) -> Array | None:
        """Enter a load of elements `index`, 0 where lanes are not active, in the watch; which lanes are undefined."""
        watch = self.watch
        assert watch is not None
        seen: Array | None = None
        if span.region.undefined is not None:
            region, cells = watch.cells(span, index, itemsize)
            marks: Array = region.undefined
            seen = marks.take(cells)
            for more in range(1, itemsize // region.cell):
                seen |= marks.take(cells + more)
            if lanes is not None:
                seen &= lanes
            if seen.any():
                self.checks.undefined_load(span)
            else:
                seen = None
        if watch.log is not None:
            keys = self._keys(index.shape, reads=True)
            limits.note(index.nbytes if lanes is None else index.nbytes + lanes.nbytes)
            watch.log.reads.append(LaneAccess(span, index, itemsize, keys, lanes, source_place()))
        elif watch.races:
            shape = (control.machine().num_programs, *index.shape[1:])
            active = np.ones(shape, bool) if lanes is None else _spread(lanes, shape)
            programs, numbers = self._who(shape, active, reads=True)
            self._tell(*watch.read(span, _spread(index, shape)[active], itemsize, programs, numbers))
        return seen

    def _keys(self, shape: tuple[int, ...], *, reads: bool) -> Array:
        of = control.machine()
        known = of.keys.get((shape[1:], reads))
        if known is None:
            assert self.watch is not None
            known = self.watch.keys(of.first, of.num_programs, tuple(shape[1:]), reads=reads)
            of.keys[shape[1:], reads] = known
        return known

    def _who(self, shape: tuple[int, ...], active: Array, *, reads: bool) -> tuple[Array, Array]:
        """[n]: the program and the lane of each active lane."""
        of = control.machine()
        numbers = np.arange(of.first + 1, of.first + 1 + of.num_programs, dtype=np.int32)
        programs = np.broadcast_to(numbers.reshape(-1, *(1,) * (len(shape) - 1)), shape)
        warp = 1 if self.watch is None else self.watch.warp
        lanes = np.broadcast_to(lane_numbers(tuple(shape[1:]), reads=reads, warp=warp), shape)
        return programs[active], lanes[active]

    def _tell(self, between: Race | None, within: Race | None) -> None:
        if between:
            self.checks.race(between, between=True, line=source_line())
        if within:
            self.checks.race(within, between=False, line=source_line())

    def _parts(
        self, pointer: Pointer, at: Array, lanes: Array, kind: Literal["read", "write", "update"]
    ) -> Iterator[tuple[Span, Array, Array]]:
        """By span: the elements' numbers there, and the lanes that fall into it. Reports those that fall into none."""
        if not lanes.any():
            return
        if _index(pointer, at, lanes) is not None:
            yield pointer.span, at + _origin(pointer.span, pointer), lanes
            return
        itemsize = pointer.itemsize
        addresses = at * itemsize + pointer.base
        active = addresses[lanes]
        low, high = int(active.min()), int(active.max())
        left = lanes
        for span in self._reached(pointer):
            last = span.end - itemsize
            if high < span.start or low > last:
                continue
            is_all = low >= span.start and high <= last
            inside = left if is_all else left & (addresses >= span.start) & (addresses <= last)
            if not np.count_nonzero(inside):
                continue
            offsets = addresses - span.start
            if (offsets[inside] % itemsize).any():
                raise KernelError(f"an address inside {span.name} is no multiple of {itemsize} bytes")
            yield span, offsets // itemsize, inside
            left = left & ~inside
            if is_all:
                return
        if left.any():
            self._report(kind, pointer, int(addresses[left].flat[0]), int(np.count_nonzero(left)))

    def _reached(self, pointer: Pointer) -> list[Span]:
        if pointer.span is None:
            return self.spans
        start, end = pointer.span.storage
        return [span for span in self.spans if start <= span.start and span.end <= end]

    def _report(self, kind: Literal["read", "write", "update"], pointer: Pointer, address: int, count: int) -> None:
        if not self.spans:
            self.checks.stray(kind, "", 0, 0, count)
            return
        near = pointer.span or min(self.spans, key=lambda span: max(span.start - address, address - span.end))
        index = (address - near.start) // near.itemsize
        self.checks.stray(kind, near.name, index, (near.end - near.start) // near.itemsize, count)


def _raw(dtype: Any) -> Any:
    known = _RAW.get(dtype.name)
    return numpy_of(dtype) if known is None else known


def _from_raw(data: Array, dtype: Any) -> Array:
    if dtype.name == BFLOAT16.name:
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return data != 0 if dtype.name == INT1.name else data


def _to_raw(data: Array, dtype: Any) -> Array:
    if dtype.name == BFLOAT16.name:
        return (rounded(data).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return data.astype(np.uint8) if dtype.name == INT1.name else data


def _origin(span: Span, pointer: Pointer) -> int:
    """The number, in the span, of the element that the pointer counts from."""
    return (pointer.base - span.start) // pointer.itemsize


def _index(pointer: Pointer, at: Array, lanes: Array | None) -> Array | None:
    """The numbers of the elements in the pointer's span, 0 in lanes that are not active; None where one lies outside,
    or there is no span.
    """
    span = pointer.span
    if span is None:
        return None
    index = at if pointer.base == span.start else at + _origin(span, pointer)
    if lanes is not None:
        if index.size * lanes.size > limits.PAIRS_MAX:
            limits.broadcast(index.shape, lanes.shape)
        index = np.where(lanes, index, 0)
    size = (span.end - span.start) // pointer.itemsize
    # A number below 0 is a large one without its sign.
    return None if np.count_nonzero(index.view(np.uint64) >= size) else index


def _filled(data: Array, lanes: Array, undefined: Array | None, other: Tensor) -> tuple[Array, Array | None]:
    """`data` in the lanes and `other` elsewhere, and which of both are undefined."""
    lanes, data, fill = aligned(lanes, data, other.data)
    if other.undefined is not None:
        undefined = either(undefined, np.logical_and(*aligned(~lanes, other.undefined)))
    return np.where(lanes, data, fill), undefined


def _spread(array: Array, shape: tuple[int, ...]) -> Array:
    """`array` broadcast to a shape."""
    if array.shape == shape:
        return array
    limits.fit(shape, array.itemsize)
    found = np.empty(shape, array.dtype)  # a view (np.broadcast_to) takes longer unless it is large
    found[...] = array
    return found
