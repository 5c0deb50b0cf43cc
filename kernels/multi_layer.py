"""Drafts by several layers: windows that rotate, and what is remembered in front of them.

What bounds them: a launch each, and the bytes of hidden states, which are moved as wide words in blocks of columns.
Where rows of one buffer take the place of others, a program reads what it writes to, waits at a barrier, and writes.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import ANY, as_equal_words, block_of, checked_launch, require_same_dtype

__all__ = [
    "assign_hidden_states_pool",
    "assign_new_state",
    "fill_widened_draft_extend_inputs",
    "rotate_input_ids",
    "stash_append_boundary_state",
]

BLOCK_T = 1024
BLOCK_H = 1024
FRONT_MAX = 64
"""Places of a stash that a program holds in registers, with 64 columns of their hidden states."""


@checked_launch()
def rotate_input_ids(
    input_ids: Tensor, extend_start_loc: Tensor, extend_seq_lens: Tensor, topk_index: Tensor, select_index: Tensor
) -> None:
    """Move the tokens of each segment one place to the left, in place, and put a new token into the selected row.

    Shapes and dtypes: specsim.reference.multi_layer.rotate_input_ids. Rows outside the tensor are skipped.
    """
    bs = extend_start_loc.shape[0]
    if bs == 0:
        return
    _rotate_input_ids_kernel[(bs,)](
        input_ids,
        extend_start_loc,
        extend_seq_lens,
        topk_index,
        select_index,
        input_ids.shape[0],
        BLOCK_T=BLOCK_T,
        num_warps=4,
    )


@checked_launch(hidden_states=ANY, req_to_hidden_states_pool=ANY)
def assign_hidden_states_pool(
    hidden_states: Tensor,
    req_pool_indices: Tensor,
    req_to_hidden_states_pool: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
) -> None:
    """Remember the last hidden states of each segment, zeros before a short one, in place.

    Shapes: specsim.reference.multi_layer.assign_hidden_states_pool; hidden states have any dtype. Duplicate rows race.
    """
    require_same_dtype("req_to_hidden_states_pool", req_to_hidden_states_pool, "hidden_states", hidden_states)
    bs = req_pool_indices.shape[0]
    pool_rows, pool_size, hidden_size = req_to_hidden_states_pool.shape
    if bs == 0 or pool_size == 0:
        return
    states, pool = as_equal_words(hidden_states, req_to_hidden_states_pool.view(pool_rows * pool_size, hidden_size))
    hidden_words = states.shape[1]
    block_h = block_of(hidden_words, BLOCK_H)
    _assign_hidden_states_pool_kernel[(bs, max(1, triton.cdiv(hidden_words, block_h)))](
        states,
        req_pool_indices,
        pool,
        extend_seq_lens,
        extend_start_loc,
        states.shape[0],
        POOL_SIZE=pool_size,
        HIDDEN=hidden_words,
        BLOCK_H=block_h,
        num_warps=4,
    )


@checked_launch(old_hidden_states=ANY, req_to_hidden_states_pool=ANY, hidden_states=ANY)
def assign_new_state(
    next_token_ids: Tensor,
    old_input_ids: Tensor,
    old_positions: Tensor,
    old_hidden_states: Tensor,
    old_out_cache_loc: Tensor,
    old_extend_seq_lens: Tensor,
    old_extend_start_loc: Tensor,
    seq_lens: Tensor,
    padding_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    req_to_hidden_states_pool: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    hidden_states: Tensor,
    out_cache_loc: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
    step: int,
) -> None:
    """Write the next layer's window, which begins one position earlier.

    Shapes: specsim.reference.multi_layer.assign_new_state; hidden states have any dtype. Rows of no request are
    written as 0: each request has those before its segment, the last one those behind it. Raises ValueError for a step
    outside the pool.
    """
    bs = seq_lens.shape[0]
    num_old, num_new = old_input_ids.shape[0], input_ids.shape[0]
    pool_rows, pool_size, hidden_size = req_to_hidden_states_pool.shape
    require_same_dtype("req_to_hidden_states_pool", req_to_hidden_states_pool, "old_hidden_states", old_hidden_states)
    require_same_dtype("hidden_states", hidden_states, "old_hidden_states", old_hidden_states)
    if not 0 <= step < pool_size:
        raise ValueError(f"step is {step}; allowed: 0 to {pool_size - 1}")
    if bs == 0:
        return
    pool = req_to_hidden_states_pool.view(pool_rows * pool_size, hidden_size)
    old_states, states, pool = as_equal_words(old_hidden_states, hidden_states, pool)
    hidden_words = states.shape[1]
    block_h = block_of(hidden_words, 256)
    _assign_new_state_kernel[(bs, 1 + triton.cdiv(hidden_words, block_h))](
        next_token_ids,
        old_input_ids,
        old_positions,
        old_states,
        old_out_cache_loc,
        old_extend_seq_lens,
        old_extend_start_loc,
        seq_lens,
        padding_lens,
        req_pool_indices,
        req_to_token,
        pool,
        input_ids,
        positions,
        states,
        out_cache_loc,
        extend_seq_lens,
        extend_start_loc,
        step,
        num_old,
        num_new,
        req_to_token.shape[1],
        bs,
        POOL_SIZE=pool_size,
        HIDDEN=hidden_words,
        BLOCK_R=16,
        BLOCK_H=block_h,
        num_warps=4,
    )


@checked_launch(src_hiddens=ANY, stash_hiddens=ANY)
def stash_append_boundary_state(
    src_tokens: Tensor,
    src_hiddens: Tensor,
    src_row_ends: Tensor,
    num_available: Tensor,
    req_pool_indices: Tensor,
    stash_tokens: Tensor,
    stash_hiddens: Tensor,
    stash_valid_lens: Tensor,
    set_valid: int,
) -> None:
    """Roll each request's stash forward over new certain rows, in place.

    Shapes: specsim.reference.multi_layer.stash_append_boundary_state; hidden states have any dtype. Duplicate rows
    race. Raises ValueError for a stash of more than 64 places.
    """
    require_same_dtype("stash_hiddens", stash_hiddens, "src_hiddens", src_hiddens)
    bs = req_pool_indices.shape[0]
    pool_rows, front, hidden_size = stash_hiddens.shape
    if front > FRONT_MAX:
        raise ValueError(f"front, the places of stash_tokens, is {front}; allowed: at most {FRONT_MAX}")
    if set_valid not in (0, 1):
        raise ValueError(f"set_valid is {set_valid}; allowed: 0 or 1")
    if bs == 0:
        return
    source, stash = as_equal_words(src_hiddens, stash_hiddens.view(pool_rows * front, hidden_size))
    hidden_words = source.shape[1]
    block_f = triton.next_power_of_2(max(1, front))
    block_h = block_of(hidden_words, max(64, 1024 // block_f))
    _stash_append_kernel[(bs, 1 + triton.cdiv(hidden_words, block_h))](
        src_tokens,
        source,
        src_row_ends,
        num_available,
        req_pool_indices,
        stash_tokens,
        stash,
        stash_valid_lens,
        src_tokens.shape[0],
        SET_VALID=set_valid,
        FRONT=front,
        HIDDEN=hidden_words,
        BLOCK_F=block_f,
        BLOCK_H=block_h,
        num_warps=4,
    )


@checked_launch(verify_hiddens=ANY, stash_hiddens=ANY, hidden_states=ANY)
def fill_widened_draft_extend_inputs(
    predict: Tensor,
    verify_hiddens: Tensor,
    stash_tokens: Tensor,
    stash_hiddens: Tensor,
    stash_valid_lens: Tensor,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    input_ids: Tensor,
    hidden_states: Tensor,
    num_draft_tokens: int,
) -> None:
    """Put the stash in front of the verified nodes; rows that it does not hold are 0.

    Shapes: specsim.reference.multi_layer.fill_widened_draft_extend_inputs; hidden states have any dtype.
    """
    bs = seq_lens.shape[0]
    pool_rows, front, hidden_size = stash_hiddens.shape
    width = front + num_draft_tokens
    require_same_dtype("stash_hiddens", stash_hiddens, "verify_hiddens", verify_hiddens)
    require_same_dtype("hidden_states", hidden_states, "verify_hiddens", verify_hiddens)
    if bs == 0:
        return
    stash = stash_hiddens.view(pool_rows * front, hidden_size)
    verified, stash, states = as_equal_words(verify_hiddens, stash, hidden_states)
    hidden_words = states.shape[1]
    block_h = block_of(hidden_words, BLOCK_H)
    _fill_widened_kernel[(bs * width, max(1, triton.cdiv(hidden_words, block_h)))](
        predict,
        verified,
        stash_tokens,
        stash,
        stash_valid_lens,
        seq_lens,
        req_pool_indices,
        input_ids,
        states,
        FRONT=front,
        NDT=num_draft_tokens,
        HIDDEN=hidden_words,
        BLOCK_H=block_h,
        num_warps=4,
    )


@triton.jit(do_not_specialize=["num_tokens"])
def _rotate_input_ids_kernel(
    p_input_ids, p_extend_start_loc, p_extend_seq_lens, p_topk_index, p_select_index, num_tokens, BLOCK_T: tl.constexpr
):
    """One program a segment. A block is read whole before it is written, and no block reads what one before it wrote:
    it begins one token further on.
    """
    i_b = tl.program_id(0)
    i_start = tl.load(p_extend_start_loc + i_b).to(tl.int64)
    num_rows = tl.load(p_extend_seq_lens + i_b)
    i_selected = tl.load(p_select_index + i_b)
    i_token = tl.load(p_topk_index + i_b)
    i_first = 0
    while i_first < num_rows:
        # [BLOCK_T]
        o_t = i_first + tl.arange(0, BLOCK_T)
        o_row = i_start + o_t
        m_moved = (o_t < num_rows - 1) & (o_row >= 0) & (o_row + 1 < num_tokens)
        b_token = tl.load(p_input_ids + o_row + 1, mask=m_moved, other=0)
        m_new = (o_row == i_selected) & (o_t < num_rows) & (o_row >= 0) & (o_row < num_tokens)
        tl.debug_barrier()
        tl.store(p_input_ids + o_row, tl.where(m_new, i_token, b_token), mask=m_moved | m_new)
        i_first += BLOCK_T


@triton.jit(do_not_specialize=["num_tokens"])
def _assign_hidden_states_pool_kernel(
    p_states,
    p_req_pool_indices,
    p_pool,
    p_extend_seq_lens,
    p_extend_start_loc,
    num_tokens,
    POOL_SIZE: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a request and a block of columns."""
    i_b = tl.program_id(0)
    # [BLOCK_H]
    o_h = tl.program_id(1) * BLOCK_H + tl.arange(0, BLOCK_H)
    i_start = tl.load(p_extend_start_loc + i_b).to(tl.int64)
    num_rows = tl.load(p_extend_seq_lens + i_b)
    i_pool = tl.load(p_req_pool_indices + i_b) * POOL_SIZE
    for i_place in range(POOL_SIZE):
        i_within = num_rows - POOL_SIZE + i_place
        i_row = i_start + i_within
        len_row = tl.where((i_within >= 0) & (i_row >= 0) & (i_row < num_tokens), HIDDEN, 0)
        b_state = tl.load(p_states + i_row * HIDDEN + o_h, mask=o_h < len_row, other=0)
        tl.store(p_pool + (i_pool + i_place) * HIDDEN + o_h, b_state, mask=o_h < HIDDEN)


