"""`specsim.reference.verify` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference.verify import Verified


def verify_tree_greedy_naive(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    target_predict: Tensor,
    num_steps: int,
) -> Verified:
    """`verify_tree_greedy`, one node at a time."""
    bs, ndt = candidates.shape
    target = target_predict.flatten().tolist()
    predicts = [0] * (bs * ndt)
    accept_index = []
    accept_token_num = []
    for b in range(bs):
        token, number = candidates[b].tolist(), retrieve_index[b].tolist()
        first_child, next_sibling = retrieve_next_token[b].tolist(), retrieve_next_sibling[b].tolist()
        path = [0]
        predicts[number[0]] = target[number[0]]
        while len(path) <= num_steps:
            child = first_child[path[-1]]
            while child != -1 and token[child] != target[number[path[-1]]]:
                child = next_sibling[child]
            if child == -1:
                break
            path.append(child)
            predicts[number[child]] = target[number[child]]
        accept_index.append([number[node] for node in path] + [-1] * (num_steps + 1 - len(path)))
        accept_token_num.append(len(path) - 1)
    device = candidates.device
    return Verified(
        predicts=torch.tensor(predicts, dtype=torch.int32, device=device),
        accept_index=torch.tensor(accept_index, dtype=torch.int32, device=device).view(bs, num_steps + 1),
        accept_token_num=torch.tensor(accept_token_num, dtype=torch.int32, device=device),
    )


def fill_bonus_tokens_naive(predict: Tensor, accept_index: Tensor, accept_lens: Tensor) -> Tensor:
    """`fill_bonus_tokens`, one request at a time."""
    tokens = predict.tolist()
    bonus = []
    for path, accept_len in zip(accept_index.tolist(), accept_lens.tolist(), strict=True):
        bonus.append(tokens[path[accept_len - 1]])
    return torch.tensor(bonus, dtype=torch.int32, device=predict.device)
