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

__all__ = ["assign_draft_cache_locs_contiguous", "assign_extend_cache_locs", "assign_req_to_token_pool"]


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

    req_pool_indices  [bs] int64, distinct
    req_to_token      [pool_rows, pool_len] int32, changed in place; nothing else in it changes
    start_offset      [bs] int64, first column to write
    end_offset        [bs] int64, one past the last column; `start_offset` for a request that gets nothing
    out_cache_loc     [num_locs] int64, ragged, `num_locs` = sum of `end_offset - start_offset`; fits in int32

    Raises ValueError for rows or columns outside the pool, duplicate rows, negative segments or a wrong
    `num_locs`. Source: SGLang's speculative `prepare_for_decode`.
    """
    if validation.enabled():
        _check_assign(req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc)
    request, column = _ragged_columns(start_offset, end_offset)  # [num_locs], [num_locs]
    req_to_token[req_pool_indices[request], column] = out_cache_loc.to(torch.int32)


def assign_draft_cache_locs_contiguous(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int
) -> Tensor:
    """The slots that the draft model writes: `topk * num_steps` columns after each request's sequence.

    req_pool_indices  [bs] int64
    req_to_token      [pool_rows, pool_len] int32
    seq_lens          [bs] int64, tokens that have KV; `seq_lens + topk * num_steps` must fit in a row

    Returns out_cache_loc [bs * topk * num_steps] int64: for each request its columns in ascending order.
    Raises ValueError for rows or columns outside the pool.
    Source: SGLang's EAGLE draft worker, page size 1 or topk 1, where draft slots lie side by side in the row.
    """
    if validation.enabled():
        _check_draft(req_pool_indices, req_to_token, seq_lens, topk, num_steps)
    width = topk * num_steps
    column = seq_lens[:, None] + torch.arange(width, device=seq_lens.device)  # [bs, width]
    return req_to_token[req_pool_indices[:, None], column].to(torch.int64).flatten()


def assign_extend_cache_locs(
    req_pool_indices: Tensor, req_to_token: Tensor, start_offset: Tensor, end_offset: Tensor
) -> Tensor:
    """The slots of columns `[start_offset[b], end_offset[b])` of each request's row, ragged.

    Verification calls it with `start = seq_len` and `end = seq_len + num_draft_tokens`: the slots of the
    tree's nodes.

    req_pool_indices  [bs] int64
    req_to_token      [pool_rows, pool_len] int32
    start_offset      [bs] int64, first column to read
    end_offset        [bs] int64, one past the last column

    Returns out_cache_loc [num_locs] int64, `num_locs` = sum of `end_offset - start_offset`.
    Raises ValueError for rows or columns outside the pool and for negative segments.
    Source: SGLang's EAGLE worker, `prepare_for_verify` and draft extend.
    """
    if validation.enabled():
        _check_ragged(req_pool_indices, req_to_token, start_offset, end_offset)
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


def check_rows(req_pool_indices: Tensor, req_to_token: Tensor) -> tuple[int, int]:
    """Check the page table and the rows that a batch holds; returns `bs` and `pool_len`."""
    validation.require_tensor("req_pool_indices", req_pool_indices, torch.int64, bs=None)
    validation.require_tensor("req_to_token", req_to_token, torch.int32, pool_rows=None, pool_len=None)
    pool_rows, pool_len = req_to_token.shape
    validation.require_between("req_pool_indices", req_pool_indices, 0, pool_rows - 1)
    return req_pool_indices.shape[0], pool_len


def _check_ragged(req_pool_indices: Tensor, req_to_token: Tensor, start_offset: Tensor, end_offset: Tensor) -> None:
    bs, pool_len = check_rows(req_pool_indices, req_to_token)
    validation.require_tensor("start_offset", start_offset, torch.int64, bs=bs)
    validation.require_tensor("end_offset", end_offset, torch.int64, bs=bs)
    validation.require_between("start_offset", start_offset, 0, pool_len)
    validation.require_between("end_offset", end_offset, 0, pool_len)
    validation.require_all(end_offset >= start_offset, "end_offset", end_offset, "start_offset of the request or more")


def _check_assign(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
) -> None:
    _check_ragged(req_pool_indices, req_to_token, start_offset, end_offset)
    validation.require_distinct("req_pool_indices", req_pool_indices)
    num_locs = int((end_offset - start_offset).sum())
    validation.require_tensor("out_cache_loc", out_cache_loc, torch.int64, num_locs=num_locs)
    validation.require_between("out_cache_loc", out_cache_loc, 0, 2**31 - 1)


def _check_draft(req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int) -> None:
    validation.require_scalar("topk", topk, 1)
    validation.require_scalar("num_steps", num_steps, 1)
    bs, pool_len = check_rows(req_pool_indices, req_to_token)
    validation.require_tensor("seq_lens", seq_lens, torch.int64, bs=bs)
    fits = (seq_lens >= 0) & (seq_lens + topk * num_steps <= pool_len)
    room = f"0 to {pool_len - topk * num_steps} (pool_len {pool_len} less topk * num_steps {topk * num_steps})"
    validation.require_all(fits, "seq_lens", seq_lens, room)
