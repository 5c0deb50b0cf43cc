"""Runs launches of Triton kernels on a CPU, all programs of the grid in lockstep.

    run(kernel[grid], *args, **kwargs)      one launch
    with lockstep(): ...                    every launch that is made inside, whoever makes it

A kernel is what `triton.jit` makes, with or without TRITON_INTERPRET=1. Nothing of Triton's is changed but the method
by which its functions are launched (`run`), while `lockstep` is active.
"""

from __future__ import annotations

import functools
import inspect
import itertools
import math
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import torch
import triton.language as tl

from specsim.contracts.pointers import pointees
from specsim.interpreter.lockstep import control
from specsim.interpreter.lockstep.blocks import described
from specsim.interpreter.lockstep.compiler import MARK, Compiled, compiled
from specsim.interpreter.lockstep.control import Machine
from specsim.interpreter.lockstep.errors import KernelError, UnsupportedError
from specsim.interpreter.lockstep.limits import Limits, Room, RoomError
from specsim.interpreter.lockstep.memory import Checks, LaunchMemory, Span
from specsim.interpreter.lockstep.tensors import NUMPY, Overflow, Pointer, Tensor, aligned
from specsim.interpreter.lockstep.watch import Watch
from specsim.interpreter.triton_names import Order, Program, kernel_classes, mend_interpreter

ELEMENTS_MAX = 1 << 22
"""Elements of a block, over the programs that run together. Programs of a larger grid run in groups."""

_TYPES = {torch.bool: tl.int1} | {
    getattr(torch, str(held)): getattr(tl, str(held)) for held in (*NUMPY.values(), "bfloat16") if str(held) != "bool"
}
_POINTERS = {dtype: tl.pointer_type(element) for dtype, element in _TYPES.items()}
_START = np.zeros(1, np.int64)


