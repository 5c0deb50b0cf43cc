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
from specsim.contracts.ragged_verify import tokens
from specsim.reference.draft_inputs import (
    block_seq_lens_causal,
    draft_swa_page_indices,
    draft_window_gather,
    fill_draft_extend_buffers,
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
HIDDEN_SIZES = (1, 5, 300)
SPARE_MAX = 4  # requests of a graph that a batch lacks
RANK_BUFFERS = ("rank_tokens_dst", "rank_logprob_tokens_dst")


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


def _make_block_lens(draws: Draws, shape: Sizes) -> Case:
    return Case(_sizes(draws, shape), {"seq_lens": batches.seq_lens(draws, "seq_lens", 4)})


def _make_gather(draws: Draws, shape: Sizes) -> Case:
    prefix = batches.seq_lens(draws, "prefix_lens", shape["page_size"])
    rows, table = batches.page_table(draws, prefix, shape["page_size"])
    first = torch.zeros(table.shape[0], dtype=torch.int64, device=table.device)
    first[rows] = draws.below("first token with KV", prefix + 2)
    tensors = {"prefix_lens": prefix, "req_pool_indices": rows, "valid_from": first}
    return Case(_sizes(draws, shape, pool_rows=table.shape[0]), tensors)


def _draw_gather(chooser: Chooser) -> dict[str, int]:
    window = pick(chooser, WINDOWS, "window")
    return {**_draw_paged(chooser), "window": window, "has_valid_from": pick(chooser, (0, 1), "has_valid_from")}


def _make_page_indices(draws: Draws, shape: Sizes) -> Case:
    ndt, window = shape["num_draft_tokens"], shape["window"]
    prefix = batches.seq_lens(draws, "prefix_lens", shape["page_size"])
    rows, table = batches.page_table(draws, prefix + ndt, shape["page_size"])
    column = torch.arange(ndt, device=table.device)
    context = torch.minimum(prefix.clamp(max=window), draws.below("tokens of the window", window + 1))
    slots = int(table.max()) + 1
    position = prefix[:, None] - window + torch.arange(window, device=table.device)
    tensors = {
        "req_to_token": table,
        "full_to_swa_mapping": torch.arange(slots, 0, -1, device=table.device),
        "req_pool_indices": rows,
        "offsets": position.clamp(min=0),
        "out_loc": table[rows[:, None], prefix[:, None] + column].to(torch.int64).flatten(),
        "context_lens": context.to(torch.int32),
    }
    alignment = shape["alignment"]
    width = -(-(window + ndt) // alignment) * alignment
    sizes = _sizes(draws, shape, target_width=width, num_slots=slots, **batches.page_table_sizes(table))
    return Case(sizes, tensors)


def _draw_page_indices(chooser: Chooser) -> dict[str, int]:
    window, alignment = pick(chooser, WINDOWS, "window"), pick(chooser, (64, 1, 7), "alignment")
    return {**_draw_paged(chooser), "window": window, "alignment": alignment}


def _make_buffers(draws: Draws, shape: Sizes) -> Case:
    """The buffers hold what an earlier batch has left."""
    n, ndt, device = draws.count, shape["num_draft_tokens"], draws.device
    width, hidden_size = shape["front"] + ndt, shape["hidden_size"]
    padded_bs = n + draws.common("requests that pad", SPARE_MAX)
    max_bs = padded_bs + draws.common("requests that the graph lacks", SPARE_MAX)
    rows, max_rows = n * width, max_bs * width
    tensors = {
        f"{name}_dst": -1 - torch.arange(max_rows, device=device) for name in ("input_ids", "positions", "cache_loc")
    }
    old = torch.arange(max_bs, device=device)
    correct = draws.below("accepted drafts", ndt)
    sources = {
        "input_ids": tokens(draws, "token", width).flatten(),
        "positions": tokens(draws, "position", width).flatten(),
        "cache_loc": tokens(draws, "slot", width).flatten(),
        "hidden": draws.below("hidden", 2**16, width * hidden_size).to(torch.float32).view(rows, hidden_size),
        "seq_lens": batches.seq_lens(draws, "seq_lens", 64),
        "req_pool_indices": tokens(draws, "row"),
        "num_correct": correct.to(torch.int32),
        "accept_lens": (correct + 1).to(torch.int32),
        "temperatures": (1 + draws.below("temperature", 8, 1)).to(torch.float32) / 4,
    }
    buffers = {
        "hidden_dst": torch.full((max_rows, hidden_size), -1.0, device=device),
        "seq_lens_dst": (-2 - old).to(torch.int32),
        "req_pool_indices_dst": -3 - old,
        "num_correct_dst": (old % ndt).to(torch.int32),
        "accept_lens_dst": (-4 - old).to(torch.int32),
        "select_index_dst": -5 - old,
        "temperatures_dst": torch.full((max_bs, 1), -1.0, device=device),
    }
    ranks = shape["num_ranks"]
    of_ranks = {name: torch.full((ranks,), -6, dtype=torch.int32, device=device) for name in RANK_BUFFERS}
    more = {"num_window": rows, "max_window": max_rows, "max_bs": max_bs, "padded_bs": padded_bs}
    return Case(_sizes(draws, shape, **more), {**tensors, **buffers, **of_ranks, **sources})


def _draw_buffers(chooser: Chooser) -> dict[str, int]:
    return {
        **batches.draw_chain_shape(chooser),
        "front": chooser.choose(FRONT_MAX + 1, "front"),
        "hidden_size": pick(chooser, HIDDEN_SIZES, "hidden_size"),
        "num_ranks": between(chooser, 1, 3, "num_ranks"),
        "fill_value": pick(chooser, (1, 0), "fill_value"),
    }


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
    operation(block_seq_lens_causal, "draft_inputs", Cases(batches.draw_chain_shape, _make_block_lens)),
    operation(draft_window_gather, "draft_inputs", Cases(_draw_gather, _make_gather)),
    operation(draft_swa_page_indices, "draft_inputs", Cases(_draw_page_indices, _make_page_indices)),
    operation(fill_draft_extend_buffers, "draft_inputs", Cases(_draw_buffers, _make_buffers)),
)
