"""The frequencies family: samplers with random numbers of their own, compared with exact distributions by counting.

An implementation draws each request's outcome `draws` times and gives what `evidence` makes of the counts:

    counts = torch.zeros(distribution.shape, dtype=torch.int64)   # of each outcome
    return evidence(counts, token_frequencies(probs, top_k, top_p, min_p).frequencies, draws)

Three things are compared. The frequency of each outcome, to what Hoeffding's inequality leaves to chance; that nothing
is drawn whose probability is 0, exactly; and whether the counts as a whole fit the distribution, by the chi-square test
of `specsim.contracts.statistics`, whose p-value may be as small as 1e-12. The last sees a hundredth of the draws go
elsewhere. Distributions are of small vocabularies, in multiples of 1/64; no filter's threshold is one of their sums.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.distributions import DRAFT_ROWS, TARGET_ROWS, VOCAB_SIZE_MAX, VOCAB_SIZE_MIN
from specsim.contracts.draws import Draws
from specsim.contracts.ragged_verify import draw_verify_lens
from specsim.contracts.sampling_cases import draw_rows, make_verify_chain_rejection
from specsim.contracts.statistics import chi_square
from specsim.reference.frequencies import (
    Frequencies,
    MarkovFrequencies,
    block_frequencies,
    chain_frequencies,
    cut_chain_frequencies,
    markov_frequencies,
    token_frequencies,
)

__all__ = [
    "OPS",
    "Frequencies",
    "MarkovFrequencies",
    "block_frequencies",
    "chain_frequencies",
    "chain_outcomes",
    "cut_chain_frequencies",
    "evidence",
    "histogram",
    "markov_frequencies",
    "token_frequencies",
]

DRAWS, BULK_DRAWS = 2**18, 2**14
P_VALUE_MIN = 1e-12
FREQUENCY_TOLERANCE = math.sqrt(math.log(2 / P_VALUE_MIN) / (2 * BULK_DRAWS))
"""By Hoeffding's inequality a share of that many draws is off by more with a probability below P_VALUE_MIN."""

NONE, TOP_K, TOP_P, MIN_P, TOP_K_TOP_P = FILTERS = range(5)
NUM_STEPS_MAX = 4
PADDING_MAX = 5  # logits behind the vocabulary
TEMPERATURES = (1.0, 0.0, 0.5, 2.0)


def evidence(counts: Tensor, dist: Tensor, draws: int) -> Frequencies:
    """What `draws` draws of each request say: counts and distribution [bs, ...], of each outcome.

    Counts that do not add up to `draws` fit nothing: something was drawn that is no outcome at all.
    """
    flat, dists = counts.flatten(1).cpu(), dist.flatten(1).double().cpu()
    fits = [
        int(row.sum()) == draws and chi_square(row, p / p.sum()) >= P_VALUE_MIN
        for row, p in zip(flat, dists, strict=True)
    ]
    shares = (counts.double() / draws).to(torch.float32)
    return Frequencies(shares, counts > 0, torch.tensor(fits, device=counts.device))


def histogram(outcomes: Tensor, valid: Tensor, count: int) -> Tensor:
    """[requests, count] int64: how often each outcome is in [requests, draws]; what is none is not counted."""
    requests = outcomes.shape[0]
    is_one = (outcomes >= 0) & (outcomes < count) & valid.view(outcomes.shape)
    request = torch.arange(requests, device=outcomes.device)[:, None]
    places = (request * count + outcomes)[is_one]
    return torch.bincount(places, minlength=requests * count).view(requests, count)


def chain_outcomes(tokens: Tensor, accepted: Tensor, drafts: Tensor, vocab_size: int) -> tuple[Tensor, Tensor]:
    """The number of what a verification emitted among the outcomes of a chain [rows], and whether it is one at all
    [rows] bool: the accepted drafts of [rows, S], and a token of the vocabulary behind them in [rows, S + 1].
    """
    step = torch.arange(drafts.shape[1], device=tokens.device)
    same = ((tokens[:, :-1] == drafts) | (step >= accepted[:, None])).all(dim=1)
    last = tokens.gather(1, accepted.clamp(min=0, max=drafts.shape[1])[:, None])[:, 0]
    right = same & (accepted >= 0) & (accepted <= drafts.shape[1]) & (last >= 0) & (last < vocab_size)
    return torch.where(right, accepted * vocab_size + last, -1).to(torch.int32), right


def _make_token_frequencies(draws: Draws, shape: Sizes) -> Case:
    vocab_size, which = shape["vocab_size"], shape["which_filter"]
    bs, device = draws.count, draws.device
    probs = draw_rows(draws, "target", (*TARGET_ROWS, *DRAFT_ROWS), 1, vocab_size)[:, 0].to(torch.float32)
    top_k = (1 + draws.below("top_k", vocab_size)).to(torch.int32)
    top_p = (2 * draws.below("top_p", 64) + 1) / 128
    # In float64: a GPU divides a float32 by a number as it multiplies by its reciprocal, which rounds otherwise.
    min_p = (2 * draws.below("min_p", 32) + 1).double() / 131
    ones = torch.ones(bs, dtype=torch.float32, device=device)
    tensors = {
        "probs": probs.contiguous(),
        "top_k": top_k if which in (TOP_K, TOP_K_TOP_P) else torch.full_like(top_k, vocab_size),
        "top_p": top_p.to(torch.float32) if which in (TOP_P, TOP_K_TOP_P) else ones,
        "min_p": min_p.to(torch.float32) if which == MIN_P else 0 * ones,
    }
    return Case(_sizes(shape, bs), tensors)


