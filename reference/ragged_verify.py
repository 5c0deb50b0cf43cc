"""Chains of which a prefix is verified, as long as the draft model's confidence says.

A draft model that gives a whole chain at once, and its confidence in each draft, leaves a choice: how many nodes of
each request's chain, `verify_lens`, are worth their place in a batch whose size is given. The rows of a verification
lie *packed*, one request after the other; results lie *strided* again, `num_draft_tokens` rows for each request.

A cut changes no distribution: the last verified row still decides about the first draft that was cut. If that draft is
accepted it is the bonus, else what the row says instead (`cap_trim_lens` counts the drafts that were right and cut).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields
from specsim.reference.cache_locs import ragged_segments

NO_SLOT = -1


@fields(
    """
    qo_indptr         [num_starts] int32: where each request's rows start, and the last ones end
    extend_start_loc  [num_chains] int32: where they start
    """
)
class RaggedStarts(NamedTuple):
    """Where each request's rows start [num_chains], and also where the last ones end [num_starts], int32."""

    qo_indptr: Tensor
    extend_start_loc: Tensor


@fields(
    """
    verify_ids        [num_packed] int64: token of each packed row; 0 behind the last
    positions         [num_packed] int64: its position in its request; 0 behind the last
    verify_cache_loc  [num_packed] int64: its KV slot; 0 behind the last
    """
)
class RaggedWindow(NamedTuple):
    """The packed rows of a verification: tokens, positions and KV slots, each [num_packed] int64."""

    verify_ids: Tensor
    positions: Tensor
    verify_cache_loc: Tensor


@fields(
    """
    swa_loc    [num_nodes] int32: slot of each node in the pool of the window; -1 if it is not committed
    positions  [num_nodes] int64: its position in its request
    """
)
class InjectLayout(NamedTuple):
    """Where the KV of each node is written, [num_nodes] int32, and its position, [num_nodes] int64."""

    swa_loc: Tensor
    positions: Tensor


@fields(
    """
    correct_len    [bs] int32: accepted drafts
    bonus          [bs] int64: the token after them
    cap_trim_lens  [bs] int32: drafts that were right, behind the cut
    """
)
class ChainAccepted(NamedTuple):
    """Of each request its accepted drafts and those that were cut, [bs] int32, and the bonus token [bs] int64."""

    correct_len: Tensor
    bonus: Tensor
    cap_trim_lens: Tensor


@fields(
    """
    commit_lens   [bs] int32: tokens of each request that get KV, the accepted drafts and the root
    new_seq_lens  [bs] int64: its length with them
    """
)
class CommitLens(NamedTuple):
    """Of each request the committed tokens [bs] int32, and its new length [bs] int64."""

    commit_lens: Tensor
    new_seq_lens: Tensor


@fields(
    """
    correct_len   [bs] int32: accepted drafts
    bonus         [bs] int64: the token after them
    commit_lens   [bs] int32: tokens of each request that get KV, the accepted drafts and the root
    new_seq_lens  [bs] int64: its length with them
    out_tokens    [bs, num_draft_tokens] int64: the drafts, with the bonus in the place of the first that is not
                  accepted; 0 in the last column unless the bonus is there
    """
)
class GreedyCommitted(NamedTuple):
    """What `accept_chain_greedy`, `finalize_accept_lens` and `build_out_tokens` give for whole chains."""

    correct_len: Tensor
    bonus: Tensor
    commit_lens: Tensor
    new_seq_lens: Tensor
    out_tokens: Tensor


@contract(
    """
    confidence      [num_chains, num_steps] float, 0 to 1: of each draft, that it is accepted if those before it are
    survival_eps    [1] float, 0 or more: drafts that are accepted with a smaller probability are not verified
    budget          int, 0 or more: drafts of the batch that may be verified, beyond the least
    min_verify_len  int, 0 or more: nodes of each chain that are verified at least; with 0 the first draft adds none
    max_verify_len  int, 1 or more: nodes of each chain that are verified at most
    -> verify_lens  [num_chains] int32: nodes of each chain that are verified, the root among them
    """
)
def schedule_verify_lens(
    confidence: Tensor, survival_eps: Tensor, budget: int, min_verify_len: int, max_verify_len: int
) -> Tensor:
    """Spend a budget on the drafts that are most likely to be accepted.

    Of equal ones it is spent on the earlier in its chain, then on that of the earlier request. Raises ValueError for a
    confidence outside 0 to 1 and for lengths that exclude each other. Source: SGLang's DSpark.
    """
    if validation.enabled():
        validation.require_scalar("max_verify_len", max_verify_len, min_verify_len)
    survival = confidence.cumprod(dim=1)[:, :max_verify_len].T  # [S, num_chains]
    chosen = survival.flatten().sort(descending=True, stable=True).indices[:budget]
    is_likely = (survival.flatten()[chosen] >= survival_eps).to(torch.int64)
    extra = torch.zeros_like(confidence[:, 0], dtype=torch.int64).index_add(0, chosen % len(confidence), is_likely)
    return (min_verify_len + extra).clamp(max(1, min_verify_len), max_verify_len).to(torch.int32)


