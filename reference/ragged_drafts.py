"""Verification of ragged drafts, and what follows it, as engines do it that keep each request's drafts in one flat row.

Request b has the rows `cu_num_draft_tokens[b - 1]` (0 for the first) to `cu_num_draft_tokens[b]`, exclusive, of what is
`[num_drafts, ...]`: none, or up to `num_steps`. What a step emits is a row of `num_steps + 1` tokens, padded with -1.
The token after a path of accepted drafts, the bonus token, has been drawn before. A token in place of a rejected draft
is drawn by an exponential race: `race` is exponential noise, and the token that maximises weight / race has the
distribution of the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields
from specsim.reference.cache_locs import ragged_segments

PLACEHOLDER = -1


@fields(
    """
    token_indices_to_sample  [bs] int32: its last token that stays
    num_rejected_tokens      [bs] int32: rejected drafts; 0 without drafts
    """
)
class PreparedInputs(NamedTuple):
    """Where a draft model's next step reads a request [bs] int32, and how many of its drafts were rejected."""

    token_indices_to_sample: Tensor
    num_rejected_tokens: Tensor


@fields(
    """
    next_token_ids              [bs] int32: last valid token, or the backup
    valid_sampled_tokens_count  [bs] int32: valid tokens
    """
)
class NextTokens(NamedTuple):
    """The token that a request goes on with [bs] int32, and how many of its sampled ones are valid."""

    next_token_ids: Tensor
    valid_sampled_tokens_count: Tensor


@fields(
    """
    clamped_positions  [bs] int64: the next position; 0 at the end
    slot_mapping       [padded_bs] int64: its slot; -1 at the end and as padding
    """
)
class SlotMapping(NamedTuple):
    """The next positions [bs] int64 and their slots [padded_bs] int64, -1 for none."""

    clamped_positions: Tensor
    slot_mapping: Tensor


@fields(
    """
    input_ids             [num_out] int32: tokens
    positions             [num_out] int64: counted from the first; 0 at rejected ones
    is_rejected           [num_out] bool: padding where drafts were rejected
    is_masked             [num_out] bool: slots of parallel drafts
    new_token_indices     [num_new = bs * num_padding_slots] int32: of the new token and its slots
    hidden_state_mapping  [num_tokens] int32: where each of the target's tokens is among the inputs; undefined without
                          shift_input_ids
    """
)
class DraftInputs(NamedTuple):
    """Inputs of a draft model."""

    input_ids: Tensor
    positions: Tensor
    is_rejected: Tensor
    is_masked: Tensor
    new_token_indices: Tensor
    hidden_state_mapping: Tensor


@fields(
    """
    block_ids          [num_nodes = bs * num_draft_tokens] int32: of each request the token that follows, then masks
    block_positions    [num_nodes] int64: theirs
    block_slots        [num_nodes] int64: KV slots
    context_positions  [num_tokens] int64: of the batch's tokens
    context_slots      [num_tokens] int64: KV slots
    sample_indices     [num_new = bs * num_steps] int32: the masks
    """
)
class BlockInputs(NamedTuple):
    """What a drafter of whole blocks reads of a batch, where it writes, and where it samples."""

    block_ids: Tensor
    block_positions: Tensor
    block_slots: Tensor
    context_positions: Tensor
    context_slots: Tensor
    sample_indices: Tensor


