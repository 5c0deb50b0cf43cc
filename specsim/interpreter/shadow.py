"""What the sanitizer knows of every byte: who wrote and read it in this launch, in which lane, and since which barrier.

Accesses of one launch *race* when their order is not given and matters:

* of two programs, one writes a byte that the other reads or writes otherwise, and no atomic operation with acquire and
  release orders them. Atomic operations do not race with one another. A store that changes nothing is let pass, as are
  programs that all write the same;
* of two lanes of a program, one writes a byte that the other reads or writes otherwise, with no barrier between. Which
  lanes share a thread is the compiler's choice, so only the same lane of a block of the same shape counts as one, and a
  scalar counts as read by all threads. A reduction is no barrier, though it often works like one; a scalar atomic
  operation that acquires and releases is, for its result reaches the other threads through one.

A program that has met another through an atomic operation counts as after all that the other did before, up to its own
last release.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np

from specsim.interpreter.triton_interpreter import Access

ALL = -1
"""In a shadow: more than one reader, or all lanes."""

Race = Literal["read-write", "write-write"]


@dataclass(slots=True)
class Region:
    """Memory from one address to another that a launch can touch, with a shadow of each byte.

    Programs are numbered from 1, barriers count up through all programs, and 0 is nobody and never.
    """

    start: int
    end: int
    bytes: Any = field(init=False)
    write_program: Any = field(init=False)
    read_program: Any = field(init=False)
    atomic_program: Any = field(init=False)
    write_epoch: Any = field(init=False)
    write_lane: Any = field(init=False)
    read_epoch: Any = field(init=False)
    read_lane: Any = field(init=False)

    def __post_init__(self) -> None:
        count = self.end - self.start
        self.bytes = np.ctypeslib.as_array((ctypes.c_uint8 * count).from_address(self.start))
        for name in ("write_program", "read_program", "atomic_program", "write_epoch", "read_epoch"):
            setattr(self, name, np.zeros(count, dtype=np.int32))
        for name in ("write_lane", "read_lane"):
            setattr(self, name, np.zeros(count, dtype=np.int64))


@dataclass(slots=True)
class Shadow:
    """The shadow of one launch."""

    regions: list[Region]
    program: int = 0
    epoch: int = 1
    known: dict[int, set[int]] = field(default_factory=dict)
    released: dict[int, set[int]] = field(default_factory=dict)

    @classmethod
    def over(cls, spans: list[tuple[int, int]]) -> Shadow:
        """`spans` are (start, end) of the launch's tensors; those that overlap are one region."""
        merged: list[tuple[int, int]] = []
        for start, end in sorted(span for span in spans if span[0] < span[1]):
            if merged and start <= merged[-1][1]:
                merged[-1] = (merged[-1][0], max(end, merged[-1][1]))
            else:
                merged.append((start, end))
        return cls([Region(*span) for span in merged])

    def begin(self, number: int) -> None:
        self.program = number + 1
        self.epoch += 1
        self.known.setdefault(self.program, set())

    def barrier(self) -> None:
        self.epoch += 1

    def read(self, access: Access) -> tuple[Race | None, Race | None]:
        """Enter a load of lanes that are inside; the races that it makes with other programs, and with other lanes."""
        between: Race | None = None
        within: Race | None = None
        for region, at, own, _elements in self._touched(access):
            lanes = np.full_like(own, ALL) if access.is_scalar else own
            writers, atomics = region.write_program[at], region.atomic_program[at]
            if self._foreign(writers).any() or self._foreign(atomics).any():
                between = "read-write"
            if ((region.write_epoch[at] == self.epoch) & (region.write_lane[at] != lanes)).any():
                within = "read-write"
            readers = region.read_program[at]
            region.read_program[at] = np.where((readers == 0) | (readers == self.program), self.program, ALL)
            again = (region.read_epoch[at] == self.epoch) & (region.read_lane[at] != lanes)
            region.read_lane[at] = np.where(again, ALL, lanes)
            region.read_epoch[at] = self.epoch
        return between, within

    def write(self, access: Access, values: Any) -> tuple[Race | None, Race | None]:
        """Enter a store of `values`, as `read` does."""
        between: Race | None = None
        within: Race | None = None
        values = np.ascontiguousarray(np.broadcast_to(values, access.addresses.shape))
        content = values.reshape(-1).view(np.uint8).reshape(values.size, -1)
        for region, at, lanes, elements in self._touched(access):
            new = content[elements][:, : access.itemsize].reshape(-1)
            changes = region.bytes[at] != new
            atomics = self._foreign(region.atomic_program[at])
            if (self._foreign(region.write_program[at]) & changes).any() or atomics.any():
                between = "write-write"
            elif (self._foreign(region.read_program[at]) & changes).any():
                between = "read-write"
            if self._written_twice(at, new) or self._within(region.write_epoch, region.write_lane, at, lanes, changes):
                within = "write-write"
            elif self._within(region.read_epoch, region.read_lane, at, lanes, changes):
                within = "read-write"
            region.write_program[at] = self.program
            region.write_lane[at] = lanes
            region.write_epoch[at] = self.epoch
        return between, within

    def atomic(self, access: Access, *, orders: bool) -> Race | None:
        """Enter an atomic operation; `orders` if it has acquire and release semantics."""
        between: Race | None = None
        for region, at, _lanes, _elements in self._touched(access):
            if self._foreign(region.write_program[at]).any() or self._foreign(region.read_program[at]).any():
                between = "read-write"
            others = region.atomic_program[at]
            region.atomic_program[at] = np.where((others == 0) | (others == self.program), self.program, ALL)
        if orders:
            mine = self.known.setdefault(self.program, set())
            for address in np.unique(access.addresses[access.active]).tolist():
                there = self.released.setdefault(address, set())
                mine |= there
                there |= mine | {self.program}
            if access.is_scalar:
                self.epoch += 1
        return between

    def _foreign(self, programs: Any) -> Any:
        """Where a byte was touched by a program that this one does not know to be done."""
        mine = self.known.get(self.program, set())
        foreign = (programs != 0) & (programs != self.program)
        if mine:
            foreign &= ~np.isin(programs, list(mine))
            if len(mine) == len(self.known) - 1:
                foreign &= programs != ALL
        return foreign

    def _within(self, epochs: Any, lanes_then: Any, at: Any, lanes: Any, changes: Any) -> bool:
        return bool(((epochs[at] == self.epoch) & (lanes_then[at] != lanes) & changes).any())

    def _written_twice(self, at: Any, new: Any) -> bool:
        """Whether one store writes two values to one byte."""
        order = np.argsort(at, kind="stable")
        same = at[order][1:] == at[order][:-1]
        return bool((same & (new[order][1:] != new[order][:-1])).any())

    def _touched(self, access: Access) -> list[tuple[Region, Any, Any, Any]]:
        """By region: the offset of each byte of each active lane, the lane of each, and the elements' numbers."""
        elements = np.flatnonzero(access.active.reshape(-1))
        addresses = access.addresses.reshape(-1)[elements].astype(np.int64)
        shape_key = 0
        for extent in access.addresses.shape:
            shape_key = shape_key * 8209 + extent
        touched = []
        for region in self.regions:
            inside = (addresses >= region.start) & (addresses + access.itemsize <= region.end)
            if inside.any():
                mine = elements[inside]
                at = ((addresses[inside] - region.start)[:, None] + np.arange(access.itemsize)).reshape(-1)
                lane = 1 + mine + (shape_key % (1 << 30) << 32)
                touched.append((region, at, np.repeat(lane, access.itemsize), mine))
        return touched
