"""The family of draft inputs: lengths, positions and slots of a draft model's passes.

Requests are shorter than what is repeated before them, as long, and longer; stashes have none, all or some of it.
Tables hold a slot of its own at each place, and where nothing is to be written, values that stay.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, operation
from specsim.contracts.draws import Draws
from specsim.contracts.kv import defined_kv_indices, make_draft_decode_kv_indices
from specsim.reference.draft_inputs import (
    generate_draft_decode_window_kv_indices,
    prepare_draft_extend_inputs,
    prepare_draft_extend_layout,
    prepare_draft_extend_lengths,
    rebuild_compact_draft_req_to_token,
    widened_draft_extend_locs,
)

__all__ = ["OPS"]

FRONT_MAX = 6
WARMUP_MAX = 3
WINDOWS = (1, 3, 8, 130)


def _draw_front(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_chain_shape(chooser), "front_offset": between(chooser, 0, FRONT_MAX, "front_offset")}


def _draw_widened(chooser: Chooser) -> dict[str, int]:
    front = between(chooser, 1, FRONT_MAX, "front")
    return {**_draw_paged(chooser), "front": front, "num_warmup": chooser.choose(WARMUP_MAX + 1, "num_warmup")}


def _draw_paged(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_chain_shape(chooser), "page_size": pick(chooser, batches.PAGE_SIZES, "page_size")}


def _draw_window(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_paged_shape(chooser), "window": pick(chooser, WINDOWS, "window")}


def _sizes(draws: Draws, shape: Sizes, **more: int) -> dict[str, int]:
    return {**shape, "bs": draws.count, "num_nodes": draws.count * shape["num_draft_tokens"], **more}


def _make_inputs(draws: Draws, shape: Sizes) -> Case:
    ndt = shape["num_draft_tokens"]
    lens = 1 + draws.below("accepted nodes", ndt)
    predict = batches.node_tokens(draws, ndt).flatten()
    return Case(_sizes(draws, shape), {"accept_lens": lens.to(torch.int32), "predict": predict})


def _make_lengths(draws: Draws, shape: Sizes) -> Case:
    return Case(_sizes(draws, shape), {"seq_lens": batches.seq_lens(draws, "seq_lens", 4)})


def _make_widened(draws: Draws, shape: Sizes) -> Case:
    ndt, front = shape["num_draft_tokens"], shape["front"]
    seq_lens = batches.seq_lens(draws, "seq_lens", shape["page_size"])
    rows, table = batches.page_table(draws, seq_lens + ndt, shape["page_size"])
    held = torch.full((table.shape[0],), front, dtype=torch.int64, device=table.device)
    held[rows] = draws.below("tokens in the stash", front + 1)
    sizes = _sizes(draws, shape, num_window=draws.count * (front + ndt), **batches.page_table_sizes(table))
    given = {"seq_lens": seq_lens, "req_pool_indices": rows, "req_to_token": table}
    return Case(sizes, {**given, "stash_valid_lens": held.to(torch.int32)})


def _make_compact(draws: Draws, shape: Sizes) -> Case:
    ndt = shape["num_draft_tokens"]
    prefix = batches.seq_lens(draws, "draft_prefix_lens", shape["page_size"])
    start = draws.below("suffix_start", 2 * shape["page_size"] + 1)
    rows, table = batches.page_table(draws, start + prefix + ndt, shape["page_size"])
    columns = torch.arange(ndt, device=table.device)
    block = table[rows[:, None], (start + prefix)[:, None] + columns].to(torch.int64)
    width = int(prefix.max()) + ndt + draws.common("spare columns", 3)
    old = -1 - torch.arange(table.shape[0] * width, dtype=torch.int32, device=table.device).view(-1, width)
    tensors = {
        "draft_req_to_token": old,
        "target_req_to_token": table,
        "req_pool_indices": rows,
        "suffix_start": start,
        "draft_prefix_lens": prefix,
        "verify_cache_loc": block,
    }
    return Case(_sizes(draws, shape, draft_pool_len=width, **batches.page_table_sizes(table)), tensors)


OPS: tuple[Op, ...] = (
    operation(prepare_draft_extend_inputs, "draft_inputs", Cases(batches.draw_chain_shape, _make_inputs)),
    operation(prepare_draft_extend_lengths, "draft_inputs", Cases(_draw_front, _make_lengths)),
    operation(prepare_draft_extend_layout, "draft_inputs", Cases(batches.draw_chain_shape, _make_lengths)),
    operation(widened_draft_extend_locs, "draft_inputs", Cases(_draw_widened, _make_widened)),
    operation(rebuild_compact_draft_req_to_token, "draft_inputs", Cases(_draw_paged, _make_compact)),
    operation(
        generate_draft_decode_window_kv_indices,
        "draft_inputs",
        Cases(_draw_window, make_draft_decode_kv_indices),
        compared=defined_kv_indices,
    ),
)
