"""`specsim.reference.ragged_verify` once more, one request and node at a time: lists and for loops."""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference.ragged_verify import (
    ChainAccepted,
    CommitLens,
    GreedyCommitted,
    InjectLayout,
    RaggedStarts,
    RaggedWindow,
)


def _int32(values: list[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int32)


def _int64(values: list[int] | list[list[int]]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


def schedule_verify_lens_naive(
    confidence: Tensor, survival_eps: Tensor, budget: int, min_verify_len: int, max_verify_len: int
) -> Tensor:
    """`schedule_verify_lens`, one draft of the budget at a time."""
    survival: dict[tuple[int, int], float] = {}
    for b, row in enumerate(confidence.tolist()):
        likely = 1.0
        for step, each in enumerate(row[:max_verify_len]):
            likely *= each
            survival[b, step] = likely
    lens = [min_verify_len] * confidence.shape[0]
    for _ in range(budget):
        if not survival:
            break
        best = min(survival, key=lambda at: (-survival[at], at[1], at[0]))
        if survival.pop(best) >= float(survival_eps):
            lens[best[0]] += 1
    return _int32([min(max(1, length), max_verify_len) for length in lens])


def pad_verify_lens_naive(verify_lens: Tensor, num_packed: int, padded_bs: int) -> Tensor:
    """`pad_verify_lens`, one row that is left over at a time."""
    lens = verify_lens.tolist()
    bs, rest = len(lens), num_packed - sum(lens)
    lens += [0] * (padded_bs - bs)
    for i in range(rest):
        lens[bs + i % (padded_bs - bs) if padded_bs > bs else bs - 1] += 1
    return _int32(lens)


def verify_indptr_naive(verify_lens: Tensor) -> RaggedStarts:
    """`verify_indptr`, one request at a time."""
    starts = [0]
    for length in verify_lens.tolist():
        starts.append(starts[-1] + length)
    return RaggedStarts(_int32(starts), _int32(starts[:-1]))


def ragged_verify_window_naive(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    verify_lens: Tensor,
    candidates: Tensor,
    num_packed: int,
) -> RaggedWindow:
    """`ragged_verify_window`, one node at a time."""
    ids, positions, slots = [0] * num_packed, [0] * num_packed, [0] * num_packed
    row = 0
    for b, length in enumerate(verify_lens.tolist()):
        for step in range(length):
            ids[row] = int(candidates[b, step])
            positions[row] = int(seq_lens[b]) + step
            slots[row] = int(req_to_token[req_pool_indices[b], positions[row]])
            row += 1
    return RaggedWindow(_int64(ids), _int64(positions), _int64(slots))


def scatter_compact_to_strided_naive(compact: Tensor, verify_lens: Tensor, num_draft_tokens: int) -> Tensor:
    """`scatter_compact_to_strided`, one row at a time."""
    strided, row = [], 0
    for length in verify_lens.tolist():
        for step in range(num_draft_tokens):
            strided.append(compact[row] if step < length else torch.zeros_like(compact[0]))
            row += step < length
    return torch.stack(strided)


def commit_inject_layout_naive(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    prefix_lens: Tensor,
    full_to_swa_mapping: Tensor,
    commit_lens: Tensor,
    num_draft_tokens: int,
) -> InjectLayout:
    """`commit_inject_layout`, one node at a time."""
    slots, positions = [], []
    for b, prefix in enumerate(prefix_lens.tolist()):
        for step in range(num_draft_tokens):
            positions.append(prefix + step)
            is_committed = step < int(commit_lens[b])
            slot = int(req_to_token[req_pool_indices[b], prefix + step]) if is_committed else 0
            slots.append(int(full_to_swa_mapping[slot]) if is_committed else -1)
    return InjectLayout(_int32(slots), _int64(positions))


def committed_swa_locations_naive(
    cache_loc: Tensor, full_to_swa_mapping: Tensor, commit_lens: Tensor, num_draft_tokens: int
) -> Tensor:
    """`committed_swa_locations`, one node at a time."""
    found = []
    for node, slot in enumerate(cache_loc.tolist()):
        is_committed = node % num_draft_tokens < int(commit_lens[node // num_draft_tokens])
        found.append(int(full_to_swa_mapping[slot]) if is_committed else -1)
    return _int32(found)


def accept_chain_greedy_naive(candidates: Tensor, target_predict: Tensor, verify_lens: Tensor) -> ChainAccepted:
    """`accept_chain_greedy`, one draft at a time."""
    accepted, bonus, cut = [], [], []
    for drafts, target, length in zip(candidates.tolist(), target_predict.tolist(), verify_lens.tolist(), strict=True):
        right = 0
        while right + 1 < len(drafts) and drafts[right + 1] == target[right]:
            right += 1
        accepted.append(min(right, length - 1))
        bonus.append(target[accepted[-1]])
        cut.append(right - accepted[-1])
    return ChainAccepted(_int32(accepted), _int64(bonus), _int32(cut))


def select_mixed_accept_naive(
    is_greedy: Tensor,
    greedy_len: Tensor,
    greedy_bonus: Tensor,
    greedy_trim: Tensor,
    sampling_len: Tensor,
    sampling_bonus: Tensor,
    sampling_trim: Tensor,
) -> ChainAccepted:
    """`select_mixed_accept`, one request at a time."""
    chosen = []
    for greedy, sampling in ((greedy_len, sampling_len), (greedy_bonus, sampling_bonus), (greedy_trim, sampling_trim)):
        chosen.append([int((greedy if is_greedy[b] else sampling)[b]) for b in range(len(is_greedy))])
    return ChainAccepted(_int32(chosen[0]), _int64(chosen[1]), _int32(chosen[2]))


def finalize_accept_lens_naive(correct_len: Tensor, prefix_lens: Tensor) -> CommitLens:
    """`finalize_accept_lens`, one request at a time."""
    lens = [1 + accepted for accepted in correct_len.tolist()]
    ends = [before + more for before, more in zip(prefix_lens.tolist(), lens, strict=True)]
    return CommitLens(_int32(lens), _int64(ends))


def build_out_tokens_naive(draft_tokens: Tensor, correct_len: Tensor, bonus: Tensor) -> Tensor:
    """`build_out_tokens`, one request at a time."""
    outs = []
    for b, accepted in enumerate(correct_len.tolist()):
        tokens = [*draft_tokens[b].tolist(), 0]
        tokens[accepted] = int(bonus[b])
        outs.append(tokens)
    return _int64(outs)


def commit_chain_greedy_naive(candidates: Tensor, target_predict: Tensor, prefix_lens: Tensor) -> GreedyCommitted:
    """`commit_chain_greedy`, one request at a time."""
    accepted, bonus, lens, ends, outs = [], [], [], [], []
    for b, drafts in enumerate(candidates.tolist()):
        target, tokens = target_predict[b].tolist(), [*drafts[1:], 0]
        count = next((i for i in range(len(drafts) - 1) if drafts[i + 1] != target[i]), len(drafts) - 1)
        tokens[count] = target[count]
        accepted.append(count)
        bonus.append(target[count])
        lens.append(count + 1)
        ends.append(int(prefix_lens[b]) + count + 1)
        outs.append(tokens)
    return GreedyCommitted(_int32(accepted), _int64(bonus), _int32(lens), _int64(ends), _int64(outs))


def stage_commit_naive(
    cache_loc_dst: Tensor,
    positions_dst: Tensor,
    commit_lens_dst: Tensor,
    cache_loc: Tensor,
    positions: Tensor,
    commit_lens: Tensor,
) -> None:
    """`stage_commit`, one row and one request at a time."""
    for row, (slot, position) in enumerate(zip(cache_loc.tolist(), positions.tolist(), strict=True)):
        cache_loc_dst[row] = slot
        positions_dst[row] = position
    for b in range(len(commit_lens_dst)):
        commit_lens_dst[b] = int(commit_lens[b]) if b < len(commit_lens) else 0
