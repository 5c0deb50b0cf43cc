"""The family of rejections that are put off: chains of which a draft is wrong and the next ones are right.

Drafts are ragged, as in `ragged_drafts`; some are -1. The entropy at a draft is at the threshold, above it or below it,
and of some wrong drafts the target's logit is -inf. No uniform draw is 0.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Case, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.contracts.ragged_drafts import (
    draft_counts,
    draft_ends,
    draw_ragged_shape,
    draw_sampled_shape,
    flat_drafts,
    ragged_cases,
    ragged_sizes,
    sampled_tensors,
)
from specsim.reference.deferred import defer_rejections, defer_rejections_greedy
from specsim.reference.ragged_drafts import PLACEHOLDER

__all__ = ["OPS"]

WINDOWS = (1, 2, 3)
LEVELS = 4  # of entropies, of which the threshold is one
VOCAB_SIZES = (5, 33)


def _doubts(draws: Draws, num_steps: int) -> Tensors:
    """Entropies [n, S] and the threshold [1]."""
    threshold = torch.tensor([draws.common("threshold", LEVELS)], device=draws.device)
    return {
        "entropy": draws.below("entropy", LEVELS, num_steps).to(torch.float32) / 2,
        "threshold": threshold.to(torch.float32) / 2,
    }


def _make_greedy(draws: Draws, shape: Sizes) -> Case:
    num_steps, vocab_size = shape["num_steps"], shape["vocab_size"]
    counts = draft_counts(draws, shape)
    target = draws.below("target token", vocab_size, num_steps)
    wrong = draws.below("draft is wrong", 3, num_steps) == 1
    absent = wrong & (draws.below("wrong draft is a placeholder", 5, num_steps) == 1)
    drafts = torch.where(wrong, (target + 1 + draws.below("by", vocab_size - 1, num_steps)) % vocab_size, target)
    token = torch.arange(vocab_size, device=draws.device)
    logits = -((token + target[:, :, None]) % 7).to(torch.float32)
    impossible = (draws.below("impossible draft", 4, num_steps) == 1) & wrong
    logits = torch.where(impossible[:, :, None] & (token == drafts[:, :, None]), -torch.inf, logits)
    doubts = _doubts(draws, num_steps)
    tensors = {
        "cu_num_draft_tokens": draft_ends(counts),
        "draft_token_ids": flat_drafts(torch.where(absent, PLACEHOLDER, drafts), counts).to(torch.int32),
        "target_argmax": flat_drafts(target, counts),
        "target_logits": flat_drafts(logits, counts),
        "entropy": flat_drafts(doubts["entropy"], counts),
        "is_greedy": draws.below("is greedy", 4) != 1,
        "threshold": doubts["threshold"],
    }
    return Case(ragged_sizes(shape, counts), tensors)


def _make_sampled(draws: Draws, shape: Sizes) -> Case:
    counts = draft_counts(draws, shape)
    sampled, doubts = sampled_tensors(draws, shape, counts), _doubts(draws, shape["num_steps"])
    names = ("cu_num_draft_tokens", "draft_token_ids", "draft_probs", "target_probs", "uniform_probs", "is_greedy")
    tensors = {name: sampled[name] for name in names}
    more = {"entropy": flat_drafts(doubts["entropy"], counts), "threshold": doubts["threshold"]}
    return Case(ragged_sizes(shape, counts), {**tensors, **more})


def _draw_greedy(chooser: Chooser) -> dict[str, int]:
    vocab_size = pick(chooser, VOCAB_SIZES, "vocab_size")
    return {**draw_ragged_shape(chooser), "vocab_size": vocab_size, "window": pick(chooser, WINDOWS, "window")}


def _draw_sampled(chooser: Chooser) -> dict[str, int]:
    return {**draw_sampled_shape(chooser), "zero_coins": 0, "window": between(chooser, 1, 3, "window")}


OPS: tuple[Op, ...] = (
    operation(defer_rejections_greedy, "deferred", ragged_cases(_draw_greedy, _make_greedy)),
    operation(defer_rejections, "deferred", ragged_cases(_draw_sampled, _make_sampled)),
)
