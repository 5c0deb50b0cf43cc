"""The family of estimates: what was accepted, a fit of it, and a prediction, of requests that are rows of state.

Probabilities are eighths and certainties quarters, so that sums over a batch are exact in any order. Requests have
drafts of which any number is accepted, or are in the middle of a prompt. Of logits the likeliest lead by up to 6, or
are the only ones that are possible: in between, float32 cannot tell how unlikely the others are.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.reference.estimates import accumulate_acceptance, predict_acceptance, refit_acceptance
from specsim.reference.step_inputs import NO_ROW

__all__ = ["OPS"]

NUM_STEPS_MAX = 8
VOCAB_SIZES = (33, 1, 4100)  # the last has more than one block
LEAD = 25  # quarters of which a logit can be below the highest
TOLERANCE = 1e-3


def _sizes(draws: Draws, shape: Sizes) -> dict[str, int]:
    return {**shape, "bs": draws.count, "topk": 1, "max_num_reqs": 2 * draws.count}


def _judged(draws: Draws, shape: Sizes) -> Tensors:
    """A batch that the target has judged, and what was predicted of it."""
    n, num_steps = draws.count, shape["num_steps"]
    row = draws.order_of_all("row of the state", 2)[:, 0]
    drafts = draws.below("drafts", num_steps + 1)
    accepted = draws.below("accepted drafts", drafts + 1)
    in_prompt = draws.below("in the middle of a prompt", 5) == 1
    certainty = torch.full((2 * n, num_steps), 9.0, device=draws.device)
    certainty[row] = (draws.below("certainty", 17, num_steps) - 8).to(torch.float32) / 4
    accept_prob = torch.full((2 * n, num_steps), 0.5, device=draws.device)
    accept_prob[row] = (1 + draws.below("probability", 7, num_steps)).to(torch.float32) / 8
    return {
        "idx_mapping": row.to(torch.int32),
        "num_sampled": torch.where(in_prompt, 0, accepted + 1).to(torch.int32),
        "num_rejected": torch.where(in_prompt, 0, drafts - accepted).to(torch.int32),
        "certainty": certainty,
        "accept_prob": accept_prob,
    }


def _statistics(draws: Draws, num_steps: int, *, old: int) -> Tensors:
    shapes = {"info": (num_steps, 3), "grad": (num_steps, 2), "num_judged": (num_steps,)}
    return {name: torch.full(shape, float(old), device=draws.device) for name, shape in shapes.items()}


def _make_accumulate(draws: Draws, shape: Sizes) -> Case:
    old = draws.common("what an earlier batch has left", 5)
    return Case(_sizes(draws, shape), {**_statistics(draws, shape["num_steps"], old=old), **_judged(draws, shape)})


def _make_refit(draws: Draws, shape: Sizes) -> Case:
    """Of a batch, with steps of both directions, up to those that would make the slope negative."""
    num_steps = shape["num_steps"]
    statistics = _statistics(draws, num_steps, old=0)
    accumulate_acceptance(**statistics, **_judged(draws, shape))
    slope, intercept = (draws.common(what, 5) / 4 for what in ("slope", "intercept"))
    numbers = {"slope": [slope], "ridge": [1 / 1024], "damping": [float(1 + draws.common("damping", 50))]}
    made = {name: torch.tensor(value, device=draws.device) for name, value in numbers.items()}
    intercepts = intercept - torch.arange(num_steps, device=draws.device) / 8
    return Case(_sizes(draws, shape), {**statistics, **made, "intercepts": intercepts})


def _make_predict(draws: Draws, shape: Sizes) -> Case:
    n, num_steps, vocab_size = draws.count, shape["num_steps"], shape["vocab_size"]
    row = draws.order_of_all("row of the state", 2)[:, 0]
    token = torch.arange(vocab_size, device=draws.device)
    likeliest = draws.below("likeliest token", vocab_size)[:, None]
    behind = 1 + (token * 7 + draws.below("how far behind", LEAD)[:, None]) % LEAD
    logits = draws.below("logit", 9)[:, None] - torch.where(token == likeliest, 0, behind).to(torch.float32) / 4
    alone = (draws.below("the only one", 5) == 1)[:, None] & (token != likeliest)
    old = 9 + torch.arange(2 * n * num_steps, dtype=torch.float32, device=draws.device).view(2 * n, num_steps)
    padding = draws.padding() & bool(shape["has_padding"])
    temperature = torch.full((2 * n,), 9.0, device=draws.device)
    temperature[row] = draws.below("temperature", 3).to(torch.float32)
    slope = torch.tensor([draws.common("slope", 9) / 8], device=draws.device)
    tensors = {
        "certainty": old,
        "accept_prob": -old,
        "confidence": 2 * old[:n],
        "logits": torch.where(alone, -torch.inf, logits),
        "idx_mapping": torch.where(padding, NO_ROW, row).to(torch.int32),
        "temperature": temperature,
        "slope": slope,
        "intercepts": -torch.arange(num_steps, device=draws.device) / 4,
        "step": torch.tensor([draws.common("number of the draft", num_steps)], device=draws.device),
    }
    return Case(_sizes(draws, shape), tensors)


def _draw(chooser: Chooser) -> dict[str, int]:
    return {"num_steps": between(chooser, 1, NUM_STEPS_MAX, "num_steps")}


def _draw_predict(chooser: Chooser) -> dict[str, int]:
    vocab_size = pick(chooser, VOCAB_SIZES, "vocab_size")
    return {**_draw(chooser), "vocab_size": vocab_size, "has_padding": pick(chooser, (0, 1), "has_padding")}


OPS: tuple[Op, ...] = (
    operation(accumulate_acceptance, "estimates", Cases(_draw, _make_accumulate)),
    operation(
        refit_acceptance,
        "estimates",
        Cases(_draw, _make_refit),
        tolerance={"slope": TOLERANCE, "intercepts": TOLERANCE},
    ),
    operation(
        predict_acceptance,
        "estimates",
        Cases(_draw_predict, _make_predict),
        tolerance=dict.fromkeys(("certainty", "accept_prob", "confidence"), TOLERANCE),
    ),
)
