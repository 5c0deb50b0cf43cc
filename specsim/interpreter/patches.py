"""Triton's interpreter in this process: whether it runs kernels, what is mended of it, and what it raises."""

from __future__ import annotations

import os
from typing import Any

from specsim.errors import described

_MENDED = "ranges_are_mended"


def interpreted() -> bool:
    """Whether Triton kernels run in its interpreter in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def one_line(error: BaseException) -> str:
    """The error that the implementation raised, without the interpreter's wrapping, on one line."""
    while error.__cause__ is not None and type(error).__name__ == "InterpreterError":
        error = error.__cause__
    return described(error).strip().partition("\n")[0].removesuffix(": ").removesuffix(":")


def mend_ranges() -> None:
    """Let a kernel's `range(scalar)` work with every NumPy, in this process and for good. The interpreter of Triton 3.6
    makes an integer of an array of one element, which NumPy refuses from 2.4 on; the later ones do as is done here.
    """
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if hasattr(patch, _MENDED):
        return

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    setattr(patched, _MENDED, True)
    interpreter._patch_lang_tensor = patched
