"""What follows the walk: tokens, lengths, positions and slots of what was accepted.

Verification says which nodes of each tree are accepted (`verify.Verified`). Before the next step begins, tokens
leave the order of the batch's nodes, lengths grow, slots of rejected nodes are freed, and what the next draft starts
from is stored by request and picked up again. Both counts of `verify` occur here: `accept_token_num` without the bonus
token, `accept_lens` with it.

*Ragged* tensors concatenate one segment per request, in batch order, without padding.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields
from specsim.reference.cache_locs import assign_req_to_token_pool, ragged_segments
from specsim.reference.verify import fill_bonus_tokens

__all__ = [
    "CommitOutputs",
    "ExtendAfterDecode",
    "GatheredRows",
    "TargetCacheLoc",
    "create_extend_after_decode",
    "filter_finished_cache_loc",
    "gather_accept_tokens",
    "gather_rows",
    "get_target_cache_loc",
    "verify_commit_outputs",
    "write_req_to_token_pool",
]


@fields(
    """
    new_seq_lens  [bs] int64: seq_lens + accept_lens
    bonus_tokens  [bs] int32: `predict[accept_index[b, accept_lens[b] - 1]]`, the token after the last accepted node
    """
)
class CommitOutputs(NamedTuple):
    """What a verification adds to each request."""

    new_seq_lens: Tensor
    bonus_tokens: Tensor


@fields(
    """
    positions     [num_tokens] int64: seq_lens[b] - accept_lens[b] + j for the j-th token of segment b
    bonus_tokens  [bs] int32: the last token of each segment
    """
)
class ExtendAfterDecode(NamedTuple):
    """Where the draft model reads the accepted tokens, and the token that it continues."""

    positions: Tensor
    bonus_tokens: Tensor


@fields(
    """
    tgt_cache_loc  [num_targets] int64: the first accept_token_num + 1 slots of each request, ragged
    to_free_slots  [num_freed] int64: the last to_free_num_slots slots of each request, ragged
    """
)
class TargetCacheLoc(NamedTuple):
    """The slots of each request's nodes that stay in use, and those that are freed."""

    tgt_cache_loc: Tensor
    to_free_slots: Tensor


@fields(
    """
    topk_p         [bs, topk] any: rows of topk_p_buf
    topk_index     [bs, topk] int64: rows of topk_index_buf
    bonus_tokens   [bs] int64: entries of output_tokens_buf
    hidden_states  [bs, hidden_size] any: rows of hidden_states_buf
    """
)
class GatheredRows(NamedTuple):
    """What the next draft of each request starts from; row b is row `indices[b]` of the buffer."""

    topk_p: Tensor
    topk_index: Tensor
    bonus_tokens: Tensor
    hidden_states: Tensor


@contract(
    """
    predicts             [num_nodes] int32: token that follows each node
    accept_index         [bs, accept_width] int32, -1 to num_nodes - 1: the accepted path as node numbers in the batch,
                         then -1; a padding request has -1 only
    -> output_token_ids  [bs, accept_width] int32: `predicts[accept_index]`, -1 where accept_index is -1, which is never
                         an index
    """
)
def gather_accept_tokens(predicts: Tensor, accept_index: Tensor) -> Tensor:
    """The emitted tokens of each request, one row each, as rejection samplers return them.

    A -1 is never an index: as one it would give the last node of the last request, a plausible token. Raises ValueError
    for nodes outside the batch and for nodes after a -1. Source: vLLM's rejection sampler and FlashInfer's
    `chain_speculative_sampling`, which return this form.
    """
    if validation.enabled():
        _check_paths(accept_index)
    output_token_ids = torch.full_like(accept_index, -1)
    output_token_ids[accept_index >= 0] = predicts[accept_index[accept_index >= 0]]
    return output_token_ids


