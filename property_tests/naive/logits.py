"""`specsim.reference.logits` once more, one request, row or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference.logits import EXACT, NAN_HIGHEST, WORD_BITS


def accumulate_penalties_naive(
    output_counts: Tensor, output_lens: Tensor, accept_tokens: Tensor, accept_lens: Tensor, law: int
) -> None:
    """`accumulate_penalties`, one token at a time."""
    for b, tokens in enumerate(accept_tokens.tolist()):
        emitted = tokens[: int(accept_lens[b])]
        for token in emitted if law == EXACT else emitted[-1:]:
            output_counts[b, token] += 1
            output_lens[b] += 1


def apply_penalties_naive(
    logits: Tensor,
    output_counts: Tensor,
    output_lens: Tensor,
    candidates: Tensor,
    tree_mask: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    repetition_penalty: Tensor,
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
    law: int,
) -> None:
    """`apply_penalties`, one token at a time, with one rounding for each."""
    bs, ndt = candidates.shape
    for b in range(bs):
        frequency, presence = frequency_penalty[b].item(), presence_penalty[b].item()
        repetition, bias = repetition_penalty[b].item(), logit_bias[b].tolist()
        drafts, stop_tokens = candidates[b].tolist(), stop_token_ids[b].tolist()
        for node in range(ndt):
            counts, length = output_counts[b].tolist(), int(output_lens[b])
            if law == EXACT:
                for draft in range(1, ndt):
                    if tree_mask[b, node, draft]:
                        counts[drafts[draft]] += 1
                        length += 1
            values = []
            for token, logit in enumerate(logits[b * ndt + node].tolist()):
                value = logit
                if counts[token] > 0:
                    value -= counts[token] * frequency + presence
                    value = value * repetition if value < 0 else value / repetition
                value += bias[token]
                if token in stop_tokens and length < min_new_tokens[b]:
                    value = float("-inf")
                values.append(value)
            logits[b * ndt + node] = torch.tensor(values, dtype=logits.dtype, device=logits.device)


def apply_token_bitmask_naive(logits: Tensor, bitmask: Tensor, indices: Tensor) -> None:
    """`apply_token_bitmask`, one token at a time."""
    for row in indices.tolist():
        words = [word % 2**WORD_BITS for word in bitmask[row].tolist()]  # without a sign
        for token in range(logits.shape[1]):
            if words[token // WORD_BITS] // 2 ** (token % WORD_BITS) % 2 == 0:
                logits[row, token] = float("-inf")


def row_argmax_naive(logits: Tensor, nan_policy: int) -> Tensor:
    """`row_argmax`, one token at a time."""
    ids = []
    for row in logits.tolist():
        best = 0
        for token, value in enumerate(row):
            is_nan, best_is_nan = value != value, row[best] != row[best]
            if nan_policy == NAN_HIGHEST:
                is_better = not best_is_nan and (is_nan or value > row[best])
            else:
                is_better = not is_nan and (value > row[best] or (best_is_nan and value > float("-inf")))
            best = token if is_better else best
        ids.append(best)
    return torch.tensor(ids, dtype=torch.int64, device=logits.device)


def temperature_softmax_naive(logits: Tensor, temperature: Tensor) -> Tensor:
    """`temperature_softmax`, one row at a time."""
    probs = []
    for row, t in zip(logits.to(torch.float64), temperature.tolist(), strict=True):
        weights = ((row - row.max()) / t).exp().tolist()
        total = sum(weights)
        probs.append([weight / total for weight in weights])
    return torch.tensor(probs, dtype=logits.dtype, device=logits.device).view(logits.shape)


def top_k_renorm_probs_naive(probs: Tensor, top_k: Tensor) -> Tensor:
    """`top_k_renorm_probs`, one row at a time."""
    pivots = [sorted(row)[-k:][0] for row, k in zip(probs.tolist(), top_k.tolist(), strict=True)]
    return _renormalised_naive(probs, pivots, [k < probs.shape[1] for k in top_k.tolist()])


def top_p_renorm_probs_naive(probs: Tensor, top_p: Tensor) -> Tensor:
    """`top_p_renorm_probs`, one row at a time."""
    pivots = []
    for row, p in zip(probs.tolist(), top_p.tolist(), strict=True):
        total, pivot = 0.0, 0.0
        for prob in sorted(row, reverse=True):
            total, pivot = total + prob, prob
            if total >= p:
                break
        pivots.append(pivot)
    return _renormalised_naive(probs, pivots, [p < 1 for p in top_p.tolist()])


def min_p_renorm_probs_naive(probs: Tensor, min_p: Tensor) -> Tensor:
    """`min_p_renorm_probs`, one row at a time."""
    pivots = [max(row) * share for row, share in zip(probs.tolist(), min_p.tolist(), strict=True)]
    return _renormalised_naive(probs, pivots, [share > 0 for share in min_p.tolist()])


def _renormalised_naive(probs: Tensor, pivots: list[float], is_filtered: list[bool]) -> Tensor:
    rows = []
    for row, pivot, filtered in zip(probs.tolist(), pivots, is_filtered, strict=True):
        total = sum(prob for prob in row if prob >= pivot)
        rows.append([prob / total if prob >= pivot else 0.0 for prob in row] if filtered else row)
    return torch.tensor(rows, dtype=probs.dtype, device=probs.device).view(probs.shape)
