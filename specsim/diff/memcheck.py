"""Memory checking of any Triton kernel in Triton's interpreter: out-of-bounds accesses are seen, not guessed.

While the context manager is active, each launch is known with its tensors, and each lane of each load and store must
fall into one of them. A lane that does not is recorded and neutralised: a load gives poison, a store goes nowhere; so
a far access cannot crash the process and the test goes on. A launch that is compiled for a GPU is not seen here; red
zones still are.

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

from specsim.diff.memory import poison_value


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
    _seen: set[tuple[str, str, str]] = field(default_factory=set)

    def add(self, stray: StrayAccess) -> None:
        key = (stray.kind, stray.kernel, stray.argument)
        if key not in self._seen:
            self._seen.add(key)
            self.strays.append(stray)


@contextmanager
def memcheck(poison: int = 0) -> Iterator[MemoryLog]:
    """Check every Triton launch made through the interpreter while active. `poison` (0 or 1) chooses what stray loads
    give.
    """
    from triton.runtime import interpreter

    log = MemoryLog()
    current: list[_Launch] = []
    executor, builder = interpreter.GridExecutor, interpreter.InterpreterBuilder
    patch_tensor = interpreter._patch_lang_tensor
    call, init = executor.__call__, executor._init_args_hst
    load, store = builder.create_masked_load, builder.create_masked_store

    def checked_init(self: Any, args: Any, kwargs: Any) -> Any:
        hosted = init(self, args, kwargs)
        arguments = {**dict(zip(self.arg_names, hosted[0], strict=False)), **hosted[1]}
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
            return load(self, ptrs, mask, other, *rest)
        _record(log, current[-1], "read", ptrs.data, stray)
        inside = interpreter.TensorHandle(mask.data & ~stray, mask.dtype)
        loaded = load(self, ptrs, inside, other, *rest)
        loaded.data[stray] = _poison_of(loaded.data.dtype, poison)
        return loaded

    def checked_store(self: Any, ptrs: Any, value: Any, mask: Any, *rest: Any) -> Any:
        stray = _stray_lanes(current[-1], ptrs.data, mask.data)
        if stray is not None:
            _record(log, current[-1], "write", ptrs.data, stray)
            mask = interpreter.TensorHandle(mask.data & ~stray, mask.dtype)
        return store(self, ptrs, value, mask, *rest)

    def patched_tensor(tensor: Any, scope: Any) -> None:
        """Triton 3.6 with NumPy 2.4: `range(scalar)` fails, since NumPy makes no integer of an array of one element."""
        patch_tensor(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    interpreter._patch_lang_tensor = patched_tensor
    executor.__call__, executor._init_args_hst = checked_call, checked_init
    builder.create_masked_load, builder.create_masked_store = checked_load, checked_store
    try:
        with np.errstate(all="ignore"):  # a GPU has no warnings either
            yield log
    finally:
        interpreter._patch_lang_tensor = patch_tensor
        executor.__call__, executor._init_args_hst = call, init
        builder.create_masked_load, builder.create_masked_store = load, store


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
