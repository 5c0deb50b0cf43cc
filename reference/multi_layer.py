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
from specsim.reference.argument_tables import contract, fields
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


@fields(
    """
    topk_p      [bs, num_steps] float: the probability of each draft
    topk_index  [bs, num_steps] int64: the drafts
    """
)
class MultiLayerDraft(NamedTuple):
    """The drafts of the next step, one column for each layer."""

    topk_p: Tensor
    topk_index: Tensor


@fields(
    """
    input_ids         [num_new = num_old + bs] int64, prefilled with 0: old tokens in their places, the new one in the
                      selected row; 0 in a last row that is not selected and in rows that belong to nobody
    positions         [num_new] int64, prefilled with 0: the position before the window, at least 0, then the old ones;
                      0 in rows that belong to nobody
    hidden_states     [num_new, hidden_size] any, prefilled with 0: state pool_size - 1 - step of the pool, then the old
                      ones; 0 in rows that belong to nobody
    out_cache_loc     [num_new] int64, prefilled with 0: slot of the position before the window, 0 without one, then the
                      old ones; 0 in rows that belong to nobody
    extend_seq_lens   [bs] int32: one row more than before
    extend_start_loc  [bs] int32: b rows later than before
    """
)
class NewState(NamedTuple):
    """A window that begins one position earlier; `num_new = num_old + bs`. Rows that belong to nobody are 0."""

    input_ids: Tensor
    positions: Tensor
    hidden_states: Tensor
    out_cache_loc: Tensor
    extend_seq_lens: Tensor
    extend_start_loc: Tensor


@fields(
    """
    input_ids      [num_window = bs * (front + num_draft_tokens)] int64: front tokens of the stash a request, 0 where it
                   holds none or the position is negative, then those of the nodes
    hidden_states  [num_window, hidden_size] any: hidden states in the same order
    """
)
class WidenedInputs(NamedTuple):
    """A window of `width = front + num_draft_tokens` rows for each request."""

    input_ids: Tensor
    hidden_states: Tensor


