"""The largest value of a part of a row, and where it is, as one word."""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _load_block(
    p_row,
    i_first,
    i_block,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NAN_IS_HIGHEST: tl.constexpr,
):
    """Block `i_block` of a chunk, -inf beyond the chunk and beyond the row, and where a NaN is the lowest."""
    o_column = i_first + i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    m_inside = (o_column < VOCAB_SIZE) & (i_block < CHUNK // BLOCK_V)
    b_logit = tl.load(p_row + o_column, mask=m_inside, other=float("-inf")).to(tl.float32)
    if not NAN_IS_HIGHEST:
        b_logit = tl.where(b_logit != b_logit, float("-inf"), b_logit)
    return b_logit


@triton.jit(noinline=True)
def _first_nan_of_chunk(p_row, i_first, VOCAB_SIZE: tl.constexpr, CHUNK: tl.constexpr, BLOCK_V: tl.constexpr):
    o_v = tl.arange(0, BLOCK_V)
    b_at = tl.full([BLOCK_V], 0x7FFFFFFF, dtype=tl.int32)
    for i in range(CHUNK // BLOCK_V):
        b_logit = _load_block(p_row, i_first, i, VOCAB_SIZE, CHUNK, BLOCK_V, True)
        b_at = tl.minimum(b_at, tl.where(b_logit != b_logit, i_first + i * BLOCK_V + o_v, 0x7FFFFFFF))
    return tl.min(b_at, axis=0)


@triton.jit
def best_of_chunk(
    p_row,
    i_first,
    VOCAB_SIZE: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NAN_IS_HIGHEST: tl.constexpr,
):
    """The largest logit of `[i_first, i_first + CHUNK)` of a row and its first index, as one word above 0: words
    compare as (logit, earlier index). A NaN is above everything, as in `torch.argmax`, or counts as -inf.
    """
    o_v = tl.arange(0, BLOCK_V)
    # [BLOCK_V]: each lane's best so far and where it was. A lane that has read a NaN keeps it. Each block is loaded
    # before the one ahead of it is used, so that the memory is never idle.
    b_best = _load_block(p_row, i_first, 0, VOCAB_SIZE, CHUNK, BLOCK_V, NAN_IS_HIGHEST)
    b_at = i_first + o_v
    b_next = _load_block(p_row, i_first, 1, VOCAB_SIZE, CHUNK, BLOCK_V, NAN_IS_HIGHEST)
    for i in range(1, CHUNK // BLOCK_V):
        b_logit = b_next
        b_next = _load_block(p_row, i_first, i + 1, VOCAB_SIZE, CHUNK, BLOCK_V, NAN_IS_HIGHEST)
        b_at = tl.where(b_logit > b_best, i_first + i * BLOCK_V + o_v, b_at)
        b_best = tl.maximum(b_best, b_logit, propagate_nan=tl.PropagateNan.ALL)
    i_nan = tl.full([], 0x7FFFFFFF, dtype=tl.int32)
    if NAN_IS_HIGHEST:  # noqa: SIM102 - Triton takes constant conditions by themselves
        if tl.max((b_best != b_best).to(tl.int32), axis=0) > 0:
            i_nan = _first_nan_of_chunk(p_row, i_first, VOCAB_SIZE, CHUNK, BLOCK_V)
    # As integers that compare as the floats do: zeros of both signs are one.
    b_bits = tl.where(b_best == 0, 0.0, b_best).to(tl.int32, bitcast=True)
    b_key = (b_bits ^ ((b_bits >> 31) & 0x7FFFFFFF)).to(tl.int64) + 2**31
    i_word = tl.max((b_key << 31) | (0x7FFFFFFF - b_at).to(tl.int64), axis=0)
    i_nan_word = (tl.full([], 0xFFFFFFFF, dtype=tl.int64) << 31) | (0x7FFFFFFF - i_nan).to(tl.int64)
    return tl.where(i_nan < 0x7FFFFFFF, i_nan_word, i_word)


@triton.jit
def token_of(b_word):
    return 0x7FFFFFFF - (b_word & 0x7FFFFFFF)
