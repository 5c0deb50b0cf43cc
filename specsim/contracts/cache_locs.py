"""The cache-location family: which KV slots a step enters into the page table, and which ones it reads.

In every case all slots of the pool differ, so that a slot read from a wrong row or column shows, and new
slots differ from those. Rows are permuted and without duplicates; row 0 is the padding sink and belongs to no
request.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser, between, pick, sample
from specsim.contracts import bulk, counter_rng
from specsim.contracts.contract import Bulk, Case, Op, Role, ScalarArg, Sizes, TensorArg
from specsim.contracts.naive.cache_locs import (
    assign_draft_cache_locs_contiguous_loops,
    assign_extend_cache_locs_loops,
    assign_req_to_token_pool_loops,
)
from specsim.contracts.tree import PAGE_SIZES, Shape, draw_paged_shape, draw_seq_lens, draw_shape
from specsim.reference.cache_locs import (
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)

__all__ = ["OPS"]

SPARE_ROWS_MAX = 3
SPARE_COLUMNS_MAX = 5
NEW_SLOTS_START = 1_000_000


def _draw_widths(chooser: Chooser, shape: Shape) -> list[int]:
    """Columns of each request's segment: all as many as the tree has nodes, or ragged, some of them empty."""
    if pick(chooser, (False, True), "ragged"):
        widths = [chooser.choose(shape.num_draft_tokens + 2, "segment width") for _ in range(shape.bs)]
        return widths if any(widths) else [1, *widths[1:]]
    return [shape.num_draft_tokens] * shape.bs


