"""Offsets that do not fit their integer type, found without the tensors that they lead into.

A kernel is launched with the strides and the grid of a batch too large for this machine, on tensors of a few elements;
the first and the last program run, under the interpreter's checks of integer arithmetic, and accesses outside the
tensors are not carried out. So a launch at 16,384 rows of 151,936 logits takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specsim.interpreter.launch_memory import LaunchMemory
from specsim.interpreter.triton_interpreter import Access, Launch, corners, observed


def overflow_of(launch: Callable[[], None]) -> tuple[str, int] | None:
    """Run `launch`, which launches a kernel, as the module's docstring says. The first arithmetic that overflows: what
    was seen, and its line in the kernel's file.
    """
    overflows = _Overflows()
    with observed(overflows, corners, overflow=True):
        launch()
    return overflows.found[0] if overflows.found else None


class _Overflows:
    """Records overflows, and lets the accesses through that stay in the tensors of their launch."""

    def __init__(self) -> None:
        self.found: list[tuple[str, int]] = []
        self._kernel = ""
        self._memory = LaunchMemory(())

    def launch(self, launch: Launch) -> None:
        self._kernel = launch.kernel
        self._memory = LaunchMemory(launch.tensors.items())

    def program(self, number: int) -> None: ...

    def load(self, access: Access) -> Any:
        return access.active & self._memory.inside(access.addresses)

    def store(self, access: Access, values: Any) -> Any:
        return access.active & self._memory.inside(access.addresses)

    def atomic(self, access: Access, *, orders: bool) -> Any:
        return access.active & self._memory.inside(access.addresses)

    def barrier(self) -> None: ...

    def overflow(self, message: str, where: str) -> None:
        self.found.append((f"{self._kernel}: {message}", int(where.rpartition(":")[2])))

    def undefined(self, access: Access, values: Any, lanes: Any, *, stray: bool) -> None:
        values[lanes] = 0
