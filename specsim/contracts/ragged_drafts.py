"""The ragged family: verification of drafts that lie in one flat row, as vLLM keeps them, and the inputs after it.

Requests have no drafts, some or all; in a batch of thousands each has as many. Distributions are of small vocabularies,
in multiples of 1/64. A uniform draw lies at the centre of the interval that accepts or rejects, a millionth beside the
threshold, or, in cases with `zero_coins`, at 0, which accepts a token of any probability but 0. In cases with
`has_placeholders` some drafts are -1; with `has_nan` rows of the target are NaN, of requests that sample, as they are
behind logits that overflowed. The noise of the races makes no two scores equal, or nearly so.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.distributions import (
    DRAFT_ROWS,
    GAPS,
    HALVING,
    ONE_HOT,
    SKEWED,
    TWO,
    VOCAB_SIZE_MAX,
    VOCAB_SIZE_MIN,
)
from specsim.contracts.draws import Draws
from specsim.contracts.sampling_cases import draw_rows
from specsim.reference.argument_tables import CONTRACTS
from specsim.reference.ragged_drafts import (
    PLACEHOLDER,
    expand_block_inputs,
    expand_draft_inputs,
    expand_to_drafts,
    prepare_inputs_padded,
    prepare_next_token_padded,
    sample_recovered_tokens,
    step_slot_mapping,
    verify_ragged_greedy,
    verify_ragged_rejection,
    verify_ragged_sampled,
)

__all__ = [
    "OPS",
    "draft_counts",
    "draft_ends",
    "draw_ragged_shape",
    "draw_sampled_shape",
    "flat_drafts",
    "ragged_cases",
    "ragged_sizes",
    "sampled_tensors",
]

NUM_STEPS_MAX = 8
TOKENS_START = 2**17
TARGET_KINDS = (HALVING, SKEWED, ONE_HOT, TWO, GAPS)  # each has one most probable token
MARGIN = 2.0**-20  # from a threshold: more than float32 loses in a quotient
RACES = (101, 103, 107, 109, 113, 127, 131, 137, 139, 149, 151, 157)  # primes: no quotient of two is one of weights
PAGE_SIZES = (1, 4, 16)
SEQ_PAGES_MAX = 4
FIRST_MAX = 40  # positions before a batch


def draft_counts(draws: Draws, shape: Sizes) -> Tensor:
    """Drafts of each request [n]: all of them, or, in a ragged case, any number; one at least in all."""
    n, num_steps = draws.count, shape["num_steps"]
    if not shape["is_ragged"]:
        return torch.full((n,), num_steps, dtype=torch.int64, device=draws.device)
    counts = draws.below("drafts", num_steps + 1)
    counts[0] = counts[0].clamp(min=1)
    return counts


def flat_drafts(rows: Tensor, counts: Tensor) -> Tensor:
    """What the drafts that there are have of [n, S, ...]: [num_drafts, ...]."""
    step = torch.arange(rows.shape[1], device=rows.device)
    return rows[step < counts[:, None]].contiguous()


def draft_ends(counts: Tensor) -> Tensor:
    return counts.cumsum(0).to(torch.int32)


def ragged_sizes(shape: Sizes, counts: Tensor, **more: int) -> dict[str, int]:
    num_steps, bs = shape["num_steps"], counts.shape[0]
    sizes = {**shape, "bs": bs, "topk": 1, "num_draft_tokens": num_steps + 1, "accept_width": num_steps + 1}
    return {**sizes, "num_drafts": int(counts.sum()), "num_ends": bs, "num_starts": bs + 1, **more}


def _make_greedy(draws: Draws, shape: Sizes) -> Case:
    num_steps = shape["num_steps"]
    counts = draft_counts(draws, shape)
    target = TOKENS_START + draws.labels("target token", num_steps)  # [n, S]
    kind = draws.below("accepted drafts", 3)
    any_depth = draws.below("any number of accepted drafts", num_steps + 1)
    depth = torch.where(kind == 0, 0, torch.where(kind == 1, num_steps, any_depth))
    step = torch.arange(num_steps, device=draws.device)
    lucky = draws.below("right off the path", 2, num_steps) == 1
    wrong = (step == depth[:, None]) | ((step > depth[:, None]) & ~lucky)
    absent = draws.below("wrong draft is a placeholder", 4, num_steps) == 1
    drafts = torch.where(wrong, torch.where(absent, PLACEHOLDER, target + 1), target)
    tensors = {
        "cu_num_draft_tokens": draft_ends(counts),
        "draft_token_ids": flat_drafts(drafts, counts).to(torch.int32),
        "target_argmax": flat_drafts(target, counts),
        "bonus_token_ids": (1 + draws.below("bonus token", 2**16)).to(torch.int32),
        "is_greedy": draws.below("is greedy", 4) != 1,
    }
    return Case(ragged_sizes(shape, counts), tensors)


def _drafted(draws: Draws, shape: Sizes) -> tuple[Tensor, Tensor, Tensor]:
    """Target distributions and draft distributions [n, S, V] float64, and drafts [n, S] that have a probability under
    the latter.
    """
    num_steps, vocab_size = shape["num_steps"], shape["vocab_size"]
    target = draw_rows(draws, "target", TARGET_KINDS, num_steps, vocab_size)
    draft = draw_rows(draws, "draft", DRAFT_ROWS, num_steps, vocab_size)
    if not shape["has_draft_probs"]:
        return target, draft, draws.below("draft", vocab_size, num_steps)
    order = draft.sort(dim=2, descending=True, stable=True).indices
    rank = draws.below("rank of the draft", (draft > 0).sum(dim=2), num_steps)
    return target, draft, order.gather(2, rank[:, :, None])[:, :, 0]


def _coins(draws: Draws, shape: Sizes, target: Tensor, draft: Tensor, drafts: Tensor) -> Tensor:
    """[n, S] float64: each accepts or rejects as drawn, if it can do both."""
    num_steps = shape["num_steps"]
    p = target.gather(2, drafts[:, :, None])[:, :, 0]
    q = draft.gather(2, drafts[:, :, None])[:, :, 0] if shape["has_draft_probs"] else torch.ones_like(p)
    height = (p / q).clamp(max=1)  # [n, S]: uniform draws below it accept
    accepts = (draws.below("accepts", 3, num_steps) > 0) & (height > 0) | (height >= 1)
    kind = draws.below("place of the coin", 6, num_steps)
    centre = torch.where(accepts, height / 2, (height + 1) / 2)
    beside = torch.where(accepts, height - MARGIN, height + MARGIN)
    zero = torch.zeros_like(centre)
    coins = torch.where((kind == 4) | (kind == 5), beside, centre)
    return torch.where((kind == 3) & (accepts | (height == 0)), zero, coins) if shape["zero_coins"] else coins


def _race(draws: Draws, shape: Sizes) -> Tensor:
    """[n, V] float32: different primes over 128, times 1 to 8."""
    vocab_size = shape["vocab_size"]
    primes = torch.tensor(RACES, dtype=torch.float64, device=draws.device)
    token = torch.arange(vocab_size, device=draws.device)
    first = draws.below("first noise", len(RACES))[:, None]
    stretch = 2.0 ** draws.below("stretch of the noise", 4, vocab_size)
    return (primes[(first + 5 * token) % len(RACES)] / 128 * stretch).to(torch.float32)


def sampled_tensors(draws: Draws, shape: Sizes, counts: Tensor) -> Tensors:
    target, draft, drafts = _drafted(draws, shape)
    vocab_size = shape["vocab_size"]
    coins = _coins(draws, shape, target, draft, drafts)
    if shape["has_placeholders"]:
        left = (target - draft).clamp(min=0).any(dim=2) | (shape["has_draft_probs"] == 0)  # [n, S]
        absent = draws.below("draft is a placeholder", 3, shape["num_steps"]) == 1
        drafts = torch.where(absent & left, PLACEHOLDER, drafts)
    tensors = {
        "cu_num_draft_tokens": draft_ends(counts),
        "draft_token_ids": flat_drafts(drafts, counts).to(torch.int32),
        "draft_probs": flat_drafts(draft, counts).to(torch.float32),
        "target_probs": flat_drafts(target, counts).to(torch.float32),
        "bonus_token_ids": draws.below("bonus token", vocab_size).to(torch.int32),
        "recovered_token_ids": flat_drafts(draws.below("recovered token", vocab_size, shape["num_steps"]), counts).to(
            torch.int32
        ),
        "uniform_probs": flat_drafts(coins, counts),
        "race": _race(draws, shape),
        "is_greedy": draws.below("is greedy", 4) == 1,
    }
    if shape["has_nan"]:
        is_nan = (draws.below("row of NaN", 3, shape["num_steps"]) == 1) & ~tensors["is_greedy"][:, None]
        tensors["target_probs"][flat_drafts(is_nan, counts)] = torch.nan
    return tensors


def _maker(reference: Callable[..., Tensor]) -> Callable[[Draws, Sizes], Case]:
    """Makes those of the sampled tensors that an operation takes."""
    names = [arg.name for arg in CONTRACTS[reference.__name__].arguments if arg.role == "in"]

    def make(draws: Draws, shape: Sizes) -> Case:
        counts = draft_counts(draws, shape)
        tensors = sampled_tensors(draws, shape, counts)
        return Case(ragged_sizes(shape, counts), {name: tensors[name] for name in names})

    return make


def _make_expand(draws: Draws, shape: Sizes) -> Case:
    counts = draft_counts(draws, shape)
    values = (draws.below("value", 6) - 1).to(torch.float32) / 2
    from_to = {"replace_from": shape["replace_from"], "replace_to": 1}
    values = torch.where(draws.below("is replaced", 3) == 1, float(shape["replace_from"]), values)
    tensors = {"values": values, "cu_num_draft_tokens": draft_ends(counts)}
    return Case(ragged_sizes(shape, counts, **from_to), tensors)


def _make_inputs(draws: Draws, shape: Sizes) -> Case:
    counts = draft_counts(draws, shape)
    accepted = torch.where(
        draws.below("accepted drafts", 3) == 1,
        counts,
        draws.below("any accepted drafts", counts + 1),
    )
    scheduled = counts + 1 + draws.below("prefill tokens", 3) * (counts == 0)
    starts = torch.cat([torch.zeros_like(scheduled[:1]), scheduled.cumsum(0)])
    tensors = {
        "cu_num_draft_tokens": draft_ends(counts),
        "valid_sampled_tokens_count": (accepted + 1).to(torch.int32),
        "query_start_loc": starts.to(torch.int32),
    }
    return Case(ragged_sizes(shape, counts), tensors)


def _make_next_token(draws: Draws, shape: Sizes) -> Case:
    n, num_steps, vocab_size = draws.count, shape["num_steps"], shape["vocab_size"]
    width = num_steps + 1
    count = draws.below("valid tokens", width + 1)  # [n]
    tokens = draws.below("token", vocab_size, width)
    edge = draws.below("token at the edge of the vocabulary", 6, width)
    tokens = torch.where(edge == 1, 0, torch.where(edge == 2, vocab_size - 1, tokens))
    invalid = torch.where(draws.below("what is not valid", 3, width) == 1, vocab_size, -1)
    step = torch.arange(width, device=draws.device)
    tensors = {
        "sampled_token_ids": torch.where(step < count[:, None], tokens, invalid).to(torch.int32),
        "discard_request_mask": draws.below("discarded", 4) == 1,
        "backup_next_token_ids": draws.below("backup token", vocab_size).to(torch.int32),
    }
    return Case(ragged_sizes(shape, torch.full((n,), num_steps, device=draws.device)), tensors)


def _make_step(draws: Draws, shape: Sizes) -> Case:
    n, page_size, max_model_len = draws.count, shape["page_size"], shape["max_model_len"]
    num_pages = -(-max_model_len // page_size)
    kind = draws.below("position", 5)
    page_end = draws.below("page", num_pages) * page_size + page_size - 1
    anywhere = draws.below("position anywhere", max_model_len)
    positions = torch.where(kind == 0, anywhere, torch.where(kind == 1, max_model_len - 1, max_model_len - 2))
    positions = torch.where(kind == 3, page_end.clamp(max=max_model_len - 1), positions)
    positions = torch.where(kind == 4, max_model_len, positions)
    tensors = {
        "positions": positions,
        "block_table": draws.labels("page number", num_pages).to(torch.int32),
        "seq_lens": (positions + 1).to(torch.int32),
    }
    padded = n + shape["padding"]
    return Case(
        ragged_sizes(shape, torch.full((n,), shape["num_steps"]), num_pages=num_pages, padded_bs=padded), tensors
    )


def _make_draft_inputs(draws: Draws, shape: Sizes) -> Case:
    n, slots, shift = draws.count, shape["num_padding_slots"], shape["shift_input_ids"]
    counts = draft_counts(draws, shape)
    rejected = draws.below("rejected drafts", counts + 1)
    scheduled = counts + 1 + draws.below("prefill tokens", 3) * (counts == 0)
    starts = torch.cat([torch.zeros_like(scheduled[:1]), scheduled.cumsum(0)])
    num_tokens = int(starts[-1])
    place = torch.arange(num_tokens, device=draws.device)
    owner = torch.arange(n, device=draws.device).repeat_interleave(scheduled)
    first = draws.below("first position", 2**16)
    tensors = {
        "target_token_ids": (TOKENS_START + draws.labels("first token")[owner] + place).to(torch.int32),
        "target_positions": first[owner] + place - starts[:-1][owner],
        "next_token_ids": (TOKENS_START + draws.below("next token", 2**16)).to(torch.int32),
        "query_start_loc": starts.to(torch.int32),
        "query_end_loc": (starts[1:] - 1 - rejected).to(torch.int32),
    }
    more = {"num_tokens": num_tokens, "num_out": num_tokens + n * (slots - shift), "num_new": n * slots}
    return Case(ragged_sizes(shape, counts, padding_token_id=0, parallel_drafting_token_id=7, **more), tensors)


def _make_block_inputs(draws: Draws, shape: Sizes) -> Case:
    n, page_size, num_steps = draws.count, shape["page_size"], shape["num_steps"]
    counts = draft_counts(draws, shape)
    rejected = draws.below("rejected drafts", counts + 1)
    scheduled = counts + 1 + draws.below("prefill tokens", 3) * (counts == 0)
    starts = torch.cat([torch.zeros_like(scheduled[:1]), scheduled.cumsum(0)])
    num_tokens = int(starts[-1])
    owner = torch.arange(n, device=draws.device).repeat_interleave(scheduled)
    first = draws.below("first position", FIRST_MAX)
    num_pages = -(-(FIRST_MAX + 2 * NUM_STEPS_MAX + 4) // page_size)
    tensors = {
        "next_token_ids": (TOKENS_START + draws.below("next token", 2**16)).to(torch.int32),
        "target_positions": first[owner] + torch.arange(num_tokens, device=draws.device) - starts[:-1][owner],
        "query_start_loc": starts.to(torch.int32),
        "num_rejected": rejected.to(torch.int32),
        "block_table": draws.labels("page number", num_pages).to(torch.int32),
    }
    more = {"num_tokens": num_tokens, "num_new": n * num_steps, "num_nodes": n * (num_steps + 1)}
    return Case(ragged_sizes(shape, counts, mask_token_id=7, num_pages=num_pages, **more), tensors)


# Shapes of batches


def draw_ragged_shape(chooser: Chooser) -> dict[str, int]:
    return {"num_steps": between(chooser, 1, NUM_STEPS_MAX, "num_steps"), "is_ragged": 0}


def _draw_inputs_shape(chooser: Chooser) -> dict[str, int]:
    slots = between(chooser, 1, 4, "num_padding_slots")
    return {
        **draw_ragged_shape(chooser),
        "num_padding_slots": slots,
        "shift_input_ids": chooser.choose(2, "shift_input_ids"),
    }


def _draw_block_shape(chooser: Chooser) -> dict[str, int]:
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    return {**draw_ragged_shape(chooser), "page_size": page_size, "has_rejected": pick(chooser, (1, 0), "has_rejected")}


def _draw_expand_shape(chooser: Chooser) -> dict[str, int]:
    return {**draw_ragged_shape(chooser), "replace_from": pick(chooser, (0, -1), "replace_from")}


def draw_sampled_shape(chooser: Chooser) -> dict[str, int]:
    shape = {**draw_ragged_shape(chooser), "vocab_size": between(chooser, VOCAB_SIZE_MIN, VOCAB_SIZE_MAX, "vocab_size")}
    zero_coins = pick(chooser, (0, 0, 1), "coins of 0")
    has_draft_probs = chooser.choose(2, "has_draft_probs")
    has_placeholders, has_nan = pick(chooser, ((0, 0), (0, 0), (0, 1), (1, 0)), "placeholders, or rows of NaN")
    return {
        **shape,
        "has_draft_probs": has_draft_probs,
        "zero_coins": zero_coins,
        "has_placeholders": has_placeholders,
        "has_nan": has_nan,
    }


def _draw_next_token_shape(chooser: Chooser) -> dict[str, int]:
    return {**draw_ragged_shape(chooser), "vocab_size": pick(chooser, (3, 32_000, 151_936), "vocab_size")}


def _draw_step_shape(chooser: Chooser) -> dict[str, int]:
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    pages = between(chooser, 1, SEQ_PAGES_MAX, "pages")
    max_model_len = max(2, pages * page_size - pick(chooser, (0, 1), "max_model_len below the end of a page"))
    shape = {**draw_ragged_shape(chooser), "page_size": page_size, "max_model_len": max_model_len}
    return {**shape, "padding": between(chooser, 0, 3, "padding requests")}


def _draw_single(chooser: Chooser) -> dict[str, int]:
    return {"is_ragged": chooser.choose(2, "requests have drafts of their own number")}


def ragged_cases(draw_shape: Callable[[Chooser], dict[str, int]], make: Callable[[Draws, Sizes], Case]) -> Cases:
    return Cases(draw_shape, make, draw_single=_draw_single)


def _defined_inputs(case: Case, expected: Tensors) -> Tensors:
    """Where hidden states go is said only when tokens are shifted against them."""
    every = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}
    every["hidden_state_mapping"] &= bool(case.sizes["shift_input_ids"])
    return every


def _any_recovered(case: Case, expected: Tensors) -> Tensors:
    """Where nothing is left of a distribution a draft is never rejected, and no placeholder is there; of a row of NaN
    nobody knows what is left, and it is rejected.
    """
    target, draft = case.tensors["target_probs"], case.tensors["draft_probs"]
    if case.sizes["has_draft_probs"]:
        left = (target - draft.clamp(max=1)).clamp(min=0)
    else:
        taken = torch.arange(target.shape[1], device=target.device) == case.tensors["draft_token_ids"][:, None]
        left = target.masked_fill(taken, 0.0)
    return {"recovered_token_ids": ~(left > 0).any(dim=1).to(expected["recovered_token_ids"].device)}


def _any_emitted(case: Case, expected: Tensors) -> Tensors:
    """What is emitted for a row of NaN."""
    ends, output = case.tensors["cu_num_draft_tokens"].long(), expected["output_token_ids"]
    step = torch.arange(output.shape[1], device=ends.device)
    place = torch.cat([torch.zeros_like(ends[:1]), ends[:-1]])[:, None] + step
    is_nan = case.tensors["target_probs"].isnan().any(dim=1)  # [num_drafts]
    place = torch.where(place < ends[:, None], place, is_nan.shape[0])  # one more, for what is behind the drafts
    is_any = torch.cat([is_nan, torch.zeros_like(is_nan[:1])])[place]
    return {"output_token_ids": is_any.to(output.device) & (output >= 0)}


_greedy = ragged_cases(draw_ragged_shape, _make_greedy)
_rejection = ragged_cases(draw_sampled_shape, _maker(verify_ragged_rejection))
_races = ragged_cases(draw_sampled_shape, _maker(sample_recovered_tokens))
_whole = ragged_cases(draw_sampled_shape, _maker(verify_ragged_sampled))
_expand = ragged_cases(_draw_expand_shape, _make_expand)
_inputs = ragged_cases(draw_ragged_shape, _make_inputs)
_next_token = ragged_cases(_draw_next_token_shape, _make_next_token)
_step = ragged_cases(_draw_step_shape, _make_step)
_draft_inputs = ragged_cases(_draw_inputs_shape, _make_draft_inputs)
_block_inputs = ragged_cases(_draw_block_shape, _make_block_inputs)

OPS: tuple[Op, ...] = (
    operation(verify_ragged_greedy, "ragged_drafts", _greedy),
    operation(verify_ragged_rejection, "ragged_drafts", _rejection),
    operation(sample_recovered_tokens, "ragged_drafts", _races, tokens=_any_recovered),
    operation(verify_ragged_sampled, "ragged_drafts", _whole, tokens=_any_emitted),
    operation(expand_to_drafts, "ragged_drafts", _expand),
    operation(prepare_inputs_padded, "ragged_drafts", _inputs),
    operation(prepare_next_token_padded, "ragged_drafts", _next_token),
    operation(step_slot_mapping, "ragged_drafts", _step),
    operation(expand_draft_inputs, "ragged_drafts", _draft_inputs, compared=_defined_inputs),
    operation(expand_block_inputs, "ragged_drafts", _block_inputs),
)
