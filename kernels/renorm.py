"""What is kept of laws: top-k and top-p, ties included, and the rest with sum 1.

A row is read twice and written once. Few rows are shared by several programs each, which wait for each other in a
cooperative launch; rows enough to fill the chip have one program each. How the least probability that is kept is found:
specsim.kernels.split_rows. Sums are of integers, so that results are the same from run to run.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import block_of, operation, require_vocabulary
from specsim.kernels.scratch import scratch_of
from specsim.kernels.split_rows import (
    HEAD,
    UNIT,
    arrive,
    bound_of_groups,
    leave,
    limits_from_bound,
    scan_chunk,
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
SHORT_LIST = 64  # that is held against itself at once
BLOCK_L = 16  # of them that the others are held against at once
NUM_WARPS = 4
REGISTERS = 128
PROGRAMS_PER_SM = 4  # by registers: 65536 // (32 * NUM_WARPS * REGISTERS)
SPLITS_MAX = 64


@operation()
def top_k_renorm_probs(probs: Tensor, top_k: Tensor, renorm_probs: Tensor) -> None:
    """Write what is at least as probable as the k-th most probable token, with sum 1, and 0 elsewhere.

    Shapes and dtypes: specsim.reference.logits.top_k_renorm_probs.
    """
    _renorm(probs, top_k, renorm_probs, True)


@operation()
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
    tuned: dict[str, Any] = {"num_warps": NUM_WARPS}
    if probs.device.type != "cpu":
        tuned |= {"maxnreg": REGISTERS, "launch_cooperative_grid": splits > 1}
    device = probs.device
    _renorm_kernel[(num_rows * splits,)](
        probs,
        limit,
        renorm_probs,
        scratch_of("renorm heads", device, num_rows * HEAD.value),
        scratch_of("renorm lists", device, num_rows * LIST, torch.float32),
        scratch_of("renorm groups", device, num_rows * 2 * num_groups, torch.float32),
        scratch_of("renorm owns", device, num_rows * splits * (chunk // group), torch.int32),
        VOCAB_SIZE=vocab_size,
        IS_COUNT=is_count,
        SPLITS=splits,
        CHUNK=chunk,
        NUM_GROUPS=num_groups,
        GROUP=group,
        LIST=LIST,
        SHORT_LIST=min(SHORT_LIST, LIST),
        BLOCK_L=min(BLOCK_L, LIST),
        BLOCK_V=block_v,
        BLOCK_SEARCH=min(BLOCK_SEARCH, block_v),
        BLOCK_G=triton.next_power_of_2(num_groups),
        **tuned,
    )


@triton.jit
def _renorm_kernel(
    p_probs,
    p_limit,
    p_renorm_probs,
    p_heads,
    p_lists,
    p_groups,
    p_owns,
    VOCAB_SIZE: tl.constexpr,
    IS_COUNT: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    NUM_GROUPS: tl.constexpr,
    GROUP: tl.constexpr,
    LIST: tl.constexpr,
    SHORT_LIST: tl.constexpr,
    BLOCK_L: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_SEARCH: tl.constexpr,
    BLOCK_G: tl.constexpr,
):
    """`SPLITS` programs a row: the groups, the least probability that is kept and the sum of them, and what is kept."""
    i_program = tl.program_id(0).to(tl.int64)
    i_row = i_program // SPLITS
    i_split = (i_program % SPLITS).to(tl.int32)
    i_first = i_split * CHUNK
    p_row = p_probs + i_row * VOCAB_SIZE
    p_head = p_heads + i_row * HEAD
    p_list = p_lists + i_row * LIST
    p_high = p_groups + i_row * 2 * NUM_GROUPS
    p_sum = p_high + NUM_GROUPS
    p_own = p_owns + i_program * (CHUNK // GROUP)
    limit = tl.load(p_limit + i_row)
    k = tl.minimum(limit, VOCAB_SIZE) if IS_COUNT else tl.full([], VOCAB_SIZE, dtype=tl.int32)
    p = tl.full([], 1.0, dtype=tl.float32) if IS_COUNT else limit
    nothing = tl.full([], 0.0, dtype=tl.float32)
    rules = (nothing,)  # of requests, which probabilities have been through
    scan_chunk(
        p_row,
        p_high,
        p_sum,
        i_first,
        nothing,
        rules,
        0,
        nothing,
        False,
        True,
        VOCAB_SIZE,
        CHUNK,
        NUM_GROUPS,
        GROUP,
        BLOCK_V,
        1,
    )
    arrive(p_head, SPLITS)
    i_meeting = wait(p_head, 0, i_split, SPLITS)
    # [BLOCK_G]
    o_g = tl.arange(0, BLOCK_G)
    b_high = tl.load(p_high + o_g, mask=o_g < NUM_GROUPS, other=float("-inf"), volatile=True)
    b_sum = tl.load(p_sum + o_g, mask=o_g < NUM_GROUPS, other=0.0, volatile=True)
    high = tl.max(b_high, axis=0)
    has_law = (high >= 2.0**-126) & (high < float("inf"))
    high = tl.where(has_law, high, 1.0)
    scale = tl.div_rn(1.0, (high.to(tl.int32, bitcast=True) & 0x7F800000).to(tl.float32, bitcast=True))
    b_most = b_high * scale
    b_sum = tl.where(has_law, b_sum * scale, 0.0)
    total = tl.sum(to_units(b_sum), axis=0)
    lowest = tl.full([], float("-inf"), dtype=tl.float32)
    if ((k < VOCAB_SIZE) | (p < 1)) & has_law:
        wanted = k.to(tl.float32) if IS_COUNT else p * scale * (1 + 2.0**-16)
        bound = bound_of_groups(b_high, b_most, b_sum, high, scale, wanted, k < VOCAB_SIZE, True, GROUP)
        lowest, total, i_meeting = limits_from_bound(
            p_row,
            b_high,
            p_own,
            p_list,
            p_head,
            i_meeting,
            i_split,
            bound,
            high,
            scale,
            total,
            k,
            p,
            nothing,
            rules,
            0,
            nothing,
            False,
            True,
            VOCAB_SIZE,
            SPLITS,
            CHUNK,
            GROUP,
            LIST,
            SHORT_LIST,
            SHORT_LIST,
            BLOCK_L,
            BLOCK_V,
            BLOCK_SEARCH,
            BLOCK_G,
            1,
        )
    whole = tl.div_rn(total.to(tl.float32) / UNIT, scale)
    for i_block in range(CHUNK // BLOCK_V):
        # [BLOCK_V]
        o_v = i_first + i_block * BLOCK_V + tl.arange(0, BLOCK_V)
        b_prob = tl.load(p_row + o_v, mask=o_v < VOCAB_SIZE, other=0.0)
        b_kept = tl.div_rn(tl.where(b_prob >= lowest, b_prob, 0.0), whole)
        tl.store(p_renorm_probs + i_row * VOCAB_SIZE + o_v, b_kept, mask=o_v < VOCAB_SIZE)
    leave(p_head, SPLITS)
