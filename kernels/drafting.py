"""From the draft model's probabilities to the candidates that become a tree, and trees that need no selection.

Candidates are ranked by counting who is better, [candidates, candidates] in tiles: exact for ties and NaN, without a
sort, and independent for each request. What bounds them: a launch each.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.contracts.registry import OPS
from specsim.kernels.launch import ContractCheck, block_of, checked_launch
from specsim.kernels.masks import store_slots
from specsim.kernels.tree import SLOTS

__all__ = ["build_chain_tree", "build_chain_tree_and_cache_locs", "organize_draft_results", "select_top_k"]

BLOCK_J = 32
NUM_CANDIDATES_MAX = 4096
"""Of a request, over all steps: its scores are held in registers."""

_check_chain_and_slots = ContractCheck((*OPS["build_chain_tree"].args, *SLOTS), OPS["build_chain_tree"].sizes, {})


@checked_launch()
def select_top_k(
    step: int,
    topk_p: Tensor,
    topk_index: Tensor,
    scores: Tensor,
    input_ids: Tensor,
    hidden_index: Tensor,
    next_scores: Tensor,
    candidate_scores: Tensor,
    candidate_tokens: Tensor,
    parents: Tensor,
) -> None:
    """Score all successors of the expanded candidates, and expand the best of them.

    Shapes and dtypes: specsim.reference.drafting.select_top_k_tokens_next; scores are float32.
    Raises ValueError for more than 64 branches.
    """
    bs, topk = scores.shape
    num_candidates = topk * topk
    _require_candidates("topk", topk, num_candidates)
    if bs == 0:
        return
    block_t = triton.next_power_of_2(num_candidates)
    _select_top_k_kernel[(bs,)](
        step,
        topk_p,
        topk_index,
        scores,
        input_ids,
        hidden_index,
        next_scores,
        candidate_scores,
        candidate_tokens,
        parents,
        TOPK=topk,
        BLOCK_T=block_t,
        BLOCK_J=block_of(num_candidates, BLOCK_J),
        num_warps=4 if block_t <= 256 else 8,
    )


@checked_launch()
def organize_draft_results(
    scores: Tensor,
    tokens: Tensor,
    parents: Tensor,
    parent_list: Tensor,
    selected_index: Tensor,
    draft_tokens: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
) -> None:
    """Keep the best `num_draft_tokens - 1` candidates of all steps, in ascending order of their flat ids.

    Shapes and dtypes: specsim.reference.drafting.rerank_candidates; scores are float32.
    Raises ValueError for more than 4096 candidates a request, and for fewer than are to be kept.
    """
    bs, total = scores.shape
    _require_candidates("total", total, total)
    if num_draft_tokens - 1 > total:
        raise ValueError(f"num_draft_tokens is {num_draft_tokens}; allowed: at most {total + 1}, all candidates")
    width = parent_list.shape[1]
    if bs == 0:
        return
    block_t = triton.next_power_of_2(total)
    _organize_draft_results_kernel[(bs,)](
        scores,
        tokens,
        parents,
        parent_list,
        selected_index,
        draft_tokens,
        TOTAL=total,
        NUM_SELECTED=num_draft_tokens - 1,
        PARENTS=parents.shape[1],
        PARENT_WIDTH=width,
        BLOCK_T=block_t,
        BLOCK_J=block_of(total, BLOCK_J),
        BLOCK_P=triton.next_power_of_2(max(1, width)),
        num_warps=4 if block_t <= 256 else 8,
    )


@checked_launch()
def build_chain_tree(
    bonus_tokens: Tensor,
    draft_tokens: Tensor,
    verified_seq_len: Tensor,
    tokens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
) -> None:
    """Write tokens, mask, positions and links of chains, node i + 1 below node i.

    Shapes and dtypes: specsim.reference.drafting.build_chain_tree.
    """
    arguments = (bonus_tokens, draft_tokens, verified_seq_len, tokens, tree_mask, positions)
    _build_chain(arguments, (retrieve_index, retrieve_next_token, retrieve_next_sibling), None)


def build_chain_tree_and_cache_locs(
    bonus_tokens: Tensor,
    draft_tokens: Tensor,
    verified_seq_len: Tensor,
    tokens: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """`build_chain_tree`, and in the same launch the slots of the nodes, as `build_tree_and_cache_locs` gives them."""
    _check_chain_and_slots(dict(locals()))
    arguments = (bonus_tokens, draft_tokens, verified_seq_len, tokens, tree_mask, positions)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    _build_chain(arguments, links, (req_pool_indices, req_to_token, out_cache_loc))


def _build_chain(
    arguments: tuple[Tensor, ...], links: tuple[Tensor, ...], slots: tuple[Tensor, Tensor, Tensor] | None
) -> None:
    _bonus_tokens, draft_tokens, verified_seq_len, _tokens, tree_mask, _positions = arguments
    bs, num_steps = draft_tokens.shape
    ndt = num_steps + 1
    if bs == 0:
        return
    # Without slots the page table's arguments are never used; any tensors of the right dtypes will do.
    req_pool_indices, req_to_token, out_cache_loc = slots or (verified_seq_len, verified_seq_len, verified_seq_len)
    _build_chain_tree_kernel[(bs,)](
        *arguments[:4],
        tree_mask.view(torch.uint8),
        *arguments[5:],
        *links,
        req_pool_indices,
        req_to_token,
        out_cache_loc,
        req_to_token.shape[-1],
        NDT=ndt,
        HAS_SLOTS=slots is not None,
        BLOCK_N=triton.next_power_of_2(ndt),
        num_warps=1 if ndt <= 8 else 4,
    )


def _require_candidates(name: str, value: int, num_candidates: int) -> None:
    if num_candidates > NUM_CANDIDATES_MAX:
        allowed = f"{NUM_CANDIDATES_MAX} candidates a request"
        raise ValueError(f"{name} is {value}, which makes {num_candidates} candidates; allowed: at most {allowed}")


@triton.jit
def _ordered(b_scores):
    """Scores with -inf for NaN and 0.0 for -0.0."""
    return tl.where(b_scores == b_scores, b_scores, float("-inf")) + 0.0


@triton.jit(do_not_specialize=["step"])
def _select_top_k_kernel(
    step,
    p_topk_p,
    p_topk_index,
    p_scores,
    p_input_ids,
    p_hidden_index,
    p_next_scores,
    p_candidate_scores,
    p_candidate_tokens,
    p_parents,
    TOPK: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_J: tl.constexpr,
):
    """One program a request, a candidate a lane: its rank is the place where it is stored."""
    i_b = tl.program_id(0).to(tl.int64)
    # [BLOCK_T]
    o_t = tl.arange(0, BLOCK_T)
    m_t = o_t < TOPK * TOPK
    o_candidate = i_b * (TOPK * TOPK) + o_t
    b_parent_score = tl.load(p_scores + i_b * TOPK + o_t // TOPK, mask=m_t, other=0.0)
    b_score = _ordered(b_parent_score * tl.load(p_topk_p + o_candidate, mask=m_t, other=0.0))
    b_token = tl.load(p_topk_index + o_candidate, mask=m_t, other=0)
    b_rank = tl.zeros([BLOCK_T], dtype=tl.int32)
    for i_first in range(0, TOPK * TOPK, BLOCK_J):
        # [BLOCK_J]: computed again, for what another thread has stored cannot be read without a barrier
        o_j = i_first + tl.arange(0, BLOCK_J)
        m_j = o_j < TOPK * TOPK
        b_other_parent = tl.load(p_scores + i_b * TOPK + o_j // TOPK, mask=m_j, other=0.0)
        b_other_p = tl.load(p_topk_p + i_b * (TOPK * TOPK) + o_j, mask=m_j, other=0.0)
        b_other = _ordered(b_other_parent * b_other_p)
        # [BLOCK_T, BLOCK_J]
        m_better = b_other[None, :] > b_score[:, None]
        m_better |= (b_other[None, :] == b_score[:, None]) & (o_j[None, :] < o_t[:, None])
        b_rank += tl.sum((m_better & m_j[None, :]).to(tl.int32), axis=1)
    tl.store(p_candidate_scores + o_candidate, b_score, mask=m_t)
    tl.store(p_candidate_tokens + o_candidate, b_token, mask=m_t)
    m_best = m_t & (b_rank < TOPK)
    o_best = i_b * TOPK + b_rank
    tl.store(p_input_ids + o_best, b_token, mask=m_best)
    tl.store(p_hidden_index + o_best, i_b * TOPK + o_t // TOPK, mask=m_best)
    tl.store(p_next_scores + o_best, b_score, mask=m_best)
    tl.store(p_parents + o_best, (TOPK + (step - 1) * TOPK * TOPK + o_t).to(tl.int64), mask=m_best)


@triton.jit
def _organize_draft_results_kernel(
    p_scores,
    p_tokens,
    p_parents,
    p_parent_list,
    p_selected_index,
    p_draft_tokens,
    TOTAL: tl.constexpr,
    NUM_SELECTED: tl.constexpr,
    PARENTS: tl.constexpr,
    PARENT_WIDTH: tl.constexpr,
    BLOCK_T: tl.constexpr,
    BLOCK_J: tl.constexpr,
    BLOCK_P: tl.constexpr,
):
    """One program a request, a candidate a lane."""
    i_b = tl.program_id(0).to(tl.int64)
    # [BLOCK_T]
    o_t = tl.arange(0, BLOCK_T)
    m_t = o_t < TOTAL
    b_score = _ordered(tl.load(p_scores + i_b * TOTAL + o_t, mask=m_t, other=0.0))
    b_rank = tl.zeros([BLOCK_T], dtype=tl.int32)
    for i_first in range(0, TOTAL, BLOCK_J):
        # [BLOCK_J]
        o_j = i_first + tl.arange(0, BLOCK_J)
        m_j = o_j < TOTAL
        b_other = _ordered(tl.load(p_scores + i_b * TOTAL + o_j, mask=m_j, other=0.0))
        # [BLOCK_T, BLOCK_J]
        m_better = b_other[None, :] > b_score[:, None]
        m_better |= (b_other[None, :] == b_score[:, None]) & (o_j[None, :] < o_t[:, None])
        b_rank += tl.sum((m_better & m_j[None, :]).to(tl.int32), axis=1)
    m_selected = m_t & (b_rank < NUM_SELECTED)
    o_selected = i_b * NUM_SELECTED + tl.cumsum(m_selected.to(tl.int32), axis=0) - 1
    b_token = tl.load(p_tokens + i_b * TOTAL + o_t, mask=m_selected, other=0)
    tl.store(p_selected_index + o_selected, o_t.to(tl.int64), mask=m_selected)
    tl.store(p_draft_tokens + o_selected, b_token, mask=m_selected)
    # [BLOCK_P]
    o_p = tl.arange(0, BLOCK_P)
    b_parent = tl.load(p_parents + i_b * PARENTS + o_p, mask=o_p < PARENT_WIDTH, other=0)
    tl.store(p_parent_list + i_b * PARENT_WIDTH + o_p, b_parent, mask=o_p < PARENT_WIDTH)


@triton.jit(do_not_specialize=["pool_len"])
def _build_chain_tree_kernel(
    p_bonus_tokens,
    p_draft_tokens,
    p_verified_seq_len,
    p_tokens,
    p_tree_mask,
    p_positions,
    p_retrieve_index,
    p_retrieve_next_token,
    p_retrieve_next_sibling,
    p_req_pool_indices,
    p_req_to_token,
    p_out_cache_loc,
    pool_len,
    NDT: tl.constexpr,
    HAS_SLOTS: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program a request."""
    i_b = tl.program_id(0).to(tl.int64)
    # [BLOCK_N]
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < NDT
    o_node = i_b * NDT + o_n
    m_draft = m_n & (o_n >= 1)
    b_draft = tl.load(p_draft_tokens + i_b * (NDT - 1) + o_n - 1, mask=m_draft, other=0)
    b_token = tl.where(o_n == 0, tl.load(p_bonus_tokens + i_b).to(tl.int64), b_draft)
    tl.store(p_tokens + o_node, b_token, mask=m_n)
    i_seq_len = tl.load(p_verified_seq_len + i_b)
    tl.store(p_positions + o_node, i_seq_len + o_n, mask=m_n)
    tl.store(p_retrieve_index + o_node, o_node, mask=m_n)
    tl.store(p_retrieve_next_token + o_node, tl.where(o_n < NDT - 1, o_n + 1, -1).to(tl.int64), mask=m_n)
    tl.store(p_retrieve_next_sibling + o_node, tl.full([BLOCK_N], -1, tl.int64), mask=m_n)
    # [BLOCK_N, BLOCK_N]
    m_triangle = o_n[:, None] >= o_n[None, :]
    o_mask = i_b * (NDT * NDT) + o_n[:, None] * NDT + o_n[None, :]
    tl.store(p_tree_mask + o_mask, m_triangle.to(tl.uint8), mask=m_n[:, None] & m_n[None, :])
    if HAS_SLOTS:
        store_slots(p_req_pool_indices, p_req_to_token, p_out_cache_loc, i_b, i_seq_len, pool_len, NDT, BLOCK_N)
