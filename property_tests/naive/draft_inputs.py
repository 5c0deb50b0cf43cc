"""`specsim.reference.draft_inputs` once more, one request, row and slot at a time: lists and for loops."""

from __future__ import annotations

import torch
from torch import Tensor

from property_tests.naive.kv import generate_draft_decode_kv_indices_naive
from specsim.reference.draft_inputs import DraftExtendInputs, DraftExtendLayout, DraftExtendLengths, WidenedLocs
from specsim.reference.kv import DraftKvIndices


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _int64(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def prepare_draft_extend_inputs_naive(accept_lens: Tensor, predict: Tensor, num_draft_tokens: int) -> DraftExtendInputs:
    """`prepare_draft_extend_inputs`, one request at a time."""
    drafts = [length - 1 for length in accept_lens.tolist()]
    last = [b * num_draft_tokens + count for b, count in enumerate(drafts)]
    return DraftExtendInputs(_int32(drafts), _int64(last), _int64(predict.tolist()))


def prepare_draft_extend_lengths_naive(
    seq_lens: Tensor, num_draft_tokens: int, front_offset: int
) -> DraftExtendLengths:
    """`prepare_draft_extend_lengths`, one request at a time."""
    lens = seq_lens.tolist()
    return DraftExtendLengths(
        _int32([max(0, length - front_offset) for length in lens]),
        _int32([num_draft_tokens + front_offset for _ in lens]),
        _int64([length + num_draft_tokens for length in lens]),
    )


def prepare_draft_extend_layout_naive(seq_lens: Tensor, num_draft_tokens: int) -> DraftExtendLayout:
    """`prepare_draft_extend_layout`, one token at a time."""
    positions: list[int] = []
    starts: list[int] = []
    for length in seq_lens.tolist():
        starts.append(len(positions))
        positions += [length + i for i in range(num_draft_tokens)]
    lens = prepare_draft_extend_lengths_naive(seq_lens, num_draft_tokens, 0)
    return DraftExtendLayout(*lens, _int64(positions), _int32(starts))


def widened_draft_extend_locs_naive(
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    stash_valid_lens: Tensor,
    num_draft_tokens: int,
    front: int,
    num_warmup: int,
) -> WidenedLocs:
    """`widened_draft_extend_locs`, one row at a time."""
    slots, positions = [], []
    for row, length in zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True):
        known = 0
        for i in range(-front, num_draft_tokens):
            if i >= 0 or (-i <= int(stash_valid_lens[row]) and length + i >= 0):
                known += i < 0
                positions.append(length + i)
                warms_up = i < 0 and known <= num_warmup
                slots.append(0 if warms_up else int(req_to_token[row, length + i]))
            else:
                positions.append(0)
                slots.append(0)
    return WidenedLocs(_int64(slots), _int64(positions))


def rebuild_compact_draft_req_to_token_naive(
    draft_req_to_token: Tensor,
    target_req_to_token: Tensor,
    req_pool_indices: Tensor,
    suffix_start: Tensor,
    draft_prefix_lens: Tensor,
    verify_cache_loc: Tensor,
) -> None:
    """`rebuild_compact_draft_req_to_token`, one slot at a time."""
    for b, row in enumerate(req_pool_indices.tolist()):
        start, count = int(suffix_start[b]), int(draft_prefix_lens[b])
        slots = [int(target_req_to_token[row, start + i]) for i in range(count)] + verify_cache_loc[b].tolist()
        for column, slot in enumerate(slots):
            draft_req_to_token[row, column] = slot


def generate_draft_decode_window_kv_indices_naive(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    page_size: int,
    window: int,
) -> DraftKvIndices:
    """`generate_draft_decode_window_kv_indices`, one list of `generate_draft_decode_kv_indices` at a time."""
    whole = generate_draft_decode_kv_indices_naive(req_pool_indices, req_to_token, seq_lens, topk, num_steps, page_size)
    starts, slots = torch.zeros_like(whole.kv_indptr), torch.zeros_like(whole.kv_indices)
    for step in range(num_steps):
        end = 0
        for z in range(whole.kv_indptr.shape[1] - 1):
            first, last = whole.kv_indptr[step, z : z + 2].tolist()
            for slot in whole.kv_indices[step, max(first, last - window) : last].tolist():
                slots[step, end] = slot
                end += 1
            starts[step, z + 1] = end
    return DraftKvIndices(starts, slots)
