"""KV memory: the slots of a draft's branches, and the accepted path brought together.

What bounds them: a launch each, but for the lists of a draft's branches, which are bound by their bytes.
Where a request's segment begins in a ragged tensor is a sum over the requests before it, which every program reduces
for itself in vectors of `BLOCK_B` requests: cheaper than a second launch up to thousands of requests.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.alloc import pages_of, require_page_size
from specsim.kernels.launch import ANY, as_equal_words, block_of, checked_launch, require_same_dtype
from specsim.kernels.ragged import BLOCK_B

__all__ = [
    "align_evict_mask_to_page_size",
    "compact_accepted_path",
    "draft_cache_locs_paged",
    "fill_accept_out_cache_loc",
    "generate_draft_decode_kv_indices",
]

BLOCK_LOCS = 256
BLOCK_H = 2048
TILE_WORDS = 4096
"""Of the hidden states of an accepted path, which a program has under way at once."""

PROGRAMS_MAX = 4096
"""Of a launch that shares lists out: 32 for each multiprocessor of a large GPU."""


@checked_launch()
def generate_draft_decode_kv_indices(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    kv_indptr: Tensor,
    kv_indices: Tensor,
    topk: int,
    num_steps: int,
    page_size: int,
) -> None:
    """Write the slots that each branch attends to in each step of drafting, one list per branch (CSR).

    Shapes and dtypes: specsim.reference.kv.generate_draft_decode_kv_indices.

    A column beyond the row reads as 0, the padding slot, and entries beyond `num_kv` are skipped. Raises ValueError for
    a page size that is no power of two.
    """
    require_page_size(page_size)
    bs = req_pool_indices.shape[0]
    pool_len = req_to_token.shape[1]
    # One program more than branches, for the last bounds; a long list is shared out between `splits`, but not where
    # there are branches enough, for how long the lists are is not known and most of a row may be empty.
    splits = min(32, triton.cdiv(pool_len, 4 * BLOCK_LOCS), PROGRAMS_MAX // (bs * topk + 1))
    _draft_decode_kv_indices_kernel[(bs * topk + 1, max(1, splits))](
        req_pool_indices,
        req_to_token,
        seq_lens,
        kv_indptr,
        kv_indices,
        pool_len,
        bs,
        kv_indices.shape[1],
        TOPK=topk,
        NUM_STEPS=num_steps,
        PAGE_SIZE=page_size,
        BLOCK_B=BLOCK_B,
        BLOCK_S=triton.next_power_of_2(num_steps),
        BLOCK_LOCS=BLOCK_LOCS,
        num_warps=4,
    )


@checked_launch()
def draft_cache_locs_paged(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    target: Tensor,
    source: Tensor,
    topk: int,
    num_steps: int,
    page_size: int,
) -> None:
    """Write the slots of the draft's branches, and the copies that fill the holes before them.

    Shapes and dtypes: specsim.reference.kv.draft_cache_locs_paged. A column beyond the row reads as 0, the padding
    slot, and copies beyond `num_copies` are skipped. Raises ValueError for a page size that is no power of two.
    """
    require_page_size(page_size)
    bs = req_pool_indices.shape[0]
    if bs == 0:
        return
    _draft_cache_locs_paged_kernel[(bs,)](
        req_pool_indices,
        req_to_token,
        seq_lens,
        out_cache_loc,
        target,
        source,
        req_to_token.shape[1],
        target.shape[0],
        TOPK=topk,
        NUM_STEPS=num_steps,
        PAGE_SIZE=page_size,
        BLOCK_B=BLOCK_B,
        BLOCK_LOCS=block_of(topk * max(num_steps, page_size), BLOCK_LOCS),
        num_warps=4,
    )


@checked_launch()
def align_evict_mask_to_page_size(seq_lens: Tensor, evict_mask: Tensor, page_size: int, num_draft_tokens: int) -> None:
    """Take out of `evict_mask`, in place, the nodes that share a page with the last token that is kept.

    Shapes and dtypes: specsim.reference.kv.align_evict_mask_to_page_size. Raises ValueError for a page size that is no
    power of two.
    """
    require_page_size(page_size)
    bs = seq_lens.shape[0]
    if bs == 0:
        return
    _align_evict_mask_kernel[(bs,)](
        seq_lens,
        evict_mask.view(torch.uint8),
        NDT=num_draft_tokens,
        PAGE_SIZE=page_size,
        BLOCK_N=triton.next_power_of_2(num_draft_tokens),
        num_warps=1,
    )


@checked_launch()
def fill_accept_out_cache_loc(accept_index: Tensor, out_cache_loc: Tensor, accept_out_cache_loc: Tensor) -> None:
    """Write the slots of the accepted nodes, one after the other in the order of `accept_index`.

    Shapes and dtypes: specsim.reference.kv.fill_accept_out_cache_loc. Entries after the last accepted node are not
    written; a node outside the batch has slot 0.
    """
    num_entries = accept_index.numel()
    if num_entries == 0:
        return
    _fill_accept_kernel[(triton.cdiv(num_entries, BLOCK_B),)](
        accept_index,
        out_cache_loc,
        accept_out_cache_loc,
        num_entries,
        out_cache_loc.shape[0],
        BLOCK_B=BLOCK_B,
        num_warps=1,
    )


@checked_launch(hidden_states=ANY, compacted_hidden_states=ANY)
def compact_accepted_path(
    accept_index: Tensor,
    accept_lens: Tensor,
    out_cache_loc: Tensor,
    predict: Tensor,
    hidden_states: Tensor,
    target: Tensor,
    source: Tensor,
    compacted_predict: Tensor,
    compacted_hidden_states: Tensor,
    num_draft_tokens: int,
) -> None:
    """Write the moves that bring each accepted path to the front of its block; tokens and hidden states in its order.

    Shapes and dtypes: specsim.reference.kv.compact_accepted_path; hidden states have any dtype.

    `target` and `source` are written whole, the padding included; of the other two the first `accept_lens[b]` nodes of
    each block alone. A node outside the batch counts as its block's own.
    """
    bs, accept_width = accept_index.shape
    require_same_dtype("compacted_hidden_states", compacted_hidden_states, "hidden_states", hidden_states)
    if bs == 0:
        return
    states, compacted = as_equal_words(hidden_states, compacted_hidden_states)
    hidden_size = states.shape[1]
    block_w = triton.next_power_of_2(max(1, accept_width))
    block_h = block_of(hidden_size, min(BLOCK_H, max(1, TILE_WORDS // block_w)))
    _compact_accepted_path_kernel[(bs, max(1, triton.cdiv(hidden_size, block_h)))](
        accept_index,
        accept_lens,
        out_cache_loc,
        predict,
        states,
        target,
        source,
        compacted_predict,
        compacted,
        bs,
        NDT=num_draft_tokens,
        ACCEPT_WIDTH=accept_width,
        HIDDEN_SIZE=hidden_size,
        BLOCK_B=BLOCK_B,
        BLOCK_W=block_w,
        BLOCK_H=block_h,
        num_warps=4,
    )


@triton.jit
def _branch_width(seq_len, NUM_STEPS: tl.constexpr, PAGE_SIZE: tl.constexpr):
    """Columns from the start of one branch to the start of the next."""
    return pages_of(seq_len % PAGE_SIZE + NUM_STEPS, PAGE_SIZE) * PAGE_SIZE


@triton.jit(do_not_specialize=["pool_len", "bs", "num_kv"])
def _draft_decode_kv_indices_kernel(
    p_req_pool_indices,
    p_req_to_token,
    p_seq_lens,
    p_kv_indptr,
    p_kv_indices,
    pool_len,
    bs,
    num_kv,
    TOPK: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program for a share of the lists of branch z in all steps, for a longer list begins with a shorter one; so
    the page table is read once. z = `bs * TOPK` has no list, and writes the last bounds.
    """
    i_z = tl.program_id(0)
    i_split = tl.program_id(1)
    num_splits = tl.num_programs(1)
    i_b = i_z // TOPK
    i_branch = i_z % TOPK
    b_sum = tl.zeros([BLOCK_B], dtype=tl.int64)
    i_first = 0
    while i_first < i_b:
        # [BLOCK_B]
        o_b = i_first + tl.arange(0, BLOCK_B)
        b_sum += tl.load(p_seq_lens + o_b, mask=o_b < i_b, other=0)
        i_first += BLOCK_B
    before = tl.sum(b_sum, axis=0)
    m_b = i_b < bs
    seq_len = tl.load(p_seq_lens + i_b, mask=m_b, other=0)
    if i_split == 0:
        # [BLOCK_S]
        o_step = tl.arange(0, BLOCK_S)
        b_list = TOPK * (before + i_b * (o_step + 1)) + i_branch * (seq_len + o_step + 1)
        tl.store(p_kv_indptr + o_step * (bs * TOPK + 1) + i_z, b_list.to(tl.int32), mask=o_step < NUM_STEPS)

    i_row = tl.load(p_req_pool_indices + i_b, mask=m_b, other=0)
    i_branch_start = seq_len + i_branch * _branch_width(seq_len, NUM_STEPS, PAGE_SIZE)
    i_end = tl.where(i_b < bs, seq_len + NUM_STEPS, 0)
    i_first = i_split * BLOCK_LOCS
    while i_first < i_end:
        # [BLOCK_LOCS]
        o_kv = i_first + tl.arange(0, BLOCK_LOCS)
        o_column = tl.where(o_kv < seq_len, o_kv, i_branch_start + o_kv - seq_len)
        m_column = (o_kv < i_end) & (o_column < pool_len)
        b_slot = tl.load(p_req_to_token + i_row * pool_len + o_column, mask=m_column, other=0).to(tl.int64)
        for i_step in range(NUM_STEPS):
            i_list = TOPK * (before + i_b * (i_step + 1)) + i_branch * (seq_len + i_step + 1)
            m_kv = (o_kv <= seq_len + i_step) & (i_list + o_kv < num_kv)
            tl.store(p_kv_indices + i_step * num_kv.to(tl.int64) + i_list + o_kv, b_slot, mask=m_kv)
        i_first += num_splits * BLOCK_LOCS


