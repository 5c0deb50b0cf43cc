"""The logits family: penalties under both laws, the grammar's mask, softmax, and the filters of a law.

Logits are multiples of 1/8 or -inf, penalties dyadic and repetition penalties powers of two, so that no order of the
sums and no fused multiplication makes a difference. Probabilities are multiples of 1/64 with ties, and top-p and min-p
lie on sums and ratios of them, on the float32 before and on the one after: what is kept is the same for everybody.

Two operations divide where that rounds, and state an absolute tolerance. A filter's quotient is at most 1 and off by
at most 4 units in the last place, for a division by multiplying with the reciprocal: 2^-22. A softmax has at most 64
positive probabilities and |logit / temperature| <= 21.5: with 2 units in the last place for each division, 2 for `exp`
and its argument rounded once, and sums of 64 terms in any order, it is off by less than 430 * 2^-24: 2^-15.

NaN is in what the mask forbids and in rows for `row_argmax`, where the result is stated.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, operation
from specsim.contracts.draws import Draws
from specsim.reference.logits import (
    EXACT,
    NAN_HIGHEST,
    NAN_LOWEST,
    RELAXED,
    WORD_BITS,
    accumulate_penalties,
    apply_penalties,
    apply_token_bitmask,
    min_p_renorm_probs,
    row_argmax,
    temperature_softmax,
    top_k_renorm_probs,
    top_p_renorm_probs,
)

__all__ = ["OPS", "as_fewest", "make_penalties"]

VOCAB_SIZES = (4, 31, 32, 33, 63, 64, 65, 4097)
ROW_ELEMENTS_MAX = 24_600  # a case with a large vocabulary has few nodes
TOP_K_ALL = 2**30  # SGLang's top_k for "all tokens"

SOFTMAX_TOLERANCE = 2.0**-15
RENORM_TOLERANCE = 2.0**-22
SUPPORT_MAX = 64  # tokens with a positive probability, on which the tolerance rests

LEVELS = 61  # logits are -30/8 to 30/8
TEMPERATURES = (1.0, 0.5, 2.0, 0.7, 1.3)
STOP_TOKENS = 3

# Frequency, presence and repetition penalties that a request may have.
PENALTIES = ((0, 0, 1), (0.5, 0, 1), (0, 1, 1), (0, 0, 2), (0.5, 1, 2), (2, -0.25, 0.5), (-0.5, 2, 1), (1, 1, 0.5))

# Weights in 64ths of the first tokens; the last of a small vocabulary takes what is left.
ONE_HOT = (64,)
EVEN_PAIR = (32, 32)
HALVING = (32, 16, 8, 4, 2, 1, 1)
TIES = (16, 16, 8, 8, 8, 4, 4)
SKEWED = (20, 16, 12, 8, 8)
LAWS = (ONE_HOT, EVEN_PAIR, HALVING, TIES, SKEWED)  # and the same for all, as far as 64 can be shared out

NAN, INFINITY = float("nan"), float("inf")


Make = Callable[[Draws, dict[str, int]], dict[str, Tensor]]


def _cases(make: Make, scalars: Mapping[str, tuple[int, ...]] | None = None) -> Cases:
    """The cases of an operation on rows of logits. `make` gives a case's tensors, and completes its sizes."""

    def draw_shape(chooser: Chooser) -> dict[str, int]:
        shape = batches.draw_shape(chooser)
        fitting = [size for size in VOCAB_SIZES if size * shape["num_draft_tokens"] <= ROW_ELEMENTS_MAX]
        drawn = {name: pick(chooser, values, name) for name, values in (scalars or {}).items()}
        return {**shape, "vocab_size": pick(chooser, fitting, "vocab_size"), **drawn}

    def make_from(draws: Draws, shape: Sizes) -> Case:
        sizes = {**shape, "bs": draws.count, "num_nodes": draws.count * shape["num_draft_tokens"]}
        tensors = make(draws, sizes)
        return Case(sizes, {name: tensor.contiguous() for name, tensor in tensors.items()})

    def requests_max(shape: Sizes) -> int:
        return ROW_ELEMENTS_MAX // (shape["num_draft_tokens"] * shape["vocab_size"])

    return Cases(draw_shape, make_from, requests_max=requests_max)


