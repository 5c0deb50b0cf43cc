"""The KV family: which slots requests get, what each branch of a draft attends to, and how accepted KV is moved.

In every case all slots differ, in the page table as among the pages handed out, and pages are out of order, so that
a slot of a wrong row, page or node shows. Lengths lie at, before and after the start of a page. Where an operation can
meet padding requests, the last requests of a batch may be such: they hold row 0, the padding sink, or accept
nothing.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between, pick, sample
from specsim.contracts import bulk
from specsim.contracts.bulk_kv import (
    PADDING_SEQ_LEN,
    PAGES_GROWN_MAX,
    SPARE_PAGES_MAX,
    make_alloc_decode,
    make_alloc_extend,
    make_compact_accepted_path,
    make_draft_decode_kv_indices,
    make_fill_accept_out_cache_loc,
    make_get_last_loc,
    make_move_kv,
    pages_needed,
    path_sizes,
    pool_sizes,
)
from specsim.contracts.contract import Bulk, Case, Op, Role, ScalarArg, Sizes, TensorArg, Tensors
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
from specsim.contracts.tree import (
    PAGE_SIZES,
    Shape,
    draw_batch_shape,
    draw_paged_shape,
    draw_seq_lens,
    draw_shape,
    shuffled,
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

SPARE_ROWS_MAX = 3
SPARE_COLUMNS_MAX = 5
HIDDEN_SIZE_MAX = 5
ROW_WIDTH_MAX = 9
PREDICT_START = 1_000


def _draw_padding(chooser: Chooser, bs: int) -> int:
    """The number of live requests; the others, at the end of the batch, are padding."""
    return bs - chooser.choose(bs, "padding requests")


def _draw_pool(chooser: Chooser, bs: int, live: int, columns: int, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the requests, 0 for padding, and a page table of at least `columns` columns whose pages are whole and
    out of order. Page 0 is in nobody's row.
    """
    pool_rows = 1 + bs + between(chooser, 0, SPARE_ROWS_MAX, "spare rows")
    pool_len = columns + between(chooser, 0, SPARE_COLUMNS_MAX, "spare columns")
    rows = [1 + row for row in sample(chooser, pool_rows - 1, live, "row")] + [0] * (bs - live)
    row_pages = (pool_len + page_size - 1) // page_size
    pages = 1 + torch.tensor(shuffled(chooser, pool_rows * row_pages, "page"), dtype=torch.int32)
    slots = pages.view(pool_rows, row_pages, 1) * page_size + torch.arange(page_size, dtype=torch.int32)
    table = slots.view(pool_rows, row_pages * page_size)[:, :pool_len].contiguous()
    return torch.tensor(rows, dtype=torch.int64), table


def _draw_grown_len(chooser: Chooser, prefix_len: int, shape: Shape, page_size: int) -> int:
    """The length of a request after an extension: by one token, nothing, a tree, or to about the start of a page."""
    kind = pick(chooser, ("token", "nothing", "tree", "boundary"), "extension")
    if kind == "boundary":
        pages = pages_needed(prefix_len, page_size) + between(chooser, 0, PAGES_GROWN_MAX, "pages grown")
        return max(prefix_len, pages * page_size + pick(chooser, (0, 1, -1), "beside the page boundary"))
    return prefix_len + {"token": 1, "nothing": 0, "tree": shape.num_draft_tokens}[kind]


