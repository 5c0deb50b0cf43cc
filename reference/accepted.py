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
from specsim.reference.cache_locs import assign_req_to_token_pool, check_rows, ragged_segments
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

_MOST = 2**31 - 1


class CommitOutputs(NamedTuple):
    """What a verification adds to each request.

    new_seq_lens  [bs] int64: `seq_lens + accept_lens`
    bonus_tokens  [bs] int32: the token after the last accepted node
    """

    new_seq_lens: Tensor
    bonus_tokens: Tensor


class ExtendAfterDecode(NamedTuple):
    """Where the draft model reads the accepted tokens, and the token that it continues.

    positions     [num_tokens] int64, ragged: the last `accept_lens[b]` positions before `seq_lens[b]`
    bonus_tokens  [bs] int32: the last token of each segment
    """

    positions: Tensor
    bonus_tokens: Tensor


class TargetCacheLoc(NamedTuple):
    """The slots of each request's nodes that stay in use, and those that are freed.

    tgt_cache_loc  [num_targets] int64, ragged: the first `accept_token_num[b] + 1` of each request
    to_free_slots  [num_freed] int64, ragged: the last `to_free_num_slots[b]` of each request
    """

    tgt_cache_loc: Tensor
    to_free_slots: Tensor


class GatheredRows(NamedTuple):
    """What the next draft of each request starts from; row b is row `indices[b]` of the buffer.

    topk_p         [bs, num_kept], of the buffer's dtype
    topk_index     [bs, num_kept] int64
    bonus_tokens   [bs] int64
    hidden_states  [bs, hidden_size], of the buffer's dtype
    """

    topk_p: Tensor
    topk_index: Tensor
    bonus_tokens: Tensor
    hidden_states: Tensor


def gather_accept_tokens(predicts: Tensor, accept_index: Tensor) -> Tensor:
    """The emitted tokens of each request, one row each, as rejection samplers return them.

    predicts      [num_nodes] int32, by node: the token that follows the node
    accept_index  [bs, accept_width] int32: accepted path as node numbers in the batch, then -1; a padding request
                  has -1 only

    Returns output_token_ids [bs, accept_width] int32: `predicts[accept_index]`, -1 where `accept_index` is. A -1 is
    never an index: as one it would give the last node of the last request, a plausible token. Raises ValueError for
    nodes outside the batch and for nodes after a -1. Source: vLLM's rejection sampler and FlashInfer's
    `chain_speculative_sampling`, which return this form.
    """
    if validation.enabled():
        _check_paths(predicts, accept_index)
    output_token_ids = torch.full_like(accept_index, -1)
    output_token_ids[accept_index >= 0] = predicts[accept_index[accept_index >= 0]]
    return output_token_ids


def verify_commit_outputs(
    predict: Tensor, accept_index: Tensor, accept_lens: Tensor, seq_lens: Tensor
) -> CommitOutputs:
    """The new length of each request, and the bonus token that is not part of it yet.

    predict       [num_nodes] int32, by node
    accept_index  [bs, accept_width] int32: accepted path as node numbers, then -1
    accept_lens   [bs] int32: length of that path, 1 to `accept_width`
    seq_lens      [bs] int64: tokens before the tree

    The root's KV and that of the accepted drafts is new, which makes `accept_lens` tokens; the bonus token is the next
    root. Raises ValueError as `verify.fill_bonus_tokens` does, and for negative lengths.
    Source: SGLang's EAGLE worker, after verification.
    """
    if validation.enabled():
        _require_each("seq_lens", seq_lens, torch.int64, accept_index.shape[0], 0, _MOST, "0 or more")
    return CommitOutputs(seq_lens + accept_lens, fill_bonus_tokens(predict, accept_index, accept_lens))


def create_extend_after_decode(accept_tokens: Tensor, seq_lens: Tensor, accept_lens: Tensor) -> ExtendAfterDecode:
    """Positions of the accepted tokens, when the draft model extends by them alone.

    accept_tokens  [num_tokens] int32, ragged, `num_tokens` = sum of `accept_lens`
    seq_lens       [bs] int64, tokens including the accepted ones; `accept_lens[b]` or more
    accept_lens    [bs] int32, accepted tokens with the bonus, 1 or more

    Raises ValueError for lengths outside these bounds and a wrong `num_tokens`.
    Source: SGLang's `create_extend_after_decode_spec_info`.
    """
    if validation.enabled():
        _check_extend(accept_tokens, seq_lens, accept_lens)
    request, within = ragged_segments(accept_lens)  # [num_tokens], [num_tokens]
    positions = (seq_lens - accept_lens)[request] + within
    return ExtendAfterDecode(positions, accept_tokens[accept_lens.cumsum(0) - 1])


