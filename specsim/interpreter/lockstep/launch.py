"""Runs launches of Triton kernels on a CPU, all programs of the grid in lockstep.

    run(kernel[grid], *args, **kwargs)      one launch
    with lockstep(): ...                    every launch that is made inside, whoever makes it

A kernel is what `triton.jit` makes, with or without TRITON_INTERPRET=1. Nothing of Triton's is changed but the method
by which its functions are launched (`run`), while `lockstep` is active.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
import triton.language as tl

from specsim.contracts.pointers import pointees
from specsim.interpreter.lockstep import control
from specsim.interpreter.lockstep.compiler import Compiled, compiled
from specsim.interpreter.lockstep.control import Machine
from specsim.interpreter.lockstep.errors import KernelError, UnsupportedError
from specsim.interpreter.lockstep.memory import Checks, Memory, Span
from specsim.interpreter.lockstep.tensors import NUMPY, Pointer, Tensor, constant
from specsim.interpreter.lockstep.watch import Watch
from specsim.interpreter.triton_interpreter import kernel_classes

ELEMENTS_MAX = 1 << 22
"""Elements of a block, over the programs that run together. Programs of a larger grid run in groups."""

_TYPES = {torch.bool: tl.int1} | {
    getattr(torch, str(held)): getattr(tl, str(held)) for held in (*NUMPY.values(), "bfloat16") if str(held) != "bool"
}


def launch(
    kernel: Callable[..., Any],
    grid: Any,
    args: Sequence[Any],
    kwargs: dict[str, Any],
    checks: Checks | None = None,
    watch: Watch | None = None,
    *,
    extra: Sequence[torch.Tensor] = (),
    backwards: bool = False,
) -> int:
    """Run `kernel`, the Python function of a Triton kernel, on tensors in the host's memory. Returns how many programs
    the grid has.

    grid       extents, or a function of the arguments that gives them
    extra      memory that the kernel may reach besides its tensors
    backwards  where several programs write one element the first one's value stays, not the last one's

    Raises UnsupportedError before anything is run, and KernelError for what the kernel does wrong.
    """
    code = compiled(kernel)
    code.prepare()
    bound = _bound(code, args, kwargs)
    extents = tuple(int(extent) for extent in (grid(bound) if callable(grid) else grid))
    x, y, z = (*extents, 1, 1)[:3]
    dims = (x, y, z)
    spans: list[Span] = []
    arguments = {
        name: value if name in _constexprs(code) else _argument(value, name, spans) for name, value in bound.items()
    }
    pointed_to = [tensor for value in bound.values() for tensor in pointees(value)]
    spans += [Span(f"what a pointer leads to ({i})", tensor) for i, tensor in enumerate(pointed_to)]
    spans += [Span(f"extra memory ({i})", tensor) for i, tensor in enumerate(extra)]
    memory = Memory(spans, checks or Checks(), watch, backwards=backwards)
    total = dims[0] * dims[1] * dims[2]
    group = total if code.has_atomics else _group(bound)
    firsts = range(0, total, max(1, group))
    memory.checks.launch(code.name)
    if watch is not None:
        watch.begin(memory.spans, total, ordered=code.has_atomics)
    with np.errstate(all="ignore"):  # a GPU has no warnings either
        for first in reversed(firsts) if backwards else firsts:
            numbers = np.arange(first, min(total, first + group))
            at = np.unravel_index(numbers, dims)
            places = (at[0].astype(np.int32), at[1].astype(np.int32), at[2].astype(np.int32))
            control.install(Machine(places, dims, memory, first))
            code(**arguments)
    if watch is not None:
        for race, between, line in watch.end():
            memory.checks.race(race, between=between, line=line)
    return total


def _group(bound: dict[str, Any]) -> int:
    """How many programs run together: fewer, the larger the kernel's largest block can be."""
    largest = max(
        (v for v in bound.values() if isinstance(v, int) and 0 < v <= 1 << 20 and v & (v - 1) == 0), default=1
    )
    return max(1, ELEMENTS_MAX // largest)


_parameters: dict[Compiled, frozenset[str]] = {}


def _constexprs(code: Compiled) -> frozenset[str]:
    found = _parameters.get(code)
    if found is None:
        notes = {name: parameter.annotation for name, parameter in code.signature.parameters.items()}
        found = _parameters[code] = frozenset(
            name for name, note in notes.items() if note is tl.constexpr or "constexpr" in str(note)
        )
    return found


def _bound(code: Compiled, args: Sequence[Any], kwargs: dict[str, Any]) -> dict[str, Any]:
    """By parameter what the caller passed, without what is the compiler's (`num_warps` and others)."""
    names = code.signature.parameters
    bound = code.signature.bind(*args, **{name: value for name, value in kwargs.items() if name in names})
    bound.apply_defaults()
    return {name: _plain(value) for name, value in bound.arguments.items()}


def _plain(value: Any) -> Any:
    return value.value if isinstance(value, tl.constexpr) else value


def _argument(value: Any, name: str, spans: list[Span]) -> Any:
    if isinstance(value, bool):
        return Tensor(np.array([value]), tl.int1)
    if isinstance(value, int):
        return constant(value)
    if isinstance(value, float):
        return Tensor(np.array([value], np.float32), tl.float32)
    if isinstance(value, tuple):
        fields = getattr(value, "_fields", None)
        names = [f"{name}.{field}" for field in fields] if fields else [f"{name}[{i}]" for i in range(len(value))]
        items = [_argument(_plain(item), at, spans) for item, at in zip(value, names, strict=True)]
        return type(value)(*items) if fields else tuple(items)
    tensor = getattr(value, "base", value) if type(value).__name__ == "TensorWrapper" else value
    if isinstance(tensor, torch.Tensor):
        dtype = value.dtype if isinstance(value.dtype, tl.dtype) else _TYPES.get(value.dtype)
        if dtype is None:
            raise UnsupportedError("a kernel", (f"a tensor of {value.dtype} ({name})",))
        if tensor.device.type != "cpu":
            raise KernelError(f"{name} lies on {tensor.device}; the lockstep interpreter reads the host's memory")
        span = Span(name, tensor)
        spans.append(span)
        return Pointer(np.zeros(1, np.int64), tl.pointer_type(dtype), None, span.start, span)
    if hasattr(value, "data_ptr") or type(value).__name__ == "TensorDescriptor":
        raise UnsupportedError("a kernel", (f"an argument of {type(value).__name__} ({name})",))
    return value


@contextmanager
def lockstep(
    checks: Checks | None = None, watch: Watch | None = None, *, backwards: bool = False, fall_back: bool = True
) -> Iterator[Launches]:
    """Run every launch of a Triton kernel here while active; what is left of the others is in what this gives.

    fall_back  launch a kernel that uses what is not supported as Triton does; else UnsupportedError is raised
    """
    seen = Launches()
    originals = [(owner, owner.run) for owner in kernel_classes()]

    def method(original: Callable[..., Any]) -> Callable[..., Any]:
        def run(of: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
            if warmup:
                return None
            try:
                programs = launch(of.fn, grid, args, kwargs, checks, watch, backwards=backwards)
            except UnsupportedError as error:
                if not fall_back:
                    raise
                seen.fallen_back[of.fn.__name__] = error.names
                return original(of, *args, grid=grid, warmup=warmup, **kwargs)
            seen.count += 1
            seen.programs = max(seen.programs, programs)
            return None

        return run

    try:
        for owner, original in originals:
            owner.run = method(original)
        yield seen
    finally:
        for owner, original in originals:
            owner.run = original


class Launches:
    """What `lockstep` ran: `count` launches, of at most `programs`; by kernel left to Triton, the names that are
    missing.
    """

    def __init__(self) -> None:
        self.count = 0
        self.programs = 0
        self.fallen_back: dict[str, tuple[str, ...]] = {}


def run(launched: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """`run(kernel[grid], *args)`: one launch in lockstep, without checks beyond bounds."""
    with lockstep(fall_back=False):
        launched(*args, **kwargs)


__all__ = ["launch", "lockstep", "run"]
