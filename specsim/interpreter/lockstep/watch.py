"""What is known of every element of a launch's memory: who wrote and read it, in which lane, when, and whether what it
holds is defined.

Accesses of one launch *race* when their order is not given and matters:

* of two programs, one writes an element that the other reads or writes otherwise, and no atomic operation with acquire
  and release orders them. Atomic operations do not race with one another. A store that changes nothing is let pass, as
  are programs that all write the same;
* of two lanes of a program, one writes an element that the other reads or writes otherwise, with no barrier between.
  Which lanes share a thread is the compiler's choice, so only the same lane of a block of the same shape counts as one,
  and a scalar counts as read by all threads. A reduction is no barrier, though it often works like one; a scalar atomic
  operation that acquires and releases is, for its result reaches the other threads through one.

Time counts the accesses of the launch. A program knows of each other one up to which time it is done (`_known`): what
it took over with the atomic operations of both on one address.

Undefined is what no kernel wrote in an output, and what was stored of an undefined lane. It does no harm by itself; a
load gives it on, and `Checks.undefined_use` is told where it matters.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Sequence
from types import CodeType
from typing import Any, Literal, NamedTuple

import numpy as np

from specsim.interpreter.lockstep.tensors import Array

SEVERAL = -1
"""Instead of a program or a lane: more than one."""

Race = Literal["read-write", "write-write"]


class Region:
    """Memory from one address to another, which tensors of the launch share. A cell is as large as the smallest access.

    Programs are numbered from 1 here, and 0 is nobody.
    """

    __slots__ = ("cell", "end", "fields", "start", "undefined")

    def __init__(self, start: int, end: int, cell: int) -> None:
        self.start, self.end, self.cell = start, end, cell
        self.undefined: Array | None = None
        self.fields: dict[str, Array] = {}

    @property
    def size(self) -> int:
        return -(-(self.end - self.start) // self.cell)

    def field(self, name: str) -> Array:
        found = self.fields.get(name)
        if found is None:
            dtype = np.int64 if name.endswith("lane") else np.int32
            found = self.fields[name] = np.zeros(self.size, dtype)
        return found

    def refine(self, cell: int) -> None:
        """Cells of `cell` bytes, less than before."""
        times = self.cell // cell
        self.cell = cell
        self.fields = {name: np.repeat(values, times)[: self.size] for name, values in self.fields.items()}
        if self.undefined is not None:
            self.undefined = np.repeat(self.undefined, times)[: self.size]


class _Carried:
    """Cells that are undefined between launches, and the bytes that they hold: those that differ were written since."""

    __slots__ = ("at", "cell", "held", "start")

    def __init__(self, start: int, cell: int, at: Array, held: Array) -> None:
        self.start, self.cell, self.at, self.held = start, cell, at, held.reshape(at.size, cell)

    def without(self, spans: Sequence[tuple[int, int]]) -> _Carried:
        """The cells outside of these spans."""
        places = self.start + self.at * self.cell
        keep = np.ones(self.at.size, bool)
        for start, end in spans:
            keep &= (places < start) | (places >= end)
        return _Carried(self.start, self.cell, self.at[keep], self.held[keep])

    def enter(self, region: Region) -> None:
        """Mark what is still undefined in a region."""
        places = self.start + self.at * self.cell
        inside = (places >= region.start) & (places + self.cell <= region.end)
        if not inside.any():
            return
        places = places[inside] - region.start
        now = memory_at(region.start, region.end - region.start)[places[:, None] + np.arange(self.cell)]
        places = places[(now == self.held[inside]).all(axis=1)]
        if not places.size:
            return
        if region.undefined is None:
            region.undefined = np.zeros(region.size, bool)
        if self.cell <= region.cell:
            whole = np.zeros(region.size, np.int64)
            np.add.at(whole, places // region.cell, self.cell)
            region.undefined |= whole >= region.cell
        else:
            cells = places[:, None] // region.cell + np.arange(self.cell // region.cell)
            region.undefined[cells] = True


def memory_at(start: int, size: int, dtype: Any = np.uint8) -> Array:
    """The memory of `size` bytes at an address, as whole elements."""
    whole = size // np.dtype(dtype).itemsize * np.dtype(dtype).itemsize
    return np.frombuffer(_view(start, whole, _WRITABLE), dtype) if whole else np.empty(0, dtype)


_view = ctypes.pythonapi.PyMemoryView_FromMemory
_view.restype, _view.argtypes = ctypes.py_object, (ctypes.c_void_p, ctypes.c_ssize_t, ctypes.c_int)
_WRITABLE = 0x200


class LaneAccess(NamedTuple):
    """A load or a store: elements `index` of a span, in the lanes (all of them where None), each with its key, which is
    a program and a lane. Keys broadcast to `index`, or the other way round.
    """

    span: Any
    index: Array
    itemsize: int
    keys: Array
    lanes: Array | None
    place: tuple[CodeType, int]

    def cells(self, region: Region) -> Array:
        """[..., k]: the cells of each element."""
        per = self.itemsize // region.cell
        first = (self.span.start - region.start) // region.cell
        if per == 1:
            return (self.index + first if first else self.index)[..., None]
        return (self.index * per + first)[..., None] + np.arange(per)

    def element(self, lane: tuple[int, ...]) -> str:
        """What a lane accesses, in words; "" where its elements are of another size than the tensor's."""
        shape = np.broadcast_shapes(self.index.shape, self.keys.shape)
        return element_of(self.span, int(np.broadcast_to(self.index, shape)[lane]), self.itemsize)