@contract(
    """
    verify_lens     [num_chains] int32, 1 or more: nodes of each chain that are verified
    num_packed      int: rows of the graph that runs, as many as those together or more
    padded_bs       int: requests of that graph, num_chains or more
    -> padded_lens  [padded_bs] int32: rows of each request of the graph, which add up to num_packed
    """
)
def pad_verify_lens(verify_lens: Tensor, num_packed: int, padded_bs: int) -> Tensor:
    """Share the rows that are left over among the requests that pad the batch.

    They get as many each, the first ones one more; where none pads the batch, its last request gets them all.
    Raises ValueError where the graph has too few rows or requests. Source: SGLang's DSpark.
    """
    bs, spare = len(verify_lens), padded_bs - len(verify_lens)
    rest = num_packed - int(verify_lens.sum())
    if validation.enabled():
        validation.require_scalar("padded_bs", padded_bs, bs)
        validation.require_scalar("num_packed", num_packed, num_packed - rest)
    if not spare:
        return torch.cat([verify_lens[:-1], verify_lens[-1:] + rest])
    share = rest // spare + (torch.arange(spare, device=verify_lens.device) < rest % spare)
    return torch.cat([verify_lens, share.to(torch.int32)])


@contract(
    """
    verify_lens  [num_chains] int32, 0 or more: nodes of each chain that are verified
    -> RaggedStarts
    """
)
def verify_indptr(verify_lens: Tensor) -> RaggedStarts:
    """Say where each request's packed rows start. Source: SGLang's DSpark."""
    starts = torch.cat([torch.zeros_like(verify_lens[:1]), verify_lens.cumsum(0)]).to(torch.int32)
    return RaggedStarts(starts, starts[:-1].clone())


@contract(
    """
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    seq_lens          [bs] int64, 0 or more: length of each request before the drafts
    verify_lens       [bs] int32, 1 to num_draft_tokens: nodes of each chain that are verified
    candidates        [bs, num_draft_tokens] int64: the root, then the drafts
    num_packed        int: rows of the graph that runs, as many as those together or more
    -> RaggedWindow
    """
)
def ragged_verify_window(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    verify_lens: Tensor,
    candidates: Tensor,
    num_packed: int,
) -> RaggedWindow:
    """Pack the nodes that are verified, one request after the other.

    Raises ValueError for lengths outside 1 to num_draft_tokens, for a graph of too few rows, and for nodes behind the
    end of the table. Source: SGLang's DSpark.
    """
    total = int(verify_lens.sum())
    if validation.enabled():
        validation.require_scalar("num_packed", num_packed, total)
        validation.require_between("seq_lens + verify_lens", seq_lens + verify_lens, 0, req_to_token.shape[1])
    owner, step = ragged_segments(verify_lens)
    position = seq_lens[owner] + step
    slot = req_to_token[req_pool_indices[owner], position].to(torch.int64)
    behind = (0, num_packed - total)
    return RaggedWindow(*torch.nn.functional.pad(torch.stack([candidates[owner, step], position, slot]), behind))


@contract(
    """
    compact           [num_packed, hidden_size] float: a row for each node that is verified; anything behind them
    verify_lens       [bs] int32, 1 to num_draft_tokens: nodes of each chain that are verified
    num_draft_tokens  int: nodes of a chain
    -> strided        [num_nodes, hidden_size] float: a row for each node of each chain, 0 where it is not verified
    """
)
def scatter_compact_to_strided(compact: Tensor, verify_lens: Tensor, num_draft_tokens: int) -> Tensor:
    """Unpack the rows of a verification: `num_draft_tokens` rows for each request.

    Raises ValueError for lengths outside 1 to num_draft_tokens. Source: SGLang's DSpark.
    """
    owner, step = ragged_segments(verify_lens)
    strided = compact.new_zeros((len(verify_lens) * num_draft_tokens, compact.shape[1]))
    strided[owner * num_draft_tokens + step] = compact[: len(owner)]
    return strided


