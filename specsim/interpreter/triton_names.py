"""What specsim uses of Triton beside its language. No other module names a private part of it.

kernel_classes()   what `triton.jit` makes of a function
type_rules()       which type a result has
interpreted()      whether kernels run on the CPU in this process
one_line(error)    the kernel's own error
mend_interpreter() let Triton's own interpreter leave its language as it was, and work with every NumPy
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any

from specsim.errors import described

Program = tuple[int, int, int]
"""Coordinates of a program in its grid."""

Order = Callable[[Sequence[Program]], Sequence[Program]]

_MENDED = "is_mended"


def corners(programs: Sequence[Program]) -> Sequence[Program]:
    """An order of the first and the last alone, where a grid is too large to run and offsets are what matters."""
    return list(dict.fromkeys((programs[0], programs[-1]))) if programs else programs


def mend_interpreter() -> None:
    """Mend two errors of Triton's own interpreter, in this process and for good.

    That of Triton 3.6 makes an integer of an array of one element, which NumPy refuses from 2.4 on; the later ones do
    as is done here. And a kernel that calls a function leaves `triton.language.core` changed, so that what is
    compiled here afterwards would find other functions in it.
    """
    import triton.language as tl
    from triton.runtime import interpreter

    patch = interpreter._patch_lang_tensor
    if hasattr(patch, _MENDED):
        return

    def patched(tensor: Any, scope: Any) -> None:
        patch(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.squeeze()))

    setattr(patched, _MENDED, True)
    interpreter._patch_lang_tensor = patched
    launch = interpreter.GridExecutor.__call__

    def launched(self: Any, *args: Any, **kwargs: Any) -> Any:
        names = [(vars(module), dict(vars(module))) for module in (tl, tl.core, tl.math)]
        try:
            return launch(self, *args, **kwargs)
        finally:
            for changed, before in names:
                changed.update(before)

    interpreter.GridExecutor.__call__ = launched


def interpreted() -> bool:
    """Whether Triton kernels run on the CPU in this process."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def kernel_classes() -> tuple[Any, ...]:
    """What `triton.jit` makes of a function, for a GPU or for Triton's interpreter: classes whose `run` launches."""
    from triton.runtime.interpreter import InterpretedFunction
    from triton.runtime.jit import JITFunction

    return (JITFunction, InterpretedFunction)


def type_rules() -> Any:
    """Triton's rules of types: `computation_type_impl` of two operands."""
    from triton.language.semantic import TritonSemantic

    return TritonSemantic(None)


def one_line(error: BaseException) -> str:
    """The error that the implementation raised, without the interpreter's wrapping, on one line."""
    while error.__cause__ is not None and type(error).__name__ == "InterpreterError":
        error = error.__cause__
    return described(error).strip().partition("\n")[0].removesuffix(": ").removesuffix(":")
