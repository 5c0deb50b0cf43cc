"""`specsim.reference.step_inputs` once more, one request and token at a time: lists and for loops."""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from specsim.reference.step_inputs import ExpandedRows, GatheredDrafts, Positions


def spans(starts: Tensor) -> list[tuple[int, int]]:
    return list(itertools.pairwise(starts.tolist()))


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _int64(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def expand_idx_mapping_naive(idx_mapping: Tensor, cu_num_logits: Tensor) -> ExpandedRows:
    """`expand_idx_mapping`, one row of logits at a time."""
    rows, places = [], []
    for b, (start, end) in enumerate(spans(cu_num_logits)):
        for i in range(end - start):
            rows.append(int(idx_mapping[b]))
            places.append(i)
    return ExpandedRows(_int32(rows), _int32(places))


def prepare_prefill_inputs_naive(
    input_ids: Tensor,
    next_prefill_tokens: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    all_token_ids: Tensor,
    prefill_len: Tensor,
    num_computed_tokens: Tensor,
) -> None:
    """`prepare_prefill_inputs`, one token at a time."""
    for b, (start, end) in enumerate(spans(query_start_loc)):
        row = int(idx_mapping[b])
        computed, prompt = int(num_computed_tokens[row]), int(prefill_len[row])
        if computed >= prompt:
            continue
        for i in range(start, end):
            input_ids[i] = all_token_ids[row, computed + i - start]
        for j in range(next_prefill_tokens.shape[0]):
            at = computed + end - start + j
            next_prefill_tokens[j, row] = all_token_ids[row, at] if at < prompt else 0


def prepare_pos_seq_lens_naive(idx_mapping: Tensor, query_start_loc: Tensor, num_computed_tokens: Tensor) -> Positions:
    """`prepare_pos_seq_lens`, one token at a time."""
    positions: list[int] = []
    lens = [0] * num_computed_tokens.shape[0]
    for b, (start, end) in enumerate(spans(query_start_loc)):
        computed = int(num_computed_tokens[idx_mapping[b]])
        positions += range(computed, computed + end - start)
        lens[b] = computed + end - start
    return Positions(_int64(positions), _int32(lens))


def combine_sampled_and_draft_tokens_naive(
    input_ids: Tensor,
    idx_mapping: Tensor,
    last_sampled_tokens: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    prefill_len: Tensor,
    draft_tokens: Tensor,
    cu_num_logits: Tensor,
    num_new_sampled_tokens: int,
) -> Tensor:
    """`combine_sampled_and_draft_tokens`, one row of logits at a time."""
    indices: list[int] = []
    for b, (start, end) in enumerate(spans(cu_num_logits)):
        row, count = int(idx_mapping[b]), end - start
        last, prompt = int(query_start_loc[b + 1]), int(prefill_len[row])
        first = last - count
        indices += range(first, last)
        if int(seq_lens[b]) <= prompt:
            continue
        if num_new_sampled_tokens and int(seq_lens[b]) - count >= prompt:
            input_ids[first] = int(last_sampled_tokens[row])
        for i in range(count - num_new_sampled_tokens):
            input_ids[first + num_new_sampled_tokens + i] = int(draft_tokens[row, i])
    return _int64(indices)


def gather_draft_sampled_naive(
    input_ids: Tensor,
    positions: Tensor,
    logits_indices: Tensor,
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    prefill_len: Tensor,
) -> GatheredDrafts:
    """`gather_draft_sampled`, one row of logits at a time."""
    tokens, found = [], []
    for index, row, place in zip(logits_indices, expanded_idx_mapping, expanded_local_pos.tolist(), strict=True):
        position = int(positions[index])
        found.append(position)
        was_proposed = place == 0 or position - place >= int(prefill_len[row])
        tokens.append(int(input_ids[index]) if was_proposed else -1)
    return GatheredDrafts(_int32(tokens), _int64(found))


def flatten_sampled_naive(sampled: Tensor, num_sampled: Tensor, cu_num_logits: Tensor) -> Tensor:
    """`flatten_sampled`, one token at a time."""
    flat = [0] * int(cu_num_logits[-1])
    for b, (start, _end) in enumerate(spans(cu_num_logits)):
        for i in range(int(num_sampled[b])):
            flat[start + i] = int(sampled[b, i])
    return _int64(flat)


def get_num_sampled_and_rejected_naive(
    num_sampled: Tensor, seq_lens: Tensor, cu_num_logits: Tensor, idx_mapping: Tensor, prefill_len: Tensor
) -> Tensor:
    """`get_num_sampled_and_rejected`, one request at a time."""
    rejected = []
    for b, (start, end) in enumerate(spans(cu_num_logits)):
        if int(seq_lens[b]) < int(prefill_len[idx_mapping[b]]):
            num_sampled[b] = 0
            rejected.append(0)
        else:
            rejected.append(end - start - int(num_sampled[b]))
    return _int32(rejected)


def post_update_naive(
    idx_mapping: Tensor,
    num_computed_tokens: Tensor,
    last_sampled_tokens: Tensor,
    output_bin_counts: Tensor,
    sampled_tokens: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    query_start_loc: Tensor,
    all_token_ids: Tensor,
    total_len: Tensor,
) -> None:
    """`post_update`, one token at a time."""
    for b, (start, end) in enumerate(spans(query_start_loc)):
        row = int(idx_mapping[b])
        if row < 0:
            continue
        num_computed_tokens[row] += end - start - int(num_rejected[b])
        for i in range(int(num_sampled[b])):
            token = int(sampled_tokens[b, i])
            all_token_ids[row, int(total_len[row])] = token
            total_len[row] += 1
            output_bin_counts[row, token] += 1
            last_sampled_tokens[row] = token


def post_update_num_computed_tokens_naive(
    idx_mapping: Tensor, num_computed_tokens: Tensor, query_start_loc: Tensor
) -> None:
    """`post_update_num_computed_tokens`, one request at a time."""
    for b, (start, end) in enumerate(spans(query_start_loc)):
        num_computed_tokens[idx_mapping[b]] += end - start


def gather_block_tables_naive(
    idx_mapping: Tensor,
    block_tables: Tensor,
    num_blocks: Tensor,
    num_computed_tokens: Tensor,
    sliding_window_reach: Tensor,
    block_sizes: Tensor,
    padded_bs: int,
) -> Tensor:
    """`gather_block_tables`, one block at a time."""
    del num_blocks  # what is behind a request's blocks is undefined
    groups, _rows, width = block_tables.shape
    found = torch.zeros((groups, padded_bs, width), dtype=torch.int32)
    for g in range(groups):
        for b, row in enumerate(idx_mapping.tolist()):
            reach, size = int(sliding_window_reach[g]), int(block_sizes[g])
            for i in range(width):
                last = (i + 1) * size - 1  # position of the block's last token
                if reach == 0 or last >= int(num_computed_tokens[row]) - reach:
                    found[g, b, i] = block_tables[g, row, i]
    return found


def compute_slot_mappings_naive(
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    positions: Tensor,
    block_tables: Tensor,
    block_sizes: Tensor,
    slot_mapping_enabled: Tensor,
    padded_tokens: int,
) -> Tensor:
    """`compute_slot_mappings`, one token at a time."""
    groups = block_tables.shape[0]
    slots = torch.full((groups, padded_tokens), -1, dtype=torch.int64)
    for g in range(groups):
        size = int(block_sizes[g])
        for b, (start, end) in enumerate(spans(query_start_loc)):
            row = int(idx_mapping[b])
            for i in range(start, end):
                if row >= 0 and slot_mapping_enabled[g]:
                    position = int(positions[i])
                    slots[g, i] = int(block_tables[g, row, position // size]) * size + position % size
    return slots
