"""Memory checking of any Triton kernel on the CPU: out-of-bounds accesses are seen, not guessed.

While the context manager is active, each launch is known with its tensors, and each lane of each load and store must
fall into the one that its pointer was made from. A lane that does not is recorded and neutralised: a load gives poison,
a store has no effect; so a far access cannot crash the process and the test goes on. Races of programs are seen, and
what becomes of lanes and of memory that nothing defines. A launch that is compiled for a GPU is not seen here; red
zones still detect its writes.

On request two things that no implementation may rely on differ, too: the lanes of a load that are masked off and have
no `other` hold poison instead of 0, and the programs of a launch run in reverse order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch

from specsim.contracts.pointers import span_bytes
from specsim.interpreter.red_zones import poison_value
from specsim.interpreter.triton_names import Order

if TYPE_CHECKING:
    from specsim.interpreter.lockstep.memory import Checks
    from specsim.interpreter.lockstep.watch import Watch


WARP = 32
"""Lanes of a block that run together at least, on an NVIDIA GPU."""


@dataclass(frozen=True, slots=True)
class StrayAccess:
    """A lane outside of the tensor that its pointer was made from. `index` is the element relative to its start."""

    kind: Literal["read", "write"]
    kernel: str
    argument: str
    index: int
    count: int

    def __str__(self) -> str:
        if self.argument:
            return f"{self.kernel} {self.kind}s element {self.index} of {self.argument}, which has {self.count}"
        return f"{self.kernel} {self.kind}s outside every tensor that it was given"


@dataclass(slots=True)
class MemoryLog:
    """What memcheck saw.

    strays         the first stray access of each kernel, kind and argument
    launches       how many there were
    without_other  lines of loads of which masked-off lanes were poisoned
    kernel         the last one that was launched
    races          by kernel of which two programs race, what the first race of it is: another order may show something
                   else
    warp_races     by kernel of which lanes of two warps race, likewise
    undefined      what an undefined lane decided: "a branch (line 12)"
    watch          what is known of memory, and so what the function left undefined; None where nothing is followed
    """

    strays: list[StrayAccess] = field(default_factory=list)
    launches: int = 0
    without_other: set[int] = field(default_factory=set)
    kernel: str = ""
    races: dict[str, str] = field(default_factory=dict)
    warp_races: dict[str, str] = field(default_factory=dict)
    undefined: set[str] = field(default_factory=set)
    watch: Watch | None = None
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, stray: StrayAccess) -> None:
        key = (stray.kind, stray.kernel, stray.argument)
        if key not in self._seen:
            self._seen.add(key)
            self.strays.append(stray)


@contextmanager
def memcheck(
    poison: int = 0,
    *,
    lanes: bool = False,
    backwards: bool = False,
    apart: bool = False,
    in_turn: bool = False,
    follows: bool = True,
    unwritten: Sequence[torch.Tensor] = (),
) -> Iterator[MemoryLog]:
    """Check every Triton launch on the CPU while active. `poison` (0 or 1) chooses what stray loads give.

    lanes      the masked-off lanes of loads without `other` hold the poison
    backwards  programs are in reverse, so that of several that write at once the first one's value stays
    apart      each lane that is masked off holds a value of its own, another one in each load
    in_turn    programs run one after the other, unless one may wait for another
    follows    races of programs and of the warps of one, and what nothing defines, are looked for
    unwritten  tensors that hold nothing yet

    A launch of what the interpreter does not have raises UnsupportedError.
    """
    from specsim.interpreter.lockstep.launch import lockstep
    from specsim.interpreter.lockstep.watch import Watch

    watch = Watch(warp=WARP) if follows else None
    if watch is not None:
        for tensor in unwritten:
            watch.nobody_wrote(tensor.data_ptr(), span_bytes(tensor))
    log = MemoryLog(watch=watch)
    numbers = np.random.default_rng(poison) if apart else None
    order: Order = (lambda programs: programs[::-1]) if backwards else tuple
    checks = _checks(log, poison, numbers, lanes=lanes)
    with lockstep(checks, watch, order=order, in_turn=in_turn, fall_back=False) as launches:
        try:
            yield log
        finally:
            log.launches = launches.count


def _checks(log: MemoryLog, poison: int, numbers: Any, *, lanes: bool) -> Checks:
    from specsim.interpreter.lockstep.memory import Checks, source_line

    class Logged(Checks):
        def launch(self, kernel: str) -> None:
            log.kernel = kernel

        def stray(self, kind: str, name: str, index: int, size: int, count: int) -> None:
            if kind != "update":
                log.add(StrayAccess("read" if kind == "read" else "write", log.kernel, name, index, size))

        def without_other(self) -> None:
            if lanes:
                log.without_other.add(int(source_line().rpartition(":")[2]))

        def poison(self, dtype: Any, count: int, *, stray: bool) -> Any:
            if numbers is not None and not stray:
                return numbers.integers(0, 2 if dtype.is_bool() else 100, count).astype(_held(dtype))
            return _poison_of(_held(dtype), poison) if stray or lanes else 0

        def undefined_use(self, what: str) -> None:
            log.undefined.add(f"{what} (line {source_line().rpartition(':')[2]})")

        def race(self, kind: str, *, between: bool, line: str, element: str = "") -> None:
            place, at = f"for {element} " if element else "", f"{log.kernel} (line {line.rpartition(':')[2]})"
            if between:
                log.races.setdefault(log.kernel, f"a {kind} race {place}of two programs of {at}")
            else:
                text = f"a {kind} race {place}of two warps, no barrier between, of a program of {at}"
                log.warp_races.setdefault(log.kernel, text)

    return Logged()


def _held(dtype: Any) -> Any:
    """The NumPy type of a kernel's type that holds a poison of it."""
    if dtype.is_bool():
        return np.dtype(bool)
    if dtype.is_floating():
        return np.dtype(f"float{max(32, dtype.primitive_bitwidth)}")
    return np.dtype(f"int{dtype.primitive_bitwidth}")


def _poison_of(dtype: Any, which: int) -> Any:
    if dtype == np.bool_:
        return bool(which)
    if np.issubdtype(dtype, np.floating):
        return poison_value(torch.float32, which)
    return poison_value(torch.int32 if dtype.itemsize >= 4 else torch.uint8, which)
