"""Cache locations: reads from and writes to the page table `req_to_token`.

What bounds them: a launch each. A request's segment is a few dozen columns of one row, so its bytes do not
matter. Where a segment begins in the ragged tensor is a sum over the requests before it, which every program
reduces for itself in vectors of `BLOCK_B` of them: cheaper than a second launch up to thousands of requests.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from specsim.kernels.launch import checked_launch
from specsim.kernels.ragged import BLOCK_B, sum_of_differences_before

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["assign_draft_cache_locs_contiguous", "assign_extend_cache_locs", "assign_req_to_token_pool"]

BLOCK_LOCS = 128


@checked_launch()
def assign_req_to_token_pool(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """Enter the ragged slots `out_cache_loc` into columns `[start, end)` of the requests' rows, in place.

    Shapes and dtypes: specsim.reference.cache_locs.assign_req_to_token_pool. Columns beyond the row and slots
    beyond `num_locs` are skipped. Duplicate rows race.
    """
    bs = req_pool_indices.shape[0]
    if bs == 0:
        return
    _assign_req_to_token_pool_kernel[(bs,)](
        req_pool_indices,
        req_to_token,
        start_offset,
        end_offset,
        out_cache_loc,
        req_to_token.shape[1],
        out_cache_loc.shape[0],
        BLOCK_B=BLOCK_B,
        BLOCK_LOCS=BLOCK_LOCS,
        num_warps=1,
    )


@checked_launch()
def assign_draft_cache_locs_contiguous(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    topk: int,
    num_steps: int,
) -> None:
    """Write to `out_cache_loc` the slots of the `topk * num_steps` columns that follow each sequence.

    Shapes and dtypes: specsim.reference.cache_locs.assign_draft_cache_locs_contiguous. A column beyond the
    row reads as 0, the padding slot.
    """
    num_draft_locs = out_cache_loc.shape[0]
    if num_draft_locs == 0:
        return
    _assign_draft_cache_locs_kernel[(triton.cdiv(num_draft_locs, BLOCK_LOCS),)](
        req_pool_indices,
        req_to_token,
        seq_lens,
        out_cache_loc,
        req_to_token.shape[1],
        num_draft_locs,
        WIDTH=topk * num_steps,
        BLOCK_LOCS=BLOCK_LOCS,
        num_warps=4,
    )


@checked_launch()
def assign_extend_cache_locs(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """Write to `out_cache_loc` the slots of columns `[start, end)` of the requests' rows, ragged.

    Shapes and dtypes: specsim.reference.cache_locs.assign_extend_cache_locs. A column beyond the row reads as
    0, the padding slot; slots beyond `num_locs` are skipped.
    """
    bs = req_pool_indices.shape[0]
    if bs == 0:
        return
    _assign_extend_cache_locs_kernel[(bs,)](
        req_pool_indices,
        req_to_token,
        start_offset,
        end_offset,
        out_cache_loc,
        req_to_token.shape[1],
        out_cache_loc.shape[0],
        BLOCK_B=BLOCK_B,
        BLOCK_LOCS=BLOCK_LOCS,
        num_warps=1,
    )


@triton.jit(do_not_specialize=["pool_len", "num_locs"])
def _assign_req_to_token_pool_kernel(
    p_req_pool_indices,
    p_req_to_token,
    p_start_offset,
    p_end_offset,
    p_out_cache_loc,
    pool_len,
    num_locs,
    BLOCK_B: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a request, which copies its segment in blocks."""
    i_b = tl.program_id(0)
    i_row = tl.load(p_req_pool_indices + i_b).to(tl.int64)
    i_start = tl.load(p_start_offset + i_b)
    i_end = tl.load(p_end_offset + i_b)
    i_segment = sum_of_differences_before(p_start_offset, p_end_offset, i_b, BLOCK_B)
    i_first = 0
    while i_first < i_end - i_start:
        # [BLOCK_LOCS]
        o_loc = i_first + tl.arange(0, BLOCK_LOCS)
        o_column = i_start + o_loc
        m_loc = (o_column >= 0) & (o_column < i_end) & (o_column < pool_len) & (i_segment + o_loc < num_locs)
        b_slot = tl.load(p_out_cache_loc + i_segment + o_loc, mask=m_loc, other=0)
        tl.store(p_req_to_token + i_row * pool_len + o_column, b_slot.to(tl.int32), mask=m_loc)
        i_first += BLOCK_LOCS


@triton.jit(do_not_specialize=["pool_len", "num_draft_locs"])
def _assign_draft_cache_locs_kernel(
    p_req_pool_indices,
    p_req_to_token,
    p_seq_lens,
    p_out_cache_loc,
    pool_len,
    num_draft_locs,
    WIDTH: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a block of outputs, over all requests: every lane finds its own row and column."""
    # [BLOCK_LOCS]
    o_loc = tl.program_id(0).to(tl.int64) * BLOCK_LOCS + tl.arange(0, BLOCK_LOCS)
    m_loc = o_loc < num_draft_locs
    o_b = o_loc // WIDTH
    b_row = tl.load(p_req_pool_indices + o_b, mask=m_loc, other=0).to(tl.int64)
    b_column = tl.load(p_seq_lens + o_b, mask=m_loc, other=0) + o_loc % WIDTH
    m_column = m_loc & (b_column >= 0) & (b_column < pool_len)
    b_slot = tl.load(p_req_to_token + b_row * pool_len + b_column, mask=m_column, other=0)
    tl.store(p_out_cache_loc + o_loc, b_slot.to(tl.int64), mask=m_loc)


@triton.jit(do_not_specialize=["pool_len", "num_locs"])
def _assign_extend_cache_locs_kernel(
    p_req_pool_indices,
    p_req_to_token,
    p_start_offset,
    p_end_offset,
    p_out_cache_loc,
    pool_len,
    num_locs,
    BLOCK_B: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a request, which gathers its segment in blocks."""
    i_b = tl.program_id(0)
    i_row = tl.load(p_req_pool_indices + i_b).to(tl.int64)
    i_start = tl.load(p_start_offset + i_b)
    i_end = tl.load(p_end_offset + i_b)
    i_segment = sum_of_differences_before(p_start_offset, p_end_offset, i_b, BLOCK_B)
    i_first = 0
    while i_first < i_end - i_start:
        # [BLOCK_LOCS]
        o_loc = i_first + tl.arange(0, BLOCK_LOCS)
        o_column = i_start + o_loc
        m_loc = (o_column < i_end) & (i_segment + o_loc < num_locs)
        m_column = m_loc & (o_column >= 0) & (o_column < pool_len)
        b_slot = tl.load(p_req_to_token + i_row * pool_len + o_column, mask=m_column, other=0)
        tl.store(p_out_cache_loc + i_segment + o_loc, b_slot.to(tl.int64), mask=m_loc)
        i_first += BLOCK_LOCS
