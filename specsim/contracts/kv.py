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
from specsim.contracts.contract import Case, Cases, Op, Role, ScalarArg, Sizes, TensorArg, Tensors
from specsim.contracts.draws import Draws
from specsim.contracts.naive.kv import (
    align_evict_mask_to_page_size_loops,
    alloc_decode_loops,
    alloc_extend_loops,
    compact_accepted_path_loops,
    draft_cache_locs_paged_loops,
    fill_accept_out_cache_loc_loops,
    generate_draft_decode_kv_indices_loops,
    get_last_loc_loops,
    move_kv_loops,
)
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

__all__ = ["OPS"]

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


def _make_draft_decode_kv_indices(draws: Draws, shape: Sizes) -> Case:
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
    return _paged_draft(_make_draft_decode_kv_indices(draws, shape))


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


def _defined_kv_indices(_case: Case, expected: Tensors) -> Tensors:
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


def _page_size() -> ScalarArg:
    return ScalarArg("page_size", "slots a page, a power of two")


def _last_loc() -> TensorArg:
    return TensorArg(
        "last_loc",
        Role.IN,
        ("bs",),
        torch.int64,
        "slot of the last token that has one, at the offset in its page that the length says; -1 if there is none",
    )


def _free_pages() -> TensorArg:
    return TensorArg(
        "free_pages",
        Role.IN,
        ("num_free_pages",),
        torch.int64,
        "distinct page numbers, at least as many as needed, taken from the front, request after request",
    )


def _req_pool_indices() -> TensorArg:
    return TensorArg("req_pool_indices", Role.IN, ("bs",), torch.int64, "row of each request; 0 for padding")


def _req_to_token() -> TensorArg:
    return TensorArg("req_to_token", Role.IN, ("pool_rows", "pool_len"), torch.int32, "KV slot by row and column")


def _accept_index() -> TensorArg:
    return TensorArg(
        "accept_index",
        Role.IN,
        ("bs", "accept_width"),
        torch.int32,
        "the accepted path as node numbers in the batch, ascending, then -1; a padding request has -1 only",
    )


def _node_slots() -> TensorArg:
    return TensorArg("out_cache_loc", Role.IN, ("num_nodes",), torch.int64, "slot of each node, all distinct")


