"""How vLLM's V2 rejection sampler is called, with random numbers of its own.

To count what it emits, a request is drawn many times at once: as many requests, all of the same row of state, whose
positions, from which the random numbers follow, are those of one long answer. The blocks of a vocabulary are made
small, so that a row of few tokens has several, and none is mostly padding.
"""

from __future__ import annotations

from dataclasses import replace
from types import CodeType, FunctionType
from typing import Any

import torch

from specsim.contracts.contract import Sizes
from specsim.contracts.frequencies import (
    Frequencies,
    block_frequencies,
    chain_frequencies,
    chain_outcomes,
    evidence,
    histogram,
)
from specsim.engines.vllm.operations.names import CoinTorch, Names
from specsim.lifting.lift import DriftError

Tensor = torch.Tensor

REJECTION = "v1/worker/gpu/spec_decode/rejection_sampler_utils.py"

BLOCKS = {8192: 4, 1024: 2}
"""Tokens of a block, as the host function has them, and as they are here."""
ROWS_MAX = 2**14
"""Requests of a launch."""
REQUESTS_MAX = 2**10
"""Of a launch whose rows of logits are as wide as there are tokens in it."""


def _with_small_blocks(function: Any) -> Any:
    """The host function, with smaller blocks. Raises DriftError where it has no such blocks."""
    code: CodeType = function.__code__
    if not BLOCKS.keys() <= set(code.co_consts):
        raise DriftError(f"changed: {function.__name__} has no blocks of {' and '.join(map(str, BLOCKS))} tokens")
    constants = tuple(BLOCKS.get(value, value) if type(value) is int else value for value in code.co_consts)
    made = FunctionType(code.replace(co_consts=constants), function.__globals__, function.__name__)
    made.__defaults__, made.__kwdefaults__ = function.__defaults__, function.__kwdefaults__
    return made


def _verify(
    function: Any,
    target_logits: Tensor,
    draft_logits: Tensor | None,
    draft_sampled: Tensor,
    cu_num_logits: Tensor,
    row: Tensor,
    temperature: Tensor,
    num_steps: int,
    first: int = 0,
    seed: int = 0,
    **more: Any,
) -> tuple[Tensor, Tensor]:
    """What each request emits [n, S + 1], and how many tokens that is [n]. Positions are counted from `first` on."""
    device, counts = target_logits.device, cu_num_logits.diff()
    place = torch.arange(len(draft_sampled), dtype=torch.int32, device=device)
    found: tuple[Tensor, Tensor] = function(
        target_logits,
        draft_logits,
        draft_sampled.to(torch.int32),
        cu_num_logits,
        first + place.long(),
        row,
        row.repeat_interleave(counts),
        place - cu_num_logits[:-1].repeat_interleave(counts),
        temperature,
        torch.full((len(temperature),), seed, dtype=torch.int64, device=device),
        num_steps,
        **more,
    )
    return found


def _greedy(
    function: Any,
    _coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    bonus_token_ids: Tensor,
    is_greedy: Tensor,
    num_steps: int,
) -> Tensor:
    """Tokens are numbered anew, so that the rows of logits are as wide as there are tokens. Each request's bonus token
    is the target's behind its last draft.
    """
    device, bs = target_argmax.device, len(is_greedy)
    ends = torch.cat([cu_num_draft_tokens.new_zeros(1), cu_num_draft_tokens]) + torch.arange(bs + 1, device=device)
    is_bonus = torch.zeros(int(ends[-1]), dtype=torch.bool, device=device)  # [num_logits]
    is_bonus[ends[1:].long() - 1] = True
    is_root = is_bonus.roll(1)  # a request begins where the one before it ended
    target = torch.zeros(len(is_bonus), dtype=torch.int64, device=device)
    target[~is_bonus], target[is_bonus] = target_argmax, bonus_token_ids.long()
    drafts = torch.zeros_like(target)
    drafts[~is_root] = draft_token_ids.long()
    vocabulary = torch.cat([target, drafts]).unique()
    logits = torch.zeros((len(target), len(vocabulary)), device=device)
    logits[torch.arange(len(target), device=device), torch.searchsorted(vocabulary, target)] = 1.0
    numbers = torch.where(drafts < 0, drafts, torch.searchsorted(vocabulary, drafts))
    rows = torch.arange(bs, dtype=torch.int32, device=device)
    temperature = torch.where(is_greedy, 0.0, 1.0)
    emitted, count = _verify(function, logits, None, numbers, ends.to(torch.int32), rows, temperature, num_steps)
    step = torch.arange(num_steps + 1, device=device)
    kept = (step < count[:, None]) & is_greedy[:, None]
    tokens = vocabulary[torch.where(kept, emitted, 0)]
    return torch.where(kept, tokens, -1).to(torch.int32)


