"""Verification of ragged drafts, and what follows it, as engines do it that keep each request's drafts in one flat row.

Request b has the rows `cu_num_draft_tokens[b - 1]` (0 for the first) to `cu_num_draft_tokens[b]`, exclusive, of what is
`[num_drafts, ...]`: none, or up to `num_steps`. What a step emits is a row of `num_steps + 1` tokens, padded with -1.
The token after a path of accepted drafts, the bonus token, has been drawn before. A token in place of a rejected draft
is drawn by an exponential race: `race` is exponential noise, and the token that maximises weight / race has the law of
the weights.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation

PLACEHOLDER = -1


class PreparedInputs(NamedTuple):
    """Where a draft model's next step reads a request [bs] int32, and how many of its drafts were rejected."""

    token_indices_to_sample: Tensor
    num_rejected_tokens: Tensor


class NextTokens(NamedTuple):
    """The token that a request goes on with [bs] int32, and how many of its sampled ones are valid."""

    next_token_ids: Tensor
    valid_sampled_tokens_count: Tensor


class SlotMapping(NamedTuple):
    """The next positions [bs] int64 and their slots [padded_bs] int64, -1 for none."""

    clamped_positions: Tensor
    slot_mapping: Tensor


class DraftInputs(NamedTuple):
    """Inputs of a draft model.

    input_ids             [num_out] int32
    positions             [num_out] int64
    is_rejected           [num_out] bool: padding where drafts were rejected
    is_masked             [num_out] bool: slots of parallel drafts
    new_token_indices     [bs * num_padding_slots] int32: places of the new token and of the slots after it
    hidden_state_mapping  [num_tokens] int32: where each of the target's tokens is among the inputs, if shifted
    """

    input_ids: Tensor
    positions: Tensor
    is_rejected: Tensor
    is_masked: Tensor
    new_token_indices: Tensor
    hidden_state_mapping: Tensor


