"""Triton kernels on a CPU: an interpreter that runs all programs of a launch at once, and a sanitizer."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specsim.interpreter.sanitizer import Flaw, Report, sanitize
from specsim.interpreter.triton_names import corners

__all__ = ["Flaw", "Report", "corners", "missing", "run", "sanitize"]


def missing() -> tuple[str, ...]:
    """The public functions and types of `triton.language` that `run` does not have: `run` raises UnsupportedError for a
    kernel that uses one, and a check says that what launches it is not run.
    """
    from specsim.interpreter.lockstep.compiler import missing  # imports Triton, which reads TRITON_INTERPRET then

    return missing()


def run(launched: Callable[..., Any], *args: Any, **kwargs: Any) -> None:
    """`run(kernel[grid], *args)` launches a kernel on tensors in the host's memory, with or without TRITON_INTERPRET=1.

    Raises UnsupportedError, before anything is run, for what `specsim.interpreter.lockstep` does not have, and
    KernelError, with the line, for what the kernel does wrong.
    """
    from specsim.interpreter.lockstep.launch import run  # imports Triton, which reads TRITON_INTERPRET then

    run(launched, *args, **kwargs)