@triton.jit(do_not_specialize=["pool_len", "num_copies"])
def _draft_cache_locs_paged_kernel(
    p_req_pool_indices,
    p_req_to_token,
    p_seq_lens,
    p_out_cache_loc,
    p_target,
    p_source,
    pool_len,
    num_copies,
    TOPK: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    PAGE_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a request: the slots of its branches, then the copies into its holes."""
    i_b = tl.program_id(0).to(tl.int64)
    seq_len = tl.load(p_seq_lens + i_b)
    p_row = p_req_to_token + tl.load(p_req_pool_indices + i_b) * pool_len
    width = _branch_width(seq_len, NUM_STEPS, PAGE_SIZE)
    for i_first_loc in range(0, TOPK * NUM_STEPS, BLOCK_LOCS):
        # [BLOCK_LOCS]
        o_loc = i_first_loc + tl.arange(0, BLOCK_LOCS)
        m_loc = o_loc < TOPK * NUM_STEPS
        o_column = seq_len + o_loc // NUM_STEPS * width + o_loc % NUM_STEPS
        b_slot = tl.load(p_row + o_column, mask=m_loc & (o_column < pool_len), other=0)
        tl.store(p_out_cache_loc + i_b * (TOPK * NUM_STEPS) + o_loc, b_slot.to(tl.int64), mask=m_loc)

    # A chain has no other branches, and pages of one token no holes.
    if TOPK > 1 and PAGE_SIZE > 1:
        b_tails = tl.zeros([BLOCK_B], dtype=tl.int64)
        i_first = 0
        while i_first < i_b:
            # [BLOCK_B]
            o_b = i_first + tl.arange(0, BLOCK_B)
            b_tails += tl.load(p_seq_lens + o_b, mask=o_b < i_b, other=0) % PAGE_SIZE
            i_first += BLOCK_B
        i_copies = tl.sum(b_tails, axis=0) * (TOPK - 1)
        tail = seq_len % PAGE_SIZE
        i_copy = i_copies * 0
        while i_copy < tail * (TOPK - 1):
            # [BLOCK_LOCS]
            o_copy = i_copy + tl.arange(0, BLOCK_LOCS)
            m_copy = (o_copy < tail * (TOPK - 1)) & (i_copies + o_copy < num_copies)
            o_source = seq_len - tail + o_copy % tl.maximum(tail, 1)
            o_target = o_source + (1 + o_copy // tl.maximum(tail, 1)) * width
            b_target = tl.load(p_row + o_target, mask=m_copy & (o_target < pool_len), other=0)
            b_source = tl.load(p_row + o_source, mask=m_copy & (o_source < pool_len), other=0)
            tl.store(p_target + i_copies + o_copy, b_target.to(tl.int64), mask=m_copy)
            tl.store(p_source + i_copies + o_copy, b_source.to(tl.int64), mask=m_copy)
            i_copy += BLOCK_LOCS


@triton.jit
def _align_evict_mask_kernel(
    p_seq_lens, p_evict_mask, NDT: tl.constexpr, PAGE_SIZE: tl.constexpr, BLOCK_N: tl.constexpr
):
    """One program a request; a lane writes the node that it has read."""
    i_b = tl.program_id(0).to(tl.int64)
    # [BLOCK_N]
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < NDT
    b_evicted = tl.load(p_evict_mask + i_b * NDT + o_n, mask=m_n, other=1) != 0
    seq_len = tl.load(p_seq_lens + i_b)
    i_last = seq_len + tl.sum((~b_evicted).to(tl.int64), axis=0) - 1
    is_shared = (seq_len + o_n) // PAGE_SIZE == i_last // PAGE_SIZE
    tl.store(p_evict_mask + i_b * NDT + o_n, tl.where(b_evicted & (~is_shared), 1, 0).to(tl.uint8), mask=m_n)


@triton.jit(do_not_specialize=["num_entries", "num_nodes"])
def _fill_accept_kernel(
    p_accept_index, p_out_cache_loc, p_accept_out_cache_loc, num_entries, num_nodes, BLOCK_B: tl.constexpr
):
    """One program a block of entries; how many nodes come before it, it counts for itself."""
    i_begin = tl.program_id(0) * BLOCK_B
    b_before = tl.zeros([BLOCK_B], dtype=tl.int32)
    i_first = 0
    while i_first < i_begin:
        b_node = tl.load(p_accept_index + i_first + tl.arange(0, BLOCK_B))
        b_before += (b_node >= 0).to(tl.int32)
        i_first += BLOCK_B
    # [BLOCK_B]
    o_entry = i_begin + tl.arange(0, BLOCK_B)
    b_node = tl.load(p_accept_index + o_entry, mask=o_entry < num_entries, other=-1)
    b_is_node = (b_node >= 0).to(tl.int32)
    o_place = tl.sum(b_before, axis=0) + tl.cumsum(b_is_node, axis=0) - 1
    b_slot = tl.load(p_out_cache_loc + b_node, mask=(b_node >= 0) & (b_node < num_nodes), other=0)
    tl.store(p_accept_out_cache_loc + o_place, b_slot, mask=b_node >= 0)


@triton.jit(do_not_specialize=["bs"])
def _compact_accepted_path_kernel(
    p_accept_index,
    p_accept_lens,
    p_out_cache_loc,
    p_predict,
    p_states,
    p_target,
    p_source,
    p_compacted_predict,
    p_compacted,
    bs,
    NDT: tl.constexpr,
    ACCEPT_WIDTH: tl.constexpr,
    HIDDEN_SIZE: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a request and a block of columns of the hidden states; the first of a request writes the rest.

    Padding goes where all segments end: each request adds what its own segment is short of the width.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1)
    i_block = i_b * NDT
    len_max = tl.minimum(ACCEPT_WIDTH, NDT)
    accept_len = tl.minimum(tl.maximum(tl.load(p_accept_lens + i_b), 0), len_max)

    # [BLOCK_W]
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w < accept_len
    b_node = tl.load(p_accept_index + i_b * ACCEPT_WIDTH + o_w, mask=m_w, other=0).to(tl.int64)
    b_node = tl.where((b_node >= i_block) & (b_node < i_block + NDT), b_node, i_block)
    if i_h == 0:
        b_before = tl.zeros([BLOCK_B], dtype=tl.int64)
        b_all = tl.zeros([BLOCK_B], dtype=tl.int64)
        i_first = 0
        while i_first < bs:
            # [BLOCK_B]
            o_b = i_first + tl.arange(0, BLOCK_B)
            b_len = tl.load(p_accept_lens + o_b, mask=o_b < bs, other=0)
            b_len = tl.minimum(tl.maximum(b_len, 0), len_max).to(tl.int64)
            b_all += b_len
            b_before += tl.where(o_b < i_b, b_len, 0)
            i_first += BLOCK_B
        i_segment = tl.sum(b_before, axis=0)
        i_padding = tl.sum(b_all, axis=0) + i_b * ACCEPT_WIDTH - i_segment
        m_pad = (o_w >= accept_len) & (o_w < ACCEPT_WIDTH)
        o_entry = tl.where(m_w, i_segment + o_w, i_padding + o_w - accept_len)
        b_target = tl.load(p_out_cache_loc + i_block + o_w, mask=m_w, other=0)
        b_source = tl.load(p_out_cache_loc + b_node, mask=m_w, other=0)
        tl.store(p_target + o_entry, b_target, mask=m_w | m_pad)
        tl.store(p_source + o_entry, b_source, mask=m_w | m_pad)
        b_token = tl.load(p_predict + b_node, mask=m_w, other=0)
        tl.store(p_compacted_predict + i_block + o_w, b_token, mask=m_w)

    # [BLOCK_W, BLOCK_H]
    o_h = i_h * BLOCK_H + tl.arange(0, BLOCK_H)
    m_state = m_w[:, None] & (o_h < HIDDEN_SIZE)[None, :]
    b_state = tl.load(p_states + b_node[:, None] * HIDDEN_SIZE + o_h[None, :], mask=m_state, other=0)
    tl.store(p_compacted + (i_block + o_w)[:, None] * HIDDEN_SIZE + o_h[None, :], b_state, mask=m_state)
