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


class DraftResults(NamedTuple):
    """The candidates that become a tree, as `tree.build_tree` takes them.

    parent_list     [bs, topk * (num_steps-1) + 1] int64; [bs, 0] when there was one step
    selected_index  [bs, num_draft_tokens - 1] int64: their flat ids, ascending
    draft_tokens    [bs, num_draft_tokens - 1] int64: their tokens, in that order
    """

    parent_list: Tensor
    selected_index: Tensor
    draft_tokens: Tensor


class ChainTree(NamedTuple):
    """A tree without branches, node i + 1 below node i, with the tokens of its nodes; see `tree.Tree`.

    tokens                 [bs * ndt] int64: bonus token, then the drafts
    tree_mask              [bs * ndt * ndt] bool, QLEN_ONLY: lower triangles
    positions              [bs * ndt] int64: sequence length plus depth
    retrieve_index         [bs, ndt] int64: `b * ndt + i`
    retrieve_next_token    [bs, ndt] int64: i + 1, and -1 for the last node
    retrieve_next_sibling  [bs, ndt] int64: -1
    """

    tokens: Tensor
    tree_mask: Tensor
    positions: Tensor
    retrieve_index: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor


def select_top_k_tokens_first(topk_p: Tensor, topk_index: Tensor) -> Expansion:
    """Step 0: every successor of the root is expanded, in the order in which it is given.

    topk_p      [bs, topk] float32 or float64: probabilities of the successors, or other scores: 0 or more, -inf, NaN
    topk_index  [bs, topk] int64: their tokens

    Raises ValueError for scores that are negative. Source: EAGLE-2 (arXiv 2406.16858), section 4.1.
    """
    if validation.enabled():
        _check_first(topk_p, topk_index)
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


def select_top_k_tokens_next(step: int, topk_p: Tensor, topk_index: Tensor, scores: Tensor) -> Expansion:
    """Step 1 and later: score all successors of the expanded candidates, and expand the best of them.

    step        1 or more
    topk_p      [bs * topk, topk] float32 or float64: probabilities of the successors of each expanded candidate,
                0 to 1 or NaN; row `b * topk + k` belongs to the candidate whose score is `scores[b, k]`
    topk_index  [bs * topk, topk] int64: their tokens
    scores      [bs, topk], of the dtype of `topk_p`: `next_scores` of the step before: 0 or more, -inf, NaN

    A score is the product in that dtype, so deep paths underflow to 0. inf * 0 is NaN, that is -inf. Raises ValueError
    for probabilities outside 0 to 1, infinities among them: a child would be better than its parent. Source: EAGLE-2
    (arXiv 2406.16858), section 4.1; probabilities that are NaN: SGLang issue #7477.
    """
    if validation.enabled():
        _check_next(step, topk_p, topk_index, scores)
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


def rerank_candidates(
    scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int, num_draft_tokens: int
) -> DraftResults:
    """Keep the best `num_draft_tokens - 1` candidates of all steps; their parents are always among them.

    scores   [bs, total] float32 or float64, by flat id, total = topk + (num_steps-1) * topk²: 0 or more, -inf, NaN;
             none better than its parent's
    tokens   [bs, total] int64, by flat id
    parents  [bs, topk * num_steps + 1] int64: -1, 0 .. topk-1, then the flat ids that each later step expanded. Those
             of the last step have no children: they are not handed on, and with one step nothing is

    Raises ValueError for flat ids that do not exist, for a candidate better than its parent, and when more candidates
    are to be kept than there are. Source: EAGLE-2 (arXiv 2406.16858), section 4.2; orphans: SGLang PR #36201.
    """
    if validation.enabled():
        _check_rerank(scores, tokens, parents, topk, num_steps, num_draft_tokens)
    selected_index = _best(_ordered(scores), num_draft_tokens - 1).sort(dim=1).values  # [bs, ndt-1]
    width = 0 if num_steps == 1 else topk * (num_steps - 1) + 1
    return DraftResults(
        parent_list=parents[:, :width].clone(),
        selected_index=selected_index,
        draft_tokens=tokens.gather(1, selected_index),
    )


