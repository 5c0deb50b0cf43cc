"""KV slots of new tokens, from the pages that a request has and from free ones, and where a request's last slot is.

What bounds them: a launch each. Where a request's segment begins in a ragged tensor: `specsim.kernels.ragged`.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import checked_launch
from specsim.kernels.ragged import BLOCK_B

__all__ = ["alloc_decode", "alloc_extend", "get_last_loc"]

BLOCK_LOCS = 1024
BLOCK_LOCS_SHORT = 128


@checked_launch()
def alloc_extend(
    prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, out_cache_loc: Tensor, page_size: int
) -> None:
    """Write slots for the tokens by which each request grows: the rest of its last page, then free pages.

    Shapes and dtypes: specsim.reference.kv.alloc_extend. Where pages run out, slots of page 0, the padding sink, are
    given, and slots beyond `num_locs` are skipped. Raises ValueError for a page size that is no power of two.
    """
    require_page_size(page_size)
    bs = seq_lens.shape[0]
    if bs == 0:
        return
    is_short = out_cache_loc.shape[0] <= BLOCK_LOCS_SHORT * bs
    _alloc_extend_kernel[(bs,)](
        prefix_lens,
        seq_lens,
        last_loc,
        free_pages,
        out_cache_loc,
        free_pages.shape[0],
        out_cache_loc.shape[0],
        PAGE_SIZE=page_size,
        BLOCK_B=BLOCK_B,
        BLOCK_LOCS=BLOCK_LOCS_SHORT if is_short else BLOCK_LOCS,
        num_warps=4,
    )


@checked_launch()
def alloc_decode(seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, out_cache_loc: Tensor, page_size: int) -> None:
    """Write a slot for one more token of each request: the next one on its page, or the first of a free page.

    Shapes and dtypes: specsim.reference.kv.alloc_decode. Where pages run out, slot 0 is given. Raises ValueError for a
    page size that is no power of two.
    """
    require_page_size(page_size)
    bs = seq_lens.shape[0]
    if bs == 0:
        return
    _alloc_decode_kernel[(triton.cdiv(bs, BLOCK_B),)](
        seq_lens,
        last_loc,
        free_pages,
        out_cache_loc,
        bs,
        free_pages.shape[0],
        PAGE_SIZE=page_size,
        BLOCK_B=BLOCK_B,
        num_warps=1,
    )


@checked_launch()
def get_last_loc(req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor, last_loc: Tensor) -> None:
    """Write the slot of each request's last token, -1 for a request without tokens.

    Shapes and dtypes: specsim.reference.kv.get_last_loc. A length beyond the row gives 0, the padding slot.
    """
    bs = req_pool_indices.shape[0]
    if bs == 0:
        return
    _get_last_loc_kernel[(triton.cdiv(bs, BLOCK_B),)](
        req_to_token,
        req_pool_indices,
        prefix_lens,
        last_loc,
        req_to_token.shape[1],
        bs,
        BLOCK_B=BLOCK_B,
        num_warps=1,
    )


def require_page_size(page_size: int) -> None:
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"page_size is {page_size}; allowed: a power of two, 1 included")


@triton.jit
def pages_of(lens, PAGE_SIZE: tl.constexpr):
    return (lens + PAGE_SIZE - 1) // PAGE_SIZE


@triton.jit(do_not_specialize=["num_free_pages", "num_locs"])
def _alloc_extend_kernel(
    p_prefix_lens,
    p_seq_lens,
    p_last_loc,
    p_free_pages,
    p_out_cache_loc,
    num_free_pages,
    num_locs,
    PAGE_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a request, which writes its segment in blocks."""
    i_b = tl.program_id(0)
    b_locs = tl.zeros([BLOCK_B], dtype=tl.int64)
    b_pages = tl.zeros([BLOCK_B], dtype=tl.int64)
    i_first = 0
    while i_first < i_b:
        # [BLOCK_B]: what the requests before this one take
        o_b = i_first + tl.arange(0, BLOCK_B)
        b_prefix = tl.load(p_prefix_lens + o_b, mask=o_b < i_b, other=0)
        b_seq = tl.load(p_seq_lens + o_b, mask=o_b < i_b, other=0)
        b_locs += tl.maximum(b_seq - b_prefix, 0)
        b_pages += tl.maximum(pages_of(b_seq, PAGE_SIZE) - pages_of(b_prefix, PAGE_SIZE), 0)
        i_first += BLOCK_B
    i_segment = tl.sum(b_locs, axis=0)
    i_page = tl.sum(b_pages, axis=0)
    prefix_len = tl.load(p_prefix_lens + i_b)
    seq_len = tl.load(p_seq_lens + i_b)
    last_loc = tl.load(p_last_loc + i_b)
    first_new_page = pages_of(prefix_len, PAGE_SIZE)
    i_first = 0
    while i_first < seq_len - prefix_len:
        # [BLOCK_LOCS]
        o_loc = i_first + tl.arange(0, BLOCK_LOCS)
        o_position = prefix_len + o_loc
        m_loc = (o_position < seq_len) & (i_segment + o_loc < num_locs)
        o_page = o_position // PAGE_SIZE - first_new_page
        m_page = m_loc & (o_page >= 0) & (i_page + o_page < num_free_pages)
        b_page = tl.load(p_free_pages + i_page + o_page, mask=m_page, other=0)
        b_fresh = b_page * PAGE_SIZE + o_position % PAGE_SIZE
        tl.store(p_out_cache_loc + i_segment + o_loc, tl.where(o_page >= 0, b_fresh, last_loc + 1 + o_loc), mask=m_loc)
        i_first += BLOCK_LOCS


