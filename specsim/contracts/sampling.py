"""The sampling family: verification at a temperature, over trees and chains, with the uniform draws as inputs.

Probabilities are multiples of 1/64, so that sums of them are exact in float32 in any order, and rows have zeros or
all their weight on one token. Every uniform draw that a walk reads is put in a cell between two thresholds of its
decision, at the centre or next to an edge: on the threshold itself, the float32 after it, or the one before the next.
Edges are used where thresholds have no rounding; elsewhere a uniform draw keeps clear of them, and implementations that
round otherwise still agree. Uniform draws that no walk reads differ from node to node, so that a uniform draw from a
wrong node shows.

Drafts of the rules that know the draft model's distribution have a positive probability under it: others cannot have
been drawn. Siblings differ there, as they do when they are drawn without replacement. In a quarter of the batches of
these rules some drafts are placeholders.

In a quarter of all batches rows of the target are NaN, as they are behind logits that overflowed: nothing is accepted
there, and the next token may be any, and has to be one. `verify_chain_block` has no such rows: what it accepts depends
on the rows behind, so that nothing of a chain with one would be defined.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from specsim.choices.chooser import Chooser, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.distributions import VOCAB_SIZE_MAX, VOCAB_SIZE_MIN
from specsim.contracts.draws import Draws
from specsim.contracts.sampling_cases import (
    make_verify_chain_block,
    make_verify_chain_rejection,
    make_verify_tree_rejection,
    make_verify_tree_target_only,
)
from specsim.contracts.verify import defined_by_verification
from specsim.reference.sampling import (
    verify_chain_block,
    verify_chain_rejection,
    verify_tree_rejection,
    verify_tree_target_only,
)

__all__ = ["OPS"]

WIDE_VOCAB_SIZES, WIDE_NODES_MAX = (31, 33, 127, 129, 257, 1025), 6
"""Of some cases of small trees; the loops of their makers go over the vocabulary."""

SMALL_PER_WIDE = 4  # how much more often a small vocabulary comes up than a wide one


def _draw_vocab_size(chooser: Chooser, low: int, num_draft_tokens: int) -> int:
    """A small vocabulary, and for small trees now and then one beside a power of two that blocks and words end at."""
    wide = WIDE_VOCAB_SIZES if num_draft_tokens <= WIDE_NODES_MAX else ()
    small = tuple(range(low, VOCAB_SIZE_MAX + 1))
    return pick(chooser, small * SMALL_PER_WIDE + wide, "vocab_size")


def _draw_flaws(chooser: Chooser) -> dict[str, int]:
    has_placeholders, has_nan = pick(chooser, ((0, 0), (0, 0), (0, 1), (1, 0)), "rows of NaN, or placeholders")
    return {"has_placeholders": has_placeholders, "has_nan": has_nan}


def _draw_target_only_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    return {
        **shape,
        "vocab_size": _draw_vocab_size(chooser, VOCAB_SIZE_MIN, shape["num_draft_tokens"]),
        "threshold_single_64ths": pick(chooser, (64, 64, 16, 32, 0), "threshold_single"),
        "threshold_acc_64ths": pick(chooser, (64, 64, 48, 32, 0), "threshold_acc"),
        "has_nan": pick(chooser, (0, 0, 0, 1), "rows of NaN"),
    }


def _draw_tree_rejection_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_shape(chooser)
    low = max(VOCAB_SIZE_MIN, shape["topk"])
    vocab_size = _draw_vocab_size(chooser, low, shape["num_draft_tokens"])
    return {**shape, "vocab_size": vocab_size, **_draw_flaws(chooser)}


def _draw_chain_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_chain_shape(chooser)
    vocab_size = _draw_vocab_size(chooser, VOCAB_SIZE_MIN, shape["num_draft_tokens"])
    return {**shape, "vocab_size": vocab_size, **_draw_flaws(chooser)}


def _draw_block_shape(chooser: Chooser) -> dict[str, int]:
    return {**_draw_chain_shape(chooser), "has_nan": 0}


def _with_nan(make: Callable[[Draws, Sizes], Case]) -> Callable[[Draws, Sizes], Case]:
    def made(draws: Draws, shape: Sizes) -> Case:
        case = make(draws, shape)
        if shape.get("has_nan"):
            is_nan = draws.below("row of NaN", 3, shape["num_draft_tokens"]) == 1
            case.tensors["target_probs"][is_nan] = torch.nan
        return case

    return made


def _any_next(case: Case, expected: Tensors) -> Tensors:
    """The token after the path, where its last node has a row of NaN."""
    is_nan = case.tensors["target_probs"].isnan().any(dim=2)  # [bs, num_draft_tokens]
    last = expected["accept_index"].gather(1, expected["accept_token_num"].long()[:, None]).long()  # [bs, 1]
    number = case.tensors.get("retrieve_index")
    if number is None:
        number = torch.arange(is_nan.numel(), device=is_nan.device).view(is_nan.shape)
    is_any = torch.zeros_like(expected["predicts"], dtype=torch.bool)
    is_any[number.flatten()] = (is_nan & (number == last)).flatten()
    return {"predicts": is_any}


OPS: tuple[Op, ...] = (
    operation(
        verify_tree_target_only,
        "sampling",
        Cases(_draw_target_only_shape, _with_nan(make_verify_tree_target_only)),
        compared=defined_by_verification,
        tokens=_any_next,
    ),
    operation(
        verify_chain_rejection,
        "sampling",
        Cases(_draw_chain_shape, _with_nan(make_verify_chain_rejection)),
        compared=defined_by_verification,
        tokens=_any_next,
    ),
    operation(
        verify_chain_block,
        "sampling",
        Cases(_draw_block_shape, make_verify_chain_block),
        compared=defined_by_verification,
    ),
    operation(
        verify_tree_rejection,
        "sampling",
        Cases(_draw_tree_rejection_shape, _with_nan(make_verify_tree_rejection)),
        compared=defined_by_verification,
        tokens=_any_next,
    ),
)
