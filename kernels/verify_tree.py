"""Verification of trees at a temperature, sibling after sibling, and the draw of the token after the walk: one launch.

What a rejected sibling leaves of both distributions is not stored: it is computed again from the two rows, with the
totals of the rejections before. So each rejection reads both rows once, and the programs of a request share them. The
rejection after which the walk ends has left the sums of which the token is drawn.

Sums have a fixed order, the same whatever the number of programs: each block of `BLOCK_V` tokens is reduced, and the
blocks' sums are added up. Results are the same bit for bit from run to run and in any batch.

What bounds it is one trip to memory and one barrier of a request's programs for each rejected sibling; at large batches
the bytes of the rows.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton
import triton.language as tl

from specsim.kernels.launch import block_of, checked_launch, options_of
from specsim.kernels.sampling import at_most_one, find_block, find_token, positive
from specsim.kernels.scratch import scratch_of
from specsim.kernels.split_rows import HEAD, arrive, leave, wait
from specsim.kernels.verify import Path, TreeTensors, store_path
from specsim.kernels.verify_logits import num_sms_of, splits_of

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["verify_tree_rejection"]

SCRATCH = "verify_tree_rejection"
BLOCK_V = 2048
NUM_WARPS = 4
PROGRAMS_PER_SM = 4
REGISTERS = 65536 // (32 * NUM_WARPS * PROGRAMS_PER_SM)


@checked_launch()
def verify_tree_rejection(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    num_steps: int,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
) -> None:
    """Walk each tree; every child has a uniform draw of its own, compared with what its siblings have left over.

    Shapes and dtypes: specsim.reference.sampling.verify_tree_rejection; distributions and uniform draws are float32.

    Writes `accept_index` and `accept_token_num` whole, and `predicts` at the accepted path alone. A walk visits at most
    `num_draft_tokens` nodes. Compiles once for each power of two that a row is shared over.
    """
    bs, num_draft_tokens, vocab_size = target_probs.shape
    if bs == 0:
        return
    device = target_probs.device
    block_v = block_of(vocab_size, BLOCK_V)
    blocks = triton.next_power_of_2(triton.cdiv(vocab_size, block_v))
    is_shared = device.type != "cpu"  # in the interpreter no program may wait for another
    splits = splits_of(PROGRAMS_PER_SM * num_sms_of(device) // bs, blocks) if is_shared else 1
    _verify_tree_rejection_kernel[(bs * splits,)](
        TreeTensors(candidates, retrieve_index, retrieve_next_token, retrieve_next_sibling),
        uniform_samples,
        uniform_final,
        draft_probs,
        target_probs,
        Path(predicts, accept_index, accept_token_num),
        TreeScratch(
            scratch_of(f"{SCRATCH} heads", device, bs * HEAD.value),
            scratch_of(f"{SCRATCH} sums", device, bs * 4 * blocks, torch.float32),
            scratch_of(f"{SCRATCH} tokens", device, bs * splits * num_draft_tokens),
            scratch_of(f"{SCRATCH} totals", device, bs * splits * num_draft_tokens * 2, torch.float32),
        ),
        predicts.shape[0],
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        VOCAB=vocab_size,
        BLOCK_W=triton.next_power_of_2(num_steps + 1),
        BLOCK_V=block_v,
        NUM_BLOCKS=blocks,
        SPLITS=splits,
        **options_of(device, max(1, min(NUM_WARPS, block_v // 256)), REGISTERS, splits),
    )


class TreeScratch(NamedTuple):
    """Memory of a launch.

    heads   [bs, HEAD] int64: as `specsim.kernels.split_rows` has it, zero between launches
    sums    [bs, sets of 2, 2, NUM_BLOCKS] float32: of each block of both distributions
    tokens  [bs * SPLITS, NDT] int64, totals [bs * SPLITS, NDT, 2] float32: each program's `Rejected`
    """

    heads: Any
    sums: Any
    tokens: Any
    totals: Any


class Rejected(NamedTuple):
    """The children of a node that were rejected, of which there are `number`: addresses of their tokens, and of the
    totals by which each rejection normalises what it leaves of the target's and of the draft's distribution.
    """

    tokens: Any
    totals: Any
    number: Any


class Rows(NamedTuple):
    """The rows of a node: addresses of the target's and of the draft's probabilities [VOCAB]."""

    p: Any
    q: Any


@triton.jit
def _left_over(b_p, b_q, o_v, rejected):
    """Distributions p and q at tokens `o_v`, a block or a scalar, after the children in `rejected`."""
    i = 0
    while i < rejected.number:
        b_p = tl.div_rn(positive(b_p - b_q), tl.load(rejected.totals + 2 * i))
        b_q = tl.div_rn(tl.where(o_v == tl.load(rejected.tokens + i), 0.0, b_q), tl.load(rejected.totals + 2 * i + 1))
        i += 1
    return b_p, b_q


@triton.jit
def _left_in_block(rows, i_block, len_q, rejected, VOCAB: tl.constexpr, BLOCK_V: tl.constexpr):
    """Tokens of a block [BLOCK_V], and both distributions there; of the draft's nothing at and after `len_q`."""
    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    b_p = tl.load(rows.p + o_v, mask=o_v < VOCAB, other=0.0)
    b_q = at_most_one(tl.load(rows.q + o_v, mask=o_v < len_q, other=0.0))
    b_p, b_q = _left_over(b_p, b_q, o_v, rejected)
    return o_v, b_p, b_q


