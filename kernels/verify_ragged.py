"""Verification of a batch whose requests have drafts of their own number, greedy ones beside others, and the token
after the drafts that are accepted.

Which drafts a sampling request accepts, a few numbers decide; of the long rows it needs one, that of the draft which is
rejected. So every program of a request decides for itself and reads its part of that row. A greedy request needs the
best token of each of its rows. The last program of a request writes what it emits.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from specsim.kernels.argmax import best_of_chunk, token_of
from specsim.kernels.launch import checked_launch
from specsim.kernels.sampling import at_most_one, positive
from specsim.kernels.scratch import scratch_of
from specsim.kernels.verify_logits import splits_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["verify_ragged_sampled"]

SCRATCH = "verify_ragged_sampled"
PROGRAMS = 4096
"""Programs that share few requests between them."""

BLOCK_V = 1024


@checked_launch()
def verify_ragged_sampled(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    uniform_probs: Tensor,
    race: Tensor,
    is_greedy: Tensor,
    has_draft_probs: int,
    num_steps: int,
    output_token_ids: Tensor,
) -> None:
    """Verify every request, and draw the token after its accepted drafts.

    Shapes and dtypes: specsim.reference.ragged_drafts.verify_ragged_sampled. Of a row of NaN the token is 0. Compiles
    once for each power of two that a row is shared over, of which a vocabulary has a few.
    """
    bs, vocab_size = race.shape
    if bs == 0:
        return
    block_v = min(BLOCK_V, triton.next_power_of_2(vocab_size))
    splits = splits_of(PROGRAMS // bs, triton.next_power_of_2(triton.cdiv(vocab_size, 2 * block_v)))
    block_w = triton.next_power_of_2(num_steps + 1)
    _verify_kernel[(bs * splits,)](
        cu_num_draft_tokens,
        draft_token_ids,
        draft_probs,
        target_probs,
        bonus_token_ids,
        uniform_probs,
        race,
        is_greedy,
        output_token_ids,
        scratch_of(SCRATCH, race.device, bs * (block_w + 1)),
        HAS_DRAFT_PROBS=bool(has_draft_probs),
        NUM_STEPS=num_steps,
        VOCAB=vocab_size,
        SPLITS=splits,
        CHUNK=triton.cdiv(vocab_size, splits * block_v) * block_v,
        BLOCK_W=block_w,
        BLOCK_V=block_v,
        num_warps=max(1, block_v // 256),
    )


@triton.jit
def _winner_of_chunk(
    p_p,
    p_q,
    p_race,
    i_first,
    i_taken,
    HAS_Q: tl.constexpr,
    VOCAB: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """The largest (p - q) / race of `[i_first, i_first + CHUNK)` and its first index, as a word above 0; 0 beyond the
    row. `i_taken` is the token that is taken out of p where there is no q.
    """
    # [BLOCK_V]: each lane's best so far and where it was.
    o_v = i_first + tl.arange(0, BLOCK_V)
    b_best = tl.full([BLOCK_V], -1.0, dtype=tl.float32)
    b_at = o_v
    for i in range(CHUNK // BLOCK_V):
        o_i = o_v + i * BLOCK_V
        m_v = o_i < VOCAB
        b_left = tl.load(p_p + o_i, mask=m_v, other=0.0)
        if HAS_Q:
            b_left = b_left - at_most_one(tl.load(p_q + o_i, mask=m_v, other=0.0))
        else:
            b_left = tl.where(o_i == i_taken, 0.0, b_left)
        b_value = tl.div_rn(positive(b_left), tl.load(p_race + o_i, mask=m_v, other=1.0))
        m_better = m_v & (b_value > b_best)
        b_best = tl.where(m_better, b_value, b_best)
        b_at = tl.where(m_better, o_i, b_at)
    # Bits of numbers that are not below 0 compare as the numbers do.
    b_word = (b_best.to(tl.int32, bitcast=True).to(tl.int64) << 31) | (0x7FFFFFFF - b_at).to(tl.int64)
    return tl.max(tl.where(b_best >= 0, b_word, 0), axis=0)


@triton.jit
def _verify_kernel(
    p_ends,
    p_draft,
    p_q,
    p_p,
    p_bonus,
    p_coin,
    p_race,
    p_greedy,
    p_output,
    p_scratch,
    HAS_DRAFT_PROBS: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    VOCAB: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """`SPLITS` programs a request. Scratch of a request: the best word of each of its rows, of one alone where it
    samples, and a count of the programs that are done.
    """
    i_b = (tl.program_id(0) // SPLITS).to(tl.int64)
    i_first = (tl.program_id(0) % SPLITS) * CHUNK
    p_words = p_scratch + i_b * (BLOCK_W + 1)
    p_done = p_words + BLOCK_W

    i_start = tl.load(p_ends + i_b - 1, mask=i_b > 0, other=0).to(tl.int64)
    num_drafts = tl.minimum(tl.load(p_ends + i_b).to(tl.int64) - i_start, NUM_STEPS)
    # [BLOCK_W]
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w < num_drafts
    b_draft = tl.load(p_draft + i_start + o_w, mask=m_w, other=-1)
    i_accepted = num_drafts
    is_greedy = tl.load(p_greedy + i_b) != 0
    if is_greedy:
        for i in range(num_drafts):
            i_word = best_of_chunk(p_p + (i_start + i) * VOCAB, i_first, VOCAB, CHUNK, BLOCK_V, True)
            tl.atomic_max(p_words + i, i_word, sem="relaxed")
    else:
        o_row = (i_start + o_w) * VOCAB + tl.maximum(b_draft, 0)
        b_p = tl.load(p_p + o_row, mask=m_w, other=0.0).to(tl.float64)
        b_height = tl.load(p_coin + i_start + o_w, mask=m_w, other=1.0)
        m_accepts = b_draft >= 0
        if HAS_DRAFT_PROBS:
            b_q = at_most_one(tl.load(p_q + o_row, mask=m_w, other=0.0)).to(tl.float64)
            m_accepts &= b_q > 0
            b_height = b_height * b_q
        m_accepts &= b_height < b_p
        i_accepted = tl.min(tl.where(m_w & (m_accepts == 0), o_w, num_drafts), axis=0)
        if i_accepted < num_drafts:
            i_row = (i_start + i_accepted) * VOCAB
            i_taken = tl.sum(tl.where(o_w == i_accepted, b_draft, 0), axis=0)
            p_noise = p_race + i_b * VOCAB
            i_word = _winner_of_chunk(
                p_p + i_row, p_q + i_row, p_noise, i_first, i_taken, HAS_DRAFT_PROBS, VOCAB, CHUNK, BLOCK_V
            )
            tl.atomic_max(p_words, i_word, sem="relaxed")

    i_before = tl.atomic_add(p_done, 1, sem="acq_rel")
    if i_before == SPLITS - 1:
        b_word = tl.load(p_words + o_w, volatile=True)
        b_token = token_of(b_word).to(tl.int32)
        if is_greedy:
            i_accepted = tl.min(tl.where(m_w & (b_token != b_draft), o_w, num_drafts), axis=0)
            i_last = tl.sum(tl.where(o_w == i_accepted, b_token, 0), axis=0)
        else:
            i_last = tl.sum(tl.where(o_w == 0, b_token, 0), axis=0)
        if i_accepted == num_drafts:
            i_last = tl.load(p_bonus + i_b)
        b_output = tl.where(o_w < i_accepted, b_draft, tl.where(o_w == i_accepted, i_last, -1))
        tl.store(p_output + i_b * (NUM_STEPS + 1) + o_w, b_output, mask=o_w <= NUM_STEPS)
        tl.store(p_words + o_w, tl.full([BLOCK_W], 0, dtype=tl.int64))
        tl.atomic_xchg(p_done, 0, sem="relaxed")
