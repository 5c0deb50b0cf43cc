"""`specsim.reference.estimates` once more, one request and draft at a time: lists, numbers and for loops."""

from __future__ import annotations

import math

import numpy as np
from torch import Tensor


def accumulate_acceptance_naive(
    info: Tensor,
    grad: Tensor,
    num_judged: Tensor,
    idx_mapping: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    certainty: Tensor,
    accept_prob: Tensor,
) -> None:
    """`accumulate_acceptance`, one draft at a time."""
    for b, row in enumerate(idx_mapping.tolist()):
        accepted = max(int(num_sampled[b]) - 1, 0)
        verdicts = [1.0] * accepted + [0.0] * min(1, int(num_rejected[b]))
        for step, verdict in enumerate(verdicts):
            c, p = float(certainty[row, step]), float(accept_prob[row, step])
            for column, value in enumerate((p * (1 - p) * c * c, p * (1 - p) * c, p * (1 - p))):
                info[step, column] += value
            grad[step, 0] += (verdict - p) * c
            grad[step, 1] += verdict - p
            num_judged[step] += 1


def refit_acceptance_naive(
    slope: Tensor,
    intercepts: Tensor,
    info: Tensor,
    grad: Tensor,
    num_judged: Tensor,
    ridge: Tensor,
    damping: Tensor,
) -> None:
    """`refit_acceptance`, by a solver of linear equations; the intercepts follow the slope that is kept."""
    num_steps, extra = len(intercepts), float(ridge)
    counts = num_judged.double().numpy()
    matrix = np.diag([float(info[:, 0].double().sum()) + extra, *(info[:, 2].double().numpy() + extra)])
    matrix[0, 1:] = matrix[1:, 0] = info[:, 1].double().numpy()
    right = np.array([float(grad[:, 0].double().sum()), *grad[:, 1].double().tolist()])
    step = float(np.linalg.solve(matrix, right)[0])
    step *= counts.sum() / (counts.sum() + float(damping))
    if float(slope) + step < 0:
        step = 0.0
    slope[0] = float(slope) + step
    for i in range(num_steps):
        full = (right[1 + i] - matrix[0, 1 + i] * step) / matrix[1 + i, 1 + i]
        intercepts[i] = float(intercepts[i]) + full * counts[i] / (counts[i] + float(damping))
    for each in (info, grad, num_judged):
        each.zero_()


def predict_acceptance_naive(
    certainty: Tensor,
    accept_prob: Tensor,
    confidence: Tensor,
    logits: Tensor,
    idx_mapping: Tensor,
    temperature: Tensor,
    slope: Tensor,
    intercepts: Tensor,
    step: Tensor,
) -> None:
    """`predict_acceptance`, one request at a time."""
    number = int(step)
    for b, row in enumerate(idx_mapping.tolist()):
        if row < 0:
            continue
        heat = float(temperature[row]) or 1.0
        scaled = sorted((value / heat for value in logits[b].tolist()), reverse=True)
        others = sum(math.exp(value - scaled[0]) for value in scaled[1:])
        odds = min(-math.log(others), 40.0) if others else 40.0
        chance = 1 / (1 + math.exp(-(float(slope) * max(odds, -40.0) + float(intercepts[number]))))
        certainty[row, number] = max(odds, -40.0)
        accept_prob[row, number] = confidence[b, number] = chance
