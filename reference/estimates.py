"""How likely each draft is to be accepted: a guess from the drafter's certainty, which is fitted as a server runs.

For each draft, by its number in the block, a logistic regression of one slope that all share and an intercept of its
own: the probability is sigmoid(slope * certainty + intercept), where the certainty is the log-odds of the drafter's
likeliest token. What a guess is for, how many drafts are verified, no token depends on.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract
from specsim.reference.step_inputs import NO_ROW

LOG_ODDS_MAX = 40.0


@contract(
    """
    info              [num_steps, 3] float, changed in place: sums of w c^2, w c and w over the drafts that were judged,
                      w = p (1 - p) of their probability p, c their certainty
    grad              [num_steps, 2] float, changed in place: sums of r c and r, r = 1 - p of an accepted draft, -p of a
                      rejected one
    num_judged        [num_steps] float, changed in place: how many were judged
    idx_mapping       [bs] int32: row of the state of each request
    num_sampled       [bs] int32: tokens that were sampled, the accepted drafts and one more; 0 in the middle of a
                      prompt
    num_rejected      [bs] int32: drafts that were rejected
    certainty         [max_num_reqs, num_steps] float: of each row of the state
    accept_prob       [max_num_reqs, num_steps] float: what was predicted of it, above 0 and below 1
    """
)
def accumulate_acceptance(
    info: Tensor,
    grad: Tensor,
    num_judged: Tensor,
    idx_mapping: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    certainty: Tensor,
    accept_prob: Tensor,
) -> None:
    """Add the drafts that the target has judged: those that it accepted, and the first that it rejected.

    Raises ValueError for a request that has no row. Source: vLLM's V2 model runner.
    """
    if validation.enabled():
        validation.require_between("idx_mapping", idx_mapping, 0, certainty.shape[0] - 1)
    accepted = (num_sampled - 1).clamp(min=0)[:, None]
    step = torch.arange(certainty.shape[1], device=certainty.device)
    judged = (step <= accepted) & (step < accepted + num_rejected[:, None])  # [bs, num_steps]
    c, p = certainty[idx_mapping.long()], accept_prob[idx_mapping.long()]
    weight = torch.where(judged, p * (1 - p), 0.0)
    rest = torch.where(judged, (step < accepted).to(p.dtype) - p, 0.0)
    info += torch.stack([weight * c * c, weight * c, weight], dim=2).sum(dim=0)
    grad += torch.stack([rest * c, rest], dim=2).sum(dim=0)
    num_judged += judged.sum(dim=0)


@contract(
    """
    slope       [1] float, changed in place: 0 or more
    intercepts  [num_steps] float, changed in place: of each draft
    info        [num_steps, 3] float, changed in place: as `accumulate_acceptance` leaves it; 0 afterwards
    grad        [num_steps, 2] float, changed in place: likewise
    num_judged  [num_steps] float, changed in place: likewise
    ridge       [1] float: added to the diagonal, above 0
    damping     [1] float: judged drafts with which half a step is made, above 0
    """
)
def refit_acceptance(
    slope: Tensor,
    intercepts: Tensor,
    info: Tensor,
    grad: Tensor,
    num_judged: Tensor,
    ridge: Tensor,
    damping: Tensor,
) -> None:
    """One damped step of Newton's method for the slope and the intercepts, and begin anew. The slope stays where it
    would become negative.

    Solves (H + ridge) d = g, where H has the sum of w c^2 in its corner, and for each draft w c at the corner's row and
    w on the diagonal. Source: vLLM's V2 model runner.
    """
    corner, edge, diagonal = info[:, 0].sum() + ridge, info[:, 1], info[:, 2] + ridge
    of_all, of_each = grad[:, 0].sum(), grad[:, 1]
    step = (of_all - (edge * of_each / diagonal).sum()) / (corner - (edge * edge / diagonal).sum())
    total = num_judged.sum()
    step = step * total / (total + damping)
    step = torch.where(slope + step >= 0, step, 0.0)
    slope += step
    intercepts += (of_each - edge * step) / diagonal * num_judged / (num_judged + damping)
    info.zero_()
    grad.zero_()
    num_judged.zero_()


@contract(
    """
    certainty    [max_num_reqs, num_steps] float, changed in place: log-odds of the drafter's likeliest token, -40 to 40
    accept_prob  [max_num_reqs, num_steps] float, changed in place: the predicted probability
    confidence   [bs, num_steps] float, changed in place: the same, by place in the batch
    logits       [bs, vocab_size] float: the drafter's, finite or -inf, not all of a row -inf
    idx_mapping  [bs] int32: row of the state of each request, -1 where it pads the batch: nothing is written for it
    temperature  [max_num_reqs] float, 0 or more: 0 counts as 1
    slope        [1] float: of the certainty, 0 or more
    intercepts   [num_steps] float: of each draft
    step         [1] int64, 0 to num_steps - 1: number of the draft
    """
)
def predict_acceptance(
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
    """Predict of each request whether the draft with that number will be accepted.

    Raises ValueError for NaN and rows that are -inf alone. Source: vLLM's V2 model runner.
    """
    if validation.enabled():
        validation.require_all(~logits.isnan(), "logits", logits, "no NaN")
        highest = logits.amax(dim=1)
        validation.require_all(highest.isfinite(), "highest logit of row ", highest, "finite")
    place = (idx_mapping != NO_ROW).nonzero()[:, 0]
    row, number = idx_mapping[place].long(), step.long()
    heat = temperature[row].double()
    scaled = logits[place].double() / torch.where(heat > 0, heat, 1.0)[:, None]
    ordered = scaled.sort(dim=1, descending=True).values
    others = ordered[:, 1:].logsumexp(dim=1) if logits.shape[1] > 1 else torch.full_like(heat, -torch.inf)
    odds = (ordered[:, 0] - others).clamp(-LOG_ODDS_MAX, LOG_ODDS_MAX)
    chance = torch.sigmoid(slope.double() * odds + intercepts[number].double())
    certainty[row, number] = odds.to(certainty.dtype)
    accept_prob[row, number] = chance.to(accept_prob.dtype)
    confidence[place, number] = chance.to(confidence.dtype)
