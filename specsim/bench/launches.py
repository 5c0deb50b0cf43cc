"""How many launches a call makes: kernels, and the fills and copies that the driver launches like them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch.profiler import ProfilerActivity, profile


def count_launches(call: Callable[[], object], device: str) -> int | None:
    """Launches of one call as CUDA's profiler sees them; None on a CPU, or where it sees none."""
    if device != "cuda":
        return None
    call()
    torch.cuda.synchronize()
    try:
        with profile(activities=[ProfilerActivity.CUDA]) as recorded:
            call()
            torch.cuda.synchronize()
    except RuntimeError:  # no right to the profiler's counters
        return None
    on_device = [event for event in recorded.events() or () if event.device_type.name == "CUDA"]
    return len(on_device) or None
