"""Naive implementations of the operations that a verification step runs, on plain lists: the
simulator runs without torch.

A test holds them equal to `specsim.reference`.
"""

from __future__ import annotations

from typing import NamedTuple


class Verified(NamedTuple):
    """As `specsim.reference.verify.Verified`, flat lists: predicts [bs * ndt], accept_index [bs * width], accept_lens
    [bs] with the bonus.
    """

    predicts: list[int]
    accept_index: list[int]
    accept_lens: list[int]


def links(parents: list[int]) -> tuple[list[int], list[int]]:
    """First child and next sibling of every node of a tree, -1 for none."""
    next_token, next_sibling = [-1] * len(parents), [-1] * len(parents)
    for node in range(len(parents) - 1, 0, -1):
        next_sibling[node] = next_token[parents[node]]
        next_token[parents[node]] = node
    return next_token, next_sibling


def verify_tree_greedy(
    candidates: list[list[int]], parents: list[list[int]], target_predict: list[list[int]], num_steps: int
) -> Verified:
    """The greedy walk over each tree of a batch."""
    predicts: list[int] = []
    accept_index: list[int] = []
    accept_lens: list[int] = []
    for b, (tokens, tree, targets) in enumerate(zip(candidates, parents, target_predict, strict=True)):
        next_token, next_sibling = links(tree)
        path = [0]
        while len(path) <= num_steps:
            child = next_token[path[-1]]
            while child != -1 and tokens[child] != targets[path[-1]]:
                child = next_sibling[child]
            if child == -1:
                break
            path.append(child)
        node_predicts = [0] * len(tokens)
        for node in path:
            node_predicts[node] = targets[node]
        predicts += node_predicts
        accept_index += [b * len(tokens) + node for node in path] + [-1] * (num_steps + 1 - len(path))
        accept_lens.append(len(path))
    return Verified(predicts, accept_index, accept_lens)


def fill_bonus_tokens(accept_tokens: list[int], accept_lens: list[int], accept_stride: int) -> list[int]:
    """The last accepted token of each request. `accept_tokens` has `accept_stride` entries a request. What lies beyond
    them is -1.
    """
    bonus = []
    for b, accept_len in enumerate(accept_lens):
        at = b * accept_stride + accept_len - 1
        bonus.append(accept_tokens[at] if at < len(accept_tokens) else -1)
    return bonus