def verify_ragged_greedy(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    bonus_token_ids: Tensor,
    is_greedy: Tensor,
    num_steps: int,
) -> Tensor:
    """Emit the target's tokens up to the first draft that differs from them, that one's included.

    cu_num_draft_tokens  [bs] int32: where the drafts of each request end
    draft_token_ids      [num_drafts] int32
    target_argmax        [num_drafts] int64: the target's token at each draft
    bonus_token_ids      [bs] int32: the target's token after all drafts, emitted when all are right
    is_greedy            [bs] bool: the others are left alone
    num_steps            drafts that a request may have

    Returns [bs, num_steps + 1] int32, -1 where nothing is emitted.
    Raises ValueError for ends that fall or do not end at the last draft.
    Source: the verification of Leviathan et al. (arXiv 2211.17192) at temperature 0, as vLLM v1 keeps it.
    """
    _check_ends(cu_num_draft_tokens, draft_token_ids, num_steps)
    place, has_draft, count = _grid(cu_num_draft_tokens, num_steps)
    target = _padded(target_argmax, place)
    accepts = has_draft & (_padded(draft_token_ids, place) == target)
    return _emitted(accepts, target, bonus_token_ids, count, has_draft, is_greedy)


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

    draft_probs          [num_drafts, V] float: the law of each draft; not read without `has_draft_probs`
    target_probs         [num_drafts, V] float
    recovered_token_ids  [num_drafts] int32: what stands in for each draft if it is rejected
    uniform_probs        [num_drafts] float64: coins in [0, 1)
    has_draft_probs      0: every draft was certain, its draft probability is 1

    A draft x is accepted iff u q(x) < p(x) and q(x) > 0. Requests of `is_greedy` are left alone; the others as for
    `verify_ragged_greedy`, and so the result. Raises ValueError as that does.
    Source: Leviathan et al. (arXiv 2211.17192), algorithm 1; the comparison is strict, so that a coin of 0 accepts
    no token of probability 0.
    """
    _check_ends(cu_num_draft_tokens, draft_token_ids, num_steps)
    place, has_draft, count = _grid(cu_num_draft_tokens, num_steps)
    drafted = draft_token_ids.long()[:, None]
    p = target_probs.gather(1, drafted)[:, 0].double()
    q = draft_probs.gather(1, drafted)[:, 0].double() if has_draft_probs else torch.ones_like(p)
    accepts = (uniform_probs * q < p) & (q > 0)  # [num_drafts]
    tokens = torch.where(accepts, draft_token_ids, recovered_token_ids)
    accepts = has_draft & _padded(accepts, place)
    return _emitted(accepts, _padded(tokens, place), bonus_token_ids, count, has_draft, ~is_greedy)


def sample_recovered_tokens(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    race: Tensor,
    has_draft_probs: int,
) -> Tensor:
    """The token that stands in for each draft if it is rejected: of the positive part of p - q, by a race.

    race  [bs, V] float, above 0: the noise of each request, which all its drafts share

    Without `has_draft_probs` the draft's own probability is taken out of p. Returns [num_drafts] int32, of equals the
    lowest token; 0 where nothing is left, which is of no account: such a draft is never rejected.
    Raises ValueError for ends that fall, and noise that is not above 0.
    Source: Leviathan et al. (arXiv 2211.17192); the race as Gumbel-max, Maddison et al. (arXiv 1411.0030).
    """
    _check_ends(cu_num_draft_tokens, draft_token_ids, None)
    if validation.enabled():
        validation.require_all(race > 0, "race", race, "above 0")
    rows = torch.arange(draft_token_ids.shape[0], dtype=cu_num_draft_tokens.dtype, device=race.device)
    owner = torch.searchsorted(cu_num_draft_tokens.contiguous(), rows, right=True)
    if has_draft_probs:
        left = (target_probs - draft_probs).clamp(min=0)
    else:
        left = target_probs.scatter(1, draft_token_ids.long()[:, None], 0.0)
    return (left / race[owner]).argmax(dim=1).to(torch.int32)


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

    Arguments as above. Greedy requests follow the argmax of `target_probs`. Returns [bs, num_steps + 1] int32, padded
    with -1. Raises ValueError as the parts do.
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


def expand_to_drafts(values: Tensor, cu_num_draft_tokens: Tensor, replace_from: int, replace_to: int) -> Tensor:
    """The value of each request, once for each of its drafts: [bs] float -> [num_drafts] float.

    `replace_from` becomes `replace_to`, as engines do with the temperature that stands for greedy.
    Raises ValueError for ends that fall.
    """
    if validation.enabled():
        _check_rising(cu_num_draft_tokens)
    changed = torch.where(values == replace_from, torch.full_like(values, replace_to), values)
    counts = cu_num_draft_tokens.diff(prepend=torch.zeros_like(cu_num_draft_tokens[:1]))
    return changed.repeat_interleave(counts.long())


def prepare_inputs_padded(
    cu_num_draft_tokens: Tensor, valid_sampled_tokens_count: Tensor, query_start_loc: Tensor
) -> PreparedInputs:
    """Where each request's draft goes on, when rejected drafts stay in the batch as padding.

    valid_sampled_tokens_count  [bs] int32: accepted drafts and one more
    query_start_loc             [bs + 1] int32: where the tokens of each request start, and the last ones end

    A request without drafts has rejected none. Its place is the last of its tokens that is no rejected draft.
    Raises ValueError for ends and starts that fall. Source: vLLM's padded drafting batch.
    """
    if validation.enabled():
        _check_rising(cu_num_draft_tokens)
        _check_rising(query_start_loc)
    counts = cu_num_draft_tokens.diff(prepend=torch.zeros_like(cu_num_draft_tokens[:1]))
    rejected = torch.where(counts > 0, counts + 1 - valid_sampled_tokens_count, 0)
    return PreparedInputs((query_start_loc[1:] - 1 - rejected).to(torch.int32), rejected.to(torch.int32))


def prepare_next_token_padded(
    sampled_token_ids: Tensor, discard_request_mask: Tensor, backup_next_token_ids: Tensor, vocab_size: int
) -> NextTokens:
    """The last valid token of what each request sampled, and how many are.

    sampled_token_ids      [bs, num_steps + 1] int32: valid ones, 0 to vocab_size - 1, before all others
    discard_request_mask   [bs] bool: what these sampled does not count
    backup_next_token_ids  [bs] int32: where nothing is valid

    Raises ValueError for shapes that do not fit. Source: vLLM's padded drafting batch.
    """
    bs = sampled_token_ids.shape[0]
    if validation.enabled():
        validation.require_tensor("sampled_token_ids", sampled_token_ids, torch.int32, bs=None, accept_width=None)
        validation.require_tensor("discard_request_mask", discard_request_mask, torch.bool, bs=bs)
        validation.require_tensor("backup_next_token_ids", backup_next_token_ids, torch.int32, bs=bs)
    valid = (sampled_token_ids >= 0) & (sampled_token_ids < vocab_size) & ~discard_request_mask[:, None]
    count = valid.sum(dim=1)
    last = sampled_token_ids.gather(1, (count - 1).clamp(min=0)[:, None])[:, 0]
    return NextTokens(torch.where(count > 0, last, backup_next_token_ids), count.to(torch.int32))


def step_slot_mapping(
    positions: Tensor, block_table: Tensor, seq_lens: Tensor, page_size: int, max_model_len: int, padded_bs: int
) -> SlotMapping:
    """One drafting step further: the next position of each request and the slot that its KV goes to.

    positions    [bs] int64: of the last token
    block_table  [bs, num_pages] int32: the pages of each request
    seq_lens     [bs] int32, one more in place
    padded_bs    at least bs: requests that pad a captured batch have slot -1

    A request whose next position reaches `max_model_len` has position 0, no slot (-1) and length 1 instead.
    Raises ValueError for positions and batches out of range. Source: vLLM's fused drafting step.
    """
    if validation.enabled():
        validation.require_scalar("padded_bs", padded_bs, positions.shape[0])
        validation.require_between("positions", positions, 0, max_model_len - 1)
    following = positions + 1
    is_over = following >= max_model_len
    clamped = torch.where(is_over, 0, following)
    page = block_table.gather(1, (clamped // page_size).clamp(max=block_table.shape[1] - 1)[:, None])[:, 0]
    slot = torch.where(is_over, PLACEHOLDER, page.long() * page_size + clamped % page_size)
    padding = slot.new_full((padded_bs - slot.shape[0],), PLACEHOLDER)
    seq_lens.copy_(torch.where(is_over, 1, seq_lens + 1).clamp(max=max_model_len))
    return SlotMapping(clamped, torch.cat([slot, padding]))


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

    target_token_ids   [num_tokens] int32, target_positions [num_tokens] int64: of the target's step, request by request
    next_token_ids     [bs] int32: what each request goes on with
    query_start_loc    [bs + 1] int32: where the tokens of each request start, and the last ones end
    query_end_loc      [bs] int32: its last token that is no rejected draft
    num_padding_slots  1 or more: the new token and the slots after it, which hold `parallel_drafting_token_id`
    shift_input_ids    1: each request's first token is left out, as a drafter that reads hidden states wants it

    Request b has its tokens, from the second on if shifted, up to `query_end_loc`; then the new token; then the slots;
    then as many as were rejected, which hold `padding_token_id` at position 0. Positions count from its first one.
    Raises ValueError for starts that fall. Source: vLLM's unified drafting inputs.
    """
    if validation.enabled():
        _check_rising(query_start_loc)
        validation.require_scalar("num_padding_slots", num_padding_slots, 1)
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


