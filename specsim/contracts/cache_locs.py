"""The cache-location family: which KV slots a step enters into the page table, and which ones it reads.

In every case all slots of the pool differ, so that a slot read from a wrong row or column shows, and new
slots differ from those. Rows are permuted and without duplicates; row 0 is the padding sink and belongs to no
request.
"""

from __future__ import annotations

import torch

from specsim.choices.chooser import Chooser
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, operation
from specsim.contracts.draws import Draws
from specsim.reference.cache_locs import (
    assign_draft_cache_locs_contiguous,
    assign_extend_cache_locs,
    assign_req_to_token_pool,
)

__all__ = ["OPS"]


def _draw_segments_shape(chooser: Chooser) -> dict[str, int]:
    return {**batches.draw_paged_shape(chooser), "is_ragged": chooser.choose(2, "ragged")}


def _make_ragged(draws: Draws, shape: Sizes) -> Case:
    """Segments of as many columns as the tree has nodes; ragged ones also of none, or of any number up to
    one more, but not all of them of none."""
    widest = shape["num_draft_tokens"] + 1
    starts = batches.seq_lens(draws, "start_offset", shape["page_size"])
    widths = torch.full_like(starts, shape["num_draft_tokens"])
    if shape["is_ragged"]:
        kind, any_width = draws.below("segment", 3), draws.below("segment width", widest + 1)
        widths = torch.where(kind == 0, widths, torch.where(kind == 1, 0, any_width))
        widths[0] += ~widths.any()
    rows, table = batches.page_table(draws, starts + widths, shape["page_size"])
    tensors = {"req_pool_indices": rows, "req_to_token": table, "start_offset": starts, "end_offset": starts + widths}
    return Case({**shape, "bs": draws.count, **batches.page_table_sizes(table), "num_locs": int(widths.sum())}, tensors)


def _make_assign_req_to_token_pool(draws: Draws, shape: Sizes) -> Case:
    case = _make_ragged(draws, shape)
    first = int(case.tensors["req_to_token"].max()) + 1
    case.tensors["out_cache_loc"] = torch.arange(first, first + case.sizes["num_locs"], device=draws.device)
    return case


def _make_assign_draft_cache_locs_contiguous(draws: Draws, shape: Sizes) -> Case:
    width = shape["topk"] * shape["num_steps"]
    seq_lens = batches.seq_lens(draws, "seq_lens", shape["page_size"])
    rows, table = batches.page_table(draws, seq_lens + width, shape["page_size"])
    tensors = {"req_pool_indices": rows, "req_to_token": table, "seq_lens": seq_lens}
    return Case(
        {**shape, "bs": draws.count, **batches.page_table_sizes(table), "num_draft_locs": draws.count * width}, tensors
    )


OPS: tuple[Op, ...] = (
    operation(assign_req_to_token_pool, "cache_locs", Cases(_draw_segments_shape, _make_assign_req_to_token_pool)),
    operation(
        assign_draft_cache_locs_contiguous,
        "cache_locs",
        Cases(batches.draw_paged_shape, _make_assign_draft_cache_locs_contiguous),
    ),
    operation(assign_extend_cache_locs, "cache_locs", Cases(_draw_segments_shape, _make_ragged)),
)
