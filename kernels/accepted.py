"""What follows the walk: tokens, lengths, positions and slots of what was accepted. What bounds them: a launch each."""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from specsim.kernels.launch import ANY, as_equal_words, block_of, checked_launch, require_same_dtype
from specsim.kernels.ragged import BLOCK_B, sum_before, sum_of_differences_before
from specsim.kernels.verify import bonus_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = [
    "create_extend_after_decode",
    "filter_finished_cache_loc",
    "gather_accept_tokens",
    "gather_rows",
    "get_target_cache_loc",
    "verify_commit_outputs",
    "write_req_to_token_pool",
]

BLOCK_LOCS = 128
BLOCK_H = 2048


@checked_launch()
def gather_accept_tokens(predicts: Tensor, accept_index: Tensor, output_token_ids: Tensor) -> None:
    """Write the emitted tokens of each request, -1 where `accept_index` is -1 or no node of the batch.

    Shapes and dtypes: specsim.reference.accepted.gather_accept_tokens.
    """
    num_entries = accept_index.numel()
    if num_entries == 0:
        return
    _gather_accept_tokens_kernel[(triton.cdiv(num_entries, BLOCK_B),)](
        predicts, accept_index, output_token_ids, predicts.shape[0], num_entries, BLOCK_B=BLOCK_B, num_warps=4
    )


@checked_launch()
def verify_commit_outputs(
    predict: Tensor,
    accept_index: Tensor,
    accept_lens: Tensor,
    seq_lens: Tensor,
    new_seq_lens: Tensor,
    bonus_tokens: Tensor,
) -> None:
    """Write the new length of each request, and the bonus token that is not part of it yet.

    Shapes and dtypes: specsim.reference.accepted.verify_commit_outputs. A request without a path (`accept_lens` 0, as
    in padded rows of a graph's batch) keeps its length and gets token 0.
    """
    bs, accept_width = accept_index.shape
    if bs == 0:
        return
    _verify_commit_outputs_kernel[(triton.cdiv(bs, BLOCK_B),)](
        predict,
        accept_index,
        accept_lens,
        seq_lens,
        new_seq_lens,
        bonus_tokens,
        predict.shape[0],
        bs,
        ACCEPT_WIDTH=accept_width,
        BLOCK_B=BLOCK_B,
        num_warps=4,
    )


@checked_launch()
def create_extend_after_decode(
    accept_tokens: Tensor, seq_lens: Tensor, accept_lens: Tensor, positions: Tensor, bonus_tokens: Tensor
) -> None:
    """Write positions of the accepted tokens, ragged, and the last token of each segment.

    Shapes and dtypes: specsim.reference.accepted.create_extend_after_decode. Positions beyond `num_tokens` are skipped;
    a request without a segment gets token 0.
    """
    bs = seq_lens.shape[0]
    if bs == 0:
        return
    _create_extend_after_decode_kernel[(bs,)](
        accept_tokens,
        seq_lens,
        accept_lens,
        positions,
        bonus_tokens,
        accept_tokens.shape[0],
        BLOCK_B=BLOCK_B,
        BLOCK_LOCS=BLOCK_LOCS,
        num_warps=1,
    )


@checked_launch()
def get_target_cache_loc(
    accept_token_num: Tensor,
    to_free_num_slots: Tensor,
    out_cache_loc: Tensor,
    tgt_cache_loc: Tensor,
    to_free_slots: Tensor,
    num_draft_tokens: int,
) -> None:
    """Part the slots of each tree: those where accepted KV goes, and those that are freed; both ragged.

    Shapes and dtypes: specsim.reference.accepted.get_target_cache_loc. Slots beyond the end of an output are skipped.
    """
    bs = accept_token_num.shape[0]
    if bs == 0:
        return
    _get_target_cache_loc_kernel[(bs,)](
        accept_token_num,
        to_free_num_slots,
        out_cache_loc,
        tgt_cache_loc,
        to_free_slots,
        tgt_cache_loc.shape[0],
        to_free_slots.shape[0],
        NDT=num_draft_tokens,
        BLOCK_B=BLOCK_B,
        BLOCK_N=triton.next_power_of_2(num_draft_tokens),
        num_warps=1,
    )


