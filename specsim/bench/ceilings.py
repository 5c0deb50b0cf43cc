"""What no kernel can beat here, measured in the same run as the kernels: copy bandwidth, a launch, a dependent read."""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from specsim.bench.measure import GRAPH_CALLS, time_eager, time_graph

COPY_BYTES = {"cuda": 1 << 30, "cpu": 1 << 24}
CHASED_BYTES = 8 << 20  # more than a multiprocessor caches, less than the L2 of a large GPU
HOPS = {"cuda": 1000, "cpu": 2}
GRAPH_US = 20_000
SLOWEST_SECONDS = 0.3
"""Of one peer's replays: there are a thousand in a run."""


@dataclass(frozen=True, slots=True)
class Ceilings:
    """Measured here: bytes read plus bytes written a microsecond by a large copy; microseconds of a launch that does
    nothing, and of a read out of the L2 whose address the read before gave.
    """

    bytes_per_us: float
    launch_us: float
    read_us: float


@triton.jit
def _null_kernel(p_words):
    """Nothing."""


@triton.jit(do_not_specialize=["hops"])
def _chase_kernel(p_next, p_last, hops):
    """Each read's address is what the read before it gave."""
    i_word = tl.load(p_next)
    for _ in range(hops):
        i_word = tl.load(p_next + i_word)
    tl.store(p_last, i_word)


def time_calls(call: Callable[[], object], device: str, rounds: int) -> float:
    """The median of a call in microseconds: in a CUDA graph of as many calls as fit its time, or eagerly on a CPU."""
    if device == "cpu":
        return statistics.median(time_eager(call, rounds, device))
    call()
    once = min(time_eager(call, 1, device))
    calls = max(2, min(GRAPH_CALLS, int(GRAPH_US // once)))
    return statistics.median(time_graph(call, rounds, calls, SLOWEST_SECONDS))


def measure_ceilings(device: str, rounds: int) -> Ceilings:
    source = torch.ones(COPY_BYTES[device], dtype=torch.uint8, device=device)
    target = torch.empty_like(source)

    def copy() -> object:
        return target.copy_(source)

    # A graph's copies run at two thirds of the speed of others on an H200.
    copy_us = min(time_calls(copy, device, rounds), statistics.median(time_eager(copy, rounds, device)))
    words = torch.zeros(1, dtype=torch.int64, device=device)
    launch_us = time_calls(lambda: _null_kernel[(1,)](words), device, rounds)
    count = CHASED_BYTES // 8
    order = torch.randperm(count, generator=torch.Generator().manual_seed(0))
    following = torch.empty(count, dtype=torch.int64)
    following[order] = order.roll(-1)  # one cycle through all words
    chased, hops = following.to(device), HOPS[device]
    long_us, short_us = (
        time_calls(lambda count=count: _chase_kernel[(1,)](chased, words, count), device, rounds)  # type: ignore[misc]
        for count in (hops, 0)
    )
    return Ceilings(2 * COPY_BYTES[device] / copy_us, launch_us, max(0.0, long_us - short_us) / hops)
