"""Distributions without their tail: top-k and top-p, ties included, and what is kept with sum 1.

A row is read twice and written once. Few rows are shared by several programs each, which wait for each other in a
cooperative launch; rows enough to fill the chip have one program each. How the least probability that is kept is found:
specsim.kernels.split_rows. Sums are of integers, so that results are the same from run to run.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import block_of, checked_launch, options_of, require_vocabulary
from specsim.kernels.split_rows import (
    HEAD,
    UNIT,
    Filters,
    RowPlace,
    Shape,
    arrive,
    bound_of_groups,
    leave,
    limits_from_bound,
    scan_chunk,
    scratch_of_rows,
    to_units,
    wait,
)
from specsim.kernels.verify_logits import num_sms_of, splits_of

__all__ = ["top_k_renorm_probs", "top_p_renorm_probs"]

GROUP = 128  # tokens of a group, at least: a warp's widest loads of float32
GROUPS_MAX = 1024  # of a row: more would not fit the registers
BLOCK_V = 1024
BLOCK_SEARCH = 64
LIST = 256  # candidates that fit the list
SHORT_LIST = 64  # candidates that are compared with each other at once
BLOCK_L = 16  # candidates of a longer list with which all are compared at once
NUM_WARPS = 4
REGISTERS = 128
PROGRAMS_PER_SM = 4  # by registers: 65536 // (32 * NUM_WARPS * REGISTERS)
SPLITS_MAX = 64


@checked_launch()
def top_k_renorm_probs(probs: Tensor, top_k: Tensor, renorm_probs: Tensor) -> None:
    """Write what is at least as probable as the k-th most probable token, with sum 1, and 0 elsewhere.

    Shapes and dtypes: specsim.reference.logits.top_k_renorm_probs.
    """
    _renorm(probs, top_k, renorm_probs, True)


@checked_launch()
def top_p_renorm_probs(probs: Tensor, top_p: Tensor, renorm_probs: Tensor) -> None:
    """Write the fewest most probable tokens that add up to p, and their equals, with sum 1, and 0 elsewhere.

    Shapes and dtypes: specsim.reference.logits.top_p_renorm_probs. Implementations can differ where a partial sum lies
    within rounding of p.
    """
    _renorm(probs, top_p, renorm_probs, False)


def splits_of_rows(num_rows: int, num_sms: int) -> int:
    """Programs a row that fill a device of `num_sms` multiprocessors, and can all be on it at once."""
    return splits_of(PROGRAMS_PER_SM * num_sms // max(num_rows, 1), SPLITS_MAX)


def _renorm(probs: Tensor, limit: Tensor, renorm_probs: Tensor, is_count: bool) -> None:
    num_rows = require_vocabulary("probs", probs)
    if num_rows == 0:
        return
    # In Triton's interpreter programs run one after the other, and none may wait for another.
    splits = 1 if probs.device.type == "cpu" else splits_of_rows(num_rows, num_sms_of(probs.device))
    vocab_size = probs.shape[1]
    block_v = block_of(vocab_size, BLOCK_V)
    group = min(max(GROUP, triton.next_power_of_2(triton.cdiv(vocab_size, GROUPS_MAX))), block_v)
    num_groups = triton.cdiv(vocab_size, group)
    chunk = triton.cdiv(vocab_size, splits * block_v) * block_v
    shape = Shape(
        IS_EXACT=False,
        IS_LINEAR=True,
        VOCAB_SIZE=vocab_size,
        SPLITS=splits,
        CHUNK=chunk,
        NUM_GROUPS=num_groups,
        GROUP=group,
        LIST=LIST,
        SHORT_LIST=min(SHORT_LIST, LIST),
        BLOCK_SHORT=min(SHORT_LIST, LIST),
        BLOCK_L=min(BLOCK_L, LIST),
        BLOCK_V=block_v,
        BLOCK_SEARCH=min(BLOCK_SEARCH, block_v),
        BLOCK_G=triton.next_power_of_2(num_groups),
        BLOCK_W=1,
    )
    words = (LIST, 2 * num_groups, splits * (chunk // group))
    scratch = scratch_of_rows("renorm", probs.device, num_rows, words)
    tuned = options_of(probs.device, NUM_WARPS, REGISTERS, splits)
    _renorm_kernel[(num_rows * splits,)](probs, limit, renorm_probs, scratch, IS_COUNT=is_count, SHAPE=shape, **tuned)


@triton.jit
def _renorm_kernel(p_probs, p_limit, p_renorm_probs, scratch, IS_COUNT: tl.constexpr, SHAPE: tl.constexpr):
    """`SPLITS` programs a row: the groups, the least probability that is kept and the sum of them, and what is kept."""
    i_program = tl.program_id(0).to(tl.int64)
    i_row = i_program // SHAPE.SPLITS
    i_split = (i_program % SHAPE.SPLITS).to(tl.int32)
    i_first = i_split * SHAPE.CHUNK
    p_row = p_probs + i_row * SHAPE.VOCAB_SIZE
    p_head = scratch.heads + i_row * HEAD
    p_list = scratch.lists + i_row * SHAPE.LIST
    p_high = scratch.groups + i_row * 2 * SHAPE.NUM_GROUPS
    p_sum = p_high + SHAPE.NUM_GROUPS
    p_own = scratch.owns + i_program * (SHAPE.CHUNK // SHAPE.GROUP)
    place = RowPlace(p_row, p_own, p_list, p_head, i_split)
    limit = tl.load(p_limit + i_row)
    k = tl.minimum(limit, SHAPE.VOCAB_SIZE) if IS_COUNT else tl.full([], SHAPE.VOCAB_SIZE, dtype=tl.int32)
    p = tl.full([], 1.0, dtype=tl.float32) if IS_COUNT else limit
    nothing = tl.full([], 0.0, dtype=tl.float32)
    rules = (nothing,)  # of requests, which probabilities have been through
    scan_chunk(p_row, p_high, p_sum, i_first, nothing, rules, SHAPE)
    arrive(p_head, SHAPE.SPLITS)
    i_barrier = wait(p_head, 0, i_split, SHAPE.SPLITS)
    # [BLOCK_G]
    o_g = tl.arange(0, SHAPE.BLOCK_G)
    b_high = tl.load(p_high + o_g, mask=o_g < SHAPE.NUM_GROUPS, other=float("-inf"), volatile=True)
    b_sum = tl.load(p_sum + o_g, mask=o_g < SHAPE.NUM_GROUPS, other=0.0, volatile=True)
    high = tl.max(b_high, axis=0)
    has_any = (high >= 2.0**-126) & (high < float("inf"))
    high = tl.where(has_any, high, 1.0)
    scale = tl.div_rn(1.0, (high.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True))
    b_most = b_high * scale
    b_sum = tl.where(has_any, b_sum * scale, 0.0)
    total = tl.sum(to_units(b_sum), axis=0)
    lowest = tl.full([], float("-inf"), dtype=tl.float32)
    is_filtered = (k < SHAPE.VOCAB_SIZE) | (p < 1)
    if is_filtered & has_any:
        wanted = k.to(tl.float32) if IS_COUNT else p * scale * (1 + 2.0**-16)
        bound = bound_of_groups(b_high, b_most, b_sum, high, scale, wanted, k < SHAPE.VOCAB_SIZE, SHAPE)
        lowest, total, i_barrier = limits_from_bound(
            place, b_high, i_barrier, bound, high, scale, total, Filters(k, p, nothing), rules, SHAPE
        )
    # A row that nothing is taken from stays as it is: its sum is 1 but for rounding.
    whole = tl.where(is_filtered, tl.div_rn(total.to(tl.float32) / UNIT, scale), 1.0)
    for i_block in range(SHAPE.CHUNK // SHAPE.BLOCK_V):
        # [BLOCK_V]
        o_v = i_first + i_block * SHAPE.BLOCK_V + tl.arange(0, SHAPE.BLOCK_V)
        b_prob = tl.load(p_row + o_v, mask=o_v < SHAPE.VOCAB_SIZE, other=0.0)
        b_kept = tl.div_rn(tl.where(b_prob >= lowest, b_prob, 0.0), whole)
        tl.store(p_renorm_probs + i_row * SHAPE.VOCAB_SIZE + o_v, b_kept, mask=o_v < SHAPE.VOCAB_SIZE)
    leave(p_head, SHAPE.SPLITS)
