"""Verification at a temperature: the walk and the draw of the token after it, in one launch.

One program a request: a walk reads single probabilities of the nodes that it visits, each load dependent on the
one before, and the draw reads one row of the target's distribution once, and a block again. No row that the walk does
not need is read, and nothing of the size of the vocabulary is written.

Sums have a fixed order: each block of `BLOCK_V` tokens is reduced, the blocks' sums are added up one after the other,
and the block in which the uniform draw falls is added up token by token. Results are the same bit for bit from run to
run; they can differ from the reference's where a uniform draw lies within rounding of a threshold.

What bounds them at small batches is the latency of the row that is drawn from; at large ones, its bytes.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import TYPE_CHECKING

import triton
import triton.language as tl

from specsim.kernels.launch import block_of, checked_launch
from specsim.kernels.split_rows import lane
from specsim.kernels.verify import Path, TreeTensors, store_path
from specsim.reference.sampling import THRESHOLD_ACC_MIN

if TYPE_CHECKING:
    from torch import Tensor

__all__ = ["verify_tree_target_only"]

ACC_MIN = tl.constexpr(THRESHOLD_ACC_MIN)
BLOCK_V = 8192


@checked_launch()
def verify_tree_target_only(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    target_probs: Tensor,
    threshold_single: Tensor,
    threshold_acc: Tensor,
    num_steps: int,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
) -> None:
    """Walk each tree; the children of a node share its uniform draw by their probabilities under the target.

    Shapes and dtypes: specsim.reference.sampling.verify_tree_target_only; distributions and uniform draws are float32.

    Writes `accept_index` and `accept_token_num` whole, and `predicts` at the accepted path alone. A walk visits at
    most `num_draft_tokens` nodes and ends at a link that leaves the row, so it ends on any input.
    """
    bs, num_draft_tokens, vocab_size = target_probs.shape
    if bs == 0:
        return
    _verify_tree_target_only_kernel[(bs,)](
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        uniform_samples,
        uniform_final,
        target_probs,
        threshold_single,
        threshold_acc,
        predicts,
        accept_index,
        accept_token_num,
        predicts.shape[0],
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        VOCAB=vocab_size,
        BLOCK_N=triton.next_power_of_2(num_draft_tokens),
        BLOCK_W=triton.next_power_of_2(num_steps + 1),
        **blocks_of_row(vocab_size, BLOCK_V),
    )


def blocks_of_row(vocab_size: int, most: int) -> dict[str, int]:
    """How a row is cut, and warps for 8 or 16 tokens a thread, so that each has several wide loads under way."""
    block_v = block_of(vocab_size, most)
    num_blocks = triton.next_power_of_2(triton.cdiv(vocab_size, block_v))
    return {"BLOCK_V": block_v, "NUM_BLOCKS": num_blocks, "num_warps": max(1, min(16, block_v // 256))}


@triton.jit
def positive(b_difference):
    return tl.where(b_difference > 0, b_difference, 0.0)


@triton.jit
def at_most_one(b_prob):
    """Probabilities of drafts, of which rounding can leave a little more than 1."""
    return tl.where(b_prob > 1, 1.0, b_prob)


@triton.jit
def find_block(b_sums, draw, NUM_BLOCKS: tl.constexpr):
    """Of blocks with sums `b_sums` [NUM_BLOCKS]: the one in which `draw` falls, the sum before it and the threshold.

    Where no block's end exceeds the threshold it is the last one that has any weight.
    """
    o_block = tl.arange(0, NUM_BLOCKS)
    b_end = tl.cumsum(b_sums, axis=0)
    threshold = draw * lane(b_end, NUM_BLOCKS - 1, NUM_BLOCKS)
    i_above = tl.min(tl.where(b_end > threshold, o_block, NUM_BLOCKS), axis=0)
    i_last = tl.max(tl.where(b_sums > 0, o_block, 0), axis=0)
    i_block = tl.where(i_above < NUM_BLOCKS, i_above, i_last)
    return i_block, lane(b_end, i_block - 1, NUM_BLOCKS), threshold


@triton.jit
def find_token(b_weights, o_v, before, threshold, VOCAB: tl.constexpr):
    """The first token with a weight whose sum exceeds the threshold; else the last with a weight; else the last."""
    m_weight = b_weights > 0
    b_cdf = before + tl.cumsum(b_weights, axis=0)
    i_above = tl.min(tl.where(m_weight & (b_cdf > threshold), o_v, VOCAB), axis=0)
    i_last = tl.max(tl.where(m_weight, o_v, -1), axis=0)
    return tl.where(i_above < VOCAB, i_above, tl.where(i_last >= 0, i_last, VOCAB - 1))


@triton.jit
def _without_children(b_weights, o_v, tree, i_first_node, i_node, NDT: tl.constexpr):
    """Weights of a block [BLOCK_V] with 0 at the tokens of the node's children."""
    i_child = tl.load(tree.next_token + i_first_node + i_node)
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT):
        i_token = tl.load(tree.candidates + i_first_node + i_child)
        b_weights = tl.where(o_v == i_token, 0.0, b_weights)
        i_child = tl.load(tree.next_sibling + i_first_node + i_child)
        i_hop += 1
    return b_weights


