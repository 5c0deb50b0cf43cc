"""What a launch may take: how long it runs, and how much of the host's memory its blocks hold.

A block is refused before it is made, where two smaller ones would be broadcast to it. What lives at once is counted for
large arrays alone: `hold` is called for each and sees it die.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from specsim.interpreter.lockstep.errors import KernelError


@dataclass(frozen=True, slots=True)
class Limits:
    """Of one launch, or of as many of its programs as run together (`launch.ELEMENTS_MAX`; with atomic operations in a
    kernel that has a `while`, all of them).

    programs     of the grid
    iterations   of all loops together, as which 2^16 elements of large blocks count, too
    block_bytes  of one block, over the programs that run together
    live_bytes   of all their blocks at once
    log_bytes    of the accesses that are kept to find races, until the launch is done
    """

    programs: int = 1 << 24
    iterations: int = 1 << 20
    block_bytes: int = 1 << 29
    live_bytes: int = 1 << 32
    log_bytes: int = 1 << 31


class RoomError(KernelError):
    """A launch needs more memory than `Limits` allows. What asks for it was not made."""


LARGE: Final = 1 << 18
"""Elements of an array whose memory is counted."""


PAIRS_MAX: Final = Limits().block_bytes >> 3
"""Two operands whose numbers of elements, multiplied, are no more can be broadcast to no block that is too large."""


class Room:
    """The limits of the launch that runs, and what its blocks hold."""

    limits = Limits()
    live = logged = work = 0
    held: dict[int, weakref.ref[Any]] = {}  # noqa: RUF012

    @classmethod
    def begin(cls, limits: Limits) -> None:
        """A launch starts."""
        cls.limits = limits
        cls.live, cls.logged, cls.held = 0, 0, {}


def hold(array: Any) -> None:
    """Count an array's memory while it lives, and the work of making it."""
    Room.work += array.size >> 16
    while isinstance(array.base, np.ndarray):
        array = array.base
    key, size = id(array), int(array.nbytes)
    held = Room.held
    if key in held:
        return

    def release(_: object) -> None:
        del held[key]
        if Room.held is held:
            Room.live -= size

    fit(array.shape, array.itemsize)  # where the limit is lower than what is looked at before
    held[key] = weakref.ref(array, release)
    Room.live += size
    if Room.live > Room.limits.live_bytes:
        raise RoomError(
            f"the blocks of {_programs(array.shape)} take {_mib(Room.live)} at once; allowed: "
            f"{_mib(Room.limits.live_bytes)} (Limits.live_bytes): launch fewer programs, or use smaller blocks"
        )


def note(size: int) -> None:
    """Count what is kept of an access until the launch is done."""
    Room.logged += size
    if Room.logged > Room.limits.log_bytes:
        raise RoomError(
            f"the accesses of a launch, which are kept to find races, take {_mib(Room.logged)}; allowed: "
            f"{_mib(Room.limits.log_bytes)} (Limits.log_bytes): launch fewer programs"
        )


def broadcast(*shapes: tuple[int, ...]) -> None:
    """Refuse a block, [programs, *shape], that is too large; it holds up to 8 bytes an element."""
    fit(tuple(map(max, *shapes)), 8)


def fit(shape: Sequence[int], itemsize: int) -> None:
    size = math.prod(shape) * itemsize
    if size > Room.limits.block_bytes:
        raise RoomError(
            f"a block {list(shape[1:])} takes {_mib(size)} for {_programs(shape)}; allowed: "
            f"{_mib(Room.limits.block_bytes)} (Limits.block_bytes): make the block smaller, or launch fewer programs"
        )


def _programs(shape: Sequence[int]) -> str:
    return f"{shape[0]:,} programs that run together" if shape[0] > 1 else "a program"


def _mib(size: int) -> str:
    return f"{size / 2**20:,.0f} MiB"