def element_of(span: Any, index: int, itemsize: int) -> str:
    """An element in words; "" where an access is of another size than the tensor's elements."""
    return f"element {index} of {span.name}" if itemsize == span.itemsize else ""


class FoundRace(NamedTuple):
    """A race: of two programs (`between`) or of two lanes of one, the line of the later access, and what both access,
    "" where that is not known.
    """

    kind: Race
    between: bool
    line: str
    element: str


def line_of(place: tuple[CodeType, int]) -> str:
    """FILE:LINE."""
    code, line = place
    return f"{code.co_filename.rpartition('/')[2]}:{line}"


class _Log:
    """Accesses of a launch without atomic operations, or of one program, whose races are found when it is done: nothing
    orders programs, so it does not matter who came first. A key is a program and a lane; 0 is nobody.
    """

    __slots__ = ("reads", "writes")

    def __init__(self) -> None:
        self.reads: list[LaneAccess] = []
        self.writes: list[LaneAccess] = []

    def races(self, *, between: bool, within: bool) -> list[FoundRace]:
        """Races of programs (`between`), and of the lanes of a program (`within`)."""
        found: list[FoundRace] = []
        for region in {id(access.span.region): access.span.region for access in self.writes}.values():
            writes, reads = (
                [access for access in some if access.span.region is region] for some in (self.writes, self.reads)
            )
            smallest = min(access.itemsize for access in (*writes, *reads))
            if smallest < region.cell:
                region.refine(smallest)
            owner = np.zeros(region.size, np.int64)
            if len(writes) + len(reads) == 1:
                continue
            for access in writes:
                cells, keys = access.cells(region), access.keys[..., None]
                for kind, lane in _conflicts(owner[cells], keys, None):
                    found.append(FoundRace("write-write", kind, line_of(access.place), access.element(lane)))
                owner[cells] = keys
            for access in reads:
                for kind, lane in _conflicts(owner[access.cells(region)], access.keys[..., None], access.lanes):
                    found.append(FoundRace("read-write", kind, line_of(access.place), access.element(lane)))
        return [race for race in found if (between if race.between else within)]


LANE_BITS = 36


