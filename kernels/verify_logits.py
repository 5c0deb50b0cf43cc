"""A whole greedy verification in one launch: from the target model's logits to what the next step begins with.

What bounds it at small batches: the launch, and one trip to memory and back for each accepted draft. At large ones the
bytes of the logits, and there is the choice: a tree's walk visits `accept_lens` of its `num_draft_tokens` nodes, and
only their rows matter.

* *eager*: every row is read by as many programs as fill the device; the last program of a request reduces its rows and
  walks. Nobody waits for anybody.
* *lazy*: `splits` programs a request go from node to node together. Each reduces its part of the current node's row,
  tells the others, waits for theirs, and finds the same next node as they do. They must all be on the device at once,
  which a cooperative launch guarantees; with one program a request nobody waits.

`plan_verify_logits_greedy` picks without knowing what will be accepted: lazy where even the longest path reads less.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.argmax import best_of_chunk, token_of
from specsim.kernels.launch import operation
from specsim.kernels.scratch import scratch_of

__all__ = ["verify_logits_greedy"]

SPLITS_MAX = 32
# What was fastest on an H200 of blocks of 1024 to 4096 logits, by 4 or 8 warps. Registers are capped where programs
# wait for each other, so that more of them are on the device at once.
EAGER = {"BLOCK_V": 2048, "num_warps": 8}
LAZY = {"BLOCK_V": 1024, "num_warps": 4}
LAZY_REGISTERS = 64
EAGER_PROGRAMS_PER_SM = 4
LAZY_PROGRAMS_PER_SM = 8

# A model of an H200, in microseconds and bytes or logits a microsecond, after bench/results: good enough to choose by.
_EAGER_RATE = 3.8e6
_LAZY_RATE = {4: 4.2e6, 2: 3.6e6}
_LEVEL = 1.5
_LAUNCH = 2.5
_LEVELS = 3  # what a walk takes when two drafts are accepted
_PIPELINE = 25.0  # a pipeline of launches: argmax, whose time is one of logits and not of bytes, walk and follow-ups
_PIPELINE_RATE = 1.03e6


class Plan(NamedTuple):
    """How a verification is launched: which variant, and over how many programs a row of logits is split."""

    is_lazy: bool
    splits: int


def plan_verify_logits_greedy(
    bs: int, num_draft_tokens: int, num_steps: int, vocab_size: int, itemsize: int, num_sms: int
) -> Plan:
    """The variant for a shape: lazy where it is faster when two drafts are accepted, and not slower than a pipeline of
    launches that reads every row when all are. `itemsize`: bytes of a logit; `num_sms`: multiprocessors.
    """
    row_bytes = vocab_size * itemsize
    levels = min(num_steps + 1, num_draft_tokens)
    level = _LEVEL + bs * row_bytes / _LAZY_RATE.get(itemsize, _EAGER_RATE)
    eager = _LAUNCH + bs * num_draft_tokens * row_bytes / _EAGER_RATE
    pipeline = _PIPELINE + bs * num_draft_tokens * vocab_size / _PIPELINE_RATE
    is_lazy = _LAUNCH + min(_LEVELS, levels) * level < eager and _LAUNCH + levels * level < pipeline
    return variant_plan(is_lazy, bs, num_draft_tokens, num_sms)


def variant_plan(is_lazy: bool, bs: int, num_draft_tokens: int, num_sms: int) -> Plan:
    """The splits that fill a device of `num_sms` multiprocessors."""
    if is_lazy:
        return Plan(True, splits_of(LAZY_PROGRAMS_PER_SM * num_sms // bs))
    return Plan(False, splits_of(EAGER_PROGRAMS_PER_SM * num_sms // (bs * num_draft_tokens)))


def splits_of(programs: int, most: int = SPLITS_MAX) -> int:
    """The power of two at or below a number of programs, 1 to `most`."""
    return min(most, 1 << max(0, programs.bit_length() - 1))


LOGITS = (torch.float32, torch.bfloat16, torch.float16)


@operation(logits=LOGITS)
def verify_logits_greedy(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    predicts: Tensor,
    accept_index: Tensor,
    accept_lens: Tensor,
    bonus_tokens: Tensor,
    new_seq_lens: Tensor,
    accept_tokens: Tensor,
    target: Tensor,
    source: Tensor,
    num_steps: int,
) -> None:
    """Verify a batch of trees greedily, from logits [num_nodes, vocab_size] in float32, bfloat16 or float16.

    Shapes and dtypes: specsim.reference.verify_logits.verify_logits_greedy. Launches `plan_verify_logits_greedy`'s
    choice. Every output is written whole but `predicts`, of which the accepted path is.
    """
    bs, num_draft_tokens = candidates.shape
    if bs == 0:
        return
    plan = plan_verify_logits_greedy(
        bs, num_draft_tokens, num_steps, logits.shape[1], logits.element_size(), num_sms_of(logits.device)
    )
    launch_verify_logits_greedy(
        plan,
        logits,
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        seq_lens,
        out_cache_loc,
        predicts,
        accept_index,
        accept_lens,
        bonus_tokens,
        new_seq_lens,
        accept_tokens,
        target,
        source,
        num_steps,
    )


def launch_verify_logits_greedy(plan: Plan, logits: Tensor, candidates: Tensor, *rest: Any) -> None:
    """`verify_logits_greedy` by a plan of the caller's. In the interpreter, where programs run one after the other,
    none may wait for another: there the lazy variant takes one program a request.
    """
    *tensors, num_steps = rest
    bs, num_draft_tokens = candidates.shape
    if bs == 0:
        return
    on_gpu = logits.device.type == "cuda"
    splits = plan.splits if on_gpu or not plan.is_lazy else 1
    width, vocab_size = num_steps + 1, logits.shape[1]
    words = width if plan.is_lazy else num_draft_tokens
    tuned: dict[str, Any] = dict(LAZY if plan.is_lazy else EAGER)
    if plan.is_lazy and on_gpu:
        tuned |= {"maxnreg": LAZY_REGISTERS, "launch_cooperative_grid": splits > 1}
    kernel = _lazy_kernel if plan.is_lazy else _eager_kernel
    kernel[(bs * splits * (1 if plan.is_lazy else num_draft_tokens),)](
        logits,
        candidates,
        *tensors,
        scratch_of("verify_logits_greedy", logits.device, bs * (words * splits + 1)),
        bs * num_draft_tokens,
        VOCAB_SIZE=vocab_size,
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        SPLITS=splits,
        CHUNK=triton.cdiv(vocab_size, splits * tuned["BLOCK_V"]) * tuned["BLOCK_V"],
        BLOCK_W=triton.next_power_of_2(width),
        BLOCK_N=triton.next_power_of_2(num_draft_tokens),
        **tuned,
    )


def num_sms_of(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@triton.jit
def touch_links(
    p_retrieve_index,
    p_candidates,
    p_next_token,
    p_next_sibling,
    i_first_node,
    NDT: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """Bring a tree to the nearest cache, for the walk reads it one word at a time. Gives 0."""
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < NDT
    b_any = tl.load(p_retrieve_index + i_first_node + o_n, mask=m_n, other=0)
    b_any |= tl.load(p_candidates + i_first_node + o_n, mask=m_n, other=0)
    b_any |= tl.load(p_next_token + i_first_node + o_n, mask=m_n, other=0)
    b_any |= tl.load(p_next_sibling + i_first_node + o_n, mask=m_n, other=0)
    return (tl.max(b_any, axis=0) == 0x7FFFFFFFFFFFFFFF).to(tl.int64)


@triton.jit
def _accepting_child(p_candidates, p_next_token, p_next_sibling, i_first_node, i_node, i_token, NDT: tl.constexpr):
    """The first child of a node whose token is `i_token`, -1 if there is none. Ends on any links."""
    i_child = tl.load(p_next_token + i_first_node + i_node)
    i_found = tl.full([], -1, dtype=tl.int64)
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT) & (i_found < 0):
        i_candidate = tl.load(p_candidates + i_first_node + i_child)
        i_sibling = tl.load(p_next_sibling + i_first_node + i_child)
        i_found = tl.where(i_candidate == i_token, i_child, -1)
        i_child = i_sibling
        i_hop += 1
    return i_found


@triton.jit
def store_step(
    i_b,
    b_path,
    b_token,
    i_accepted,
    p_seq_lens,
    p_out_cache_loc,
    p_predicts,
    p_accept_index,
    p_accept_lens,
    p_bonus_tokens,
    p_new_seq_lens,
    p_accept_tokens,
    p_target,
    p_source,
    num_nodes,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """Write what a request's path gives: `b_path` and `b_token` [BLOCK_W] hold `i_accepted` + 1 nodes, then -1."""
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w <= NUM_STEPS
    m_path = (o_w <= i_accepted) & (b_path >= 0) & (b_path < num_nodes)
    o_out = i_b * (NUM_STEPS + 1) + o_w
    tl.store(p_predicts + b_path, b_token.to(tl.int32), mask=m_path)
    tl.store(p_accept_index + o_out, b_path.to(tl.int32), mask=m_w)
    tl.store(p_accept_tokens + o_out, b_token.to(tl.int32), mask=m_w)
    b_target = tl.load(p_out_cache_loc + i_b * NDT + o_w, mask=m_path, other=0)
    b_source = tl.load(p_out_cache_loc + b_path, mask=m_path, other=0)
    tl.store(p_target + o_out, b_target, mask=m_w)
    tl.store(p_source + o_out, b_source, mask=m_w)
    tl.store(p_accept_lens + i_b, i_accepted + 1)
    i_bonus = tl.sum(tl.where(o_w == i_accepted, b_token, 0), axis=0)
    tl.store(p_bonus_tokens + i_b, i_bonus.to(tl.int32))
    tl.store(p_new_seq_lens + i_b, tl.load(p_seq_lens + i_b) + i_accepted + 1)


