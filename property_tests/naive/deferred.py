"""`specsim.reference.deferred` once more, one request and draft at a time: lists and for loops."""

from __future__ import annotations

import itertools
import math

from torch import Tensor


def _spans(ends: Tensor) -> list[tuple[int, int]]:
    points = [0, *ends.tolist()]
    return list(itertools.pairwise(points))


def defer_rejections_greedy_naive(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    target_logits: Tensor,
    entropy: Tensor,
    is_greedy: Tensor,
    threshold: Tensor,
    window: int,
) -> None:
    """`defer_rejections_greedy`, one draft at a time."""
    targets = target_argmax.tolist()
    for b, (start, end) in enumerate(_spans(cu_num_draft_tokens)):
        for i in range(start, end if is_greedy[b] else start):
            token = int(draft_token_ids[i])
            if token == targets[i] or token < 0 or i + window >= end:
                continue
            is_possible = float(target_logits[i, token]) > -math.inf
            follows = all(int(draft_token_ids[j]) == targets[j] for j in range(i + 1, i + window + 1))
            if is_possible and follows and float(entropy[i]) >= float(threshold):
                target_argmax[i] = token


def defer_rejections_naive(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_probs: Tensor,
    entropy: Tensor,
    is_greedy: Tensor,
    threshold: Tensor,
    window: int,
    has_draft_probs: int,
) -> None:
    """`defer_rejections`, one draft at a time."""
    coins = uniform_probs.tolist()

    def accepts(i: int) -> bool:
        token = int(draft_token_ids[i])
        q = float(draft_probs[i, token]) if has_draft_probs else 1.0
        return token >= 0 and q > 0 and float(target_probs[i, token]) / q >= coins[i]

    for b, (start, end) in enumerate(_spans(cu_num_draft_tokens)):
        for i in range(start, start if is_greedy[b] else end):
            token = int(draft_token_ids[i])
            if token < 0 or accepts(i) or i + window >= end:
                continue
            q = float(draft_probs[i, token]) if has_draft_probs else 1.0
            follows = all(accepts(j) for j in range(i + 1, i + window + 1))
            if q > 0 and float(target_probs[i, token]) > 0 and follows and float(entropy[i]) >= float(threshold):
                uniform_probs[i] = 0.0