@triton.jit(do_not_specialize=["bs", "num_free_pages"])
def _alloc_decode_kernel(
    p_seq_lens,
    p_last_loc,
    p_free_pages,
    p_out_cache_loc,
    bs,
    num_free_pages,
    PAGE_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """One program a block of requests, a request a lane."""
    i_begin = tl.program_id(0) * BLOCK_B
    b_before = tl.zeros([BLOCK_B], dtype=tl.int64)
    i_first = 0
    while i_first < i_begin:
        b_seq = tl.load(p_seq_lens + i_first + tl.arange(0, BLOCK_B))
        b_before += ((b_seq - 1) % PAGE_SIZE == 0).to(tl.int64)
        i_first += BLOCK_B
    # [BLOCK_B]
    o_b = i_begin + tl.arange(0, BLOCK_B)
    m_b = o_b < bs
    b_seq = tl.load(p_seq_lens + o_b, mask=m_b, other=0)
    b_starts = tl.where(m_b & ((b_seq - 1) % PAGE_SIZE == 0), 1, 0).to(tl.int64)
    o_page = tl.sum(b_before, axis=0) + tl.cumsum(b_starts, axis=0) - 1
    m_page = (b_starts > 0) & (o_page < num_free_pages)
    b_page = tl.load(p_free_pages + o_page, mask=m_page, other=0)
    b_last = tl.load(p_last_loc + o_b, mask=m_b, other=0)
    tl.store(p_out_cache_loc + o_b, tl.where(b_starts > 0, b_page * PAGE_SIZE, b_last + 1), mask=m_b)


@triton.jit(do_not_specialize=["pool_len", "bs"])
def _get_last_loc_kernel(
    p_req_to_token, p_req_pool_indices, p_prefix_lens, p_last_loc, pool_len, bs, BLOCK_B: tl.constexpr
):
    """One program a block of requests, a request a lane."""
    # [BLOCK_B]
    o_b = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    m_b = o_b < bs
    b_row = tl.load(p_req_pool_indices + o_b, mask=m_b, other=0)
    b_prefix = tl.load(p_prefix_lens + o_b, mask=m_b, other=0)
    m_slot = m_b & (b_prefix > 0) & (b_prefix <= pool_len)
    b_slot = tl.load(p_req_to_token + b_row * pool_len + b_prefix - 1, mask=m_slot, other=0).to(tl.int64)
    tl.store(p_last_loc + o_b, tl.where(b_prefix > 0, b_slot, -1), mask=m_b)
