"""From logits to distributions: penalties, bias and grammar in place, the greedy token, softmax and min-p.

What changes element by element (penalties, grammar) is shared out over programs by blocks of the vocabulary and bound
by its bytes. So is the softmax, in two launches: what each block adds to its row's sum, and the distribution; bound by
the bytes of reading twice and writing once. Min-p has one program a row, which reads it several times. The greedy token
of few rows is found by several programs a row.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.argmax import best_of_chunk, token_of
from specsim.kernels.launch import LOGITS, block_of, checked_launch, require_vocabulary
from specsim.reference.logits import EXACT, NAN_HIGHEST, NAN_LOWEST, RELAXED, WORD_BITS

__all__ = [
    "accumulate_penalties",
    "apply_penalties",
    "apply_token_bitmask",
    "min_p_renorm_probs",
    "row_argmax",
    "temperature_softmax",
]

BLOCK_V = 1024
BLOCK_ROW = 8192
BITMASK_BLOCK = 2048
BITMASK_NUM_WARPS = 4


@checked_launch()
def accumulate_penalties(
    output_counts: Tensor, output_lens: Tensor, accept_tokens: Tensor, accept_lens: Tensor, law: int
) -> None:
    """Count what a step put out, in place: all of it (EXACT), or its last token alone (RELAXED).

    Shapes and dtypes: specsim.reference.logits.accumulate_penalties. Tokens outside the vocabulary and lengths beyond
    the width are not counted. Raises ValueError for unknown laws.
    """
    _require_law(law)
    bs, accept_width = accept_tokens.shape
    if bs == 0:
        return
    _accumulate_penalties_kernel[(bs,)](
        output_counts,
        output_lens,
        accept_tokens,
        accept_lens,
        output_counts.shape[1],
        ACCEPT_WIDTH=accept_width,
        LAST_ALONE=law == RELAXED,
        BLOCK_W=triton.next_power_of_2(max(1, accept_width)),
        num_warps=1,
    )


@checked_launch(logits=LOGITS)
def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    output_lens: Tensor,
    candidates: Tensor,
    tree_mask: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    repetition_penalty: Tensor,
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
    law: int,
) -> None:
    """Penalties, the floor of `min_new_tokens` and the logit bias for every node, in place.

    Shapes and dtypes: specsim.reference.logits.apply_penalties. Logits are float32, bfloat16 or float16, and everything
    is computed in float32; penalties and bias are float32. Raises ValueError for unknown laws.
    """
    _require_law(law)
    ndt = candidates.shape[1]
    num_nodes, vocab_size = logits.shape
    if num_nodes == 0:
        return
    block_v = block_of(vocab_size, BLOCK_V)
    _apply_penalties_kernel[(num_nodes, triton.cdiv(vocab_size, block_v))](
        logits,
        output_counts,
        output_lens,
        candidates,
        tree_mask.view(torch.uint8),
        frequency_penalty,
        presence_penalty,
        repetition_penalty,
        min_new_tokens,
        stop_token_ids,
        logit_bias,
        stop_token_ids.shape[1],
        VOCAB=vocab_size,
        NDT=ndt,
        IS_EXACT=law == EXACT,
        BLOCK_N=triton.next_power_of_2(ndt),
        BLOCK_V=block_v,
        num_warps=4,
    )


@checked_launch(logits=LOGITS)
def apply_token_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor) -> None:
    """Forbid, in place, the tokens whose bit is 0: they get -inf, whatever they were.

    Shapes and dtypes: specsim.reference.logits.apply_token_bitmask; logits are float32, bfloat16 or float16. Of 32
    tokens that are all allowed or all forbidden no logit is read; of others those that are allowed are written as they
    are. Rows outside the tensor are skipped.
    """
    num_rows, vocab_size = logits.shape
    num_indices = indices.shape[0]
    if num_indices == 0 or num_rows == 0:
        return
    block_w = block_of(bitmask.shape[1], max(1, BITMASK_BLOCK // WORD_BITS))
    _apply_token_bitmask_kernel[(num_indices, triton.cdiv(bitmask.shape[1], block_w))](
        logits,
        bitmask,
        indices,
        num_rows,
        VOCAB=vocab_size,
        NUM_WORDS=bitmask.shape[1],
        BLOCK_W=block_w,
        num_warps=BITMASK_NUM_WARPS,
    )


@checked_launch(logits=LOGITS)
def row_argmax(logits: Tensor, nan_policy: int, ids: Tensor) -> None:
    """Write the greedy token of each row; of equal ones the lowest.

    Few rows are shared by several programs each, which takes a second launch and an allocation of their results' size.
    Shapes and policies: specsim.reference.logits.row_argmax; logits are float32, bfloat16 or float16. Raises ValueError
    for an empty vocabulary and unknown policies.
    """
    if nan_policy not in (NAN_HIGHEST, NAN_LOWEST):
        raise ValueError(f"nan_policy is {nan_policy}; allowed: NAN_HIGHEST ({NAN_HIGHEST}), NAN_LOWEST ({NAN_LOWEST})")
    num_rows = require_vocabulary("logits", logits)
    if num_rows == 0:
        return
    vocab_size = logits.shape[1]
    block_v = block_of(vocab_size, ARGMAX_BLOCK)
    splits = _argmax_splits(num_rows, vocab_size)
    # Of one program a row the words are the ids themselves.
    words = ids if splits == 1 else ids.new_empty(num_rows * splits)
    _row_argmax_kernel[(num_rows, splits)](
        logits,
        words,
        VOCAB=vocab_size,
        NAN_IS_HIGHEST=nan_policy == NAN_HIGHEST,
        SPLITS=splits,
        CHUNK=triton.cdiv(vocab_size, splits * block_v) * block_v,
        BLOCK_V=block_v,
        num_warps=max(1, block_v // 256),
    )
    if splits > 1:
        _best_word_kernel[(num_rows,)](words, ids, SPLITS=splits, num_warps=1)


ARGMAX_PROGRAMS = 512
"""Programs that share few rows between them: four for each multiprocessor of a large GPU."""

ARGMAX_BLOCK = 2048
ARGMAX_SPLITS_MAX = 32


def _argmax_splits(num_rows: int, vocab_size: int) -> int:
    """Programs a row, a power of two: as many as fill the device and have a block of logits or more each."""
    splits = 1
    while (
        splits < ARGMAX_SPLITS_MAX
        and 2 * splits * num_rows <= ARGMAX_PROGRAMS
        and 2 * splits * ARGMAX_BLOCK <= vocab_size + ARGMAX_BLOCK
    ):
        splits *= 2
    return splits


@checked_launch(logits=LOGITS)
def temperature_softmax(logits: Tensor, temperature: Tensor, probs: Tensor) -> None:
    """Write the distribution of each row, the softmax of `logits / temperature`, in float32.

    Several programs share a row, which takes two launches and an allocation of their results' size. Shapes:
    specsim.reference.logits.temperature_softmax; logits are float32, bfloat16 or float16. A row in which every token is
    forbidden has no distribution and becomes NaN.
    """
    num_rows = require_vocabulary("logits", logits)
    if num_rows == 0:
        return
    vocab_size = logits.shape[1]
    blocks = _row_blocks(vocab_size, _softmax_block(num_rows, vocab_size))
    splits = triton.cdiv(vocab_size, blocks["BLOCK_V"])
    parts = probs.new_empty((num_rows, 2, splits))
    _parts_of_row_kernel[(num_rows, splits)](logits, temperature, parts, VOCAB=vocab_size, SPLITS=splits, **blocks)
    sizes = {"VOCAB": vocab_size, "SPLITS": splits, "BLOCK_S": triton.next_power_of_2(splits), **blocks}
    _softmax_of_parts_kernel[(num_rows, splits)](logits, temperature, parts, probs, **sizes)


SOFTMAX_PROGRAMS = 512
"""Programs of a launch, four for each multiprocessor of a large GPU: with more of them their blocks grow."""

SOFTMAX_BLOCK_MIN = 2048


def _softmax_block(num_rows: int, vocab_size: int) -> int:
    block_v = min(SOFTMAX_BLOCK_MIN, BLOCK_ROW)
    while block_v < BLOCK_ROW and num_rows * triton.cdiv(vocab_size, block_v) > SOFTMAX_PROGRAMS:
        block_v *= 2
    return block_v


@checked_launch()
def min_p_renorm_probs(probs: Tensor, min_p: Tensor, renorm_probs: Tensor) -> None:
    """Write the tokens that have at least the share `min_p` of the most probable one's probability, with sum 1.

    Shapes and dtypes: specsim.reference.logits.min_p_renorm_probs.
    """
    num_rows = require_vocabulary("probs", probs)
    if num_rows == 0:
        return
    blocks = _row_blocks(probs.shape[1], BLOCK_ROW)
    _min_p_renorm_kernel[(num_rows,)](probs, min_p, renorm_probs, VOCAB=probs.shape[1], **blocks)


def _require_law(law: int) -> None:
    if law not in (EXACT, RELAXED):
        raise ValueError(f"law is {law}; allowed: EXACT ({EXACT}), RELAXED ({RELAXED})")


def _row_blocks(vocab_size: int, most: int) -> dict[str, int]:
    """Warps for 16 tokens a thread, so that each has several wide loads under way."""
    block_v = block_of(vocab_size, most)
    return {"BLOCK_V": block_v, "num_warps": max(1, min(16, block_v // 512))}


@triton.jit(do_not_specialize=["vocab_size"])
def _accumulate_penalties_kernel(
    p_output_counts,
    p_output_lens,
    p_accept_tokens,
    p_accept_lens,
    vocab_size,
    ACCEPT_WIDTH: tl.constexpr,
    LAST_ALONE: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One program a request. Of equal tokens the first lane adds for all of them, so that no two write one count."""
    i_b = tl.program_id(0).to(tl.int64)
    accept_len = tl.minimum(tl.load(p_accept_lens + i_b), ACCEPT_WIDTH)
    # [BLOCK_W]
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w < accept_len
    if LAST_ALONE:
        m_w = o_w == tl.where(accept_len > 0, accept_len - 1, BLOCK_W)
    b_token = tl.load(p_accept_tokens + i_b * ACCEPT_WIDTH + o_w, mask=m_w, other=-1)
    # [BLOCK_W, BLOCK_W]
    m_equal = (b_token[:, None] == b_token[None, :]) & m_w[:, None] & m_w[None, :]
    b_times = tl.sum(m_equal.to(tl.int32), axis=1)
    b_first = tl.min(tl.where(m_equal, o_w[None, :], BLOCK_W), axis=1)
    m_add = m_w & (b_first == o_w) & (b_token >= 0) & (b_token < vocab_size)
    p_count = p_output_counts + i_b * vocab_size + b_token
    tl.store(p_count, tl.load(p_count, mask=m_add, other=0) + b_times, mask=m_add)
    output_len = tl.load(p_output_lens + i_b)
    tl.debug_barrier()  # every thread reads the length that one of them writes
    tl.store(p_output_lens + i_b, output_len + tl.sum(m_w.to(tl.int32), axis=0))


