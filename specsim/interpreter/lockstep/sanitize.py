"""What the sanitizer sees of launches in lockstep: `specsim.interpreter.sanitizer` says what it looks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np
import torch

from specsim.contracts.pointers import span_bytes
from specsim.interpreter.lockstep.memory import Checks, Span, source_line
from specsim.interpreter.lockstep.tensors import Array
from specsim.interpreter.lockstep.watch import Race, Watch

Flag = Callable[[Any, str, str], None]
"""Takes the kind of a flaw, its text and its line."""

_VERBS = {"read": "reads", "write": "writes", "update": "updates"}


class LockstepWatch(Checks):
    """Flags what launches do wrong.

    flag       is told each flaw
    outputs    tensors that kernels must write and may not read before, by name
    memory     whether what nobody wrote is followed; otherwise lanes that are masked off of a load without `other` are
    """

    def __init__(self, flag: Flag, outputs: Mapping[str, torch.Tensor], *, memory: bool) -> None:
        self.flag, self.outputs, self.memory = flag, outputs, memory
        self.watch = Watch(races=not memory, lanes=not memory)
        self.launches = 0
        self.kernel = ""
        self.loads_without_other: set[str] = set()
        self.written = {name: np.zeros(span_bytes(tensor), bool) for name, tensor in outputs.items()}
        self._stored: dict[str, str] = {}
        self._loaded: tuple[str, str] | None = None
        if memory:
            for tensor in outputs.values():
                self.watch.nobody_wrote(tensor.data_ptr(), span_bytes(tensor))

    def launch(self, kernel: str) -> None:
        self.launches += 1
        self.kernel = kernel

    def stray(self, kind: Literal["read", "write", "update"], name: str, index: int, size: int, count: int) -> None:
        place = f"element {index} of {name}, which has {size}" if name else "memory, and was given no tensor"
        self.flag("out-of-bounds", f"{self.kernel} {_VERBS[kind]} {place}", source_line())

    def without_other(self) -> None:
        self.loads_without_other.add(source_line())

    def overflow(self, message: str) -> None:
        self.flag("int32-overflow", f"{self.kernel}: {message}", source_line())

    def race(self, kind: Race, *, between: bool, line: str, element: str = "") -> None:
        place = f", for {element}" if element else ""
        if between:
            self.flag("race-between", f"{self.kernel}: {kind} race of two programs{place}", line)
        else:
            self.flag("race-within", f"{self.kernel}: {kind} race of two lanes, no barrier between{place}", line)

    def wrote(self, span: Span, places: Array, itemsize: int) -> None:
        for name, tensor in self.outputs.items():
            if span.start < tensor.data_ptr() + self.written[name].size and tensor.data_ptr() < span.end:
                at = ((span.start - tensor.data_ptr()) + places * itemsize).reshape(-1, 1) + np.arange(itemsize)
                self.written[name][at[(at >= 0) & (at < self.written[name].size)]] = True

    def undefined_load(self, span: Span) -> None:
        names = [name for name, tensor in self.outputs.items() if tensor.data_ptr() == span.start]
        self._loaded = (names[0] if names else span.name, source_line())

    def undefined_use(self, what: str) -> None:
        self._flag_use(what, source_line())

    def undefined_store(self, span: Span, places: Array, lanes: Array) -> None:
        names = [name for name, tensor in self.outputs.items() if tensor.data_ptr() == span.start]
        self._stored[names[0] if names else span.name] = source_line()

    def end(self, defined: Callable[[str], torch.Tensor]) -> None:
        """The function is done: flags elements of outputs, of those in `defined`, that hold what nothing defines."""
        for name, tensor in self.outputs.items():
            if name not in self._stored or not tensor.numel():
                continue
            count = span_bytes(tensor) // tensor.element_size()
            marks = self.watch.still_undefined(tensor.data_ptr(), count, tensor.element_size())
            marks &= self.written[name].reshape(count, -1).all(axis=1)
            reached = torch.as_strided(torch.from_numpy(marks), tensor.shape, tensor.stride()) & defined(name)
            if bool(reached.any()):
                at = [int(i) for i in reached.nonzero()[0]]
                self._flag_use(f"{name}{at}", self._stored[name])

    def _flag_use(self, what: str, line: str) -> None:
        if self.memory:
            name, where = self._loaded or ("memory", line)
            self.flag(
                "uninitialised",
                f"{self.kernel} reads {name}, which nobody has written there: {what} depends on it",
                where,
            )
        else:
            text = f"{what} depends on what masked-off lanes of a load without `other` hold"
            self.flag("masked-lanes", f"{self.kernel}: {text}", line)


class LaunchesWatch(LockstepWatch):
    """Flags what launches do wrong, each by itself: memory may have been freed, and another's, since the last one."""

    def __init__(self, flag: Flag) -> None:
        super().__init__(flag, {}, memory=False)

    def launch(self, kernel: str) -> None:
        super().launch(kernel)
        self.watch.forget()
