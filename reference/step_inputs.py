"""Inputs of a step, and what follows it, as engines prepare them whose requests are rows of state on the device.

A batch has `bs` requests; `idx_mapping` says which row of the state, one of `max_num_reqs`, each of them has. The
tokens of a batch lie one request after the other: those of request b from `query_start_loc[b]` on, up to that of the
next one. The rows of logits lie likewise, from `cu_num_logits[b]` on: one for the token that the request goes on with,
if it has one, then one for each draft. A request prefills until `prefill_len` of its tokens are computed, and samples
from then on.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields
from specsim.reference.cache_locs import ragged_segments

PLACEHOLDER = -1  # a draft that must not be verified
NO_ROW = -1  # of a request that is left alone
NO_SLOT = -1


@fields(
    """
    expanded_idx_mapping  [num_logits] int32: the row of the request that a row of logits is of
    expanded_local_pos    [num_logits] int32: its number among the rows of logits of that request
    """
)
class ExpandedRows(NamedTuple):
    """Which request each row of logits is of, and which of its rows [num_logits] int32."""

    expanded_idx_mapping: Tensor
    expanded_local_pos: Tensor


@fields(
    """
    positions  [num_tokens] int64: of each token in its request
    seq_lens   [max_num_reqs] int32: tokens of each request behind the step; 0 behind the batch
    """
)
class Positions(NamedTuple):
    """The positions of a batch's tokens [num_tokens] int64, and the lengths of its requests [max_num_reqs] int32."""

    positions: Tensor
    seq_lens: Tensor


@fields(
    """
    draft_sampled  [num_logits] int32: the token that each row of logits is behind; -1 for a draft that was not proposed
    pos            [num_logits] int64: its position
    """
)
class GatheredDrafts(NamedTuple):
    """The tokens that are verified [num_logits] int32, and their positions [num_logits] int64."""

    draft_sampled: Tensor
    pos: Tensor


@contract(
    """
    idx_mapping    [bs] int32, 0 or more: row of each request's state
    cu_num_logits  [num_starts] int32: where each request's rows of logits start, and the last ones end
    -> ExpandedRows
    """
)
def expand_idx_mapping(idx_mapping: Tensor, cu_num_logits: Tensor) -> ExpandedRows:
    """Say of each row of logits whose it is.

    Raises ValueError for starts that fall. Source: vLLM's V2 model runner.
    """
    owner, place = owners_of(cu_num_logits, "cu_num_logits")
    return ExpandedRows(idx_mapping[owner], place.to(torch.int32))


@contract(
    """
    input_ids             [num_tokens] int32, changed in place: tokens of the batch; those of requests that prefill are
                          written
    next_prefill_tokens   [num_lookahead, max_num_reqs] int32, changed in place: the tokens behind the step, of requests
                          that prefill; undefined where the prompt has none
    idx_mapping           [bs] int32, 0 or more: row of each request's state
    query_start_loc       [num_starts] int32: where each request's tokens start, and the last ones end
    all_token_ids         [max_num_reqs, max_model_len] int32: tokens of each request
    prefill_len           [max_num_reqs] int32: tokens that each request has to prefill
    num_computed_tokens   [max_num_reqs] int32, 0 or more: tokens of each request before the step
    """
)
def prepare_prefill_inputs(
    input_ids: Tensor,
    next_prefill_tokens: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    all_token_ids: Tensor,
    prefill_len: Tensor,
    num_computed_tokens: Tensor,
) -> None:
    """Copy the tokens of requests that prefill, and those that follow, which a draft model reads one step ahead.

    A request is left alone when all that it has to prefill was computed. Raises ValueError for starts that fall.
    Source: vLLM's V2 model runner.
    """
    owner, place = owners_of(query_start_loc, "query_start_loc")
    row = idx_mapping.long()
    computed, prefills = num_computed_tokens[row].long(), num_computed_tokens[row] < prefill_len[row]  # [bs]
    source = all_token_ids[row[owner], (computed[owner] + place).clamp(max=all_token_ids.shape[1] - 1)]
    count = owner.shape[0]
    input_ids[:count] = torch.where(prefills[owner], source, input_ids[:count])
    ahead = torch.arange(next_prefill_tokens.shape[0], device=row.device)[:, None]  # [num_lookahead, 1]
    at = (computed + query_start_loc.diff()).long() + ahead  # [num_lookahead, bs]
    following = all_token_ids[row, at.clamp(max=all_token_ids.shape[1] - 1)]
    following = torch.where(at < prefill_len[row], following, 0)
    next_prefill_tokens[:, row] = torch.where(prefills, following, next_prefill_tokens[:, row])