@triton.jit(do_not_specialize=["num_stop_tokens"])
def _apply_penalties_kernel(
    p_logits,
    p_output_counts,
    p_output_lens,
    p_candidates,
    p_tree_mask,
    p_frequency_penalty,
    p_presence_penalty,
    p_repetition_penalty,
    p_min_new_tokens,
    p_stop_token_ids,
    p_logit_bias,
    num_stop_tokens,
    VOCAB: tl.constexpr,
    NDT: tl.constexpr,
    IS_EXACT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program a node and a block of the vocabulary."""
    i_node = tl.program_id(0).to(tl.int64)
    i_b = i_node // NDT
    # [BLOCK_V]
    o_v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_v = o_v < VOCAB
    b_count = tl.load(p_output_counts + i_b * VOCAB + o_v, mask=m_v, other=0)
    output_len = tl.load(p_output_lens + i_b)
    if IS_EXACT:
        # The root is in the counts already; column 0 of the mask is not read.
        for i_other in range(1, NDT):
            if tl.load(p_tree_mask + i_node * NDT + i_other) != 0:
                b_count += (o_v == tl.load(p_candidates + i_b * NDT + i_other)).to(tl.int32)
                output_len += 1
    b_logit = tl.load(p_logits + i_node * VOCAB + o_v, mask=m_v, other=0.0).to(tl.float32)
    b_bias = tl.load(p_logit_bias + i_b * VOCAB + o_v, mask=m_v, other=0.0)
    frequency = tl.load(p_frequency_penalty + i_b)
    presence = tl.load(p_presence_penalty + i_b)
    repetition = tl.load(p_repetition_penalty + i_b)
    m_present = b_count > 0
    b_logit -= frequency * b_count.to(tl.float32) + tl.where(m_present, presence, 0.0)
    b_scaling = tl.where(m_present, repetition, 1.0)
    b_logit = tl.where(b_logit < 0, b_logit * b_scaling, tl.div_rn(b_logit, b_scaling)) + b_bias
    if output_len < tl.load(p_min_new_tokens + i_b):
        i_stop = 0
        while i_stop < num_stop_tokens:
            i_token = tl.load(p_stop_token_ids + i_b * num_stop_tokens + i_stop)
            b_logit = tl.where(o_v == i_token, float("-inf"), b_logit)
            i_stop += 1
    tl.store(p_logits + i_node * VOCAB + o_v, b_logit.to(p_logits.dtype.element_ty), mask=m_v)


@triton.jit(do_not_specialize=["num_rows"])
def _apply_token_bitmask_kernel(
    p_logits, p_bitmask, p_indices, num_rows, VOCAB: tl.constexpr, NUM_WORDS: tl.constexpr, BLOCK_W: tl.constexpr
):
    """One program a masked row and a block of its words."""
    i_row = tl.load(p_indices + tl.program_id(0)).to(tl.int64)
    end = tl.where((i_row >= 0) & (i_row < num_rows), NUM_WORDS, 0)
    # [BLOCK_W]
    o_w = tl.program_id(1) * BLOCK_W + tl.arange(0, BLOCK_W)
    b_word = tl.load(p_bitmask + i_row * NUM_WORDS + o_w, mask=o_w < end, other=-1)
    # [BLOCK_W, 32]
    o_bit = tl.arange(0, 32)
    o_v = o_w[:, None] * 32 + o_bit[None, :]
    p_token = p_logits + i_row * VOCAB + o_v
    b_forbidden = tl.full([BLOCK_W, 32], float("-inf"), p_logits.dtype.element_ty)
    # A mask that is the same for a whole word lets the compiler store 16 bytes at once.
    tl.store(p_token, b_forbidden, mask=(b_word == 0)[:, None] & (o_v < VOCAB))
    m_some = (b_word != 0) & (b_word != -1)
    if tl.max(m_some.to(tl.int32), axis=0) > 0:
        # To write parts of a sector costs more than to read it and write it whole.
        m_token = m_some[:, None] & (o_v < VOCAB)
        m_allowed = ((b_word[:, None] >> o_bit[None, :]) & 1) != 0
        b_logit = tl.load(p_token, mask=m_token, other=float("-inf"))
        tl.store(p_token, tl.where(m_allowed, b_logit, b_forbidden), mask=m_token)


@triton.jit
def _row_argmax_kernel(
    p_logits,
    p_words,
    VOCAB: tl.constexpr,
    NAN_IS_HIGHEST: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """One program a row, or several that share it and whose words another launch compares."""
    i_row = tl.program_id(0).to(tl.int64)
    i_split = tl.program_id(1)
    i_word = best_of_chunk(p_logits + i_row * VOCAB, i_split * CHUNK, VOCAB, CHUNK, BLOCK_V, NAN_IS_HIGHEST)
    tl.store(p_words + i_row * SPLITS + i_split, token_of(i_word) if SPLITS == 1 else i_word)


@triton.jit
def _best_word_kernel(p_words, p_ids, SPLITS: tl.constexpr):
    """One program a row."""
    i_row = tl.program_id(0).to(tl.int64)
    # [SPLITS]
    b_words = tl.load(p_words + i_row * SPLITS + tl.arange(0, SPLITS))
    tl.store(p_ids + i_row, token_of(tl.max(b_words, axis=0)))


@triton.jit
def _parts_of_row_kernel(
    p_logits, p_temperature, p_parts, VOCAB: tl.constexpr, SPLITS: tl.constexpr, BLOCK_V: tl.constexpr
):
    """A program a block of a row: its highest logit, and the sum of weights relative to it."""
    i_row = tl.program_id(0).to(tl.int64)
    i_split = tl.program_id(1)
    # [BLOCK_V]
    o_v = i_split * BLOCK_V + tl.arange(0, BLOCK_V)
    b_logit = tl.load(p_logits + i_row * VOCAB + o_v, mask=o_v < VOCAB, other=float("-inf")).to(tl.float32)
    b_logit = tl.div_rn(b_logit, tl.load(p_temperature + i_row))
    high = tl.max(b_logit, axis=0)
    total = tl.sum(tl.exp(b_logit - tl.where(high == float("-inf"), 0.0, high)), axis=0)
    p_part = p_parts + i_row * 2 * SPLITS + i_split
    tl.store(p_part, high)
    tl.store(p_part + SPLITS, total)


@triton.jit
def _softmax_of_parts_kernel(
    p_logits,
    p_temperature,
    p_parts,
    p_probs,
    VOCAB: tl.constexpr,
    SPLITS: tl.constexpr,
    BLOCK_S: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """A program a block of a row, which is still in the L2 cache: its probabilities."""
    i_row = tl.program_id(0).to(tl.int64)
    # [BLOCK_V], loaded before the sum of parts is waited for
    o_v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    b_logit = tl.load(p_logits + i_row * VOCAB + o_v, mask=o_v < VOCAB, other=float("-inf")).to(tl.float32)
    temperature = tl.load(p_temperature + i_row)
    # [BLOCK_S]
    o_s = tl.arange(0, BLOCK_S)
    p_part = p_parts + i_row * 2 * SPLITS + o_s
    b_high = tl.load(p_part, mask=o_s < SPLITS, other=float("-inf"))
    high, total = _sum_of_parts(b_high, tl.load(p_part + SPLITS, mask=o_s < SPLITS, other=0.0))
    b_prob = tl.exp(tl.div_rn(b_logit, temperature) - high) / total
    tl.store(p_probs + i_row * VOCAB + o_v, b_prob, mask=o_v < VOCAB)


@triton.jit
def _sum_of_parts(b_high, b_sum):
    """The highest logit of all parts, and the sum of weights relative to it; each part's sum is relative to its own."""
    high = tl.max(b_high, axis=0)
    b_share = tl.exp(tl.where(b_high == float("-inf"), float("-inf"), b_high - high))
    return high, tl.sum(b_sum * b_share, axis=0)


@triton.jit
def _min_p_renorm_kernel(p_probs, p_min_p, p_renorm_probs, VOCAB: tl.constexpr, BLOCK_V: tl.constexpr):
    """One program a row: the highest probability, the sum of what is kept, and what is kept."""
    i_row = tl.program_id(0).to(tl.int64)
    p_row = p_probs + i_row * VOCAB
    # [BLOCK_V]
    b_high = tl.zeros([BLOCK_V], dtype=tl.float32)
    for i_first in range(0, VOCAB, BLOCK_V):
        o_v = i_first + tl.arange(0, BLOCK_V)
        b_high = tl.maximum(b_high, tl.load(p_row + o_v, mask=o_v < VOCAB, other=0.0))
    min_p = tl.load(p_min_p + i_row)
    pivot = tl.max(b_high, axis=0) * min_p
    b_sum = tl.zeros([BLOCK_V], dtype=tl.float32)
    for i_first in range(0, VOCAB, BLOCK_V):
        o_v = i_first + tl.arange(0, BLOCK_V)
        b_prob = tl.load(p_row + o_v, mask=o_v < VOCAB, other=0.0)
        b_sum += tl.where(b_prob >= pivot, b_prob, 0.0)
    total = tl.where(min_p > 0, tl.sum(b_sum, axis=0), 1.0)  # a row that nothing is taken from stays as it is
    for i_first in range(0, VOCAB, BLOCK_V):
        o_v = i_first + tl.arange(0, BLOCK_V)
        b_prob = tl.load(p_row + o_v, mask=o_v < VOCAB, other=0.0)
        b_kept = tl.div_rn(tl.where(b_prob >= pivot, b_prob, 0.0), total)
        tl.store(p_renorm_probs + i_row * VOCAB + o_v, b_kept, mask=o_v < VOCAB)
