"""Bulk generators of the KV family: slots by page, rows of the page table, accepted paths and moves.

All slots of a batch differ, and which slot, page or row a request gets says nothing about its number, so that one of
a wrong request, page or node shows. An eighth of the requests are padding where an operation can meet it: they hold
row 0, or accept nothing. They lie anywhere in the batch, for a request must not depend on its place.
"""

from __future__ import annotations

import torch

from specsim.contracts import bulk, counter_rng
from specsim.contracts.contract import Case, Sizes, Tensors

PAGES_GROWN_MAX = 2
SPARE_PAGES_MAX = 3
SPARE_SLOTS_MAX = 5
PADDING_SEQ_LEN = 1  # what a padding request claims to have, so that attention has something to read


def pages_needed(num_tokens: int, page_size: int) -> int:
    return (num_tokens + page_size - 1) // page_size


def pool_sizes(req_to_token: torch.Tensor) -> dict[str, int]:
    return {"pool_rows": req_to_token.shape[0], "pool_len": req_to_token.shape[1]}


def path_sizes(shape: Sizes, bs: int) -> dict[str, int]:
    accept_width = shape["num_steps"] + 1
    return {
        **shape,
        "bs": bs,
        "accept_width": accept_width,
        "num_nodes": bs * shape["num_draft_tokens"],
        "num_accept_entries": bs * accept_width,
    }


def _total_below(ids: torch.Tensor, what: str, bound: int) -> int:
    """A number from 0 to `bound` - 1 that the batch has in common."""
    return int(counter_rng.below(ids, what, bound).sum()) % bound


def _is_padding(ids: torch.Tensor) -> torch.Tensor:
    """Which requests [n] are padding: an eighth of them, anywhere in the batch."""
    return counter_rng.below(ids, "padding request", 8) == 7


