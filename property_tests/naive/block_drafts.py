"""`specsim.reference.block_drafts` once more, one request, candidate and node at a time: lists and for loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specsim.reference.block_drafts import BestFirstTree, BestWalk, CandidateWalk, DraftBlock, Top1, TopkLse


def _int64(values: list[int] | list[list[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def prepare_draft_block_naive(
    bonus_tokens: Tensor,
    prefix_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    mask_token_id: int,
    num_draft_tokens: int,
) -> DraftBlock:
    """`prepare_draft_block`, one token at a time."""
    ids, positions, slots = [], [], []
    for b, prefix in enumerate(prefix_lens.tolist()):
        row = req_to_token[req_pool_indices[b]].tolist()
        ids.append([int(bonus_tokens[b]), *[mask_token_id] * (num_draft_tokens - 1)])
        positions.append([prefix + step for step in range(num_draft_tokens)])
        slots.append([row[at] if at < len(row) else 0 for at in positions[-1]])
    return DraftBlock(_int64(ids), _int64(positions), _int64(slots))


def walk_candidates_naive(
    candidate_ids: Tensor, scores: Tensor, uniforms: Tensor, temperatures: Tensor, is_greedy: Tensor
) -> CandidateWalk:
    """`walk_candidates`, one candidate at a time."""
    tokens, dists = [], []
    for b in range(candidate_ids.shape[0]):
        last, drafts, rows = 0, [], []
        for step in range(candidate_ids.shape[1]):
            row = scores[b, step, last].tolist()
            if is_greedy[b]:
                is_nan = [math.isnan(x) for x in row]
                last = is_nan.index(True) if any(is_nan) else row.index(max(row))
                rows.append([float(k == last) for k in range(len(row))])
            else:
                weights = [math.exp((x - max(row)) / float(temperatures[b])) for x in row]
                rows.append([weight / sum(weights) for weight in weights])
                last, below = 0, rows[-1][0]
                while last < len(row) - 1 and float(uniforms[b, step]) >= below:
                    last += 1
                    below += rows[-1][last]
            drafts.append(int(candidate_ids[b, step, last]))
        tokens.append(drafts)
        dists.append(rows)
    return CandidateWalk(_int64(tokens), torch.tensor(dists, dtype=scores.dtype))


def walk_candidates_greedy_naive(candidate_ids: Tensor, scores: Tensor) -> BestWalk:
    """`walk_candidates_greedy`, one candidate at a time."""
    tokens, kept = [], []
    for b in range(candidate_ids.shape[0]):
        last, drafts, rows = 0, [], []
        for step in range(candidate_ids.shape[1]):
            rows.append(scores[b, step, last].tolist())
            last = rows[-1].index(max(rows[-1]))
            drafts.append(int(candidate_ids[b, step, last]))
        tokens.append(drafts)
        kept.append(rows)
    return BestWalk(_int64(tokens), torch.tensor(kept, dtype=scores.dtype))


def best_candidates_naive(logits: Tensor, bias: Tensor, candidate_ids: Tensor) -> Tensor:
    """`best_candidates`, one draft at a time."""
    tokens = []
    for b in range(logits.shape[0]):
        drafts = []
        for row, more, ids in zip(logits[b].tolist(), bias[b].tolist(), candidate_ids[b].tolist(), strict=True):
            sums = [x + y for x, y in zip(row, more, strict=True)]
            drafts.append(ids[sums.index(max(sums))])
        tokens.append(drafts)
    return _int64(tokens)


def cache_candidate_logits_naive(
    draft_logits: Tensor, cached_ids: Tensor, candidate_ids: Tensor, scores: Tensor, idx_mapping: Tensor
) -> None:
    """`cache_candidate_logits`, one candidate at a time."""
    for b, row in enumerate(idx_mapping.tolist()):
        for step in range(scores.shape[1] if row >= 0 else 0):
            for token in cached_ids[row, step].tolist():
                draft_logits[row, step, token] = -math.inf
            for k, token in enumerate(candidate_ids[b, step].tolist()):
                draft_logits[row, step, token] = scores[b, step, k]
                cached_ids[row, step, k] = token


def markov_greedy_step_naive(base_logits: Tensor, prev_embeds: Tensor, w2_weight: Tensor) -> Tensor:
    """`markov_greedy_step`, one token at a time."""
    found = []
    for row, embed in zip(base_logits.tolist(), prev_embeds.tolist(), strict=True):
        sums = [
            x + sum(a * w for a, w in zip(embed, ws, strict=True))
            for x, ws in zip(row, w2_weight.tolist(), strict=True)
        ]
        is_nan = [math.isnan(x) for x in sums]
        found.append(is_nan.index(True) if any(is_nan) else sums.index(max(sums)))
    return _int64(found)


def draft_topk1_naive(logits: Tensor, positions: Tensor, draft_tokens: Tensor, step: int) -> Top1:
    """`draft_topk1`, one token at a time."""
    found = []
    for b, row in enumerate(logits.tolist()):
        best = 0
        for token, logit in enumerate(row):
            if not math.isnan(logit) and (math.isnan(row[best]) or logit > row[best]):
                best = token
        positions[b] += 1
        draft_tokens[b, step] = best
        found.append([best])
    return Top1(torch.ones(len(found), 1, dtype=logits.dtype), _int64(found))


def topk_lse_naive(logits: Tensor, k: int) -> TopkLse:
    """`topk_lse`, one row at a time."""
    values, ids, sums = [], [], []
    for row in logits.tolist():
        best = sorted(range(len(row)), key=lambda token: (-row[token], token))[:k]
        values.append([row[token] for token in best])
        ids.append(best)
        sums.append(_logsumexp(row))
    return TopkLse(torch.tensor(values, dtype=logits.dtype), _int64(ids), torch.tensor(sums, dtype=logits.dtype))


def candidate_log_probs_naive(logits: Tensor, top_values: Tensor, temperatures: Tensor) -> Tensor:
    """`candidate_log_probs`, one candidate at a time."""
    found = []
    for b, temperature in enumerate(temperatures.tolist()):
        scale = 1 / temperature if temperature > 0 else 1.0
        rows = []
        for row, values in zip(logits[b].tolist(), top_values[b].tolist(), strict=True):
            whole = _logsumexp([scale * x for x in row])
            rows.append([min(0.0, scale * value - whole) for value in values])
        found.append(rows)
    return torch.tensor(found, dtype=logits.dtype)


def build_best_first_tree_naive(top_token_ids: Tensor, top_log_probs: Tensor, num_draft_tokens: int) -> BestFirstTree:
    """`build_best_first_tree`, one node at a time."""
    k = top_token_ids.shape[2]
    tokens, edges, parents = [], [], []
    for ids, log_probs in zip(top_token_ids.tolist(), top_log_probs.tolist(), strict=True):
        nodes = [(0, 0.0)]  # depth and log-probability
        chosen: list[tuple[int, int]] = []  # edge and token
        while len(nodes) < num_draft_tokens:
            open_edges = [
                (-(mass + log_probs[depth][rank]), depth, rank, ids[depth][rank], parent)
                for parent, (depth, mass) in enumerate(nodes)
                for rank in range(k)
                if depth < len(ids) and parent * k + rank not in [edge for edge, _token in chosen]
            ]
            loss, depth, rank, token, parent = min(open_edges)
            chosen.append((parent * k + rank, token))
            nodes.append((depth + 1, -loss))
        tokens.append([token for _edge, token in chosen])
        edges.append([edge for edge, _token in chosen])
        row = [-1] * (k * (len(ids) - 1) + 1)
        for node, (edge, _token) in enumerate(chosen[:-1]):
            row[1 + node] = edge
        parents.append(row)
    return BestFirstTree(_int64(tokens), _int64(edges), _int64(parents))


def _logsumexp(row: list[float]) -> float:
    highest = max(row)
    return highest + math.log(sum(math.exp(x - highest) for x in row))
