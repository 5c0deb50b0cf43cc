"""The family of draft steps: what drafters read of batches whose requests are rows of state, as vLLM keeps them.

Batches are those of the step inputs: requests that decode have drafts, of which any were rejected, and those that
prefill a chunk sampled nothing. Buffers hold what an earlier batch has left. Requests are as long as they may be, or
their drafts go beyond; block tables begin with blocks of nobody, as behind a window.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.contracts.step_inputs import (
    TOKENS_START,
    DrawnStep,
    batch_tokens,
    draw_shape,
    draw_step,
    maker,
    max_model_len,
    sampled_of,
    sizes_of,
    starts_of,
    state_tensors,
)
from specsim.reference.cache_locs import ragged_segments
from specsim.reference.draft_steps import (
    apply_grammar_bitmask,
    cache_module_inputs,
    pad_trailing_slots,
    prepare_block_draft,
    prepare_draft_decode,
    prepare_draft_prefill,
    prepare_module_hidden,
    prepare_module_inputs,
    prepare_standalone_prefill,
    propose_ngrams,
    shift_draft_inputs,
    update_draft_inputs,
)
from specsim.reference.step_inputs import NO_ROW

__all__ = ["OPS"]

REPEATED_TOKENS = (2, 3, 50)  # different tokens of a request whose runs are looked for
LENGTHS = (40, 8, 130)  # tokens that it may have
MAX_NS = (1, 2, 3, 5)
HIDDEN_SIZES = (1, 5, 1030)
PAGE_SIZES = (1, 4, 16)
SPARE_TOKENS = 5
VOCAB_SIZES = (33, 7, 8200)
MASK_TOKEN = 5
OLD = 1000
LONG_MAX = 150  # tokens of a prompt


def _positions(step: DrawnStep) -> Tensor:
    """[num_tokens] int64."""
    owner, place = ragged_segments(step.queries)
    return step.computed[owner] + place


def _counts(draws: Draws, shape: Sizes, step: DrawnStep) -> tuple[Tensor, Tensor]:
    """Sampled tokens and rejected drafts of each request [n] int32."""
    _tokens, count = sampled_of(draws, shape, step)
    return count.to(torch.int32), torch.where(step.samples, step.num_logits - count, 0).to(torch.int32)


def _follows(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    """What follows the tokens of each request that stay, and how many stay."""
    sampled, rejected = _counts(draws, shape, step)
    return {
        "num_sampled": sampled,
        "num_rejected": rejected,
        "last_sampled_tokens": step.state(TOKENS_START + draws.labels("last sampled token")),
        "next_prefill_tokens": step.state(TOKENS_START + draws.labels("next token of the prompt")).to(torch.int32),
    }


def _more_of_prefill(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    old = OLD + torch.arange(int(step.queries.sum()), device=draws.device)
    return {
        "input_ids": batch_tokens(draws, step, "input", shape),
        "positions": _positions(step),
        "draft_input_ids": old.to(torch.int32),
        "draft_positions": -old,
        **_follows(draws, shape, step),
    }


def _make_prefill(draws: Draws, shape: Sizes) -> Case:
    case = maker("idx_mapping query_start_loc seq_lens", _more_of_prefill)(draws, shape)
    return Case({**case.sizes, "max_starts": case.sizes["max_num_reqs"] + 1}, case.tensors)


def _make_standalone(draws: Draws, shape: Sizes) -> Case:
    """Some requests are as long as they may be."""
    step = draw_step(draws, shape)
    length = max_model_len(shape)
    longest = draws.below("as long as it may be", 3) == 1
    computed = torch.where(longest, length - step.queries, step.computed)
    moved = step._replace(computed=computed)
    of_state = state_tensors(draws, moved, shape)
    follows = _follows(draws, shape, moved)
    tensors = {
        "input_ids": batch_tokens(draws, moved, "input", shape),
        "positions": _positions(moved),
        **{name: of_state[name] for name in ("idx_mapping", "query_start_loc", "seq_lens")},
        **{name: follows[name] for name in ("num_rejected", "last_sampled_tokens")},
    }
    sizes = sizes_of(shape, moved, max_starts=moved.num_rows + 1)
    return Case({**sizes, "num_expanded": sizes["num_tokens"] + draws.count}, tensors)


def _make_decode(draws: Draws, shape: Sizes) -> Case:
    n, length = draws.count, max_model_len(shape)
    size, num_steps = 2 * n, shape["num_steps"]
    old = torch.arange(size, device=draws.device)
    rejected = draws.below("rejected drafts", num_steps + 1)
    lens = length - draws.below("tokens that it may still have", length - num_steps)
    tensors = {
        "draft_input_ids": (OLD + old).to(torch.int32),
        "draft_positions": torch.cat([lens - rejected - 1, -OLD - old[n:]]),
        "sample_positions": torch.cat([lens - rejected, -2 * OLD - old[n:]]),
        "draft_tokens": TOKENS_START + draws.labels("draft", num_steps),
        "seq_lens": lens.to(torch.int32),
        "num_rejected": rejected.to(torch.int32),
    }
    return Case({**_of_drafts(draws, shape), "max_num_reqs": size, "max_starts": size + 1}, tensors)


def _make_update(draws: Draws, shape: Sizes) -> Case:
    n, num_steps, length = draws.count, shape["num_steps"], max_model_len(shape)
    hidden_size = shape["hidden_size"]
    lens = length - draws.below("tokens that it may still have", length)
    old = OLD + torch.arange(n, device=draws.device)
    hidden = draws.below("hidden state", 2**16, hidden_size).to(torch.float32)
    tensors = {
        "draft_tokens": -draws.labels("old draft", num_steps),
        "next_hidden": -1 - hidden,
        "draft_input_ids": old.to(torch.int32),
        "draft_positions": lens - 1,
        "sample_positions": 2 * old,
        "draft_seq_lens": lens.to(torch.int32),
        "sampled": TOKENS_START + draws.labels("draft"),
        "current_step": torch.tensor([draws.common("step", num_steps)], device=draws.device),
        "hidden": hidden,
    }
    return Case(_of_drafts(draws, shape), tensors)


def _of_drafts(draws: Draws, shape: Sizes) -> dict[str, int]:
    return {**shape, "bs": draws.count, "topk": 1, "max_model_len": max_model_len(shape)}


def _make_block(draws: Draws, shape: Sizes) -> Case:
    step = draw_step(draws, shape)
    n, size, page_size = draws.count, step.num_rows, shape["page_size"]
    length, width = max_model_len(shape), shape["num_steps"] + 1 - shape["samples_from_anchor"]
    num_blocks = -(-length // page_size)
    blocks = 1 + draws.labels("block", num_blocks)
    behind = draws.below("blocks behind the window", step.computed // page_size + 1)
    of_nobody = torch.arange(num_blocks, device=draws.device) < behind[:, None]
    old = OLD + torch.arange(size, device=draws.device)
    of_state = state_tensors(draws, step, shape)
    tensors = {
        "draft_temperature": -old.to(torch.float32),
        "draft_seeds": -2 * old,
        "positions": _positions(step),
        **{name: of_state[name] for name in ("idx_mapping", "query_start_loc")},
        **_follows(draws, shape, step),
        "temperature": step.state(draws.below("temperature", 5)).to(torch.float32) / 4,
        "seeds": step.state(draws.labels("seed")),
        "block_table": torch.where(of_nobody, 0, blocks).to(torch.int32),
    }
    more = {
        "max_starts": size + 1,
        "max_num_blocks": num_blocks,
        "num_block_tokens": width,
        "max_samples": size * shape["num_steps"],
        "padded_tokens": n * width + draws.common("spare tokens", SPARE_TOKENS),
        "mask_token_id": MASK_TOKEN,
    }
    return Case(sizes_of(shape, step, **more), tensors)


def _module_sizes(shape: Sizes, step: DrawnStep) -> dict[str, int]:
    return sizes_of(shape, step, num_cached=shape["num_steps"] - 1, max_starts=step.num_rows + 1)


def _make_module(draws: Draws, shape: Sizes) -> Case:
    step = draw_step(draws, shape)
    num_steps, size = shape["num_steps"], step.num_rows
    of_state, follows = state_tensors(draws, step, shape), _follows(draws, shape, step)
    old = OLD + torch.arange(int(step.queries.sum()), device=draws.device)
    starts = step.query_start_loc
    behind = -OLD - torch.arange(size - draws.count, device=draws.device)
    ahead = TOKENS_START + draws.labels("tokens of the prompt", num_steps)
    cached = TOKENS_START + draws.labels("cached token", num_steps)[:, 1:]
    tensors = {
        "draft_input_ids": old.to(torch.int32),
        "draft_positions": -old,
        "draft_query_start_loc": torch.cat([starts, behind.to(torch.int32)]),
        "draft_overrides": -OLD - torch.arange(size * (num_steps - 1), device=draws.device).view(size, -1),
        "input_ids": batch_tokens(draws, step, "input", shape),
        "positions": _positions(step),
        "cached_input_ids": step.state(cached),
        **{name: of_state[name] for name in ("idx_mapping", "query_start_loc", "seq_lens")},
        **{name: follows[name] for name in ("num_sampled", "num_rejected", "last_sampled_tokens")},
        "next_prefill_tokens": step.state(ahead).T.contiguous().to(torch.int32),
    }
    return Case(_module_sizes(shape, step), tensors)


def _rows(draws: Draws, first: int, *shape: int) -> Tensor:
    """Rows of whole numbers, each unlike the others."""
    return (first + torch.arange(math.prod(shape), device=draws.device)).to(torch.float32).view(shape)


def _make_module_hidden(draws: Draws, shape: Sizes) -> Case:
    step = draw_step(draws, shape)
    size, hidden_size, cached = step.num_rows, shape["hidden_size"], shape["num_steps"] - 1
    num_tokens = int(step.queries.sum())
    _sampled, rejected = _counts(draws, shape, step)
    tensors = {
        "draft_hidden": -_rows(draws, 1, num_tokens, hidden_size),
        "draft_embeds": -_rows(draws, 2**20, num_tokens, hidden_size),
        "target_hidden": _rows(draws, 1, num_tokens, hidden_size),
        "cached_hidden": _rows(draws, 2**20, size, cached, hidden_size),
        "cached_embeds": _rows(draws, 2**22, size, cached, hidden_size),
        "idx_mapping": step.idx_mapping,
        "query_start_loc": step.query_start_loc,
        "num_rejected": rejected,
    }
    return Case(_module_sizes(shape, step), tensors)


def _make_cached(draws: Draws, shape: Sizes) -> Case:
    step = draw_step(draws, shape)
    size, hidden_size, cached = step.num_rows, shape["hidden_size"], shape["num_steps"] - 1
    num_tokens = int(step.queries.sum())
    left_alone = draws.padding() & bool(shape["has_padding"])
    tensors = {
        "cached_input_ids": -1 - torch.arange(size * cached, device=draws.device).view(size, cached),
        "cached_embeds": -_rows(draws, 1, size, cached, hidden_size),
        "cached_hidden": -_rows(draws, 2**20, size, cached, hidden_size),
        "draft_input_ids": batch_tokens(draws, step, "input", shape),
        "draft_embeds": _rows(draws, 1, num_tokens, hidden_size),
        "draft_hidden": _rows(draws, 2**20, num_tokens, hidden_size),
        "idx_mapping": torch.where(left_alone, NO_ROW, step.idx_mapping).to(torch.int32),
        "query_start_loc": step.query_start_loc,
        "last_token_indices": step.query_start_loc[:-1] + draws.below("tokens that count", step.queries),
    }
    return Case(_module_sizes(shape, step), tensors)


def _make_trailing(draws: Draws, shape: Sizes) -> Case:
    step, groups = draw_step(draws, shape), shape["num_groups"]
    num_tokens = int(step.queries.sum())
    tensors = {
        "slot_mappings": torch.arange(groups * num_tokens, device=draws.device).view(groups, -1),
        "query_start_loc": step.query_start_loc,
        "last_token_indices": step.query_start_loc[:-1] + draws.below("tokens that count", step.queries),
    }
    return Case(sizes_of(shape, step), tensors)


def _make_shift(draws: Draws, shape: Sizes) -> Case:
    """Some requests prefill more tokens than a warp of a GPU has lanes; of some drafts were rejected."""
    n, hidden_size = draws.count, shape["hidden_size"]
    few = 1 + draws.below("tokens", shape["num_steps"] + 1)
    queries = torch.where(draws.below("is long", 3) == 1, few + draws.below("tokens of a prompt", LONG_MAX), few)
    starts = starts_of(queries)
    stay = 1 + draws.below("tokens that stay", queries)
    tokens = torch.arange(int(queries.sum()), device=draws.device)
    row = draws.order_of_all("row of the state", 2)[:, 0]
    embeds = torch.arange(hidden_size, device=draws.device) + tokens[:, None]
    next_tokens = TOKENS_START + draws.labels("next token")
    tensors = {
        "draft_input_ids": (OLD + tokens).to(torch.int32),
        "draft_embeds": embeds.to(torch.float32),
        "idx_mapping": torch.where(draws.padding() & bool(shape["has_padding"]), NO_ROW, row).to(torch.int32),
        "query_start_loc": starts,
        "last_token_indices": starts[:-1].long() + stay - 1,
        "next_tokens": next_tokens,
        "next_embeds": -(next_tokens[:, None] % OLD + torch.arange(hidden_size, device=draws.device)).to(torch.float32),
    }
    return Case({**shape, "bs": n, "topk": 1, "num_starts": n + 1, "num_tokens": tokens.shape[0]}, tensors)


def _make_ngrams(draws: Draws, shape: Sizes) -> Case:
    n, length = draws.count, shape["max_model_len"]
    row = draws.order_of_all("row of the state", 2)[:, 0]
    tokens = draws.below("token", shape["different_tokens"], length)
    total = draws.below("tokens of a request", length + 1)
    total = torch.where(draws.below("as long as it may be", 4) == 1, length, total)
    state = torch.zeros((2 * n, length), dtype=torch.int32, device=draws.device)
    state[row] = tokens.to(torch.int32)
    lens = torch.full((2 * n,), length, dtype=torch.int32, device=draws.device)
    lens[row] = total.to(torch.int32)
    last = torch.full((2 * n,), -1, dtype=torch.int64, device=draws.device)
    last[row] = TOKENS_START + draws.labels("last sampled token")
    tensors = {
        "idx_mapping": row.to(torch.int32),
        "all_token_ids": state,
        "total_len": lens,
        "num_sampled": draws.below("sampled tokens", 3).to(torch.int32),
        "last_sampled_tokens": last,
    }
    return Case({**shape, "bs": n, "topk": 1, "max_num_reqs": 2 * n}, tensors)


def _make_bitmask(draws: Draws, shape: Sizes) -> Case:
    """Masks of rows that a request has, and of rows that it has not, in any order."""
    step = draw_step(draws, shape)
    vocab_size, stride = shape["vocab_size"], shape["num_steps"] + 1
    words = (vocab_size + 31) // 32
    request = torch.arange(draws.count, device=draws.device)
    every = (request[:, None] * stride + torch.arange(stride, device=draws.device)).flatten()
    masked = every[draws.below("is masked", 2, stride).flatten() == 1]
    count = masked.shape[0]
    masks = draws.below("mask", 2**32, stride * words).view(-1, words)[every.shape[0] - count :]
    token = torch.arange(vocab_size, device=draws.device)
    logits = (torch.arange(int(step.num_logits.sum()), device=draws.device)[:, None] + token).to(torch.float32)
    tensors = {
        "logits": logits,
        "bitmask": (masks - 2**31).to(torch.int32),
        "logits_indices": masked.flip(0).to(torch.int32),
        "cu_num_logits": step.cu_num_logits,
    }
    more = {"num_masks": count, "mask_words": words, "mask_stride": stride}
    return Case(sizes_of(shape, step, **more), tensors)


# Shapes of batches


def _draw_longest(chooser: Chooser) -> dict[str, int]:
    shape = draw_shape(chooser)
    return {**shape, "max_model_len": max_model_len(shape)}


def _draw_decode(chooser: Chooser) -> dict[str, int]:
    return {**_draw_longest(chooser), "advances": pick(chooser, (1, 1, 0), "advances")}


def _draw_update(chooser: Chooser) -> dict[str, int]:
    return {**_draw_decode(chooser), "hidden_size": pick(chooser, HIDDEN_SIZES, "hidden_size")}


def _draw_module(chooser: Chooser) -> dict[str, int]:
    return {
        **draw_shape(chooser),
        "hidden_size": pick(chooser, (1, 5, 300), "hidden_size"),
        "has_padding": pick(chooser, (0, 0, 1), "requests that are left alone"),
    }


def _draw_trailing(chooser: Chooser) -> dict[str, int]:
    return {**draw_shape(chooser), "num_groups": between(chooser, 1, 3, "num_groups")}


def _draw_block(chooser: Chooser) -> dict[str, int]:
    anchor = pick(chooser, (0, 1), "samples from the anchor")
    return {
        **_draw_longest(chooser),
        "page_size": pick(chooser, PAGE_SIZES, "page_size"),
        "samples_from_anchor": anchor,
    }


def _draw_ngrams(chooser: Chooser) -> dict[str, int]:
    max_n = pick(chooser, MAX_NS, "max_n")
    return {
        **draw_shape(chooser),
        "max_model_len": pick(chooser, LENGTHS, "max_model_len"),
        "different_tokens": pick(chooser, REPEATED_TOKENS, "different tokens"),
        "max_n": max_n,
        "min_n": between(chooser, 1, max_n, "min_n"),
    }


def _draw_bitmask(chooser: Chooser) -> dict[str, int]:
    return {**draw_shape(chooser), "vocab_size": pick(chooser, VOCAB_SIZES, "vocab_size")}


def _defined_slots(case: Case, expected: Tensors) -> Tensors:
    """Where a block goes beyond what a request may have, its KV is nobody's concern."""
    defined = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}
    t = case.tensors
    last = t["positions"][(t["query_start_loc"][1:] - t["num_rejected"]).long() - 1]
    step = torch.arange(case.sizes["num_block_tokens"], device=last.device)
    within = (last[:, None] + 1 + step < case.sizes["max_model_len"]).flatten()
    defined["block_slots"][: within.shape[0]] = within.to(defined["block_slots"].device)
    return defined


