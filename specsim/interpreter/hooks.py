"""Hooks in Triton's interpreter: what a kernel reads, writes and meets, seen as it happens, whoever wrote the kernel.

`watching(watcher)` puts them in place. The interpreter's own hooks have other signatures in Triton 3.6 than in 3.9;
what is passed on unread here is the same in both. A launch that is compiled for a GPU is not seen.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol

import numpy as np

from specsim.interpreter.patches import mend_ranges

Program = tuple[int, int, int]
Order = Callable[[Sequence[Program]], Sequence[Program]]


def corners(programs: Sequence[Program]) -> Sequence[Program]:
    """An order of the first and the last alone, where a grid is too large to run and offsets are what matters."""
    return list(dict.fromkeys((programs[0], programs[-1]))) if programs else programs


class Access(NamedTuple):
    """One load, store or atomic operation of a program.

    addresses  uint64, one a lane
    active     bool, of the same shape: lanes that are not masked off
    itemsize   bytes of an element
    is_scalar  whether the kernel used a single pointer, not a block
    where      FILE:LINE in the kernel's source
    """

    addresses: Any
    active: Any
    itemsize: int
    is_scalar: bool
    where: str


class Watcher(Protocol):
    """What is told of launches. The three accesses return the lanes to carry out; others have no effect."""

    def launch(self, kernel: str, arguments: dict[str, Any]) -> None: ...

    def program(self, number: int) -> None: ...

    def read(self, access: Access) -> Any: ...

    def write(self, access: Access, values: Any) -> Any: ...

    def atomic(self, access: Access, *, orders: bool) -> Any: ...

    def barrier(self) -> None: ...

    def overflow(self, message: str, where: str) -> None: ...

    def undefined_lanes(self, values: Any, lanes: Any, where: str, *, stray: bool) -> None: ...


@contextmanager
def watching(watcher: Watcher, order: Order = tuple, *, overflow: bool = False) -> Iterator[None]:
    """Tell `watcher` of every launch through the interpreter while active.

    `order` is given the programs of each launch and says which of them run, in which order. `overflow` switches on the
    checks of integer arithmetic that Triton's front end has, which take as long again.
    """
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    mend_ranges()
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    shared = interpreter.interpreter_builder
    running = _Running(order)
    has_other = [True]
    saved = [
        (owner, name, owner.__dict__[name])
        for owner, name in (
            (executor, "__call__"),
            (executor, "_init_args_hst"),
            *(
                (builder, name)
                for name in ("set_grid_dim", "set_grid_idx", "create_masked_load", "create_masked_store")
            ),
            *((builder, name) for name in ("create_barrier", "create_assert", "create_splat", "create_atomic_rmw")),
            (builder, "create_atomic_cas"),
            (TritonSemantic, "load"),
        )
    ]
    original = {name: function for _owner, name, function in saved}
    options = shared.options

    def call(self: Any, *args: Any, **kwargs: Any) -> Any:
        grid, self.grid = self.grid, running.flat_grid(self.grid)
        try:
            return original["__call__"](self, *args, **kwargs)
        finally:
            self.grid = grid

    def init_args(self: Any, args: Any, kwargs: Any) -> Any:
        hosted = original["_init_args_hst"](self, args, kwargs)
        watcher.launch(self.fn.__name__, {**dict(zip(self.arg_names, hosted[0], strict=False)), **hosted[1]})
        return hosted

    def set_grid_dim(self: Any, *_flat: int) -> None:
        original["set_grid_dim"](self, *running.dims)

    def set_grid_idx(self: Any, i: int, _y: int, _z: int) -> None:
        x, y, z = running.programs[i]
        watcher.program((x * running.dims[1] + y) * running.dims[2] + z)
        original["set_grid_idx"](self, x, y, z)

    def load(self: Any, ptr: Any, mask: Any, other: Any, *rest: Any) -> Any:
        has_other[0] = other is not None or mask is None
        try:
            return original["load"](self, ptr, mask, other, *rest)
        finally:
            has_other[0] = True

    def masked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        access = _access(ptrs, mask)
        inside = np.broadcast_to(watcher.read(access), access.active.shape)
        loaded = original["create_masked_load"](self, ptrs, _mask(interpreter, inside, mask), other, *rest)
        stray = access.active & ~inside
        if stray.any():
            watcher.undefined_lanes(loaded.data, stray, access.where, stray=True)
        if not has_other[0] and not access.active.all():
            watcher.undefined_lanes(loaded.data, ~access.active, access.where, stray=False)
        return loaded

    def masked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        inside = watcher.write(_access(ptrs, mask), value.data)
        return original["create_masked_store"](self, ptrs, value, _mask(interpreter, inside, mask), *rest)

    def atomic_rmw(self: Any, op: Any, ptr: Any, value: Any, mask: Any, sem: Any, *rest: Any) -> Any:
        inside = watcher.atomic(_access(ptr, mask), orders=_orders(sem))
        return original["create_atomic_rmw"](self, op, ptr, value, _mask(interpreter, inside, mask), sem, *rest)

    def atomic_cas(self: Any, ptr: Any, compared: Any, value: Any, sem: Any, *rest: Any) -> Any:
        everything = interpreter.TensorHandle(np.ones_like(ptr.data, dtype=bool), ptr.dtype)
        watcher.atomic(_access(ptr, everything), orders=_orders(sem))
        return original["create_atomic_cas"](self, ptr, compared, value, sem, *rest)

    def barrier(self: Any, *rest: Any) -> Any:
        watcher.barrier()
        return original["create_barrier"](self, *rest)

    def check(self: Any, condition: Any, message: str, *rest: Any) -> Any:
        if "overflow" in str(message):
            if not bool(condition):
                watcher.overflow(str(message), source_line())
            return None
        return original["create_assert"](self, condition, message, *rest) if options.debug else None

    def splat(self: Any, *args: Any) -> Any:
        """A comparison's handle keeps the type of what was compared: Triton makes no mask of it without this."""
        args = tuple(
            interpreter.TensorHandle(arg.data, interpreter.tl.int1)
            if isinstance(arg, interpreter.TensorHandle) and arg.data.dtype == np.bool_
            else arg
            for arg in args
        )
        return original["create_splat"](self, *args)

    hooks = (
        call,
        init_args,
        set_grid_dim,
        set_grid_idx,
        masked_load,
        masked_store,
        barrier,
        check,
        splat,
    )
    try:
        for (owner, name, _function), hook in zip(saved, (*hooks, atomic_rmw, atomic_cas, load), strict=True):
            setattr(owner, name, hook)
        if overflow:
            shared.options = dataclasses.replace(options, debug=True, sanitize_overflow=True)
        with np.errstate(all="ignore"):  # a GPU has no warnings either
            yield
    finally:
        shared.options = options
        for owner, name, function in saved:
            setattr(owner, name, function)


