"""The family of block drafts: what a drafter of whole blocks reads, and how its candidates become a chain or a tree.

Scores, logits and log-probabilities are exact in float32 or far from where rounding decides. Rows of logits have a NaN
here and there, or nothing else, where the result is stated; and -inf over whole blocks of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts import batches
from specsim.contracts.batches import TOKENS_START
from specsim.contracts.contract import Case, Op, Tensors, operation
from specsim.contracts.distributions import TARGET_ROWS
from specsim.contracts.draws import Draws
from specsim.contracts.logits import SOFTMAX_TOLERANCE
from specsim.contracts.ragged_verify import chain_cases, draw_paged, tokens
from specsim.contracts.sampling_cases import draw_rows
from specsim.reference.block_drafts import (
    best_candidates,
    build_best_first_tree,
    cache_candidate_logits,
    candidate_log_probs,
    draft_topk1,
    markov_greedy_step,
    prepare_draft_block,
    topk_lse,
    walk_candidates,
    walk_candidates_greedy,
)
from specsim.reference.step_inputs import NO_ROW

__all__ = ["OPS"]

NUM_CANDIDATES = (4, 8)
VOCAB_SIZES = (4, 33, 8193)
WIDE_VOCAB_SIZES = (5, 1030, 9000)
PRIME = 9001  # levels of distinct logits: as many as tokens, or more
TEMPERATURES = (1.0, 0.5, 2.0)
LSE_TOLERANCE = 2.0**-12
TREE_NODES_MAX = 24
LAST_MAX = 500  # so that blocks of 8,192 are impossible


def _draw_candidates(chooser: Chooser) -> dict[str, int]:
    return {"num_candidates": pick(chooser, NUM_CANDIDATES, "num_candidates")}


def _draw_vocabulary(chooser: Chooser) -> dict[str, int]:
    return {"vocab_size": pick(chooser, VOCAB_SIZES, "vocab_size")}


def _make_block(draws: Draws, sizes: dict[str, int]) -> Tensors:
    """Of some requests the block goes beyond the table."""
    prefix = batches.seq_lens(draws, "prefix_lens", sizes["page_size"])
    ends = prefix + draws.below("nodes in the table", sizes["num_draft_tokens"] + 1)
    rows, table = batches.page_table(draws, ends, sizes["page_size"])
    sizes |= {**batches.page_table_sizes(table), "mask_token_id": TOKENS_START - 1}
    given = {"bonus_tokens": tokens(draws, "bonus"), "prefix_lens": prefix}
    return {**given, "req_pool_indices": rows, "req_to_token": table}


def _make_walk(draws: Draws, sizes: dict[str, int]) -> Tensors:
    n, num_steps, k = draws.count, sizes["num_steps"], sizes["num_candidates"]
    probs = draw_rows(draws, "selector", TARGET_ROWS, num_steps * k, k).view(n, num_steps, k, k)
    temperature = torch.tensor(TEMPERATURES, device=draws.device)[draws.below("temperature", len(TEMPERATURES))]
    is_greedy = draws.below("greedy", 2) == 1
    scores = (probs.log() * temperature[:, None, None, None]).to(torch.float32)
    nan_at = draws.below("score that is NaN", 3 * k, num_steps)[:, :, None, None]
    is_nan = is_greedy[:, None, None, None] & (nan_at == torch.arange(k, device=draws.device))
    return {
        "candidate_ids": tokens(draws, "candidate", num_steps * k).view(n, num_steps, k),
        "scores": torch.where(is_nan, float("nan"), scores),
        "uniforms": (2 * draws.below("uniform draw", 64, num_steps) + 1).to(torch.float32) / 128,
        "temperatures": temperature,
        "is_greedy": is_greedy,
    }


def _make_greedy_walk(draws: Draws, sizes: dict[str, int]) -> Tensors:
    """Scores are quarters, many of them equal; some are -inf."""
    n, num_steps, k = draws.count, sizes["num_steps"], sizes["num_candidates"]
    levels = draws.below("score", 9, num_steps * k * k).view(n, num_steps, k, k)
    scores = torch.where(levels == 8, -torch.inf, levels.to(torch.float32) / 4)
    return {"candidate_ids": tokens(draws, "candidate", num_steps * k).view(n, num_steps, k), "scores": scores}


def _make_best(draws: Draws, sizes: dict[str, int]) -> Tensors:
    n, num_steps, k = draws.count, sizes["num_steps"], sizes["num_candidates"]
    level = draws.below("logit", 9, num_steps * k).to(torch.float32) / 4
    return {
        "logits": level.view(n, num_steps, k),
        "bias": (draws.below("bias", 9, num_steps * k) - 4).to(torch.float32).view(n, num_steps, k) / 4,
        "candidate_ids": tokens(draws, "candidate", num_steps * k).view(n, num_steps, k),
    }


def _make_cached(draws: Draws, sizes: dict[str, int]) -> Tensors:
    """Kept candidates have finite logits, all others -inf; some of the new ones were kept."""
    n, num_steps, k, vocab_size = draws.count, sizes["num_steps"], sizes["num_candidates"], sizes["vocab_size"]
    size = sizes["max_num_reqs"] = 2 * n
    row = draws.order_of_all("row of the state", 2)[:, 0]
    column = torch.arange(k, device=draws.device)
    state = torch.arange(size * num_steps, device=draws.device).view(size, num_steps, 1)
    cached = (state + 3 * column) % vocab_size
    logits = torch.full((size, num_steps, vocab_size), -torch.inf, device=draws.device)
    first = draws.below("first candidate", vocab_size, num_steps)[:, :, None]
    left_alone = draws.padding() & bool(sizes["has_padding"])
    return {
        "draft_logits": logits.scatter(2, cached, -1.0 - column.expand(cached.shape)),
        "cached_ids": cached,
        "candidate_ids": (first + column) % vocab_size,
        "scores": draws.below("score", 64, num_steps * k).to(torch.float32).view(n, num_steps, k) / 4,
        "idx_mapping": torch.where(left_alone, NO_ROW, row).to(torch.int32),
    }


def _draw_cached(chooser: Chooser) -> dict[str, int]:
    has_padding = pick(chooser, (0, 0, 1), "requests that are left alone")
    return {
        **_draw_candidates(chooser),
        "vocab_size": pick(chooser, (33, 300), "vocab_size"),
        "has_padding": has_padding,
    }


def _logits(draws: Draws, vocab_size: int) -> Tensor:
    """Rows [n, V] that rise in steps of whole numbers and start again; of some every token, or every few, is NaN."""
    first, by = draws.below("level of token 0", 61, 1), 1 + draws.below("levels, from token to token", 60, 1)
    token = torch.arange(vocab_size, device=draws.device)
    every = draws.below("distance of NaN", 5, 1)
    is_nan = (every > 0) & (token % every.clamp(min=1) == 0)
    return torch.where(is_nan, float("nan"), ((first + by * token) % 61 - 30).to(torch.float32))


def _make_topk1(draws: Draws, sizes: dict[str, int]) -> Tensors:
    vocab_size, num_steps = sizes["vocab_size"], sizes["num_steps"]
    sizes["step"] = draws.common("step", num_steps)
    return {
        "logits": _logits(draws, vocab_size),
        "positions": batches.seq_lens(draws, "positions", 64),
        "draft_tokens": tokens(draws, "old draft", num_steps),
    }


def _make_markov(draws: Draws, sizes: dict[str, int]) -> Tensors:
    """Small whole numbers, whose products and sums are exact; a token's weights go by its number."""
    vocab_size, rank = sizes["vocab_size"], sizes["rank"]
    token, column = torch.arange(vocab_size, device=draws.device), torch.arange(rank, device=draws.device)
    weights = (token[:, None] * (column + 1) + column) % 7 - 3
    return {
        "base_logits": _logits(draws, vocab_size),
        "prev_embeds": (draws.below("embedding", 9, rank) - 4).to(torch.float32),
        "w2_weight": weights.to(torch.float32),
    }


