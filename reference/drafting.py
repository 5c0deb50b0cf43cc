"""From what the draft model finds likely to the candidates that become a tree, and other ways to a tree.

Drafting (EAGLE-2, section 4.1 "Expansion Phase") gives `topk` successors to the root and then, step by step, to
each of the `topk` candidates that the step before expanded. The score of a candidate is the product of the
probabilities on its path. Of a step's `topk * topk` new candidates the `topk` best are expanded next; of the
candidates of all steps the `num_draft_tokens - 1` best are kept (section 4.2 "Reranking Phase"). `tree` explains
flat ids, by which candidates are numbered, and builds the tree; `masks` reads trees from masks.

What is best is a total order: the higher score first, and of equal scores the lower flat id. A NaN counts as
-inf, and comes back as -inf; infinities stay as they are; 0.0 and -0.0 are equal. No score is better than its
parent's (a probability is at most 1) and a parent's flat id is lower than its children's, so whoever is kept has
its parent kept: no tie, underflow or NaN makes an orphan.

Scores are float32 or float64; results have the dtype that came in.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import FLOATS, contract, fields

__all__ = [
    "ChainTree",
    "DraftResults",
    "Expansion",
    "build_chain_tree",
    "organize_draft_results",
    "select_top_k_tokens_first",
    "select_top_k_tokens_next",
]


class Expansion(NamedTuple):
    """A drafting step's candidates, and which of them the next step expands.

    input_ids         [bs * topk] int64: tokens of the expanded candidates, best first in each request
    hidden_index      [bs * topk] int64: row of this step's hidden states that each of them continues; after step 0
                      there is one row a request, later `topk`
    next_scores       [bs, topk]: their scores
    candidate_scores  [bs, topk] after step 0, later [bs, topk * topk]: scores of all candidates, by flat id
    candidate_tokens  int64, of the same shape: their tokens
    parents           [bs, topk + 1] int64 after step 0: -1, 0 .. topk-1; later [bs, topk]: flat ids of the expanded
    """

    input_ids: Tensor
    hidden_index: Tensor
    next_scores: Tensor
    candidate_scores: Tensor
    candidate_tokens: Tensor
    parents: Tensor


@fields(
    """
    parent_list     [bs, parent_list_width = topk * (num_steps - 1) + 1 if num_steps > 1 else 0] int64: parents without
                    the last step's; no columns when num_steps is 1
    selected_index  [bs, num_selected = num_draft_tokens - 1] int64: flat ids, ascending, of the best candidates: the
                    higher score first, then the lower flat id
    draft_tokens    [bs, num_selected] int64: their tokens
    """
)
class DraftResults(NamedTuple):
    """The candidates that become a tree, as `tree.build_tree` takes them."""

    parent_list: Tensor
    selected_index: Tensor
    draft_tokens: Tensor


@fields(
    """
    tokens                 [num_nodes = bs * num_draft_tokens] int64: token of each node: bonus token, then the drafts
    tree_mask              [mask_numel = bs * num_draft_tokens**2] bool: QLEN_ONLY: num_draft_tokens rows and columns a
                           request, True up to the diagonal
    positions              [num_nodes] int64: verified_seq_len plus depth of the node
    retrieve_index         [bs, num_draft_tokens = num_steps + 1] int64: b * num_draft_tokens + i for node i
    retrieve_next_token    [bs, num_draft_tokens] int64: first child, -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64: next node with the same parent in ascending order, -1 if there
                           is none
    """
)
class ChainTree(NamedTuple):
    """A tree without branches, node i + 1 below node i, with the tokens of its nodes; see `tree.Tree`."""

    tokens: Tensor
    tree_mask: Tensor
    positions: Tensor
    retrieve_index: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor


@contract(
    """
    topk_p      [bs, topk >= 1] float: probabilities of the root's successors, or other scores: 0 or more, -inf, NaN
    topk_index  [bs, topk] int64: their tokens
    """
)
def select_top_k_tokens_first(topk_p: Tensor, topk_index: Tensor) -> Expansion:
    """Step 0: every successor of the root is expanded, in the order in which it is given.

    Raises ValueError for scores that are negative. Source: EAGLE-2 (arXiv 2406.16858), section 4.1.
    """
    if validation.enabled():
        _require_score_values("topk_p", topk_p)
    bs, topk = topk_p.shape
    request = torch.arange(bs, device=topk_p.device)  # [bs]
    scores = _ordered(topk_p)  # [bs, topk]
    return Expansion(
        input_ids=topk_index.clone().flatten(),
        hidden_index=request.repeat_interleave(topk),
        next_scores=scores,
        candidate_scores=scores.clone(),
        candidate_tokens=topk_index.clone(),
        parents=torch.arange(-1, topk, device=topk_p.device).repeat(bs, 1),
    )


@contract(
    """
    step                 int, 1 or more: the drafting step; the root's successors are step 0
    topk_p               [num_rows = bs * topk, topk] float: probabilities, 0 to 1 or NaN, of the successors of each
                         expanded candidate; row b * topk + k belongs to the candidate whose score is scores[b, k]
    topk_index           [num_rows, topk] int64: their tokens
    scores               [bs, topk >= 1] float: `next_scores` of the step before: 0 or more, -inf, or NaN, which counts
                         as -inf
    -> input_ids         [num_rows] int64: tokens of each request's topk best new candidates: the higher score first,
                         then the lower flat id
    -> hidden_index      [num_rows] int64: the row of topk_p, and so of the hidden states, that each of them is from
    -> next_scores       [bs, topk] float: their scores
    -> candidate_scores  [bs, num_candidates = topk**2] float: scores of all new candidates: scores[b, j // topk] * p;
                         -inf where that is NaN
    -> candidate_tokens  [bs, num_candidates] int64: their tokens
    -> parents           [bs, topk] int64: flat ids of the best: topk + (step - 1) * topk * topk + j for new candidate j
    """
)
def select_top_k_tokens_next(step: int, topk_p: Tensor, topk_index: Tensor, scores: Tensor) -> Expansion:
    """Score all successors of the expanded candidates, and expand the best of them, in step 1 and later.

    A score is the product in that dtype, so deep paths underflow to 0. inf * 0 is NaN, that is -inf. Raises ValueError
    for probabilities outside 0 to 1, infinities among them: a child would be better than its parent. Source: EAGLE-2
    (arXiv 2406.16858), section 4.1; probabilities that are NaN: SGLang issue #7477.
    """
    if validation.enabled():
        _check_next(topk_p, scores)
    bs, topk = scores.shape
    candidate_scores = _ordered((scores[:, :, None] * topk_p.reshape(bs, topk, topk)).flatten(1))  # [bs, topk²]
    candidate_tokens = topk_index.reshape(bs, topk * topk)
    best = _best(candidate_scores, topk)  # [bs, topk]: columns of this step's candidates
    first_row = torch.arange(bs, device=scores.device)[:, None] * topk  # [bs, 1]
    return Expansion(
        input_ids=candidate_tokens.gather(1, best).flatten(),
        hidden_index=(first_row + best // topk).flatten(),
        next_scores=candidate_scores.gather(1, best),
        candidate_scores=candidate_scores,
        candidate_tokens=candidate_tokens.clone(),
        parents=topk + (step - 1) * topk**2 + best,
    )


def organize_draft_results(
    score_list: Sequence[Tensor], token_list: Sequence[Tensor], parents_list: Sequence[Tensor], num_draft_tokens: int
) -> DraftResults:
    """`rerank_candidates` of what the steps of a drafting gave, one entry a step.

    score_list    `candidate_scores` of each step: [bs, topk], then [bs, topk * topk]
    token_list    `candidate_tokens` of each step, of the same shapes
    parents_list  `parents` of each step: [bs, topk + 1], then [bs, topk]

    Raises ValueError as `rerank_candidates` does, and for lists of different lengths or without a step.
    """
    topk, num_steps = _check_lists(score_list, token_list, parents_list)
    scores, tokens, parents = torch.cat([*score_list], 1), torch.cat([*token_list], 1), torch.cat([*parents_list], 1)
    return rerank_candidates(scores, tokens, parents, topk, num_steps, num_draft_tokens)


@contract(
    """
    scores            [bs, total = topk + (num_steps - 1) * topk**2] float: of all candidates by flat id: 0 or more,
                      -inf, or NaN, which counts as -inf; none is better than its parent's
    tokens            [bs, total] int64: of all candidates by flat id
    parents           [bs, parent_width = topk * num_steps + 1] int64: -1, then 0..topk-1, then the flat ids that each
                      later step expanded, the last step's included
    -> DraftResults
    topk              int, 1 or more: candidates expanded a step, and successors of each
    num_steps         int, 1 or more: drafting steps
    num_draft_tokens  int, 2 to topk + (num_steps - 1) * topk**2 + 1: nodes a tree, the root included: one more than are
                      kept
    """
)
def rerank_candidates(
    scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int, num_draft_tokens: int
) -> DraftResults:
    """Keep the best `num_draft_tokens - 1` candidates of all steps; their parents are always among them.

    Raises ValueError for flat ids that do not exist, for a candidate better than its parent, and when more candidates
    are to be kept than there are. Source: EAGLE-2 (arXiv 2406.16858), section 4.2; orphans: SGLang PR #36201.
    """
    if validation.enabled():
        _check_rerank(scores, parents, topk)
    selected_index = _best(_ordered(scores), num_draft_tokens - 1).sort(dim=1).values  # [bs, ndt-1]
    width = 0 if num_steps == 1 else topk * (num_steps - 1) + 1
    return DraftResults(
        parent_list=parents[:, :width].clone(),
        selected_index=selected_index,
        draft_tokens=tokens.gather(1, selected_index),
    )


@contract(
    """
    bonus_tokens      [bs] int32: token of the root
    draft_tokens      [bs, num_steps >= 1] int64: tokens of nodes 1, 2, ..., one a step
    verified_seq_len  [bs] int64, 0 or more: tokens before the root, which is the position of the root
    -> ChainTree
    """
)
def build_chain_tree(bonus_tokens: Tensor, draft_tokens: Tensor, verified_seq_len: Tensor) -> ChainTree:
    """The tree of a drafting with topk 1, where nothing has to be selected.

    Raises ValueError for negative sequence lengths and for no step. Source: EAGLE (arXiv 2401.15077), whose drafts were
    such chains before they were trees.
    """
    bs, num_steps = draft_tokens.shape
    ndt, device = num_steps + 1, draft_tokens.device
    node = torch.arange(ndt, device=device)  # [ndt]
    triangle = node[:, None] >= node  # [ndt, ndt]
    child = torch.where(node < num_steps, node + 1, -1)  # [ndt]
    return ChainTree(
        tokens=torch.cat([bonus_tokens[:, None].to(torch.int64), draft_tokens], dim=1).flatten(),
        tree_mask=triangle.flatten().repeat(bs),
        positions=(verified_seq_len[:, None] + node).flatten(),
        retrieve_index=torch.arange(bs * ndt, device=device).view(bs, ndt),
        retrieve_next_token=child.repeat(bs, 1),
        retrieve_next_sibling=torch.full((bs, ndt), -1, dtype=torch.int64, device=device),
    )


def _ordered(scores: Tensor) -> Tensor:
    """The scores with -inf for NaN, and 0.0 for -0.0, which some sorts take for less."""
    return torch.where(scores.isnan(), -torch.inf, scores) + 0.0


def _best(scores: Tensor, count: int) -> Tensor:
    """[bs, count] int64: columns of the best scores, best first, the lower column first of equal ones."""
    return scores.sort(dim=1, descending=True, stable=True).indices[:, :count]


def _require_scores(name: str, scores: Tensor, **dims: int | None) -> None:
    validation.require_dtype(name, scores, FLOATS)
    validation.require_tensor(name, scores, scores.dtype, **dims)


def _require_score_values(name: str, scores: Tensor) -> None:
    valid = (scores >= 0) | scores.isnan() | (scores == -torch.inf)
    validation.require_all(valid, name, scores, "0 or more, -inf, NaN")


def _check_next(topk_p: Tensor, scores: Tensor) -> None:
    _require_score_values("scores", scores)
    is_probability = ((topk_p >= 0) & (topk_p <= 1)) | topk_p.isnan()
    validation.require_all(is_probability, "topk_p", topk_p, "0 to 1, NaN")


def _check_lists(
    score_list: Sequence[Tensor], token_list: Sequence[Tensor], parents_list: Sequence[Tensor]
) -> tuple[int, int]:
    """topk and num_steps; the lists are checked whether validation is enabled or not, for both come from them."""
    num_steps = len(score_list)
    if num_steps == 0:
        raise ValueError("score_list has 0 entries; allowed: one a step, at least 1")
    for name, entries in (("token_list", token_list), ("parents_list", parents_list)):
        if len(entries) != num_steps:
            raise ValueError(f"{name} has {len(entries)} entries; allowed: {num_steps}, as many as score_list")
    _require_scores("score_list[0]", score_list[0], bs=None, topk=None)
    bs, topk = score_list[0].shape
    for step, (scores, tokens, parents) in enumerate(zip(score_list, token_list, parents_list, strict=True)):
        candidates = topk if step == 0 else topk * topk
        _require_scores(f"score_list[{step}]", scores, bs=bs, candidates=candidates)
        validation.require_tensor(f"token_list[{step}]", tokens, torch.int64, bs=bs, candidates=candidates)
        width = topk + 1 if step == 0 else topk
        validation.require_tensor(f"parents_list[{step}]", parents, torch.int64, bs=bs, expanded=width)
    return topk, num_steps


def _check_rerank(scores: Tensor, parents: Tensor, topk: int) -> None:
    _require_score_values("scores", scores)

    step_0 = torch.arange(-1, topk, device=parents.device).expand(parents.shape[0], -1)
    head, later = parents[:, : topk + 1], parents[:, topk + 1 :]
    validation.require_all(head == step_0, "parents", head, f"-1, 0 .. {topk - 1} in the first {topk + 1} columns")
    first_id = topk + torch.arange(later.shape[1], device=parents.device) // topk * topk**2  # of the step expanded
    of_step = (later >= first_id) & (later < first_id + topk**2)
    validation.require_all(of_step, f"parents[:, {topk + 1}:]", later, "flat ids of the step that was expanded")

    ordered = _ordered(scores)
    group = torch.arange(topk, scores.shape[1], device=parents.device) // topk  # [total - topk]
    parent_score = ordered.gather(1, parents[:, group])
    falls = ordered[:, topk:] <= parent_score
    validation.require_all(falls, f"scores[:, {topk}:]", scores[:, topk:], "at most the score of the parent")