@checked_launch()
def filter_finished_cache_loc(
    tgt_cache_loc: Tensor, accept_token_num: Tensor, num_accept_tokens_filter: Tensor, out_cache_loc: Tensor
) -> None:
    """Keep the first `num_accept_tokens_filter[b]` slots of each segment.

    Shapes and dtypes: specsim.reference.accepted.filter_finished_cache_loc. Slots beyond the end of either tensor are
    skipped.
    """
    bs = accept_token_num.shape[0]
    if bs == 0:
        return
    _filter_finished_cache_loc_kernel[(bs,)](
        tgt_cache_loc,
        accept_token_num,
        num_accept_tokens_filter,
        out_cache_loc,
        tgt_cache_loc.shape[0],
        out_cache_loc.shape[0],
        BLOCK_B=BLOCK_B,
        BLOCK_LOCS=BLOCK_LOCS,
        num_warps=1,
    )


@checked_launch()
def write_req_to_token_pool(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    prefix_indices: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """Enter a prefill into the page table, in place: the slots of the cached prefix, then the new ones.

    Shapes and dtypes: specsim.reference.accepted.write_req_to_token_pool. Columns beyond the row and slots beyond the
    ragged tensors are skipped. Duplicate rows race.
    """
    bs = req_pool_indices.shape[0]
    if bs == 0:
        return
    pool_len = req_to_token.shape[1]
    _write_req_to_token_pool_kernel[(bs, max(1, min(16, pool_len // 8192)))](
        req_to_token,
        req_pool_indices,
        prefix_indices,
        prefix_lens,
        seq_lens,
        out_cache_loc,
        pool_len,
        prefix_indices.shape[0],
        out_cache_loc.shape[0],
        BLOCK_B=BLOCK_B,
        BLOCK_LOCS=1024,
        num_warps=8,
    )


@checked_launch(topk_p_buf=ANY, topk_p=ANY, hidden_states_buf=ANY, hidden_states=ANY)
def gather_rows(
    indices: Tensor,
    topk_p_buf: Tensor,
    topk_index_buf: Tensor,
    output_tokens_buf: Tensor,
    hidden_states_buf: Tensor,
    topk_p: Tensor,
    topk_index: Tensor,
    bonus_tokens: Tensor,
    hidden_states: Tensor,
) -> None:
    """Pick up what an earlier step stored for each request, one row of each buffer.

    Shapes: specsim.reference.accepted.gather_rows; probabilities and hidden states have any dtype, each that of its
    buffer. An index outside the buffers reads as row 0, the padding row.
    """
    require_same_dtype("topk_p", topk_p, "topk_p_buf", topk_p_buf)
    require_same_dtype("hidden_states", hidden_states, "hidden_states_buf", hidden_states_buf)
    bs, topk = topk_p.shape
    if bs == 0:
        return
    states_buf, states = as_equal_words(hidden_states_buf, hidden_states)
    hidden_size = states.shape[1]
    block_h = block_of(hidden_size, BLOCK_H)
    _gather_rows_kernel[(bs, max(1, triton.cdiv(hidden_size, block_h)))](
        indices,
        topk_p_buf,
        topk_index_buf,
        output_tokens_buf,
        states_buf,
        topk_p,
        topk_index,
        bonus_tokens,
        states,
        topk_p_buf.shape[0],
        TOPK=topk,
        HIDDEN_SIZE=hidden_size,
        BLOCK_K=triton.next_power_of_2(max(1, topk)),
        BLOCK_H=block_h,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_nodes", "num_entries"])
def _gather_accept_tokens_kernel(
    p_predicts, p_accept_index, p_output_token_ids, num_nodes, num_entries, BLOCK_B: tl.constexpr
):
    """One program a block of entries."""
    # [BLOCK_B]
    o_entry = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    m_entry = o_entry < num_entries
    b_node = tl.load(p_accept_index + o_entry, mask=m_entry, other=-1)
    b_token = tl.load(p_predicts + b_node, mask=(b_node >= 0) & (b_node < num_nodes), other=-1)
    tl.store(p_output_token_ids + o_entry, b_token, mask=m_entry)


@triton.jit(do_not_specialize=["num_nodes", "bs"])
def _verify_commit_outputs_kernel(
    p_predict,
    p_accept_index,
    p_accept_lens,
    p_seq_lens,
    p_new_seq_lens,
    p_bonus_tokens,
    num_nodes,
    bs,
    ACCEPT_WIDTH: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """One program a block of requests, a request a lane."""
    # [BLOCK_B]
    o_b = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    m_b = o_b < bs
    b_accept_len = tl.load(p_accept_lens + o_b, mask=m_b, other=0)
    b_bonus = bonus_of(p_predict, p_accept_index, b_accept_len, o_b, num_nodes, ACCEPT_WIDTH)
    b_seq_len = tl.load(p_seq_lens + o_b, mask=m_b, other=0)
    tl.store(p_bonus_tokens + o_b, b_bonus, mask=m_b)
    tl.store(p_new_seq_lens + o_b, b_seq_len + b_accept_len, mask=m_b)


@triton.jit(do_not_specialize=["num_tokens"])
def _create_extend_after_decode_kernel(
    p_accept_tokens,
    p_seq_lens,
    p_accept_lens,
    p_positions,
    p_bonus_tokens,
    num_tokens,
    BLOCK_B: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a request."""
    i_b = tl.program_id(0)
    i_segment = sum_before(p_accept_lens, i_b, 0, BLOCK_B)
    accept_len = tl.load(p_accept_lens + i_b)
    i_position = tl.load(p_seq_lens + i_b) - accept_len
    i_first = 0
    while i_first < accept_len:
        # [BLOCK_LOCS]
        o_token = i_first + tl.arange(0, BLOCK_LOCS)
        m_token = (o_token < accept_len) & (i_segment + o_token < num_tokens)
        tl.store(p_positions + i_segment + o_token, i_position + o_token, mask=m_token)
        i_first += BLOCK_LOCS
    i_last = i_segment + accept_len - 1
    i_bonus = tl.load(p_accept_tokens + i_last, mask=(accept_len >= 1) & (i_last < num_tokens), other=0)
    tl.store(p_bonus_tokens + i_b, i_bonus)


@triton.jit(do_not_specialize=["num_targets", "num_freed"])
def _get_target_cache_loc_kernel(
    p_accept_token_num,
    p_to_free_num_slots,
    p_out_cache_loc,
    p_tgt_cache_loc,
    p_to_free_slots,
    num_targets,
    num_freed,
    NDT: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program a request."""
    i_b = tl.program_id(0)
    i_target = sum_before(p_accept_token_num, i_b, 1, BLOCK_B)
    i_freed = sum_before(p_to_free_num_slots, i_b, 0, BLOCK_B)
    num_kept = tl.load(p_accept_token_num + i_b) + 1
    i_first_freed = NDT - tl.load(p_to_free_num_slots + i_b)
    # [BLOCK_N]
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < NDT
    b_slot = tl.load(p_out_cache_loc + i_b.to(tl.int64) * NDT + o_n, mask=m_n, other=0)
    m_kept = m_n & (o_n < num_kept) & (i_target + o_n < num_targets)
    tl.store(p_tgt_cache_loc + i_target + o_n, b_slot, mask=m_kept)
    o_freed = i_freed + o_n - i_first_freed
    m_freed = m_n & (o_n >= i_first_freed) & (o_freed < num_freed) & (o_freed >= 0)
    tl.store(p_to_free_slots + o_freed, b_slot, mask=m_freed)


@triton.jit(do_not_specialize=["num_targets", "num_kept"])
def _filter_finished_cache_loc_kernel(
    p_tgt_cache_loc,
    p_accept_token_num,
    p_num_accept_tokens_filter,
    p_out_cache_loc,
    num_targets,
    num_kept,
    BLOCK_B: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a request."""
    i_b = tl.program_id(0)
    i_source = sum_before(p_accept_token_num, i_b, 1, BLOCK_B)
    i_target = sum_before(p_num_accept_tokens_filter, i_b, 0, BLOCK_B)
    num_filtered = tl.load(p_num_accept_tokens_filter + i_b)
    i_first = 0
    while i_first < num_filtered:
        # [BLOCK_LOCS]
        o_loc = i_first + tl.arange(0, BLOCK_LOCS)
        m_loc = (o_loc < num_filtered) & (i_source + o_loc < num_targets) & (i_target + o_loc < num_kept)
        b_slot = tl.load(p_tgt_cache_loc + i_source + o_loc, mask=m_loc, other=0)
        tl.store(p_out_cache_loc + i_target + o_loc, b_slot, mask=m_loc)
        i_first += BLOCK_LOCS


@triton.jit(do_not_specialize=["pool_len", "num_prefix", "num_locs"])
def _write_req_to_token_pool_kernel(
    p_req_to_token,
    p_req_pool_indices,
    p_prefix_indices,
    p_prefix_lens,
    p_seq_lens,
    p_out_cache_loc,
    pool_len,
    num_prefix,
    num_locs,
    BLOCK_B: tl.constexpr,
    BLOCK_LOCS: tl.constexpr,
):
    """One program a request and a share of its columns."""
    i_b = tl.program_id(0)
    i_prefix = sum_before(p_prefix_lens, i_b, 0, BLOCK_B)
    i_new = sum_of_differences_before(p_prefix_lens, p_seq_lens, i_b, BLOCK_B)
    prefix_len = tl.load(p_prefix_lens + i_b)
    seq_len = tl.minimum(tl.load(p_seq_lens + i_b), pool_len)
    p_row = p_req_to_token + tl.load(p_req_pool_indices + i_b) * pool_len
    i_first = tl.program_id(1) * BLOCK_LOCS
    while i_first < seq_len:
        # [BLOCK_LOCS]
        o_column = i_first + tl.arange(0, BLOCK_LOCS)
        o_new = i_new + o_column - prefix_len
        m_prefix = (o_column < prefix_len) & (o_column < seq_len) & (i_prefix + o_column < num_prefix)
        m_new = (o_column >= prefix_len) & (o_column < seq_len) & (o_new < num_locs)
        b_prefix = tl.load(p_prefix_indices + i_prefix + o_column, mask=m_prefix, other=0)
        b_new = tl.load(p_out_cache_loc + o_new, mask=m_new, other=0)
        tl.store(p_row + o_column, tl.where(m_prefix, b_prefix, b_new).to(tl.int32), mask=m_prefix | m_new)
        i_first += tl.num_programs(1) * BLOCK_LOCS


@triton.jit(do_not_specialize=["buffer_rows"])
def _gather_rows_kernel(
    p_indices,
    p_topk_p_buf,
    p_topk_index_buf,
    p_output_tokens_buf,
    p_states_buf,
    p_topk_p,
    p_topk_index,
    p_bonus_tokens,
    p_states,
    buffer_rows,
    TOPK: tl.constexpr,
    HIDDEN_SIZE: tl.constexpr,
    BLOCK_K: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a request and a block of columns of the hidden states; the first of a request writes the rest."""
    i_b = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1)
    i_row = tl.load(p_indices + i_b)
    i_row = tl.where((i_row >= 0) & (i_row < buffer_rows), i_row, 0)
    # [BLOCK_H], loaded before anything is stored: stores may not be passed by loads
    o_h = i_h * BLOCK_H + tl.arange(0, BLOCK_H)
    m_h = o_h < HIDDEN_SIZE
    b_state = tl.load(p_states_buf + i_row * HIDDEN_SIZE + o_h, mask=m_h, other=0)
    if i_h == 0:
        # [BLOCK_K]
        o_k = tl.arange(0, BLOCK_K)
        m_k = o_k < TOPK
        tl.store(p_topk_p + i_b * TOPK + o_k, tl.load(p_topk_p_buf + i_row * TOPK + o_k, mask=m_k, other=0), mask=m_k)
        b_index = tl.load(p_topk_index_buf + i_row * TOPK + o_k, mask=m_k, other=0)
        tl.store(p_topk_index + i_b * TOPK + o_k, b_index, mask=m_k)
        tl.store(p_bonus_tokens + i_b, tl.load(p_output_tokens_buf + i_row))
    tl.store(p_states + i_b * HIDDEN_SIZE + o_h, b_state, mask=m_h)
