"""What is mended of Triton's interpreter in processes that run kernels in it."""

from __future__ import annotations

from typing import Any

_MENDED = "ranges_are_mended"


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
