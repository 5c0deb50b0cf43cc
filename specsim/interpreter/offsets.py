"""Offsets that do not fit their integer type, found without the tensors that they lead into.

A kernel is launched with the strides and the grid of a batch too large for this machine, on tensors of a few elements;
the first and the last program run, under the interpreter's checks of integer arithmetic, and accesses outside the
tensors are not carried out. So a launch at 16,384 rows of 151,936 logits takes milliseconds.
"""

from __future__ import annotations

from collections.abc import Callable

from specsim.interpreter.triton_names import corners


def overflow_of(launch: Callable[[], None]) -> tuple[str, int] | None:
    """Run `launch`, which launches a kernel, as the module's docstring says. The first arithmetic that overflows: what
    was seen, and its line in the kernel's file. Raises UnsupportedError for what the interpreter lacks.
    """
    from specsim.interpreter.lockstep.launch import lockstep
    from specsim.interpreter.lockstep.memory import Checks, source_line

    found: list[tuple[str, int]] = []

    class Overflows(Checks):
        kernel = ""

        def launch(self, kernel: str) -> None:
            self.kernel = kernel

        def overflow(self, message: str) -> None:
            found.append((f"{self.kernel}: {message}", int(source_line().rpartition(":")[2])))

    with lockstep(Overflows(), order=corners, overflow=True, fall_back=False):
        launch()
    return found[0] if found else None
