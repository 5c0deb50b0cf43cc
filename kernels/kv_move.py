"""KV that moves to other slots of its buffer. What bounds it: the bytes that move, once read and once written.

A move is safe for overlapping ranges by construction: a program owns some columns of one buffer in all rows that move,
reads them all, meets a barrier, and writes. So nothing is read after it was written, whatever the moves are, and no
byte is moved twice. A program holds up to `TILE_BYTES`, which it loads before it waits for any of them; the columns
are cut until a launch has `PROGRAMS_WANTED` programs, which is two for each multiprocessor of a large GPU, but never
below the 64 bytes that memory delivers at once.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import (
    ANY,
    as_equal_words,
    as_words,
    block_of,
    operation,
    require_contract,
    require_launchable,
    require_size,
)
from specsim.ops.registry import OPS

if TYPE_CHECKING:
    from collections.abc import Sequence

NUM_MOVES_MAX = 8192
"""Rows that one program can hold, of 16 bytes each; more are gathered into a second buffer first."""

TILE_BYTES = 64 * 1024
"""Of KV that a program holds in registers between reading and writing; where that leaves less than a sector of memory
for each of many rows, twice as much."""

SECTOR_BYTES = 32

PROGRAMS_WANTED = 256
COLUMN_BYTES_MIN = 64


class KvBuffers(NamedTuple):
    """The KV buffers of a pool, as `kv_buffers` makes them: all layers, keys and values, each with a row a slot.

    words      each as [num_slots, row_words], of the widest integers that fit all of them
    addresses  [num_buffers] int64, of the first word of each
    """

    words: tuple[Tensor, ...]
    addresses: Tensor


def kv_buffers(buffers: Sequence[Tensor]) -> KvBuffers:
    """What `move_kv_of_buffers` needs to know of buffers that stay where they are. Made once, before any capture: it
    copies their addresses to the device.

    buffers  each [num_slots, ...] of any dtype, contiguous, with rows equally long, on one device; at least one

    Raises ValueError for buffers that differ in slots, bytes a row or device, or are not contiguous.
    """
    if not buffers:
        raise ValueError("buffers is empty; allowed: one tensor or more")
    first = buffers[0]
    require_launchable(**{f"buffers[{i}]": buffer for i, buffer in enumerate(buffers)})
    for i, buffer in enumerate(buffers):
        require_size(f"buffers[{i}]", "num_slots", buffer.shape[0], first.shape[0])
        require_size(f"buffers[{i}]", "bytes", buffer.nbytes, first.nbytes)
    addresses = torch.tensor([buffer.data_ptr() for buffer in buffers], dtype=torch.int64, device=first.device)
    return KvBuffers(tuple(as_equal_words(*buffers)), addresses)


@operation(buffer=ANY)
def move_kv(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    """Copy rows of a KV buffer to other slots, as if every row were read before any is written.

    Shapes and dtypes: specsim.reference.kv.move_kv. Moves of a slot onto itself and slots outside the buffer are
    skipped.

    Compiles once for each power of two of moves from 32 on. More than `NUM_MOVES_MAX` rows, which do not fit a
    program, are gathered into a second buffer first: two launches and an allocation of the moves' size.
    """
    _move((as_words(buffer),), None, target, source)


def move_kv_of_buffers(buffers: KvBuffers, target: Tensor, source: Tensor) -> None:
    """`move_kv` of the same slots in every buffer of a pool, in one launch; two a buffer above `NUM_MOVES_MAX` moves.

    target  [num_moves] int64
    source  [num_moves] int64

    Raises ValueError for moves of another dtype, shape or device.
    """
    arguments = {"buffer": buffers.words[0], "target": target, "source": source}
    require_contract(OPS["move_kv"].args, arguments, {"buffer": ANY})
    _move(buffers.words, buffers.addresses, target, source)


def _move(words: tuple[Tensor, ...], addresses: Tensor | None, target: Tensor, source: Tensor) -> None:
    num_moves = target.shape[0]
    num_slots, row_words = words[0].shape
    if num_moves == 0 or row_words == 0:
        return
    if num_moves > NUM_MOVES_MAX:
        staged = words[0].new_empty((num_moves, row_words))
        for buffer in words:
            _move_through_a_buffer(buffer, target, source, staged)
        return
    word_bytes = words[0].itemsize
    block_m = max(32, block_of(num_moves, NUM_MOVES_MAX))
    block_w = _columns(len(words), row_words, block_m, word_bytes)
    _move_kv_kernel[(triton.cdiv(row_words, block_w), len(words))](
        words[0],
        target if addresses is None else addresses,  # without addresses the argument is never used
        target,
        source,
        num_slots,
        num_moves,
        ROW_WORDS=row_words,
        HAS_ADDRESSES=addresses is not None,
        ALIGNED=16 if all(buffer.data_ptr() % 16 == 0 for buffer in words) else word_bytes,
        BLOCK_M=block_m,
        BLOCK_W=block_w,
        num_warps=_warps(block_m * block_w * word_bytes),
    )


def _warps(tile_bytes: int) -> int:
    if tile_bytes > TILE_BYTES:
        return 16
    return 8 if tile_bytes >= TILE_BYTES // 2 else 4


def _columns(num_buffers: int, row_words: int, block_m: int, word_bytes: int) -> int:
    """Words of a row that a program moves."""
    column_bytes = max(TILE_BYTES // block_m, min(SECTOR_BYTES, 2 * TILE_BYTES // block_m))
    block_w = block_of(row_words, max(1, column_bytes // word_bytes))
    while block_w * word_bytes > COLUMN_BYTES_MIN and num_buffers * triton.cdiv(row_words, block_w) < PROGRAMS_WANTED:
        block_w //= 2
    return block_w


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
    p_addresses,
    p_target,
    p_source,
    num_slots,
    num_moves,
    ROW_WORDS: tl.constexpr,
    HAS_ADDRESSES: tl.constexpr,
    ALIGNED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One program a buffer and block of columns, for all moves: read everything, meet, write everything."""
    if HAS_ADDRESSES:
        p_words = tl.multiple_of(tl.load(p_addresses + tl.program_id(1)).to(p_words.dtype), ALIGNED)
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
