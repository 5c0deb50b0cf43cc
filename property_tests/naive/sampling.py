"""`specsim.reference.sampling` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from specsim.reference.sampling import PLACEHOLDER, THRESHOLD_ACC_MIN
from specsim.reference.verify import Verified


def verify_tree_target_only_naive(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    target_probs: Tensor,
    threshold_single: Tensor | float,
    threshold_acc: Tensor | float,
    num_steps: int,
) -> Verified:
    """`verify_tree_target_only`, one node at a time, in double precision."""
    single = float(torch.as_tensor(threshold_single, dtype=target_probs.dtype))
    acc = max(float(torch.as_tensor(threshold_acc, dtype=target_probs.dtype)), THRESHOLD_ACC_MIN)
    paths, bonus_tokens = [], []
    for b in range(candidates.shape[0]):
        token, coins, probs = candidates[b].tolist(), uniform_samples[b].tolist(), target_probs[b].tolist()
        first_child, next_sibling = retrieve_next_token[b].tolist(), retrieve_next_sibling[b].tolist()
        path = [0]
        dist = list(probs[0])
        while len(path) <= num_steps:
            node, mass = path[-1], 0.0
            child = first_child[node]
            while child != -1:
                prob = probs[node][token[child]]
                mass += prob
                if prob > 0 and (coins[node] < mass / acc or prob >= single):
                    break
                dist[token[child]] = 0.0
                child = next_sibling[child]
            if child == -1:
                break
            path.append(child)
            dist = list(probs[child])
        paths.append(path)
        bonus_tokens.append(_invert_cdf_naive(dist, uniform_final[b].item()))
    return _verified_naive(candidates, retrieve_index.tolist(), paths, bonus_tokens, num_steps)


def verify_chain_rejection_naive(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
) -> Verified:
    """`verify_chain_rejection`, one draft at a time, in double precision."""
    num_steps = draft_probs.shape[1]
    paths, bonus_tokens = [], []
    for b in range(candidates.shape[0]):
        token, coins = candidates[b].tolist(), uniform_samples[b].tolist()
        draft, target = _at_most_one_naive(draft_probs[b]), target_probs[b].tolist()
        dist = target[num_steps]
        path = [0]
        for i in range(num_steps):
            drafted = token[i + 1]
            q = 0.0 if drafted == PLACEHOLDER else draft[i][drafted]
            if not (q > 0 and coins[i] * q < target[i][drafted]):  # of a NaN nothing is less
                dist = _positive_part(target[i], draft[i])
                break
            path.append(i + 1)
        paths.append(path)
        bonus_tokens.append(_invert_cdf_naive(dist, uniform_final[b].item()))
    return _verified_naive(candidates, _chain_numbers(candidates), paths, bonus_tokens, num_steps)


def verify_chain_block_naive(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
) -> Verified:
    """`verify_chain_block`, one draft at a time, in double precision."""
    num_steps = draft_probs.shape[1]
    paths, bonus_tokens = [], []
    for b in range(candidates.shape[0]):
        token, coins = candidates[b].tolist(), uniform_samples[b].tolist()
        draft, target = _at_most_one_naive(draft_probs[b]), target_probs[b].tolist()
        reach, accepted = 1.0, 0
        dist = target[0] if num_steps == 0 else _positive_part(target[0], draft[0])
        for i in range(1, num_steps + 1):
            p = target[i - 1][token[i]]
            q = 0.0 if token[i] == PLACEHOLDER else draft[i - 1][token[i]]
            reach = min(reach * p / q, 1.0) if q > 0 else 0.0
            if i == num_steps:
                rest, height = target[i], reach
            else:
                rest = _positive_part([reach * prob for prob in target[i]], draft[i])
                height = sum(rest) / (sum(rest) + 1 - reach) if 0 < reach < 1 else reach
            if coins[i - 1] < height:
                accepted, dist = i, rest
        paths.append(list(range(accepted + 1)))
        bonus_tokens.append(_invert_cdf_naive(dist, uniform_final[b].item()))
    return _verified_naive(candidates, _chain_numbers(candidates), paths, bonus_tokens, num_steps)


def verify_tree_rejection_naive(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    num_steps: int,
) -> Verified:
    """`verify_tree_rejection`, one node at a time, in double precision."""
    paths, bonus_tokens = [], []
    for b in range(candidates.shape[0]):
        token, coins = candidates[b].tolist(), uniform_samples[b].tolist()
        draft, target = _at_most_one_naive(draft_probs[b]), target_probs[b].tolist()
        first_child, next_sibling = retrieve_next_token[b].tolist(), retrieve_next_sibling[b].tolist()
        path = [0]
        dist = target[0]
        while len(path) <= num_steps:
            proposal = draft[path[-1]]
            child = first_child[path[-1]]
            while child != -1:
                drafted = token[child]
                if drafted != PLACEHOLDER and proposal[drafted] > 0:
                    if coins[child] * proposal[drafted] < dist[drafted]:
                        break
                    dist = _normalised_naive(_positive_part(dist, proposal))
                    proposal = _normalised_naive(
                        [0.0 if other == drafted else prob for other, prob in enumerate(proposal)]
                    )
                child = next_sibling[child]
            if child == -1:
                break
            path.append(child)
            dist = target[child]
        paths.append(path)
        bonus_tokens.append(_invert_cdf_naive(dist, uniform_final[b].item()))
    return _verified_naive(candidates, retrieve_index.tolist(), paths, bonus_tokens, num_steps)


def _invert_cdf_naive(weights: list[float], coin: float) -> int:
    threshold = coin * sum(weights)
    cumulative, last_positive = 0.0, len(weights) - 1
    for token, weight in enumerate(weights):
        if weight > 0:
            cumulative, last_positive = cumulative + weight, token
            if cumulative > threshold:
                return token
    return last_positive


def _normalised_naive(weights: list[float]) -> list[float]:
    total = sum(weights)
    return [weight / total for weight in weights] if total > 0 else weights


def _at_most_one_naive(dists: Tensor) -> list[list[float]]:
    return [[min(prob, 1.0) for prob in dist] for dist in dists.tolist()]


def _positive_part(p: list[float], q: list[float]) -> list[float]:
    return [max(target - draft, 0.0) for target, draft in zip(p, q, strict=True)]


def _chain_numbers(candidates: Tensor) -> list[list[int]]:
    bs, ndt = candidates.shape
    return [[b * ndt + i for i in range(ndt)] for b in range(bs)]


def _verified_naive(
    candidates: Tensor, numbers: list[list[int]], paths: list[list[int]], bonus_tokens: list[int], num_steps: int
) -> Verified:
    bs, ndt = candidates.shape
    tokens = candidates.tolist()
    predicts = [0] * (bs * ndt)
    accept_index = []
    for b, path in enumerate(paths):
        for node, child in itertools.pairwise(path):
            predicts[numbers[b][node]] = tokens[b][child]
        predicts[numbers[b][path[-1]]] = bonus_tokens[b]
        accept_index.append([numbers[b][node] for node in path] + [-1] * (num_steps + 1 - len(path)))
    device = candidates.device
    return Verified(
        predicts=torch.tensor(predicts, dtype=torch.int32, device=device),
        accept_index=torch.tensor(accept_index, dtype=torch.int32, device=device).view(bs, num_steps + 1),
        accept_token_num=torch.tensor([len(path) - 1 for path in paths], dtype=torch.int32, device=device),
    )