@triton.jit
def _sums_of_blocks(
    rows,
    i_token,
    len_q,
    rejected,
    p_head,
    p_sums,
    i_barrier,
    VOCAB: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """What a rejection of `i_token` leaves of both distributions in each block [NUM_BLOCKS], which the programs of a
    request find out together. Also gives the next barrier's number: a set of sums is free again after two barriers.
    """
    i_split = tl.program_id(0) % SPLITS
    num_blocks = (VOCAB + BLOCK_V - 1) // BLOCK_V
    p_p = p_sums + (i_barrier % 2) * 2 * NUM_BLOCKS
    p_q = p_p + NUM_BLOCKS
    for i_block in range(i_split, num_blocks, SPLITS):
        o_v, b_p, b_q = _left_in_block(rows, i_block, len_q, rejected, VOCAB, BLOCK_V)
        tl.store(p_p + i_block, tl.sum(positive(b_p - b_q), axis=0))
        tl.store(p_q + i_block, tl.sum(tl.where(o_v == i_token, 0.0, b_q), axis=0))
    arrive(p_head, SPLITS)
    i_barrier = wait(p_head, i_barrier, i_split, SPLITS)
    o_block = tl.arange(0, NUM_BLOCKS)
    b_p = tl.load(p_p + o_block, mask=o_block < num_blocks, other=0.0, volatile=True)
    b_q = tl.load(p_q + o_block, mask=o_block < num_blocks, other=0.0, volatile=True)
    return b_p, b_q, i_barrier


@triton.jit(do_not_specialize=["num_nodes"])
def _verify_tree_rejection_kernel(
    tree,
    p_uniform_samples,
    p_uniform_final,
    p_draft_probs,
    p_target_probs,
    path,
    scratch,
    num_nodes,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
    SPLITS: tl.constexpr,
):
    """`SPLITS` programs a request, which take the walk's decisions alike."""
    i_program = tl.program_id(0).to(tl.int64)
    i_b = i_program // SPLITS
    i_first_node = i_b * NDT
    p_head = scratch.heads + i_b * HEAD
    p_sums = scratch.sums + i_b * 4 * NUM_BLOCKS
    p_tokens = scratch.tokens + i_program * NDT
    p_totals = scratch.totals + i_program * NDT * 2
    o_w = tl.arange(0, BLOCK_W)

    i_node = i_b * 0
    i_child = tl.load(tree.next_token + i_first_node)
    # [BLOCK_W]: accepted nodes, and the token after each
    b_path = tl.where(o_w == 0, tl.load(tree.retrieve_index + i_first_node), -1)
    b_token = tl.full([BLOCK_W], 0, tl.int64)
    num_rejected = 0  # children of `i_node` whose rejection changed its distributions
    # [NUM_BLOCKS]: what the last of them left of the target's distribution, by block
    b_sums = tl.full([NUM_BLOCKS], 0.0, tl.float32)
    i_barrier = 0
    i_accepted = 0
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT) & (i_accepted < NUM_STEPS):
        o_child = i_first_node + i_child
        i_token = tl.load(tree.candidates + o_child)
        i_number = tl.load(tree.retrieve_index + o_child)
        i_next_token = tl.load(tree.next_token + o_child)
        i_next_sibling = tl.load(tree.next_sibling + o_child)
        draw = tl.load(p_uniform_samples + o_child)
        o_row = (i_first_node + i_node) * VOCAB
        rows = Rows(p_target_probs + o_row, p_draft_probs + o_row)
        rejected = Rejected(p_tokens, p_totals, num_rejected)
        m_token = (i_token >= 0) & (i_token < VOCAB)
        p = tl.load(rows.p + i_token, mask=m_token, other=0.0)
        q = at_most_one(tl.load(rows.q + i_token, mask=m_token, other=0.0))
        p, q = _left_over(p, q, i_token, rejected)
        is_accepted = (draw * q < p) & (q > 0)
        if (~is_accepted) & (q > 0):
            b_sums, b_sums_q, i_barrier = _sums_of_blocks(
                rows, i_token, VOCAB, rejected, p_head, p_sums, i_barrier, VOCAB, BLOCK_V, NUM_BLOCKS, SPLITS
            )
            total_p = tl.sum(b_sums, axis=0)
            total_q = tl.sum(b_sums_q, axis=0)
            tl.store(p_tokens + num_rejected, i_token)
            tl.store(p_totals + 2 * num_rejected, tl.where(total_p > 0, total_p, 1.0))
            tl.store(p_totals + 2 * num_rejected + 1, tl.where(total_q > 0, total_q, 1.0))
            tl.debug_barrier()  # for all threads to read
            num_rejected += 1
        num_rejected = tl.where(is_accepted, 0, num_rejected)
        i_new = tl.where(is_accepted, i_accepted, BLOCK_W)
        b_token = tl.where(o_w == i_new, i_token, b_token)
        b_path = tl.where(o_w == i_new + 1, i_number, b_path)
        i_accepted += is_accepted.to(tl.int32)
        i_node = tl.where(is_accepted, i_child, i_node)
        i_child = tl.where(is_accepted, i_next_token, i_next_sibling)
        i_hop += 1

    # The token is drawn of what the last rejection left, before that is normalised.
    o_row = (i_first_node + i_node) * VOCAB
    rows = Rows(p_target_probs + o_row, p_draft_probs + o_row)
    rejected = Rejected(p_tokens, p_totals, tl.maximum(num_rejected - 1, 0))
    len_q = tl.where(num_rejected > 0, VOCAB, 0)
    if num_rejected == 0:
        b_sums, _b_sums_q, i_barrier = _sums_of_blocks(
            rows, -1, len_q, rejected, p_head, p_sums, i_barrier, VOCAB, BLOCK_V, NUM_BLOCKS, SPLITS
        )
    if tl.program_id(0) % SPLITS == 0:
        i_block, before, threshold = find_block(b_sums, tl.load(p_uniform_final + i_b), NUM_BLOCKS)
        o_v, b_p, b_q = _left_in_block(rows, i_block, len_q, rejected, VOCAB, BLOCK_V)
        i_token = find_token(positive(b_p - b_q), o_v, before, threshold, VOCAB)
        b_token = tl.where(o_w == i_accepted, i_token, b_token)
        store_path(path, i_b, b_path, b_token, i_accepted, num_nodes, NUM_STEPS, BLOCK_W)
    leave(p_head, SPLITS)