def launch(
    kernel: Callable[..., Any],
    grid: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    checks: Checks | None = None,
    watch: Watch | None = None,
    *,
    extra: Sequence[torch.Tensor] = (),
    order: Order = tuple,
    in_turn: bool = False,
    limits: Limits = Limits(),  # noqa: B008
) -> int:
    """Run `kernel`, the Python function of a Triton kernel, on tensors in the host's memory. Returns how many programs
    the grid has.

    grid   extents, or a function of the arguments that gives them
    extra  memory that the kernel may reach besides its tensors
    order  given the grid's programs, which of them run, in which order: where several write one element at once, the
           last one's value stays, and atomic operations of one statement follow it
    in_turn  programs run one after the other, unless the kernel may wait for another one

    Raises UnsupportedError before anything is run, KernelError for what the kernel does wrong, and RoomError, which is
    one, for what is beyond the limits.
    """
    code = compiled(kernel)
    code.prepare()
    bound = _bound(code, args, kwargs)
    dims = _extents(grid(bound) if callable(grid) else grid, limits)
    spans: list[Span] = []
    constexprs = _parameters(code).constexprs
    arguments = {name: value if name in constexprs else _argument(value, name, spans) for name, value in bound.items()}
    pointed_to = [tensor for value in bound.values() for tensor in pointees(value)]
    spans += [Span(f"what a pointer leads to ({i})", tensor) for i, tensor in enumerate(pointed_to)]
    spans += [Span(f"extra memory ({i})", tensor) for i, tensor in enumerate(extra)]
    memory = LaunchMemory(spans, checks or Checks(), watch)
    places, total, dims = _programs(dims, order)
    group = total if code.waits else 1 if in_turn else _group(code, bound)
    memory.checks.launch(code.name)
    if watch is not None:
        watch.begin(memory.spans, total, ordered=code.has_atomics, num_warps=int(kwargs.get("num_warps", 4)))
    Room.begin(limits)
    first = 0
    with np.errstate(all="ignore"):  # a GPU has no warnings either
        while first < total:
            together = places(first, min(first + group, total))
            control.install(Machine(together, dims, memory, first, limits.iterations))
            try:
                code(**arguments)
                first += group
            except RoomError as error:
                if group == 1 or code.waits or memory.changes:
                    _raise_located(error, kernel)
                    raise
                group = max(1, min(group, total) // 16)  # nothing was stored yet: start again with fewer programs
            except UnsupportedError as error:  # what `prepare` does not see: a type
                if not memory.changes:
                    raise UnsupportedError(code.name, error.names, dict.fromkeys(error.names, _place(error))) from error
                _raise_located(error, kernel)  # too late to run it in another interpreter
                raise
            except (MemoryError, NotImplementedError):
                raise
            except Exception as error:
                _raise_located(error, kernel)
                raise
    if watch is not None:
        for race in watch.end():
            memory.checks.race(race.kind, between=race.between, line=race.line, element=race.element)
    return total


def _extents(grid: Sequence[Any], limits: Limits) -> Program:
    extents = tuple(int(extent) for extent in grid)
    if not 1 <= len(extents) <= 3 or min(extents) < 0:
        raise KernelError(f"the grid is {extents}; allowed: one to three extents, none below 0")
    count = math.prod(extents)
    if count > limits.programs:
        raise RoomError(
            f"the grid {extents} has {count:,} programs; allowed: {limits.programs:,} (Limits.programs): launch fewer"
        )
    x, y, z = (*extents, 1, 1)[:3]
    return x, y, z


_Places = Callable[[int, int], tuple[Any, Any, Any]]


def _programs(dims: Program, order: Order) -> tuple[_Places, int, Program]:
    """What gives the coordinates of the programs that run from one number to another, [programs] int32 for each axis;
    how many they are; the extents of the grid.
    """
    if order is tuple:
        return functools.partial(_places, dims), math.prod(dims), dims
    chosen = order(list(itertools.product(range(dims[0]), range(dims[1]), range(dims[2]))))
    x, y, z = np.array(chosen, np.int32).reshape(-1, 3).T
    # A program beyond the grid, whose offsets alone are looked at, makes the grid as large.
    extents = [max([extent, *(axis + 1).tolist()]) for extent, axis in zip(dims, (x, y, z), strict=True)]
    return (
        lambda first, end: (x[first:end], y[first:end], z[first:end]),
        len(chosen),
        (extents[0], extents[1], extents[2]),
    )


@functools.lru_cache(maxsize=4)
def _places(dims: Program, first: int, end: int) -> tuple[Any, Any, Any]:
    at = np.unravel_index(np.arange(first, end), dims)
    return (at[0].astype(np.int32), at[1].astype(np.int32), at[2].astype(np.int32))


def _raise_located(error: Exception, kernel: Callable[..., Any]) -> None:
    """Raise what a kernel does wrong as a KernelError that starts with FILE:LINE of the statement and names the kernel;
    nothing for an error outside of one.
    """
    place = _place(error)
    if not place:
        return
    what = str(error) if isinstance(error, KernelError) else f"{type(error).__name__}: {error}"
    kind = RoomError if isinstance(error, RoomError) else KernelError
    raise kind(f"{place}: {what} (in kernel {kernel.__name__})") from error


def _place(error: Exception) -> str:
    """FILE:LINE of the kernel's statement that raised it, "" for none."""
    for frame, line in reversed(list(traceback.walk_tb(error.__traceback__))):
        if MARK in frame.f_globals:
            return f"{frame.f_code.co_filename.rpartition('/')[2]}:{line}"
    return ""


def _group(code: Compiled, bound: dict[str, Any]) -> int:
    """How many programs run together: fewer, the larger the kernel's largest block can be. A block's extents are known
    when a kernel is compiled.
    """
    constants = (bound[name] for name in _parameters(code).constexprs)
    sizes = (v for v in (*constants, *code.extents) if isinstance(v, int) and v > 0 and v & (v - 1) == 0)
    return max(1, ELEMENTS_MAX // max(sizes, default=1))


class _Parameters(NamedTuple):
    """Of a kernel: its parameters with their defaults, `Parameter.empty` for none, and which are constexprs."""

    defaults: dict[str, Any]
    constexprs: frozenset[str]


@functools.cache
def _parameters(code: Compiled) -> _Parameters:
    found = code.signature.parameters
    notes = {name: parameter.annotation for name, parameter in found.items()}
    constexprs = frozenset(name for name, note in notes.items() if note is tl.constexpr or "constexpr" in str(note))
    return _Parameters({name: parameter.default for name, parameter in found.items()}, constexprs)


def _bound(code: Compiled, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """By parameter what the caller passed, without what is the compiler's (`num_warps` and others)."""
    defaults = _parameters(code).defaults
    given = dict(zip(defaults, args, strict=False))
    named = {name: value for name, value in kwargs.items() if name in defaults}
    bound = defaults | given | named
    is_missing = any(value is inspect.Parameter.empty for value in bound.values())
    if is_missing or len(args) > len(given) or given.keys() & named.keys():
        code.signature.bind(*args, **named)  # raises TypeError, which says what is wrong
    return {name: _plain(value) for name, value in bound.items()}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _argument(value: Any, name: str, spans: list[Span]) -> Any:
    if isinstance(value, bool):
        return Tensor(np.array([value]), tl.int1)
    if isinstance(value, int):
        return _integer(value, name)
    if isinstance(value, float):
        return Tensor(np.array([value], np.float32), tl.float32)
    if isinstance(value, torch.Tensor):
        dtype = _POINTERS.get(value.dtype)
        return _pointer(value, value.dtype if dtype is None else dtype, name, spans)
    if type(value).__name__ == "TensorWrapper":
        if value.dtype not in NUMPY:
            raise UnsupportedError("a kernel", (f"a tensor of {value.dtype} ({name})",))
        return _pointer(value.base, tl.pointer_type(value.dtype), name, spans)
    if type(value).__name__ == "TensorDescriptor":
        return described(_argument(value.base, name, spans), value)
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        names = [f"{name}.{field}" for field in fields] if fields else [f"{name}[{i}]" for i in range(len(value))]
        items = [_argument(_plain(item), at, spans) for item, at in zip(value, names, strict=True)]
        return type(value)(*items) if fields else tuple(items)
    if hasattr(value, "data_ptr"):
        raise UnsupportedError("a kernel", (f"an argument of {type(value).__name__} ({name})",))
    return value


def _pointer(tensor: torch.Tensor, dtype: Any, name: str, spans: list[Span]) -> Pointer:
    if isinstance(dtype, torch.dtype):
        raise UnsupportedError("a kernel", (f"a tensor of {dtype} ({name})",))
    if not tensor.is_cpu:
        raise KernelError(f"{name} lies on {tensor.device}; the lockstep interpreter reads the host's memory")
    span = Span(name, tensor)
    spans.append(span)
    return Pointer(_START, dtype, None, span.start, span)


@functools.lru_cache(maxsize=4096)
def _integer(value: int, name: str) -> Tensor:
    """Of the type that a launch gives an argument: Triton has no uint32 there, unlike for a constant in a kernel."""
    dtype = tl.int32 if -(2**31) <= value < 2**31 else tl.uint64 if value >= 2**63 else tl.int64
    if not dtype.get_int_min_value() <= value <= dtype.get_int_max_value():
        raise KernelError(f"the argument {name} is {value}; allowed: 64 bits")
    return Tensor(np.array([value], NUMPY[dtype]), dtype)


@contextmanager
def lockstep(
    checks: Checks | None = None,
    watch: Watch | None = None,
    *,
    extra: Sequence[torch.Tensor] = (),
    order: Order = tuple,
    in_turn: bool = False,
    limits: Limits = Limits(),  # noqa: B008
    overflow: bool = False,
    fall_back: bool = True,
) -> Iterator[Launches]:
    """Run every launch of a Triton kernel here while active; what is left of the others is in what this gives.

    extra, order, in_turn, limits  as `launch` has them
    overflow   check integer arithmetic, which is reported to `checks`
    fall_back  launch a kernel that uses what is not supported as Triton does; else UnsupportedError is raised
    """
    mend_interpreter()
    seen = Launches()
    originals = [(owner, owner.run) for owner in kernel_classes()]

    def method(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(of: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
            if warmup:
                return None
            seen.kernels.add((of.fn.__name__, of.fn.__code__.co_firstlineno))
            try:
                programs = launch(
                    of.fn, grid, args, kwargs, checks, watch, extra=extra, order=order, in_turn=in_turn, limits=limits
                )
            except UnsupportedError as error:
                if not fall_back:
                    raise UnsupportedError(of.fn.__name__, error.names, error.places) from error
                seen.fallen_back[of.fn.__name__] = error.names
                return original(of, *args, grid=grid, warmup=warmup, **kwargs)
            seen.count += 1
            seen.programs = max(seen.programs, programs)
            return None

        return run

    before = Overflow.report
    Overflow.report = functools.partial(_overflow, checks) if overflow and checks is not None else None
    try:
        for owner, original in originals:
            owner.run = method(original)
        yield seen
    finally:
        Overflow.report = before
        for owner, original in originals:
            owner.run = original


def _overflow(checks: Checks, message: str, lanes: Any) -> None:
    active = control.machine().active
    if active is None or np.logical_and(*np.broadcast_arrays(*aligned(lanes, active))).any():
        checks.overflow(message)


class Strict(Checks):
    """Raises KernelError for an access outside of its tensors."""

    def stray(self, kind: str, name: str, index: int, size: int, count: int) -> None:
        place = f"element {index} of {name}, which has {size}" if name else "memory, and was given no tensor"
        raise KernelError(f"{kind}s {place}")


class Launches:
    """What `lockstep` ran: `count` launches, of at most `programs`; of which kernels, by name and first line; by kernel
    left to Triton, the names that are missing.
    """

    def __init__(self) -> None:
        self.count = 0
        self.programs = 0
        self.kernels: set[tuple[str, int]] = set()
        self.fallen_back: dict[str, tuple[str, ...]] = {}


def run(launched: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """`run(kernel[grid], *args)`: one launch in lockstep. Raises KernelError for an access outside of its tensors."""
    with lockstep(Strict(), fall_back=False):
        launched(*args, **kwargs)


__all__ = ["Limits", "RoomError", "launch", "lockstep", "run"]
