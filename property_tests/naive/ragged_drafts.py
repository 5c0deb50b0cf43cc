"""`specsim.reference.ragged_drafts` once more, one request and draft at a time: lists and for loops."""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference.ragged_drafts import (
    PLACEHOLDER,
    BlockInputs,
    DraftInputs,
    NextTokens,
    PreparedInputs,
    SlotMapping,
)


def _spans(ends: Tensor) -> list[tuple[int, int]]:
    spans, start = [], 0
    for end in ends.tolist():
        spans.append((start, end))
        start = end
    return spans


def verify_ragged_greedy_naive(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    bonus_token_ids: Tensor,
    is_greedy: Tensor,
    num_steps: int,
) -> Tensor:
    """`verify_ragged_greedy`, one draft at a time."""
    rows = []
    for b, (start, end) in enumerate(_spans(cu_num_draft_tokens)):
        emitted: list[int] = []
        if is_greedy[b]:
            for i in range(start, end):
                emitted.append(int(target_argmax[i]))
                if int(draft_token_ids[i]) != emitted[-1]:
                    break
            else:
                emitted.append(int(bonus_token_ids[b]))
        rows.append(emitted + [-1] * (num_steps + 1 - len(emitted)))
    return torch.tensor(rows, dtype=torch.int32)


def verify_ragged_rejection_naive(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    recovered_token_ids: Tensor,
    uniform_probs: Tensor,
    is_greedy: Tensor,
    has_draft_probs: int,
    num_steps: int,
) -> Tensor:
    """`verify_ragged_rejection`, one draft at a time."""
    rows = []
    for b, (start, end) in enumerate(_spans(cu_num_draft_tokens)):
        emitted: list[int] = []
        if not is_greedy[b]:
            for i in range(start, end):
                token = int(draft_token_ids[i])
                if token == PLACEHOLDER:
                    emitted.append(int(recovered_token_ids[i]))
                    break
                p, u = float(target_probs[i, token]), float(uniform_probs[i])
                q = min(float(draft_probs[i, token]), 1.0) if has_draft_probs else 1.0
                if not (q > 0 and u * q < p):
                    emitted.append(int(recovered_token_ids[i]))
                    break
                emitted.append(token)
            else:
                emitted.append(int(bonus_token_ids[b]))
        rows.append(emitted + [-1] * (num_steps + 1 - len(emitted)))
    return torch.tensor(rows, dtype=torch.int32)


def sample_recovered_tokens_naive(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    race: Tensor,
    has_draft_probs: int,
) -> Tensor:
    """`sample_recovered_tokens`, one token of the vocabulary at a time."""
    tokens = []
    for b, (start, end) in enumerate(_spans(cu_num_draft_tokens)):
        for i in range(start, end):
            best, best_score = 0, 0.0
            for token, p in enumerate(target_probs[i].tolist()):
                if has_draft_probs:
                    taken = min(float(draft_probs[i, token]), 1.0)
                else:
                    taken = p * (token == int(draft_token_ids[i]))
                score = max(p - taken, 0.0) / float(race[b, token])
                if score > best_score:
                    best, best_score = token, score
            tokens.append(best)
    return torch.tensor(tokens, dtype=torch.int32)


def verify_ragged_sampled_naive(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    uniform_probs: Tensor,
    race: Tensor,
    is_greedy: Tensor,
    has_draft_probs: int,
    num_steps: int,
) -> Tensor:
    """`verify_ragged_sampled`, from the naive implementations of its parts."""
    most_probable = [row.index(max(row)) for row in target_probs.tolist()]
    argmax = torch.tensor(most_probable, dtype=torch.int64)
    drafts = (cu_num_draft_tokens, draft_token_ids)
    recovered = sample_recovered_tokens_naive(*drafts, draft_probs, target_probs, race, has_draft_probs)
    greedy = verify_ragged_greedy_naive(*drafts, argmax, bonus_token_ids, is_greedy, num_steps)
    sampled = verify_ragged_rejection_naive(
        *drafts,
        draft_probs,
        target_probs,
        bonus_token_ids,
        recovered,
        uniform_probs,
        is_greedy,
        has_draft_probs,
        num_steps,
    )
    return torch.stack([greedy[b] if is_greedy[b] else sampled[b] for b in range(len(is_greedy))])


def expand_to_drafts_naive(values: Tensor, cu_num_draft_tokens: Tensor, replace_from: int, replace_to: int) -> Tensor:
    """`expand_to_drafts`, one draft at a time."""
    expanded = []
    for b, (start, end) in enumerate(_spans(cu_num_draft_tokens)):
        value = float(values[b])
        expanded += [float(replace_to) if value == replace_from else value] * (end - start)
    return torch.tensor(expanded, dtype=values.dtype)


