"""The KV family: which slots requests get, what each branch of a draft attends to, and how accepted KV is moved.

In every case all slots differ, in the page table as among the pages handed out, and pages are out of order, so that
a slot of a wrong row, page or node shows. Lengths lie at, before and after the start of a page. Where an operation can
meet padding requests, an eighth of the requests are such, anywhere in the batch: they hold row 0, the padding sink, or
accept nothing.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, Tensors, operation
from specsim.contracts.draws import Draws
from specsim.reference.kv import (
    align_evict_mask_to_page_size,
    alloc_decode,
    alloc_extend,
    compact_accepted_path,
    draft_cache_locs_paged,
    fill_accept_out_cache_loc,
    generate_draft_decode_kv_indices,
    get_last_loc,
    move_kv,
)

__all__ = ["OPS", "defined_kv_indices", "make_draft_decode_kv_indices"]

HIDDEN_SIZE_MAX = 5
ROW_WIDTH_MAX = 9
PAGES_GROWN_MAX = 2
SPARE_PAGES_MAX = 3
SPARE_SLOTS_MAX = 5
PADDING_SEQ_LEN = 1  # what a padding request claims to have, so that attention has something to read


def _path_sizes(shape: Sizes, bs: int) -> dict[str, int]:
    return {**batches.path_sizes(shape, bs), "num_accept_entries": bs * (shape["num_steps"] + 1)}


def _make_pages(
    draws: Draws, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, page_size: int, pages_grown_max: int
) -> Tensors:
    """`last_loc` of every request, on pages of their own, and free pages, in most batches exactly enough."""
    page = 1 + draws.order_of_all("page", 1 + pages_grown_max)  # [n, 1 + pages_grown_max]: the last one, free ones
    last_loc = page[:, 0] * page_size + (prefix_lens - 1) % page_size
    needed = int(((seq_lens + page_size - 1) // page_size - (prefix_lens + page_size - 1) // page_size).sum())
    spare = draws.common("spare pages", 2 * SPARE_PAGES_MAX) - SPARE_PAGES_MAX
    return {
        "last_loc": torch.where(prefix_lens > 0, last_loc, -1),
        "free_pages": page[:, 1:].reshape(-1)[: needed + max(0, spare)].contiguous(),
    }


def _make_alloc_extend(draws: Draws, shape: Sizes) -> Case:
    """Requests grow by a token, by nothing, by a tree, or to about the start of a page; one grows at least."""
    ndt, page_size = shape["num_draft_tokens"], shape["page_size"]
    prefix_lens = batches.seq_lens(draws, "prefix_lens", page_size)
    pages = (prefix_lens + page_size - 1) // page_size + draws.below("pages grown", PAGES_GROWN_MAX + 1)
    boundary = pages * page_size + draws.below("beside the page boundary", 3) - 1
    kind = draws.below("extension", 4)
    seq_lens = prefix_lens + torch.where(kind == 0, 1, torch.where(kind == 1, 0, ndt))
    seq_lens = torch.where(kind == 3, torch.maximum(prefix_lens, boundary), seq_lens)
    seq_lens[0] += (seq_lens == prefix_lens).all()
    pages_grown_max = max(PAGES_GROWN_MAX + 1, (ndt + page_size - 1) // page_size)
    pages_by_name = _make_pages(draws, prefix_lens, seq_lens, page_size, pages_grown_max)
    tensors = {"prefix_lens": prefix_lens, "seq_lens": seq_lens, **pages_by_name}
    sizes = {
        **shape,
        "bs": draws.count,
        "num_free_pages": tensors["free_pages"].shape[0],
        "num_locs": int((seq_lens - prefix_lens).sum()),
    }
    return Case(sizes, tensors)


def _make_alloc_decode(draws: Draws, shape: Sizes) -> Case:
    prefix_lens = batches.seq_lens(draws, "prefix_lens", shape["page_size"])
    pages_by_name = _make_pages(draws, prefix_lens, prefix_lens + 1, shape["page_size"], 1)
    tensors = {"seq_lens": prefix_lens + 1, **pages_by_name}
    return Case({**shape, "bs": draws.count, "num_free_pages": tensors["free_pages"].shape[0]}, tensors)


def _make_get_last_loc(draws: Draws, shape: Sizes) -> Case:
    padding = draws.padding()
    prefix_lens = batches.seq_lens(draws, "prefix_lens", shape["page_size"])
    prefix_lens = torch.where(padding, 0, prefix_lens)
    rows, table = batches.page_table(draws, prefix_lens, shape["page_size"])
    tensors = {
        "req_to_token": table,
        "req_pool_indices": torch.where(padding, 0, rows),
        "prefix_lens": prefix_lens,
    }
    return Case({**shape, "bs": draws.count, **batches.page_table_sizes(table)}, tensors)


def make_draft_decode_kv_indices(draws: Draws, shape: Sizes) -> Case:
    """The last branch of a request may end in the last column of its row."""
    topk, num_steps, page_size = shape["topk"], shape["num_steps"], shape["page_size"]
    padding = draws.padding()
    seq_lens = torch.where(padding, PADDING_SEQ_LEN, batches.seq_lens(draws, "seq_lens", page_size))
    branch_pages = (seq_lens % page_size + num_steps + page_size - 1) // page_size
    ends = seq_lens + (topk - 1) * branch_pages * page_size + num_steps
    rows, table = batches.page_table(draws, ends, page_size)
    sizes = {
        **shape,
        "bs": draws.count,
        **batches.page_table_sizes(table),
        "num_bounds": draws.count * topk + 1,
        "num_kv": topk * (int(seq_lens.sum()) + draws.count * num_steps),
    }
    tensors = {"req_pool_indices": torch.where(padding, 0, rows), "req_to_token": table, "seq_lens": seq_lens}
    return Case(sizes, tensors)


def _make_paths(draws: Draws, shape: Sizes) -> Tensors:
    """`accept_index` and `accept_lens`; padding requests accept nothing."""
    padding = draws.padding()
    accept_index, accept_lens = batches.accepted_paths(draws, shape)
    return {
        "accept_index": torch.where(padding[:, None], -1, accept_index),
        "accept_lens": torch.where(padding, 0, accept_lens),
    }


def _make_node_slots(draws: Draws, shape: Sizes) -> torch.Tensor:
    """A slot of its own for each node [n, num_draft_tokens], out of order; slot 0 is the padding sink."""
    return 1 + draws.order_of_all("slot of a node", shape["num_draft_tokens"])


def _make_fill_accept_out_cache_loc(draws: Draws, shape: Sizes) -> Case:
    tensors = {
        "accept_index": _make_paths(draws, shape)["accept_index"],
        "out_cache_loc": _make_node_slots(draws, shape).flatten(),
    }
    return Case(_path_sizes(shape, draws.count), tensors)


def _make_compact_accepted_path(draws: Draws, shape: Sizes) -> Case:
    n, ndt, hidden_size = draws.count, shape["num_draft_tokens"], shape["hidden_size"]
    tensors = {
        **_make_paths(draws, shape),
        "out_cache_loc": _make_node_slots(draws, shape).flatten(),
        "predict": batches.node_tokens(draws, ndt).flatten(),
        "hidden_states": draws.uniform("hidden_states", ndt * hidden_size).view(n * ndt, hidden_size),
    }
    return Case(_path_sizes(shape, n), tensors)


def _make_move_kv(draws: Draws, shape: Sizes) -> Case:
    """Every request moves its own rows: along an accepted path, each onto the source of the next move or of the one
    before, or in a cycle. Moves of padding are at the end.
    """
    n, ndt, row_width = draws.count, shape["num_draft_tokens"], shape["row_width"]
    width = shape["num_steps"] + 1
    slots = _make_node_slots(draws, shape)  # [n, ndt]
    place = torch.arange(ndt, device=draws.device)  # [ndt]
    following = slots.roll(-1, dims=1)  # [n, ndt]
    count = 1 + draws.below("number of moves", ndt - 1)  # [n]: of a chain
    kind = draws.below("moves", 4)[:, None]  # [n, 1]
    target = torch.where(kind == 1, slots, following)
    source = torch.where(kind == 1, following, slots)
    target = torch.where((kind == 3) & (place == count[:, None]), slots[:, :1], target)
    num_moves = torch.where(kind[:, 0] == 3, count + 1, count)

    accept_index, accept_lens = batches.accepted_paths(draws, shape)
    path = torch.zeros((n, max(width, ndt)), dtype=torch.int64, device=draws.device)
    path[:, :width] = accept_index.clamp(min=0) % ndt
    target = torch.where(kind == 0, slots, target)
    source = torch.where(kind == 0, slots.gather(1, path[:, :ndt]), source)
    num_moves = torch.where(kind[:, 0] == 0, accept_lens, num_moves)
    moves = place < num_moves[:, None]  # [n, ndt]

    padding = slots.new_zeros(draws.common("padding moves", width + 1))
    num_slots = 1 + n * ndt + draws.common("spare slots", SPARE_SLOTS_MAX + 1)
    buffer = torch.full((num_slots, row_width), 2.0, device=draws.device)  # in no request's rows
    buffer[slots.flatten()] = draws.uniform("KV", ndt * row_width).view(n * ndt, row_width)
    tensors = {
        "buffer": buffer,
        "target": torch.cat([target[moves], padding]),
        "source": torch.cat([source[moves], padding]),
    }
    sizes = {**shape, "bs": n, "num_slots": num_slots, "row_width": row_width, "num_moves": tensors["target"].shape[0]}
    return Case(sizes, tensors)


def _paged_draft(case: Case) -> Case:
    """The same requests, for the slots that the draft writes and the holes before its branches."""
    sizes = dict(case.sizes)
    del sizes["num_bounds"], sizes["num_kv"]
    tails = int((case.tensors["seq_lens"] % sizes["page_size"]).sum())
    sizes["num_draft_locs"] = sizes["bs"] * sizes["topk"] * sizes["num_steps"]
    sizes["num_copies"] = tails * (sizes["topk"] - 1)
    return Case(sizes, case.tensors)


def _make_draft_cache_locs_paged(draws: Draws, shape: Sizes) -> Case:
    return _paged_draft(make_draft_decode_kv_indices(draws, shape))


def _eviction(sizes: Sizes, seq_lens: torch.Tensor, accept_index: torch.Tensor) -> Case:
    """The nodes that were not accepted are to be evicted; the root is kept, of a padding request too."""
    bs, ndt = sizes["bs"], sizes["num_draft_tokens"]
    evict_mask = torch.ones(bs * ndt, dtype=torch.bool, device=seq_lens.device)
    evict_mask[accept_index[accept_index >= 0].long()] = False
    evict_mask.view(bs, ndt)[:, 0] = False
    return Case({**sizes, "num_nodes": bs * ndt}, {"seq_lens": seq_lens, "evict_mask": evict_mask})


def _make_align_evict_mask(draws: Draws, shape: Sizes) -> Case:
    seq_lens = batches.seq_lens(draws, "seq_lens", shape["page_size"])
    return _eviction({**shape, "bs": draws.count}, seq_lens, batches.accepted_paths(draws, shape)[0])


def _draw_compaction_shape(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_shape(chooser), "hidden_size": between(chooser, 1, HIDDEN_SIZE_MAX, "hidden_size")}


def _draw_move_shape(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_shape(chooser), "row_width": between(chooser, 1, ROW_WIDTH_MAX, "row_width")}


def defined_kv_indices(_case: Case, expected: Tensors) -> Tensors:
    """Each step's lists are defined up to their end; `kv_indices` is as wide as the last step needs."""
    kv_indptr, kv_indices = expected["kv_indptr"], expected["kv_indices"]
    entry = torch.arange(kv_indices.shape[1], device=kv_indices.device)
    return {
        "kv_indptr": torch.ones_like(kv_indptr, dtype=torch.bool),
        "kv_indices": entry < kv_indptr[:, -1:],
    }