@contract(
    """
    cu_num_draft_tokens  [num_ends] int32: where the drafts of each request end
    draft_token_ids      [num_drafts] int32: drafted tokens, request by request; -1 for one that must not be verified
    target_argmax        [num_drafts] int64: the target's token at each draft
    bonus_token_ids      [bs] int32: token after all drafts, if all are accepted
    is_greedy            [bs] bool: requests at temperature 0
    num_steps            int: drafts that a request may have; accept_width less one
    -> output_token_ids  [bs, accept_width = num_steps + 1] int32, prefilled with -1: emitted tokens, then -1; -1
                         throughout for requests that are left alone
    """
)
def verify_ragged_greedy(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    bonus_token_ids: Tensor,
    is_greedy: Tensor,
    num_steps: int,
) -> Tensor:
    """Emit the target's tokens up to the first draft that differs from them, that one's included.

    Raises ValueError for ends that fall or do not end at the last draft.
    Source: the verification of Leviathan et al. (arXiv 2211.17192) at temperature 0, as vLLM v1 keeps it.
    """
    check_ends(cu_num_draft_tokens, draft_token_ids, num_steps)
    place, has_draft, count = _grid(cu_num_draft_tokens, num_steps)
    target = _padded(target_argmax, place)
    accepts = has_draft & (_padded(draft_token_ids, place) == target)  # never a placeholder: a target is a token
    return _emitted(accepts, target, bonus_token_ids, count, has_draft, is_greedy)