def prepare_inputs_padded_naive(
    cu_num_draft_tokens: Tensor, valid_sampled_tokens_count: Tensor, query_start_loc: Tensor
) -> PreparedInputs:
    """`prepare_inputs_padded`, one request at a time."""
    places, rejects = [], []
    for b, (start, end) in enumerate(_spans(cu_num_draft_tokens)):
        rejected = end - start + 1 - int(valid_sampled_tokens_count[b]) if end > start else 0
        rejects.append(rejected)
        places.append(int(query_start_loc[b + 1]) - 1 - rejected)
    return PreparedInputs(torch.tensor(places, dtype=torch.int32), torch.tensor(rejects, dtype=torch.int32))


def prepare_next_token_padded_naive(
    sampled_token_ids: Tensor, discard_request_mask: Tensor, backup_next_token_ids: Tensor, vocab_size: int
) -> NextTokens:
    """`prepare_next_token_padded`, one request at a time."""
    tokens, counts = [], []
    for b, row in enumerate(sampled_token_ids.tolist()):
        valid = [] if discard_request_mask[b] else [token for token in row if 0 <= token < vocab_size]
        tokens.append(valid[-1] if valid else int(backup_next_token_ids[b]))
        counts.append(len(valid))
    return NextTokens(torch.tensor(tokens, dtype=torch.int32), torch.tensor(counts, dtype=torch.int32))


def step_slot_mapping_naive(
    positions: Tensor, block_table: Tensor, seq_lens: Tensor, page_size: int, max_model_len: int, padded_bs: int
) -> SlotMapping:
    """`step_slot_mapping`, one request at a time."""
    slots, clamped = [-1] * padded_bs, []
    for b, position in enumerate(positions.tolist()):
        if position + 1 >= max_model_len:
            clamped.append(0)
            seq_lens[b] = 1
        else:
            at = position + 1
            clamped.append(at)
            slots[b] = int(block_table[b, at // page_size]) * page_size + at % page_size
            seq_lens[b] = min(int(seq_lens[b]) + 1, max_model_len)
    return SlotMapping(torch.tensor(clamped), torch.tensor(slots))


def expand_draft_inputs_naive(
    target_token_ids: Tensor,
    target_positions: Tensor,
    next_token_ids: Tensor,
    query_start_loc: Tensor,
    query_end_loc: Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    num_padding_slots: int,
    shift_input_ids: int,
) -> DraftInputs:
    """`expand_draft_inputs`, one token at a time."""
    tokens: list[int] = []
    positions: list[int] = []
    rejected: list[bool] = []
    masked: list[bool] = []
    new: list[int] = []
    mapping: list[int] = []
    for b, end in enumerate(query_end_loc.tolist()):
        start, stop = int(query_start_loc[b]), int(query_start_loc[b + 1])
        mapping += [len(tokens) + i for i in range(stop - start)]
        kept = target_token_ids[start + shift_input_ids : end + 1].tolist()
        row = [(token, False) for token in kept]
        new += [len(tokens) + len(kept) + i for i in range(num_padding_slots)]
        row += [(int(next_token_ids[b]), False)]
        row += [(parallel_drafting_token_id, True)] * (num_padding_slots - 1)
        places = [int(target_positions[start]) + i for i in range(len(row))]
        padding = stop - end - 1
        tokens += [token for token, _ in row] + [padding_token_id] * padding
        masked += [is_slot for _, is_slot in row] + [False] * padding
        positions += places + [0] * padding
        rejected += [False] * len(row) + [True] * padding
    int32 = torch.int32
    return DraftInputs(
        torch.tensor(tokens, dtype=int32),
        torch.tensor(positions, dtype=torch.int64),
        torch.tensor(rejected),
        torch.tensor(masked),
        torch.tensor(new, dtype=int32),
        torch.tensor(mapping, dtype=int32),
    )


def expand_block_inputs_naive(
    next_token_ids: Tensor,
    target_positions: Tensor,
    query_start_loc: Tensor,
    num_rejected: Tensor,
    block_table: Tensor,
    mask_token_id: int,
    page_size: int,
    num_steps: int,
    has_rejected: int,
) -> BlockInputs:
    """`expand_block_inputs`, one token at a time."""

    def slot(b: int, position: int) -> int:
        return int(block_table[b, position // page_size]) * page_size + position % page_size

    ids: list[int] = []
    places: list[int] = []
    slots: list[int] = []
    contexts, context_slots, samples = [], [], []
    starts = query_start_loc.tolist()
    for b in range(len(next_token_ids)):
        start, end = starts[b], starts[b + 1]
        for at in range(start, end):
            contexts.append(int(target_positions[at]))
            context_slots.append(slot(b, contexts[-1]))
        last = end - 1 - (int(num_rejected[b]) if has_rejected else 0)
        for i in range(num_steps + 1):
            if i > 0:
                samples.append(len(ids))
            ids.append(mask_token_id if i else int(next_token_ids[b]))
            places.append(int(target_positions[last]) + 1 + i)
            slots.append(slot(b, places[-1]))
    int32, int64 = torch.int32, torch.int64
    return BlockInputs(
        torch.tensor(ids, dtype=int32),
        torch.tensor(places, dtype=int64),
        torch.tensor(slots, dtype=int64),
        torch.tensor(contexts, dtype=int64),
        torch.tensor(context_slots, dtype=int64),
        torch.tensor(samples, dtype=int32),
    )