@triton.jit(do_not_specialize=["num_nodes"])
def _eager_kernel(
    p_logits,
    p_candidates,
    p_retrieve_index,
    p_next_token,
    p_next_sibling,
    p_seq_lens,
    p_out_cache_loc,
    p_predicts,
    p_accept_index,
    p_accept_lens,
    p_bonus_tokens,
    p_new_seq_lens,
    p_accept_tokens,
    p_target,
    p_source,
    p_scratch,
    num_nodes,
    VOCAB_SIZE: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program a part of a row; the last of a request walks. Scratch of a request: its words, and a count."""
    i_program = tl.program_id(0)
    i_b = (i_program // (NDT * SPLITS)).to(tl.int64)
    i_part = i_program % (NDT * SPLITS)
    i_first_node = i_b * NDT
    p_words = p_scratch + i_b * (NDT * SPLITS + 1)
    p_count = p_words + NDT * SPLITS

    i_row = i_first_node + i_part // SPLITS
    i_word = best_of_chunk(p_logits + i_row * VOCAB_SIZE, (i_part % SPLITS) * CHUNK, VOCAB_SIZE, CHUNK, BLOCK_V, True)
    tl.atomic_xchg(p_words + i_part, i_word, sem="relaxed")
    i_before = tl.atomic_add(p_count, 1, sem="acq_rel")
    if i_before == NDT * SPLITS - 1:
        # [BLOCK_N, SPLITS]
        o_n = tl.arange(0, BLOCK_N)
        o_word = o_n[:, None] * SPLITS + tl.arange(0, SPLITS)[None, :]
        m_word = (o_n < NDT)[:, None] & (o_word >= 0)
        b_words = tl.load(p_words + o_word, mask=m_word, other=0, volatile=True)
        b_target = token_of(tl.max(b_words, axis=1))  # [BLOCK_N]: the target model's token after each row's node

        o_w = tl.arange(0, BLOCK_W)
        i_node = tl.full([], 0, dtype=tl.int64)
        i_number = tl.load(p_retrieve_index + i_first_node)
        i_token = tl.sum(tl.where(o_n == i_number - i_first_node, b_target, 0), axis=0)
        b_path = tl.where(o_w == 0, i_number, -1)
        b_token = tl.where(o_w == 0, i_token, -1)
        i_accepted = 0
        while (i_node >= 0) & (i_accepted < NUM_STEPS):
            i_node = _accepting_child(p_candidates, p_next_token, p_next_sibling, i_first_node, i_node, i_token, NDT)
            if i_node >= 0:
                i_accepted += 1
                i_number = tl.load(p_retrieve_index + i_first_node + i_node)
                i_token = tl.sum(tl.where(o_n == i_number - i_first_node, b_target, 0), axis=0)
                b_path = tl.where(o_w == i_accepted, i_number, b_path)
                b_token = tl.where(o_w == i_accepted, i_token, b_token)
        store_step(
            i_b,
            b_path,
            b_token,
            i_accepted,
            p_seq_lens,
            p_out_cache_loc,
            p_predicts,
            p_accept_index,
            p_accept_lens,
            p_bonus_tokens,
            p_new_seq_lens,
            p_accept_tokens,
            p_target,
            p_source,
            num_nodes,
            NUM_STEPS,
            NDT,
            BLOCK_W,
        )
        tl.store(p_words + o_word, tl.zeros([BLOCK_N, SPLITS], dtype=tl.int64), mask=m_word)
        tl.atomic_xchg(p_count, 0, sem="relaxed")


@triton.jit(do_not_specialize=["num_nodes"])
def _lazy_kernel(
    p_logits,
    p_candidates,
    p_retrieve_index,
    p_next_token,
    p_next_sibling,
    p_seq_lens,
    p_out_cache_loc,
    p_predicts,
    p_accept_index,
    p_accept_lens,
    p_bonus_tokens,
    p_new_seq_lens,
    p_accept_tokens,
    p_target,
    p_source,
    p_scratch,
    num_nodes,
    VOCAB_SIZE: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """`SPLITS` programs a request. Scratch of a request: a word of each program for each level, 0 until it is known,
    and a count of the programs that are done.
    """
    i_program = tl.program_id(0)
    i_b = (i_program // SPLITS).to(tl.int64)
    i_split = i_program % SPLITS
    i_first_node = i_b * NDT
    p_words = p_scratch + i_b * ((NUM_STEPS + 1) * SPLITS + 1)
    o_split = tl.arange(0, SPLITS)
    o_w = tl.arange(0, BLOCK_W)

    b_path = tl.full([BLOCK_W], -1, dtype=tl.int64)
    b_token = tl.full([BLOCK_W], -1, dtype=tl.int64)
    i_node = touch_links(p_retrieve_index, p_candidates, p_next_token, p_next_sibling, i_first_node, NDT, BLOCK_N)
    i_level = 0
    while (i_node >= 0) & (i_level <= NUM_STEPS):
        i_number = tl.load(p_retrieve_index + i_first_node + i_node)
        i_row = tl.where((i_number >= 0) & (i_number < num_nodes), i_number, i_first_node)
        i_word = best_of_chunk(p_logits + i_row * VOCAB_SIZE, i_split * CHUNK, VOCAB_SIZE, CHUNK, BLOCK_V, True)
        if SPLITS > 1:
            p_level = p_words + i_level * SPLITS
            tl.atomic_xchg(p_level + i_split, i_word, sem="relaxed")
            b_words = tl.load(p_level + o_split, volatile=True)
            while tl.min(b_words, axis=0) == 0:
                b_words = tl.load(p_level + o_split, volatile=True)
            i_word = tl.max(b_words, axis=0)
        i_token = token_of(i_word)
        b_path = tl.where(o_w == i_level, i_number, b_path)
        b_token = tl.where(o_w == i_level, i_token, b_token)
        i_node = _accepting_child(p_candidates, p_next_token, p_next_sibling, i_first_node, i_node, i_token, NDT)
        i_level += 1

    if i_split == 0:
        store_step(
            i_b,
            b_path,
            b_token,
            i_level - 1,
            p_seq_lens,
            p_out_cache_loc,
            p_predicts,
            p_accept_index,
            p_accept_lens,
            p_bonus_tokens,
            p_new_seq_lens,
            p_accept_tokens,
            p_target,
            p_source,
            num_nodes,
            NUM_STEPS,
            NDT,
            BLOCK_W,
        )
    if SPLITS > 1:
        p_done = p_words + (NUM_STEPS + 1) * SPLITS
        i_before = tl.atomic_add(p_done, 1, sem="acq_rel")
        if i_before == SPLITS - 1:  # everybody has read everything: leave zeros for the next launch
            for i in range(i_level):
                tl.store(p_words + i * SPLITS + o_split, tl.zeros([SPLITS], dtype=tl.int64))
            tl.store(p_done, 0)