def get_target_cache_loc(
    accept_token_num: Tensor, to_free_num_slots: Tensor, out_cache_loc: Tensor, num_draft_tokens: int
) -> TargetCacheLoc:
    """Part the slots of each tree: those where accepted KV goes, and those that are freed.

    accept_token_num   [bs] int32: accepted drafts
    to_free_num_slots  [bs] int64: slots to free; with pages fewer than are rejected, because the last page in use stays
    out_cache_loc      [bs * num_draft_tokens] int64: the slot of each node
    num_draft_tokens   nodes a tree

    Slots between the two parts belong to neither. Raises ValueError for negative counts and for parts that overlap.
    Source: SGLang's EAGLE verification with pages and `topk` above 1, its non-overlap worker.
    """
    if validation.enabled():
        _check_target(accept_token_num, to_free_num_slots, out_cache_loc, num_draft_tokens)
    slots = out_cache_loc.view(-1, num_draft_tokens)  # [bs, num_draft_tokens]
    column = torch.arange(num_draft_tokens, device=slots.device)
    freed = column >= num_draft_tokens - to_free_num_slots[:, None]  # [bs, num_draft_tokens]
    return TargetCacheLoc(slots[column <= accept_token_num[:, None]], slots[freed])


def filter_finished_cache_loc(
    tgt_cache_loc: Tensor, accept_token_num: Tensor, num_accept_tokens_filter: Tensor
) -> Tensor:
    """Leave out the slots of requests that have finished: of each segment, keep the front.

    tgt_cache_loc             [num_targets] int64, ragged, `accept_token_num[b] + 1` slots of each request
    accept_token_num          [bs] int32: accepted drafts
    num_accept_tokens_filter  [bs] int32: slots to keep, 0 to `accept_token_num[b] + 1`; 0 for a finished request

    Returns out_cache_loc [num_kept] int64, ragged. Raises ValueError for counts outside these bounds.
    Source: SGLang's EAGLE verification with pages and `topk` above 1, its non-overlap worker.
    """
    if validation.enabled():
        _check_filter(tgt_cache_loc, accept_token_num, num_accept_tokens_filter)
    request, within = ragged_segments(accept_token_num + 1)  # [num_targets], [num_targets]
    return tgt_cache_loc[within < num_accept_tokens_filter[request]]