def build_chain_tree(bonus_tokens: Tensor, draft_tokens: Tensor, verified_seq_len: Tensor) -> ChainTree:
    """The tree of a drafting with topk 1, where nothing has to be selected.

    bonus_tokens      [bs] int32: the token of the root
    draft_tokens      [bs, num_steps] int64: one token a step; `num_draft_tokens` is num_steps + 1
    verified_seq_len  [bs] int64: tokens before the root, which is the position of the root

    Raises ValueError for negative sequence lengths and for no step. Source: EAGLE (arXiv 2401.15077), whose drafts were
    such chains before they were trees.
    """
    if validation.enabled():
        _check_chain(bonus_tokens, draft_tokens, verified_seq_len)
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
    if scores.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} has dtype {scores.dtype}; allowed: torch.float32, torch.float64")
    validation.require_tensor(name, scores, scores.dtype, **dims)


def _require_score_values(name: str, scores: Tensor) -> None:
    valid = (scores >= 0) | scores.isnan() | (scores == -torch.inf)
    validation.require_all(valid, name, scores, "0 or more, -inf, NaN")


def _check_first(topk_p: Tensor, topk_index: Tensor) -> None:
    _require_scores("topk_p", topk_p, bs=None, topk=None)
    bs, topk = topk_p.shape
    validation.require_scalar("topk (the width of topk_p)", topk, 1)
    validation.require_tensor("topk_index", topk_index, torch.int64, bs=bs, topk=topk)
    _require_score_values("topk_p", topk_p)


def _check_next(step: int, topk_p: Tensor, topk_index: Tensor, scores: Tensor) -> None:
    validation.require_scalar("step", step, 1)
    _require_scores("scores", scores, bs=None, topk=None)
    bs, topk = scores.shape
    validation.require_scalar("topk (the width of scores)", topk, 1)
    validation.require_tensor("topk_p", topk_p, scores.dtype, num_rows=bs * topk, topk=topk)
    validation.require_tensor("topk_index", topk_index, torch.int64, num_rows=bs * topk, topk=topk)
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


def _check_rerank(
    scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int, num_draft_tokens: int
) -> None:
    validation.require_scalar("topk", topk, 1)
    validation.require_scalar("num_steps", num_steps, 1)
    total = topk + (num_steps - 1) * topk**2
    validation.require_scalar("num_draft_tokens", num_draft_tokens, 2, total + 1)
    _require_scores("scores", scores, bs=None, total=total)
    bs = scores.shape[0]
    validation.require_tensor("tokens", tokens, torch.int64, bs=bs, total=total)
    validation.require_tensor("parents", parents, torch.int64, bs=bs, parent_width=topk * num_steps + 1)
    _require_score_values("scores", scores)

    step_0 = torch.arange(-1, topk, device=parents.device).expand(bs, -1)
    head, later = parents[:, : topk + 1], parents[:, topk + 1 :]
    validation.require_all(head == step_0, "parents", head, f"-1, 0 .. {topk - 1} in the first {topk + 1} columns")
    first_id = topk + torch.arange(later.shape[1], device=parents.device) // topk * topk**2  # of the step expanded
    of_step = (later >= first_id) & (later < first_id + topk**2)
    validation.require_all(of_step, f"parents[:, {topk + 1}:]", later, "flat ids of the step that was expanded")

    ordered = _ordered(scores)
    group = torch.arange(topk, total, device=parents.device) // topk  # [total - topk], of all but the root's children
    parent_score = ordered.gather(1, parents[:, group])
    falls = ordered[:, topk:] <= parent_score
    validation.require_all(falls, f"scores[:, {topk}:]", scores[:, topk:], "at most the score of the parent")


def _check_chain(bonus_tokens: Tensor, draft_tokens: Tensor, verified_seq_len: Tensor) -> None:
    validation.require_tensor("draft_tokens", draft_tokens, torch.int64, bs=None, num_steps=None)
    bs, num_steps = draft_tokens.shape
    validation.require_scalar("num_steps (the width of draft_tokens)", num_steps, 1)
    validation.require_tensor("bonus_tokens", bonus_tokens, torch.int32, bs=bs)
    validation.require_tensor("verified_seq_len", verified_seq_len, torch.int64, bs=bs)
    validation.require_all(verified_seq_len >= 0, "verified_seq_len", verified_seq_len, "0 or more")
