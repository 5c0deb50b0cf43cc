"""From logits to laws: penalties, bias and grammar in place, the greedy token, softmax and min-p.

What changes element by element (penalties, grammar) is shared out over programs by blocks of the vocabulary and bound
by its bytes. What needs a whole row has one program a row, which reads it several times; after the first pass a row of
half a megabyte comes from the L2 cache, and rows enough to fill the chip are bound by the first pass and the write.
The greedy token of few rows is found by several programs a row.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.argmax import best_of_chunk, token_of
from specsim.kernels.launch import LOGITS, block_of, operation, require_size, require_vocabulary
from specsim.kernels.scratch import scratch_of
from specsim.kernels.split_rows import HEAD, arrive, leave, wait
from specsim.kernels.verify_logits import num_sms_of
from specsim.reference.logits import EXACT, NAN_HIGHEST, NAN_LOWEST, RELAXED, WORD_BITS

BLOCK_V = 1024
BLOCK_ROW = 8192
PROBS = (torch.float32,)


@operation()
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


@operation(logits=LOGITS)
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
    bs, ndt = candidates.shape
    num_nodes, vocab_size = logits.shape
    require_size("logits", "num_nodes", num_nodes, bs * ndt)
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


@operation(logits=LOGITS)
def apply_token_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor) -> None:
    """Forbid, in place, the tokens whose bit is 0: they get -inf, whatever they were.

    Shapes and dtypes: specsim.reference.logits.apply_token_bitmask; logits are float32, bfloat16 or float16. Logits are
    not read, and those that are allowed not written. Rows outside the tensor are skipped.
    """
    num_rows, vocab_size = logits.shape
    require_size("bitmask", "num_words", bitmask.shape[1], triton.cdiv(vocab_size, WORD_BITS))
    num_indices = indices.shape[0]
    if num_indices == 0 or num_rows == 0:
        return
    block_v = block_of(vocab_size, 4 * BLOCK_V)
    _apply_token_bitmask_kernel[(num_indices, triton.cdiv(vocab_size, block_v))](
        logits,
        bitmask,
        indices,
        num_rows,
        VOCAB=vocab_size,
        NUM_WORDS=bitmask.shape[1],
        BLOCK_V=block_v,
        num_warps=4,
    )


@operation(logits=LOGITS)
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


@operation(logits=LOGITS)
def temperature_softmax(logits: Tensor, temperature: Tensor, probs: Tensor) -> None:
    """Write the law of each row, the softmax of `logits / temperature`, in float32.

    Shapes: specsim.reference.logits.temperature_softmax; logits are float32, bfloat16 or float16. A row in which every
    token is forbidden has no law and becomes NaN.
    """
    num_rows = require_vocabulary("logits", logits)
    if num_rows == 0:
        return
    device, vocab_size = logits.device, logits.shape[1]
    # In Triton's interpreter programs run one after the other, and none may wait for another.
    splits = 1 if device.type == "cpu" else _softmax_splits(num_rows, vocab_size, num_sms_of(device))
    blocks = _row_blocks(triton.cdiv(vocab_size, splits))
    tuned = {"launch_cooperative_grid": True, "maxnreg": SOFTMAX_REGISTERS} if splits > 1 else {}
    _temperature_softmax_kernel[(num_rows * splits,)](
        logits,
        temperature,
        probs,
        scratch_of("temperature_softmax heads", device, num_rows * HEAD.value),
        scratch_of("temperature_softmax parts", device, num_rows * 2 * splits, torch.float32),
        VOCAB=vocab_size,
        SPLITS=splits,
        CHUNK=triton.cdiv(vocab_size, splits * blocks["BLOCK_V"]) * blocks["BLOCK_V"],
        **blocks,
        **tuned,
    )


SOFTMAX_CHUNK_MIN = 2048
SOFTMAX_SPLITS_MAX = 64
SOFTMAX_REGISTERS = 128
SM_REGISTERS = 65536


def _softmax_programs_per_sm(chunk: int) -> int:
    return SM_REGISTERS // (32 * _row_blocks(chunk)["num_warps"] * SOFTMAX_REGISTERS)


def _softmax_splits(num_rows: int, vocab_size: int, num_sms: int) -> int:
    """Programs a row, a power of two, that can all be on a device of `num_sms` multiprocessors at once."""
    splits = 1
    while (
        splits < SOFTMAX_SPLITS_MAX
        and 2 * splits * num_rows <= _softmax_programs_per_sm(triton.cdiv(vocab_size, 2 * splits)) * num_sms
        and 2 * splits * SOFTMAX_CHUNK_MIN <= vocab_size + SOFTMAX_CHUNK_MIN
    ):
        splits *= 2
    return splits


@operation()
def min_p_renorm_probs(probs: Tensor, min_p: Tensor, renorm_probs: Tensor) -> None:
    """Write the tokens that have at least the share `min_p` of the most probable one's probability, with sum 1.

    Shapes and dtypes: specsim.reference.logits.min_p_renorm_probs.
    """
    num_rows = require_vocabulary("probs", probs)
    if num_rows == 0:
        return
    _min_p_renorm_kernel[(num_rows,)](probs, min_p, renorm_probs, VOCAB=probs.shape[1], **_row_blocks(probs.shape[1]))


def _require_law(law: int) -> None:
    if law not in (EXACT, RELAXED):
        raise ValueError(f"law is {law}; allowed: EXACT ({EXACT}), RELAXED ({RELAXED})")


def _row_blocks(vocab_size: int) -> dict[str, int]:
    """Warps for 16 tokens a thread, so that each has several wide loads under way."""
    block_v = block_of(vocab_size, BLOCK_ROW)
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
    p_logits, p_bitmask, p_indices, num_rows, VOCAB: tl.constexpr, NUM_WORDS: tl.constexpr, BLOCK_V: tl.constexpr
):
    """One program a masked row and a block of the vocabulary."""
    i_row = tl.load(p_indices + tl.program_id(0)).to(tl.int64)
    end = tl.where((i_row >= 0) & (i_row < num_rows), VOCAB, 0)
    # [BLOCK_V]
    o_v = tl.program_id(1) * BLOCK_V + tl.arange(0, BLOCK_V)
    m_v = o_v < end
    b_word = tl.load(p_bitmask + i_row * NUM_WORDS + o_v // 32, mask=m_v, other=-1)
    m_forbidden = m_v & (((b_word >> (o_v % 32)) & 1) == 0)
    b_forbidden = tl.full([BLOCK_V], float("-inf"), p_logits.dtype.element_ty)
    tl.store(p_logits + i_row * VOCAB + o_v, b_forbidden, mask=m_forbidden)


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
def _temperature_softmax_kernel(
    p_logits,
    p_temperature,
    p_probs,
    p_heads,
    p_parts,
    VOCAB: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
):
    """`SPLITS` programs a row: the highest logit and the sum in one pass, lane by lane, and the law in a second."""
    i_row = tl.program_id(0).to(tl.int64) // SPLITS
    i_split = tl.program_id(0) % SPLITS
    i_begin = i_split * CHUNK
    i_end = tl.minimum(i_begin + CHUNK, VOCAB)
    p_row = p_logits + i_row * VOCAB
    temperature = tl.load(p_temperature + i_row)
    # [BLOCK_V]
    b_high = tl.full([BLOCK_V], float("-inf"), tl.float32)
    b_sum = tl.zeros([BLOCK_V], dtype=tl.float32)
    for i_first in range(0, CHUNK, BLOCK_V):
        o_v = i_begin + i_first + tl.arange(0, BLOCK_V)
        b_logit = tl.load(p_row + o_v, mask=o_v < i_end, other=float("-inf")).to(tl.float32)
        b_logit = tl.div_rn(b_logit, temperature)
        b_higher = tl.maximum(b_high, b_logit)
        b_base = tl.where(b_higher == float("-inf"), 0.0, b_higher)
        b_sum = b_sum * tl.exp(b_high - b_base) + tl.exp(b_logit - b_base)
        b_high = b_higher
    high, total = _sum_of_parts(b_high, b_sum)
    if SPLITS > 1:
        p_head = p_heads + i_row * HEAD
        p_part = p_parts + i_row * 2 * SPLITS
        tl.store(p_part + i_split, high)
        tl.store(p_part + SPLITS + i_split, total)
        arrive(p_head, SPLITS)
        wait(p_head, 0, i_split, SPLITS)
        # [SPLITS]
        o_s = tl.arange(0, SPLITS)
        b_high_s = tl.load(p_part + o_s, volatile=True)
        b_sum_s = tl.load(p_part + SPLITS + o_s, volatile=True)
        high, total = _sum_of_parts(b_high_s, b_sum_s)
    for i_first in range(0, CHUNK, BLOCK_V):
        o_v = i_begin + i_first + tl.arange(0, BLOCK_V)
        b_logit = tl.load(p_row + o_v, mask=o_v < i_end, other=float("-inf")).to(tl.float32)
        b_prob = tl.exp(tl.div_rn(b_logit, temperature) - high) / total
        tl.store(p_probs + i_row * VOCAB + o_v, b_prob, mask=o_v < i_end)
    if SPLITS > 1:
        leave(p_heads + i_row * HEAD, SPLITS)


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
    pivot = tl.max(b_high, axis=0) * tl.load(p_min_p + i_row)
    b_sum = tl.zeros([BLOCK_V], dtype=tl.float32)
    for i_first in range(0, VOCAB, BLOCK_V):
        o_v = i_first + tl.arange(0, BLOCK_V)
        b_prob = tl.load(p_row + o_v, mask=o_v < VOCAB, other=0.0)
        b_sum += tl.where(b_prob >= pivot, b_prob, 0.0)
    total = tl.sum(b_sum, axis=0)
    for i_first in range(0, VOCAB, BLOCK_V):
        o_v = i_first + tl.arange(0, BLOCK_V)
        b_prob = tl.load(p_row + o_v, mask=o_v < VOCAB, other=0.0)
        b_kept = tl.div_rn(tl.where(b_prob >= pivot, b_prob, 0.0), total)
        tl.store(p_renorm_probs + i_row * VOCAB + o_v, b_kept, mask=o_v < VOCAB)
