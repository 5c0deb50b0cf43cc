"""What a drafter of a batch of rows reads, and how it goes on from one draft to the next.

A batch is as `step_inputs` has it: `idx_mapping` says which row of the state each request has, and its tokens lie from
`query_start_loc[b]` on. A draft model runs after the verification: of the tokens of a request its last `num_rejected`
ones were rejected drafts, and what follows those that stay is the token that was sampled, or, of a request that
prefills a chunk, the next one of the prompt. Buffers are of `max_num_reqs` requests, as a CUDA graph needs them.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields
from specsim.reference.step_inputs import NO_ROW, NO_SLOT, owners_of


@fields(
    """
    last_token_indices     [max_num_reqs] int64: the last token of each request that stays; 0 behind them
    draft_query_start_loc  [max_starts] int32: where each request's tokens start; the end of the last ones behind them
    draft_seq_lens         [max_num_reqs] int32: tokens of each request; 0 behind them
    current_step           [1] int64: 0
    """
)
class DraftPrefill(NamedTuple):
    """Where the first pass of a draft model reads each request, padded to `max_num_reqs`."""

    last_token_indices: Tensor
    draft_query_start_loc: Tensor
    draft_seq_lens: Tensor
    current_step: Tensor


@fields(
    """
    draft_query_start_loc  [max_starts] int32: one token for each request; their number behind them
    draft_seq_lens         [max_num_reqs] int32: tokens of each request; 0 behind them
    """
)
class DraftDecode(NamedTuple):
    """Starts and lengths of passes with one token for each request, padded to `max_num_reqs`."""

    draft_query_start_loc: Tensor
    draft_seq_lens: Tensor


@fields(
    """
    last_token_indices  [max_num_reqs] int64: the token that follows those of each request; 0 behind them
    draft_seq_lens      [max_num_reqs] int32: tokens of each request without those that are repeated; 0 behind them
    """
)
class ModuleInputs(NamedTuple):
    """Where the modules of multi-token prediction read each request, padded to `max_num_reqs`."""

    last_token_indices: Tensor
    draft_seq_lens: Tensor


@fields(
    """
    draft_input_ids        [num_expanded] int32: of each request the tokens that stay, the sampled one, then 0
    draft_positions        [num_expanded] int64: from the first one's on, at most max_model_len - 1
    last_token_indices     [max_num_reqs] int64: the sampled one of each request; 0 behind them
    draft_query_start_loc  [max_starts] int32: where each request's tokens start; the end of the last ones behind them
    draft_seq_lens         [max_num_reqs] int32: tokens of each request, at most max_model_len; 0 behind them
    """
)
class StandalonePrefill(NamedTuple):
    """What a draft model reads that is a model of its own: one token more for each request."""

    draft_input_ids: Tensor
    draft_positions: Tensor
    last_token_indices: Tensor
    draft_query_start_loc: Tensor
    draft_seq_lens: Tensor


@fields(
    """
    block_ids              [padded_tokens] int32: of each request the token that follows, then masks; 0 behind all
    block_positions        [padded_tokens] int64: theirs, at most max_model_len - 1; 0 behind all
    is_padding             [padded_tokens] bool: behind all
    draft_query_start_loc  [max_starts] int32: where each request's block starts; the end of the last one behind them
    draft_seq_lens         [max_num_reqs] int32: tokens of each request with its block, at most max_model_len; 0 behind
    block_slots            [padded_tokens] int64: KV slots; -1 in block 0, which is nobody's, and behind all
    context_positions      [num_tokens] int64: of the tokens that stay; 0 for rejected ones
    context_slots          [num_tokens] int64: KV slots; -1 in block 0 and for rejected ones
    sample_indices         [max_samples] int64: tokens of the blocks that drafts are sampled at; 0 behind all
    sample_positions       [max_samples] int64: of the drafts; 0 behind all
    sample_idx_mapping     [max_samples] int32: row of the state; -1 behind all
    """
)
class BlockDraft(NamedTuple):
    """What a drafter of whole blocks reads of a batch, where it writes, and where it samples."""

    block_ids: Tensor
    block_positions: Tensor
    is_padding: Tensor
    draft_query_start_loc: Tensor
    draft_seq_lens: Tensor
    block_slots: Tensor
    context_positions: Tensor
    context_slots: Tensor
    sample_indices: Tensor
    sample_positions: Tensor
    sample_idx_mapping: Tensor


@contract(
    """
    idx_mapping          [bs] int32, 0 or more: row of each request's state
    all_token_ids        [max_num_reqs, max_model_len] int32: tokens of each request
    total_len            [max_num_reqs] int32, 0 to max_model_len: how many those are
    num_sampled          [bs] int32, 0 or more: tokens that each request has sampled in the step
    last_sampled_tokens  [max_num_reqs] int64: the last one
    min_n                int, 1 or more: tokens that have to be the same, at least
    max_n                int, 1 or more: tokens that are compared, at most max_model_len
    num_steps            int: drafts
    -> draft_tokens      [bs, num_steps] int64: what once followed the last tokens, then the last sampled token
    """
)
def propose_ngrams(
    idx_mapping: Tensor,
    all_token_ids: Tensor,
    total_len: Tensor,
    num_sampled: Tensor,
    last_sampled_tokens: Tensor,
    min_n: int,
    max_n: int,
    num_steps: int,
) -> Tensor:
    """Draft what followed the same tokens before: the longest run of last tokens counts, and the last place of it.

    Nothing is looked for where nothing was sampled. Raises ValueError for a max_n below min_n or above max_model_len.
    Source: prompt lookup decoding (Saxena 2023), as vLLM's V2 runner does it.
    """
    length = all_token_ids.shape[1]
    if validation.enabled():
        validation.require_scalar("max_n", max_n, min_n, length)
    row = idx_mapping.long()
    tokens, total = all_token_ids[row], total_len[row].long()[:, None]  # [bs, L], [bs, 1]
    start = torch.full_like(total, -1)  # of what followed
    for n in range(min_n, max_n + 1):
        runs = tokens.unfold(1, n, 1)  # [bs, L - n + 1, n]
        last = tokens.gather(1, (total - n + torch.arange(n, device=row.device)).clamp(min=0))
        place = torch.arange(runs.shape[1], device=row.device)
        same = (runs == last[:, None]).all(dim=2) & (place < total - n)
        newest = torch.where(same, place, -1).amax(dim=1, keepdim=True)
        start = torch.where(newest >= 0, newest + n, start)
    at = start + torch.arange(num_steps, device=row.device)
    is_known = (start >= 0) & (at < total) & (num_sampled[:, None] > 0)
    followed = tokens.gather(1, at.clamp(0, length - 1)).to(torch.int64)
    return torch.where(is_known, followed, last_sampled_tokens[row][:, None])


@contract(
    """
    draft_input_ids      [num_tokens] int32, changed in place: the tokens that stay but the first, and what follows
    draft_positions      [num_tokens] int64, changed in place: of those that stay
    input_ids            [num_tokens] int32: tokens of the batch
    positions            [num_tokens] int64: their positions
    idx_mapping          [bs] int32, 0 or more: row of each request's state
    query_start_loc      [num_starts] int32: where each request's tokens start, and the last ones end
    seq_lens             [bs] int32: tokens of each request with those of the step
    num_sampled          [bs] int32, 0 or more: tokens that each has sampled
    num_rejected         [bs] int32, 0 or more: its rejected drafts, fewer than its tokens
    last_sampled_tokens  [max_num_reqs] int64: the last one that was sampled
    next_prefill_tokens  [max_num_reqs] int32: the next one of the prompt
    -> DraftPrefill
    """
)
def prepare_draft_prefill(
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
    """The tokens that a draft model reads beside the hidden states of the target model: each is the next one.

    What was rejected is left as it is. Raises ValueError for starts that fall. Source: vLLM's V2 model runner.
    """
    owner, place = owners_of(query_start_loc, "query_start_loc")
    stays = place < (query_start_loc.diff() - num_rejected)[owner]
    at = stays.nonzero()[:, 0]
    draft_positions[at] = positions[at]
    shifted = at[place[at] > 0]
    draft_input_ids[shifted - 1] = input_ids[shifted]
    last = (query_start_loc[1:] - num_rejected).long() - 1
    draft_input_ids[last] = _following(idx_mapping, num_sampled, last_sampled_tokens, next_prefill_tokens)
    size = last_sampled_tokens.shape[0]
    return DraftPrefill(
        _padded(last, size),
        _padded(query_start_loc, size + 1, query_start_loc[-1]),
        _padded(seq_lens, size),
        torch.zeros(1, dtype=torch.int64, device=last.device),
    )


@contract(
    """
    draft_input_ids   [max_num_reqs] int32, changed in place: the first draft of each request
    draft_positions   [max_num_reqs] int64, changed in place: one more, at most max_model_len - 1
    sample_positions  [max_num_reqs] int64, changed in place: one more
    draft_tokens      [bs, num_steps] int64: drafts; the first ones are read
    seq_lens          [bs] int32: tokens of each request with those of the step
    num_rejected      [bs] int32, 0 or more: its rejected drafts
    max_model_len     int: tokens that a request may have
    advances          int: 0: positions and lengths stay, as all drafts are of one position
    -> DraftDecode
    """
)
def prepare_draft_decode(
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    sample_positions: Tensor,
    draft_tokens: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    max_model_len: int,
    advances: int,
) -> DraftDecode:
    """What the second pass of a draft model reads. Source: vLLM's V2 model runner."""
    bs, size = draft_tokens.shape[0], draft_input_ids.shape[0]
    draft_input_ids[:bs] = draft_tokens[:, 0]
    sample_positions[:bs] += 1
    lens = seq_lens - num_rejected
    if advances:
        draft_positions[:bs] = (draft_positions[:bs] + 1).clamp(max=max_model_len - 1)
        lens = (lens + 1).clamp(max=max_model_len)
    starts = torch.arange(size + 1, dtype=torch.int32, device=lens.device).clamp(max=bs)
    return DraftDecode(starts, _padded(lens, size))