@contract(
    """
    idx_mapping          [bs] int32, 0 or more: row of each request's state
    query_start_loc      [num_starts] int32: where each request's tokens start, and the last ones end
    num_computed_tokens  [max_num_reqs] int32, 0 or more: tokens of each request before the step
    -> Positions
    """
)
def prepare_pos_seq_lens(idx_mapping: Tensor, query_start_loc: Tensor, num_computed_tokens: Tensor) -> Positions:
    """Positions of a batch's tokens, and the lengths that its requests have with them.

    Raises ValueError for starts that fall. Source: vLLM's V2 model runner.
    """
    owner, place = owners_of(query_start_loc, "query_start_loc")
    computed = num_computed_tokens[idx_mapping.long()]
    seq_lens = torch.zeros_like(num_computed_tokens)
    seq_lens[: computed.shape[0]] = computed + query_start_loc.diff()
    return Positions(computed[owner] + place, seq_lens)


@contract(
    """
    input_ids               [num_tokens] int32, changed in place: tokens of the batch; those that were sampled or
                            drafted are written
    idx_mapping             [bs] int32, 0 or more: row of each request's state
    last_sampled_tokens     [max_num_reqs] int64: the token that each request goes on with
    query_start_loc         [num_starts] int32: where each request's tokens start, and the last ones end
    seq_lens                [bs] int32: tokens of each request with those of the step
    prefill_len             [max_num_reqs] int32: tokens that each request has to prefill
    draft_tokens            [max_num_reqs, num_steps] int64: the drafts of each request
    cu_num_logits           [num_starts] int32: where each request's rows of logits start, and the last ones end
    num_new_sampled_tokens  int, 0 to 1: rows of logits of a request that are no drafts'
    -> logits_indices       [num_logits] int64: the token that each row of logits is behind
    """
)
def combine_sampled_and_draft_tokens(
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
    """Put the token that a request goes on with, and its drafts, at its last places, and say where logits are read.

    Nothing is put where a request is not beyond what it has to prefill, and no sampled token where the first row of
    logits is behind a token of the prompt: drafts may follow the prompt at once. Raises ValueError for starts that
    fall. Source: vLLM's V2 model runner; a prompt's last token that stays: vLLM 0.25.0.
    """
    owner, place = owners_of(cu_num_logits, "cu_num_logits")
    row, counts = idx_mapping.long(), cu_num_logits.diff()
    at = ((query_start_loc[1:] - counts)[owner] + place).long()
    is_new = place < num_new_sampled_tokens
    column = (place - num_new_sampled_tokens).clamp(min=0, max=draft_tokens.shape[1] - 1)
    tokens = torch.where(is_new, last_sampled_tokens[row[owner]], draft_tokens[row[owner], column])
    samples = seq_lens > prefill_len[row]  # [bs]
    goes_on = seq_lens - counts >= prefill_len[row]
    writes = samples[owner] & (~is_new | goes_on[owner])
    input_ids[at[writes]] = tokens[writes].to(torch.int32)
    return at


@contract(
    """
    input_ids             [num_tokens] int32: tokens of the batch
    positions             [num_tokens] int64: their positions
    logits_indices        [num_logits] int64, 0 to num_tokens - 1: the token that each row of logits is behind
    expanded_idx_mapping  [num_logits] int32, 0 or more: row of the state of the request that it is of
    expanded_local_pos    [num_logits] int32, 0 or more: its number among the rows of logits of that request
    prefill_len           [max_num_reqs] int32: tokens that each request has to prefill
    -> GatheredDrafts
    """
)
def gather_draft_sampled(
    input_ids: Tensor,
    positions: Tensor,
    logits_indices: Tensor,
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    prefill_len: Tensor,
) -> GatheredDrafts:
    """The tokens that are verified: of a step that begins within the prompt no draft was proposed.

    Source: vLLM's V2 rejection sampler.
    """
    pos, tokens = positions[logits_indices], input_ids[logits_indices]
    begins_within = pos - expanded_local_pos < prefill_len[expanded_idx_mapping.long()]
    return GatheredDrafts(torch.where((expanded_local_pos > 0) & begins_within, PLACEHOLDER, tokens), pos)


@contract(
    """
    sampled          [bs, accept_width] int64: what each request sampled, then anything
    num_sampled      [bs] int32: how many tokens that is
    cu_num_logits    [num_starts] int32: where each request's rows of logits start, and the last ones end
    -> flat_sampled  [num_logits] int64, prefilled with 0: the tokens, request by request, then 0
    """
)
def flatten_sampled(sampled: Tensor, num_sampled: Tensor, cu_num_logits: Tensor) -> Tensor:
    """Lay what was sampled out as the rows of logits are.

    Raises ValueError for starts that fall. Source: vLLM's V2 rejection sampler.
    """
    owner, place = owners_of(cu_num_logits, "cu_num_logits")
    tokens = sampled[owner, place.clamp(max=sampled.shape[1] - 1)]
    return torch.where(place < num_sampled[owner], tokens, 0)


@contract(
    """
    num_sampled      [bs] int32, changed in place: tokens that each request sampled; 0 where it goes on with its prompt
    seq_lens         [bs] int32: tokens of each request with those of the step
    cu_num_logits    [num_starts] int32: where each request's rows of logits start, and the last ones end
    idx_mapping      [bs] int32, 0 or more: row of each request's state
    prefill_len      [max_num_reqs] int32: tokens that each request has to prefill
    -> num_rejected  [bs] int32: drafts that were rejected; 0 where a request goes on with its prompt
    """
)
def get_num_sampled_and_rejected(
    num_sampled: Tensor, seq_lens: Tensor, cu_num_logits: Tensor, idx_mapping: Tensor, prefill_len: Tensor
) -> Tensor:
    """How many tokens each request keeps, and how many of its drafts it does not.

    A request that has some of its prompt left keeps nothing of what was sampled behind this chunk. Raises ValueError
    for starts that fall. Source: vLLM's V2 model runner.
    """
    if validation.enabled():
        _check_rising("cu_num_logits", cu_num_logits)
    goes_on = seq_lens < prefill_len[idx_mapping.long()]
    num_sampled.copy_(torch.where(goes_on, 0, num_sampled))
    return torch.where(goes_on, 0, cu_num_logits.diff() - num_sampled)


@contract(
    """
    idx_mapping          [bs] int32, -1 or more: row of each request's state; -1 for one that is left alone
    num_computed_tokens  [max_num_reqs] int32, changed in place: the tokens of the step more, less rejected drafts
    last_sampled_tokens  [max_num_reqs] int64, changed in place: the token that each request goes on with
    output_bin_counts    [max_num_reqs, vocab_size] int32, changed in place: how often each request sampled each token
    sampled_tokens       [bs, accept_width] int64: what each request sampled, then anything
    num_sampled          [bs] int32, 0 to accept_width: how many tokens that is
    num_rejected         [bs] int32: drafts that were rejected
    query_start_loc      [num_starts] int32: where each request's tokens start, and the last ones end
    all_token_ids        [max_num_reqs, max_model_len] int32, changed in place: tokens of each request
    total_len            [max_num_reqs] int32, changed in place: how many they are
    """
)
def post_update(
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
    """Append what was sampled to the state of its requests.

    Raises ValueError for starts that fall, and tokens behind the end of a row. Source: vLLM's V2 model runner.
    """
    if validation.enabled():
        _check_rising("query_start_loc", query_start_loc)
        room = all_token_ids.shape[1] - total_len[idx_mapping.clamp(min=0).long()]
        validation.require_all(num_sampled <= room, "num_sampled", num_sampled, "as many as a row has room for")
    has_row = idx_mapping != NO_ROW
    row = idx_mapping[has_row].long()
    delta = (query_start_loc.diff() - num_rejected)[has_row]
    num_computed_tokens.index_add_(0, row, delta.to(num_computed_tokens.dtype))
    counts, tokens = num_sampled[has_row].long(), sampled_tokens[has_row]
    owner = torch.arange(row.shape[0], device=row.device).repeat_interleave(counts)  # of each sampled token
    place = torch.arange(owner.shape[0], device=row.device) - (counts.cumsum(0) - counts)[owner]
    kept = tokens[owner, place]
    all_token_ids[row[owner], total_len[row[owner]] + place] = kept.to(torch.int32)
    output_bin_counts.index_put_((row[owner], kept), torch.ones_like(kept, dtype=torch.int32), accumulate=True)
    samples = counts > 0
    last_sampled_tokens[row[samples]] = tokens[samples, counts[samples] - 1]
    total_len.index_add_(0, row, counts.to(total_len.dtype))


@contract(
    """
    idx_mapping          [bs] int32, 0 or more: row of each request's state
    num_computed_tokens  [max_num_reqs] int32, changed in place: the tokens of the step more
    query_start_loc      [num_starts] int32: where each request's tokens start, and the last ones end
    """
)
def post_update_num_computed_tokens(idx_mapping: Tensor, num_computed_tokens: Tensor, query_start_loc: Tensor) -> None:
    """Count the tokens of a step that samples nothing.

    Raises ValueError for starts that fall. Source: vLLM's V2 model runner.
    """
    if validation.enabled():
        _check_rising("query_start_loc", query_start_loc)
    num_computed_tokens.index_add_(0, idx_mapping.long(), query_start_loc.diff())


@contract(
    """
    idx_mapping            [bs] int32, 0 or more: row of each request's state
    block_tables           [num_groups, max_num_reqs, max_num_blocks] int32: blocks of each request, in each group of
                           layers
    num_blocks             [num_groups, max_num_reqs] int32, 0 to max_num_blocks: how many blocks that is
    num_computed_tokens    [max_num_reqs] int32, 0 or more: tokens of each request before the step
    sliding_window_reach   [num_groups] int32, 0 or more: tokens before the first one of the step that its attention
                           reads; 0 for all
    block_sizes            [num_groups] int32, 1 or more: tokens of a block
    padded_bs              int: requests of a captured batch, at least bs
    -> input_block_tables  [num_groups, padded_bs, max_num_blocks] int32: blocks of each request of the batch; 0 for
                           those that the step cannot read, and in rows behind the batch; undefined behind its blocks
    """
)
def gather_block_tables(
    idx_mapping: Tensor,
    block_tables: Tensor,
    num_blocks: Tensor,
    num_computed_tokens: Tensor,
    sliding_window_reach: Tensor,
    block_sizes: Tensor,
    padded_bs: int,
) -> Tensor:
    """The block tables of a batch. A block of which a window needs no token may be another request's: it is 0.

    Raises ValueError for batches out of range. Source: vLLM's V2 model runner; blocks that are 0: vLLM 0.33.0.
    """
    bs, row = idx_mapping.shape[0], idx_mapping.long()
    if validation.enabled():
        validation.require_scalar("padded_bs", padded_bs, bs)
    behind = (num_computed_tokens[row] - sliding_window_reach[:, None]).clamp(min=0) // block_sizes[:, None]  # [G, bs]
    num_null = torch.where(sliding_window_reach[:, None] > 0, behind, 0)[:, :, None]
    column = torch.arange(block_tables.shape[2], device=row.device)
    found = torch.zeros_like(block_tables[:, :1]).repeat(1, padded_bs, 1)
    found[:, :bs] = torch.where(column >= num_null, block_tables[:, row], 0)
    return found


@contract(
    """
    idx_mapping           [bs] int32, -1 or more: row of each request's state; -1 for one without blocks
    query_start_loc       [num_starts] int32: where each request's tokens start, and the last ones end
    positions             [num_tokens] int64, 0 or more: of each token in its request
    block_tables          [num_groups, max_num_reqs, max_num_blocks] int32: blocks of each request, in each group of
                          layers
    block_sizes           [num_groups] int32, 1 or more: tokens of a block
    slot_mapping_enabled  [num_groups] bool: groups whose KV has slots
    padded_tokens         int: tokens of a captured batch, at least num_tokens
    -> slot_mappings      [num_groups, padded_tokens] int64: the slot of each token's KV; -1 for none, and as padding
    """
)
def compute_slot_mappings(
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    positions: Tensor,
    block_tables: Tensor,
    block_sizes: Tensor,
    slot_mapping_enabled: Tensor,
    padded_tokens: int,
) -> Tensor:
    """The slots that the KV of a batch goes to, in each group of layers.

    Raises ValueError for starts that fall, tokens out of range, and positions behind a table.
    Source: vLLM's V2 model runner.
    """
    owner, _place = owners_of(query_start_loc, "query_start_loc")
    count, has_row = owner.shape[0], idx_mapping[owner] != NO_ROW
    if validation.enabled():
        validation.require_scalar("padded_tokens", padded_tokens, count)
        reach = torch.where(slot_mapping_enabled, block_tables.shape[2] * block_sizes, torch.iinfo(torch.int32).max)
        validation.require_all(positions < reach.min(), "positions", positions, "within the blocks of a table")
    size = block_sizes[:, None].long()  # [G, 1]
    column = torch.where(slot_mapping_enabled[:, None], positions[:count] // size, 0)
    row = torch.where(has_row, idx_mapping[owner], 0).long()
    block = block_tables[:, row, :].gather(2, column[:, :, None])[:, :, 0].long()
    slots = torch.where(slot_mapping_enabled[:, None] & has_row, block * size + positions[:count] % size, NO_SLOT)
    return torch.nn.functional.pad(slots, (0, padded_tokens - count), value=NO_SLOT)


def owners_of(starts: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """Of each element the request that it is of, and its number among that one's, int64."""
    if validation.enabled():
        _check_rising(name, starts)
    return ragged_segments(starts.long().diff())


def _check_rising(name: str, starts: Tensor) -> None:
    validation.require_between(f"{name}, from one to the next,", starts.diff(), 0)