def write_req_to_token_pool(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    prefix_indices: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """Enter a prefill into the page table: the slots of the cached prefix, then the new ones.

    req_to_token      [pool_rows, pool_len] int32, changed in place: row `req_pool_indices[b]`, columns
                      `[0, seq_lens[b])`; nothing else in it changes
    req_pool_indices  [bs] int64, distinct
    prefix_indices    [num_prefix] int64, ragged: the slots of each request's first `prefix_lens[b]` tokens
    prefix_lens       [bs] int64, 0 for a request without a cached prefix
    seq_lens          [bs] int64, `prefix_lens[b]` or more
    out_cache_loc     [num_locs] int64, ragged: the slots of the other `seq_lens[b] - prefix_lens[b]` tokens

    Requests that share a prefix have equal slots. Raises ValueError for rows or lengths outside the pool, duplicate
    rows and ragged tensors of a wrong size. Source: SGLang's allocation for extend.
    """
    if validation.enabled():
        _check_write(req_to_token, req_pool_indices, prefix_indices, prefix_lens, seq_lens, out_cache_loc)
    assign_req_to_token_pool(req_pool_indices, req_to_token, torch.zeros_like(prefix_lens), prefix_lens, prefix_indices)
    assign_req_to_token_pool(req_pool_indices, req_to_token, prefix_lens, seq_lens, out_cache_loc)


def gather_rows(
    indices: Tensor, topk_p_buf: Tensor, topk_index_buf: Tensor, output_tokens_buf: Tensor, hidden_states_buf: Tensor
) -> GatheredRows:
    """Pick up what an earlier step stored for each request, one row of each buffer.

    indices            [bs] int64: rows; padding requests share row 0
    topk_p_buf         [num_rows, num_kept], float
    topk_index_buf     [num_rows, num_kept] int64
    output_tokens_buf  [num_rows] int64
    hidden_states_buf  [num_rows, hidden_size] of any dtype

    Raises ValueError for rows outside the buffers. Source: SGLang's `gather_spec_extras`.
    """
    if validation.enabled():
        _check_gather(indices, topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf)
    return GatheredRows(
        topk_p_buf[indices], topk_index_buf[indices], output_tokens_buf[indices], hidden_states_buf[indices]
    )


def _check_paths(predicts: Tensor, accept_index: Tensor) -> None:
    validation.require_tensor("predicts", predicts, torch.int32, num_nodes=None)
    validation.require_tensor("accept_index", accept_index, torch.int32, bs=None, accept_width=None)
    validation.require_between("accept_index", accept_index, -1, predicts.shape[0] - 1)
    resumes = torch.zeros_like(accept_index, dtype=torch.bool)
    resumes[:, 1:] = (accept_index[:, 1:] >= 0) & (accept_index[:, :-1] < 0)
    validation.require_all(~resumes, "accept_index", accept_index, "-1 after the first -1")


def _check_extend(accept_tokens: Tensor, seq_lens: Tensor, accept_lens: Tensor) -> None:
    _require_each("accept_lens", accept_lens, torch.int32, None, 1, _MOST, "1 or more")
    validation.require_tensor("accept_tokens", accept_tokens, torch.int32, num_tokens=int(accept_lens.sum()))
    longer = "accept_lens of the request or more"
    _require_each("seq_lens", seq_lens, torch.int64, accept_lens.shape[0], accept_lens, _MOST, longer)


def _check_target(accepted: Tensor, free: Tensor, slots: Tensor, num_draft_tokens: int) -> None:
    validation.require_scalar("num_draft_tokens", num_draft_tokens, 1)
    most = num_draft_tokens - 1
    _require_each("accept_token_num", accepted, torch.int32, None, 0, most, f"0 to {most}")
    rejected = "0 to num_draft_tokens - 1 - accept_token_num of the request"
    _require_each("to_free_num_slots", free, torch.int64, accepted.shape[0], 0, most - accepted, rejected)
    validation.require_tensor("out_cache_loc", slots, torch.int64, num_nodes=accepted.shape[0] * num_draft_tokens)


def _check_filter(slots: Tensor, accepted: Tensor, keep: Tensor) -> None:
    _require_each("accept_token_num", accepted, torch.int32, None, 0, _MOST, "0 or more")
    allowed = "0 to accept_token_num + 1 of the request"
    _require_each("num_accept_tokens_filter", keep, torch.int32, accepted.shape[0], 0, accepted + 1, allowed)
    validation.require_tensor("tgt_cache_loc", slots, torch.int64, num_targets=int((accepted + 1).sum()))


def _check_write(
    table: Tensor, rows: Tensor, cached: Tensor, prefix_lens: Tensor, seq_lens: Tensor, new: Tensor
) -> None:
    bs, pool_len = check_rows(rows, table)
    validation.require_distinct("req_pool_indices", rows)
    _require_each("prefix_lens", prefix_lens, torch.int64, bs, 0, pool_len, f"0 to {pool_len}")
    allowed = f"prefix_lens of the request to {pool_len}"
    _require_each("seq_lens", seq_lens, torch.int64, bs, prefix_lens, pool_len, allowed)
    num_prefix = int(prefix_lens.sum())
    validation.require_tensor("prefix_indices", cached, torch.int64, num_prefix=num_prefix)
    validation.require_tensor("out_cache_loc", new, torch.int64, num_locs=int(seq_lens.sum()) - num_prefix)
    validation.require_between("prefix_indices", cached, 0, 2**31 - 1)
    validation.require_between("out_cache_loc", new, 0, 2**31 - 1)


def _check_gather(indices: Tensor, topk_p: Tensor, topk_index: Tensor, tokens: Tensor, hidden_states: Tensor) -> None:
    validation.require_tensor("topk_p_buf", topk_p, topk_p.dtype, num_rows=None, num_kept=None)
    rows, kept = topk_p.shape
    validation.require_tensor("topk_index_buf", topk_index, torch.int64, num_rows=rows, num_kept=kept)
    validation.require_tensor("output_tokens_buf", tokens, torch.int64, num_rows=rows)
    validation.require_tensor("hidden_states_buf", hidden_states, hidden_states.dtype, num_rows=rows, hidden_size=None)
    _require_each("indices", indices, torch.int64, None, 0, rows - 1, f"0 to {rows - 1}")


def _require_each(
    name: str, values: Tensor, dtype: torch.dtype, bs: int | None, low: Tensor | int, high: Tensor | int, allowed: str
) -> None:
    """A number for each request, within bounds that may be the request's own."""
    validation.require_tensor(name, values, dtype, bs=bs)
    validation.require_all((values >= low) & (values <= high), name, values, allowed)