@contract(
    """
    req_pool_indices     [bs] int64, 0 to pool_rows - 1: row of each request
    req_to_token         [pool_rows, pool_len] int32: KV slot by row and column; anything behind what is committed
    prefix_lens          [bs] int64, 0 or more: length of each request before the drafts
    full_to_swa_mapping  [num_slots] int64: slot in the pool of the window of each slot, -1 if it has none
    commit_lens          [bs] int32, 0 to num_draft_tokens: nodes of each chain that are committed
    num_draft_tokens     int: nodes of a chain
    -> InjectLayout
    """
)
def commit_inject_layout(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    prefix_lens: Tensor,
    full_to_swa_mapping: Tensor,
    commit_lens: Tensor,
    num_draft_tokens: int,
) -> InjectLayout:
    """Say where the draft model's KV of the committed nodes is written, which has a window.

    What is not committed is looked up nowhere: the table may end before it. Raises ValueError for lengths outside 0 to
    num_draft_tokens and for committed nodes behind the end of the table. Source: SGLang's DSpark.
    """
    step = torch.arange(num_draft_tokens, device=prefix_lens.device)
    position = prefix_lens[:, None] + step  # [bs, ndt]
    column = position.clamp(max=req_to_token.shape[1] - 1)
    slot = req_to_token[req_pool_indices[:, None], column].to(torch.int64).flatten()
    if validation.enabled():
        validation.require_between("prefix_lens + commit_lens", prefix_lens + commit_lens, 0, req_to_token.shape[1])
    swa_loc = committed_swa_locations(slot, full_to_swa_mapping, commit_lens, num_draft_tokens)
    return InjectLayout(swa_loc, position.flatten())


@contract(
    """
    cache_loc            [num_nodes] int64: KV slot of each node; anything where it is not committed
    full_to_swa_mapping  [num_slots] int64: slot in the pool of the window of each slot, -1 if it has none
    commit_lens          [bs] int32, 0 to num_draft_tokens: nodes of each chain that are committed
    num_draft_tokens     int: nodes of a chain
    -> swa_loc           [num_nodes] int32: slot of each node in the pool of the window; -1 if it is not committed
    """
)
def committed_swa_locations(
    cache_loc: Tensor, full_to_swa_mapping: Tensor, commit_lens: Tensor, num_draft_tokens: int
) -> Tensor:
    """The slots of the committed nodes in the pool of the window.

    Raises ValueError for lengths outside 0 to num_draft_tokens and for committed slots that the mapping does not have.
    Source: SGLang's DSpark.
    """
    committed = (torch.arange(num_draft_tokens, device=cache_loc.device) < commit_lens[:, None]).flatten()
    if validation.enabled():
        is_slot = (cache_loc >= 0) & (cache_loc < len(full_to_swa_mapping))
        allowed = f"0 to {len(full_to_swa_mapping) - 1} where a node is committed"
        validation.require_all(is_slot | ~committed, "cache_loc", cache_loc, allowed)
    return torch.where(committed, full_to_swa_mapping[torch.where(committed, cache_loc, 0)], NO_SLOT).to(torch.int32)


@contract(
    """
    candidates      [bs, num_draft_tokens] int64: the root, then the drafts
    target_predict  [bs, num_draft_tokens] int64: the target model's token after each node; any token behind the cut
    verify_lens     [bs] int32, 1 to num_draft_tokens: nodes of each chain that are verified
    -> ChainAccepted
    """
)
def accept_chain_greedy(candidates: Tensor, target_predict: Tensor, verify_lens: Tensor) -> ChainAccepted:
    """Accept the drafts that the target model predicts, up to the first that it does not or that was cut.

    Raises ValueError for lengths outside 1 to num_draft_tokens. Source: SGLang's DFlash and DSpark.
    """
    right = (candidates[:, 1:] == target_predict[:, :-1]).to(torch.int32).cumprod(dim=1).sum(dim=1).to(torch.int32)
    correct = torch.minimum(right, verify_lens - 1)
    bonus = target_predict.gather(1, correct[:, None].long())[:, 0]
    return ChainAccepted(correct, bonus, right - correct)


