"""Loads, stores and atomic operations of all programs at once, each lane checked.

A lane must fall into a tensor of the launch (or into `extra` memory, where kernels reach it through addresses in other
tensors). One that does not is reported (`Checks.stray`) and has no effect; a load gives poison there. Where several
programs write one element at once, the last one's value stays.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch

from specsim.interpreter.launch_memory import span_bytes
from specsim.interpreter.lockstep import control
from specsim.interpreter.lockstep.errors import KernelError
from specsim.interpreter.lockstep.tensors import (
    BFLOAT16,
    INT1,
    Array,
    Pointer,
    Tensor,
    aligned,
    alike,
    cast,
    either,
    is_bfloat16,
    numpy_of,
    rounded,
    to_tensor,
)
from specsim.interpreter.lockstep.watch import Race, Watch, bits, lane_numbers, memory_at

MARK = "_specsim_lockstep"


def source_line() -> str:
    """FILE:LINE of the kernel's statement that runs."""
    frame = sys._getframe(1)
    while frame.f_back is not None and MARK not in frame.f_globals:
        frame = frame.f_back
    return f"{frame.f_code.co_filename.rpartition('/')[2]}:{frame.f_lineno}"


class Span:
    """The bytes from a tensor's first element to the end of its last, by the name of the launch's argument."""

    __slots__ = ("bytes", "end", "itemsize", "name", "start", "views")

    def __init__(self, name: str, tensor: torch.Tensor) -> None:
        size = span_bytes(tensor)
        self.name = name
        self.itemsize = tensor.element_size()
        self.start = tensor.data_ptr()
        self.end = self.start + size
        self.bytes = memory_at(self.start, size)
        self.views: dict[Any, Array] = {}

    def view(self, dtype: Any) -> Array:
        """The memory as elements of a NumPy type."""
        found = self.views.get(dtype)
        if found is None:
            whole = self.bytes.size // dtype.itemsize * dtype.itemsize
            found = self.views[dtype] = self.bytes[:whole].view(dtype)
        return found


_RAW = {BFLOAT16.name: np.dtype(np.uint16), INT1.name: np.dtype(np.uint8)}
"""How memory holds what a tensor holds in another type."""