@contract(
    """
    cu_num_draft_tokens  [num_ends] int32: where the drafts of each request end
    draft_token_ids      [num_drafts] int32: drafted tokens, request by request; -1 for one that must not be verified
    draft_probs          [num_drafts, vocab_size] float: the distribution of each draft; what rounds to more than 1
                         counts as 1; not read when has_draft_probs is 0
    target_probs         [num_drafts, vocab_size] float: the target's distribution at each draft; a draft at a row of
                         NaN is rejected
    bonus_token_ids      [bs] int32: token after all drafts, if all are accepted
    recovered_token_ids  [num_drafts] int32: token in place of each draft, if it is rejected
    uniform_probs        [num_drafts] float64: uniform draw in [0, 1) of each draft
    is_greedy            [bs] bool: requests at temperature 0
    has_draft_probs      int: 0: every draft was certain, and draft_probs is not read
    num_steps            int: drafts that a request may have; accept_width less one
    -> output_token_ids  [bs, accept_width = num_steps + 1] int32, prefilled with -1: emitted tokens, then -1; -1
                         throughout for requests that are left alone
    """
)
def verify_ragged_rejection(
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
    """Accept drafts by the ratio of target to draft probability; a rejected one is replaced by its recovered token.

    A draft x is accepted iff u q(x) < p(x) and q(x) > 0; a placeholder, -1, is rejected, and no probability is read for
    it. Requests of `is_greedy` are left alone; the others as for `verify_ragged_greedy`, and so the result. Raises
    ValueError as that does. Source: Leviathan et al. (arXiv 2211.17192), algorithm 1; the comparison is strict, so that
    a uniform draw of 0 accepts no token of probability 0; placeholders: vLLM PR #46533.
    """
    check_ends(cu_num_draft_tokens, draft_token_ids, num_steps)
    place, has_draft, count = _grid(cu_num_draft_tokens, num_steps)
    drafted = draft_token_ids.long().clamp(min=0)[:, None]
    p = target_probs.gather(1, drafted)[:, 0].double()
    q = draft_probs.gather(1, drafted)[:, 0].double().clamp(max=1) if has_draft_probs else torch.ones_like(p)
    accepts = (draft_token_ids != PLACEHOLDER) & (uniform_probs * q < p) & (q > 0)  # [num_drafts]
    tokens = torch.where(accepts, draft_token_ids, recovered_token_ids)
    accepts = has_draft & _padded(accepts, place)
    return _emitted(accepts, _padded(tokens, place), bonus_token_ids, count, has_draft, ~is_greedy)


@contract(
    """
    cu_num_draft_tokens     [num_ends] int32: where the drafts of each request end
    draft_token_ids         [num_drafts] int32: drafted tokens, request by request; -1 for one that must not be
                            verified
    draft_probs             [num_drafts, vocab_size] float: the distribution of each draft; what rounds to more than 1
                            counts as 1; not read when has_draft_probs is 0
    target_probs            [num_drafts, vocab_size] float: the target's distribution at each draft, or a row of NaN
    race                    [bs, vocab_size] float: exponential noise, above 0, of each request, which all its drafts
                            share
    has_draft_probs         int: 0: every draft was certain, and draft_probs is not read
    -> recovered_token_ids  [num_drafts] int32: token in place of each draft, if it is rejected; any of the vocabulary
                            where the positive part of target less draft is empty or NaN
    """
)
def sample_recovered_tokens(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    race: Tensor,
    has_draft_probs: int,
) -> Tensor:
    """The token that replaces each draft if it is rejected: of the positive part of p - q, by a race.

    Without `has_draft_probs` the draft's own probability is taken out of p, and nothing for a placeholder, -1. Of
    equals the lowest token wins; 0 where nothing is left: a draft is never rejected there, but a placeholder is.
    Raises ValueError for ends that fall, and noise that is not above 0.
    Source: Leviathan et al. (arXiv 2211.17192); the race as Gumbel-max, Maddison et al. (arXiv 1411.0030).
    """
    check_ends(cu_num_draft_tokens, draft_token_ids, None)
    if validation.enabled():
        validation.require_all(race > 0, "race", race, "above 0")
    rows = torch.arange(draft_token_ids.shape[0], dtype=cu_num_draft_tokens.dtype, device=race.device)
    owner = torch.searchsorted(cu_num_draft_tokens.contiguous(), rows, right=True)
    if has_draft_probs:
        left = (target_probs - draft_probs.clamp(max=1)).clamp(min=0)
    else:
        taken = torch.arange(target_probs.shape[1], device=race.device) == draft_token_ids[:, None]
        left = target_probs.masked_fill(taken, 0.0)
    return (left / race[owner]).argmax(dim=1).to(torch.int32)


@contract(
    """
    cu_num_draft_tokens  [num_ends] int32: where the drafts of each request end
    draft_token_ids      [num_drafts] int32: drafted tokens, request by request; -1 for one that must not be verified
    draft_probs          [num_drafts, vocab_size] float: the distribution of each draft; what rounds to more than 1
                         counts as 1; not read when has_draft_probs is 0
    target_probs         [num_drafts, vocab_size] float: the target's distribution at each draft; a draft at a row of
                         NaN is rejected
    bonus_token_ids      [bs] int32: token after all drafts, if all are accepted
    uniform_probs        [num_drafts] float64: uniform draw in [0, 1) of each draft
    race                 [bs, vocab_size] float: exponential noise, above 0, of each request, which all its drafts share
    is_greedy            [bs] bool: requests at temperature 0
    has_draft_probs      int: 0: every draft was certain, and draft_probs is not read
    num_steps            int: drafts that a request may have; accept_width less one
    -> output_token_ids  [bs, accept_width = num_steps + 1] int32, prefilled with -1: emitted tokens, then -1; what is
                         emitted for a row of NaN is any token of the vocabulary
    """
)
def verify_ragged_sampled(
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
    """The whole verification of a batch in which some requests are greedy and the others sample.

    Greedy requests follow the argmax of `target_probs`. Raises ValueError as the parts do.
    Source: vLLM v1's rejection sampling; Leviathan et al. (arXiv 2211.17192), algorithm 1.
    """
    argmax = target_probs.argmax(dim=1)
    greedy = verify_ragged_greedy(cu_num_draft_tokens, draft_token_ids, argmax, bonus_token_ids, is_greedy, num_steps)
    recovered = sample_recovered_tokens(
        cu_num_draft_tokens, draft_token_ids, draft_probs, target_probs, race, has_draft_probs
    )
    sampled = verify_ragged_rejection(
        cu_num_draft_tokens,
        draft_token_ids,
        draft_probs,
        target_probs,
        bonus_token_ids,
        recovered,
        uniform_probs,
        is_greedy,
        has_draft_probs,
        num_steps,
    )
    return torch.where(is_greedy[:, None], greedy, sampled)


@contract(
    """
    values               [bs] float: of each request, e.g. its temperature
    cu_num_draft_tokens  [num_ends] int32: where the drafts of each request end
    replace_from         int: a value that means something else, as a temperature means greedy
    replace_to           int: what is put in its place
    -> expanded          [num_drafts] float: of each draft
    """
)
def expand_to_drafts(values: Tensor, cu_num_draft_tokens: Tensor, replace_from: int, replace_to: int) -> Tensor:
    """The value of each request, once for each of its drafts.

    `replace_from` becomes `replace_to`, as engines do with the temperature that means greedy.
    Raises ValueError for ends that fall. Source: vLLM v1's `expand_batch_to_tokens`.
    """
    if validation.enabled():
        _check_rising(cu_num_draft_tokens)
    changed = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    counts = cu_num_draft_tokens.diff(prepend=torch.zeros_like(cu_num_draft_tokens[:1]))
    return changed.repeat_interleave(counts.long())


@contract(
    """
    cu_num_draft_tokens         [num_ends] int32: where the drafts of each request end
    valid_sampled_tokens_count  [bs] int32: accepted drafts and one more
    query_start_loc             [num_starts] int32: where each request's tokens start, and the last ones end
    -> PreparedInputs
    """
)
def prepare_inputs_padded(
    cu_num_draft_tokens: Tensor, valid_sampled_tokens_count: Tensor, query_start_loc: Tensor
) -> PreparedInputs:
    """Where each request's draft goes on, when rejected drafts stay in the batch as padding.

    A request without drafts has rejected none. Its place is the last of its tokens that is no rejected draft.
    Raises ValueError for ends and starts that fall. Source: vLLM's padded drafting batch.
    """
    if validation.enabled():
        _check_rising(cu_num_draft_tokens)
        _check_rising(query_start_loc)
    counts = cu_num_draft_tokens.diff(prepend=torch.zeros_like(cu_num_draft_tokens[:1]))
    rejected = torch.where(counts > 0, counts + 1 - valid_sampled_tokens_count, 0)
    return PreparedInputs((query_start_loc[1:] - 1 - rejected).to(torch.int32), rejected.to(torch.int32))


@contract(
    """
    sampled_token_ids      [bs, accept_width] int32: valid tokens, 0 to vocab_size - 1, then what is not: -1 or
                           vocab_size
    discard_request_mask   [bs] bool: requests whose samples do not count
    backup_next_token_ids  [bs] int32: the token where nothing is valid
    vocab_size             int: tokens are below it
    -> NextTokens
    """
)
def prepare_next_token_padded(
    sampled_token_ids: Tensor, discard_request_mask: Tensor, backup_next_token_ids: Tensor, vocab_size: int
) -> NextTokens:
    """The last valid token of what each request sampled, and how many are.

    Raises ValueError for shapes that do not fit. Source: vLLM's padded drafting batch.
    """
    valid = (sampled_token_ids >= 0) & (sampled_token_ids < vocab_size) & ~discard_request_mask[:, None]
    count = valid.sum(dim=1)
    last = sampled_token_ids.gather(1, (count - 1).clamp(min=0)[:, None])[:, 0]
    return NextTokens(torch.where(count > 0, last, backup_next_token_ids), count.to(torch.int32))


@contract(
    """
    positions      [bs] int64, 0 or more: of each request's last token
    block_table    [bs, num_pages] int32: pages of each request, as many as its next position needs
    seq_lens       [bs] int32, changed in place: one more, at most max_model_len; 1 at the end
    page_size      int: slots of a page
    max_model_len  int: a request that reaches it has no slot
    padded_bs      int: requests of a captured batch, at least bs
    -> SlotMapping
    """
)
def step_slot_mapping(
    positions: Tensor, block_table: Tensor, seq_lens: Tensor, page_size: int, max_model_len: int, padded_bs: int
) -> SlotMapping:
    """One drafting step further: the next position of each request and the slot that its KV goes to.

    A request whose next position is `max_model_len` or more has position 0, no slot (-1) and length 1 instead.
    Raises ValueError for a next position behind the table, and batches out of range. Source: vLLM's fused drafting
    step.
    """
    if validation.enabled():
        validation.require_scalar("padded_bs", padded_bs, positions.shape[0])
    following = positions + 1
    is_over = following >= max_model_len
    clamped = torch.where(is_over, 0, following)
    if validation.enabled():
        num_slots = block_table.shape[1] * page_size
        allowed = f"0 to {num_slots - 2}, for the table to have the next one, or {max_model_len - 1} or more"
        validation.require_all(clamped < num_slots, "positions", positions, allowed)
    request = torch.arange(positions.shape[0], device=positions.device)
    slot = torch.where(is_over, PLACEHOLDER, _slots(block_table, request, clamped, page_size))
    padding = slot.new_full((padded_bs - slot.shape[0],), PLACEHOLDER)
    seq_lens.copy_(torch.where(is_over, 1, seq_lens + 1).clamp(max=max_model_len))
    return SlotMapping(clamped, torch.cat([slot, padding]))


@contract(
    """
    target_token_ids            [num_tokens] int32: of the target's step, request by request
    target_positions            [num_tokens] int64: of the same tokens
    next_token_ids              [bs] int32: what each request goes on with
    query_start_loc             [num_starts] int32: where each request's tokens start, and the last ones end
    query_end_loc               [num_ends] int32: its last token that is no rejected draft
    padding_token_id            int: held where drafts were rejected
    parallel_drafting_token_id  int: held by the slots after the new token
    num_padding_slots           int, 1 or more: the new token and the slots after it
    shift_input_ids             int: 1: each request's first token is left out, as a drafter that reads hidden states
                                wants it
    -> DraftInputs
    """
)
def expand_draft_inputs(
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
    """The draft model's inputs: the target's tokens, the new one, slots for parallel drafts, and rejected drafts.

    Request b has its tokens, from the second on if shifted, up to `query_end_loc`; then the new token; then the slots;
    then as many as were rejected, which hold `padding_token_id` at position 0. Positions count from its first one.
    Raises ValueError for starts that fall. Source: vLLM's unified drafting inputs.
    """
    if validation.enabled():
        _check_rising(query_start_loc)
    bs, device = next_token_ids.shape[0], next_token_ids.device
    starts, ends = query_start_loc.long(), query_end_loc.long()
    counts = starts.diff()  # [bs]
    valid = ends - starts[:-1] + 1 - shift_input_ids
    totals = counts - shift_input_ids + num_padding_slots
    request = torch.arange(bs, device=device)
    owner = request.repeat_interleave(totals)  # [num_out]
    first = starts[:-1] + request * (num_padding_slots - shift_input_ids)  # [bs]: where its outputs start
    j = torch.arange(owner.shape[0], device=device) - first[owner]
    past = j - valid[owner]  # 0 at the new token
    source = (starts[:-1][owner] + shift_input_ids + j).clamp(max=target_token_ids.shape[0] - 1)
    is_rejected, is_masked = past >= num_padding_slots, (past > 0) & (past < num_padding_slots)
    tokens = torch.where(past == 0, next_token_ids[owner], target_token_ids[source])
    tokens = torch.where(is_masked, parallel_drafting_token_id, tokens)
    positions = target_positions[starts[:-1][owner]] + j
    slot = torch.arange(num_padding_slots, device=device)
    mapping = torch.arange(target_token_ids.shape[0], device=device)
    mapping = mapping + (first - starts[:-1]).repeat_interleave(counts)
    return DraftInputs(
        torch.where(is_rejected, padding_token_id, tokens).to(torch.int32),
        torch.where(is_rejected, 0, positions),
        is_rejected,
        is_masked,
        ((first + valid)[:, None] + slot).flatten().to(torch.int32),
        mapping.to(torch.int32),
    )


@contract(
    """
    next_token_ids    [bs] int32: the token that follows those of each request that stay
    target_positions  [num_tokens] int64, 0 or more: positions of the batch's tokens
    query_start_loc   [num_starts] int32: where each request's tokens start, and the last ones end
    num_rejected      [bs] int32, 0 or more: rejected drafts, the last tokens, fewer than its tokens; not read when
                      has_rejected is 0
    block_table       [bs, num_pages] int32: pages of each request, one for each of its positions and of its block
    mask_token_id     int: token of a draft that is to be made
    page_size         int: slots of a page
    num_steps         int: drafts of a request
    has_rejected      int: 0: rejected drafts were taken out of the batch
    -> BlockInputs
    """
)
def expand_block_inputs(
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
    """The blocks of a batch: the token that follows each request's, and a mask in the place of each draft.

    Raises ValueError for starts that fall. Source: vLLM's first model runner, with DFlash.
    """
    if validation.enabled():
        _check_rising(query_start_loc)
    bs, device = next_token_ids.shape[0], query_start_loc.device
    owner, _place = ragged_segments(query_start_loc.long().diff())
    last = query_start_loc[1:].long() - 1 - (num_rejected if has_rejected else 0)
    step = torch.arange(num_steps + 1, device=device)
    at = target_positions[last][:, None] + 1 + step  # [bs, S + 1]
    ids = torch.where(step == 0, next_token_ids[:, None], mask_token_id).to(torch.int32)
    request = torch.arange(bs, device=device)[:, None]
    index = request * (num_steps + 1) + step
    return BlockInputs(
        ids.flatten(),
        at.flatten(),
        _slots(block_table, request, at, page_size).flatten(),
        target_positions.clone(),
        _slots(block_table, owner, target_positions, page_size),
        index[:, 1:].flatten().to(torch.int32),
    )


def _grid(ends: Tensor, num_steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The row of each request's i-th draft [bs, S], 0 where there is none, whether there is one, and how many [bs]."""
    counts = ends.diff(prepend=torch.zeros_like(ends[:1])).long()
    step = torch.arange(num_steps, device=ends.device)
    has_draft = step < counts[:, None]
    return torch.where(has_draft, (ends.long() - counts)[:, None] + step, 0), has_draft, counts


def _slots(block_table: Tensor, request: Tensor, position: Tensor, page_size: int) -> Tensor:
    """Where the KV of each position of each request lies, int64."""
    return block_table[request, position // page_size].long() * page_size + position % page_size


def _padded(rows: Tensor, place: Tensor) -> Tensor:
    return rows[place] if rows.shape[0] else torch.zeros(place.shape, dtype=rows.dtype, device=rows.device)


def _emitted(
    accepts: Tensor, tokens: Tensor, bonus: Tensor, count: Tensor, has_draft: Tensor, chosen: Tensor
) -> Tensor:
    """[bs, S + 1] int32: tokens up to the first draft that is not accepted, or all and the bonus token."""
    bs, num_steps = accepts.shape
    accepted = accepts.long().cumprod(dim=1).sum(dim=1)  # [bs]
    step = torch.arange(num_steps + 1, device=accepts.device)
    wide = torch.cat([tokens.to(torch.int32), tokens.new_zeros((bs, 1), dtype=torch.int32)], dim=1)
    has_one = torch.cat([has_draft, has_draft.new_zeros((bs, 1))], dim=1)
    emits = has_one & (step <= accepted[:, None])
    result = torch.where(emits, wide, PLACEHOLDER)
    is_bonus = (step == count[:, None]) & (accepted == count)[:, None]
    result = torch.where(is_bonus, bonus.to(torch.int32)[:, None], result)
    return torch.where(chosen[:, None], result, PLACEHOLDER)


def check_ends(ends: Tensor, drafts: Tensor, num_steps: int | None) -> None:
    """Raise ValueError where the ends fall, are not those of the drafts, or give a request more than `num_steps`."""
    if not validation.enabled():
        return
    _check_rising(ends)
    if int(ends[-1]) != drafts.shape[0]:
        raise ValueError(f"cu_num_draft_tokens ends at {int(ends[-1])}; allowed: {drafts.shape[0]}, the drafts")
    if num_steps is not None:
        counts = ends.diff(prepend=torch.zeros_like(ends[:1]))
        validation.require_between("cu_num_draft_tokens, from one to the next,", counts, 0, num_steps)


def _check_rising(ends: Tensor) -> None:
    steps = ends.diff(prepend=torch.zeros_like(ends[:1]))
    validation.require_all(steps >= 0, "cu_num_draft_tokens", ends, "at least what is before it")