def _grid(ends: Tensor, num_steps: int) -> tuple[Tensor, Tensor, Tensor]:
    """The row of each request's i-th draft [bs, S], 0 where there is none, whether there is one, and how many [bs]."""
    counts = ends.diff(prepend=torch.zeros_like(ends[:1])).long()
    step = torch.arange(num_steps, device=ends.device)
    has_draft = step < counts[:, None]
    return torch.where(has_draft, (ends.long() - counts)[:, None] + step, 0), has_draft, counts


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
    has_one = torch.cat([has_draft, torch.zeros_like(has_draft[:, :1])], dim=1)
    emits = has_one & (step <= accepted[:, None])
    result = torch.where(emits, wide, PLACEHOLDER)
    is_bonus = (step == count[:, None]) & (accepted == count)[:, None]
    result = torch.where(is_bonus, bonus.to(torch.int32)[:, None], result)
    return torch.where(chosen[:, None], result, PLACEHOLDER)


def _check_ends(ends: Tensor, drafts: Tensor, num_steps: int | None) -> None:
    if not validation.enabled():
        return
    validation.require_tensor("cu_num_draft_tokens", ends, torch.int32, bs=None)
    validation.require_tensor("draft_token_ids", drafts, torch.int32, num_drafts=None)
    _check_rising(ends)
    if int(ends[-1]) != drafts.shape[0]:
        raise ValueError(f"cu_num_draft_tokens ends at {int(ends[-1])}; allowed: {drafts.shape[0]}, the drafts")
    if num_steps is not None:
        counts = ends.diff(prepend=torch.zeros_like(ends[:1]))
        validation.require_between("cu_num_draft_tokens, from one to the next,", counts, 0, num_steps)


def _check_rising(ends: Tensor) -> None:
    steps = ends.diff(prepend=torch.zeros_like(ends[:1]))
    validation.require_all(steps >= 0, "cu_num_draft_tokens", ends, "at least what is before it")