def _count(
    function: Any,
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    has_draft_probs: int,
    seed: int,
    draws: int,
    **more: Any,
) -> Tensor:
    """How often each request of a case emits each outcome [bs, S + 1, V]."""
    bs, width, vocab_size = target_probs.shape
    counts = torch.zeros((bs, width * vocab_size), dtype=torch.int64, device=target_probs.device)
    for b in range(bs):
        target = target_probs[b].log()
        draft = draft_probs[b : b + 1].log() if has_draft_probs else None
        for first in range(0, draws, ROWS_MAX):
            n = min(ROWS_MAX, draws - first)
            drafted = candidates[b].repeat(n, 1)
            starts = torch.arange(0, n * width + 1, width, dtype=torch.int32, device=counts.device)
            of_rows = (target.repeat(n, 1), draft, drafted.flatten(), starts, torch.zeros_like(starts[1:]))
            of_state = (torch.ones(1, device=counts.device), width - 1, first * width, seed)
            tokens, emitted = _verify(function, *of_rows, *of_state, **more)
            outcome, right = chain_outcomes(tokens, emitted.long() - 1, drafted[:, 1:], vocab_size)
            counts[b] += histogram(outcome[None], right, width * vocab_size)[0]
    return counts.view(target_probs.shape)


def _chain(
    function: Any,
    _coins: CoinTorch,
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    has_draft_probs: int,
    seed: int,
    draws: int,
) -> Frequencies:
    of_case = (candidates, draft_probs, target_probs, has_draft_probs)
    counts = _count(function, *of_case, seed, draws)
    return evidence(counts, chain_frequencies(*of_case).frequencies, draws)


def _block(
    function: Any,
    _coins: CoinTorch,
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    has_draft_probs: int,
    seed: int,
    draws: int,
) -> Frequencies:
    of_case = (candidates, draft_probs, target_probs, has_draft_probs)
    counts = _count(function, *of_case, seed, draws, use_block_verification=True)
    return evidence(counts, block_frequencies(*of_case).frequencies, draws)


def _few_requests(sizes: Sizes) -> bool:
    """In which there are few tokens, by which rows of logits are as wide."""
    return sizes["bs"] <= REQUESTS_MAX


def _few_draws(sizes: Sizes) -> bool:
    """More would take a minute in the interpreter."""
    return sizes["draws"] <= ROWS_MAX


_FIRST = (
    *("target_logits", "draft_logits", "draft_sampled", "cu_num_logits", "pos", "idx_mapping"),
    *("expanded_idx_mapping", "expanded_local_pos", "temperature", "seed", "num_speculative_steps"),
    *("synthetic_conditional_rates", "use_fp64"),
)
_WITH_BLOCKS = (*_FIRST, "use_block_verification")
_KEYED = (*_WITH_BLOCKS, "contexts", "watermarking")
_SKIPPING = (*_KEYED, "watermarking_skip_mask", "watermark_key")
_SAMPLE = Names(
    "chain_frequencies",
    ("rejection_sample",),
    REJECTION,
    (
        _FIRST,
        _WITH_BLOCKS,
        (*_KEYED, "watermark_key"),
        _SKIPPING,
        (*_SKIPPING, "fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k"),
    ),
    _chain,
    accepts=_few_draws,
    prepare=_with_small_blocks,
    cost=30,
)

IMPLEMENTATIONS = (
    replace(_SAMPLE, op="verify_ragged_greedy", variant="v2", launch=_greedy, accepts=_few_requests, cost=3),
    _SAMPLE,
    replace(_SAMPLE, op="block_frequencies", launch=_block, since="0.25.0"),
)
