"""KV that moves to other slots of its buffer. What bounds it: the bytes that move, once read and once written.

A move is safe for overlapping ranges by construction: the programs that own some columns of one buffer, in all rows
that move, read them all, wait at a barrier, and write. So nothing is read after it was written, whatever the moves are,
and no byte is moved twice. A program holds up to `TILE_BYTES`, which it loads before it waits for any of them. Few rows
are owned by one program, whose columns are cut until a launch has `PROGRAMS_WANTED` of them. Many are shared by
several, so that each moves `SHARED_COLUMN_BYTES` of a row at once; their barrier is in memory, which a cooperative
launch allows, and they own one block of columns after the other.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.contracts.registry import OPS
from specsim.kernels.launch import (
    ANY,
    ContractCheck,
    as_equal_words,
    as_words,
    block_of,
    checked_launch,
    require_launchable,
    require_size,
)
from specsim.kernels.scratch import scratch_of
from specsim.kernels.verify_logits import num_sms_of

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["kv_buffers", "move_kv", "move_kv_of_buffers"]

TILE_BYTES = 64 * 1024
"""Of KV that a program that owns all rows holds in registers between reading and writing."""

SHARED_TILE_BYTES = 32 * 1024
"""Of KV that one of several programs holds."""

SHARED_NUM_WARPS = 8

PROGRAMS_WANTED = 256
PROGRAMS_PER_SM = 3
REGISTERS = 80
COLUMN_BYTES_MIN = 64
ROWS_ALONE = 256
"""Rows that one program moves without help; up to four times as many where all are `BYTES_ALONE`, for which a grid
barrier takes longer than narrow columns do."""

BYTES_ALONE = 8 << 20

SHARED_COLUMN_BYTES = 256
SECTOR_BYTES = 32
BLOCK_M_MIN = 32
HEAD = tl.constexpr(16)  # words of a group of programs that share a barrier: a line of memory of its own

_check_moves = ContractCheck(OPS["move_kv"].args, OPS["move_kv"].sizes, {"buffer": ANY})


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


@checked_launch(buffer=ANY)
def move_kv(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    """Copy rows of a KV buffer to other slots, as if every row were read before any is written.

    Shapes and dtypes: specsim.reference.kv.move_kv. Moves of a slot onto itself and slots outside the buffer are
    skipped.

    Compiles once for each power of two of moves from 32 to where programs share them, and once for more. Rows that no
    number of programs on the device can hold, some hundred thousand, are gathered into a second buffer first: two
    launches and an allocation of the moves' size.
    """
    _move((as_words(buffer),), None, target, source)


def move_kv_of_buffers(buffers: KvBuffers, target: Tensor, source: Tensor) -> None:
    """`move_kv` of the same slots in every buffer of a pool, in one launch; two a buffer where `move_kv` takes two.

    target  [num_moves] int64
    source  [num_moves] int64

    Raises ValueError for moves of another dtype, shape or device.
    """
    _check_moves({"buffer": buffers.words[0], "target": target, "source": source})
    _move(buffers.words, buffers.addresses, target, source)


def _move(words: tuple[Tensor, ...], addresses: Tensor | None, target: Tensor, source: Tensor) -> None:
    num_moves = target.shape[0]
    num_slots, row_words = words[0].shape
    if num_moves == 0 or row_words == 0:
        return
    word_bytes = words[0].itemsize
    plan = _plan(num_moves, len(words), row_words, word_bytes, _programs_at_once(target.device))
    if plan is None:
        staged = words[0].new_empty((num_moves, row_words))
        for buffer in words:
            _move_through_a_buffer(buffer, target, source, staged)
        return
    is_shared = plan.num_members > 1
    tuned = {"launch_cooperative_grid": True, "maxnreg": REGISTERS} if is_shared else {}
    _move_kv_kernel[(plan.num_groups * plan.num_members,)](
        words[0],
        target if addresses is None else addresses,  # without addresses the argument is never used
        target,
        source,
        scratch_of("move_kv heads", target.device, plan.num_groups * HEAD.value) if is_shared else target,
        num_slots,
        num_moves,
        len(words) * triton.cdiv(row_words, plan.block_w),
        plan.num_groups,
        plan.num_members,
        ROW_WORDS=row_words,
        HAS_ADDRESSES=addresses is not None,
        ALIGNED=16 if all(buffer.data_ptr() % 16 == 0 for buffer in words) else word_bytes,
        IS_SHARED=is_shared,
        BLOCK_M=plan.block_m,
        BLOCK_W=plan.block_w,
        num_warps=SHARED_NUM_WARPS if is_shared else _warps(plan.block_m * plan.block_w * word_bytes),
        **tuned,
    )


class _MovePlan(NamedTuple):
    """Rows and words of a row that a program holds, programs that share a barrier, and groups of such programs."""

    block_m: int
    block_w: int
    num_members: int
    num_groups: int


def _plan(num_moves: int, num_buffers: int, row_words: int, word_bytes: int, programs_at_once: int) -> _MovePlan | None:
    """How the moves are shared out; None where `programs_at_once` programs cannot hold them."""
    is_small = num_moves * num_buffers * row_words * word_bytes <= BYTES_ALONE
    if num_moves > (4 * ROWS_ALONE if is_small else ROWS_ALONE) and programs_at_once > 1:
        return _shared_plan(num_moves, num_buffers, row_words, word_bytes, programs_at_once)
    block_m = max(BLOCK_M_MIN, triton.next_power_of_2(num_moves))
    if block_m * SECTOR_BYTES // 2 > TILE_BYTES:
        return None
    block_w = _columns(num_buffers, row_words, block_m, word_bytes)
    return _MovePlan(block_m, block_w, 1, num_buffers * triton.cdiv(row_words, block_w))


def _shared_plan(
    num_moves: int, num_buffers: int, row_words: int, word_bytes: int, programs_at_once: int
) -> _MovePlan | None:
    column_bytes = SHARED_COLUMN_BYTES
    while column_bytes >= SECTOR_BYTES:
        block_w = block_of(row_words, max(1, column_bytes // word_bytes))
        block_m = SHARED_TILE_BYTES // max(SECTOR_BYTES, block_w * word_bytes)
        num_members = triton.cdiv(num_moves, block_m)
        if num_members <= programs_at_once:
            num_units = num_buffers * triton.cdiv(row_words, block_w)
            return _MovePlan(block_m, block_w, num_members, min(num_units, programs_at_once // num_members))
        column_bytes //= 2
    return None


def _programs_at_once(device: torch.device) -> int:
    """Programs that can wait for each other; in Triton's interpreter they run one after the other, and none can."""
    return 1 if device.type == "cpu" else PROGRAMS_PER_SM * num_sms_of(device)


