"""`specsim.reference.drafting` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from specsim.reference.drafting import ChainTree, DraftResults, Expansion


def select_top_k_tokens_first_naive(topk_p: Tensor, topk_index: Tensor) -> Expansion:
    """`select_top_k_tokens_first`, one request at a time."""
    topk = topk_p.shape[1]
    input_ids: list[int] = []
    hidden_index: list[int] = []
    scores: list[list[float]] = []
    parents: list[list[int]] = []
    for b, tokens in enumerate(topk_index.tolist()):
        input_ids.extend(tokens)
        hidden_index.extend([b] * topk)
        scores.append([_without_nan(p) for p in topk_p[b].tolist()])
        parents.append([-1, *range(topk)])
    return _expansion_of_lists(topk_p, topk, input_ids, hidden_index, scores, scores, topk_index.tolist(), parents)


def select_top_k_tokens_next_naive(step: int, topk_p: Tensor, topk_index: Tensor, scores: Tensor) -> Expansion:
    """`select_top_k_tokens_next`, one candidate at a time."""
    bs, topk = scores.shape
    p, tokens, parent_scores = topk_p.tolist(), topk_index.tolist(), scores.tolist()
    input_ids: list[int] = []
    hidden_index: list[int] = []
    next_scores: list[list[float]] = []
    all_scores: list[list[float]] = []
    all_tokens: list[list[int]] = []
    parents: list[list[int]] = []
    for b in range(bs):
        products = [parent_scores[b][k] * p[b * topk + k][j] for k in range(topk) for j in range(topk)]
        rounded = torch.tensor(
            products, dtype=scores.dtype
        ).tolist()  # Python multiplies in float64, exactly for float32
        score = [_without_nan(product) for product in rounded]
        token = [tokens[b * topk + k][j] for k in range(topk) for j in range(topk)]
        best = sorted(range(topk * topk), key=lambda j: (-score[j], j))[:topk]
        input_ids.extend(token[j] for j in best)
        hidden_index.extend(b * topk + j // topk for j in best)
        next_scores.append([score[j] for j in best])
        all_scores.append(score)
        all_tokens.append(token)
        parents.append([topk + (step - 1) * topk**2 + j for j in best])
    return _expansion_of_lists(scores, topk, input_ids, hidden_index, next_scores, all_scores, all_tokens, parents)


def organize_draft_results_naive(
    score_list: Sequence[Tensor], token_list: Sequence[Tensor], parents_list: Sequence[Tensor], num_draft_tokens: int
) -> DraftResults:
    """`organize_draft_results`, one request at a time."""
    topk, num_steps = score_list[0].shape[1], len(score_list)
    scores, tokens, parents = torch.cat([*score_list], 1), torch.cat([*token_list], 1), torch.cat([*parents_list], 1)
    return rerank_candidates_naive(scores, tokens, parents, topk, num_steps, num_draft_tokens)


def rerank_candidates_naive(
    scores: Tensor, tokens: Tensor, parents: Tensor, topk: int, num_steps: int, num_draft_tokens: int
) -> DraftResults:
    """`rerank_candidates`, one request at a time."""
    width = 0 if num_steps == 1 else topk * (num_steps - 1) + 1
    parent_list: list[list[int]] = []
    selected_index: list[list[int]] = []
    draft_tokens: list[list[int]] = []
    for b in range(scores.shape[0]):
        score = [_without_nan(value) for value in scores[b].tolist()]
        best_first = sorted(range(len(score)), key=lambda flat_id: (-score[flat_id], flat_id))
        kept = sorted(best_first[: num_draft_tokens - 1])
        selected_index.append(kept)
        draft_tokens.append([int(tokens[b, flat_id]) for flat_id in kept])
        parent_list.append(parents[b].tolist()[:width])
    return DraftResults(
        parent_list=_int64(parent_list, parents).view(scores.shape[0], width),
        selected_index=_int64(selected_index, scores).view(-1, num_draft_tokens - 1),
        draft_tokens=_int64(draft_tokens, scores).view(-1, num_draft_tokens - 1),
    )


def build_chain_tree_naive(bonus_tokens: Tensor, draft_tokens: Tensor, verified_seq_len: Tensor) -> ChainTree:
    """`build_chain_tree`, one node at a time."""
    bs, ndt = draft_tokens.shape[0], draft_tokens.shape[1] + 1
    tokens: list[int] = []
    mask: list[bool] = []
    positions: list[int] = []
    index: list[list[int]] = []
    next_token: list[list[int]] = []
    for b in range(bs):
        tokens.append(int(bonus_tokens[b]))
        tokens.extend(draft_tokens[b].tolist())
        for i in range(ndt):
            mask.extend([True] * (i + 1) + [False] * (ndt - i - 1))
            positions.append(int(verified_seq_len[b]) + i)
        index.append([b * ndt + i for i in range(ndt)])
        next_token.append([*range(1, ndt), -1])
    return ChainTree(
        tokens=_int64(tokens, draft_tokens),
        tree_mask=torch.tensor(mask, dtype=torch.bool, device=draft_tokens.device),
        positions=_int64(positions, draft_tokens),
        retrieve_index=_int64(index, draft_tokens).view(-1, ndt),
        retrieve_next_token=_int64(next_token, draft_tokens).view(-1, ndt),
        retrieve_next_sibling=_int64([[-1] * ndt] * bs, draft_tokens).view(-1, ndt),
    )


def _without_nan(score: float) -> float:
    return score if score == score else -torch.inf


def _int64(values: Sequence[int] | Sequence[Sequence[int]], like: Tensor) -> Tensor:
    return torch.tensor(values, dtype=torch.int64, device=like.device)


def _expansion_of_lists(
    like: Tensor,
    topk: int,
    input_ids: list[int],
    hidden_index: list[int],
    next_scores: list[list[float]],
    candidate_scores: list[list[float]],
    candidate_tokens: list[list[int]],
    parents: list[list[int]],
) -> Expansion:
    return Expansion(
        input_ids=_int64(input_ids, like),
        hidden_index=_int64(hidden_index, like),
        next_scores=torch.tensor(next_scores, dtype=like.dtype, device=like.device).view(-1, topk),
        candidate_scores=torch.tensor(candidate_scores, dtype=like.dtype, device=like.device),
        candidate_tokens=_int64(candidate_tokens, like),
        parents=_int64(parents, like),
    )