def _conflicts(before: Array, keys: Array, lanes: Array | None) -> list[tuple[bool, tuple[int, ...]]]:
    """Whether there are conflicts of lanes of a program (False), and of programs (True), each with a lane in one."""
    differs = before != keys
    differs &= before != 0
    if lanes is not None:
        differs &= lanes[..., None]
    if not np.count_nonzero(differs):
        return []
    before, keys = np.broadcast_to(before, differs.shape)[differs], np.broadcast_to(keys, differs.shape)[differs]
    same = (before >> LANE_BITS) == (keys >> LANE_BITS)
    at = np.argwhere(differs)[:, :-1]
    return [(kind, tuple(at[some.argmax()].tolist())) for kind, some in ((False, same), (True, ~same)) if some.any()]


class Watch:
    """Follows the accesses of the launches that one function makes.

    races      whether races are looked for
    within     whether races of the lanes of a program are, too
    warp       lanes side by side that run together: 1: each is by itself, a scalar is read by all threads, and a
               reduction is no barrier. More is what a GPU does: lanes of one warp are in order, and so are all where
               they hand values to one another (a reduction, a scan, a product); of a program of one warp none races
    undefined  whether what is undefined is followed, in memory
    lanes      whether lanes that are masked off of a load without `other` are undefined
    """

    def __init__(
        self,
        *,
        races: bool = True,
        within: bool = True,
        warp: int = 1,
        undefined: bool = True,
        lanes: bool = True,
    ) -> None:
        self.races, self.undefined, self.lanes, self.warp = races, undefined, lanes, warp
        self.within = self._within = within
        self.regions: list[Region] = []
        self.time = 0
        self._total = 0
        self._barriers = np.zeros(0, np.int32)
        self._known: Array | None = None
        self._released: dict[int, Array] = {}
        self._carried: list[_Carried] = []

    def nobody_wrote(self, start: int, size: int) -> None:
        """`size` bytes from `start` are undefined, as long as they hold what they hold now."""
        if size:
            self._carried.append(_Carried(start, 1, np.arange(size), memory_at(start, size).copy()))

    def forget(self) -> None:
        """What launches have left undefined is taken for defined."""
        self._carried.clear()

    def begin(self, spans: Sequence[Any], total: int, *, ordered: bool, num_warps: int = 4) -> None:
        """A launch of `total` programs on this memory; `ordered`: with atomic operations."""
        self.within = self._within and (self.warp == 1 or num_warps > 1)
        self.log = None if (ordered and total > 1) or not self.races else _Log()
        self._shapes: dict[tuple[int, ...], int] = {}
        self._before: list[_Log] = []
        self.regions, self.time, self._total = [], 0, total
        self._barriers, self._known, self._released = np.zeros(total + 1, np.int32), None, {}
        for span in sorted(spans, key=lambda span: (span.start, span.end)):
            last = self.regions[-1] if self.regions else None
            if last is not None and span.start < last.end:
                last.end = max(last.end, span.end)
                last.cell = min(last.cell, span.itemsize)
            else:
                self.regions.append(Region(span.start, span.end, span.itemsize))
            span.region = self.regions[-1]
        for region in self.regions if self.undefined else ():
            for carried in self._carried:
                carried.enter(region)

    def end(self) -> list[FoundRace]:
        """The launch is done; what it left undefined stays so until somebody writes it. Races that the log shows."""
        found: list[FoundRace] = []
        if self.log is not None:
            if self._before:
                found += self.log.races(between=False, within=self.within)
                for log in self._before:
                    self.log.reads += log.reads
                    self.log.writes += log.writes
                found += self.log.races(between=True, within=False)
            else:
                found += self.log.races(between=True, within=self.within)
        self._carry()
        return found

    def _carry(self) -> None:
        if not self.undefined:
            return
        inside = [(region.start, region.end) for region in self.regions]
        self._carried = [carried for carried in (old.without(inside) for old in self._carried) if carried.at.size]
        for region in self.regions:
            if region.undefined is not None and region.undefined.any():
                at = np.flatnonzero(region.undefined)
                whole = region.size * region.cell
                held = memory_at(region.start, whole)[: region.end - region.start].copy()
                held.resize(whole, refcheck=False)
                self._carried.append(_Carried(region.start, region.cell, at, held.reshape(-1, region.cell)[at]))

    def still_undefined(self, start: int, count: int, itemsize: int) -> Array:
        """bool [count]: which elements from `start` hold what is not defined, between launches."""
        region = Region(start, start + count * itemsize, itemsize)
        for carried in self._carried:
            carried.enter(region)
        return np.zeros(count, bool) if region.undefined is None else region.undefined

    def cells(self, span: Any, index: Array, itemsize: int) -> tuple[Region, Array]:
        """The first cell of each element."""
        region = span.region
        if itemsize < region.cell:
            region.refine(itemsize)
        per = itemsize // region.cell
        first = (span.start - region.start) // region.cell
        return region, (index if per == 1 else index * per) + first

    def _cells(self, span: Any, index: Array, itemsize: int) -> tuple[Region, Array]:
        """[n, k]: the cells of each element; k is 1 unless elements are larger than cells."""
        region, first = self.cells(span, index, itemsize)
        per = itemsize // region.cell
        return region, first[:, None] if per == 1 else first[:, None] + np.arange(per)

    def part(self) -> list[FoundRace]:
        """A barrier: races of lanes so far. What comes after it does not race with what was before, in a program."""
        assert self.log is not None
        if not self.log.reads and not self.log.writes:
            return []
        found = self.log.races(between=False, within=self.within)
        self._before.append(self.log)
        self.log = _Log()
        return found

    def conflict(self, places: Array, keys: Array, lost: Array) -> tuple[int | None, int | None]:
        """Lanes of one store of which some wrote what is not there any more: an element for which programs race, and
        one for which lanes do.
        """
        order = np.argsort(places, kind="stable")
        places, keys, lost = places[order], keys[order] >> LANE_BITS, lost[order]
        first = np.r_[True, places[1:] != places[:-1]]
        group = np.cumsum(first) - 1
        low = np.minimum.reduceat(keys, np.flatnonzero(first))[group]
        high = np.maximum.reduceat(keys, np.flatnonzero(first))[group]
        between, within = places[lost & (low != high)], places[lost & (low == high)]
        return (int(between[0]) if between.size else None), (int(within[0]) if within.size else None)

    def read(self, span: Any, index: Array, itemsize: int, programs: Array, lanes: Array) -> tuple[Any, Any]:
        """Enter a load of elements `index` [n]: the races that it makes, between programs and between lanes. `programs`
        and `lanes` are [n].
        """
        region, cells = self._cells(span, index, itemsize)
        self.time += 1
        own, lane = programs[:, None], lanes[:, None]
        between = within = None
        writers, times = region.field("write_program")[cells], region.field("write_time")[cells]
        if self._foreign(writers, times, own).any():
            between = "read-write"
        atomics = region.fields.get("atomic_program")
        if atomics is not None and self._foreign(atomics[cells], region.field("atomic_time")[cells], own).any():
            between = "read-write"
        if self._own(writers, times, own, region.field("write_lane")[cells], lane).any():
            within = "read-write"
        self._enter(region, "read", cells, own, lane)
        return between, within

    def write(
        self, span: Any, index: Array, itemsize: int, programs: Array, lanes: Array, old: Array, new: Array, now: Any
    ) -> tuple[Any, Any]:
        """Enter a store of `new` where `old` was; `now()` gives what the elements hold after it."""
        region, cells = self._cells(span, index, itemsize)
        self.time += 1
        own, lane = programs[:, None], lanes[:, None]
        between = within = None
        changes = (bits(old) != bits(new))[:, None]
        held = now()
        lost = bits(held) != bits(new)
        writers, times = region.field("write_program")[cells], region.field("write_time")[cells]
        if (self._foreign(writers, times, own) & changes).any():
            between = "write-write"
        atomics = region.fields.get("atomic_program")
        if atomics is not None and self._foreign(atomics[cells], region.field("atomic_time")[cells], own).any():
            between = "write-write"
        readers, read_times = region.field("read_program")[cells], region.field("read_time")[cells]
        if between is None and (self._foreign(readers, read_times, own) & changes).any():
            between = "read-write"
        if (self._own(writers, times, own, region.field("write_lane")[cells], lane) & changes).any():
            within = "write-write"
        elif (self._own(readers, read_times, own, region.field("read_lane")[cells], lane) & changes).any():
            within = "read-write"
        region.field("write_program")[cells] = own
        region.field("write_time")[cells] = self.time
        region.field("write_lane")[cells] = lane
        if lost.any():  # several lanes of this store write one element, and not the same
            last = region.field("write_program")[cells]
            if (last != own)[lost].any():
                between = "write-write"
            if ((last == own) & (region.field("write_lane")[cells] != lane))[lost].any():
                within = "write-write"
        return between, within

    def define(self, span: Any, index: Array, itemsize: int, undefined: Array | None) -> None:
        """A store: what it leaves undefined; None where nothing."""
        region, cells = self._cells(span, index, itemsize)
        if undefined is None:
            if region.undefined is not None:
                region.undefined[cells] = False
            return
        if region.undefined is None:
            if not undefined.any():
                return
            region.undefined = np.zeros(region.size, bool)
        region.undefined[cells] = undefined[:, None]

    def update(
        self, span: Any, index: Array, itemsize: int, programs: Array, *, orders: bool, is_scalar: bool
    ) -> tuple[Any, bool]:
        """Enter an atomic operation: the race that it makes with accesses that are none, and whether it reads what is
        undefined.
        """
        region, cells = self._cells(span, index, itemsize)
        undefined = region.undefined is not None and bool(region.undefined[cells].any())
        if region.undefined is not None:
            region.undefined[cells] = False
        if not self.races or self.log is not None:
            return None, undefined
        self.time += 1
        own = programs[:, None]
        between = None
        for kind in ("write", "read"):
            seen = region.fields.get(f"{kind}_program")
            if seen is not None and self._foreign(seen[cells], region.field(f"{kind}_time")[cells], own).any():
                between = "read-write"
        self._enter(region, "atomic", cells, own, None)
        if orders:
            addresses = (span.start + index * itemsize).tolist()
            self._order(addresses, np.broadcast_to(programs, index.shape).tolist())
            if is_scalar:
                self.barrier(programs)
        return between, undefined

    def keys(self, first: int, count: int, shape: tuple[int, ...], *, reads: bool) -> Array:
        """[count, *shape] int64: a key for each lane of the programs from `first`, or for each warp of them. Blocks of
        other shapes have other lanes. A scalar is read by every thread, which is a lane of its own, and written by one,
        of the first warp.
        """
        number = self._shapes.setdefault(shape, len(self._shapes) + 1) if self.warp == 1 else 0
        make = _keys if count * math.prod(shape) <= KEYS_MAX else _keys.__wrapped__
        return make(first, count, shape, number, reads and self.warp == 1, self.warp)

    def barrier(self, programs: Array) -> None:
        """Programs (numbered from 1) pass a barrier of their threads."""
        self._barriers[np.unique(programs)] = self.time

    def _order(self, addresses: list[int], programs: list[int]) -> None:
        if self._known is None:
            if self._total > 4096:  # a matrix of programs would be too large: let everything be ordered
                self._known = np.full((1, 1), np.iinfo(np.int32).max, np.int32)
                return
            self._known = np.zeros((self._total, self._total), np.int32)
        if self._known.shape[0] == 1 and self._total > 1:
            return
        for address, program in zip(addresses, programs, strict=True):
            mine = self._known[program - 1]
            there = self._released.get(address)
            if there is not None:
                np.maximum(mine, there, out=mine)
            mine[program - 1] = self.time
            self._released[address] = mine.copy()

    def _foreign(self, programs: Array, times: Array, own: Array) -> Array:
        """Where another program touched a cell that this one does not know to be done with it."""
        foreign = (programs != 0) & (programs != own)
        if self._known is None or not foreign.any():
            return foreign
        if self._known.shape[0] == 1:
            return np.zeros_like(foreign)
        wide = np.broadcast_to(own, foreign.shape)
        mine = wide[foreign] - 1
        others = programs[foreign]
        single = others > 0
        seen = np.empty(mine.shape, np.int32)
        seen[single] = self._known[mine[single], others[single] - 1]
        if not single.all():
            matrix = self._known.copy()
            np.fill_diagonal(matrix, np.iinfo(np.int32).max)
            seen[~single] = matrix.min(axis=1)[mine[~single]]
        foreign[foreign] = times[foreign] > seen
        return foreign

    def _own(self, programs: Array, times: Array, own: Array, lanes: Array, lane: Array) -> Array:
        """Where another lane of the same program touched a cell since the program's last barrier."""
        mine = (programs == own) & (lanes != lane)
        if not mine.any():
            return mine
        since = self._barriers[np.broadcast_to(own, mine.shape)[mine]]
        mine[mine] = times[mine] > since
        return mine

    def _enter(self, region: Region, kind: str, cells: Array, own: Array, lane: Array | None) -> None:
        """Note that programs touched cells now; several ones are noted as such."""
        program = region.field(f"{kind}_program")
        before = program[cells]
        program[cells] = own
        others = (program[cells] != own) | ((before != 0) & (before != own))
        if others.any():
            program[cells[others]] = SEVERAL
        if lane is not None:
            held = region.field(f"{kind}_lane")
            times = region.field(f"{kind}_time")
            earlier = (before == own) & (held[cells] != lane) & (held[cells] != 0)
            if earlier.any():
                since = self._barriers[np.broadcast_to(own, earlier.shape)[earlier]]
                earlier[earlier] = times[cells][earlier] > since
            held[cells] = lane
            mixed = earlier | (held[cells] != lane)
            if mixed.any():
                held[cells[mixed]] = SEVERAL
        region.field(f"{kind}_time")[cells] = self.time


