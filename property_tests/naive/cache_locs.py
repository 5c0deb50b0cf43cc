"""`specsim.reference.cache_locs` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor


def assign_req_to_token_pool_naive(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    start_offset: Tensor,
    end_offset: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """`assign_req_to_token_pool`, one slot at a time."""
    slots = iter(out_cache_loc.tolist())
    rows, starts, ends = req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()
    for row, start, end in zip(rows, starts, ends, strict=True):
        for column in range(start, end):
            req_to_token[row, column] = next(slots)


def assign_draft_cache_locs_contiguous_naive(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int
) -> Tensor:
    """`assign_draft_cache_locs_contiguous`, one request at a time."""
    table, slots = req_to_token.tolist(), []
    for row, seq_len in zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True):
        slots += table[row][seq_len : seq_len + topk * num_steps]
    return torch.tensor(slots, dtype=torch.int64, device=req_to_token.device)


def assign_extend_cache_locs_naive(
    req_pool_indices: Tensor, req_to_token: Tensor, start_offset: Tensor, end_offset: Tensor
) -> Tensor:
    """`assign_extend_cache_locs`, one request at a time."""
    table, slots = req_to_token.tolist(), []
    rows, starts, ends = req_pool_indices.tolist(), start_offset.tolist(), end_offset.tolist()
    for row, start, end in zip(rows, starts, ends, strict=True):
        slots += table[row][start:end]
    return torch.tensor(slots, dtype=torch.int64, device=req_to_token.device)
