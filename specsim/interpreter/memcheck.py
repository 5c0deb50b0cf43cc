"""Memory checking of any Triton kernel in Triton's interpreter: out-of-bounds accesses are seen, not guessed.

While the context manager is active, each launch is known with its tensors, and each lane of each load and store must
fall into one of them. A lane that does not is recorded and neutralised: a load gives poison, a store goes nowhere; so
a far access cannot crash the process and the test goes on. A launch that is compiled for a GPU is not seen here; red
zones still are.

On request two things that no implementation may rely on are made different, too: the lanes of a load that are masked
off and have no `other` hold poison instead of the interpreter's 0, and the programs of a launch run last one first.

The interpreter's hooks have other signatures in Triton 3.6 than in 3.9; what is passed on unread here is the same in
both.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch

from specsim.contracts.pointers import pointees
from specsim.interpreter.hooks import source_line
from specsim.interpreter.patches import mend_ranges
from specsim.interpreter.red_zones import poison_value
from specsim.interpreter.speedups import quickened


@dataclass(frozen=True, slots=True)
class StrayAccess:
    """A lane outside all tensors of its launch. `index` is the element relative to the nearest tensor's start."""

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
class _Launch:
    kernel: str
    names: list[str]
    starts: Any  # uint64 [n], ascending
    ends: Any
    itemsizes: list[int]


@dataclass(slots=True)
class MemoryLog:
    """What memcheck saw: the first stray access of each kernel, kind and argument."""

    strays: list[StrayAccess] = field(default_factory=list)
    launches: int = 0
    without_other: set[int] = field(default_factory=set)  # lines of loads of which masked-off lanes were poisoned
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, stray: StrayAccess) -> None:
        key = (stray.kind, stray.kernel, stray.argument)
        if key not in self._seen:
            self._seen.add(key)
            self.strays.append(stray)


_REPLACED: dict[Any, list[tuple[Any, str, Any]]] = {}  # by namespace of Triton's language


@dataclass(frozen=True, slots=True)
class _Recorder:
    """Stands for the scope that replaces attributes, and notes them."""

    found: list[tuple[Any, str, Any]]

    def set_attr(self, owner: Any, name: str, value: Any) -> None:
        self.found.append((owner, name, value))


@contextmanager
def memcheck(poison: int = 0, *, lanes: bool = False, backwards: bool = False) -> Iterator[MemoryLog]:
    """Check every Triton launch made through the interpreter while active. `poison` (0 or 1) chooses what stray loads
    give, and with `lanes` what the masked-off lanes hold of loads without `other`. `backwards` runs the programs of
    each launch in reverse.
    """
    from triton.language.semantic import TritonSemantic
    from triton.runtime import interpreter

    log = MemoryLog()
    current: list[_Launch] = []
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    patch_builtin = interpreter._patch_builtin
    call, init = executor.__call__, executor._init_args_hst
    load, store = builder.create_masked_load, builder.create_masked_store
    set_grid_idx, semantic_load = builder.set_grid_idx, TritonSemantic.load
    without_other = [False]

    def checked_init(self: Any, args: Any, kwargs: Any) -> Any:
        hosted = init(self, args, kwargs)
        arguments = {**dict(zip(self.arg_names, hosted[0], strict=False)), **hosted[1]}
        pointed_to = [tensor for arg in (*args, *kwargs.values()) for tensor in pointees(arg)]
        arguments |= {f"what a pointer leads to ({i})": tensor for i, tensor in enumerate(pointed_to)}
        current.append(_describe(self.fn.__name__, arguments))
        log.launches += 1
        return hosted

    def checked_call(self: Any, *args: Any, **kwargs: Any) -> Any:
        depth = len(current)
        try:
            return call(self, *args, **kwargs)
        finally:
            del current[depth:]

    def checked_load(self: Any, ptrs: Any, mask: Any, other: Any, *rest: Any) -> Any:
        stray = _stray_lanes(current[-1], ptrs.data, mask.data)
        if stray is None:
            loaded = load(self, ptrs, mask, other, *rest)
        else:
            _record(log, current[-1], "read", ptrs.data, stray)
            inside = interpreter.TensorHandle(mask.data & ~stray, mask.dtype)
            loaded = load(self, ptrs, inside, other, *rest)
            loaded.data[stray] = _poison_of(loaded.data.dtype, poison)
        if without_other[0] and not mask.data.all():
            log.without_other.add(int(source_line().rpartition(":")[2]))
            loaded.data[~np.broadcast_to(mask.data.astype(bool), loaded.data.shape)] = _poison_of(
                loaded.data.dtype, poison
            )
        return loaded

    def noting_load(self: Any, ptr: Any, mask: Any, other: Any, *rest: Any) -> Any:
        """Triton drops an `other` of one element on the way to the interpreter, which cannot tell it from none."""
        without_other[0] = lanes and other is None and mask is not None
        try:
            return semantic_load(self, ptr, mask, other, *rest)
        finally:
            without_other[0] = False

    def from_behind(self: Any, x: int, y: int, z: int) -> Any:
        nx, ny, nz = self.grid_dim
        return set_grid_idx(self, nx - 1 - x, ny - 1 - y, nz - 1 - z)

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        stray = _stray_lanes(current[-1], ptrs.data, mask.data)
        if stray is not None:
            _record(log, current[-1], "write", ptrs.data, stray)
            mask = interpreter.TensorHandle(mask.data & ~stray, mask.dtype)
        return store(self, ptrs, value, mask, *rest)

    def patched_builtin(namespace: Any, builder: Any, scope: Any) -> None:
        """Each launch looks through all of Triton's language for what it replaces, a third of a small launch's time; it
        is the same each time.
        """
        if namespace not in _REPLACED:
            found: list[tuple[Any, str, Any]] = []
            patch_builtin(namespace, builder, _Recorder(found))
            _REPLACED[namespace] = found
        for owner, name, value in _REPLACED[namespace]:
            scope.set_attr(owner, name, value)

    mend_ranges()
    interpreter._patch_builtin = patched_builtin
    executor.__call__, executor._init_args_hst = checked_call, checked_init
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    if lanes:
        TritonSemantic.load = noting_load
    if backwards:
        builder.set_grid_idx = from_behind
    try:
        with quickened(), np.errstate(all="ignore"):  # a GPU has no warnings either
            yield log
    finally:
        interpreter._patch_builtin = patch_builtin
        executor.__call__, executor._init_args_hst = call, init
        builder.create_masked_load, builder.create_masked_store = load, store
        builder.set_grid_idx, TritonSemantic.load = set_grid_idx, semantic_load


