"""A whole greedy verification in one launch: from the target model's logits to what the next step begins with.

What bounds it at small batches: the launch, and one trip to memory and back for each accepted draft. At large ones the
bytes of the logits, and there is the choice: a tree's walk visits `accept_lens` of its `num_draft_tokens` nodes, and
only their rows matter.

* *eager*: every row is read by as many programs as fill the device; the last program of a request reduces its rows and
  walks. Nobody waits for anybody.
* *lazy*: `splits` programs a request go from node to node together. Each reduces its part of the current node's row,
  tells the others, waits for theirs, and finds the same next node as they do. They must all be on the device at once,
  which a cooperative launch guarantees; with one program a request none waits.

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
from specsim.kernels.launch import LOGITS, checked_launch, options_of
from specsim.kernels.scratch import scratch_of
from specsim.kernels.verify import TreeTensors

__all__ = ["verify_logits_greedy"]

SPLITS_MAX = 32
# Logits of a block, and warps: what was fastest on an H200 of 1024 to 4096 and of 4 and 8. Registers are capped where
# programs wait for each other, so that more of them are on the device at once.
EAGER = (2048, 8)
LAZY = (1024, 4)
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


class LaunchPlan(NamedTuple):
    """How a verification is launched: which variant, and over how many programs a row of logits is split."""

    is_lazy: bool
    splits: int


def plan_verify_logits_greedy(
    bs: int, num_draft_tokens: int, num_steps: int, vocab_size: int, itemsize: int, num_sms: int
) -> LaunchPlan:
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


def variant_plan(is_lazy: bool, bs: int, num_draft_tokens: int, num_sms: int) -> LaunchPlan:
    """The splits that fill a device of `num_sms` multiprocessors."""
    if is_lazy:
        return LaunchPlan(True, splits_of(LAZY_PROGRAMS_PER_SM * num_sms // bs))
    return LaunchPlan(False, splits_of(EAGER_PROGRAMS_PER_SM * num_sms // (bs * num_draft_tokens)))


def splits_of(programs: int, most: int = SPLITS_MAX) -> int:
    """The power of two at or below a number of programs, 1 to `most`."""
    return min(most, 1 << max(0, programs.bit_length() - 1))


class StepTensors(NamedTuple):
    """What a step reads beside its trees and writes: addresses of tensors as the reference has them."""

    seq_lens: Any
    out_cache_loc: Any
    predicts: Any
    accept_index: Any
    accept_lens: Any
    bonus_tokens: Any
    new_seq_lens: Any
    accept_tokens: Any
    target: Any
    source: Any


class VerifyShape(NamedTuple):
    """A verification's sizes and how rows are cut up, known when a kernel is compiled.

    NDT      num_draft_tokens
    SPLITS   programs a row, a power of two; CHUNK: tokens of each; BLOCK_V: tokens that are read at once
    BLOCK_W  lanes of a vector over the nodes of a path; BLOCK_N: over the nodes of a tree
    """

    VOCAB_SIZE: int
    NUM_STEPS: int
    NDT: int
    SPLITS: int
    CHUNK: int
    BLOCK_V: int
    BLOCK_W: int
    BLOCK_N: int


@checked_launch(logits=LOGITS)
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
    tree = TreeTensors(candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling)
    outputs = (predicts, accept_index, accept_lens, bonus_tokens, new_seq_lens, accept_tokens, target, source)
    launch_verify_logits_greedy(plan, logits, tree, StepTensors(seq_lens, out_cache_loc, *outputs), num_steps)


def launch_verify_logits_greedy(
    plan: LaunchPlan, logits: Tensor, tree: TreeTensors, step: StepTensors, num_steps: int
) -> None:
    """`verify_logits_greedy` by a plan of the caller's. In the interpreter, where programs run one after the other,
    none may wait for another: there the lazy variant takes one program a request.
    """
    bs, num_draft_tokens = tree.candidates.shape
    if bs == 0:
        return
    on_gpu = logits.device.type != "cpu"
    splits = plan.splits if on_gpu or not plan.is_lazy else 1
    width, vocab_size = num_steps + 1, logits.shape[1]
    words = width if plan.is_lazy else num_draft_tokens
    block_v, num_warps = LAZY if plan.is_lazy else EAGER
    options: dict[str, Any] = {"num_warps": num_warps}
    if plan.is_lazy:
        options = options_of(logits.device, num_warps, LAZY_REGISTERS, splits)
    shape = VerifyShape(
        VOCAB_SIZE=vocab_size,
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        SPLITS=splits,
        CHUNK=triton.cdiv(vocab_size, splits * block_v) * block_v,
        BLOCK_V=block_v,
        BLOCK_W=triton.next_power_of_2(width),
        BLOCK_N=triton.next_power_of_2(num_draft_tokens),
    )
    scratch = scratch_of("verify_logits_greedy", logits.device, bs * (words * splits + 1))
    kernel = _lazy_kernel if plan.is_lazy else _eager_kernel
    programs = bs * splits * (1 if plan.is_lazy else num_draft_tokens)
    kernel[(programs,)](logits, tree, step, scratch, bs * num_draft_tokens, SHAPE=shape, **options)


def num_sms_of(device: torch.device) -> int:
    return int(torch.cuda.get_device_properties(device).multi_processor_count) if device.type == "cuda" else 1


@triton.jit
def touch_links(tree, i_first_node, NDT: tl.constexpr, BLOCK_N: tl.constexpr):
    """Bring a tree to the nearest cache, for the walk reads it one word at a time. Gives 0."""
    # [BLOCK_N]
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < NDT
    b_any = tl.load(tree.retrieve_index + i_first_node + o_n, mask=m_n, other=0)
    b_any |= tl.load(tree.candidates + i_first_node + o_n, mask=m_n, other=0)
    b_any |= tl.load(tree.next_token + i_first_node + o_n, mask=m_n, other=0)
    b_any |= tl.load(tree.next_sibling + i_first_node + o_n, mask=m_n, other=0)
    return (tl.max(b_any, axis=0) == 0x7FFFFFFFFFFFFFFF).to(tl.int64)


@triton.jit
def _accepting_child(tree, i_first_node, i_node, i_token, NDT: tl.constexpr):
    """The first child of a node whose token is `i_token`, -1 if there is none. Ends on any links."""
    i_child = tl.load(tree.next_token + i_first_node + i_node)
    i_found = tl.full([], -1, dtype=tl.int64)
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT) & (i_found < 0):
        i_candidate = tl.load(tree.candidates + i_first_node + i_child)
        i_sibling = tl.load(tree.next_sibling + i_first_node + i_child)
        i_found = tl.where(i_candidate == i_token, i_child, -1)
        i_child = i_sibling
        i_hop += 1
    return i_found


@triton.jit
def store_step(
    i_b, b_path, b_token, i_accepted, step, num_nodes, NUM_STEPS: tl.constexpr, NDT: tl.constexpr, BLOCK_W: tl.constexpr
):
    """Write what a request's path gives: `b_path` and `b_token` [BLOCK_W] hold `i_accepted` + 1 nodes, then -1."""
    # [BLOCK_W]
    o_w = tl.arange(0, BLOCK_W)
    m_w = o_w <= NUM_STEPS
    m_path = (o_w <= i_accepted) & (b_path >= 0) & (b_path < num_nodes)
    o_out = i_b * (NUM_STEPS + 1) + o_w
    tl.store(step.predicts + b_path, b_token.to(tl.int32), mask=m_path)
    tl.store(step.accept_index + o_out, b_path.to(tl.int32), mask=m_w)
    tl.store(step.accept_tokens + o_out, b_token.to(tl.int32), mask=m_w)
    b_target = tl.load(step.out_cache_loc + i_b * NDT + o_w, mask=m_path, other=0)
    b_source = tl.load(step.out_cache_loc + b_path, mask=m_path, other=0)
    tl.store(step.target + o_out, b_target, mask=m_w)
    tl.store(step.source + o_out, b_source, mask=m_w)
    tl.store(step.accept_lens + i_b, i_accepted + 1)
    i_bonus = tl.sum(tl.where(o_w == i_accepted, b_token, 0), axis=0)
    tl.store(step.bonus_tokens + i_b, i_bonus.to(tl.int32))
    tl.store(step.new_seq_lens + i_b, tl.load(step.seq_lens + i_b) + i_accepted + 1)


