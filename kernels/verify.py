"""Greedy verification: the walk over draft trees, and the bonus token that it ends with."""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import checked_launch

__all__ = ["fill_bonus_tokens", "verify_tree_greedy"]

BLOCK_B = 128


class TreeTensors(NamedTuple):
    """Drafts of a batch: addresses of tensors [bs, num_draft_tokens] int64, as specsim.reference.verify has them."""

    candidates: Any
    retrieve_index: Any
    next_token: Any
    next_sibling: Any


class Path(NamedTuple):
    """What a walk writes: addresses of predicts [num_nodes] int32, accept_index [bs, num_steps + 1] int32 and
    accept_token_num [bs] int32.
    """

    predicts: Any
    accept_index: Any
    accept_token_num: Any


@checked_launch()
def verify_tree_greedy(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    num_steps: int,
) -> None:
    """Walk each tree along the target model's tokens.

    Shapes and dtypes: specsim.reference.verify.verify_tree_greedy.

    Writes `accept_index` and `accept_token_num` whole, and `predicts` at the accepted path alone. A walk
    visits at most `num_draft_tokens` nodes and ends at a link that leaves the row, so it ends on any input.
    """
    bs, num_draft_tokens = candidates.shape
    if bs == 0:
        return
    _verify_tree_greedy_kernel[(bs,)](
        candidates,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        target_predict,
        predicts,
        accept_index,
        accept_token_num,
        predicts.shape[0],
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        BLOCK_W=triton.next_power_of_2(num_steps + 1),
        num_warps=1,
    )


@checked_launch()
def fill_bonus_tokens(predict: Tensor, accept_index: Tensor, accept_lens: Tensor, bonus_tokens: Tensor) -> None:
    """Write `predict[accept_index[b, accept_lens[b] - 1]]`, the last token of each accepted path.

    Shapes and dtypes: specsim.reference.verify.fill_bonus_tokens.

    A request without a path (`accept_lens` 0, as in padded rows of a graph's batch) gets token 0.
    """
    bs, accept_width = accept_index.shape
    if bs == 0:
        return
    _fill_bonus_tokens_kernel[(triton.cdiv(bs, BLOCK_B),)](
        predict,
        accept_index,
        accept_lens,
        bonus_tokens,
        predict.shape[0],
        bs,
        ACCEPT_WIDTH=accept_width,
        BLOCK_B=BLOCK_B,
        num_warps=4,
    )


@triton.jit
def store_path(path, i_b, b_path, b_token, i_accepted, num_nodes, NUM_STEPS: tl.constexpr, BLOCK_W: tl.constexpr):
    """Store a walk's path [BLOCK_W], -1 beyond it, and the token after each of its nodes, in `Path`."""
    o_w = tl.arange(0, BLOCK_W)
    m_node = (b_path >= 0) & (b_path < num_nodes)
    tl.store(path.predicts + b_path, b_token.to(tl.int32), mask=m_node)
    tl.store(path.accept_index + i_b * (NUM_STEPS + 1) + o_w, b_path.to(tl.int32), mask=o_w <= NUM_STEPS)
    tl.store(path.accept_token_num + i_b, i_accepted)


@triton.jit(do_not_specialize=["num_nodes"])
def _verify_tree_greedy_kernel(
    p_candidates,
    p_retrieve_index,
    p_next_token,
    p_next_sibling,
    p_target_predict,
    p_predicts,
    p_accept_index,
    p_accept_token_num,
    num_nodes,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    BLOCK_W: tl.constexpr,
):
    """One program a request. Each hop visits one child: it is accepted, and the walk goes on to its first
    child, or it is passed over for its next sibling. What bounds it: a hop's loads depend on the hop before.

    The path stays in registers and is stored once, for two stores to one address from different threads have
    no order.
    """
    i_b = tl.program_id(0).to(tl.int64)
    i_first_node = i_b * NDT
    o_w = tl.arange(0, BLOCK_W)

    i_last = tl.load(p_retrieve_index + i_first_node)
    i_wanted = tl.load(p_target_predict + i_last, mask=(i_last >= 0) & (i_last < num_nodes), other=-1)
    i_child = tl.load(p_next_token + i_first_node)
    # [BLOCK_W]: accepted nodes, and the target model's token after each
    b_path = tl.where(o_w == 0, i_last, -1)
    b_token = tl.where(o_w == 0, i_wanted, -1)
    i_accepted = 0
    i_hop = 1
    while (i_hop < NDT) & (i_child >= 0) & (i_child < NDT) & (i_accepted < NUM_STEPS):
        i_node = i_first_node + i_child
        i_candidate = tl.load(p_candidates + i_node)
        i_number = tl.load(p_retrieve_index + i_node)
        i_next_token = tl.load(p_next_token + i_node)
        i_next_sibling = tl.load(p_next_sibling + i_node)
        is_accepted = i_candidate == i_wanted
        i_accepted += is_accepted.to(tl.int32)
        is_number = is_accepted & (i_number >= 0) & (i_number < num_nodes)
        i_wanted = tl.where(is_accepted, tl.load(p_target_predict + i_number, mask=is_number, other=-1), i_wanted)
        m_new = is_accepted & (o_w == i_accepted)
        b_path = tl.where(m_new, i_number, b_path)
        b_token = tl.where(m_new, i_wanted, b_token)
        i_child = tl.where(is_accepted, i_next_token, i_next_sibling)
        i_hop += 1

    path = Path(p_predicts, p_accept_index, p_accept_token_num)
    store_path(path, i_b, b_path, b_token, i_accepted, num_nodes, NUM_STEPS, BLOCK_W)


@triton.jit(do_not_specialize=["num_nodes", "bs"])
def _fill_bonus_tokens_kernel(
    p_predict,
    p_accept_index,
    p_accept_lens,
    p_bonus_tokens,
    num_nodes,
    bs,
    ACCEPT_WIDTH: tl.constexpr,
    BLOCK_B: tl.constexpr,
):
    """One program a block of requests, a request a lane."""
    # [BLOCK_B]
    o_b = tl.program_id(0).to(tl.int64) * BLOCK_B + tl.arange(0, BLOCK_B)
    m_b = o_b < bs
    b_accept_len = tl.load(p_accept_lens + o_b, mask=m_b, other=0)
    b_bonus = bonus_of(p_predict, p_accept_index, b_accept_len, o_b, num_nodes, ACCEPT_WIDTH)
    tl.store(p_bonus_tokens + o_b, b_bonus, mask=m_b)


@triton.jit
def bonus_of(p_predict, p_accept_index, b_accept_len, o_b, num_nodes, ACCEPT_WIDTH: tl.constexpr):
    """The bonus token of each request `o_b`; 0 for one without a path."""
    m_path = (b_accept_len >= 1) & (b_accept_len <= ACCEPT_WIDTH)
    b_node = tl.load(p_accept_index + o_b * ACCEPT_WIDTH + b_accept_len - 1, mask=m_path, other=-1)
    return tl.load(p_predict + b_node, mask=(b_node >= 0) & (b_node < num_nodes), other=0)