class Checks:
    """What is told of accesses. Each method may be replaced; these ignore what they are given, and poison is 0."""

    def launch(self, kernel: str) -> None:
        """A launch begins."""

    def stray(self, kind: Literal["read", "write", "update"], name: str, index: int, size: int, count: int) -> None:
        """A lane outside of every tensor: element `index` of the nearest, `name` ("" where a launch has none), which
        has `size`; `count` lanes are.
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

    def race(self, kind: Race, *, between: bool, line: str) -> None:
        """Two programs race (`between`), or two lanes of a program, in the access at `line`."""


class Memory:
    """The memory of one launch."""

    def __init__(self, spans: Sequence[Span], checks: Checks, watch: Watch | None = None) -> None:
        self.spans = [span for span in spans if span.bytes.size]
        self.checks = checks
        self.watch = watch

    def undefined_use(self, what: str) -> None:
        self.checks.undefined_use(what)

    def load(self, pointer: Any, mask: Any, other: Any) -> Tensor:
        of = control.machine()
        pointer, at, lanes = self._lanes(pointer, mask, of)
        dtype = pointer.dtype.element_ty
        default = None if other is None else to_tensor(other)
        undefined = pointer.undefined
        span = pointer.span
        if lanes is None:
            if self.watch is None and span is not None and _inside(at, span, pointer):
                return self._loaded(span.view(_raw(dtype)).take(at + _origin(span, pointer)), dtype, undefined)
            data, stray, marks = self._gathered(pointer, at, np.ones(at.shape, bool))
        else:
            data, stray, marks = self._gathered(pointer, at, lanes)
        if undefined is not None and lanes is not None:
            undefined = np.logical_and(*np.broadcast_arrays(*aligned(undefined, lanes)))
        undefined = either(undefined, marks)
        loaded = self._loaded(data, dtype, undefined)
        if lanes is not None and not lanes.all():
            off = ~lanes
            if default is not None:
                value = cast(default, dtype)
                o, x, filled = aligned(off, loaded.data, value.data)
                loaded = Tensor(np.where(o, filled, x), dtype, undefined)
                if value.undefined is not None:
                    loaded.undefined = either(undefined, np.logical_and(*aligned(off, value.undefined)))
            elif mask is not None:
                of_mask = off if of.active is None else off & aligned(of.active, off)[0]
                if of_mask.any():
                    self.checks.without_other()
                    loaded.data[of_mask] = self.checks.poison(dtype, int(np.count_nonzero(of_mask)), stray=False)
                    if self.watch is None or self.watch.lanes:
                        loaded.undefined = either(undefined, of_mask)
        if stray is not None:
            loaded.data[stray] = self.checks.poison(dtype, int(np.count_nonzero(stray)), stray=True)
        return loaded

    def store(self, pointer: Any, value: Any, mask: Any) -> None:
        of = control.machine()
        pointer, at, lanes = self._lanes(pointer, mask, of)
        dtype = pointer.dtype.element_ty
        value = cast(to_tensor(value), dtype)
        raw = _raw(dtype)
        data = _to_raw(value.data, dtype)
        at, data = alike(at, data)
        if self.watch is not None:
            self._watched_store(pointer, value, at, data, lanes)
            return
        if lanes is None:
            if pointer.span is not None and _inside(at, pointer.span, pointer):
                at = at + _origin(pointer.span, pointer)
                view = pointer.span.view(raw)
                view[at] = data
                return
            lanes = np.ones(at.shape, bool)
        else:
            lanes = np.broadcast_to(lanes, at.shape) if lanes.shape != at.shape else lanes
        for span, index, inside in self._parts(pointer, at, lanes, "write"):
            places, values = index[inside], data[inside]
            span.view(raw)[places] = values

    def _watched_store(self, pointer: Pointer, value: Tensor, at: Array, data: Array, lanes: Array | None) -> None:
        assert self.watch is not None
        of = control.machine()
        shape = at.shape if at.shape[0] > 1 else (of.num_programs, *at.shape[1:])
        at, data = np.broadcast_to(at, shape), np.broadcast_to(data, shape)
        lanes = np.ones(shape, bool) if lanes is None else np.broadcast_to(lanes, shape)
        marks = None
        if value.undefined is not None:
            marks = np.broadcast_to(aligned(value.undefined, at)[0], shape)
        for span, index, inside in list(self._parts(pointer, at, lanes, "write")):
            places, values = index[inside], data[inside]
            view = span.view(data.dtype)
            old = view[places]
            view[places] = values
            self.checks.wrote(span, places, pointer.itemsize)
            if self.watch.log is not None:
                self._log_write(span, places, pointer.itemsize, inside, old, values, view)
            elif self.watch.races:
                programs, numbers = self._who(shape, inside, reads=False)
                now = lambda view=view, places=places: view[places]  # noqa: E731
                found = self.watch.write(span, places, pointer.itemsize, programs, numbers, old, values, now)
                self._tell(*found)
            if self.watch.undefined:
                seen = None if marks is None else marks[inside]
                if seen is not None and seen.any():
                    self.checks.undefined_store(span, places, seen)
                self.watch.define(span, places, pointer.itemsize, seen)

    def _log_write(
        self, span: Span, places: Array, itemsize: int, inside: Array, old: Array, values: Array, view: Array
    ) -> None:
        """Lanes that change nothing do not race; nor do those that write the same at once."""
        watch = self.watch
        assert watch is not None
        assert watch.log is not None
        keys = np.broadcast_to(self._keys(inside.shape, reads=False), inside.shape)[inside]
        lost = bits(view[places]) != bits(values)
        if lost.any():
            self._tell(*watch.conflict(places, keys, lost))
        changes = bits(old) != bits(values)
        if not changes.all():
            places, keys = places[changes], keys[changes]
        if places.size:
            region, cells = watch.cells(span, places, itemsize)
            watch.log.writes.append((region, cells, keys, source_line()))

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
        lanes = np.ones(at.shape, bool) if lanes is None else np.broadcast_to(lanes, at.shape)
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
            view = span.view(_raw(dtype))
            places, flat = index[inside], [value[inside] for value in values]
            seen = np.zeros(places.shape, old.dtype)
            for i in range(places.size):
                seen[i] = _from_raw(view[places[i] : places[i] + 1], dtype)[0]
                new = combine(seen[i], *(value[i] for value in flat))
                view[places[i]] = _to_raw(np.array([new], old.dtype), dtype)[0]
            old[inside] = seen
        return Tensor(old, dtype)

    def barrier(self) -> None:
        of = control.machine()
        if self.watch is not None and self.watch.log is not None:
            for race, _, line in self.watch.part():
                self.checks.race(race, between=False, line=line)
        elif self.watch is not None:
            numbers = np.arange(of.first + 1, of.first + 1 + of.num_programs)
            self.watch.barrier(numbers if of.active is None else numbers[of.active])

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
            else:
                at, lanes = alike(at, lanes)
        if active is not None:
            at, active = aligned(at, active)
            at, lanes = alike(at, active if lanes is None else lanes & active)
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

    def _loaded(self, data: Array, dtype: Any, undefined: Array | None) -> Tensor:
        return Tensor(_from_raw(data, dtype), dtype, undefined)

    def _gathered(self, pointer: Pointer, at: Array, lanes: Array) -> tuple[Array, Array | None, Array | None]:
        """What memory holds in the lanes, 0 in others; which lanes are stray and which undefined, None for none."""
        raw = _raw(pointer.dtype.element_ty)
        parts = list(self._parts(pointer, at, lanes, "read"))
        marks = self._read(pointer, parts) if self.watch is not None else None
        if len(parts) == 1:
            span, index, inside = parts[0]
            data = np.where(inside, span.view(raw).take(np.where(inside, index, 0)), raw.type(0))
            done = inside
        else:
            data, done = np.zeros(at.shape, raw), np.zeros(at.shape, bool)
            for span, index, inside in parts:
                data[inside] = span.view(raw)[index[inside]]
                done = done | inside
        if done is lanes:
            return data, None, marks
        stray = lanes & ~done
        return data, stray if stray.any() else None, marks

    def _read(self, pointer: Pointer, parts: list[tuple[Span, Array, Array]]) -> Array | None:
        """Enter a load in the watch; which lanes are undefined."""
        watch = self.watch
        assert watch is not None
        marks: Array | None = None
        for span, index, inside in parts:
            region, cells = watch.cells(span, index, pointer.itemsize)
            if region.undefined is not None:
                seen = region.undefined.take(np.where(inside, cells, 0)) & inside
                for more in range(1, pointer.itemsize // region.cell):
                    seen |= region.undefined.take(np.where(inside, cells + more, 0)) & inside
                if seen.any():
                    self.checks.undefined_load(span)
                    marks = either(marks, seen)
            if watch.log is not None:
                keys = self._keys(index.shape, reads=True)
                if inside.all():
                    watch.log.reads.append((region, cells, keys, source_line()))
                else:
                    lanes = np.broadcast_to(inside, np.broadcast_shapes(inside.shape, keys.shape))
                    cells, keys = (np.broadcast_to(values, lanes.shape)[lanes] for values in (cells, keys))
                    watch.log.reads.append((region, cells, keys, source_line()))
            elif watch.races:
                shape = inside.shape if inside.shape[0] > 1 else (control.machine().num_programs, *inside.shape[1:])
                active = np.broadcast_to(inside, shape)
                programs, numbers = self._who(shape, active, reads=True)
                places = np.broadcast_to(index, shape)[active]
                self._tell(*watch.read(span, places, pointer.itemsize, programs, numbers))
        return marks

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
        lanes = np.broadcast_to(lane_numbers(tuple(shape[1:]), reads=reads), shape)
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
        span = pointer.span
        if span is not None and span.bytes.size:
            index = at + _origin(span, pointer)
            size = span.bytes.size // pointer.itemsize
            inside = (index >= 0) & (index < size)
            if not (lanes & ~inside).any():
                yield span, index, lanes
                return
        itemsize = pointer.itemsize
        addresses = at * itemsize + pointer.base
        left = lanes
        for span in self.spans:
            inside = left & (addresses >= span.start) & (addresses <= span.end - itemsize)
            if not inside.any():
                continue
            offsets = addresses - span.start
            if (offsets[inside] % itemsize).any():
                raise KernelError(f"an address inside {span.name} is no multiple of {itemsize} bytes")
            yield span, offsets // itemsize, inside
            left = left & ~inside
        if left.any():
            self._report(kind, int(addresses[left].flat[0]), int(np.count_nonzero(left)))

    def _report(self, kind: Literal["read", "write", "update"], address: int, count: int) -> None:
        if not self.spans:
            self.checks.stray(kind, "", 0, 0, count)
            return
        near = min(self.spans, key=lambda span: max(span.start - address, address - span.end))
        index = (address - near.start) // near.itemsize
        self.checks.stray(kind, near.name, index, (near.end - near.start) // near.itemsize, count)


def _raw(dtype: Any) -> Any:
    return _RAW.get(dtype.name) or numpy_of(dtype)


def _from_raw(data: Array, dtype: Any) -> Array:
    if is_bfloat16(dtype):
        return (data.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return data != 0 if dtype is INT1 or dtype.is_int1() else data


def _to_raw(data: Array, dtype: Any) -> Array:
    if is_bfloat16(dtype):
        return (rounded(data).view(np.uint32) >> np.uint32(16)).astype(np.uint16)
    return data.astype(np.uint8) if dtype is INT1 or dtype.is_int1() else data


def _origin(span: Span, pointer: Pointer) -> int:
    """The number, in the span, of the element that the pointer counts from."""
    return (pointer.base - span.start) // pointer.itemsize


def _inside(at: Array, span: Span, pointer: Pointer) -> bool:
    first = _origin(span, pointer)
    return (
        bool(at.size) and int(at.min()) + first >= 0 and (int(at.max()) + first) < span.bytes.size // pointer.itemsize
    )
