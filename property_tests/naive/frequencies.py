"""`specsim.reference.frequencies` once more, one token at a time, in fractions: lists and for loops."""

from __future__ import annotations

from fractions import Fraction

import torch
from torch import Tensor

from specsim.contracts.enumeration import chain_acceptance, normalised, residual
from specsim.reference.frequencies import Frequencies


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


def chain_frequencies_naive(
    candidates: Tensor, draft_probs: Tensor, target_probs: Tensor, seed: int = 0, draws: int = 0
) -> Frequencies:
    """`chain_frequencies`, one draft at a time."""
    batch = []
    for b in range(candidates.shape[0]):
        reaches, rows = Fraction(1), []
        for i in range(draft_probs.shape[1]):
            p = [Fraction(x) for x in target_probs[b, i].tolist()]
            q = [Fraction(x) for x in draft_probs[b, i].tolist()]
            height = chain_acceptance(p, q, int(candidates[b, i + 1]))
            left = residual(p, q)
            share = sum(left)
            rows.append([float(reaches * (1 - height) * x / share) if share else 0.0 for x in left])
            reaches *= height
        rows.append([float(reaches * Fraction(x)) for x in target_probs[b, -1].tolist()])
        batch.append(rows)
    return _of(torch.tensor(batch, dtype=target_probs.dtype))


def _of(dist: Tensor) -> Frequencies:
    return Frequencies(dist, dist > 0, torch.ones(dist.shape[0], dtype=torch.bool))
