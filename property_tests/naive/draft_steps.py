"""`specsim.reference.draft_steps` once more, one request, token and draft at a time: lists and for loops."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from property_tests.naive.step_inputs import spans
from specsim.reference.draft_steps import BlockDraft, DraftDecode, DraftPrefill, ModuleInputs, StandalonePrefill


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _int64(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def _behind(values: list[int], count: int, value: int = 0) -> list[int]:
    return [*values, *[value] * (count - len(values))]


def _next(b: int, idx_mapping: Tensor, num_sampled: Tensor, last_sampled: Tensor, next_prefill: Tensor) -> int:
    row = int(idx_mapping[b])
    return int(last_sampled[row]) if int(num_sampled[b]) else int(next_prefill[row])


def propose_ngrams_naive(
    idx_mapping: Tensor,
    all_token_ids: Tensor,
    total_len: Tensor,
    num_sampled: Tensor,
    last_sampled_tokens: Tensor,
    min_n: int,
    max_n: int,
    num_steps: int,
) -> Tensor:
    """`propose_ngrams`, one run and one place at a time."""
    drafts = []
    for b, row in enumerate(idx_mapping.tolist()):
        tokens = all_token_ids[row, : int(total_len[row])].tolist()
        followed: list[int] = []
        for n in range(max_n, min_n - 1, -1):
            places = [at for at in range(len(tokens) - n) if tokens[at : at + n] == tokens[len(tokens) - n :]]
            if places and int(num_sampled[b]):
                followed = tokens[places[-1] + n :][:num_steps]
                break
        drafts.append(_behind(followed, num_steps, int(last_sampled_tokens[row])))
    return _int64(drafts)  # type: ignore[arg-type]


def prepare_draft_prefill_naive(
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    next_prefill_tokens: Tensor,
) -> DraftPrefill:
    """`prepare_draft_prefill`, one token at a time."""
    lasts = []
    for b, (start, end) in enumerate(spans(query_start_loc)):
        last = end - int(num_rejected[b]) - 1
        for at in range(start, last + 1):
            draft_positions[at] = positions[at]
            if at < last:
                draft_input_ids[at] = input_ids[at + 1]
        draft_input_ids[last] = _next(b, idx_mapping, num_sampled, last_sampled_tokens, next_prefill_tokens)
        lasts.append(last)
    size = len(last_sampled_tokens)
    return DraftPrefill(
        _int64(_behind(lasts, size)),
        _int32(_behind(query_start_loc.tolist(), size + 1, int(query_start_loc[-1]))),
        _int32(_behind(seq_lens.tolist(), size)),
        _int64([0]),
    )


def prepare_draft_decode_naive(
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    sample_positions: Tensor,
    draft_tokens: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    max_model_len: int,
    advances: int,
) -> DraftDecode:
    """`prepare_draft_decode`, one request at a time."""
    bs, size = draft_tokens.shape[0], len(draft_input_ids)
    lens = []
    for b in range(bs):
        draft_input_ids[b] = draft_tokens[b, 0]
        sample_positions[b] += 1
        lens.append(int(seq_lens[b]) - int(num_rejected[b]))
        if advances:
            draft_positions[b] = min(int(draft_positions[b]) + 1, max_model_len - 1)
            lens[-1] = min(lens[-1] + 1, max_model_len)
    return DraftDecode(_int32(_behind(list(range(bs)), size + 1, bs)), _int32(_behind(lens, size)))


def update_draft_inputs_naive(
    draft_tokens: Tensor,
    next_hidden: Tensor,
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    sample_positions: Tensor,
    draft_seq_lens: Tensor,
    sampled: Tensor,
    current_step: Tensor,
    hidden: Tensor,
    max_model_len: int,
    advances: int,
) -> None:
    """`update_draft_inputs`, one request at a time."""
    step = int(current_step)
    for b, token in enumerate(sampled.tolist()):
        draft_tokens[b, step] = token
        if step < draft_tokens.shape[1] - 1:
            draft_input_ids[b], next_hidden[b] = token, hidden[b]
            sample_positions[b] += 1
            if advances:
                draft_positions[b] = min(int(draft_positions[b]) + 1, max_model_len - 1)
                draft_seq_lens[b] = min(int(draft_seq_lens[b]) + 1, max_model_len)


def prepare_module_inputs_naive(
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    draft_query_start_loc: Tensor,
    draft_overrides: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    cached_input_ids: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    next_prefill_tokens: Tensor,
) -> ModuleInputs:
    """`prepare_module_inputs`, one token at a time."""
    lasts, lens = [], []
    for b, (start, end) in enumerate(spans(query_start_loc)):
        row, rejected = int(idx_mapping[b]), int(num_rejected[b])
        again = max(0, rejected - 1)
        kept = cached_input_ids[row].tolist()
        ids = kept[len(kept) - again :] + input_ids[start + 1 : end - rejected].tolist()
        ids.append(_next(b, idx_mapping, num_sampled, last_sampled_tokens, next_prefill_tokens[0]))
        for i, token in enumerate(ids):
            draft_input_ids[start + i] = token
            draft_positions[start + i] = int(positions[start]) - again + i
        lasts.append(start + len(ids) - 1)
        lens.append(int(seq_lens[b]) - again)
        for i in range(draft_overrides.shape[1]):
            draft_overrides[b, i] = -1 if int(num_sampled[b]) else int(next_prefill_tokens[i + 1, row])
    for i in range(len(idx_mapping), len(draft_query_start_loc)):
        draft_query_start_loc[i] = query_start_loc[-1]
    size = len(last_sampled_tokens)
    return ModuleInputs(_int64(_behind(lasts, size)), _int32(_behind(lens, size)))


def prepare_module_hidden_naive(
    draft_hidden: Tensor,
    draft_embeds: Tensor,
    target_hidden: Tensor,
    cached_hidden: Tensor,
    cached_embeds: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    num_rejected: Tensor,
) -> None:
    """`prepare_module_hidden`, one row at a time."""
    for b, (start, end) in enumerate(spans(query_start_loc)):
        row, rejected = int(idx_mapping[b]), int(num_rejected[b])
        again = max(0, rejected - 1)
        for i in range(end - start - rejected):
            draft_hidden[start + again + i] = target_hidden[start + i]
        for i in range(again):
            draft_hidden[start + i] = cached_hidden[row, cached_hidden.shape[1] - again + i]
            draft_embeds[start + i] = cached_embeds[row, cached_embeds.shape[1] - again + i]


def pad_trailing_slots_naive(slot_mappings: Tensor, query_start_loc: Tensor, last_token_indices: Tensor) -> None:
    """`pad_trailing_slots`, one token at a time."""
    for b, (_start, end) in enumerate(spans(query_start_loc)):
        for at in range(int(last_token_indices[b]) + 1, end):
            for group in range(len(slot_mappings)):
                slot_mappings[group, at] = -1


def cache_module_inputs_naive(
    cached_input_ids: Tensor,
    cached_embeds: Tensor,
    cached_hidden: Tensor,
    draft_input_ids: Tensor,
    draft_embeds: Tensor,
    draft_hidden: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    last_token_indices: Tensor,
) -> None:
    """`cache_module_inputs`, one row at a time."""
    count = cached_input_ids.shape[1]
    for b, (start, _end) in enumerate(spans(query_start_loc)):
        row, last = int(idx_mapping[b]), int(last_token_indices[b])
        for i in range(count if row >= 0 else 0):
            at = last - count + 1 + i
            if at >= start:
                cached_input_ids[row, i] = draft_input_ids[at]
                cached_embeds[row, i], cached_hidden[row, i] = draft_embeds[at], draft_hidden[at]


def shift_draft_inputs_naive(
    draft_input_ids: Tensor,
    draft_embeds: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    last_token_indices: Tensor,
    next_tokens: Tensor,
    next_embeds: Tensor,
) -> None:
    """`shift_draft_inputs`, one token at a time."""
    for b, (start, _end) in enumerate(spans(query_start_loc)):
        if int(idx_mapping[b]) == -1:
            continue
        last = int(last_token_indices[b])
        for at in range(start, last):
            draft_input_ids[at] = draft_input_ids[at + 1]
            draft_embeds[at] = draft_embeds[at + 1].clone()
        draft_input_ids[last] = next_tokens[b]
        draft_embeds[last] = next_embeds[b]


def prepare_standalone_prefill_naive(
    input_ids: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    max_model_len: int,
) -> StandalonePrefill:
    """`prepare_standalone_prefill`, one token at a time."""
    ids: list[int] = []
    places: list[int] = []
    lasts, starts = [], []
    for b, (start, end) in enumerate(spans(query_start_loc)):
        stay = input_ids[start : end - int(num_rejected[b])].tolist()
        starts.append(len(ids))
        lasts.append(len(ids) + len(stay))
        ids += _behind([*stay, int(last_sampled_tokens[int(idx_mapping[b])])], end - start + 1)
        places += [min(int(positions[start]) + i, max_model_len - 1) for i in range(end - start + 1)]
    size = len(last_sampled_tokens)
    return StandalonePrefill(
        _int32(ids),
        _int64(places),
        _int64(_behind(lasts, size)),
        _int32(_behind(starts, size + 1, len(ids))),
        _int32(_behind([min(length + 1, max_model_len) for length in seq_lens.tolist()], size)),
    )


def prepare_block_draft_naive(
    draft_temperature: Tensor,
    draft_seeds: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    next_prefill_tokens: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    block_table: Tensor,
    page_size: int,
    mask_token_id: int,
    num_steps: int,
    num_block_tokens: int,
    max_model_len: int,
    padded_tokens: int,
) -> BlockDraft:
    """`prepare_block_draft`, one token at a time."""

    def slot(b: int, position: int) -> int:
        block = int(block_table[b, min(position // page_size, block_table.shape[1] - 1)])
        return block * page_size + position % page_size if block else -1

    ids: list[int] = []
    places: list[int] = []
    slots: list[int] = []
    lens, contexts, context_slots = [], [], []
    indices, sampled_places, sampled_rows = [], [], []
    for b, (start, end) in enumerate(spans(query_start_loc)):
        row, stay = int(idx_mapping[b]), end - int(num_rejected[b])
        draft_temperature[row], draft_seeds[row] = temperature[row], seeds[row]
        for at in range(start, end):
            position = int(positions[at])
            contexts.append(position if at < stay else 0)
            context_slots.append(slot(b, position) if at < stay else -1)
        first = int(positions[stay - 1]) + 1
        lens.append(min(first + num_block_tokens, max_model_len))
        for i in range(num_block_tokens):
            if num_block_tokens == num_steps:
                indices.append(len(ids))
                sampled_places.append(first + i + 1)
                sampled_rows.append(row)
            elif i > 0:
                indices.append(len(ids))
                sampled_places.append(first + i)
                sampled_rows.append(row)
            following = _next(b, idx_mapping, num_sampled, last_sampled_tokens, next_prefill_tokens)
            ids.append(following if i == 0 else mask_token_id)
            places.append(min(first + i, max_model_len - 1))
            slots.append(slot(b, first + i))
    size = len(last_sampled_tokens)
    starts = [b * num_block_tokens for b in range(len(idx_mapping))]
    samples = size * num_steps
    return BlockDraft(
        _int32(_behind(ids, padded_tokens)),
        _int64(_behind(places, padded_tokens)),
        torch.tensor([i >= len(ids) for i in range(padded_tokens)]),
        _int32(_behind(starts, size + 1, len(ids))),
        _int32(_behind(lens, size)),
        _int64(_behind(slots, padded_tokens, -1)),
        _int64(contexts),
        _int64(context_slots),
        _int64(_behind(indices, samples)),
        _int64(_behind(sampled_places, samples)),
        _int32(_behind(sampled_rows, samples, -1)),
    )


def apply_grammar_bitmask_naive(
    logits: Tensor, bitmask: Tensor, logits_indices: Tensor, cu_num_logits: Tensor, mask_stride: int
) -> None:
    """`apply_grammar_bitmask`, one token at a time."""
    ranges = spans(cu_num_logits)
    for mask, number in zip(bitmask.tolist(), logits_indices.tolist(), strict=True):
        start, end = ranges[number // mask_stride]
        at = start + number % mask_stride
        if at < end:
            for token in range(logits.shape[1]):
                if not mask[token // 32] >> (token % 32) & 1:
                    logits[at, token] = -math.inf