def _logits(draws: Draws, sizes: Sizes) -> Tensor:
    """Rows [bs, ndt, V] float32 that rise in steps and start again, or are flat; some have -inf here and there."""
    start = draws.below("logit of token 0", LEVELS, sizes["num_draft_tokens"])  # [bs, ndt]
    step = draws.below("logits, from token to token", LEVELS, 1)  # [bs, 1]
    token = torch.arange(sizes["vocab_size"], device=start.device)  # [V]
    levels = (start[:, :, None] + step[:, :, None] * token + LEVELS // 2) % LEVELS - LEVELS // 2
    every = draws.below("distance of tokens at -inf", 5, 1)[:, :, None]  # [bs, 1, 1]
    hidden = (every > 0) & (token % (every + 1) == 1)
    return torch.where(hidden, -INFINITY, levels / 8)


def _spread_tokens(draws: Draws, sizes: Sizes, columns: int) -> Tensor:
    """Tokens [bs, columns]: one token throughout, two or three in turn, or all different if the vocabulary has them."""
    vocab_size = sizes["vocab_size"]
    first = draws.below("first token", vocab_size, 1)
    kinds = torch.tensor((1, 2, 3, vocab_size), device=first.device)
    spread = kinds[draws.below("different tokens", len(kinds), 1)]  # [bs, 1]
    return (first + torch.arange(columns, device=first.device) % spread) % vocab_size


def _make_accumulate(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    width, vocab_size = sizes["num_steps"] + 1, sizes["vocab_size"]
    sizes["accept_width"] = width
    tokens = _spread_tokens(draws, sizes, width)  # [bs, width]
    token = torch.arange(vocab_size, device=tokens.device)
    history = draws.below("history", 3, 1)  # [bs, 1]: empty, of some tokens, long
    long = min(2**15, 2**30 // vocab_size)  # a count's; their sum is a length, of 32 bits
    counts = (history > 0) * ((token + history) % 3 == 0) * (1 + token % 2) * torch.where(history == 2, long, 1)
    kind, any_len = draws.below("accept length", 3, 1), draws.below("any accept length", width, 1)
    accept_lens = 1 + torch.where(kind == 0, 0, torch.where(kind == 1, width - 1, any_len))[:, 0]
    return {
        "output_counts": counts.to(torch.int32),
        "output_lens": counts.sum(1).to(torch.int32),
        "accept_tokens": tokens.to(torch.int32),
        "accept_lens": accept_lens.to(torch.int32),
    }


def make_penalties(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    ndt, vocab_size, num_steps = sizes["num_draft_tokens"], sizes["vocab_size"], sizes["num_steps"]
    sizes["num_stop_tokens"] = STOP_TOKENS
    parents = batches.trees(draws, sizes).parents  # [bs, ndt]
    candidates = _spread_tokens(draws, sizes, ndt)  # [bs, ndt]
    token = torch.arange(vocab_size, device=parents.device)

    history = draws.below("history", 4, 1)  # [bs, 1]: the root, nothing, the root often, the root and others
    root = (token == candidates[:, :1]).to(torch.int64)  # [bs, V]
    counts = torch.where(history == 1, 0, torch.where(history == 2, 5 * root, root))
    counts += (history == 3) * (token % 3 == 0) * (1 + token % 2)
    lens = counts.sum(1)  # [bs]

    penalties = torch.tensor(PENALTIES, dtype=torch.float32, device=parents.device)
    frequency, presence, repetition = penalties[draws.below("penalties", len(PENALTIES), 1)[:, 0]].unbind(1)
    beyond = torch.tensor((0, 0, 1, 2, num_steps, num_steps + 1), device=parents.device)
    kind = draws.below("min_new_tokens", len(beyond), 1)[:, 0]
    min_new_tokens = torch.where(kind == 0, 0, lens + beyond[kind])
    stop_token = draws.below("stop token", vocab_size, 1)  # [bs, 1]
    padding = torch.full_like(stop_token, vocab_size)
    kind = draws.below("logit bias", 4, 1)  # [bs, 1]
    bias = torch.zeros((parents.shape[0], vocab_size), device=parents.device)
    bias[(kind == 1) & (token % 7 == 0)] = 100
    bias[(kind == 2) & (token % 5 == 0)] = -INFINITY
    bias[(kind == 3) & (token == candidates[:, -1:])] = -2.5
    return {
        "logits": _logits(draws, sizes).flatten(0, 1),
        "output_counts": counts.to(torch.int32),
        "output_lens": lens.to(torch.int32),
        "candidates": candidates,
        "tree_mask": batches.masks(parents),
        "frequency_penalty": frequency,
        "presence_penalty": presence,
        "repetition_penalty": repetition,
        "min_new_tokens": min_new_tokens.to(torch.int32),
        "stop_token_ids": torch.cat([stop_token, padding, candidates[:, 1:2]], dim=1),
        "logit_bias": bias,
    }


def _make_bitmask(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    ndt, vocab_size = sizes["num_draft_tokens"], sizes["vocab_size"]
    masked_nodes = max(0, ndt - sizes.pop("unmasked_nodes"))
    words = -(-vocab_size // WORD_BITS)
    sizes.update({"num_words": words, "num_indices": sizes["bs"] * masked_nodes})
    logits = _logits(draws, sizes)  # [bs, ndt, V]
    token = torch.arange(words * WORD_BITS, device=logits.device)
    kind = draws.below("what is allowed", 6, ndt)[:, :, None]  # [bs, ndt, 1]
    one = draws.below("one token", vocab_size, ndt)[:, :, None]
    allowed = kind == 0
    allowed = allowed | ((kind == 1) & (token == one)) | ((kind == 2) & (token != one))
    allowed = allowed | ((kind == 3) & ((token + one) % 2 == 0)) | ((kind == 4) & (token // WORD_BITS % 2 == 0))
    allowed = allowed | ((token >= vocab_size) & (one % 2 == 0))  # [bs, ndt, words * 32]; of kind 5 no token is

    turn = draws.below("first masked node", ndt, 1)
    nodes = (turn + torch.arange(masked_nodes, device=turn.device)) % ndt  # [bs, masked_nodes]
    is_masked = torch.zeros((sizes["bs"], ndt), dtype=torch.bool, device=turn.device).scatter_(1, nodes, True)
    odd = draws.below("odd logits", 4, ndt)[:, :, None]  # [bs, ndt, 1]
    forbidden = is_masked[:, :, None] & ~allowed[:, :, :vocab_size]
    for value, remainder in ((NAN, 1), (INFINITY, 2)):
        logits[forbidden & (odd > 0) & ((token[:vocab_size] + odd) % 3 == remainder)] = value

    bit = torch.arange(WORD_BITS, device=logits.device)
    packed = (allowed.view(-1, words, WORD_BITS).to(torch.int64) << bit).sum(2)  # [bs * ndt, words], without a sign
    request = torch.arange(sizes["bs"], device=logits.device)[:, None]
    return {
        "logits": logits.flatten(0, 1),
        "bitmask": torch.where(packed >= 2**31, packed - 2**32, packed).to(torch.int32),
        "indices": (request * ndt + nodes).flatten().to(torch.int32),
    }


def _make_argmax(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    ndt, vocab_size = sizes["num_draft_tokens"], sizes["vocab_size"]
    logits = _logits(draws, sizes)  # [bs, ndt, V]
    kind = draws.below("rows without order", 8, ndt)[:, :, None]  # [bs, ndt, 1]
    for number, value in ((1, 0.0), (2, -INFINITY), (3, NAN)):
        logits = torch.where(kind == number, value, logits)
    # Values put in two places: ties, and what NaN and infinities are compared with.
    pairs = torch.tensor(
        ((0, -0.0), (9, 9), (NAN, 9), (9, NAN), (NAN, NAN), (INFINITY, INFINITY), (INFINITY, NAN), (-INFINITY, NAN)),
        device=logits.device,
    )
    values = pairs[draws.below("pair", len(pairs), ndt)]  # [bs, ndt, 2]
    places = torch.stack([draws.below(what, vocab_size, ndt) for what in ("one place", "other place")], dim=2)
    first, second = places[:, :, :1], (places[:, :, :1] + 1 + places[:, :, 1:]) % vocab_size
    logits = logits.scatter(2, first, values[:, :, :1]).scatter(2, second, values[:, :, 1:])
    return {"logits": logits.flatten(0, 1)}


def _make_softmax(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    ndt, vocab_size = sizes["num_draft_tokens"], sizes["vocab_size"]
    logits = 4 * _logits(draws, sizes)  # [bs, ndt, V]
    token = torch.arange(vocab_size, device=logits.device)
    one = draws.below("token that stays", vocab_size, ndt)[:, :, None]  # [bs, ndt, 1]
    alone = draws.below("only one token", 4, ndt)[:, :, None] == 1
    stays = torch.where(alone, token == one, (token - one) % vocab_size < SUPPORT_MAX)
    logits = torch.where(stays, logits, -INFINITY)
    logits = torch.where((token == one) & logits.isinf(), 1.0, logits)
    temperatures = torch.tensor(TEMPERATURES, device=logits.device)
    temperature = temperatures[draws.below("temperature", len(TEMPERATURES), ndt)]  # [bs, ndt]
    return {"logits": logits.flatten(0, 1), "temperature": temperature.flatten()}


def _weights(draws: Draws, sizes: Sizes) -> Tensor:
    """Laws [bs, ndt, V] int64 in 64ths, turned so that the most probable token is anywhere."""
    ndt, vocab_size = sizes["num_draft_tokens"], sizes["vocab_size"]
    rows = [[*law, *[0] * vocab_size][:vocab_size] for law in LAWS]
    rows.append([64 // vocab_size + (token < 64 % vocab_size) for token in range(vocab_size)])
    for row in rows:
        row[-1] += 64 - sum(row)
    kind = draws.below("law", len(rows), ndt)  # [bs, ndt]
    turn = draws.below("most probable token", vocab_size, ndt)[:, :, None]  # [bs, ndt, 1]
    token = torch.arange(vocab_size, device=kind.device)
    return torch.tensor(rows, device=kind.device)[kind].gather(2, (token - turn) % vocab_size)


def _beside(draws: Draws, sizes: Sizes, edges: Tensor) -> Tensor:
    """`edges` [bs, ndt], the float32 before, or the one after."""
    kind = draws.below("beside the edge", 3, sizes["num_draft_tokens"])
    edges = edges.to(torch.float32)
    towards = torch.where(kind == 1, 0.0, torch.where(kind == 2, 2.0, edges))
    return torch.nextafter(edges, towards)


def _make_top_k(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    weights, vocab_size = _weights(draws, sizes), sizes["vocab_size"]
    kinds = torch.tensor((TOP_K_ALL, 1, 2, 3, 5, vocab_size - 1, vocab_size, vocab_size + 1), device=weights.device)
    top_k = kinds[draws.below("top_k", len(kinds), sizes["num_draft_tokens"])]  # [bs, ndt]
    return {"probs": (weights / 64).flatten(0, 1), "top_k": top_k.flatten().to(torch.int32)}


def _make_top_p(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    weights, ndt = _weights(draws, sizes), sizes["num_draft_tokens"]
    sums = weights.sort(dim=2, descending=True).values.cumsum(2) / 64  # [bs, ndt, V]
    rank = draws.below("tokens that add up to p", 8, ndt).clamp(max=sizes["vocab_size"] - 1)
    kind = draws.below("top_p", 6, ndt)  # [bs, ndt]
    edges = torch.where(kind == 0, 1.0, torch.where(kind == 1, 2.0**-30, sums.gather(2, rank[:, :, None])[:, :, 0]))
    top_p = _beside(draws, sizes, edges).clamp(max=1.0)
    return {"probs": (weights / 64).flatten(0, 1), "top_p": top_p.flatten()}


def _make_min_p(draws: Draws, sizes: dict[str, int]) -> dict[str, Tensor]:
    weights, ndt = _weights(draws, sizes), sizes["num_draft_tokens"]
    ordered = weights.sort(dim=2, descending=True).values  # [bs, ndt, V]
    rank = draws.below("token at the edge", 8, ndt).clamp(max=sizes["vocab_size"] - 1)
    most, at_edge = ordered[:, :, 0], ordered.gather(2, rank[:, :, None])[:, :, 0]  # [bs, ndt]
    exact = (most & (most - 1)) == 0  # a ratio to a power of two, and the threshold that it gives, have no rounding
    kind = draws.below("min_p", 6, ndt)  # [bs, ndt]
    edges = torch.where(exact & (kind > 1), at_edge / most, torch.where(kind == 1, 0.5, 0.0))
    min_p = _beside(draws, sizes, edges).clamp(0.0, 1.0)
    return {"probs": (weights / 64).flatten(0, 1), "min_p": torch.where(exact, min_p, edges.float()).flatten()}


def as_fewest(probs: Tensor, top_p: Tensor, renorm_probs: Tensor) -> Tensor:
    """What an implementation of `top_p_renorm_probs` gave that counts up from the least probable token, and keeps those
    from a mass of 1 - p on: where fewer tokens add up to p, it keeps one more, as its rule says. Such rows become those
    of the contract, which keeps the fewest; all others stay.

    probs, renorm_probs  [num_rows, V] float32
    top_p                [num_rows] float32

    Its sums and 1 - p are float32: n positive probabilities with sum 1 take n - 1 additions and one subtraction, each
    off by 2^-25 at most, so that a sum within n * 2^-25 of p may be p for it.
    """
    exact, p = probs.double(), top_p.double()
    roundings = (probs > 0).sum(1) * 2.0**-25
    fewest, one_more = (top_p_renorm_probs(exact, (p + by).clamp(max=1)).float() for by in (0 * p, roundings))
    has_one_more = ((renorm_probs - one_more).abs() <= RENORM_TOLERANCE).all(1, keepdim=True)
    return torch.where(has_one_more, fewest, renorm_probs)


OPS: tuple[Op, ...] = (
    operation(accumulate_penalties, "logits", _cases(_make_accumulate, {"law": (EXACT, RELAXED)})),
    operation(apply_penalties, "logits", _cases(make_penalties, {"law": (EXACT, RELAXED)})),
    operation(apply_token_bitmask, "logits", _cases(_make_bitmask, {"unmasked_nodes": (0, 1, 3, 64)})),
    operation(row_argmax, "logits", _cases(_make_argmax, {"nan_policy": (NAN_HIGHEST, NAN_LOWEST)})),
    operation(temperature_softmax, "logits", _cases(_make_softmax), tolerance={"probs": SOFTMAX_TOLERANCE}),
    operation(top_k_renorm_probs, "logits", _cases(_make_top_k), tolerance={"renorm_probs": RENORM_TOLERANCE}),
    operation(top_p_renorm_probs, "logits", _cases(_make_top_p), tolerance={"renorm_probs": RENORM_TOLERANCE}),
    operation(min_p_renorm_probs, "logits", _cases(_make_min_p), tolerance={"renorm_probs": RENORM_TOLERANCE}),
)
