"""Drafts by several layers (multi-token prediction): step i of a draft is layer i of the draft model, run once.

A layer reads, for every position q of a window, the hidden state of position q and the token of position q + 1; at one
place of the window, the *selected* one, it predicts the token that step i drafts. Then the window's tokens move one
place to the left (they are *rotated*), the new token enters at the selected place, and the next layer runs over the
same window. The result is a chain, `topk` is 1, and all drafts of the next step are known before it begins.

Every layer has weights of its own, a KV pool of its own and attention metadata of its own. Slots may have the same
numbers in all pools; their content differs. So step i must run with the pool and the metadata of layer i: with those of
another layer nothing crashes, and the drafts are worse.

A later layer's KV just before the window was computed from drafts, some of which were rejected. So a window begins some
positions earlier than what is new, and what the layers need there has to be remembered by request. SGLang long
keeps hidden states (`assign_hidden_states_pool`) and puts one row in front for each layer (`assign_new_state`); later
releases keep a *stash* of the last `front` tokens and hidden states (`stash_append_boundary_state`) and put all of them
in front at once (`fill_widened_draft_extend_inputs`).

A *segment* is the rows of one request in a flat tensor: `extend_seq_lens[b]` rows from `extend_start_loc[b]` on.
Segments come in batch order and do not overlap; rows between them belong to nobody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.cache_locs import ragged_segments

__all__ = [
    "DraftLayer",
    "MultiLayerDraft",
    "NewState",
    "WidenedInputs",
    "assign_hidden_states_pool",
    "assign_new_state",
    "draft_extend_multi_layer",
    "fill_widened_draft_extend_inputs",
    "rotate_input_ids",
    "stash_append_boundary_state",
]


class DraftLayer(Protocol):
    """A layer of the draft model, with what belongs to it alone.

    kv_pool        where the layer keeps KV
    attn_metadata  positions, slots and whatever else its attention needs; made for this layer's pool
    """

    @property
    def kv_pool(self) -> Any: ...

    @property
    def attn_metadata(self) -> Any: ...

    def forward(
        self, input_ids: Tensor, hidden_states: Tensor, kv_pool: Any, attn_metadata: Any
    ) -> tuple[Tensor, Tensor]:
        """Run the layer's weights over a window; KV is read from and written to `kv_pool`.

        input_ids      [num_tokens] int64: the token after each position
        hidden_states  [num_tokens, hidden_size]: the hidden state of each position

        Returns logits [num_tokens, vocab_size] and hidden states [num_tokens, hidden_size], both float.
        """
        ...


class MultiLayerDraft(NamedTuple):
    """The drafts of the next step, one column for each layer.

    topk_p      [bs, num_steps], float: the probability of each draft
    topk_index  [bs, num_steps] int64: the drafts
    """

    topk_p: Tensor
    topk_index: Tensor


class NewState(NamedTuple):
    """A window that begins one position earlier; `num_new = num_old + bs`. Rows that belong to nobody are 0.

    input_ids         [num_new] int64
    positions         [num_new] int64
    hidden_states     [num_new, hidden_size]
    out_cache_loc     [num_new] int64
    extend_seq_lens   [bs] int32
    extend_start_loc  [bs] int32
    """

    input_ids: Tensor
    positions: Tensor
    hidden_states: Tensor
    out_cache_loc: Tensor
    extend_seq_lens: Tensor
    extend_start_loc: Tensor


class WidenedInputs(NamedTuple):
    """A window of `width = front + num_draft_tokens` rows for each request.

    input_ids      [bs * width] int64
    hidden_states  [bs * width, hidden_size]
    """

    input_ids: Tensor
    hidden_states: Tensor


def draft_extend_multi_layer(
    layers: Sequence[DraftLayer],
    input_ids: Tensor,
    hidden_states: Tensor,
    extend_start_loc: Tensor,
    extend_seq_lens: Tensor,
    select_index: Tensor,
    *,
    chain_hidden_states: bool = False,
) -> MultiLayerDraft:
    """Draft one token with each layer, step i with the KV pool and the attention metadata of layer i.

    layers               num_steps of them
    input_ids            [num_tokens] int64: the token after each position; does not change
    hidden_states        [num_tokens, hidden_size], float: the target model's
    extend_start_loc     [bs] int32: first row of each segment
    extend_seq_lens      [bs] int32: its rows, 1 or more
    select_index         [bs] int64: the row after which each request continues: the last accepted node, or the
                         last of a prompt
    chain_hidden_states  each layer continues the hidden states of the layer before; otherwise all read the target's

    Of equal probabilities the lowest token is drafted. Raises ValueError for no layers, empty or overlapping segments
    and a selected row outside its segment. Source: multi-token prediction as in SGLang's multi-layer EAGLE; PR #22954,
    which was to fix that all steps ran with what belongs to the first layer.
    """
    if validation.enabled():
        validation.require_scalar("num_steps (the number of layers)", len(layers), 1)
        _check_segments("extend_start_loc", extend_start_loc, extend_seq_lens, input_ids.shape[0], shortest=1)
        _check_selected(select_index, extend_start_loc, extend_seq_lens)
    input_ids = input_ids.clone()  # rotation is in place, and the caller still needs the tokens
    drafted_p, drafted = [], []
    for layer in layers:
        logits, next_hidden_states = layer.forward(input_ids, hidden_states, layer.kv_pool, layer.attn_metadata)
        probs = torch.softmax(logits[select_index], dim=-1)  # [bs, vocab_size]
        drafted.append(probs.argmax(dim=-1))  # [bs]
        drafted_p.append(probs.amax(dim=-1))  # [bs]
        rotate_input_ids(input_ids, extend_start_loc, extend_seq_lens, drafted[-1], select_index)
        if chain_hidden_states:
            hidden_states = next_hidden_states
    return MultiLayerDraft(torch.stack(drafted_p, dim=1), torch.stack(drafted, dim=1))


def rotate_input_ids(
    input_ids: Tensor, extend_start_loc: Tensor, extend_seq_lens: Tensor, topk_index: Tensor, select_index: Tensor
) -> None:
    """Move the tokens of each segment one place to the left, and put a new token into the selected row.

    input_ids         [num_tokens] int64, changed in place; rows that belong to nobody do not change
    extend_start_loc  [bs] int32: first row of each segment
    extend_seq_lens   [bs] int32: its rows; an empty segment gets no token
    topk_index        [bs] int64: the new tokens
    select_index      [bs] int64: the row of each new token, within its segment: the last one of a prompt, the last
                      accepted node after verification; not read for an empty segment

    A last row that is not selected keeps its token. Raises ValueError for overlapping segments, segments outside the
    tensor and selected rows outside their segment. Source: SGLang's multi-layer EAGLE worker.
    """
    if validation.enabled():
        _check_rotate(input_ids, extend_start_loc, extend_seq_lens, topk_index, select_index)
    request, within = ragged_segments(extend_seq_lens)  # [num_segment_rows], [num_segment_rows]
    row = (extend_start_loc[request] + within)[within > 0]
    input_ids[row - 1] = input_ids[row]  # indexing copies: all tokens are read first
    input_ids[select_index[extend_seq_lens > 0]] = topk_index[extend_seq_lens > 0]


def assign_hidden_states_pool(
    hidden_states: Tensor,
    req_pool_indices: Tensor,
    req_to_hidden_states_pool: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
) -> None:
    """Remember the last hidden states of each segment, for windows that begin before the next segment.

    hidden_states              [num_tokens, hidden_size], float
    req_pool_indices           [bs] int64, distinct
    req_to_hidden_states_pool  [pool_rows, pool_size, hidden_size], changed in place: row `req_pool_indices[b]` gets the
                               last `pool_size` states, oldest first; no other row changes
    extend_seq_lens            [bs] int32: rows of each segment, 1 or more
    extend_start_loc           [bs] int32: its first row

    Of a segment that is shorter than `pool_size`, the places before it are 0: never the end of another request's
    segment, which is what stands before it. Raises ValueError for rows outside the pool, duplicate rows and segments
    that are empty, overlap or leave the tensor. Source: SGLang's multi-layer EAGLE worker.
    """
    if validation.enabled():
        _check_pool(hidden_states, req_pool_indices, req_to_hidden_states_pool, extend_seq_lens, extend_start_loc)
    pool_size = req_to_hidden_states_pool.shape[1]
    kept, back = ragged_segments(extend_seq_lens.clamp(max=pool_size))  # [num_kept], [num_kept]
    source = (extend_start_loc + extend_seq_lens - 1)[kept] - back  # [num_kept], from the end of each segment
    req_to_hidden_states_pool[req_pool_indices] = 0
    req_to_hidden_states_pool[req_pool_indices[kept], pool_size - 1 - back] = hidden_states[source]


def assign_new_state(
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
    """The next layer's window: it begins one position earlier, which rotates the tokens without moving them.

    next_token_ids             [bs] int64: the tokens that the layer of `step` drafted
    old_input_ids              [num_old] int64, like the next three by segment: the token after each position
    old_positions              [num_old] int64
    old_hidden_states          [num_old, hidden_size], float
    old_out_cache_loc          [num_old] int64: slots
    old_extend_seq_lens        [bs] int32: rows of each segment, 1 or more
    old_extend_start_loc       [bs] int32: its first row
    seq_lens                   [bs] int64: one past the window's last position
    padding_lens               [bs] int32: rows after the selected one, 0 or more, fewer than the segment has
    step                       the layer that has run, 0 to `pool_size - 1`
    req_pool_indices           [bs] int64
    req_to_token               [pool_rows, pool_len] int32
    req_to_hidden_states_pool  [pool_rows, pool_size, hidden_size]: `assign_hidden_states_pool` of the tokens before

    Segment b has moved by b rows. Its first row is the position before the old window, at least 0: with the slot of
    that position from the page table, 0 (the padding sink) where the window began at position 0, and the hidden state
    `pool_size - 1 - step` of the pool. Tokens keep their place, so that each stands one position earlier; the new one
    goes to the selected row, and a last row that is not selected gets token 0. Raises ValueError for segments that are
    empty, overlap or leave the tensors, and for rows, lengths or steps outside the pools.
    Source: SGLang's multi-layer EAGLE draft-extend graph.
    """
    flat = (old_input_ids, old_positions, old_hidden_states, old_out_cache_loc)
    old, pool = NewState(*flat, old_extend_seq_lens, old_extend_start_loc), req_to_hidden_states_pool
    if validation.enabled():
        _check_new_state(old, seq_lens, padding_lens, step, req_pool_indices, req_to_token, pool)
    bs = seq_lens.shape[0]
    request, within = ragged_segments(old_extend_seq_lens)  # [num_segment_rows], [num_segment_rows]
    old_row = old_extend_start_loc[request] + within
    extend_start_loc = old_extend_start_loc + torch.arange(bs, dtype=torch.int32, device=seq_lens.device)  # [bs]

    def moved(values: Tensor, by: int) -> Tensor:
        new = values.new_zeros(values.shape[0] + bs, *values.shape[1:])
        new[old_row + request + by] = values[old_row]
        return new

    input_ids, positions = moved(old_input_ids, 0), moved(old_positions, 1)
    hidden_states, out_cache_loc = moved(old_hidden_states, 1), moved(old_out_cache_loc, 1)
    input_ids[extend_start_loc + old_extend_seq_lens - padding_lens] = next_token_ids
    positions[extend_start_loc] = (old_positions[old_extend_start_loc] - 1).clamp(min=0)
    hidden_states[extend_start_loc] = pool[req_pool_indices, pool.shape[1] - 1 - step]
    column = seq_lens - old_extend_seq_lens - 1  # [bs], -1 before the first position
    slot = req_to_token[req_pool_indices, column.clamp(min=0)].to(torch.int64)
    out_cache_loc[extend_start_loc] = torch.where(column >= 0, slot, 0)
    return NewState(input_ids, positions, hidden_states, out_cache_loc, old_extend_seq_lens + 1, extend_start_loc)


def stash_append_boundary_state(
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
    """Roll each request's stash forward over new certain rows: place j is position `end - front + j`.

    src_tokens        [num_rows] int64: the token after each position, of prompts or of verified nodes
    src_hiddens       [num_rows, hidden_size], float
    src_row_ends      [bs] int64: one past the last certain row of each request
    num_available     [bs] int32: certain rows before it, 0 or more
    req_pool_indices  [bs] int64, distinct
    stash_tokens      [pool_rows, front] int64, like the next two changed in place, in rows `req_pool_indices[b]` alone
    stash_hiddens     [pool_rows, front, hidden_size]
    stash_valid_lens  [pool_rows] int32: places that hold something, the last ones
    set_valid         1: what the stash held belonged to another request (prefill), only new rows are valid;
                      0: the request goes on

    The stash drops its oldest `min(num_available, front)` places and gets as many new rows, the newest last. Raises
    ValueError for rows outside source and stash, duplicate rows, and lengths outside their bounds.
    Source: SGLang's multi-layer EAGLE, with boundary KV.
    """
    if validation.enabled():
        _check_append(src_tokens, src_row_ends, num_available, set_valid)
        _check_stash(stash_tokens, stash_valid_lens, req_pool_indices, src_row_ends.shape[0], distinct=True)
    front = stash_tokens.shape[1]
    taken = num_available.clamp(max=front)  # [bs]
    place = torch.arange(front, device=taken.device)  # [front]
    fresh = place >= front - taken[:, None]  # [bs, front]
    moved = (place + taken[:, None]).clamp(max=front - 1)  # [bs, front]: the place that a kept row comes from
    source = (src_row_ends[:, None] - front + place)[fresh]  # [num_fresh]
    tokens = stash_tokens[req_pool_indices[:, None], moved]  # [bs, front]
    hiddens = stash_hiddens[req_pool_indices[:, None], moved]  # [bs, front, hidden_size]
    tokens[fresh], hiddens[fresh] = src_tokens[source], src_hiddens[source]
    stash_tokens[req_pool_indices], stash_hiddens[req_pool_indices] = tokens, hiddens
    before = 0 if set_valid else stash_valid_lens[req_pool_indices]
    stash_valid_lens[req_pool_indices] = (taken + before).clamp(max=front)


def fill_widened_draft_extend_inputs(
    predict: Tensor,
    verify_hiddens: Tensor,
    stash_tokens: Tensor,
    stash_hiddens: Tensor,
    stash_valid_lens: Tensor,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    num_draft_tokens: int,
) -> WidenedInputs:
    """Put the stash in front of the verified nodes, so that each window begins `front` positions earlier.

    predict           [bs * num_draft_tokens] int32: the token after each node
    verify_hiddens    [bs * num_draft_tokens, hidden_size], float: the target model's hidden state of each node
    stash_tokens      [pool_rows, front] int64
    stash_hiddens     [pool_rows, front, hidden_size]
    stash_valid_lens  [pool_rows] int32: places of the stash that hold something, the last ones; 0 to `front`
    seq_lens          [bs] int64: tokens before the nodes
    req_pool_indices  [bs] int64
    num_draft_tokens  nodes a request, in a chain

    Rows in front that the stash does not hold, or whose position would be negative, are 0, whatever the stash has
    there. Raises ValueError for rows outside the stash and for lengths outside their bounds.
    Source: SGLang's multi-layer EAGLE, with boundary KV.
    """
    if validation.enabled():
        _check_widen(predict, seq_lens, num_draft_tokens)
        _check_stash(stash_tokens, stash_valid_lens, req_pool_indices, seq_lens.shape[0], distinct=False)
    front, hidden_size = stash_hiddens.shape[1:]
    held = torch.minimum(stash_valid_lens[req_pool_indices], seq_lens)  # [bs]
    valid = torch.arange(front, device=held.device) >= front - held[:, None]  # [bs, front]
    tokens = torch.where(valid, stash_tokens[req_pool_indices], 0)
    hiddens = torch.where(valid[:, :, None], stash_hiddens[req_pool_indices], 0)
    input_ids = torch.cat([tokens, predict.view(-1, num_draft_tokens)], dim=1)  # [bs, width]
    hidden_states = torch.cat([hiddens, verify_hiddens.view(-1, num_draft_tokens, hidden_size)], dim=1)
    return WidenedInputs(input_ids.flatten(), hidden_states.flatten(0, 1))


def _check_segments(name: str, starts: Tensor, lens: Tensor, num_tokens: int, shortest: int) -> None:
    validation.require_tensor(name, starts, torch.int32, bs=None)
    validation.require_tensor("extend_seq_lens", lens, torch.int32, bs=starts.shape[0])
    validation.require_all(lens >= shortest, "extend_seq_lens", lens, f"{shortest} or more")
    ends = torch.cat([starts.new_zeros(1), starts + lens])  # [bs + 1], of the segment before
    fits = (starts >= ends[:-1]) & (ends[1:] <= num_tokens)
    validation.require_all(fits, name, starts, f"not before the end of the segment before, and ending by {num_tokens}")


def _check_selected(select_index: Tensor, starts: Tensor, lens: Tensor) -> None:
    validation.require_tensor("select_index", select_index, torch.int64, bs=starts.shape[0])
    within = (select_index >= starts) & (select_index < starts + lens)
    validation.require_all(within | (lens == 0), "select_index", select_index, "a row of the request's segment")


def _check_rotate(ids: Tensor, starts: Tensor, lens: Tensor, topk_index: Tensor, select_index: Tensor) -> None:
    validation.require_tensor("input_ids", ids, torch.int64, num_tokens=None)
    _check_segments("extend_start_loc", starts, lens, ids.shape[0], shortest=0)
    _check_selected(select_index, starts, lens)
    validation.require_tensor("topk_index", topk_index, torch.int64, bs=starts.shape[0])


def _check_pool_rows(rows: Tensor, pool_rows: int, bs: int, *, distinct: bool) -> None:
    validation.require_tensor("req_pool_indices", rows, torch.int64, bs=bs)
    validation.require_between("req_pool_indices", rows, 0, pool_rows - 1)
    if distinct:
        validation.require_distinct("req_pool_indices", rows)


def _check_pool(states: Tensor, rows: Tensor, pool: Tensor, lens: Tensor, starts: Tensor) -> None:
    validation.require_tensor("hidden_states", states, pool.dtype, num_tokens=None, hidden_size=pool.shape[2])
    _check_segments("extend_start_loc", starts, lens, states.shape[0], shortest=1)
    _check_pool_rows(rows, pool.shape[0], starts.shape[0], distinct=True)


def _check_new_state(
    old: NewState, seq_lens: Tensor, padding: Tensor, step: int, rows: Tensor, table: Tensor, pool: Tensor
) -> None:
    lens, num_old = old.extend_seq_lens, old.input_ids.shape[0]
    _check_segments("old_extend_start_loc", old.extend_start_loc, lens, num_old, shortest=1)
    validation.require_tensor("old_positions", old.positions, torch.int64, num_old=num_old)
    validation.require_tensor("old_out_cache_loc", old.out_cache_loc, torch.int64, num_old=num_old)
    validation.require_tensor("old_hidden_states", old.hidden_states, pool.dtype, num_old=num_old, hidden_size=None)
    validation.require_scalar("step", step, 0, pool.shape[1] - 1)
    _check_pool_rows(rows, min(table.shape[0], pool.shape[0]), lens.shape[0], distinct=False)
    few = (padding >= 0) & (padding < lens)
    validation.require_all(few, "padding_lens", padding, "0 or more, fewer than the segment has rows")
    fits = (seq_lens >= lens) & (seq_lens - lens <= table.shape[1])
    validation.require_all(fits, "seq_lens", seq_lens, "no fewer than the segment has rows, its first row on the table")


def _check_stash(stash_tokens: Tensor, valid_lens: Tensor, rows: Tensor, bs: int, *, distinct: bool) -> None:
    validation.require_tensor("stash_tokens", stash_tokens, torch.int64, pool_rows=None, front=None)
    _check_pool_rows(rows, stash_tokens.shape[0], bs, distinct=distinct)
    validation.require_tensor("stash_valid_lens", valid_lens, torch.int32, pool_rows=stash_tokens.shape[0])
    validation.require_between("stash_valid_lens", valid_lens, 0, stash_tokens.shape[1])


def _check_append(src_tokens: Tensor, ends: Tensor, available: Tensor, set_valid: int) -> None:
    validation.require_scalar("set_valid", set_valid, 0, 1)
    validation.require_tensor("src_tokens", src_tokens, torch.int64, num_rows=None)
    validation.require_tensor("src_row_ends", ends, torch.int64, bs=None)
    validation.require_between("src_row_ends", ends, 0, src_tokens.shape[0])
    validation.require_tensor("num_available", available, torch.int32, bs=ends.shape[0])
    validation.require_all((available >= 0) & (available <= ends), "num_available", available, "0 to src_row_ends")


def _check_widen(predict: Tensor, seq_lens: Tensor, num_draft_tokens: int) -> None:
    validation.require_scalar("num_draft_tokens", num_draft_tokens, 1)
    validation.require_tensor("seq_lens", seq_lens, torch.int64, bs=None)
    validation.require_all(seq_lens >= 0, "seq_lens", seq_lens, "0 or more")
    validation.require_tensor("predict", predict, torch.int32, num_nodes=seq_lens.shape[0] * num_draft_tokens)