@contract(
    """
    input_ids         [num_tokens] int64: the token after each position; does not change
    hidden_states     [num_tokens, hidden_size] any: the target model's
    extend_start_loc  [bs] int32: first row of each segment, in order
    extend_seq_lens   [bs] int32, 1 or more: rows of each segment
    select_index      [bs] int64: the row after which each request continues: the last accepted node, or the last of a
                      prompt
    -> MultiLayerDraft
    """
)
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
    chain_hidden_states  each layer continues the hidden states of the layer before; otherwise all read the target's

    Of equal probabilities the lowest token is drafted. Raises ValueError for no layers, empty or overlapping segments
    and a selected row outside its segment. Source: multi-token prediction as in SGLang's multi-layer EAGLE; PR #22954,
    which was to fix that all steps ran with what belongs to the first layer.
    """
    if validation.enabled():
        validation.require_scalar("num_steps (the number of layers)", len(layers), 1)
        _check_segments("extend_start_loc", extend_start_loc, extend_seq_lens, input_ids.shape[0])
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


@contract(
    """
    input_ids         [num_tokens] int64, changed in place: tokens by segment; rows that belong to nobody and last rows
                      that are not selected do not change
    extend_start_loc  [bs] int32: first row of each segment, in order
    extend_seq_lens   [bs] int32, 0 or more: rows of each segment; an empty one gets no token
    topk_index        [bs] int64: the new tokens
    select_index      [bs] int64: row of each new token, within its segment: the last one of a prompt, the last accepted
                      node after verification; not read for an empty segment
    """
)
def rotate_input_ids(
    input_ids: Tensor, extend_start_loc: Tensor, extend_seq_lens: Tensor, topk_index: Tensor, select_index: Tensor
) -> None:
    """Move the tokens of each segment one place to the left, and put a new token into the selected row.

    A last row that is not selected keeps its token. Raises ValueError for overlapping segments, segments outside the
    tensor and selected rows outside their segment. Source: SGLang's multi-layer EAGLE worker.
    """
    if validation.enabled():
        _check_segments("extend_start_loc", extend_start_loc, extend_seq_lens, input_ids.shape[0])
        _check_selected(select_index, extend_start_loc, extend_seq_lens)
    request, within = ragged_segments(extend_seq_lens)  # [num_segment_rows], [num_segment_rows]
    row = (extend_start_loc[request] + within)[within > 0]
    input_ids[row - 1] = input_ids[row]  # indexing copies: all tokens are read first
    input_ids[select_index[extend_seq_lens > 0]] = topk_index[extend_seq_lens > 0]


@contract(
    """
    hidden_states              [num_tokens, hidden_size] any: a row for each token
    req_pool_indices           [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    req_to_hidden_states_pool  [pool_rows, pool_size, hidden_size] any, changed in place: the last pool_size hidden
                               states of each row's request, oldest first; 0 where there were fewer
    extend_seq_lens            [bs] int32, 1 or more: rows of each segment
    extend_start_loc           [bs] int32: first row of each segment, in order
    """
)
def assign_hidden_states_pool(
    hidden_states: Tensor,
    req_pool_indices: Tensor,
    req_to_hidden_states_pool: Tensor,
    extend_seq_lens: Tensor,
    extend_start_loc: Tensor,
) -> None:
    """Remember the last hidden states of each segment, for windows that begin before the next segment.

    Of a segment that is shorter than `pool_size`, the places before it are 0: never the end of another request's
    segment, which is what stands before it. Raises ValueError for rows outside the pool, duplicate rows and segments
    that are empty, overlap or leave the tensor. Source: SGLang's multi-layer EAGLE worker.
    """
    if validation.enabled():
        validation.require_dtype("hidden_states", hidden_states, (req_to_hidden_states_pool.dtype,))
        validation.require_distinct("req_pool_indices", req_pool_indices)
        _check_segments("extend_start_loc", extend_start_loc, extend_seq_lens, hidden_states.shape[0])
    pool_size = req_to_hidden_states_pool.shape[1]
    kept, back = ragged_segments(extend_seq_lens.clamp(max=pool_size))  # [num_kept], [num_kept]
    source = (extend_start_loc + extend_seq_lens - 1)[kept] - back  # [num_kept], from the end of each segment
    req_to_hidden_states_pool[req_pool_indices] = 0
    req_to_hidden_states_pool[req_pool_indices[kept], pool_size - 1 - back] = hidden_states[source]


@contract(
    """
    next_token_ids             [bs] int64: the tokens that the layer of step drafted
    old_input_ids              [num_old] int64: token after each position, by segment
    old_positions              [num_old] int64: positions, by segment
    old_hidden_states          [num_old, hidden_size] any: by segment
    old_out_cache_loc          [num_old] int64: slots, by segment
    old_extend_seq_lens        [bs] int32, 1 or more: rows of each segment
    old_extend_start_loc       [bs] int32: first row of each segment, in order
    seq_lens                   [bs] int64: one past the window's last position
    padding_lens               [bs] int32: rows after the selected one
    req_pool_indices           [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    req_to_token               [pool_rows, pool_len] int32: KV slot by row and column
    req_to_hidden_states_pool  [pool_rows, pool_size, hidden_size] any: the last pool_size hidden states of each row's
                               request, oldest first; 0 where there were fewer
    -> NewState
    step                       int: the layer that has run, 0 to pool_size - 1
    """
)
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
        validation.require_dtype("old_hidden_states", old_hidden_states, (pool.dtype,))
        validation.require_scalar("step", step, 0, pool.shape[1] - 1)
        _check_new_state(old, seq_lens, padding_lens, req_to_token.shape[1])
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


@contract(
    """
    src_tokens        [num_src_rows] int64: token after each position, of prompts or of verified nodes
    src_hiddens       [num_src_rows, hidden_size] any: hidden state of each
    src_row_ends      [bs] int64, 0 to num_src_rows: one past the last certain row of each request
    num_available     [bs] int32: certain rows before it, 0 or more
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    stash_tokens      [pool_rows, front] int64, changed in place: token after each of the last positions
    stash_hiddens     [pool_rows, front, hidden_size] any, changed in place: hidden state of each of the last positions
    stash_valid_lens  [pool_rows] int32, 0 to front, changed in place: places that hold something, the last ones
    set_valid         int, 0 to 1: 1: the stash held another request (prefill), only new rows are valid; 0: the request
                      goes on
    """
)
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

    The stash drops its oldest `min(num_available, front)` places and gets as many new rows, the newest last. Raises
    ValueError for rows outside source and stash, duplicate rows, and lengths outside their bounds.
    Source: SGLang's multi-layer EAGLE, with boundary KV.
    """
    if validation.enabled():
        _check_append(src_row_ends, num_available, req_pool_indices)
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


@contract(
    """
    predict           [num_nodes = bs * num_draft_tokens] int32: token that follows each node
    verify_hiddens    [num_nodes, hidden_size] any: the target model's hidden state of each node
    stash_tokens      [pool_rows, front] int64: token after each of the last positions
    stash_hiddens     [pool_rows, front, hidden_size] any: hidden state of each of the last positions
    stash_valid_lens  [pool_rows] int32, 0 to front: places that hold something, the last ones
    seq_lens          [bs] int64, 0 or more: tokens before the nodes
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    -> WidenedInputs
    num_draft_tokens  int, 1 or more: nodes a request, in a chain
    """
)
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

    Rows in front that the stash does not hold, or whose position would be negative, are 0, whatever the stash has
    there. Raises ValueError for rows outside the stash and for lengths outside their bounds.
    Source: SGLang's multi-layer EAGLE, with boundary KV.
    """
    front, hidden_size = stash_hiddens.shape[1:]
    held = torch.minimum(stash_valid_lens[req_pool_indices], seq_lens)  # [bs]
    valid = torch.arange(front, device=held.device) >= front - held[:, None]  # [bs, front]
    tokens = torch.where(valid, stash_tokens[req_pool_indices], 0)
    hiddens = torch.where(valid[:, :, None], stash_hiddens[req_pool_indices], 0)
    input_ids = torch.cat([tokens, predict.view(-1, num_draft_tokens)], dim=1)  # [bs, width]
    hidden_states = torch.cat([hiddens, verify_hiddens.view(-1, num_draft_tokens, hidden_size)], dim=1)
    return WidenedInputs(input_ids.flatten(), hidden_states.flatten(0, 1))


def _check_segments(name: str, starts: Tensor, lens: Tensor, num_tokens: int) -> None:
    ends = torch.cat([starts.new_zeros(1), starts + lens])  # [bs + 1], of the segment before
    fits = (starts >= ends[:-1]) & (ends[1:] <= num_tokens)
    validation.require_all(fits, name, starts, f"not before the end of the segment before, and ending by {num_tokens}")


def _check_selected(select_index: Tensor, starts: Tensor, lens: Tensor) -> None:
    within = (select_index >= starts) & (select_index < starts + lens)
    validation.require_all(within | (lens == 0), "select_index", select_index, "a row of the request's segment")


def _check_new_state(old: NewState, seq_lens: Tensor, padding: Tensor, pool_len: int) -> None:
    lens = old.extend_seq_lens
    _check_segments("old_extend_start_loc", old.extend_start_loc, lens, old.input_ids.shape[0])
    few = (padding >= 0) & (padding < lens)
    validation.require_all(few, "padding_lens", padding, "0 or more, fewer than the segment has rows")
    fits = (seq_lens >= lens) & (seq_lens - lens <= pool_len)
    validation.require_all(fits, "seq_lens", seq_lens, "no fewer than the segment has rows, its first row on the table")


def _check_append(ends: Tensor, available: Tensor, req_pool_indices: Tensor) -> None:
    validation.require_all((available >= 0) & (available <= ends), "num_available", available, "0 to src_row_ends")
    validation.require_distinct("req_pool_indices", req_pool_indices)
