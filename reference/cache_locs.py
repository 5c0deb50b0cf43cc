"""Where tokens live: the page table `req_to_token`, and the KV slots that a step enters into it or reads.

`req_to_token[row, column]` is the KV slot of the token at position `column` of the request that holds `row`.
A batch knows its rows as `req_pool_indices`. Columns beyond what a request owns are stale: they hold whatever
the row's last owner left.

*Ragged* tensors concatenate one segment per request, in batch order, without padding.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract

__all__ = ["assign_draft_cache_locs_contiguous", "assign_extend_cache_locs", "assign_req_to_token_pool"]


@contract(
    """
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    req_to_token      [pool_rows, pool_len] int32, changed in place: KV slot by row and column; nothing outside the
                      segments changes
    start_offset      [bs] int64, 0 to pool_len: first column of each request's segment
    end_offset        [bs] int64, 0 to pool_len: one past its last column; the start if it is empty
    out_cache_loc     [num_locs] int64, 0 to 2**31 - 1: the new slots, ragged, as many as there are columns
    """
)
def assign_req_to_token_pool(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """Enter newly allocated slots into the rows of their requests.

    Row `req_pool_indices[b]`, columns `[start_offset[b], end_offset[b])`, gets the b-th ragged segment of
    `out_cache_loc`.

    Raises ValueError for rows or columns outside the pool, duplicate rows, negative segments or a wrong
    `num_locs`. Source: SGLang's speculative `prepare_for_decode`.
    """
    if validation.enabled():
        _check_assign(req_pool_indices, start_offset, end_offset, out_cache_loc)
    request, column = _ragged_columns(start_offset, end_offset)  # [num_locs], [num_locs]
    req_to_token[req_pool_indices[request], column] = out_cache_loc.to(torch.int32)


@contract(
    """
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    seq_lens          [bs] int64: tokens that have KV, and so the first column to read; the last one is within the row
    -> out_cache_loc  [num_draft_locs = bs * topk * num_steps] int64: slots of columns [seq_lens[b], seq_lens[b] + topk
                      * num_steps), ascending, request after request
    topk              int, 1 or more: branches of the draft
    num_steps         int, 1 or more: drafting steps
    """
)
def assign_draft_cache_locs_contiguous(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int
) -> Tensor:
    """The slots that the draft model writes: `topk * num_steps` columns after each request's sequence.

    Raises ValueError for rows or columns outside the pool.
    Source: SGLang's EAGLE draft worker, page size 1 or topk 1, where draft slots lie side by side in the row.
    """
    width = topk * num_steps
    if validation.enabled():
        _check_draft(seq_lens, req_to_token.shape[1], width)
    column = seq_lens[:, None] + torch.arange(width, device=seq_lens.device)  # [bs, width]
    return req_to_token[req_pool_indices[:, None], column].to(torch.int64).flatten()


@contract(
    """
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    start_offset      [bs] int64, 0 to pool_len: first column of each request's segment
    end_offset        [bs] int64, 0 to pool_len: one past its last column; the start if it is empty
    -> out_cache_loc  [num_locs] int64: the slots of the segments, ragged
    """
)
def assign_extend_cache_locs(
    req_pool_indices: Tensor, req_to_token: Tensor, start_offset: Tensor, end_offset: Tensor
) -> Tensor:
    """The slots of columns `[start_offset[b], end_offset[b])` of each request's row, ragged.

    Verification calls it with `start = seq_len` and `end = seq_len + num_draft_tokens`: the slots of the
    tree's nodes.

    Raises ValueError for rows or columns outside the pool and for negative segments.
    Source: SGLang's EAGLE worker, `prepare_for_verify` and draft extend.
    """
    if validation.enabled():
        _check_segments(start_offset, end_offset)
    request, column = _ragged_columns(start_offset, end_offset)  # [num_locs], [num_locs]
    return req_to_token[req_pool_indices[request], column].to(torch.int64)


def ragged_segments(lens: Tensor) -> tuple[Tensor, Tensor]:
    """For each element of ragged segments of the given lengths: its segment, and its place within that."""
    segment = torch.repeat_interleave(lens)  # 0 lens[0] times, 1 lens[1] times, ...
    first = lens.cumsum(0) - lens
    return segment, torch.arange(segment.shape[0], device=lens.device) - first[segment]


def _ragged_columns(start_offset: Tensor, end_offset: Tensor) -> tuple[Tensor, Tensor]:
    """For each element of the ragged segments `[start, end)`: its request and its column, both [num_locs]."""
    request, within = ragged_segments(end_offset - start_offset)
    return request, start_offset[request] + within


def _check_segments(start_offset: Tensor, end_offset: Tensor) -> None:
    validation.require_all(end_offset >= start_offset, "end_offset", end_offset, "start_offset of the request or more")


def _check_assign(req_pool_indices: Tensor, start_offset: Tensor, end_offset: Tensor, out_cache_loc: Tensor) -> None:
    _check_segments(start_offset, end_offset)
    validation.require_distinct("req_pool_indices", req_pool_indices)
    num_locs = int((end_offset - start_offset).sum())
    validation.require_tensor("out_cache_loc", out_cache_loc, torch.int64, num_locs=num_locs)


def _check_draft(seq_lens: Tensor, pool_len: int, width: int) -> None:
    fits = (seq_lens >= 0) & (seq_lens + width <= pool_len)
    room = f"0 to {pool_len - width} (pool_len {pool_len} less topk * num_steps {width})"
    validation.require_all(fits, "seq_lens", seq_lens, room)
