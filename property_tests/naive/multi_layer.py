"""`specsim.reference.multi_layer` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference.multi_layer import NewState, WidenedInputs


def rotate_input_ids_naive(
    input_ids: Tensor, extend_start_loc: Tensor, extend_seq_lens: Tensor, topk_index: Tensor, select_index: Tensor
) -> None:
    """`rotate_input_ids`, one token at a time."""
    for b, (start, length) in enumerate(zip(extend_start_loc.tolist(), extend_seq_lens.tolist(), strict=True)):
        for row in range(start, start + length - 1):
            input_ids[row] = input_ids[row + 1].item()
        if length:
            input_ids[int(select_index[b])] = topk_index[b]


def assign_hidden_states_pool_naive(
    hidden_states: Tensor,
    req_pool_indices: Tensor,
    req_to_hidden_states_pool: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
) -> None:
    """`assign_hidden_states_pool`, one row at a time."""
    pool_size = req_to_hidden_states_pool.shape[1]
    starts, lens = extend_start_loc.tolist(), extend_seq_lens.tolist()
    for pool_row, start, length in zip(req_pool_indices.tolist(), starts, lens, strict=True):
        for place in range(pool_size):
            row = start + length - pool_size + place
            req_to_hidden_states_pool[pool_row, place] = hidden_states[row] if row >= start else 0


def assign_new_state_naive(
    next_token_ids: Tensor,
    old_input_ids: Tensor,
    old_positions: Tensor,
    old_hidden_states: Tensor,
    old_out_cache_loc: Tensor,
    old_extend_seq_lens: Tensor,
    old_extend_start_loc: Tensor,
    seq_lens: Tensor,
    padding_lens: Tensor,
    step: int,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    req_to_hidden_states_pool: Tensor,
) -> NewState:
    """`assign_new_state`, one row at a time."""
    flat = (old_input_ids, old_positions, old_hidden_states, old_out_cache_loc)
    old, pool = NewState(*flat, old_extend_seq_lens, old_extend_start_loc), req_to_hidden_states_pool
    ids, positions, states, slots = (x.new_zeros(x.shape[0] + seq_lens.shape[0], *x.shape[1:]) for x in flat)
    new = NewState(ids, positions, states, slots, old_extend_seq_lens + 1, old_extend_start_loc.clone())
    for b, (old_start, length) in enumerate(
        zip(old.extend_start_loc.tolist(), old_extend_seq_lens.tolist(), strict=True)
    ):
        start, row, column = old_start + b, int(req_pool_indices[b]), int(seq_lens[b]) - length - 1
        new.extend_start_loc[b] = start
        positions[start] = max(0, int(old_positions[old_start]) - 1)
        states[start] = pool[row, -1 - step]
        slots[start] = int(req_to_token[row, column]) if column >= 0 else 0
        for j in range(length):
            ids[start + j] = old_input_ids[old_start + j]
            for values, old_values in zip((positions, states, slots), flat[1:], strict=True):
                values[start + 1 + j] = old_values[old_start + j]
        ids[start + length - int(padding_lens[b])] = next_token_ids[b]
    return new


def stash_append_boundary_state_naive(
    src_tokens: Tensor,
    src_hiddens: Tensor,
    src_row_ends: Tensor,
    num_available: Tensor,
    req_pool_indices: Tensor,
    stash_tokens: Tensor,
    stash_hiddens: Tensor,
    stash_valid_lens: Tensor,
    set_valid: int,
) -> None:
    """`stash_append_boundary_state`, one row at a time."""
    front = stash_tokens.shape[1]
    for pool_row, end, available in zip(
        req_pool_indices.tolist(), src_row_ends.tolist(), num_available.tolist(), strict=True
    ):
        valid = 0 if set_valid else int(stash_valid_lens[pool_row])
        for row in range(end - min(available, front), end):
            for stash, rows in ((stash_tokens, src_tokens), (stash_hiddens, src_hiddens)):
                stash[pool_row] = torch.stack([*stash[pool_row][1:], rows[row]])
            valid = min(valid + 1, front)
        stash_valid_lens[pool_row] = valid


def fill_widened_draft_extend_inputs_naive(
    predict: Tensor,
    verify_hiddens: Tensor,
    stash_tokens: Tensor,
    stash_hiddens: Tensor,
    stash_valid_lens: Tensor,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    num_draft_tokens: int,
) -> WidenedInputs:
    """`fill_widened_draft_extend_inputs`, one row at a time."""
    front, tokens, states = stash_tokens.shape[1], [], [verify_hiddens[:0]]
    for b, (pool_row, seq_len) in enumerate(zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True)):
        for place in range(front):
            valid = front - place <= min(seq_len, int(stash_valid_lens[pool_row]))
            tokens.append(int(stash_tokens[pool_row, place]) if valid else 0)
            state = stash_hiddens[pool_row, place]
            states.append((state if valid else torch.zeros_like(state))[None])
        for node in range(b * num_draft_tokens, (b + 1) * num_draft_tokens):
            tokens.append(int(predict[node]))
            states.append(verify_hiddens[node][None])
    return WidenedInputs(stash_tokens.new_tensor(tokens), torch.cat(states))