@contract(
    """
    is_greedy       [bs] bool: of requests without sampling
    greedy_len      [bs] int32: accepted drafts of each request, if it is greedy
    greedy_bonus    [bs] int64: the token after them
    greedy_trim     [bs] int32: drafts that were right, behind the cut
    sampling_len    [bs] int32: likewise, if it samples
    sampling_bonus  [bs] int64: likewise
    sampling_trim   [bs] int32: likewise
    -> ChainAccepted
    """
)
def select_mixed_accept(
    is_greedy: Tensor,
    greedy_len: Tensor,
    greedy_bonus: Tensor,
    greedy_trim: Tensor,
    sampling_len: Tensor,
    sampling_bonus: Tensor,
    sampling_trim: Tensor,
) -> ChainAccepted:
    """In a batch with both kinds of requests, the result of each one's own. Source: SGLang's DSpark."""
    return ChainAccepted(
        torch.where(is_greedy, greedy_len, sampling_len),
        torch.where(is_greedy, greedy_bonus, sampling_bonus),
        torch.where(is_greedy, greedy_trim, sampling_trim),
    )


@contract(
    """
    correct_len  [bs] int32, 0 or more: accepted drafts
    prefix_lens  [bs] int64, 0 or more: length of each request before the drafts
    -> CommitLens
    """
)
def finalize_accept_lens(correct_len: Tensor, prefix_lens: Tensor) -> CommitLens:
    """How many tokens of each request get KV, and how long it is then. Source: SGLang's DSpark."""
    return CommitLens(correct_len + 1, prefix_lens + correct_len + 1)


@contract(
    """
    draft_tokens   [bs, num_steps] int64: the drafts of each chain
    correct_len    [bs] int32, 0 to num_steps: accepted drafts
    bonus          [bs] int64: the token after them
    -> out_tokens  [bs, num_draft_tokens = num_steps + 1] int64: the drafts, with the bonus in the place of the first
                   that is not accepted; 0 in the last column unless the bonus is there
    """
)
def build_out_tokens(draft_tokens: Tensor, correct_len: Tensor, bonus: Tensor) -> Tensor:
    """What each request puts out.

    Raises ValueError for lengths outside 0 to num_steps. Source: SGLang's DSpark.
    """
    with_room = torch.nn.functional.pad(draft_tokens, (0, 1))
    return with_room.scatter(1, correct_len[:, None].long(), bonus[:, None])


@contract(
    """
    candidates      [bs, num_draft_tokens] int64: the root, then the drafts
    target_predict  [bs, num_draft_tokens] int64: the target model's token after each node
    prefix_lens     [bs] int64, 0 or more: length of each request before the drafts
    -> GreedyCommitted
    """
)
def commit_chain_greedy(candidates: Tensor, target_predict: Tensor, prefix_lens: Tensor) -> GreedyCommitted:
    """`accept_chain_greedy` without a cut, `finalize_accept_lens` and `build_out_tokens`, in one.

    Source: SGLang's DFlash and DSpark.
    """
    whole = torch.full_like(prefix_lens, candidates.shape[1], dtype=torch.int32)
    correct, bonus, _trim = accept_chain_greedy(candidates, target_predict, whole)
    out_tokens = build_out_tokens(candidates[:, 1:], correct, bonus)
    return GreedyCommitted(correct, bonus, *finalize_accept_lens(correct, prefix_lens), out_tokens)


@contract(
    """
    cache_loc_dst    [max_packed] int64, changed in place: the first num_packed are written
    positions_dst    [max_packed] int64, changed in place: likewise
    commit_lens_dst  [max_bs] int32, changed in place: the first ones are written, the others become 0
    cache_loc        [num_packed] int64: KV slot of each row
    positions        [num_packed] int64: its position
    commit_lens      [num_chains] int32: nodes of each chain that are committed
    """
)
def stage_commit(
    cache_loc_dst: Tensor,
    positions_dst: Tensor,
    commit_lens_dst: Tensor,
    cache_loc: Tensor,
    positions: Tensor,
    commit_lens: Tensor,
) -> None:
    """Keep what a verification commits until the draft model's next pass writes it.

    Raises ValueError where it does not fit. Source: SGLang's DSpark.
    """
    if validation.enabled():
        validation.require_scalar("num_packed", len(cache_loc), 0, len(cache_loc_dst))
        validation.require_scalar("num_chains", len(commit_lens), 0, len(commit_lens_dst))
    cache_loc_dst[: len(cache_loc)] = cache_loc
    positions_dst[: len(positions)] = positions
    commit_lens_dst.zero_()
    commit_lens_dst[: len(commit_lens)] = commit_lens