@contract(
    """
    predict       [num_nodes] int32: token that follows each node
    accept_index  [bs, accept_width] int32: the accepted path as node numbers, root first, then -1
    accept_lens   [bs] int32, 1 to accept_width: accepted tokens with the bonus
    seq_lens      [bs] int64, 0 or more: tokens before the tree
    -> CommitOutputs
    """
)
def verify_commit_outputs(
    predict: Tensor, accept_index: Tensor, accept_lens: Tensor, seq_lens: Tensor
) -> CommitOutputs:
    """The new length of each request, and the bonus token that is not part of it yet.

    The root's KV and that of the accepted drafts is new, which makes `accept_lens` tokens; the bonus token is the next
    root. Raises ValueError as `verify.fill_bonus_tokens` does, and for negative lengths.
    Source: SGLang's EAGLE worker, after verification.
    """
    return CommitOutputs(seq_lens + accept_lens, fill_bonus_tokens(predict, accept_index, accept_lens))


@contract(
    """
    accept_tokens  [num_tokens] int32: accepted tokens, ragged
    seq_lens       [bs] int64: tokens including the accepted ones
    accept_lens    [bs] int32, 1 or more: accepted tokens with the bonus
    -> ExtendAfterDecode
    """
)
def create_extend_after_decode(accept_tokens: Tensor, seq_lens: Tensor, accept_lens: Tensor) -> ExtendAfterDecode:
    """Positions of the accepted tokens, when the draft model extends by them alone.

    Raises ValueError for lengths outside these bounds and a wrong `num_tokens`.
    Source: SGLang's `create_extend_after_decode_spec_info`.
    """
    if validation.enabled():
        _check_extend(accept_tokens, seq_lens, accept_lens)
    request, within = ragged_segments(accept_lens)  # [num_tokens], [num_tokens]
    positions = (seq_lens - accept_lens)[request] + within
    return ExtendAfterDecode(positions, accept_tokens[accept_lens.cumsum(0) - 1])


@contract(
    """
    accept_token_num   [bs] int32, 0 to num_draft_tokens - 1: accepted drafts
    to_free_num_slots  [bs] int64: slots to free, at most the rejected ones; with pages fewer, because the last page in
                       use stays
    out_cache_loc      [num_nodes = bs * num_draft_tokens] int64: slot of each node
    -> TargetCacheLoc
    num_draft_tokens   int, 1 or more: nodes a tree, the root included
    """
)
def get_target_cache_loc(
    accept_token_num: Tensor, to_free_num_slots: Tensor, out_cache_loc: Tensor, num_draft_tokens: int
) -> TargetCacheLoc:
    """Part the slots of each tree: those where accepted KV goes, and those that are freed.

    Slots between the two parts belong to neither. Raises ValueError for negative counts and for parts that overlap.
    Source: SGLang's EAGLE verification with pages and `topk` above 1, its non-overlap worker.
    """
    if validation.enabled():
        _check_target(accept_token_num, to_free_num_slots, num_draft_tokens)
    slots = out_cache_loc.view(-1, num_draft_tokens)  # [bs, num_draft_tokens]
    column = torch.arange(num_draft_tokens, device=slots.device)
    freed = column >= num_draft_tokens - to_free_num_slots[:, None]  # [bs, num_draft_tokens]
    return TargetCacheLoc(slots[column <= accept_token_num[:, None]], slots[freed])


@contract(
    """
    tgt_cache_loc             [num_targets] int64: accept_token_num + 1 slots of each request, ragged
    accept_token_num          [bs] int32, 0 or more: accepted drafts
    num_accept_tokens_filter  [bs] int32: slots to keep of each request, at most accept_token_num + 1; 0 for a finished
                              one
    -> out_cache_loc          [num_kept] int64: the front of each segment, ragged
    """
)
def filter_finished_cache_loc(
    tgt_cache_loc: Tensor, accept_token_num: Tensor, num_accept_tokens_filter: Tensor
) -> Tensor:
    """Leave out the slots of requests that have finished: of each segment, keep the front.

    Raises ValueError for counts outside these bounds.
    Source: SGLang's EAGLE verification with pages and `topk` above 1, its non-overlap worker.
    """
    if validation.enabled():
        _check_filter(tgt_cache_loc, accept_token_num, num_accept_tokens_filter)
    request, within = ragged_segments(accept_token_num + 1)  # [num_targets], [num_targets]
    return tgt_cache_loc[within < num_accept_tokens_filter[request]]


