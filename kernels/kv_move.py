"""KV that moves to other slots of its buffer. What bounds it: the bytes that move, once read and once written."""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from specsim.kernels.launch import ANY, as_words, block_of, operation

if TYPE_CHECKING:
    from torch import Tensor

NUM_MOVES_MAX = 4096
"""Rows that one program can hold of 16 bytes each; more are gathered into a second buffer first."""

TILE_BYTES = 64 * 1024
"""Of KV that a program holds in registers between reading and writing."""


@operation(buffer=ANY)
def move_kv(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    """Copy rows of a KV buffer to other slots, as if every row were read before any is written.

    Shapes and dtypes: specsim.reference.kv.move_kv. Moves of a slot onto itself and slots outside the buffer are
    skipped.

    Safe for overlapping ranges by construction: a program owns some columns of all rows that move, reads them all,
    meets a barrier, and writes. More than `NUM_MOVES_MAX` rows, which do not fit a program, are gathered into a second
    buffer first: two launches and an allocation of the moves' size.
    """
    num_moves = target.shape[0]
    words = as_words(buffer)
    num_slots, row_words = words.shape
    if num_moves == 0 or row_words == 0:
        return
    if num_moves > NUM_MOVES_MAX:
        staged = words.new_empty((num_moves, row_words))
        _move_through_a_buffer(words, target, source, staged)
        return
    block_m = next(most for most in (64, 256, 1024, NUM_MOVES_MAX) if num_moves <= most)
    block_w = block_of(row_words, max(1, TILE_BYTES // (block_m * words.itemsize)))
    _move_kv_kernel[(triton.cdiv(row_words, block_w),)](
        words,
        target,
        source,
        num_slots,
        num_moves,
        ROW_WORDS=row_words,
        BLOCK_M=block_m,
        BLOCK_W=block_w,
        num_warps=8,
    )


def _move_through_a_buffer(words: Tensor, target: Tensor, source: Tensor, staged: Tensor) -> None:
    num_moves, row_words = staged.shape
    block_w = block_of(row_words, 512)
    grid = (triton.cdiv(num_moves, 16), triton.cdiv(row_words, block_w))
    for is_gather in (True, False):
        _stage_kv_kernel[grid](
            words,
            target,
            source,
            staged,
            words.shape[0],
            num_moves,
            ROW_WORDS=row_words,
            IS_GATHER=is_gather,
            BLOCK_M=16,
            BLOCK_W=block_w,
            num_warps=4,
        )


@triton.jit(do_not_specialize=["num_slots", "num_moves"])
def _move_kv_kernel(
    p_words,
    p_target,
    p_source,
    num_slots,
    num_moves,
    ROW_WORDS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One program a block of columns, for all moves: read everything, meet, write everything."""
    # [BLOCK_M]
    o_m = tl.arange(0, BLOCK_M)
    b_target = tl.load(p_target + o_m, mask=o_m < num_moves, other=0)
    b_source = tl.load(p_source + o_m, mask=o_m < num_moves, other=0)
    m_move = (b_target != b_source) & (b_target >= 0) & (b_target < num_slots)
    m_move = m_move & (b_source >= 0) & (b_source < num_slots)
    # [BLOCK_M, BLOCK_W]
    o_w = tl.program_id(0) * BLOCK_W + tl.arange(0, BLOCK_W)
    m_tile = m_move[:, None] & (o_w < ROW_WORDS)[None, :]
    b_tile = tl.load(p_words + b_source[:, None] * ROW_WORDS + o_w[None, :], mask=m_tile, other=0)
    tl.debug_barrier()
    tl.store(p_words + b_target[:, None] * ROW_WORDS + o_w[None, :], b_tile, mask=m_tile)


@triton.jit(do_not_specialize=["num_slots", "num_moves"])
def _stage_kv_kernel(
    p_words,
    p_target,
    p_source,
    p_staged,
    num_slots,
    num_moves,
    ROW_WORDS: tl.constexpr,
    IS_GATHER: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Sources to the second buffer, or the second buffer to the targets; one program a block of moves and columns."""
    # [BLOCK_M]
    o_m = tl.program_id(0).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    b_target = tl.load(p_target + o_m, mask=o_m < num_moves, other=0)
    b_source = tl.load(p_source + o_m, mask=o_m < num_moves, other=0)
    m_move = (b_target != b_source) & (b_target >= 0) & (b_target < num_slots)
    m_move = m_move & (b_source >= 0) & (b_source < num_slots)
    # [BLOCK_M, BLOCK_W]
    o_w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    m_tile = m_move[:, None] & (o_w < ROW_WORDS)[None, :]
    p_of_staged = p_staged + o_m[:, None] * ROW_WORDS + o_w[None, :]
    if IS_GATHER:
        b_tile = tl.load(p_words + b_source[:, None] * ROW_WORDS + o_w[None, :], mask=m_tile, other=0)
        tl.store(p_of_staged, b_tile, mask=m_tile)
    else:
        b_tile = tl.load(p_of_staged, mask=m_tile, other=0)
        tl.store(p_words + b_target[:, None] * ROW_WORDS + o_w[None, :], b_tile, mask=m_tile)
