"""The family of step inputs: a batch whose requests are rows of state on the device, as vLLM's V2 runner keeps them.

A request decodes with any number of drafts, prefills to the end, prefills a chunk, or, in cases with
`drafts_behind_prompt`, has placeholders for drafts right behind its prompt. Its row is anywhere among twice as many as
there are requests, and the rows of nobody hold values of their own, as do tokens behind the batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.reference.cache_locs import ragged_segments
from specsim.reference.step_inputs import (
    NO_ROW,
    combine_sampled_and_draft_tokens,
    compute_slot_mappings,
    expand_idx_mapping,
    flatten_sampled,
    gather_block_tables,
    gather_draft_sampled,
    get_num_sampled_and_rejected,
    post_update,
    post_update_num_computed_tokens,
    prepare_pos_seq_lens,
    prepare_prefill_inputs,
)

__all__ = [
    "OPS",
    "DrawnStep",
    "batch_tokens",
    "draw_shape",
    "draw_step",
    "maker",
    "max_model_len",
    "sampled_of",
    "sizes_of",
    "starts_of",
    "state_tensors",
]

NUM_STEPS_MAX = 8
TOKENS_START = 2**17
PREFILL_MAX, GENERATED_MAX = 12, 6  # tokens of a request before the step
SPARE = 3  # columns and tokens behind what is used, at most
OF_NOBODY = 5  # a length, count or token in rows of the state that no request has
VOCAB_SIZE = 64  # of counted tokens
BLOCK_SIZES = (1, 4, 16)
NUM_GROUPS_MAX = 3


class DrawnStep(NamedTuple):
    """A step: of each request [n] its row of state, tokens to prefill, tokens before the step, of the step, of them
    drafts, and rows of logits; `samples` says whether the step reaches the end of what is to be prefilled.
    """

    row: Tensor
    prefill: Tensor
    computed: Tensor
    queries: Tensor
    drafts: Tensor
    num_logits: Tensor
    samples: Tensor

    @property
    def num_rows(self) -> int:
        return 2 * self.row.shape[0]

    @property
    def idx_mapping(self) -> Tensor:
        return self.row.to(torch.int32)

    @property
    def query_start_loc(self) -> Tensor:
        return starts_of(self.queries)

    @property
    def cu_num_logits(self) -> Tensor:
        return starts_of(self.num_logits)

    def state(self, values: Tensor) -> Tensor:
        """[num_rows, ...]: what the requests have, at their rows, and a number at the rows of nobody."""
        spread = torch.full((self.num_rows, *values.shape[1:]), OF_NOBODY, device=values.device)
        spread[self.row] = values
        return spread


def starts_of(counts: Tensor) -> Tensor:
    return torch.cat([torch.zeros_like(counts[:1]), counts.cumsum(0)]).to(torch.int32)


def max_model_len(shape: Sizes) -> int:
    return PREFILL_MAX + GENERATED_MAX + shape["num_steps"] + 1 + SPARE


def draw_step(draws: Draws, shape: Sizes) -> DrawnStep:
    num_steps, new = shape["num_steps"], shape.get("num_new_sampled_tokens", 1)
    kind = draws.below("kind of request", 6)
    prefill = 1 + draws.below("tokens to prefill", PREFILL_MAX)
    within = draws.below("computed within the prompt", prefill)
    chunk = 1 + draws.below("tokens of a chunk", prefill - within)
    behind = (kind == 4) & bool(shape.get("drafts_behind_prompt", 0))
    is_last, is_chunk = (kind == 3) | behind, kind == 5
    decodes = ~(is_last | is_chunk)
    some = draws.below("drafts", num_steps + 1)
    drafts = torch.where(decodes, some.clamp(min=1 - new), torch.where(behind, some.clamp(min=1), 0))
    computed = torch.where(decodes, prefill + draws.below("generated", GENERATED_MAX), within)
    rest = torch.where(is_last, prefill - within, chunk)
    queries = torch.where(decodes, new + drafts, rest + drafts)
    row = draws.order_of_all("row of the state", 2)[:, 0]
    samples = computed + queries >= prefill
    return DrawnStep(row, prefill, computed, queries, drafts, drafts + new, samples)


def batch_tokens(draws: Draws, step: DrawnStep, what: str, shape: Sizes) -> Tensor:
    """[num_tokens] int32: a token for each of the batch, and some behind it."""
    owner, place = ragged_segments(step.queries)
    labels = draws.labels(what, max_model_len(shape))
    behind = torch.arange(shape.get("padding", 0), device=owner.device)
    return torch.cat([TOKENS_START + labels[owner, place], behind]).to(torch.int32)


def sizes_of(shape: Sizes, step: DrawnStep, **more: int) -> dict[str, int]:
    n, num_steps = step.row.shape[0], shape["num_steps"]
    sizes = {**shape, "bs": n, "topk": 1, "num_draft_tokens": num_steps + 1, "accept_width": num_steps + 1}
    counts = {"num_starts": n + 1, "max_num_reqs": step.num_rows, "max_model_len": max_model_len(shape)}
    tokens = int(step.queries.sum()) + shape.get("padding", 0)
    return {**sizes, **counts, "num_tokens": tokens, "num_logits": int(step.num_logits.sum()), **more}


def state_tensors(draws: Draws, step: DrawnStep, shape: Sizes) -> Tensors:
    """All that several operations read of a step."""
    every = draws.labels("token of a request", max_model_len(shape))
    return {
        "idx_mapping": step.idx_mapping,
        "query_start_loc": step.query_start_loc,
        "cu_num_logits": step.cu_num_logits,
        "prefill_len": step.state(step.prefill).to(torch.int32),
        "num_computed_tokens": step.state(step.computed).to(torch.int32),
        "all_token_ids": step.state(TOKENS_START + every).to(torch.int32),
        "seq_lens": (step.computed + step.queries).to(torch.int32),
    }


def maker(
    names: str, more: Callable[[Draws, Sizes, DrawnStep], Tensors] = lambda _draws, _shape, _step: {}
) -> Callable[[Draws, Sizes], Case]:
    """Makes cases of those of the state's tensors, and more."""

    def make(draws: Draws, shape: Sizes) -> Case:
        step = draw_step(draws, shape)
        of_state = state_tensors(draws, step, shape)
        return Case(sizes_of(shape, step), {**{n: of_state[n] for n in names.split()}, **more(draws, shape, step)})

    return make