@triton.jit(do_not_specialize=["num_nodes"])
def _verify_tree_target_only_kernel(
    p_candidates,
    p_retrieve_index,
    p_next_token,
    p_next_sibling,
    p_uniform_samples,
    p_uniform_final,
    p_target_probs,
    p_threshold_single,
    p_threshold_acc,
    p_predicts,
    p_accept_index,
    p_accept_token_num,
    num_nodes,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    VOCAB: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_W: tl.constexpr,
    BLOCK_V: tl.constexpr,
    NUM_BLOCKS: tl.constexpr,
):
    """One program a request. The rejected children of the node where the walk stands are kept as their tokens, by
    child, so that the draw touches again only blocks of the vocabulary that hold one of them.
    """
    tree = TreeTensors(p_candidates, p_retrieve_index, p_next_token, p_next_sibling)
    path = Path(p_predicts, p_accept_index, p_accept_token_num)
    i_b = tl.program_id(0).to(tl.int64)
    i_first_node = i_b * NDT
    o_n = tl.arange(0, BLOCK_N)
    o_w = tl.arange(0, BLOCK_W)
    single = tl.load(p_threshold_single)
    acc = tl.maximum(tl.load(p_threshold_acc), ACC_MIN)

    i_node = i_b * 0
    i_child = tl.load(tree.next_token + i_first_node)
    draw = tl.load(p_uniform_samples + i_first_node)
    mass = draw * 0.0
    # [BLOCK_W]: accepted nodes, and the token after each
    b_path = tl.where(o_w == 0, tl.load(tree.retrieve_index + i_first_node), -1)
    b_token = tl.full([BLOCK_W], 0, tl.int64)
    # [BLOCK_N]: tokens of the children of `i_node` that were rejected
    b_rejected = tl.full([BLOCK_N], -1, tl.int64)
    i_accepted = 0
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT) & (i_accepted < NUM_STEPS):
        o_child = i_first_node + i_child
        i_token = tl.load(tree.candidates + o_child)
        i_number = tl.load(tree.retrieve_index + o_child)
        i_next_token = tl.load(tree.next_token + o_child)
        i_next_sibling = tl.load(tree.next_sibling + o_child)
        child_draw = tl.load(p_uniform_samples + o_child)
        o_prob = (i_first_node + i_node) * VOCAB + i_token
        prob = tl.load(p_target_probs + o_prob, mask=(i_token >= 0) & (i_token < VOCAB), other=0.0)
        mass += prob
        is_accepted = (prob > 0) & ((draw < tl.div_rn(mass, acc)) | (prob >= single))
        b_rejected = tl.where(is_accepted, -1, tl.where(o_n == i_child, i_token, b_rejected))
        i_new = tl.where(is_accepted, i_accepted, BLOCK_W)
        b_token = tl.where(o_w == i_new, i_token, b_token)
        b_path = tl.where(o_w == i_new + 1, i_number, b_path)
        i_accepted += is_accepted.to(tl.int32)
        draw = tl.where(is_accepted, child_draw, draw)
        mass = tl.where(is_accepted, 0.0, mass)
        i_node = tl.where(is_accepted, i_child, i_node)
        i_child = tl.where(is_accepted, i_next_token, i_next_sibling)
        i_hop += 1

    p_row = p_target_probs + (i_first_node + i_node) * VOCAB
    o_block = tl.arange(0, NUM_BLOCKS)
    b_sums = tl.zeros([NUM_BLOCKS], dtype=tl.float32)
    for i_block in range((VOCAB + BLOCK_V - 1) // BLOCK_V):
        # [BLOCK_V]
        o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
        b_weights = tl.load(p_row + o_v, mask=o_v < VOCAB, other=0.0)
        if tl.sum(((b_rejected >= 0) & (b_rejected // BLOCK_V == i_block)).to(tl.int32), axis=0) > 0:
            b_weights = _without_children(b_weights, o_v, tree, i_first_node, i_node, NDT)
        b_sums = tl.where(o_block == i_block, tl.sum(b_weights, axis=0), b_sums)

    i_block, before, threshold = find_block(b_sums, tl.load(p_uniform_final + i_b), NUM_BLOCKS)
    o_v = i_block * BLOCK_V + tl.arange(0, BLOCK_V)
    b_weights = tl.load(p_row + o_v, mask=o_v < VOCAB, other=0.0)
    if tl.sum((b_rejected >= 0).to(tl.int32), axis=0) > 0:
        b_weights = _without_children(b_weights, o_v, tree, i_first_node, i_node, NDT)
    i_token = find_token(b_weights, o_v, before, threshold, VOCAB)
    b_token = tl.where(o_w == i_accepted, i_token, b_token)
    store_path(path, i_b, b_path, b_token, i_accepted, num_nodes, NUM_STEPS, BLOCK_W)