@triton.jit(do_not_specialize=["step", "num_old", "num_new", "pool_len", "bs"])
def _assign_new_state_kernel(
    p_next_token_ids,
    p_old_input_ids,
    p_old_positions,
    p_old_states,
    p_old_out_cache_loc,
    p_old_extend_seq_lens,
    p_old_extend_start_loc,
    p_seq_lens,
    p_padding_lens,
    p_req_pool_indices,
    p_req_to_token,
    p_pool,
    p_input_ids,
    p_positions,
    p_states,
    p_out_cache_loc,
    p_extend_seq_lens,
    p_extend_start_loc,
    step,
    num_old,
    num_new,
    pool_len,
    bs,
    POOL_SIZE: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a request for the numbers, and one for each block of columns of its hidden states.

    A request writes from the end of the segment before it to the end of its own; the last one to the end.
    """
    i_b = tl.program_id(0)
    i_h = tl.program_id(1) - 1
    i_old_start = tl.load(p_old_extend_start_loc + i_b)
    old_len = tl.load(p_old_extend_seq_lens + i_b)
    m_before = i_b > 0
    i_before = tl.load(p_old_extend_start_loc + i_b - 1, mask=m_before, other=0)
    i_before += tl.load(p_old_extend_seq_lens + i_b - 1, mask=m_before, other=0)
    i_first = i_before + i_b
    i_start = i_old_start + i_b
    i_last = i_start + old_len
    i_end = tl.where(i_b == bs - 1, num_new, tl.minimum(i_last + 1, num_new))
    seq_len = tl.load(p_seq_lens + i_b)
    i_pool_row = tl.load(p_req_pool_indices + i_b)
    if i_h < 0:
        i_column = seq_len - old_len - 1
        m_slot = (i_column >= 0) & (i_column < pool_len)
        i_slot = tl.load(p_req_to_token + i_pool_row * pool_len + i_column, mask=m_slot, other=0).to(tl.int64)
        m_old = (i_old_start >= 0) & (i_old_start < num_old)
        i_position = tl.maximum(tl.load(p_old_positions + i_old_start, mask=m_old, other=0) - 1, 0)
        i_selected = i_last - tl.load(p_padding_lens + i_b)
        i_token = tl.load(p_next_token_ids + i_b)
        tl.store(p_extend_seq_lens + i_b, old_len + 1)
        tl.store(p_extend_start_loc + i_b, i_start)
        while i_first < i_end:
            # [BLOCK_R]
            o_new = i_first + tl.arange(0, BLOCK_R)
            m_new = o_new < i_end
            m_own = m_new & (o_new >= i_start) & (o_new <= i_last)
            o_old = o_new - i_b
            m_kept = m_own & (o_new < i_last) & (o_old < num_old)
            b_id = tl.load(p_old_input_ids + o_old, mask=m_kept, other=0)
            m_moved = m_own & (o_new > i_start) & (o_old - 1 < num_old)
            b_position = tl.load(p_old_positions + o_old - 1, mask=m_moved, other=0)
            b_slot = tl.load(p_old_out_cache_loc + o_old - 1, mask=m_moved, other=0)
            m_first = o_new == i_start
            tl.store(p_input_ids + o_new, tl.where(m_own & (o_new == i_selected), i_token, b_id), mask=m_new)
            tl.store(p_positions + o_new, tl.where(m_first, i_position, b_position), mask=m_new)
            tl.store(p_out_cache_loc + o_new, tl.where(m_first, i_slot, b_slot), mask=m_new)
            i_first += BLOCK_R
    else:
        # [BLOCK_H]
        o_h = i_h * BLOCK_H + tl.arange(0, BLOCK_H)
        p_remembered = p_pool + (i_pool_row * POOL_SIZE + POOL_SIZE - 1 - step) * HIDDEN
        b_remembered = tl.load(p_remembered + o_h, mask=o_h < HIDDEN, other=0)
        while i_first < i_end:
            # [BLOCK_R, BLOCK_H]
            o_new = i_first + tl.arange(0, BLOCK_R).to(tl.int64)
            m_moved = (o_new > i_start) & (o_new <= i_last) & (o_new < i_end) & (o_new - i_b - 1 < num_old)
            m_state = m_moved[:, None] & (o_h < HIDDEN)[None, :]
            b_state = tl.load(p_old_states + (o_new - i_b - 1)[:, None] * HIDDEN + o_h[None, :], mask=m_state, other=0)
            b_state = tl.where((o_new == i_start)[:, None], b_remembered[None, :], b_state)
            m_new = (o_new < i_end)[:, None] & (o_h < HIDDEN)[None, :]
            tl.store(p_states + o_new[:, None] * HIDDEN + o_h[None, :], b_state, mask=m_new)
            i_first += BLOCK_R


@triton.jit(do_not_specialize=["num_rows"])
def _stash_append_kernel(
    p_src_tokens,
    p_source,
    p_src_row_ends,
    p_num_available,
    p_req_pool_indices,
    p_stash_tokens,
    p_stash,
    p_stash_valid_lens,
    num_rows,
    SET_VALID: tl.constexpr,
    FRONT: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_F: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a request for the tokens, and one for each block of columns of its hidden states."""
    i_b = tl.program_id(0)
    i_h = tl.program_id(1) - 1
    i_pool_row = tl.load(p_req_pool_indices + i_b)
    i_stash = i_pool_row * FRONT
    num_taken = tl.minimum(tl.maximum(tl.load(p_num_available + i_b), 0), FRONT)
    # [BLOCK_F]
    o_f = tl.arange(0, BLOCK_F).to(tl.int64)
    m_f = o_f < FRONT
    m_fresh = m_f & (o_f >= FRONT - num_taken)
    m_kept = m_f & (o_f < FRONT - num_taken)
    o_source = tl.load(p_src_row_ends + i_b) - FRONT + o_f
    m_fresh = m_fresh & (o_source >= 0) & (o_source < num_rows)
    if i_h < 0:
        b_fresh = tl.load(p_src_tokens + o_source, mask=m_fresh, other=0)
        b_kept = tl.load(p_stash_tokens + i_stash + o_f + num_taken, mask=m_kept, other=0)
        valid_len = num_taken
        if SET_VALID == 0:
            valid_len = tl.minimum(num_taken + tl.load(p_stash_valid_lens + i_pool_row), FRONT)
        tl.debug_barrier()
        tl.store(p_stash_tokens + i_stash + o_f, tl.where(m_kept, b_kept, b_fresh), mask=m_f)
        tl.store(p_stash_valid_lens + i_pool_row, valid_len)
    else:
        # [BLOCK_F, BLOCK_H]
        o_h = (i_h * BLOCK_H + tl.arange(0, BLOCK_H))[None, :]
        m_h = o_h < HIDDEN
        b_new_state = tl.load(p_source + o_source[:, None] * HIDDEN + o_h, mask=m_fresh[:, None] & m_h, other=0)
        o_kept = i_stash + o_f + num_taken
        b_kept_state = tl.load(p_stash + o_kept[:, None] * HIDDEN + o_h, mask=m_kept[:, None] & m_h, other=0)
        tl.debug_barrier()
        b_state = tl.where(m_kept[:, None], b_kept_state, b_new_state)
        tl.store(p_stash + (i_stash + o_f)[:, None] * HIDDEN + o_h, b_state, mask=m_f[:, None] & m_h)


@triton.jit
def _fill_widened_kernel(
    p_predict,
    p_verified,
    p_stash_tokens,
    p_stash,
    p_stash_valid_lens,
    p_seq_lens,
    p_req_pool_indices,
    p_input_ids,
    p_states,
    FRONT: tl.constexpr,
    NDT: tl.constexpr,
    HIDDEN: tl.constexpr,
    BLOCK_H: tl.constexpr,
):
    """One program a row of a window and a block of columns; the first of a row writes its token."""
    i_row = tl.program_id(0).to(tl.int64)
    i_h = tl.program_id(1)
    i_b = i_row // (FRONT + NDT)
    i_place = i_row % (FRONT + NDT)
    i_pool_row = tl.load(p_req_pool_indices + i_b)
    num_held = tl.minimum(tl.load(p_stash_valid_lens + i_pool_row), tl.load(p_seq_lens + i_b))
    is_node = i_place >= FRONT
    is_held = (~is_node) & (i_place >= FRONT - num_held)
    i_node = i_b * NDT + i_place - FRONT
    i_stash = i_pool_row * FRONT + i_place
    if i_h == 0:
        i_verified = tl.load(p_predict + i_node, mask=is_node, other=0).to(tl.int64)
        tl.store(p_input_ids + i_row, i_verified + tl.load(p_stash_tokens + i_stash, mask=is_held, other=0))
    # [BLOCK_H]
    o_h = i_h * BLOCK_H + tl.arange(0, BLOCK_H)
    b_node = tl.load(p_verified + i_node * HIDDEN + o_h, mask=o_h < tl.where(is_node, HIDDEN, 0), other=0)
    b_held = tl.load(p_stash + i_stash * HIDDEN + o_h, mask=o_h < tl.where(is_held, HIDDEN, 0), other=0)
    tl.store(p_states + i_row * HIDDEN + o_h, tl.where(is_node, b_node, b_held), mask=o_h < HIDDEN)