OPS: tuple[Op, ...] = (
    operation(propose_ngrams, "draft_steps", Cases(_draw_ngrams, _make_ngrams)),
    operation(prepare_draft_prefill, "draft_steps", Cases(draw_shape, _make_prefill)),
    operation(prepare_draft_decode, "draft_steps", Cases(_draw_decode, _make_decode)),
    operation(update_draft_inputs, "draft_steps", Cases(_draw_update, _make_update)),
    operation(prepare_module_inputs, "draft_steps", Cases(draw_shape, _make_module)),
    operation(prepare_module_hidden, "draft_steps", Cases(_draw_module, _make_module_hidden)),
    operation(pad_trailing_slots, "draft_steps", Cases(_draw_trailing, _make_trailing)),
    operation(cache_module_inputs, "draft_steps", Cases(_draw_module, _make_cached)),
    operation(shift_draft_inputs, "draft_steps", Cases(_draw_module, _make_shift)),
    operation(prepare_standalone_prefill, "draft_steps", Cases(_draw_longest, _make_standalone)),
    operation(prepare_block_draft, "draft_steps", Cases(_draw_block, _make_block), compared=_defined_slots),
    operation(apply_grammar_bitmask, "draft_steps", Cases(_draw_bitmask, _make_bitmask)),
)