def _defined_accept_slots(case: Case, expected: Tensors) -> Tensors:
    """As many entries are defined as there are accepted nodes."""
    slots = expected["accept_out_cache_loc"]
    num_accepted = int((case.tensors["accept_index"] >= 0).sum())
    return {"accept_out_cache_loc": torch.arange(slots.shape[0], device=slots.device) < num_accepted}


def _defined_path(case: Case, expected: Tensors) -> Tensors:
    """The moves are defined everywhere, tokens and hidden states for the accepted nodes at the front of a block."""
    defined = {name: torch.ones_like(expected[name], dtype=torch.bool) for name in ("target", "source")}
    predict, hidden_states = expected["compacted_predict"], expected["compacted_hidden_states"]
    accept_lens = case.tensors["accept_lens"]
    place = torch.arange(case.sizes["num_draft_tokens"], device=accept_lens.device)
    front = (place < accept_lens[:, None]).flatten().to(predict.device)  # [num_nodes]
    defined["compacted_predict"] = front
    defined["compacted_hidden_states"] = front[:, None].expand_as(hidden_states)
    return defined


OPS: tuple[Op, ...] = (
    operation(alloc_extend, "kv", Cases(batches.draw_paged_shape, _make_alloc_extend)),
    operation(alloc_decode, "kv", Cases(batches.draw_paged_shape, _make_alloc_decode)),
    operation(get_last_loc, "kv", Cases(batches.draw_paged_shape, _make_get_last_loc)),
    operation(
        generate_draft_decode_kv_indices,
        "kv",
        Cases(batches.draw_paged_shape, make_draft_decode_kv_indices),
        compared=defined_kv_indices,
    ),
    operation(draft_cache_locs_paged, "kv", Cases(batches.draw_paged_shape, _make_draft_cache_locs_paged)),
    operation(align_evict_mask_to_page_size, "kv", Cases(batches.draw_paged_shape, _make_align_evict_mask)),
    operation(
        fill_accept_out_cache_loc,
        "kv",
        Cases(batches.draw_shape, _make_fill_accept_out_cache_loc),
        compared=_defined_accept_slots,
    ),
    operation(
        compact_accepted_path, "kv", Cases(_draw_compaction_shape, _make_compact_accepted_path), compared=_defined_path
    ),
    operation(move_kv, "kv", Cases(_draw_move_shape, _make_move_kv)),
)
