"""The CUDA operations of sglang-kernel: from the installed package, or from one file of a wheel.

`SPECSIM_SGL_KERNEL` may name a `common_ops.abi3.so`, taken out of a wheel (`sgl_kernel/sm90/` for Hopper), which needs
torch's libraries and nothing else of its package.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch

from specsim.verdict import NotRun

VARIABLE = "SPECSIM_SGL_KERNEL"


def sgl_kernel_operation(name: str, device: torch.device) -> Any | NotRun:
    """`torch.ops.sgl_kernel.NAME`, or why it cannot be had."""
    if device.type == "cpu":
        return NotRun("sgl_kernel", "needs a CUDA device")
    try:
        if path := os.environ.get(VARIABLE):
            torch.ops.load_library(path)
        else:
            importlib.import_module("sgl_kernel")  # registers torch.ops.sgl_kernel
        return getattr(torch.ops.sgl_kernel, name).default
    except Exception as error:  # a package of binaries fails in its own ways: ImportError, OSError, RuntimeError
        return NotRun("sgl_kernel", f"{type(error).__name__}: {str(error).partition(chr(10))[0]}")
