"""`specsim.reference.verify_logits` once more, one request, node or logit at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from property_tests.naive.logits import (
    apply_penalties_naive,
    apply_token_bitmask_naive,
    min_p_renorm_probs_naive,
    temperature_softmax_naive,
    top_k_renorm_probs_naive,
    top_p_renorm_probs_naive,
)
from property_tests.naive.sampling import verify_tree_target_only_naive
from property_tests.naive.verify import verify_tree_greedy_naive
from specsim.reference.verify import Verified
from specsim.reference.verify_logits import VerifiedStep


def verify_logits_greedy_naive(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    num_steps: int,
) -> VerifiedStep:
    """`verify_logits_greedy`, one logit at a time."""
    bs, ndt = candidates.shape
    target_predict = candidates.new_tensor([_argmax(row) for row in logits.tolist()]).view(bs, ndt)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    verified = verify_tree_greedy_naive(candidates, *links, target_predict, num_steps)
    return _step_naive(verified, seq_lens, out_cache_loc)


def verify_logits_sampled_naive(
    logits: Tensor,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    output_counts: Tensor,
    output_lens: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    repetition_penalty: Tensor,
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
    bias_rows: Tensor,
    bitmask: Tensor,
    bitmask_rows: Tensor,
    temperature: Tensor,
    top_k: Tensor,
    top_p: Tensor,
    min_p: Tensor,
    threshold_single: Tensor | float,
    threshold_acc: Tensor | float,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
    num_steps: int,
    law: int,
) -> VerifiedStep:
    """`verify_logits_sampled`, one node and one token at a time."""
    bs, ndt = candidates.shape
    rows = logits.clone()
    biases = torch.zeros((bs, logits.shape[1]), dtype=logits.dtype, device=logits.device)
    for b, row in enumerate(bias_rows.tolist()):
        if row >= 0:
            biases[b] = logit_bias[row]
    tree_mask = torch.zeros((bs, ndt, ndt), dtype=torch.bool, device=logits.device)
    for b in range(bs):
        _mark_paths(tree_mask[b], retrieve_next_token[b].tolist(), retrieve_next_sibling[b].tolist(), 0, [0])
    penalties = (frequency_penalty, presence_penalty, repetition_penalty, min_new_tokens, stop_token_ids, biases)
    apply_penalties_naive(rows, output_counts, output_lens, candidates, tree_mask, *penalties, law)
    for node, row in enumerate(bitmask_rows.tolist()):
        if row >= 0:
            only = torch.zeros(1, dtype=torch.int32, device=logits.device)
            apply_token_bitmask_naive(rows[node : node + 1], bitmask[row : row + 1], only)
    probs = temperature_softmax_naive(rows, _by_node(temperature, ndt))
    probs = top_k_renorm_probs_naive(probs, _by_node(top_k, ndt))
    probs = top_p_renorm_probs_naive(probs, _by_node(top_p, ndt))
    probs = min_p_renorm_probs_naive(probs, _by_node(min_p, ndt)).view(bs, ndt, -1)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    thresholds = (threshold_single, threshold_acc)
    verified = verify_tree_target_only_naive(
        candidates, *links, uniform_samples, uniform_final, probs, *thresholds, num_steps
    )
    return _step_naive(verified, seq_lens, out_cache_loc)


def _by_node(of_request: Tensor, ndt: int) -> Tensor:
    return of_request.new_tensor([value for value in of_request.tolist() for _ in range(ndt)])


def _mark_paths(mask: Tensor, first_child: list[int], next_sibling: list[int], node: int, path: list[int]) -> None:
    """Mark a node's path in `mask` [ndt, ndt], and those of all nodes below it."""
    for ancestor in path:
        mask[node, ancestor] = True
    child = first_child[node]
    while child != -1:
        _mark_paths(mask, first_child, next_sibling, child, [*path, child])
        child = next_sibling[child]


def _step_naive(verified: Verified, seq_lens: Tensor, out_cache_loc: Tensor) -> VerifiedStep:
    bs = seq_lens.shape[0]
    ndt, width = out_cache_loc.shape[0] // max(bs, 1), verified.accept_index.shape[1]
    predicts, slots = verified.predicts.tolist(), out_cache_loc.tolist()
    tokens, targets, sources, lens = [], [], [], []
    for b, row in enumerate(verified.accept_index.tolist()):
        path = [node for node in row if node >= 0]
        padding = len(row) - len(path)
        tokens.append([predicts[node] for node in path] + [-1] * padding)
        targets.append([slots[b * ndt + place] for place in range(len(path))] + [0] * padding)
        sources.append([slots[node] for node in path] + [0] * padding)
        lens.append(len(path))
    after = [before + accepted for before, accepted in zip(seq_lens.tolist(), lens, strict=True)]
    return VerifiedStep(
        predicts=verified.predicts,
        accept_index=verified.accept_index,
        accept_lens=verified.predicts.new_tensor(lens),
        bonus_tokens=verified.predicts.new_tensor([row[n - 1] for row, n in zip(tokens, lens, strict=True)]),
        new_seq_lens=seq_lens.new_tensor(after),
        accept_tokens=verified.predicts.new_tensor(tokens).view(bs, width),
        target=seq_lens.new_tensor(targets).view(bs, width),
        source=seq_lens.new_tensor(sources).view(bs, width),
    )


def _argmax(row: list[float]) -> int:
    best = 0
    for column, logit in enumerate(row):
        if row[best] == row[best] and not logit <= row[best]:  # larger, or the first NaN
            best = column
    return best