@dataclasses.dataclass(slots=True)
class _Running:
    """The launch that is under way: its grid, and its programs in the order in which they run."""

    order: Order
    dims: Program = (1, 1, 1)
    programs: Sequence[Program] = ()

    def flat_grid(self, grid: Any) -> Callable[[Any], tuple[int]]:
        """What the interpreter runs instead of `grid`: one axis, along the chosen programs."""

        def flat(arguments: Any) -> tuple[int]:
            dims = tuple(int(extent) for extent in (grid(arguments) if callable(grid) else grid))
            x, y, z = (*dims, 1, 1)[:3]
            self.programs = self.order(list(itertools.product(range(x), range(y), range(z))))
            # A program beyond the grid, whose offsets alone are looked at, makes the grid as large.
            for i, j, k in self.programs:
                x, y, z = max(x, i + 1), max(y, j + 1), max(z, k + 1)
            self.dims = (x, y, z)
            return (len(self.programs),)

        return flat


def _access(ptrs: Any, mask: Any) -> Access:
    addresses = ptrs.data.astype(np.uint64, copy=False)
    active = np.broadcast_to(mask.data.astype(bool), addresses.shape)
    itemsize = max(1, ptrs.get_element_ty().primitive_bitwidth // 8)
    return Access(addresses, active, itemsize, addresses.size == 1, source_line())


def _mask(interpreter: Any, lanes: Any, like: Any) -> Any:
    return interpreter.TensorHandle(np.ascontiguousarray(lanes), like.dtype)


def _orders(sem: Any) -> bool:
    return "RELAXED" not in str(sem).upper()


def source_line() -> str:
    """FILE:LINE of the kernel's statement that is being interpreted."""
    import triton

    inside = (os.path.dirname(triton.__file__), os.path.dirname(__file__))
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(inside):
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno}"