def _warps(tile_bytes: int) -> int:
    return 8 if tile_bytes >= TILE_BYTES // 2 else 4


def _columns(num_buffers: int, row_words: int, block_m: int, word_bytes: int) -> int:
    """Words of a row that a program moves that owns all rows."""
    block_w = block_of(row_words, max(1, TILE_BYTES // (block_m * word_bytes)))
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


@triton.jit(do_not_specialize=["num_slots", "num_moves", "num_units", "num_groups", "num_members"])
def _move_kv_kernel(
    p_words,
    p_addresses,
    p_target,
    p_source,
    p_heads,
    num_slots,
    num_moves,
    num_units,
    num_groups,
    num_members,
    ROW_WORDS: tl.constexpr,
    HAS_ADDRESSES: tl.constexpr,
    ALIGNED: tl.constexpr,
    IS_SHARED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """A group of programs has some blocks of columns of the buffers, and each of its members some of the moves: all
    read, wait for each other, and write.
    """
    i_group = tl.program_id(0) // num_members
    i_member = tl.program_id(0) % num_members
    p_head = p_heads + i_group * HEAD
    # [BLOCK_M]
    o_m = i_member * BLOCK_M + tl.arange(0, BLOCK_M)
    b_target = tl.load(p_target + o_m, mask=o_m < num_moves, other=0)
    b_source = tl.load(p_source + o_m, mask=o_m < num_moves, other=0)
    m_move = (b_target != b_source) & (b_target >= 0) & (b_target < num_slots)
    m_move = m_move & (b_source >= 0) & (b_source < num_slots)
    b_target = b_target.to(tl.int32)  # half the registers; slots that do not fit are masked
    b_source = b_source.to(tl.int32)
    blocks: tl.constexpr = (ROW_WORDS + BLOCK_W - 1) // BLOCK_W
    i_barrier = 0
    for i_unit in range(i_group, num_units, num_groups):
        p_buffer = p_words
        if HAS_ADDRESSES:
            p_buffer = tl.multiple_of(tl.load(p_addresses + i_unit // blocks).to(p_words.dtype), ALIGNED)
        # [BLOCK_M, BLOCK_W]
        o_w = (i_unit % blocks) * BLOCK_W + tl.arange(0, BLOCK_W)
        m_tile = m_move[:, None] & (o_w < ROW_WORDS)[None, :]
        b_tile = tl.load(p_buffer + b_source.to(tl.int64)[:, None] * ROW_WORDS + o_w[None, :], mask=m_tile, other=0)
        tl.debug_barrier()
        if IS_SHARED:
            i_barrier += 1
            i_here = tl.atomic_add(p_head, 1, sem="acq_rel") + 1
            while i_here < i_barrier * num_members:
                i_here = tl.atomic_add(p_head, 0, sem="acquire")
            tl.debug_barrier()
        tl.store(p_buffer + b_target.to(tl.int64)[:, None] * ROW_WORDS + o_w[None, :], b_tile, mask=m_tile)
    if IS_SHARED:  # the last to leave zeroes the head for the next launch
        i_done = tl.atomic_add(p_head + 1, 1, sem="acq_rel")
        if i_done == num_members - 1:
            tl.store(p_head, 0)
            tl.store(p_head + 1, 0)


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
