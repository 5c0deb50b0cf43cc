"""`specsim.reference.draft_inputs` once more, one request, row and slot at a time: lists and for loops."""

from __future__ import annotations

import torch
from torch import Tensor

from property_tests.naive.kv import generate_draft_decode_kv_indices_naive
from specsim.reference.draft_inputs import (
    DraftExtendInputs,
    DraftExtendLayout,
    DraftExtendLengths,
    SwaPageIndices,
    WidenedLocs,
    WindowGather,
)
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


def block_seq_lens_causal_naive(seq_lens: Tensor, num_draft_tokens: int) -> Tensor:
    """`block_seq_lens_causal`, one token at a time."""
    return _int32([length + 1 + step for length in seq_lens.tolist() for step in range(num_draft_tokens)])


def draft_window_gather_naive(
    prefix_lens: Tensor, req_pool_indices: Tensor, valid_from: Tensor, has_valid_from: int, window: int
) -> WindowGather:
    """`draft_window_gather`, one position at a time."""
    lens, positions, invalid = [], [], []
    for row, prefix in zip(req_pool_indices.tolist(), prefix_lens.tolist(), strict=True):
        start = int(valid_from[row]) if has_valid_from else 0
        lens.append(max(0, min(window, prefix - start)))
        before = range(prefix - window, prefix)
        positions.append([max(0, position) for position in before])
        invalid.append([position < 0 for position in before])
    return WindowGather(_int32(lens), torch.tensor(positions), torch.tensor(invalid))


def draft_swa_page_indices_naive(
    req_to_token: Tensor,
    full_to_swa_mapping: Tensor,
    req_pool_indices: Tensor,
    offsets: Tensor,
    out_loc: Tensor,
    context_lens: Tensor,
    num_draft_tokens: int,
    alignment: int,
) -> SwaPageIndices:
    """`draft_swa_page_indices`, one slot at a time."""
    width = offsets.shape[1] + num_draft_tokens
    while width % alignment:
        width += 1
    indices, lens = [], []
    for b, context in enumerate(context_lens.tolist()):
        positions = offsets[b].tolist()[offsets.shape[1] - context :]
        slots = [int(req_to_token[req_pool_indices[b], position]) for position in positions]
        slots += out_loc[b * num_draft_tokens : (b + 1) * num_draft_tokens].tolist()
        row = [int(full_to_swa_mapping[slot]) for slot in slots]
        for _ in range(num_draft_tokens):
            indices.append(row + [-1] * (width - len(row)))
            lens.append(len(row))
    return SwaPageIndices(torch.tensor(indices, dtype=torch.int32), _int32(lens))


def fill_draft_extend_buffers_naive(
    input_ids_dst: Tensor,
    positions_dst: Tensor,
    cache_loc_dst: Tensor,
    hidden_dst: Tensor,
    seq_lens_dst: Tensor,
    req_pool_indices_dst: Tensor,
    num_correct_dst: Tensor,
    accept_lens_dst: Tensor,
    select_index_dst: Tensor,
    temperatures_dst: Tensor,
    rank_tokens_dst: Tensor,
    rank_logprob_tokens_dst: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    cache_loc: Tensor,
    hidden: Tensor,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    num_correct: Tensor,
    accept_lens: Tensor,
    temperatures: Tensor,
    padded_bs: int,
    num_draft_tokens: int,
    front: int,
    fill_value: int,
) -> None:
    """`fill_draft_extend_buffers`, one row and one request at a time."""
    width = front + num_draft_tokens
    for row in range(len(input_ids_dst)):
        is_row = row < len(input_ids)
        input_ids_dst[row] = input_ids[row] if is_row else 0
        positions_dst[row] = positions[row] if is_row else 0
        cache_loc_dst[row] = cache_loc[row] if is_row else 0
        if is_row:
            hidden_dst[row] = hidden[row]
    for b in range(len(seq_lens_dst)):
        is_request = b < len(seq_lens)
        seq_lens_dst[b] = seq_lens[b] if is_request else fill_value
        if is_request:
            req_pool_indices_dst[b], num_correct_dst[b] = req_pool_indices[b], num_correct[b]
        if b < padded_bs:
            accept_lens_dst[b] = accept_lens[b] if is_request else -1
            temperatures_dst[b] = temperatures[b] if is_request else 1
            select_index_dst[b] = b * width + front + int(num_correct_dst[b])
    for rank in range(len(rank_tokens_dst)):
        rank_tokens_dst[rank] = rank_logprob_tokens_dst[rank] = padded_bs * width
