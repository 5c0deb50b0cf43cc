"""Where a request's segment begins in a ragged tensor: a sum over the requests before it.

Every program reduces it for itself in vectors of `BLOCK_B` requests, which is cheaper than a second launch up to
thousands of requests.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl

BLOCK_B = 256
"""The same for every batch, so that a batch size that no launch had before compiles nothing. Where nothing else wants
more warps a program has one, whose sums need no barrier."""


@triton.jit
def sum_before(p_lens, i_b, EXTRA: tl.constexpr, BLOCK_B: tl.constexpr):
    """The sum of `max(lens + EXTRA, 0)` over the requests before `i_b`, int64."""
    b_sum = tl.zeros([BLOCK_B], dtype=tl.int64)
    i_first = 0
    while i_first < i_b:
        # [BLOCK_B]
        o_b = i_first + tl.arange(0, BLOCK_B)
        b_len = tl.load(p_lens + o_b, mask=o_b < i_b, other=-EXTRA).to(tl.int64)
        b_sum += tl.maximum(b_len + EXTRA, 0)
        i_first += BLOCK_B
    return tl.sum(b_sum, axis=0)


@triton.jit
def sum_of_differences_before(p_starts, p_ends, i_b, BLOCK_B: tl.constexpr):
    """The sum of `max(ends - starts, 0)` over the requests before `i_b`, int64."""
    b_sum = tl.zeros([BLOCK_B], dtype=tl.int64)
    i_first = 0
    while i_first < i_b:
        # [BLOCK_B]
        o_b = i_first + tl.arange(0, BLOCK_B)
        b_start = tl.load(p_starts + o_b, mask=o_b < i_b, other=0)
        b_end = tl.load(p_ends + o_b, mask=o_b < i_b, other=0)
        b_sum += tl.maximum(b_end - b_start, 0)
        i_first += BLOCK_B
    return tl.sum(b_sum, axis=0)