@triton.jit(do_not_specialize=["num_nodes"])
def _eager_kernel(p_logits, tree, step, p_scratch, num_nodes, SHAPE: tl.constexpr):
    """One program a part of a row; the last of a request walks. Scratch of a request: its words, and a count."""
    i_program = tl.program_id(0)
    i_b = (i_program // (SHAPE.NDT * SHAPE.SPLITS)).to(tl.int64)
    i_part = i_program % (SHAPE.NDT * SHAPE.SPLITS)
    i_first_node = i_b * SHAPE.NDT
    p_words = p_scratch + i_b * (SHAPE.NDT * SHAPE.SPLITS + 1)
    p_count = p_words + SHAPE.NDT * SHAPE.SPLITS

    i_row = i_first_node + i_part // SHAPE.SPLITS
    p_row, i_first = p_logits + i_row * SHAPE.VOCAB_SIZE, (i_part % SHAPE.SPLITS) * SHAPE.CHUNK
    i_word = best_of_chunk(p_row, i_first, SHAPE.VOCAB_SIZE, SHAPE.CHUNK, SHAPE.BLOCK_V, True)
    tl.atomic_xchg(p_words + i_part, i_word, sem="relaxed")
    i_before = tl.atomic_add(p_count, 1, sem="acq_rel")
    if i_before == SHAPE.NDT * SHAPE.SPLITS - 1:
        # [BLOCK_N, SPLITS]
        o_n = tl.arange(0, SHAPE.BLOCK_N)
        o_word = o_n[:, None] * SHAPE.SPLITS + tl.arange(0, SHAPE.SPLITS)[None, :]
        m_word = (o_n < SHAPE.NDT)[:, None] & (o_word >= 0)
        b_words = tl.load(p_words + o_word, mask=m_word, other=0, volatile=True)
        b_target = token_of(tl.max(b_words, axis=1))  # [BLOCK_N]: the target model's token after each row's node

        o_w = tl.arange(0, SHAPE.BLOCK_W)
        i_node = tl.full([], 0, dtype=tl.int64)
        i_number = tl.load(tree.retrieve_index + i_first_node)
        i_token = tl.sum(tl.where(o_n == i_number - i_first_node, b_target, 0), axis=0)
        b_path = tl.where(o_w == 0, i_number, -1)
        b_token = tl.where(o_w == 0, i_token, -1)
        i_accepted = 0
        while (i_node >= 0) & (i_accepted < SHAPE.NUM_STEPS):
            i_node = _accepting_child(tree, i_first_node, i_node, i_token, SHAPE.NDT)
            if i_node >= 0:
                i_accepted += 1
                i_number = tl.load(tree.retrieve_index + i_first_node + i_node)
                i_token = tl.sum(tl.where(o_n == i_number - i_first_node, b_target, 0), axis=0)
                b_path = tl.where(o_w == i_accepted, i_number, b_path)
                b_token = tl.where(o_w == i_accepted, i_token, b_token)
        store_step(i_b, b_path, b_token, i_accepted, step, num_nodes, SHAPE.NUM_STEPS, SHAPE.NDT, SHAPE.BLOCK_W)
        tl.store(p_words + o_word, tl.full([SHAPE.BLOCK_N, SHAPE.SPLITS], 0, dtype=tl.int64), mask=m_word)
        tl.atomic_xchg(p_count, 0, sem="relaxed")


@triton.jit(do_not_specialize=["num_nodes"])
def _lazy_kernel(p_logits, tree, step, p_scratch, num_nodes, SHAPE: tl.constexpr):
    """`SPLITS` programs a request. Scratch of a request: a word of each program for each level, 0 until it is known,
    and a count of the programs that are done.
    """
    i_program = tl.program_id(0)
    i_b = (i_program // SHAPE.SPLITS).to(tl.int64)
    i_split = i_program % SHAPE.SPLITS
    i_first_node = i_b * SHAPE.NDT
    p_words = p_scratch + i_b * ((SHAPE.NUM_STEPS + 1) * SHAPE.SPLITS + 1)
    o_split = tl.arange(0, SHAPE.SPLITS)
    o_w = tl.arange(0, SHAPE.BLOCK_W)

    b_path = tl.full([SHAPE.BLOCK_W], -1, dtype=tl.int64)
    b_token = tl.full([SHAPE.BLOCK_W], -1, dtype=tl.int64)
    i_node = touch_links(tree, i_first_node, SHAPE.NDT, SHAPE.BLOCK_N)
    i_level = 0
    while (i_node >= 0) & (i_level <= SHAPE.NUM_STEPS):
        i_number = tl.load(tree.retrieve_index + i_first_node + i_node)
        i_row = tl.where((i_number >= 0) & (i_number < num_nodes), i_number, i_first_node)
        p_row, i_first = p_logits + i_row * SHAPE.VOCAB_SIZE, i_split * SHAPE.CHUNK
        i_word = best_of_chunk(p_row, i_first, SHAPE.VOCAB_SIZE, SHAPE.CHUNK, SHAPE.BLOCK_V, True)
        if SHAPE.SPLITS > 1:
            p_level = p_words + i_level * SHAPE.SPLITS
            tl.atomic_xchg(p_level + i_split, i_word, sem="relaxed")
            b_words = tl.load(p_level + o_split, volatile=True)
            while tl.min(b_words, axis=0) == 0:
                b_words = tl.load(p_level + o_split, volatile=True)
            i_word = tl.max(b_words, axis=0)
        i_token = token_of(i_word)
        b_path = tl.where(o_w == i_level, i_number, b_path)
        b_token = tl.where(o_w == i_level, i_token, b_token)
        i_node = _accepting_child(tree, i_first_node, i_node, i_token, SHAPE.NDT)
        i_level += 1

    if i_split == 0:
        store_step(i_b, b_path, b_token, i_level - 1, step, num_nodes, SHAPE.NUM_STEPS, SHAPE.NDT, SHAPE.BLOCK_W)
    if SHAPE.SPLITS > 1:
        p_done = p_words + (SHAPE.NUM_STEPS + 1) * SHAPE.SPLITS
        i_before = tl.atomic_add(p_done, 1, sem="acq_rel")
        if i_before == SHAPE.SPLITS - 1:  # all have read all: leave zeros for the next launch
            for i in range(i_level):
                tl.store(p_words + i * SHAPE.SPLITS + o_split, tl.full([SHAPE.SPLITS], 0, dtype=tl.int64))
            tl.store(p_done, 0)