OPS: tuple[Op, ...] = (
    Op(
        name="alloc_extend",
        family="kv",
        summary="slots for the tokens by which requests grow, in whole pages",
        args=(
            TensorArg("prefix_lens", Role.IN, ("bs",), torch.int64, "tokens that have slots"),
            TensorArg("seq_lens", Role.IN, ("bs",), torch.int64, "tokens that shall have slots, prefix_lens or more"),
            _last_loc(),
            _free_pages(),
            TensorArg("out_cache_loc", Role.OUT, ("num_locs",), torch.int64, "the new slots, ragged"),
            _page_size(),
        ),
        reference=alloc_extend,
        loops=alloc_extend_loops,
        cases=Cases(batches.draw_paged_shape, _make_alloc_extend),
        source="SGLang's paged allocator",
    ),
    Op(
        name="alloc_decode",
        family="kv",
        summary="a slot for one more token of each request",
        args=(
            TensorArg("seq_lens", Role.IN, ("bs",), torch.int64, "tokens including the new one, 1 or more"),
            _last_loc(),
            _free_pages(),
            TensorArg("out_cache_loc", Role.OUT, ("bs",), torch.int64, "the new slot of each request"),
            _page_size(),
        ),
        reference=alloc_decode,
        loops=alloc_decode_loops,
        cases=Cases(batches.draw_paged_shape, _make_alloc_decode),
        source="SGLang's paged allocator",
    ),
    Op(
        name="get_last_loc",
        family="kv",
        summary="the slot of each request's last token",
        args=(
            _req_to_token(),
            _req_pool_indices(),
            TensorArg("prefix_lens", Role.IN, ("bs",), torch.int64, "tokens that have slots, 0 for padding"),
            TensorArg("last_loc", Role.OUT, ("bs",), torch.int64, "slot of token prefix_lens - 1; -1 if there is none"),
        ),
        reference=get_last_loc,
        loops=get_last_loc_loops,
        cases=Cases(batches.draw_paged_shape, _make_get_last_loc),
        source="SGLang's allocation for extend and decode",
    ),
    Op(
        name="generate_draft_decode_kv_indices",
        family="kv",
        summary="the slots that each branch of a draft attends to, step by step",
        args=(
            _req_pool_indices(),
            _req_to_token(),
            TensorArg("seq_lens", Role.IN, ("bs",), torch.int64, "tokens before the draft"),
            TensorArg(
                "kv_indptr",
                Role.OUT,
                ("num_steps", "num_bounds"),
                torch.int32,
                "where the list of branch b * topk + t begins in the step's row of kv_indices, and where the last "
                "one ends",
                prefill=0,
            ),
            TensorArg(
                "kv_indices",
                Role.OUT,
                ("num_steps", "num_kv"),
                torch.int64,
                "in step i, for each branch, the slots of the sequence and of the branch's first i + 1 draft "
                "tokens; not defined from kv_indptr[i, -1] on",
            ),
            ScalarArg("topk", "branches of the draft"),
            ScalarArg("num_steps", "drafting steps"),
            _page_size(),
        ),
        reference=generate_draft_decode_kv_indices,
        loops=generate_draft_decode_kv_indices_loops,
        cases=Cases(batches.draw_paged_shape, _make_draft_decode_kv_indices),
        defined=_defined_kv_indices,
        source="SGLang's EAGLE attention backends; issue #26972",
    ),
    Op(
        name="draft_cache_locs_paged",
        family="kv",
        summary="slots that the draft model writes when each branch has pages of its own, and the holes to fill",
        args=(
            _req_pool_indices(),
            _req_to_token(),
            TensorArg("seq_lens", Role.IN, ("bs",), torch.int64, "tokens before the draft"),
            TensorArg(
                "out_cache_loc",
                Role.OUT,
                ("num_draft_locs",),
                torch.int64,
                "slot of each draft token, by request, branch and step",
            ),
            TensorArg(
                "target",
                Role.OUT,
                ("num_copies",),
                torch.int64,
                "the holes, by request, branch from the second, offset",
            ),
            TensorArg("source", Role.OUT, ("num_copies",), torch.int64, "the slot whose KV each hole receives"),
            ScalarArg("topk", "branches of the draft"),
            ScalarArg("num_steps", "drafting steps"),
            _page_size(),
        ),
        reference=draft_cache_locs_paged,
        loops=draft_cache_locs_paged_loops,
        cases=Cases(batches.draw_paged_shape, _make_draft_cache_locs_paged),
        source="SGLang's EAGLE draft worker; issue #26972",
    ),
    Op(
        name="align_evict_mask_to_page_size",
        family="kv",
        summary="keep what shares a page with the last token that is kept",
        args=(
            TensorArg("seq_lens", Role.IN, ("bs",), torch.int64, "tokens before the tree"),
            TensorArg(
                "evict_mask",
                Role.INOUT,
                ("num_nodes",),
                torch.bool,
                "True for a node whose slot is to be freed; every request keeps one at least",
            ),
            _page_size(),
            ScalarArg("num_draft_tokens", "nodes a tree, the root included"),
        ),
        reference=align_evict_mask_to_page_size,
        loops=align_evict_mask_to_page_size_loops,
        cases=Cases(batches.draw_paged_shape, _make_align_evict_mask),
        source="SGLang's EAGLE verification with pages",
    ),
    Op(
        name="fill_accept_out_cache_loc",
        family="kv",
        summary="the slots of the accepted nodes, one after the other",
        args=(
            _accept_index(),
            _node_slots(),
            TensorArg(
                "accept_out_cache_loc",
                Role.OUT,
                ("num_accept_entries",),
                torch.int64,
                "slots in the order of accept_index; defined for as many entries as nodes are accepted",
            ),
        ),
        reference=fill_accept_out_cache_loc,
        loops=fill_accept_out_cache_loc_loops,
        cases=Cases(batches.draw_shape, _make_fill_accept_out_cache_loc),
        defined=_defined_accept_slots,
        source="SGLang PR #26866",
    ),
    Op(
        name="compact_accepted_path",
        family="kv",
        summary="bring the accepted path of each tree to the front of its block",
        args=(
            _accept_index(),
            TensorArg("accept_lens", Role.IN, ("bs",), torch.int32, "entries of the path; 0 for padding"),
            _node_slots(),
            TensorArg("predict", Role.IN, ("num_nodes",), torch.int32, "token that follows each node"),
            TensorArg("hidden_states", Role.IN, ("num_nodes", "hidden_size"), torch.float32, "a row for each node"),
            TensorArg(
                "target",
                Role.OUT,
                ("num_accept_entries",),
                torch.int64,
                "slots that receive KV: the first accept_lens[b] of each block, ragged, then 0",
                prefill=0,
            ),
            TensorArg(
                "source",
                Role.OUT,
                ("num_accept_entries",),
                torch.int64,
                "slots that the KV comes from: those of the accepted nodes, ragged, then 0",
                prefill=0,
            ),
            TensorArg(
                "compacted_predict",
                Role.OUT,
                ("num_nodes",),
                torch.int32,
                "the tokens of the accepted nodes at the front of each block; the rest of it is not defined",
            ),
            TensorArg(
                "compacted_hidden_states",
                Role.OUT,
                ("num_nodes", "hidden_size"),
                torch.float32,
                "the rows of the accepted nodes at the front of each block; the rest of it is not defined",
            ),
            ScalarArg("num_draft_tokens", "nodes a tree, the root included"),
        ),
        reference=compact_accepted_path,
        loops=compact_accepted_path_loops,
        cases=Cases(_draw_compaction_shape, _make_compact_accepted_path),
        defined=_defined_path,
        source="SGLang PR #26866",
    ),
    Op(
        name="move_kv",
        family="kv",
        summary="copy rows of a KV buffer to other slots, all of them read before any is written",
        args=(
            TensorArg(
                "buffer",
                Role.INOUT,
                ("num_slots", "row_width"),
                torch.float32,
                "a row of KV for each slot; rows that are no target do not change",
            ),
            TensorArg(
                "target",
                Role.IN,
                ("num_moves",),
                torch.int64,
                "slots to write, distinct; but 0 to 0 may repeat, as padding",
            ),
            TensorArg("source", Role.IN, ("num_moves",), torch.int64, "slots to read; may overlap the targets"),
        ),
        reference=move_kv,
        loops=move_kv_loops,
        cases=Cases(_draw_move_shape, _make_move_kv),
        source="SGLang PR #11126",
    ),
)
