"""What must hold of tensors before a kernel gets their addresses. No value is read, no device waited for."""

from __future__ import annotations

from typing import TYPE_CHECKING

import triton

from specsim.errors import UsageError

if TYPE_CHECKING:
    from torch import Tensor


def require_launchable(**tensors: Tensor) -> None:
    """All tensors must be contiguous and lie on one device that Triton can launch on.

    Raises ValueError for a tensor that is not contiguous or on another device than the first, UsageError for
    CPU tensors without Triton's interpreter.
    """
    device = next(iter(tensors.values())).device
    for name, tensor in tensors.items():
        if not tensor.is_contiguous():
            raise ValueError(f"{name} has strides {tensor.stride()}; allowed: contiguous tensors")
        if tensor.device != device:
            raise ValueError(f"{name} is on {tensor.device}; allowed: {device}, the device of the first argument")
    if device.type == "cpu" and not triton.knobs.runtime.interpret:
        raise UsageError(
            "the tensors are on the CPU, where Triton kernels run in its interpreter only",
            "set TRITON_INTERPRET=1 before triton is imported, or move the tensors to a GPU",
        )