def _draw_pages(
    chooser: Chooser, prefix_lens: list[int], seq_lens: list[int], page_size: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """`last_loc` of every request, on pages of their own, and enough free pages, perhaps more."""
    bs = len(prefix_lens)
    needed = sum(
        pages_needed(after, page_size) - pages_needed(before, page_size)
        for before, after in zip(prefix_lens, seq_lens, strict=True)
    )
    spare = between(chooser, 0, SPARE_PAGES_MAX, "spare pages")
    pages = [1 + page for page in shuffled(chooser, bs + needed + spare, "page")]
    last_loc = [
        page * page_size + (prefix_len - 1) % page_size if prefix_len else -1
        for page, prefix_len in zip(pages[:bs], prefix_lens, strict=True)
    ]
    return torch.tensor(last_loc, dtype=torch.int64), torch.tensor(pages[bs:], dtype=torch.int64)


def _generate_alloc_extend(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    prefix_lens = draw_seq_lens(chooser, shape.bs, page_size)
    seq_lens = [_draw_grown_len(chooser, prefix_len, shape, page_size) for prefix_len in prefix_lens]
    if seq_lens == prefix_lens:
        seq_lens[0] += 1
    last_loc, free_pages = _draw_pages(chooser, prefix_lens, seq_lens, page_size)
    sizes = {
        **shape.sizes(),
        "page_size": page_size,
        "num_free_pages": free_pages.shape[0],
        "num_locs": sum(seq_lens) - sum(prefix_lens),
    }
    tensors = {
        "prefix_lens": torch.tensor(prefix_lens, dtype=torch.int64),
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int64),
        "last_loc": last_loc,
        "free_pages": free_pages,
    }
    return Case(sizes, tensors)


def _generate_alloc_decode(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    prefix_lens = draw_seq_lens(chooser, shape.bs, page_size)
    seq_lens = [prefix_len + 1 for prefix_len in prefix_lens]
    last_loc, free_pages = _draw_pages(chooser, prefix_lens, seq_lens, page_size)
    sizes = {**shape.sizes(), "page_size": page_size, "num_free_pages": free_pages.shape[0]}
    tensors = {
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int64),
        "last_loc": last_loc,
        "free_pages": free_pages,
    }
    return Case(sizes, tensors)


def _generate_get_last_loc(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    live = _draw_padding(chooser, shape.bs)
    prefix_lens = draw_seq_lens(chooser, live, page_size) + [0] * (shape.bs - live)
    columns = max(1, *prefix_lens)
    req_pool_indices, req_to_token = _draw_pool(chooser, shape.bs, live, columns, page_size)
    tensors = {
        "req_to_token": req_to_token,
        "req_pool_indices": req_pool_indices,
        "prefix_lens": torch.tensor(prefix_lens, dtype=torch.int64),
    }
    return Case({**shape.sizes(), "page_size": page_size, **pool_sizes(req_to_token)}, tensors)


def _generate_draft_decode_kv_indices(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    live = _draw_padding(chooser, shape.bs)
    seq_lens = draw_seq_lens(chooser, live, page_size) + [PADDING_SEQ_LEN] * (shape.bs - live)
    columns = max(
        seq_len
        + (shape.topk - 1) * pages_needed(seq_len % page_size + shape.num_steps, page_size) * page_size
        + shape.num_steps
        for seq_len in seq_lens
    )
    req_pool_indices, req_to_token = _draw_pool(chooser, shape.bs, live, columns, page_size)
    sizes = {
        **shape.sizes(),
        "page_size": page_size,
        **pool_sizes(req_to_token),
        "num_bounds": shape.bs * shape.topk + 1,
        "num_kv": shape.topk * (sum(seq_lens) + shape.bs * shape.num_steps),
    }
    tensors = {
        "req_pool_indices": req_pool_indices,
        "req_to_token": req_to_token,
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int64),
    }
    return Case(sizes, tensors)


def _paged_draft(case: Case) -> Case:
    """The same requests, for the slots that the draft writes and the holes before its branches."""
    sizes = dict(case.sizes)
    del sizes["num_bounds"], sizes["num_kv"]
    tails = int((case.tensors["seq_lens"] % sizes["page_size"]).sum())
    sizes["num_draft_locs"] = sizes["bs"] * sizes["topk"] * sizes["num_steps"]
    sizes["num_copies"] = tails * (sizes["topk"] - 1)
    return Case(sizes, case.tensors)


def _generate_draft_cache_locs_paged(chooser: Chooser) -> Case:
    return _paged_draft(_generate_draft_decode_kv_indices(chooser))


def _make_draft_cache_locs_paged(ids: torch.Tensor, shape: Sizes) -> Case:
    return _paged_draft(make_draft_decode_kv_indices(ids, shape))


def _eviction(sizes: Sizes, seq_lens: torch.Tensor, accept_index: torch.Tensor) -> Case:
    """The nodes that were not accepted are to be evicted; the root is kept, of a padding request too."""
    bs, ndt = sizes["bs"], sizes["num_draft_tokens"]
    evict_mask = torch.ones(bs * ndt, dtype=torch.bool, device=seq_lens.device)
    evict_mask[accept_index[accept_index >= 0].long()] = False
    evict_mask.view(bs, ndt)[:, 0] = False
    return Case({**sizes, "num_nodes": bs * ndt}, {"seq_lens": seq_lens, "evict_mask": evict_mask})


def _generate_align_evict_mask(chooser: Chooser) -> Case:
    shape, page_size = draw_shape(chooser), pick(chooser, PAGE_SIZES, "page_size")
    seq_lens = torch.tensor(draw_seq_lens(chooser, shape.bs, page_size), dtype=torch.int64)
    accept_index = torch.tensor(_draw_paths(chooser, shape)[0])
    return _eviction({**shape.sizes(), "page_size": page_size}, seq_lens, accept_index)


def _make_align_evict_mask(ids: torch.Tensor, shape: Sizes) -> Case:
    seq_lens = bulk.seq_lens(ids, "seq_lens", shape["page_size"])
    return _eviction({**shape, "bs": ids.shape[0]}, seq_lens, bulk.accepted_paths(ids, shape)[0])


def _draw_paths(chooser: Chooser, shape: Shape) -> tuple[list[list[int]], list[int]]:
    """`accept_index` and `accept_lens`: paths of ascending nodes from the root; padding requests have none."""
    live = _draw_padding(chooser, shape.bs)
    longest = min(shape.accept_width, shape.num_draft_tokens)
    accept_index, accept_lens = [], []
    for b in range(shape.bs):
        path: list[int] = []
        if b < live:
            kind = pick(chooser, ("shortest", "longest", "any"), "accept length")
            accept_len = {"shortest": 1, "longest": longest}.get(kind) or between(chooser, 1, longest, "accept_lens")
            drafts = sample(chooser, shape.num_draft_tokens - 1, accept_len - 1, "accepted node")
            path = [b * shape.num_draft_tokens + node for node in [0, *sorted(1 + draft for draft in drafts)]]
        accept_index.append(path + [-1] * (shape.accept_width - len(path)))
        accept_lens.append(len(path))
    return accept_index, accept_lens


def _draw_node_slots(chooser: Chooser, shape: Shape) -> torch.Tensor:
    """A slot of its own for each node, out of order; slot 0 is the padding sink."""
    return 1 + torch.tensor(shuffled(chooser, shape.num_nodes, "slot of a node"), dtype=torch.int64)


def _generate_fill_accept_out_cache_loc(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    accept_index, _ = _draw_paths(chooser, shape)
    tensors = {
        "accept_index": torch.tensor(accept_index, dtype=torch.int32),
        "out_cache_loc": _draw_node_slots(chooser, shape),
    }
    return Case(path_sizes(shape.sizes(), shape.bs), tensors)


def _generate_compact_accepted_path(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    accept_index, accept_lens = _draw_paths(chooser, shape)
    hidden_size = between(chooser, 1, HIDDEN_SIZE_MAX, "hidden_size")
    hidden_states = torch.arange(1, 1 + shape.num_nodes * hidden_size, dtype=torch.float32)
    tensors = {
        "accept_index": torch.tensor(accept_index, dtype=torch.int32),
        "accept_lens": torch.tensor(accept_lens, dtype=torch.int32),
        "out_cache_loc": _draw_node_slots(chooser, shape),
        "predict": torch.arange(PREDICT_START, PREDICT_START + shape.num_nodes, dtype=torch.int32),
        "hidden_states": hidden_states.view(shape.num_nodes, hidden_size),
    }
    return Case({**path_sizes(shape.sizes(), shape.bs), "hidden_size": hidden_size}, tensors)


def _draw_moves(chooser: Chooser, shape: Shape, node_slots: list[int]) -> tuple[list[int], list[int]]:
    """Targets and sources among the slots of the nodes: accepted paths, or a chain of moves, each onto the source of
    the next or of the one before, or a cycle.
    """
    kind = pick(chooser, ("paths", "towards the front", "towards the back", "cycle"), "moves")
    if kind == "paths":
        accept_index, accept_lens = _draw_paths(chooser, shape)
        ndt = shape.num_draft_tokens
        targets = [node_slots[b * ndt + j] for b, accept_len in enumerate(accept_lens) for j in range(accept_len)]
        return targets, [node_slots[node] for path in accept_index for node in path if node >= 0]
    count = between(chooser, 1, min(shape.num_nodes, shape.bs * shape.accept_width) - 1, "number of moves")
    slots = node_slots[: count + 1]
    if kind == "towards the front":
        return slots[:-1], slots[1:]
    if kind == "towards the back":
        return slots[1:], slots[:-1]
    return slots[1:] + slots[:1], slots


def _generate_move_kv(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    node_slots = _draw_node_slots(chooser, shape).tolist()
    targets, sources = _draw_moves(chooser, shape, node_slots)
    padding = [0] * between(chooser, 0, shape.accept_width, "padding moves")
    row_width = between(chooser, 1, ROW_WIDTH_MAX, "row_width")
    num_slots = 1 + shape.num_nodes + between(chooser, 0, SPARE_COLUMNS_MAX, "spare slots")
    tensors = {
        "buffer": torch.arange(1, 1 + num_slots * row_width, dtype=torch.float32).view(num_slots, row_width),
        "target": torch.tensor(targets + padding, dtype=torch.int64),
        "source": torch.tensor(sources + padding, dtype=torch.int64),
    }
    sizes = {
        **shape.sizes(),
        "num_slots": num_slots,
        "row_width": row_width,
        "num_moves": len(targets) + len(padding),
    }
    return Case(sizes, tensors)


def _draw_compaction_shape(chooser: Chooser) -> dict[str, int]:
    return {**draw_batch_shape(chooser), "hidden_size": between(chooser, 1, HIDDEN_SIZE_MAX, "hidden_size")}


def _draw_move_shape(chooser: Chooser) -> dict[str, int]:
    return {**draw_batch_shape(chooser), "row_width": between(chooser, 1, ROW_WIDTH_MAX, "row_width")}


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
        generate=_generate_alloc_extend,
        bulk=Bulk(draw_paged_shape, make_alloc_extend),
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
        generate=_generate_alloc_decode,
        bulk=Bulk(draw_paged_shape, make_alloc_decode),
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
        generate=_generate_get_last_loc,
        bulk=Bulk(draw_paged_shape, make_get_last_loc),
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
        generate=_generate_draft_decode_kv_indices,
        bulk=Bulk(draw_paged_shape, make_draft_decode_kv_indices),
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
        generate=_generate_draft_cache_locs_paged,
        bulk=Bulk(draw_paged_shape, _make_draft_cache_locs_paged),
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
        generate=_generate_align_evict_mask,
        bulk=Bulk(draw_paged_shape, _make_align_evict_mask),
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
        generate=_generate_fill_accept_out_cache_loc,
        bulk=Bulk(draw_batch_shape, make_fill_accept_out_cache_loc),
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
        generate=_generate_compact_accepted_path,
        bulk=Bulk(_draw_compaction_shape, make_compact_accepted_path),
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
        generate=_generate_move_kv,
        bulk=Bulk(_draw_move_shape, make_move_kv),
        source="SGLang PR #11126",
    ),
)