def _draw_pool(chooser: Chooser, bs: int, columns: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows of the requests, and a page table of at least `columns` columns."""
    pool_rows = 1 + bs + between(chooser, 0, SPARE_ROWS_MAX, "spare rows")
    pool_len = columns + between(chooser, 0, SPARE_COLUMNS_MAX, "spare columns")
    rows = [1 + row for row in sample(chooser, pool_rows - 1, bs, "row")]
    slots = torch.arange(1, 1 + pool_rows * pool_len, dtype=torch.int32)
    return torch.tensor(rows, dtype=torch.int64), slots.view(pool_rows, pool_len)


def _generate_ragged(chooser: Chooser) -> Case:
    """What the two ragged operations share: rows, page table and the segments `[start, end)`."""
    shape = draw_shape(chooser)
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    starts = draw_seq_lens(chooser, shape.bs, page_size)
    widths = _draw_widths(chooser, shape)
    ends = [start + width for start, width in zip(starts, widths, strict=True)]
    req_pool_indices, req_to_token = _draw_pool(chooser, shape.bs, max(ends))
    sizes = {
        **shape.sizes(),
        "page_size": page_size,
        "pool_rows": req_to_token.shape[0],
        "pool_len": req_to_token.shape[1],
        "num_locs": sum(widths),
    }
    tensors = {
        "req_pool_indices": req_pool_indices,
        "req_to_token": req_to_token,
        "start_offset": torch.tensor(starts, dtype=torch.int64),
        "end_offset": torch.tensor(ends, dtype=torch.int64),
    }
    return Case(sizes, tensors)


def _generate_assign_req_to_token_pool(chooser: Chooser) -> Case:
    case = _generate_ragged(chooser)
    num_locs = case.sizes["num_locs"]
    case.tensors["out_cache_loc"] = torch.arange(NEW_SLOTS_START, NEW_SLOTS_START + num_locs, dtype=torch.int64)
    return case


def _generate_assign_draft_cache_locs_contiguous(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    seq_lens = draw_seq_lens(chooser, shape.bs, page_size)
    width = shape.topk * shape.num_steps
    req_pool_indices, req_to_token = _draw_pool(chooser, shape.bs, max(seq_lens) + width)
    sizes = {
        **shape.sizes(),
        "page_size": page_size,
        "pool_rows": req_to_token.shape[0],
        "pool_len": req_to_token.shape[1],
        "num_draft_locs": shape.bs * width,
    }
    tensors = {
        "req_pool_indices": req_pool_indices,
        "req_to_token": req_to_token,
        "seq_lens": torch.tensor(seq_lens, dtype=torch.int64),
    }
    return Case(sizes, tensors)


def _columns(shape: Sizes, width: int) -> int:
    """As many columns as a sequence may have and `width` more, and one to spare."""
    return bulk.FULL_PAGES_MAX * shape["page_size"] + 1 + width + 1


def _draw_segments_shape(chooser: Chooser) -> dict[str, int]:
    return {**draw_paged_shape(chooser), "is_ragged": chooser.choose(2, "ragged")}


def _make_ragged(ids: torch.Tensor, shape: Sizes) -> Case:
    """Segments of as many columns as the tree has nodes; ragged ones also of none, or of any number up to one more."""
    widest = shape["num_draft_tokens"] + 1
    starts = bulk.seq_lens(ids, "start_offset", shape["page_size"])
    kind = counter_rng.below(ids, "segment", 3) if shape["is_ragged"] else torch.ones_like(ids)
    any_width = counter_rng.below(ids, "segment width", widest + 1)
    widths = torch.where(kind == 0, 0, torch.where(kind == 1, shape["num_draft_tokens"], any_width))
    rows, table = bulk.page_table(ids, _columns(shape, widest), shape["page_size"])
    tensors = {"req_pool_indices": rows, "req_to_token": table, "start_offset": starts, "end_offset": starts + widths}
    return Case({**_table_sizes(shape, table), "num_locs": int(widths.sum())}, tensors)


def _make_assign_req_to_token_pool(ids: torch.Tensor, shape: Sizes) -> Case:
    case = _make_ragged(ids, shape)
    first = int(case.tensors["req_to_token"].max()) + 1
    case.tensors["out_cache_loc"] = torch.arange(first, first + case.sizes["num_locs"], device=ids.device)
    return case


def _make_assign_draft_cache_locs_contiguous(ids: torch.Tensor, shape: Sizes) -> Case:
    width = shape["topk"] * shape["num_steps"]
    rows, table = bulk.page_table(ids, _columns(shape, width), shape["page_size"])
    seq_lens = bulk.seq_lens(ids, "seq_lens", shape["page_size"])
    tensors = {"req_pool_indices": rows, "req_to_token": table, "seq_lens": seq_lens}
    return Case({**_table_sizes(shape, table), "num_draft_locs": ids.shape[0] * width}, tensors)


def _table_sizes(shape: Sizes, table: torch.Tensor) -> dict[str, int]:
    return {**shape, "bs": table.shape[0] - 1, "pool_rows": table.shape[0], "pool_len": table.shape[1]}


def _req_pool_indices() -> TensorArg:
    return TensorArg("req_pool_indices", Role.IN, ("bs",), torch.int64, "row of each request, without duplicates")


def _req_to_token(role: Role, doc: str) -> TensorArg:
    return TensorArg("req_to_token", role, ("pool_rows", "pool_len"), torch.int32, doc)


def _segment_bounds() -> tuple[TensorArg, TensorArg]:
    return (
        TensorArg("start_offset", Role.IN, ("bs",), torch.int64, "first column of each request's segment"),
        TensorArg("end_offset", Role.IN, ("bs",), torch.int64, "one past its last column; the start if it is empty"),
    )


OPS: tuple[Op, ...] = (
    Op(
        name="assign_req_to_token_pool",
        family="cache_locs",
        summary="enter new KV slots into the rows of their requests",
        args=(
            _req_pool_indices(),
            _req_to_token(Role.INOUT, "KV slot by row and column; nothing outside the segments changes"),
            *_segment_bounds(),
            TensorArg("out_cache_loc", Role.IN, ("num_locs",), torch.int64, "the new slots, ragged"),
        ),
        reference=assign_req_to_token_pool,
        loops=assign_req_to_token_pool_loops,
        generate=_generate_assign_req_to_token_pool,
        bulk=Bulk(_draw_segments_shape, _make_assign_req_to_token_pool),
        source="SGLang's speculative prepare_for_decode",
    ),
    Op(
        name="assign_draft_cache_locs_contiguous",
        family="cache_locs",
        summary="KV slots that the draft model writes, side by side in the row",
        args=(
            _req_pool_indices(),
            _req_to_token(Role.IN, "KV slot by row and column"),
            TensorArg(
                "seq_lens",
                Role.IN,
                ("bs",),
                torch.int64,
                "first column to read; the last one is within the row",
            ),
            TensorArg(
                "out_cache_loc",
                Role.OUT,
                ("num_draft_locs",),
                torch.int64,
                "slots of columns [seq_lens[b], seq_lens[b] + topk * num_steps), request after request",
            ),
            ScalarArg("topk", "branches of the draft"),
            ScalarArg("num_steps", "drafting steps"),
        ),
        reference=assign_draft_cache_locs_contiguous,
        loops=assign_draft_cache_locs_contiguous_loops,
        generate=_generate_assign_draft_cache_locs_contiguous,
        bulk=Bulk(draw_paged_shape, _make_assign_draft_cache_locs_contiguous),
        source="SGLang's EAGLE draft worker, page size 1 or topk 1",
    ),
    Op(
        name="assign_extend_cache_locs",
        family="cache_locs",
        summary="KV slots of a segment of each request's row, for example of the tree's nodes",
        args=(
            _req_pool_indices(),
            _req_to_token(Role.IN, "KV slot by row and column"),
            *_segment_bounds(),
            TensorArg("out_cache_loc", Role.OUT, ("num_locs",), torch.int64, "the slots of the segments, ragged"),
        ),
        reference=assign_extend_cache_locs,
        loops=assign_extend_cache_locs_loops,
        generate=_generate_ragged,
        bulk=Bulk(_draw_segments_shape, _make_ragged),
        source="SGLang's EAGLE worker, prepare_for_verify and draft extend",
    ),
)