@contract(
    """
    req_to_token      [pool_rows, pool_len] int32, changed in place: KV slot by row and column; nothing outside columns
                      [0, seq_lens[b]) of the rows changes
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    prefix_indices    [num_prefix] int64, 0 to 2**31 - 1: slots of the cached tokens, ragged
    prefix_lens       [bs] int64, 0 to pool_len: cached tokens
    seq_lens          [bs] int64: tokens in all, prefix_lens or more
    out_cache_loc     [num_locs] int64, 0 to 2**31 - 1: slots of the other tokens, ragged
    """
)
def write_req_to_token_pool(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    prefix_indices: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """Enter a prefill into the page table: the slots of the cached prefix, then the new ones.

    Requests that share a prefix have equal slots. Raises ValueError for rows or lengths outside the pool, duplicate
    rows and ragged tensors of a wrong size. Source: SGLang's allocation for extend.
    """
    if validation.enabled():
        pool_len = req_to_token.shape[1]
        _check_write(req_pool_indices, prefix_indices, prefix_lens, seq_lens, out_cache_loc, pool_len)
    assign_req_to_token_pool(req_pool_indices, req_to_token, torch.zeros_like(prefix_lens), prefix_lens, prefix_indices)
    assign_req_to_token_pool(req_pool_indices, req_to_token, prefix_lens, seq_lens, out_cache_loc)


@contract(
    """
    indices            [bs] int64, 0 to buffer_rows - 1: row of each request; padding requests share row 0
    topk_p_buf         [buffer_rows, topk] any: probabilities of drafts
    topk_index_buf     [buffer_rows, topk] int64: the drafts
    output_tokens_buf  [buffer_rows] int64: bonus tokens
    hidden_states_buf  [buffer_rows, hidden_size] any: hidden states
    -> GatheredRows
    """
)
def gather_rows(
    indices: Tensor, topk_p_buf: Tensor, topk_index_buf: Tensor, output_tokens_buf: Tensor, hidden_states_buf: Tensor
) -> GatheredRows:
    """Pick up what an earlier step stored for each request, one row of each buffer.

    Raises ValueError for rows outside the buffers. Source: SGLang's `gather_spec_extras`.
    """
    return GatheredRows(
        topk_p_buf[indices], topk_index_buf[indices], output_tokens_buf[indices], hidden_states_buf[indices]
    )


def _check_paths(accept_index: Tensor) -> None:
    resumes = torch.zeros_like(accept_index, dtype=torch.bool)
    resumes[:, 1:] = (accept_index[:, 1:] >= 0) & (accept_index[:, :-1] < 0)
    validation.require_all(~resumes, "accept_index", accept_index, "-1 after the first -1")


def _check_extend(accept_tokens: Tensor, seq_lens: Tensor, accept_lens: Tensor) -> None:
    validation.require_tensor("accept_tokens", accept_tokens, torch.int32, num_tokens=int(accept_lens.sum()))
    validation.require_all(seq_lens >= accept_lens, "seq_lens", seq_lens, "accept_lens of the request or more")


def _check_target(accepted: Tensor, free: Tensor, num_draft_tokens: int) -> None:
    valid = (free >= 0) & (free <= num_draft_tokens - 1 - accepted)
    allowed = "0 to num_draft_tokens - 1 - accept_token_num of the request"
    validation.require_all(valid, "to_free_num_slots", free, allowed)


def _check_filter(slots: Tensor, accepted: Tensor, keep: Tensor) -> None:
    valid = (keep >= 0) & (keep <= accepted + 1)
    validation.require_all(valid, "num_accept_tokens_filter", keep, "0 to accept_token_num + 1 of the request")
    validation.require_tensor("tgt_cache_loc", slots, torch.int64, num_targets=int((accepted + 1).sum()))


def _check_write(
    rows: Tensor, cached: Tensor, prefix_lens: Tensor, seq_lens: Tensor, new: Tensor, pool_len: int
) -> None:
    validation.require_distinct("req_pool_indices", rows)
    valid = (seq_lens >= prefix_lens) & (seq_lens <= pool_len)
    validation.require_all(valid, "seq_lens", seq_lens, f"prefix_lens of the request to {pool_len}")
    num_prefix = int(prefix_lens.sum())
    validation.require_tensor("prefix_indices", cached, torch.int64, num_prefix=num_prefix)
    validation.require_tensor("out_cache_loc", new, torch.int64, num_locs=int(seq_lens.sum()) - num_prefix)