def _make_pages(
    ids: torch.Tensor, prefix_lens: torch.Tensor, seq_lens: torch.Tensor, page_size: int, pages_grown_max: int
) -> Tensors:
    """`last_loc` of every request, on pages of their own, and free pages, in most batches exactly enough."""
    page = 1 + bulk.distinct(ids, "page", 1 + pages_grown_max)  # [n, 1 + pages_grown_max]: the last one, free ones
    last_loc = page[:, 0] * page_size + (prefix_lens - 1) % page_size
    needed = int(((seq_lens + page_size - 1) // page_size - (prefix_lens + page_size - 1) // page_size).sum())
    spare = _total_below(ids, "spare pages", 2 * SPARE_PAGES_MAX) - SPARE_PAGES_MAX
    return {
        "last_loc": torch.where(prefix_lens > 0, last_loc, -1),
        "free_pages": page[:, 1:].reshape(-1)[: needed + max(0, spare)].contiguous(),
    }


def make_alloc_extend(ids: torch.Tensor, shape: Sizes) -> Case:
    """Requests grow by a token, by nothing, by a tree, or to about the start of a page."""
    ndt, page_size = shape["num_draft_tokens"], shape["page_size"]
    prefix_lens = bulk.seq_lens(ids, "prefix_lens", page_size)
    pages = (prefix_lens + page_size - 1) // page_size + counter_rng.below(ids, "pages grown", PAGES_GROWN_MAX + 1)
    boundary = pages * page_size + counter_rng.below(ids, "beside the page boundary", 3) - 1
    kind = counter_rng.below(ids, "extension", 4)
    seq_lens = prefix_lens + torch.where(kind == 0, 1, torch.where(kind == 1, 0, ndt))
    seq_lens = torch.where(kind == 3, torch.maximum(prefix_lens, boundary), seq_lens)
    pages_grown_max = max(PAGES_GROWN_MAX + 1, (ndt + page_size - 1) // page_size)
    pages_by_name = _make_pages(ids, prefix_lens, seq_lens, page_size, pages_grown_max)
    tensors = {"prefix_lens": prefix_lens, "seq_lens": seq_lens, **pages_by_name}
    sizes = {
        **shape,
        "bs": ids.shape[0],
        "num_free_pages": tensors["free_pages"].shape[0],
        "num_locs": int((seq_lens - prefix_lens).sum()),
    }
    return Case(sizes, tensors)


def make_alloc_decode(ids: torch.Tensor, shape: Sizes) -> Case:
    prefix_lens = bulk.seq_lens(ids, "prefix_lens", shape["page_size"])
    pages_by_name = _make_pages(ids, prefix_lens, prefix_lens + 1, shape["page_size"], 1)
    tensors = {"seq_lens": prefix_lens + 1, **pages_by_name}
    return Case({**shape, "bs": ids.shape[0], "num_free_pages": tensors["free_pages"].shape[0]}, tensors)


def make_get_last_loc(ids: torch.Tensor, shape: Sizes) -> Case:
    """The longest sequence ends in the last column of its row."""
    padding = _is_padding(ids)
    prefix_lens = bulk.seq_lens(ids, "prefix_lens", shape["page_size"])
    rows, table = bulk.page_table(ids, bulk.FULL_PAGES_MAX * shape["page_size"] + 1, shape["page_size"])
    tensors = {
        "req_to_token": table,
        "req_pool_indices": torch.where(padding, 0, rows),
        "prefix_lens": torch.where(padding, 0, prefix_lens),
    }
    return Case({**shape, "bs": ids.shape[0], **pool_sizes(table)}, tensors)


def make_draft_decode_kv_indices(ids: torch.Tensor, shape: Sizes) -> Case:
    """A row is as long as the branches of any sequence need, so the last branch may end in the last column."""
    topk, num_steps, page_size = shape["topk"], shape["num_steps"], shape["page_size"]
    padding = _is_padding(ids)
    seq_lens = torch.where(padding, PADDING_SEQ_LEN, bulk.seq_lens(ids, "seq_lens", page_size))
    columns = max(
        seq_len + (topk - 1) * pages_needed(seq_len % page_size + num_steps, page_size) * page_size + num_steps
        for seq_len in range(bulk.FULL_PAGES_MAX * page_size + 2)
    )
    rows, table = bulk.page_table(ids, columns, page_size)
    sizes = {
        **shape,
        "bs": ids.shape[0],
        **pool_sizes(table),
        "num_bounds": ids.shape[0] * topk + 1,
        "num_kv": topk * (int(seq_lens.sum()) + ids.shape[0] * num_steps),
    }
    tensors = {"req_pool_indices": torch.where(padding, 0, rows), "req_to_token": table, "seq_lens": seq_lens}
    return Case(sizes, tensors)


def _make_paths(ids: torch.Tensor, shape: Sizes) -> Tensors:
    """`accept_index` and `accept_lens`; padding requests accept nothing."""
    padding = _is_padding(ids)
    accept_index, accept_lens = bulk.accepted_paths(ids, shape)
    return {
        "accept_index": torch.where(padding[:, None], -1, accept_index),
        "accept_lens": torch.where(padding, 0, accept_lens),
    }


def _make_node_slots(ids: torch.Tensor, shape: Sizes) -> torch.Tensor:
    """A slot of its own for each node [n, num_draft_tokens], out of order; slot 0 is the padding sink."""
    return 1 + bulk.distinct(ids, "slot of a node", shape["num_draft_tokens"])


def make_fill_accept_out_cache_loc(ids: torch.Tensor, shape: Sizes) -> Case:
    tensors = {
        "accept_index": _make_paths(ids, shape)["accept_index"],
        "out_cache_loc": _make_node_slots(ids, shape).flatten(),
    }
    return Case(path_sizes(shape, ids.shape[0]), tensors)


def make_compact_accepted_path(ids: torch.Tensor, shape: Sizes) -> Case:
    n, ndt, hidden_size = ids.shape[0], shape["num_draft_tokens"], shape["hidden_size"]
    tokens = bulk.TOKENS_START + counter_rng.below(ids, "token that follows a node", 2**20, ndt)
    tensors = {
        **_make_paths(ids, shape),
        "out_cache_loc": _make_node_slots(ids, shape).flatten(),
        "predict": tokens.flatten().to(torch.int32),
        "hidden_states": counter_rng.uniform(ids, "hidden_states", ndt * hidden_size).view(n * ndt, hidden_size),
    }
    return Case(path_sizes(shape, n), tensors)


def make_move_kv(ids: torch.Tensor, shape: Sizes) -> Case:
    """Every request moves its own rows: along an accepted path, each onto the source of the next move or of the one
    before, or in a cycle. Moves of padding are at the end.
    """
    n, ndt, row_width = ids.shape[0], shape["num_draft_tokens"], shape["row_width"]
    width = shape["num_steps"] + 1
    slots = _make_node_slots(ids, shape)  # [n, ndt]
    place = torch.arange(ndt, device=ids.device)  # [ndt]
    following = slots.roll(-1, dims=1)  # [n, ndt]
    count = 1 + counter_rng.below(ids, "number of moves", ndt - 1)  # [n]: of a chain
    kind = counter_rng.below(ids, "moves", 4)[:, None]  # [n, 1]
    target = torch.where(kind == 1, slots, following)
    source = torch.where(kind == 1, following, slots)
    target = torch.where((kind == 3) & (place == count[:, None]), slots[:, :1], target)
    num_moves = torch.where(kind[:, 0] == 3, count + 1, count)

    accept_index, accept_lens = bulk.accepted_paths(ids, shape)
    path = torch.zeros((n, max(width, ndt)), dtype=torch.int64, device=ids.device)
    path[:, :width] = accept_index.clamp(min=0) % ndt
    target = torch.where(kind == 0, slots, target)
    source = torch.where(kind == 0, slots.gather(1, path[:, :ndt]), source)
    num_moves = torch.where(kind[:, 0] == 0, accept_lens, num_moves)
    moves = place < num_moves[:, None]  # [n, ndt]

    padding = slots.new_zeros(_total_below(ids, "padding moves", width + 1))
    num_slots = 1 + n * ndt + _total_below(ids, "spare slots", SPARE_SLOTS_MAX + 1)
    buffer = torch.full((num_slots, row_width), 2.0, device=ids.device)  # in no request's rows
    buffer[slots.flatten()] = counter_rng.uniform(ids, "KV", ndt * row_width).view(n * ndt, row_width)
    tensors = {
        "buffer": buffer,
        "target": torch.cat([target[moves], padding]),
        "source": torch.cat([source[moves], padding]),
    }
    sizes = {**shape, "bs": n, "num_slots": num_slots, "row_width": row_width, "num_moves": tensors["target"].shape[0]}
    return Case(sizes, tensors)
