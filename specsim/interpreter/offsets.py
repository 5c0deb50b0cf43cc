"""Offsets that do not fit their integer type, found without the tensors that they lead into.

A kernel is launched with the strides and the grid of a batch too large for this machine, on tensors of a few elements;
the first and the last program run, under the interpreter's checks of integer arithmetic, and every access that leaves
the tensors is left out. So a launch at 16,384 rows of 151,936 logits takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from specsim.interpreter.hooks import Access, corners, watching


def overflow_of(launch: Callable[[], None]) -> tuple[str, int] | None:
    """Run `launch`, which launches a kernel, as the module's docstring says. The first arithmetic that overflows: what
    was seen, and its line in the kernel's file.
    """
    watch = _Watch()
    with watching(watch, corners, overflow=True):
        launch()
    return watch.overflows[0] if watch.overflows else None


class _Watch:
    """Lets the accesses through that stay in the tensors of their launch, and notes overflows."""

    def __init__(self) -> None:
        self.overflows: list[tuple[str, int]] = []
        self._kernel = ""
        self._spans: list[tuple[int, int]] = []

    def launch(self, kernel: str, arguments: dict[str, Any]) -> None:
        self._kernel = kernel
        tensors = [value for value in arguments.values() if hasattr(value, "data_ptr")]
        self._spans = [(t.data_ptr(), t.data_ptr() + t.numel() * t.element_size()) for t in tensors]

    def program(self, number: int) -> None: ...

    def read(self, access: Access) -> Any:
        return self._inside(access)

    def write(self, access: Access, values: Any) -> Any:
        return self._inside(access)

    def atomic(self, access: Access, *, orders: bool) -> Any:
        return self._inside(access)

    def barrier(self) -> None: ...

    def overflow(self, message: str, where: str) -> None:
        self.overflows.append((f"{self._kernel}: {message}", int(where.rpartition(":")[2])))

    def undefined_lanes(self, values: Any, lanes: Any, where: str, *, stray: bool) -> None:
        values[lanes] = 0

    def _inside(self, access: Access) -> Any:
        inside = np.zeros(access.addresses.shape, dtype=bool)
        for start, end in self._spans:
            inside |= (access.addresses >= np.uint64(start)) & (access.addresses < np.uint64(end))
        return access.active & inside