KEYS_MAX = 1 << 14
"""Keys that are worth keeping, for the next launch."""


@functools.lru_cache(maxsize=64)
def _keys(first: int, count: int, shape: tuple[int, ...], number: int, reads: bool, warp: int) -> Array:
    lanes = np.arange(math.prod(shape), dtype=np.int64).reshape(1, *shape) // warp
    if not shape and reads:
        lanes = lanes + 1
    programs = np.arange(first + 1, first + 1 + count, dtype=np.int64).reshape(count, *(1,) * len(shape))
    return (programs << LANE_BITS) + (number << 28) + lanes


def bits(values: Array) -> Array:
    """Values to compare bit by bit: a NaN equals itself."""
    return values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "f" else values


def lane_numbers(shape: tuple[int, ...], *, reads: bool, warp: int = 1) -> Array:
    """[1, *shape] int64: a number for each lane of a block, unlike those of blocks of other shapes, or for each warp of
    them. A scalar is read by every thread, and written by one, of the first warp.
    """
    if warp > 1:
        return 1 + np.arange(int(np.prod(shape)), dtype=np.int64).reshape(1, *shape) // warp
    if not shape and reads:
        return np.full((1,), SEVERAL, np.int64)
    key = 0
    for extent in shape or (1,):
        key = key * 8209 + extent
    count = int(np.prod(shape))
    return (1 + np.arange(count, dtype=np.int64) + (key % (1 << 30) << 32)).reshape(1, *shape)