def _describe(kernel: str, arguments: dict[str, Any]) -> _Launch:
    tensors = sorted(
        ((arg.data_ptr(), name, arg) for name, arg in arguments.items() if hasattr(arg, "data_ptr") and arg.numel()),
        key=lambda item: item[:2],
    )
    spans = [_span_bytes(arg) for _start, _name, arg in tensors]
    starts = np.array([start for start, _name, _arg in tensors], dtype=np.uint64)
    return _Launch(
        kernel,
        [name for _start, name, _arg in tensors],
        starts,
        starts + np.array(spans, dtype=np.uint64),
        [arg.element_size() for _start, _name, arg in tensors],
    )


def _span_bytes(tensor: torch.Tensor) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _stray_lanes(launch: _Launch, addresses: Any, mask: Any) -> Any:
    """Boolean array of the active lanes that fall into no tensor, or None when there is none."""
    addresses = addresses.astype(np.uint64, copy=False)
    inside = np.zeros(addresses.shape, dtype=bool)
    for start, end in zip(launch.starts, launch.ends, strict=True):
        inside |= (addresses >= start) & (addresses < end)
    stray = np.broadcast_to(mask, addresses.shape) & ~inside
    return stray if stray.any() else None


def _record(log: MemoryLog, launch: _Launch, kind: Literal["read", "write"], addresses: Any, stray: Any) -> None:
    address = int(addresses[stray].flat[0])
    nearest = min(
        range(len(launch.names)),
        key=lambda i: max(int(launch.starts[i]) - address, address - int(launch.ends[i])),
        default=None,
    )
    if nearest is None:
        log.add(StrayAccess(kind, launch.kernel, "", 0, 0))
        return
    itemsize = launch.itemsizes[nearest]
    index = (address - int(launch.starts[nearest])) // itemsize
    count = (int(launch.ends[nearest]) - int(launch.starts[nearest])) // itemsize
    log.add(StrayAccess(kind, launch.kernel, launch.names[nearest], index, count))


def _poison_of(dtype: Any, which: int) -> Any:
    if dtype == np.bool_:
        return bool(which)
    if np.issubdtype(dtype, np.floating):
        return poison_value(torch.float32, which)
    return poison_value(torch.int32 if dtype.itemsize >= 4 else torch.uint8, which)
