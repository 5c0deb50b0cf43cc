"""Rejections that are put off: a draft that the target does not accept is let pass where the next ones are accepted.

What is emitted is then no longer the target's distribution. Where a rejection is put off, the inputs of the
verification (`ragged_drafts`) are changed so that it accepts. Drafts lie in one flat row, request by request.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference.argument_tables import contract
from specsim.reference.cache_locs import ragged_segments
from specsim.reference.ragged_drafts import check_ends


@contract(
    """
    cu_num_draft_tokens  [num_ends] int32: where the drafts of each request end
    draft_token_ids      [num_drafts] int32: drafted tokens, request by request; -1 for one that must not be verified
    target_argmax        [num_drafts] int64, changed in place: the target's token at each draft; the draft itself where
                         its rejection is put off
    target_logits        [num_drafts, vocab_size] float: the target's logits at each draft
    entropy              [num_drafts] float: of the target's distribution at each draft
    is_greedy            [bs] bool: requests at temperature 0; others are left alone
    threshold            [1] float: entropy from which on a rejection is put off
    window               int, 1 or more: drafts after it that must be accepted
    """
)
def defer_rejections_greedy(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    target_logits: Tensor,
    entropy: Tensor,
    is_greedy: Tensor,
    threshold: Tensor,
    window: int,
) -> None:
    """Take a draft for the target's token where the target is unsure and goes on as the drafts do.

    A draft whose logit is -inf is no token that can follow. Raises ValueError for ends that fall or do not end at the
    last draft. Source: FLy, as vLLM's first model runner has it.
    """
    owner, left = _owners(cu_num_draft_tokens, draft_token_ids)
    accepts = draft_token_ids == target_argmax
    valid = (draft_token_ids >= 0) & (draft_token_ids < target_logits.shape[1])
    logit = _at(target_logits, draft_token_ids, valid)
    puts_off = valid & ~accepts & (logit > -torch.inf) & (entropy >= threshold) & is_greedy[owner]
    puts_off &= _next_accepted(accepts, left, window)
    target_argmax[puts_off] = draft_token_ids[puts_off].to(torch.int64)


@contract(
    """
    cu_num_draft_tokens  [num_ends] int32: where the drafts of each request end
    draft_token_ids      [num_drafts] int32: drafted tokens, request by request; -1 for one that must not be verified
    draft_probs          [num_drafts, vocab_size] float: the distribution of each draft; not read when has_draft_probs
                         is 0
    target_probs         [num_drafts, vocab_size] float: the target's distribution at each draft
    uniform_probs        [num_drafts] float64, changed in place: uniform draw in (0, 1) of each draft; 0 where its
                         rejection is put off
    entropy              [num_drafts] float: of the target's distribution at each draft
    is_greedy            [bs] bool: requests at temperature 0, which are left alone
    threshold            [1] float: entropy from which on a rejection is put off
    window               int, 1 or more: drafts after it that must be accepted
    has_draft_probs      int: 0: every draft was certain, and draft_probs is not read
    """
)
def defer_rejections(
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_probs: Tensor,
    entropy: Tensor,
    is_greedy: Tensor,
    threshold: Tensor,
    window: int,
    has_draft_probs: int,
) -> None:
    """Draw 0 for a draft that would be rejected where the target is unsure and the next drafts are accepted.

    Raises ValueError for ends that fall or do not end at the last draft.
    Source: FLy, as vLLM's first model runner has it.
    """
    owner, left = _owners(cu_num_draft_tokens, draft_token_ids)
    valid = (draft_token_ids >= 0) & (draft_token_ids < target_probs.shape[1])
    p = _at(target_probs, draft_token_ids, valid)
    q = _at(draft_probs, draft_token_ids, valid) if has_draft_probs else torch.ones_like(p)
    accepts = valid & (q > 0) & (p.double() >= uniform_probs * q.double())
    puts_off = valid & ~accepts & (q > 0) & (p > 0) & (entropy >= threshold) & ~is_greedy[owner]
    uniform_probs[puts_off & _next_accepted(accepts, left, window)] = 0.0


def _owners(ends: Tensor, drafts: Tensor) -> tuple[Tensor, Tensor]:
    """Of each draft the request that it is of, and how many drafts of that one come after it."""
    check_ends(ends, drafts, None)
    counts = ends.diff(prepend=torch.zeros_like(ends[:1])).long()
    owner, place = ragged_segments(counts)
    return owner, counts[owner] - 1 - place


def _at(rows: Tensor, tokens: Tensor, valid: Tensor) -> Tensor:
    """What each row has of its token; 0 where that is none."""
    found = rows.gather(1, torch.where(valid, tokens, 0).long()[:, None])[:, 0]
    return torch.where(valid, found, 0.0)


def _next_accepted(accepts: Tensor, left: Tensor, window: int) -> Tensor:
    """Whether the next `window` drafts of the same request are there, and all accepted."""
    place = torch.arange(len(accepts), device=accepts.device)[:, None]
    ahead = place + torch.arange(1, window + 1, device=accepts.device)  # [num_drafts, window]
    return (left >= window) & accepts[ahead.clamp(max=len(accepts) - 1)].all(dim=1)