def _make_chain_frequencies(draws: Draws, shape: Sizes) -> Case:
    made = make_verify_chain_rejection(draws, shape).tensors
    tensors = {name: made[name] for name in ("candidates", "draft_probs", "target_probs")}
    return Case(_sizes(shape, draws.count), tensors)


def _make_cut_chain_frequencies(draws: Draws, shape: Sizes) -> Case:
    made = _make_chain_frequencies(draws, shape)
    verify_lens = draw_verify_lens(draws, shape["num_draft_tokens"])
    return Case(made.sizes, {**made.tensors, "verify_lens": verify_lens})


def _make_markov_frequencies(draws: Draws, shape: Sizes) -> Case:
    """Logits are multiples of 1/4, whose sums are exact; some are -inf, and behind the vocabulary they are high."""
    vocab_size, padded, device = shape["vocab_size"], shape["padded_vocab"], draws.device
    base = (draws.below("logit", 17, padded) - 8).to(torch.float32) / 4
    possible = draws.below("impossible token", 5, padded) > 0
    possible |= torch.arange(padded, device=device) == draws.below("a possible token", vocab_size, 1)
    base = torch.where(possible, base, -torch.inf)
    base[:, vocab_size:] = 9.0
    temperatures = torch.tensor(TEMPERATURES, device=device)[draws.below("temperature", len(TEMPERATURES))]
    bias = (draws.below("bias", 9, vocab_size) - 4).to(torch.float32) / 4
    return Case(_sizes(shape, draws.count), {"base_logits": base, "bias": bias, "temperatures": temperatures})


def _sizes(shape: Sizes, bs: int) -> dict[str, int]:
    num_steps = shape["num_steps"]
    return {**shape, "bs": bs, "topk": 1, "num_draft_tokens": num_steps + 1, "num_nodes": bs * (num_steps + 1)}


def _draw_token_shape(chooser: Chooser) -> dict[str, int]:
    vocab_size = between(chooser, VOCAB_SIZE_MIN, VOCAB_SIZE_MAX, "vocab_size")
    which = pick(chooser, FILTERS, "filter")
    return _shape(chooser, {"num_steps": 1, "vocab_size": vocab_size, "which_filter": which})


def _draw_markov_shape(chooser: Chooser) -> dict[str, int]:
    vocab_size = between(chooser, VOCAB_SIZE_MIN, VOCAB_SIZE_MAX, "vocab_size")
    padded = vocab_size + chooser.choose(PADDING_MAX + 1, "padding")
    return _shape(chooser, {"num_steps": 1, "vocab_size": vocab_size, "padded_vocab": padded})


def _draw_chain_shape(chooser: Chooser) -> dict[str, int]:
    num_steps = between(chooser, 1, NUM_STEPS_MAX, "num_steps")
    vocab_size = between(chooser, VOCAB_SIZE_MIN, VOCAB_SIZE_MAX, "vocab_size")
    has_draft_probs = 1 - pick(chooser, (0, 0, 1), "drafts were certain")
    return _shape(chooser, {"num_steps": num_steps, "vocab_size": vocab_size, "has_draft_probs": has_draft_probs})


def _shape(chooser: Chooser, drawn: dict[str, int]) -> dict[str, int]:
    seed = chooser.choose(2**16, "seed")
    return {**drawn, "topk": 1, "num_draft_tokens": drawn["num_steps"] + 1, "seed": seed, "draws": BULK_DRAWS}


def _draw_single(chooser: Chooser) -> dict[str, int]:
    return {"draws": pick(chooser, (BULK_DRAWS, DRAWS), "draws")}


def _defined(_case: Case, expected: Tensors) -> Tensors:
    """What has a probability need not occur; what has none must not."""
    every = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}
    return {**every, "occurs": expected["frequencies"] == 0}


_TOLERANCE = {"frequencies": FREQUENCY_TOLERANCE}

OPS: tuple[Op, ...] = (
    operation(
        token_frequencies,
        "frequencies",
        Cases(_draw_token_shape, _make_token_frequencies, draw_single=_draw_single),
        compared=_defined,
        tolerance=_TOLERANCE,
    ),
    operation(
        markov_frequencies,
        "frequencies",
        Cases(_draw_markov_shape, _make_markov_frequencies, draw_single=_draw_single),
        compared=_defined,
        tolerance=_TOLERANCE,
    ),
    *(
        operation(
            reference,
            "frequencies",
            Cases(_draw_chain_shape, make, draw_single=_draw_single),
            compared=_defined,
            tolerance=_TOLERANCE,
        )
        for reference, make in (
            (chain_frequencies, _make_chain_frequencies),
            (cut_chain_frequencies, _make_cut_chain_frequencies),
            (block_frequencies, _make_chain_frequencies),
        )
    ),
)
