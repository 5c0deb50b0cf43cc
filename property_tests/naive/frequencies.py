"""`specsim.reference.frequencies` once more, one token at a time, in fractions: lists and for loops."""

from __future__ import annotations

import math
from fractions import Fraction

import torch
from torch import Tensor

from specsim.contracts.enumeration import chain_acceptance, normalised, residual
from specsim.reference.frequencies import Frequencies, MarkovFrequencies


def token_frequencies_naive(
    probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, which_filter: int = 0, seed: int = 0, draws: int = 0
) -> Frequencies:
    """`token_frequencies`, one token at a time."""
    dists: list[list[Fraction]] = []
    for b in range(probs.shape[0]):
        row = [Fraction(p) for p in probs[b].tolist()]
        kept = []
        for p in row:
            more = [other for other in row if other > p]
            stays = len(more) < int(top_k[b]) and sum(more) < Fraction(float(top_p[b]))
            stays = stays and p >= Fraction(float(min_p[b])) * max(row)
            kept.append(p if stays else Fraction(0))
        dists.append(normalised(kept))
    return _of(torch.tensor([[float(p) for p in dist] for dist in dists], dtype=probs.dtype))


def markov_frequencies_naive(
    base_logits: Tensor, bias: Tensor, temperatures: Tensor, seed: int = 0, draws: int = 0
) -> MarkovFrequencies:
    """`markov_frequencies`, one token at a time."""
    sums, dists = [], []
    for b, temperature in enumerate(temperatures.tolist()):
        row = [x + more for x, more in zip(base_logits[b].tolist(), bias[b].tolist(), strict=False)]
        best = row.index(max(row))
        if temperature:
            weights = [math.exp((x - row[best]) / temperature) for x in row]
        else:
            weights = [float(token == best) for token in range(len(row))]
        sums.append(row)
        dists.append([weight / sum(weights) for weight in weights])
    return MarkovFrequencies(
        torch.tensor(sums, dtype=bias.dtype), *_of(torch.tensor(dists, dtype=torch.float64).to(bias.dtype))
    )


def chain_frequencies_naive(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    has_draft_probs: int = 1,
    seed: int = 0,
    draws: int = 0,
) -> Frequencies:
    """`chain_frequencies`, one draft at a time."""
    batch = []
    for b in range(candidates.shape[0]):
        reaches, rows = Fraction(1), []
        for i in range(draft_probs.shape[1]):
            p = _fractions(target_probs[b, i])
            q = _draft(candidates[b], draft_probs[b], i, has_draft_probs)
            height = chain_acceptance(p, q, int(candidates[b, i + 1]))
            rows.append(_shared(reaches * (1 - height), residual(p, q)))
            reaches *= height
        rows.append(_shared(reaches, _fractions(target_probs[b, -1])))
        batch.append(rows)
    return _of(torch.tensor(batch, dtype=target_probs.dtype))


def cut_chain_frequencies_naive(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    verify_lens: Tensor,
    has_draft_probs: int = 1,
    seed: int = 0,
    draws: int = 0,
) -> Frequencies:
    """`cut_chain_frequencies`, one outcome at a time."""
    whole = chain_frequencies_naive(candidates, draft_probs, target_probs, has_draft_probs).frequencies
    found = torch.zeros_like(whole, dtype=torch.float64)
    for b, length in enumerate(verify_lens.tolist()):
        for n in range(whole.shape[1]):
            for token in range(whole.shape[2]):
                at = (n, token) if n < length else (length - 1, int(candidates[b, length]))
                found[b, *at] += float(whole[b, n, token])
    return _of(found.to(target_probs.dtype))


def block_frequencies_naive(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    has_draft_probs: int = 1,
    seed: int = 0,
    draws: int = 0,
) -> Frequencies:
    """`block_frequencies`, one draft at a time."""
    batch = []
    num_steps = draft_probs.shape[1]
    for b in range(candidates.shape[0]):
        reach, heights, lefts = Fraction(1), [Fraction(1)], []
        for i in range(num_steps + 1):
            p = [reach * x for x in _fractions(target_probs[b, i])]
            if i == num_steps:
                lefts.append(p)
                break
            q = _draft(candidates[b], draft_probs[b], i, has_draft_probs)
            lefts.append(residual(p, q))
            if i:
                heights.append(sum(lefts[i]) / (sum(lefts[i]) + 1 - reach) if reach < 1 else Fraction(1))
            token = int(candidates[b, i + 1])
            reach = min(Fraction(1), p[token] / q[token]) if q[token] else Fraction(0)
        heights.append(reach)
        rows = []
        for n in range(num_steps + 1):
            ends = heights[n]
            for later in heights[n + 1 :]:
                ends *= 1 - later
            rows.append(_shared(ends, lefts[n]))
        batch.append(rows)
    return _of(torch.tensor(batch, dtype=target_probs.dtype))


def _fractions(row: Tensor) -> list[Fraction]:
    return [Fraction(x) for x in row.tolist()]


def _draft(candidates: Tensor, draft_probs: Tensor, i: int, has_draft_probs: int) -> list[Fraction]:
    """The distribution of draft i + 1 of a request."""
    if has_draft_probs:
        return _fractions(draft_probs[i])
    return [Fraction(token == int(candidates[i + 1])) for token in range(draft_probs.shape[1])]


def _shared(probability: Fraction, weights: list[Fraction]) -> list[float]:
    """What each token gets of a probability; nothing where no weight is left."""
    total = sum(weights)
    return [float(probability * weight / total) if total else 0.0 for weight in weights]


def _of(dist: Tensor) -> Frequencies:
    return Frequencies(dist, dist > 0, torch.ones(dist.shape[0], dtype=torch.bool))