def _more_of_prefills(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    ahead = TOKENS_START + draws.labels("token ahead", shape["num_lookahead"])
    return {
        "input_ids": batch_tokens(draws, step, "old input", shape),
        "next_prefill_tokens": step.state(ahead).T.contiguous().to(torch.int32),
    }


def _more_of_combined(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    return {
        "input_ids": batch_tokens(draws, step, "old input", shape),
        "last_sampled_tokens": step.state(TOKENS_START + draws.labels("last sampled token")),
        "draft_tokens": step.state(TOKENS_START + draws.labels("draft", shape["num_steps"])),
    }


def _more_of_gathered(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    owner, place = ragged_segments(step.queries)
    behind = torch.zeros(shape["padding"], dtype=torch.int64, device=owner.device)
    rows, local = ragged_segments(step.num_logits)
    ends = step.query_start_loc[1:].long()
    return {
        "input_ids": batch_tokens(draws, step, "input", shape),
        "positions": torch.cat([step.computed[owner] + place, behind]),
        "logits_indices": (ends - step.num_logits)[rows] + local,
        "expanded_idx_mapping": step.idx_mapping[rows],
        "expanded_local_pos": local.to(torch.int32),
    }


def sampled_of(draws: Draws, shape: Sizes, step: DrawnStep) -> tuple[Tensor, Tensor]:
    """What each request sampled [n, accept_width], some of it twice, and how many tokens that is [n]."""
    width = shape["num_steps"] + 1
    kind = draws.below("accepted drafts", 3)
    accepted = torch.where(kind == 0, 0, torch.where(kind == 1, step.drafts, draws.below("any", step.drafts + 1)))
    return draws.below("sampled token", VOCAB_SIZE, width), torch.where(step.samples, accepted + 1, 0)


def _more_of_flattened(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    sampled, count = sampled_of(draws, shape, step)
    return {"sampled": sampled, "num_sampled": count.to(torch.int32)}


def _more_of_counts(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    _tokens_of_step, count = sampled_of(draws, shape, step)
    return {"num_sampled": torch.where(step.samples, count, 1).to(torch.int32)}


def _make_post_update(draws: Draws, shape: Sizes) -> Case:
    step = draw_step(draws, shape)
    of_state = state_tensors(draws, step, shape)
    sampled, count = sampled_of(draws, shape, step)
    total = torch.maximum(step.prefill, step.computed + 1)
    left_alone = draws.padding() & bool(shape["has_padding"])
    counts = draws.below("times that a token was sampled", 4, VOCAB_SIZE)
    tensors = {
        **{name: of_state[name] for name in ("num_computed_tokens", "query_start_loc", "all_token_ids")},
        "idx_mapping": torch.where(left_alone, NO_ROW, step.idx_mapping),
        "last_sampled_tokens": step.state(TOKENS_START + draws.labels("last sampled token")),
        "output_bin_counts": step.state(counts).to(torch.int32),
        "sampled_tokens": sampled,
        "num_sampled": count.to(torch.int32),
        "num_rejected": torch.where(step.samples, step.num_logits - count, 0).to(torch.int32),
        "total_len": step.state(total).to(torch.int32),
    }
    return Case(sizes_of(shape, step, vocab_size=VOCAB_SIZE), tensors)


def _block_tables(draws: Draws, shape: Sizes, step: DrawnStep) -> Tensors:
    """Tables that have a block for each token, whatever the size of a block."""
    groups, width = shape["num_groups"], max_model_len(shape)
    blocks = 1 + draws.labels("block", groups * width).view(-1, groups, width)  # [n, G, W]
    sizes = [BLOCK_SIZES[draws.common(f"size of the blocks of group {g}", len(BLOCK_SIZES))] for g in range(groups)]
    return {
        "block_tables": step.state(blocks).transpose(0, 1).contiguous().to(torch.int32),
        "block_sizes": torch.tensor(sizes, dtype=torch.int32, device=draws.device),
    }


def _make_block_tables(draws: Draws, shape: Sizes) -> Case:
    step = draw_step(draws, shape)
    groups, tables = shape["num_groups"], _block_tables(draws, shape, step)
    sizes = tables["block_sizes"].long()[:, None]  # [G, 1]
    needed = (step.computed + step.queries + sizes - 1) // sizes  # [G, n]
    reach = [1 + draws.common(f"reach of group {g}", PREFILL_MAX) if shape["has_window"] else 0 for g in range(groups)]
    if groups > 1:
        reach[0] = 0
    tensors = {
        **state_tensors(draws, step, shape),
        **tables,
        "num_blocks": step.state(needed.T).T.contiguous().to(torch.int32),
        "sliding_window_reach": torch.tensor(reach, dtype=torch.int32, device=draws.device),
    }
    names = ("idx_mapping", "num_computed_tokens", *tables, "num_blocks", "sliding_window_reach")
    more = {"padded_bs": step.row.shape[0] + shape["padding"], "max_num_blocks": max_model_len(shape)}
    return Case(sizes_of(shape, step, **more), {name: tensors[name] for name in names})


def _make_slot_mappings(draws: Draws, shape: Sizes) -> Case:
    step = draw_step(draws, shape)
    groups, (owner, place) = shape["num_groups"], ragged_segments(step.queries)
    left_alone = draws.padding() & bool(shape["has_padding"])
    enabled = [not shape["has_disabled"] or bool(draws.common(f"group {g}", 2)) for g in range(groups)]
    tensors = {
        "idx_mapping": torch.where(left_alone, NO_ROW, step.idx_mapping),
        "query_start_loc": step.query_start_loc,
        "positions": step.computed[owner] + place,
        **_block_tables(draws, shape, step),
        "slot_mapping_enabled": torch.tensor(enabled, device=draws.device),
    }
    more = {"padded_tokens": owner.shape[0] + shape["padding"], "max_num_blocks": max_model_len(shape)}
    return Case(sizes_of({**shape, "padding": 0}, step, **more) | {"padding": shape["padding"]}, tensors)


# Shapes of batches


def draw_shape(chooser: Chooser) -> dict[str, int]:
    return {"num_steps": between(chooser, 1, NUM_STEPS_MAX, "num_steps")}


def _draw_padded(chooser: Chooser) -> dict[str, int]:
    return {**draw_shape(chooser), "padding": chooser.choose(SPARE + 1, "padding")}


def _draw_prefills(chooser: Chooser) -> dict[str, int]:
    return {**_draw_padded(chooser), "num_lookahead": pick(chooser, (1, 1, 2, 3), "num_lookahead")}


def _draw_combined(chooser: Chooser) -> dict[str, int]:
    new = 1 - pick(chooser, (0, 0, 0, 1), "no sampled token")
    behind = pick(chooser, (0, 0, 1), "drafts behind the prompt")
    return {**_draw_padded(chooser), "num_new_sampled_tokens": new, "drafts_behind_prompt": behind}


def _draw_gathered(chooser: Chooser) -> dict[str, int]:
    return {**_draw_padded(chooser), "drafts_behind_prompt": pick(chooser, (0, 0, 1), "drafts behind the prompt")}


def _draw_updated(chooser: Chooser) -> dict[str, int]:
    return {**draw_shape(chooser), "has_padding": pick(chooser, (0, 0, 1), "requests that are left alone")}


def _draw_tables(chooser: Chooser) -> dict[str, int]:
    groups = between(chooser, 1, NUM_GROUPS_MAX, "num_groups")
    return {**_draw_padded(chooser), "num_groups": groups, "has_window": pick(chooser, (0, 1), "has_window")}


def _draw_mapped(chooser: Chooser) -> dict[str, int]:
    groups = between(chooser, 1, NUM_GROUPS_MAX, "num_groups")
    flags = {name: pick(chooser, (0, 1), name) for name in ("has_padding", "has_disabled")}
    return {**_draw_padded(chooser), "num_groups": groups, **flags}


def _defined_ahead(case: Case, expected: Tensors) -> Tensors:
    """Where the prompt ends, no token follows."""
    t = case.tensors
    every = {name: torch.ones_like(tensor, dtype=torch.bool) for name, tensor in expected.items()}
    row = t["idx_mapping"].long()
    ends = t["num_computed_tokens"][row] + t["query_start_loc"].diff()
    ahead = torch.arange(case.sizes["num_lookahead"], device=row.device)[:, None]
    prefills = t["num_computed_tokens"][row] < t["prefill_len"][row]
    every["next_prefill_tokens"][:, row] = ~prefills | (ends + ahead < t["prefill_len"][row])
    return every


def _defined_blocks(case: Case, expected: Tensors) -> Tensors:
    """Of a request's row the blocks that it has."""
    t, table = case.tensors, expected["input_block_tables"]
    defined = torch.ones_like(table, dtype=torch.bool)
    count = t["num_blocks"][:, t["idx_mapping"].long(), None]  # [G, n, 1]
    defined[:, : count.shape[1]] = torch.arange(table.shape[2], device=table.device) < count
    return {"input_block_tables": defined}


_prefills = maker("idx_mapping query_start_loc all_token_ids prefill_len num_computed_tokens", _more_of_prefills)
_positions = maker("idx_mapping query_start_loc num_computed_tokens")
_combined = maker("idx_mapping query_start_loc seq_lens prefill_len cu_num_logits", _more_of_combined)
_gathered = maker("prefill_len", _more_of_gathered)
_flattened = maker("cu_num_logits", _more_of_flattened)
_counted = maker("seq_lens cu_num_logits idx_mapping prefill_len", _more_of_counts)

OPS: tuple[Op, ...] = (
    operation(expand_idx_mapping, "step_inputs", Cases(draw_shape, maker("idx_mapping cu_num_logits"))),
    operation(prepare_prefill_inputs, "step_inputs", Cases(_draw_prefills, _prefills), compared=_defined_ahead),
    operation(prepare_pos_seq_lens, "step_inputs", Cases(draw_shape, _positions)),
    operation(combine_sampled_and_draft_tokens, "step_inputs", Cases(_draw_combined, _combined)),
    operation(gather_draft_sampled, "step_inputs", Cases(_draw_gathered, _gathered)),
    operation(flatten_sampled, "step_inputs", Cases(draw_shape, _flattened)),
    operation(get_num_sampled_and_rejected, "step_inputs", Cases(draw_shape, _counted)),
    operation(post_update, "step_inputs", Cases(_draw_updated, _make_post_update)),
    operation(post_update_num_computed_tokens, "step_inputs", Cases(draw_shape, _positions)),
    operation(gather_block_tables, "step_inputs", Cases(_draw_tables, _make_block_tables), compared=_defined_blocks),
    operation(compute_slot_mappings, "step_inputs", Cases(_draw_mapped, _make_slot_mappings)),
)