def _draw_markov(chooser: Chooser) -> dict[str, int]:
    return {"vocab_size": pick(chooser, (4, 33, 300), "vocab_size"), "rank": pick(chooser, (1, 3, 40), "rank")}


def _distinct_logits(draws: Draws, vocab_size: int, rows: int, least: int) -> Tensor:
    """Rows [n, rows, V] of distinct multiples of 1/256, or -inf outside some tokens side by side, `least` or more."""
    first, by = draws.below("level of token 0", PRIME, rows), 1 + draws.below("levels apart", PRIME - 1, rows)
    token = torch.arange(vocab_size, device=draws.device)
    levels = (first[:, :, None] + by[:, :, None] * token) % PRIME
    kind = draws.below("tokens that are possible", 3, rows)[:, :, None]  # all, some anywhere, the last ones alone
    some = least + draws.below("possible tokens", max(1, vocab_size - least), rows)[:, :, None]
    some = torch.where(kind == 2, some.clamp(max=least + LAST_MAX), some)
    start = draws.below("first possible token", vocab_size, rows)[:, :, None] % (vocab_size - some + 1)
    start = torch.where(kind == 2, vocab_size - some, start)
    possible = (kind == 0) | ((token >= start) & (token < start + some))
    return torch.where(possible, (levels - PRIME // 2).to(torch.float32) / 256, -torch.inf)


def _make_topk_lse(draws: Draws, sizes: dict[str, int]) -> Tensors:
    sizes["num_rows"] = draws.count
    return {"logits": _distinct_logits(draws, sizes["vocab_size"], 1, sizes["k"])[:, 0]}


def _draw_topk_lse(chooser: Chooser) -> dict[str, int]:
    return {"vocab_size": pick(chooser, WIDE_VOCAB_SIZES, "vocab_size"), "k": pick(chooser, (1, 2, 4), "k")}


def _make_log_probs(draws: Draws, sizes: dict[str, int]) -> Tensors:
    depths, k = sizes["num_depths"], sizes["num_candidates"]
    logits = _distinct_logits(draws, sizes["vocab_size"], depths, k)
    temperatures = torch.tensor((0.0, *TEMPERATURES), device=draws.device)
    return {
        "logits": logits,
        "top_values": logits.topk(k, dim=2).values,
        "temperatures": temperatures[draws.below("temperature", len(TEMPERATURES) + 1)],
    }


def _draw_log_probs(chooser: Chooser) -> dict[str, int]:
    shape = {
        "num_depths": between(chooser, 1, 3, "num_depths"),
        "num_candidates": pick(chooser, (1, 3, 4), "candidates"),
    }
    return {**shape, "vocab_size": pick(chooser, WIDE_VOCAB_SIZES, "vocab_size")}


def _make_tree(draws: Draws, sizes: dict[str, int]) -> Tensors:
    """Log-probabilities are multiples of 1/4, many of them equal, so that sums are exact; some are -inf."""
    depths, k, n = sizes["num_depths"], sizes["num_candidates"], draws.count
    sizes["num_drafts"], sizes["parent_width"] = sizes["num_draft_tokens"] - 1, k * (depths - 1) + 1
    steps = draws.below("quarters to the next candidate", 3, depths * k).view(n, depths, k).cumsum(dim=2)
    log_probs = -steps.to(torch.float32) / 4
    impossible = draws.below("impossible candidates", 6, depths)[:, :, None] == 0
    last = torch.arange(k, device=draws.device) >= k // 2
    return {
        "top_token_ids": tokens(draws, "candidate", depths * k).view(n, depths, k),
        "top_log_probs": torch.where(impossible & last, -torch.inf, log_probs),
    }


def _draw_tree(chooser: Chooser) -> dict[str, int]:
    depths, k = between(chooser, 1, 5, "num_depths"), between(chooser, 2, 5, "num_candidates")
    most = min(k * (depths - 1) + 2, TREE_NODES_MAX)
    nodes = between(chooser, depths + 1, most, "num_draft_tokens")
    return {"num_depths": depths, "num_candidates": k, "num_draft_tokens": nodes}


def _any_of_nan(case: Case, expected: Tensors) -> Tensors:
    """A draft is verified: of a row with NaN any token of the vocabulary will do."""
    is_nan = case.tensors["base_logits"].isnan().any(dim=1)
    return {"next_tokens": is_nan.to(expected["next_tokens"].device)}


def _finite(_case: Case, expected: Tensors) -> Tensors:
    """Which of tokens that are impossible comes first is nobody's concern."""
    defined = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}
    return {**defined, "ids": expected["values"].isfinite()}


OPS: tuple[Op, ...] = (
    operation(prepare_draft_block, "block_drafts", chain_cases(_make_block, draw_paged)),
    operation(
        walk_candidates,
        "block_drafts",
        chain_cases(_make_walk, _draw_candidates),
        tolerance={"q": SOFTMAX_TOLERANCE},
    ),
    operation(walk_candidates_greedy, "block_drafts", chain_cases(_make_greedy_walk, _draw_candidates)),
    operation(best_candidates, "block_drafts", chain_cases(_make_best, _draw_candidates)),
    operation(cache_candidate_logits, "block_drafts", chain_cases(_make_cached, _draw_cached)),
    operation(markov_greedy_step, "block_drafts", chain_cases(_make_markov, _draw_markov), tokens=_any_of_nan),
    operation(draft_topk1, "block_drafts", chain_cases(_make_topk1, _draw_vocabulary)),
    operation(
        topk_lse,
        "block_drafts",
        chain_cases(_make_topk_lse, _draw_topk_lse),
        compared=_finite,
        tolerance={"lse": LSE_TOLERANCE},
    ),
    operation(
        candidate_log_probs,
        "block_drafts",
        chain_cases(_make_log_probs, _draw_log_probs),
        tolerance={"log_probs": LSE_TOLERANCE},
    ),
    operation(build_best_first_tree, "block_drafts", chain_cases(_make_tree, _draw_tree)),
)
