"""Verification of chains at a temperature, token by token or as a block, and the draw of the token after it.

One program a request: token by token it reads single probabilities, as a block it tries prefixes from the longest to
the shortest, whose heights take a row each. Few chains would leave most of a GPU idle meanwhile: for them a launch
before adds up the rows of all prefixes at once. Sums have a fixed order.

What bounds them at small batches is the latency of the rows that are read; at large ones, their bytes.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from specsim.kernels.launch import checked_launch
from specsim.kernels.sampling import (
    at_most_one,
    blocks_of_row,
    find_block,
    find_token,
    positive,
)
from specsim.kernels.split_rows import lane
from specsim.kernels.verify_logits import splits_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["verify_chain_block", "verify_chain_rejection"]


@checked_launch()
def verify_chain_rejection(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
) -> None:
    """Accept each chain's drafts one after the other, by the ratio of target to draft probability.

    Shapes and dtypes: specsim.reference.sampling.verify_chain_rejection; distributions and uniform draws are float32.

    Writes `accept_index` and `accept_token_num` whole, and `predicts` at the accepted path alone.
    """
    arguments = (candidates, draft_probs, target_probs, uniform_samples, uniform_final)
    _verify_chain(*arguments, predicts, accept_index, accept_token_num, by_block=False)


@checked_launch()
def verify_chain_block(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
) -> None:
    """Accept a prefix of each chain as a block: the longest whose uniform draw is below its height.

    Shapes and dtypes: specsim.reference.sampling.verify_chain_block; distributions and uniform draws are float32.

    Prefixes are tried from the longest to the shortest. Of many chains the rows after the accepted one are read and no
    other; of few, a launch before adds up the rows of all prefixes at once, in an allocation of their sums' size.
    Writes `accept_index` and `accept_token_num` whole, and `predicts` at the accepted path alone.
    """
    arguments = (candidates, draft_probs, target_probs, uniform_samples, uniform_final)
    _verify_chain(*arguments, predicts, accept_index, accept_token_num, by_block=True)


def _verify_chain(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    *,
    by_block: bool,
) -> None:
    bs, num_steps, vocab_size = draft_probs.shape
    if bs == 0:
        return
    blocks = blocks_of_row(vocab_size, BLOCK_V)
    block_w = triton.next_power_of_2(num_steps + 1)
    splits, masses = 0, target_probs
    if by_block and num_steps > 1 and bs < LAZY_FROM:
        splits = splits_of(MASS_PROGRAMS // (bs * (num_steps - 1)), blocks["NUM_BLOCKS"])
        masses = target_probs.new_empty((bs, num_steps, splits))
        _masses_of_prefixes_kernel[(bs, num_steps - 1, splits)](
            candidates,
            draft_probs,
            target_probs,
            masses,
            NUM_STEPS=num_steps,
            VOCAB=vocab_size,
            SPLITS=splits,
            BLOCK_W=block_w,
            BLOCK_V=blocks["BLOCK_V"],
            num_warps=blocks["num_warps"],
        )
    _verify_chain_kernel[(bs,)](
        candidates,
        draft_probs,
        target_probs,
        masses,
        uniform_samples,
        uniform_final,
        predicts,
        accept_index,
        accept_token_num,
        NUM_STEPS=num_steps,
        VOCAB=vocab_size,
        SPLITS=splits,
        BY_BLOCK=by_block,
        BLOCK_W=block_w,
        **blocks,
    )


BLOCK_V = 4096
"""Tokens of a block of both rows at once, the draft's beside the target's: more would not fit the registers."""

LAZY_FROM = 128
"""Chains that fill a large GPU with a program each, which reads the rows that it needs and no other."""

MASS_PROGRAMS = 1024


@triton.jit
def residual(p_p, p_q, scale, len_q, o_v, VOCAB: tl.constexpr):
    """The positive part of `scale * p - q` over a block [BLOCK_V]; `len_q` is VOCAB, or 0 where there is no q."""
    b_p = tl.load(p_p + o_v, mask=o_v < VOCAB, other=0.0)
    b_q = at_most_one(tl.load(p_q + o_v, mask=o_v < len_q, other=0.0))
    return positive(scale * b_p - b_q)


@triton.jit
def _accepted_by_token(p_drafted, p_p, p_q, p_coin, NUM_STEPS: tl.constexpr, VOCAB: tl.constexpr):
    """How many drafts the token rule accepts: those before the first with `u q >= p`."""
    i_accepted = 0
    is_going = NUM_STEPS > 0
    while is_going:
        i_token = tl.load(p_drafted + i_accepted)
        m_token = (i_token >= 0) & (i_token < VOCAB)
        p = tl.load(p_p + i_accepted * VOCAB + i_token, mask=m_token, other=0.0)
        q = at_most_one(tl.load(p_q + i_accepted * VOCAB + i_token, mask=m_token, other=0.0))
        is_accepted = (tl.load(p_coin + i_accepted) * q < p) & (q > 0)
        i_accepted += is_accepted.to(tl.int32)
        is_going = is_accepted & (i_accepted < NUM_STEPS)
    return i_accepted


@triton.jit
def _reaches(p_drafted, p_p, p_q, NUM_STEPS: tl.constexpr, VOCAB: tl.constexpr, BLOCK_W: tl.constexpr):
    """The reach r of each prefix [BLOCK_W]."""
    o_w = tl.arange(0, BLOCK_W)
    b_token = tl.load(p_drafted + o_w, mask=o_w < NUM_STEPS, other=-1)
    m_token = (b_token >= 0) & (b_token < VOCAB)
    b_p = tl.load(p_p + o_w * VOCAB + b_token, mask=m_token, other=0.0)
    b_q = at_most_one(tl.load(p_q + o_w * VOCAB + b_token, mask=m_token, other=0.0))
    b_reach = tl.full([BLOCK_W], 1.0, tl.float32)
    reach = tl.sum(b_reach, axis=0) * 0.0 + 1.0
    for i_step in range(NUM_STEPS):
        p, q = lane(b_p, i_step, BLOCK_W), lane(b_q, i_step, BLOCK_W)
        reach = tl.where(q > 0, tl.minimum(tl.div_rn(reach * p, tl.where(q > 0, q, 1.0)), 1.0), 0.0)
        b_reach = tl.where(o_w == i_step + 1, reach, b_reach)
    return b_reach


@triton.jit
def _masses_of_prefixes_kernel(
    p_candidates,
    p_draft_probs,
    p_target_probs,
    p_masses,
    NUM_STEPS: tl.constexpr,
    VOCAB: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """`SPLITS` programs for each prefix between the empty one and the whole chain: its share of what is left of the
    distribution after it, where the block rule needs that.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i_row = tl.program_id(1) + 1
    p_p = p_target_probs + i_b * (NUM_STEPS + 1) * VOCAB
    p_q = p_draft_probs + i_b * NUM_STEPS * VOCAB
    b_reach = _reaches(p_candidates + i_b * (NUM_STEPS + 1) + 1, p_p, p_q, NUM_STEPS, VOCAB, BLOCK_W)
    reach = lane(b_reach, i_row, BLOCK_W)
    if (reach > 0) & (reach < 1):
        b_mass = tl.zeros([BLOCK_V], dtype=tl.float32)
        for i_block in range(tl.program_id(2), (VOCAB + BLOCK_V - 1) // BLOCK_V, SPLITS):
            o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
            b_mass += residual(p_p + i_row * VOCAB, p_q + i_row * VOCAB, reach, VOCAB, o_v, VOCAB)
        tl.store(p_masses + (i_b * NUM_STEPS + i_row) * SPLITS + tl.program_id(2), tl.sum(b_mass, axis=0))


@triton.jit
def _accepted_by_block(
    p_drafted,
    p_p,
    p_q,
    p_mass,
    p_coin,
    NUM_STEPS: tl.constexpr,
    VOCAB: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """How many drafts the block rule accepts, and the reach of that prefix; masses are there if there are `SPLITS`."""
    b_reach = _reaches(p_drafted, p_p, p_q, NUM_STEPS, VOCAB, BLOCK_W)
    i_accepted = NUM_STEPS
    is_going = NUM_STEPS > 0
    while is_going:
        reach = lane(b_reach, i_accepted, BLOCK_W)
        height = reach
        if (i_accepted < NUM_STEPS) & (reach > 0) & (reach < 1):
            if SPLITS > 0:
                mass = tl.sum(tl.load(p_mass + i_accepted * SPLITS + tl.arange(0, SPLITS)), axis=0)
            else:
                b_mass = tl.zeros([BLOCK_V], dtype=tl.float32)
                for i_block in range((VOCAB + BLOCK_V - 1) // BLOCK_V):
                    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
                    b_mass += residual(p_p + i_accepted * VOCAB, p_q + i_accepted * VOCAB, reach, VOCAB, o_v, VOCAB)
                mass = tl.sum(b_mass, axis=0)
            height = tl.div_rn(mass, mass + 1 - reach)
        is_accepted = tl.load(p_coin + i_accepted - 1) < height
        i_accepted -= (~is_accepted).to(tl.int32)
        is_going = (~is_accepted) & (i_accepted > 0)
    return i_accepted, lane(b_reach, i_accepted, BLOCK_W)


@triton.jit
def _verify_chain_kernel(
    p_candidates,
    p_draft_probs,
    p_target_probs,
    p_masses,
    p_uniform_samples,
    p_uniform_final,
    p_predicts,
    p_accept_index,
    p_accept_token_num,
    NUM_STEPS: tl.constexpr,
    VOCAB: tl.constexpr,
    SPLITS: tl.constexpr,
    BY_BLOCK: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """One program a request: how many drafts are accepted, and a token of what the distribution leaves after them."""
    i_b = tl.program_id(0).to(tl.int64)
    i_first_node = i_b * (NUM_STEPS + 1)
    p_drafted = p_candidates + i_first_node + 1
    p_p = p_target_probs + i_first_node * VOCAB
    p_q = p_draft_probs + i_b * NUM_STEPS * VOCAB
    p_coin = p_uniform_samples + i_b * NUM_STEPS
    if BY_BLOCK:
        p_mass = p_masses + i_b * NUM_STEPS * SPLITS
        i_accepted, scale = _accepted_by_block(
            p_drafted, p_p, p_q, p_mass, p_coin, NUM_STEPS, VOCAB, SPLITS, BLOCK_W, BLOCK_V
        )
        scale = tl.where(i_accepted < NUM_STEPS, scale, 1.0)
    else:
        i_accepted = _accepted_by_token(p_drafted, p_p, p_q, p_coin, NUM_STEPS, VOCAB)
        scale = 1.0

    len_q = tl.where(i_accepted < NUM_STEPS, VOCAB, 0)
    o_block = tl.arange(0, NUM_BLOCKS)
    o_row = i_accepted.to(tl.int64) * VOCAB
    b_sums = tl.zeros([NUM_BLOCKS], dtype=tl.float32)
    for i_block in range((VOCAB + BLOCK_V - 1) // BLOCK_V):
        # [BLOCK_V]
        o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
        b_weights = residual(p_p + o_row, p_q + o_row, scale, len_q, o_v, VOCAB)
        b_sums = tl.where(o_block == i_block, tl.sum(b_weights, axis=0), b_sums)
    i_block, before, threshold = find_block(b_sums, tl.load(p_uniform_final + i_b), NUM_BLOCKS)
    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    b_weights = residual(p_p + o_row, p_q + o_row, scale, len_q, o_v, VOCAB)
    i_token = find_token(b_weights, o_v, before, threshold, VOCAB)

    o_w = tl.arange(0, BLOCK_W)
    m_path = o_w <= i_accepted
    b_drafted = tl.load(p_drafted + o_w, mask=o_w < i_accepted, other=0)
    b_token = tl.where(o_w < i_accepted, b_drafted, i_token)
    tl.store(p_predicts + i_first_node + o_w, b_token.to(tl.int32), mask=m_path)
    b_path = tl.where(m_path, (i_first_node + o_w).to(tl.int32), -1)
    tl.store(p_accept_index + i_first_node + o_w, b_path, mask=o_w <= NUM_STEPS)
    tl.store(p_accept_token_num + i_b, i_accepted)
