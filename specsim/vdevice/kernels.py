"""Launches of Triton kernels on tensors of the virtual device.

A launch takes its turn on the current stream. It runs in lockstep, which says which elements are loaded and stored, so
a kernel reads and writes exactly those; one that uses what lockstep does not have raises UnsupportedError. Its tensors'
whole storages may be accessed, and those of tensors whose `data_ptr()` the program took and that a table among its
arguments holds; anything else is a finding and has no effect.
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable, Iterator
from typing import Any, Literal

import numpy as np
import torch

from specsim.interpreter.triton_names import kernel_classes
from specsim.vdevice.device import Device
from specsim.vdevice.history import Array, Memory, Operation, Use
from specsim.vdevice.tensors import Traced


def is_available() -> bool:
    """Whether there is a Triton whose launches can be taken."""
    return importlib.util.find_spec("triton") is not None


def replacements(device: Device) -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """What to put in place of Triton's own launches: owner, name of the method, method."""
    for owner in kernel_classes():
        yield owner, "run", _run(device, owner.run)


def _run(device: Device, original: Callable[..., Any]) -> Callable[..., Any]:
    def run(of: Any, *args: Any, grid: Any, warmup: bool = False, **kwargs: Any) -> Any:
        traced: list[Any] = []
        host_args = [_on_host(value, traced) for value in args]
        host_kwargs = {name: _on_host(value, traced) for name, value in kwargs.items()}
        if not traced:
            return original(of, *args, grid=grid, warmup=warmup, **kwargs)
        if warmup:
            return None
        name = of.fn.__name__
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and not isinstance(value, Traced):
                raise ValueError(f"Pointer argument of {name} cannot be accessed from Triton (cpu tensor?)")
        memories = _Memories(device, name, traced)
        operation = device.new_operation(name, device.sites.here())
        device.lend(operation, memories.uses)
        operation.run = lambda by: _execute(memories, by, of, host_args, host_kwargs, grid)
        device.enqueue(operation)
        return None

    return run


def _on_host(value: Any, traced: list[Any]) -> Any:
    if isinstance(value, Traced):
        traced.append(value)
        return value.host_bytes
    if isinstance(value, tuple):
        items = [_on_host(item, traced) for item in value]
        return type(value)(*items) if hasattr(value, "_fields") else tuple(items)
    if type(value).__name__ == "TensorWrapper":
        return type(value)(_on_host(value.base, traced), value.dtype)
    return value


def _execute(
    memories: _Memories,
    by: Operation,
    of: Any,
    args: list[Any],
    kwargs: dict[str, Any],
    grid: Any,
) -> None:
    from specsim.interpreter.lockstep.errors import KernelError
    from specsim.interpreter.lockstep.launch import launch

    memories.begin()
    try:
        launch(of.fn, grid, args, kwargs, _following()(memories), extra=memories.extra)
    except KernelError as error:
        memories.device.failed(by, error)
    memories.note(by)


_OF_ADDRESSES = (torch.int64, torch.uint64)
"""Types of a table of pointers."""


class _Memories:
    """The memories that a launch may access, and which of their elements it did."""

    def __init__(self, device: Device, kernel: str, traced: list[Any]) -> None:
        self.device, self.kernel = device, kernel
        by_memory: dict[int, Use] = {}
        covered: set[int] = set()
        for tensor in traced:
            memory, part = tensor.memory, tensor.host_bytes
            by_memory.setdefault(id(memory), (memory, part))
            if part.nbytes == part.untyped_storage().nbytes() and part.is_contiguous():
                covered.add(id(memory))
        self._by_memory, self._covered = by_memory, covered
        self._tables = [tensor.host_bytes for tensor in traced if tensor.dtype in _OF_ADDRESSES]
        self._look_up()

    def _look_up(self) -> None:
        """Find what the launch's tables of pointers point at, as far as they are written."""
        known = self.device.addressed
        for table in self._tables if known else ():
            for address in set(table.reshape(-1).tolist()) & known.keys():
                memory, part = known[address]
                self._by_memory.setdefault(id(memory), (memory, part))
        self.uses = list(self._by_memory.values())
        self.uncovered = [use for use in self.uses if id(use[0]) not in self._covered]
        storages = [part.untyped_storage() for _, part in self.uses]
        self.spans = [(storage.data_ptr(), storage.data_ptr() + storage.nbytes()) for storage in storages]

    def begin(self) -> None:
        """The launch's turn has come."""
        if self._tables and self.device.addressed:
            self._look_up()
        self.touched: dict[tuple[int, bool], list[Array]] = {}
        self.strays: list[str] = []
        self.places: dict[int, int] = {}  # by span of the interpreter, which of the memories it lies in
        self.before: dict[int, torch.Tensor] = {}
        self.extra = [_whole(memory, part) for memory, part in self.uncovered]
        for i, (memory, part) in enumerate(self.uses):
            if memory.elements is not None and memory.elements.changes_only:
                self.before[i] = _whole(memory, part).clone()

    def note(self, by: Operation) -> None:
        """The launch is done: enter what it touched, reads first."""
        for (i, is_write), offsets in sorted(self.touched.items(), key=lambda item: (item[0][1], item[0][0])):
            memory, part = self.uses[i]
            elements = None
            if memory.elements is not None:
                elements = np.unique(np.concatenate(offsets) // part.element_size())
                if is_write and i in self.before:
                    elements = memory.elements.written(_whole(memory, part), self.before[i], elements)
            (memory.write if is_write else memory.read)(by, self.device.report, elements)
        for stray in self.strays:
            self.device.strayed(by, stray)

    def note_span(self, span: Any, places: Array, lanes: Array | None, itemsize: int, is_write: bool) -> None:
        """Elements `places` of a span of the lockstep interpreter; `lanes` as its checks are given them."""
        if not places.size or (lanes is not None and not lanes.any()):
            return
        i = self.places.get(id(span))
        if i is None:
            i = next(i for i, (start, end) in enumerate(self.spans) if start <= span.start < end)
            self.places[id(span)] = i
        known = self.touched.setdefault((i, is_write), [])
        if self.uses[i][0].elements is None:
            return
        if lanes is not None:
            shape = np.broadcast_shapes(places.shape, lanes.shape)
            places = np.broadcast_to(places, shape)[np.broadcast_to(lanes, shape)]
        known.append(places.reshape(-1).astype(np.int64) * itemsize + (span.start - self.spans[i][0]))


@functools.cache
def _following() -> Any:
    """Checks of the lockstep interpreter that note what is touched. It is imported with Triton."""
    from specsim.interpreter.lockstep.memory import Checks

    class Following(Checks):
        def __init__(self, memories: _Memories) -> None:
            self.touched = memories.note_span
            self.strays = memories.strays

        def stray(self, kind: Literal["read", "write", "update"], name: str, index: int, size: int, count: int) -> None:
            self.strays.append(f"{kind} of element {index} of {name or 'no tensor'}, which has {size}")

    return Following


def _whole(memory: Memory, part: torch.Tensor) -> torch.Tensor:
    """All elements of the storage of a tensor in a memory, flat."""
    whole = memory.whole
    if whole is None or whole.dtype != part.dtype:
        size = part.untyped_storage().nbytes() // part.element_size()
        whole = memory.whole = torch.as_strided(part, (size,), (1,), 0)
    return whole