@contract(
    """
    draft_tokens      [bs, num_steps] int64, changed in place: column `current_step` gets the draft
    next_hidden       [bs, hidden_size] float, changed in place: hidden states that the next pass reads
    draft_input_ids   [bs] int32, changed in place: the draft
    draft_positions   [bs] int64, changed in place: one more, at most max_model_len - 1
    sample_positions  [bs] int64, changed in place: one more
    draft_seq_lens    [bs] int32, changed in place: one more, at most max_model_len
    sampled           [bs] int64: the draft of each request
    current_step      [1] int64, 0 to num_steps - 1: its number
    hidden            [bs, hidden_size] float: hidden states of the pass that it is of
    max_model_len     int: tokens that a request may have
    advances          int: 0: positions and lengths stay, as all drafts are of one position
    """
)
def update_draft_inputs(
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
    """Keep a draft, and go on to the next pass, after the last draft to none. Source: vLLM's V2 model runner."""
    step = int(current_step)
    draft_tokens[:, step] = sampled
    if step == draft_tokens.shape[1] - 1:
        return
    draft_input_ids.copy_(sampled)
    next_hidden.copy_(hidden)
    sample_positions += 1
    if advances:
        draft_positions.copy_((draft_positions + 1).clamp(max=max_model_len - 1))
        draft_seq_lens.copy_((draft_seq_lens + 1).clamp(max=max_model_len))


@contract(
    """
    draft_input_ids        [num_tokens] int32, changed in place: of each request the tokens that are repeated, those
                           that stay but the first, and what follows
    draft_positions        [num_tokens] int64, changed in place: theirs
    draft_query_start_loc  [max_starts] int32, changed in place: behind the last one's end, that end
    draft_overrides        [max_num_reqs, num_cached] int64, changed in place: of each request that sampled nothing the
                           tokens of the prompt that the modules from the second on read last; -1 of others
    input_ids              [num_tokens] int32: tokens of the batch
    positions              [num_tokens] int64: their positions
    cached_input_ids       [max_num_reqs, num_cached = num_steps - 1] int64: what each read last in the step before
    idx_mapping            [bs] int32, 0 or more: row of each request's state
    query_start_loc        [num_starts] int32: where each request's tokens start, and the last ones end
    seq_lens               [bs] int32: tokens of each request with those of the step
    num_sampled            [bs] int32, 0 or more: tokens that each has sampled
    num_rejected           [bs] int32, 0 to num_steps: its rejected drafts, fewer than its tokens
    last_sampled_tokens    [max_num_reqs] int64: the last one that was sampled
    next_prefill_tokens    [num_steps, max_num_reqs] int32: the next ones of the prompt
    -> ModuleInputs
    """
)
def prepare_module_inputs(
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
    """What the first of several modules reads: a rejected draft but the first leaves KV of the others to make again.

    So as many tokens before the step are repeated, in the places of rejected drafts; what is behind them stays. Raises
    ValueError for starts that fall. Source: multi-token prediction, as vLLM's V2 model runner does it.
    """
    bs, size = idx_mapping.shape[0], last_sampled_tokens.shape[0]
    row, (owner, place, stays, gap) = idx_mapping.long(), _shifted(query_start_loc, num_rejected)
    start = query_start_loc[:-1].long()
    at = (place < stays[owner]).nonzero()[:, 0]
    to = at + gap[owner[at]]
    draft_positions[to] = positions[at]
    draft_input_ids[to[place[at] > 0] - 1] = input_ids[at[place[at] > 0]]
    last = start + gap + stays - 1
    draft_input_ids[last] = _following(idx_mapping, num_sampled, last_sampled_tokens, next_prefill_tokens[0])
    again, before = _repeated(gap, cached_input_ids.shape[1])
    to, column = start[again] + before, _cached(again, before, gap, cached_input_ids)
    draft_input_ids[to] = cached_input_ids[row[again], column].to(torch.int32)
    draft_positions[to] = positions[start[again]] - gap[again] + before
    ahead = torch.where(num_sampled[:, None] > 0, -1, next_prefill_tokens[1:, row].T.to(torch.int64))
    draft_overrides[:bs] = ahead
    draft_query_start_loc[bs:] = query_start_loc[-1]
    return ModuleInputs(_padded(last, size), _padded((seq_lens - gap).to(torch.int32), size))


@contract(
    """
    draft_hidden     [num_tokens, hidden_size] float, changed in place: of each request those that are repeated, then
                     those of the tokens that stay
    draft_embeds     [num_tokens, hidden_size] float, changed in place: of those that are repeated
    target_hidden    [num_tokens, hidden_size] float: hidden states of the target model
    cached_hidden    [max_num_reqs, num_cached, hidden_size] float: what each read last in the step before
    cached_embeds    [max_num_reqs, num_cached, hidden_size] float: likewise
    idx_mapping      [bs] int32, 0 or more: row of each request's state
    query_start_loc  [num_starts] int32: where each request's tokens start, and the last ones end
    num_rejected     [bs] int32, 0 to num_cached + 1: its rejected drafts, fewer than its tokens
    """
)
def prepare_module_hidden(
    draft_hidden: Tensor,
    draft_embeds: Tensor,
    target_hidden: Tensor,
    cached_hidden: Tensor,
    cached_embeds: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    num_rejected: Tensor,
) -> None:
    """The hidden states and embeddings that go with `prepare_module_inputs`.

    Raises ValueError for starts that fall. Source: multi-token prediction, as vLLM's V2 model runner does it.
    """
    owner, place, stays, gap = _shifted(query_start_loc, num_rejected)
    at = (place < stays[owner]).nonzero()[:, 0]
    draft_hidden[at + gap[owner[at]]] = target_hidden[at]
    again, before = _repeated(gap, cached_hidden.shape[1])
    column, to = _cached(again, before, gap, cached_hidden), query_start_loc[:-1].long()[again] + before
    row = idx_mapping.long()[again]
    draft_hidden[to], draft_embeds[to] = cached_hidden[row, column], cached_embeds[row, column]


@contract(
    """
    slot_mappings       [num_groups, num_tokens] int64, changed in place: KV slots of the batch's tokens; -1 behind the
                        last one of each request
    query_start_loc     [num_starts] int32: where each request's tokens start, and the last ones end
    last_token_indices  [bs] int64: its last token that counts
    """
)
def pad_trailing_slots(slot_mappings: Tensor, query_start_loc: Tensor, last_token_indices: Tensor) -> None:
    """Write no KV of what is behind a request's last token.

    Raises ValueError for starts that fall. Source: multi-token prediction, as vLLM's V2 model runner does it.
    """
    owner, _place = owners_of(query_start_loc, "query_start_loc")
    behind = torch.arange(owner.shape[0], device=owner.device) > last_token_indices[owner]
    slot_mappings[:, : owner.shape[0]][:, behind] = NO_SLOT


@contract(
    """
    cached_input_ids    [max_num_reqs, num_cached] int64, changed in place: what each request has read last
    cached_embeds       [max_num_reqs, num_cached, hidden_size] float, changed in place: likewise
    cached_hidden       [max_num_reqs, num_cached, hidden_size] float, changed in place: likewise
    draft_input_ids     [num_tokens] int32: tokens that the first module reads
    draft_embeds        [num_tokens, hidden_size] float: their embeddings
    draft_hidden        [num_tokens, hidden_size] float: the hidden states beside them
    idx_mapping         [bs] int32: row of each request's state; -1: it is left alone
    query_start_loc     [num_starts] int32: where each request's tokens start, and the last ones end
    last_token_indices  [bs] int64: its last token that counts
    """
)
def cache_module_inputs(
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
    """Keep what the modules read last, the newest at the end: the next step may have to repeat it.

    Raises ValueError for starts that fall. Source: multi-token prediction, as vLLM's V2 model runner does it.
    """
    owner, _place = owners_of(query_start_loc, "query_start_loc")
    at = torch.arange(owner.shape[0], device=owner.device)
    column = at - last_token_indices[owner] + cached_input_ids.shape[1] - 1
    kept = (idx_mapping[owner] != NO_ROW) & (at <= last_token_indices[owner]) & (column >= 0)
    row, column, at = idx_mapping[owner][kept].long(), column[kept], at[kept]
    cached_input_ids[row, column] = draft_input_ids[at].to(torch.int64)
    cached_embeds[row, column], cached_hidden[row, column] = draft_embeds[at], draft_hidden[at]


@contract(
    """
    draft_input_ids     [num_tokens] int32, changed in place: tokens of the batch, of each request one place to the left
    draft_embeds        [num_tokens, hidden_size] float, changed in place: their embeddings, likewise
    idx_mapping         [bs] int32: row of each request's state; -1: it is left alone
    query_start_loc     [num_starts] int32: where each request's tokens start, and the last ones end
    last_token_indices  [bs] int64: its last token that stays; what is behind it is left alone
    next_tokens         [bs] int64: the token that follows it
    next_embeds         [bs, hidden_size] float: its embedding
    """
)
def shift_draft_inputs(
    draft_input_ids: Tensor,
    draft_embeds: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    last_token_indices: Tensor,
    next_tokens: Tensor,
    next_embeds: Tensor,
) -> None:
    """What the next layer of a draft model reads: of each token the one that follows it.

    Raises ValueError for starts that fall. Source: multi-token prediction, as vLLM's V2 model runner does it.
    """
    owner, place = owners_of(query_start_loc, "query_start_loc")
    at = torch.arange(owner.shape[0], device=owner.device)
    moves = (idx_mapping[owner] != NO_ROW) & (at <= last_token_indices[owner]) & (place > 0)
    to = at[moves] - 1
    draft_input_ids[to], draft_embeds[to] = draft_input_ids[to + 1], draft_embeds[to + 1]
    has_row = idx_mapping != NO_ROW
    last = last_token_indices[has_row]
    draft_input_ids[last] = next_tokens[has_row].to(draft_input_ids.dtype)
    draft_embeds[last] = next_embeds[has_row]


@contract(
    """
    input_ids            [num_tokens] int32: tokens of the batch
    positions            [num_tokens] int64: their positions
    idx_mapping          [bs] int32, 0 or more: row of each request's state
    query_start_loc      [num_starts] int32: where each request's tokens start, and the last ones end
    seq_lens             [bs] int32: tokens of each request with those of the step
    num_rejected         [bs] int32, 0 or more: its rejected drafts, fewer than its tokens
    last_sampled_tokens  [max_num_reqs] int64: the last one that was sampled
    max_model_len        int: tokens that a request may have
    -> StandalonePrefill
    """
)
def prepare_standalone_prefill(
    input_ids: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    max_model_len: int,
) -> StandalonePrefill:
    """The tokens that a draft model reads by itself: those of the batch that stay, then the sampled one.

    Raises ValueError for starts that fall. Source: vLLM's V2 model runner.
    """
    size, bs = last_sampled_tokens.shape[0], idx_mapping.shape[0]
    starts = query_start_loc + torch.arange(bs + 1, dtype=torch.int32, device=query_start_loc.device)
    owner, place = owners_of(starts, "query_start_loc")
    stays = (query_start_loc.diff() - num_rejected).long()  # [bs]
    source = (query_start_loc[:-1].long()[owner] + place).clamp(max=input_ids.shape[0] - 1)
    sampled = last_sampled_tokens[idx_mapping.long()].to(torch.int32)[owner]
    ids = torch.where(place < stays[owner], input_ids[source], torch.where(place == stays[owner], sampled, 0))
    first = positions[query_start_loc[:-1].long()]
    return StandalonePrefill(
        ids,
        (first[owner] + place).clamp(max=max_model_len - 1),
        _padded(starts[:-1] + stays, size),
        _padded(starts, size + 1, starts[-1]),
        _padded((seq_lens + 1).clamp(max=max_model_len), size),
    )


@contract(
    """
    draft_temperature     [max_num_reqs] float, changed in place: of each request in the batch
    draft_seeds           [max_num_reqs] int64, changed in place: likewise
    positions             [num_tokens] int64: positions of the batch's tokens
    idx_mapping           [bs] int32, 0 or more: row of each request's state
    query_start_loc       [num_starts] int32: where each request's tokens start, and the last ones end
    num_sampled           [bs] int32, 0 or more: tokens that each request has sampled
    num_rejected          [bs] int32, 0 or more: its rejected drafts, fewer than its tokens
    last_sampled_tokens   [max_num_reqs] int64: the last one that was sampled
    next_prefill_tokens   [max_num_reqs] int32: the next one of the prompt
    temperature           [max_num_reqs] float: of each row
    seeds                 [max_num_reqs] int64: of each row
    block_table           [bs, max_num_blocks] int32, 0 or more: blocks of each request; 0 is nobody's
    page_size             int: slots of a block
    mask_token_id         int: token of a draft that is to be made
    num_steps             int: drafts of a request
    num_block_tokens      int: tokens of its block: num_steps where each gives a draft, else one more
    max_model_len         int: tokens that a request may have
    padded_tokens         int: tokens of the blocks, with those behind all
    -> BlockDraft
    """
)
def prepare_block_draft(
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
    """The blocks of a batch: the token that follows each request's, and masks in the place of the drafts.

    A block of num_steps tokens gives a draft behind each of them, one of a token more a draft at each mask. Raises
    ValueError for starts that fall, for blocks of another length, and where they do not fit.
    Source: vLLM's V2 model runner, with DFlash and DSpark.
    """
    bs, size = idx_mapping.shape[0], last_sampled_tokens.shape[0]
    if validation.enabled():
        validation.require_scalar("num_block_tokens", num_block_tokens, num_steps, num_steps + 1)
        validation.require_scalar("padded_tokens", padded_tokens, bs * num_block_tokens)
    owner, place = owners_of(query_start_loc, "query_start_loc")
    stays = place < (query_start_loc.diff() - num_rejected)[owner]
    row, last = idx_mapping.long(), positions[(query_start_loc[1:] - num_rejected).long() - 1]  # [bs]
    step = torch.arange(num_block_tokens, device=row.device)
    at = last[:, None] + 1 + step  # [bs, num_block_tokens]
    following = _following(idx_mapping, num_sampled, last_sampled_tokens, next_prefill_tokens)
    ids = torch.where(step == 0, following[:, None], mask_token_id).to(torch.int32)
    index = torch.arange(bs * num_block_tokens, device=row.device).view(bs, -1)
    is_anchor = num_block_tokens == num_steps
    drafted = slice(0, None) if is_anchor else slice(1, None)
    draft_temperature[row], draft_seeds[row] = temperature[row], seeds[row]
    requests = torch.arange(bs, device=row.device)
    starts = torch.arange(bs + 1, dtype=torch.int32, device=row.device) * num_block_tokens
    samples = size * num_steps
    behind = torch.arange(padded_tokens, device=row.device) >= bs * num_block_tokens
    return BlockDraft(
        _padded(ids.flatten(), padded_tokens),
        _padded(at.clamp(max=max_model_len - 1).flatten(), padded_tokens),
        behind,
        _padded(starts, size + 1, starts[-1]),
        _padded((last + 1 + num_block_tokens).clamp(max=max_model_len).to(torch.int32), size),
        _padded(_slots(block_table, requests[:, None], at, page_size).flatten(), padded_tokens, NO_SLOT),
        torch.where(stays, positions, 0),
        torch.where(stays, _slots(block_table, owner, positions, page_size), NO_SLOT),
        _padded(index[:, drafted].flatten(), samples),
        _padded((at + int(is_anchor))[:, drafted].flatten(), samples),
        _padded(idx_mapping.repeat_interleave(num_steps), samples, -1),
    )


@contract(
    """
    logits          [num_logits, vocab_size] float, changed in place: tokens that a mask forbids become -inf
    bitmask         [num_masks, mask_words = (vocab_size + 31) // 32] int32: bit t % 32 of word t // 32: token t is
                    allowed
    logits_indices  [num_masks] int32: of each mask the request times mask_stride, and the number of its row of logits
    cu_num_logits   [num_starts] int32: where each request's rows of logits start, and the last ones end
    mask_stride     int, 1 or more: masks that a request may have
    """
)
def apply_grammar_bitmask(
    logits: Tensor, bitmask: Tensor, logits_indices: Tensor, cu_num_logits: Tensor, mask_stride: int
) -> None:
    """Forbid tokens. A mask behind a request's rows of logits forbids none. Source: vLLM's V2 model runner."""
    request, place = (logits_indices // mask_stride).long(), logits_indices % mask_stride
    used = place < cu_num_logits.diff()[request]
    token = torch.arange(logits.shape[1], device=logits.device)
    allowed = (bitmask[:, token // 32] >> (token % 32).to(torch.int32)) & 1  # [num_masks, V]
    row = (cu_num_logits[request] + place)[used].long()
    logits[row] = torch.where(allowed[used] == 1, logits[row], -torch.inf)


def _shifted(query_start_loc: Tensor, num_rejected: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Of each token the request that it is of and its number there; of each request how many of its tokens stay, and
    how many before them are repeated.
    """
    owner, place = owners_of(query_start_loc, "query_start_loc")
    return owner, place, (query_start_loc.diff() - num_rejected).long(), (num_rejected.long() - 1).clamp(min=0)


def _repeated(gap: Tensor, most: int) -> tuple[Tensor, Tensor]:
    """Of each token that is repeated its request, and its number among that one's."""
    before = torch.arange(most, device=gap.device)
    again, at = (before < gap[:, None]).nonzero(as_tuple=True)
    return again, at


def _cached(again: Tensor, before: Tensor, gap: Tensor, cached: Tensor) -> Tensor:
    """The place of what is repeated among what was kept, of which the newest is the last."""
    return cached.shape[1] - gap[again] + before


def _following(idx_mapping: Tensor, num_sampled: Tensor, last_sampled: Tensor, next_prefill: Tensor) -> Tensor:
    """The token [bs] int32 that follows those of each request that stay."""
    row = idx_mapping.long()
    return torch.where(num_sampled > 0, last_sampled[row].to(torch.int32), next_prefill[row])


def _padded(values: Tensor, count: int, value: Tensor | int = 0) -> Tensor:
    """[count]: the values, then `value`."""
    padded = torch.full((count,), int(value), dtype=values.dtype, device=values.device)
    padded[: values.shape[0]] = values
    return padded


def _slots(block_table: Tensor, request: Tensor, position: Tensor, page_size: int) -> Tensor:
    """The KV slot of each position of its request, int64; NO_SLOT in block 0."""
    column = (position // page_size).clamp(max=block_table.shape[1] - 1)
    block = block_table[request, column].long()
    return torch.where(block != 0, block * page_size + position % page_size, NO_SLOT)
