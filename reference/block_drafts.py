"""Drafters that give a whole chain or tree from one pass of a model, and the steps that choose among its candidates.

A *block drafter* reads the last token and masks behind it. Its logits are of each place alone: a *walk* makes them a
chain, draft by draft, with scores of candidates by the one before; a *best-first tree* keeps the most probable paths.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields


@fields(
    """
    block_ids  [bs, num_draft_tokens] int64: the request's last token, then masks
    positions  [bs, num_draft_tokens] int64: in its request
    cache_loc  [bs, num_draft_tokens] int64: KV slots; 0 behind the end of the table
    """
)
class DraftBlock(NamedTuple):
    """What a block drafter reads: tokens, positions and KV slots, each [bs, num_draft_tokens] int64."""

    block_ids: Tensor
    positions: Tensor
    cache_loc: Tensor


@fields(
    """
    tokens  [bs, num_steps] int64: the drafts
    q       [bs, num_steps, num_candidates] float: the distribution over the candidates that each was drawn from
    """
)
class CandidateWalk(NamedTuple):
    """Drafts [bs, num_steps] int64, and the distributions that they were drawn from [bs, num_steps, num_candidates]."""

    tokens: Tensor
    q: Tensor


@fields(
    """
    tokens       [bs, num_steps] int64: the drafts
    step_scores  [bs, num_steps, num_candidates] float: of the candidates among which each was chosen
    """
)
class BestWalk(NamedTuple):
    """Drafts [bs, num_steps] int64, and the scores that they were chosen by [bs, num_steps, num_candidates]."""

    tokens: Tensor
    step_scores: Tensor


@fields(
    """
    topk_p      [bs, 1] float: 1
    topk_index  [bs, 1] int64: the draft
    """
)
class Top1(NamedTuple):
    """A draft for each request [bs, 1] int64, with probability 1."""

    topk_p: Tensor
    topk_index: Tensor


@fields(
    """
    values  [num_rows, k] float: the highest logits, the highest first
    ids     [num_rows, k] int64: their tokens; of equal logits the lower token first
    lse     [num_rows] float: logarithm of the sum of all exponentials
    """
)
class TopkLse(NamedTuple):
    """The best logits of each row and their tokens [num_rows, k], and the logarithm of the sum [num_rows]."""

    values: Tensor
    ids: Tensor
    lse: Tensor


@fields(
    """
    draft_tokens      [bs, num_drafts = num_draft_tokens - 1] int64: token of each node but the root
    top_scores_index  [bs, num_drafts] int64: parent node * num_candidates + rank among the parent's candidates
    parent_list       [bs, parent_width = num_candidates * (num_depths - 1) + 1] int64: of each node that can have a
                      child the entry of top_scores_index that made it; -1 for the root, and behind the last
    """
)
class BestFirstTree(NamedTuple):
    """A tree for each request, in the form that EAGLE's builder reads: tokens, edges and parents."""

    draft_tokens: Tensor
    top_scores_index: Tensor
    parent_list: Tensor


@contract(
    """
    bonus_tokens      [bs] int64: last token of each request
    prefix_lens       [bs] int64, 0 or more: its length without that one
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: its row
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    mask_token_id     int: token of a draft that is to be made
    num_draft_tokens  int: tokens of a block
    -> DraftBlock
    """
)
def prepare_draft_block(
    bonus_tokens: Tensor,
    prefix_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    mask_token_id: int,
    num_draft_tokens: int,
) -> DraftBlock:
    """The block of each request: its last token, and masks in the place of the drafts. Source: SGLang's DFlash."""
    step = torch.arange(num_draft_tokens, device=prefix_lens.device)
    position = prefix_lens[:, None] + step  # [bs, ndt]
    ids = torch.where(step == 0, bonus_tokens[:, None], mask_token_id)
    end = req_to_token.shape[1]
    slot = req_to_token[req_pool_indices[:, None], position.clamp(max=end - 1)].to(torch.int64)
    return DraftBlock(ids, position, torch.where(position < end, slot, 0))


@contract(
    """
    candidate_ids   [bs, num_steps, num_candidates] int64: candidates for each draft
    scores          [bs, num_steps, num_candidates, num_candidates] float: of each candidate, by the one before it; the
                    first draft goes by row 0
    uniforms        [bs, num_steps] float, 0 to 1: uniform draws
    temperatures    [bs] float: above 0
    is_greedy       [bs] bool: the request takes the candidate of the highest score, of equal ones the first, and the
                    first NaN before all
    -> CandidateWalk
    """
)
def walk_candidates(
    candidate_ids: Tensor, scores: Tensor, uniforms: Tensor, temperatures: Tensor, is_greedy: Tensor
) -> CandidateWalk:
    """Draw a chain, one candidate after the other, each from the softmax of its scores after the one before it.

    Candidate k is drawn when the candidates before it have at most the draw together, and it and they have more. The
    distribution of a greedy request is 1 at what it takes. Raises ValueError for temperatures of 0 or less.
    Source: SGLang's DFlash with a selector.
    """
    if validation.enabled():
        validation.require_all(temperatures > 0, "temperatures", temperatures, "above 0")
    bs, num_steps, topk = candidate_ids.shape
    request = torch.arange(bs, device=scores.device)
    last = torch.zeros_like(request)
    places, dists = [], []
    for step in range(num_steps):
        row = scores[request, step, last]  # [bs, K]
        probs = torch.softmax(row / temperatures[:, None], dim=1)
        drawn = (uniforms[:, step, None] >= probs.cumsum(dim=1)).sum(dim=1).clamp(max=topk - 1)
        best = row.argmax(dim=1)
        last = torch.where(is_greedy, best, drawn)
        places.append(last)
        certain = torch.nn.functional.one_hot(best, topk).to(probs.dtype)
        dists.append(torch.where(is_greedy[:, None], certain, probs))
    tokens = candidate_ids.gather(2, torch.stack(places, dim=1)[:, :, None])[:, :, 0]
    return CandidateWalk(tokens, torch.stack(dists, dim=1))


@contract(
    """
    candidate_ids  [bs, num_steps, num_candidates] int64: candidates for each draft
    scores         [bs, num_steps, num_candidates, num_candidates] float: of each candidate, by the one before it; the
                   first draft goes by row 0
    -> BestWalk
    """
)
def walk_candidates_greedy(candidate_ids: Tensor, scores: Tensor) -> BestWalk:
    """Make a chain of the candidates of the highest score, one after the other, of equal ones the first.

    Raises ValueError for NaN. Source: vLLM's DFlash with a selector.
    """
    if validation.enabled():
        validation.require_all(~scores.isnan(), "scores", scores, "no NaN")
    bs, num_steps, _topk = candidate_ids.shape
    request = torch.arange(bs, device=scores.device)
    last = torch.zeros_like(request)
    places, rows = [], []
    for step in range(num_steps):
        row = scores[request, step, last]  # [bs, K]
        last = row.argmax(dim=1)
        places.append(last)
        rows.append(row)
    tokens = candidate_ids.gather(2, torch.stack(places, dim=1)[:, :, None])[:, :, 0]
    return BestWalk(tokens, torch.stack(rows, dim=1))


@contract(
    """
    logits         [bs, num_steps, num_candidates] float: of each candidate; any values but NaN
    bias           [bs, num_steps, num_candidates] float: what it has more after the drafts before
    candidate_ids  [bs, num_steps, num_candidates] int64: candidates for each draft
    -> tokens      [bs, num_steps] int64: the candidate of the highest sum, of equal ones the first
    """
)
def best_candidates(logits: Tensor, bias: Tensor, candidate_ids: Tensor) -> Tensor:
    """The drafts of a block, each among candidates of its own.

    Raises ValueError for NaN. Source: vLLM's XPress.
    """
    if validation.enabled():
        validation.require_all(~(logits + bias).isnan(), "logits + bias", logits + bias, "no NaN")
    return candidate_ids.gather(2, (logits + bias).argmax(dim=2)[:, :, None])[:, :, 0]


@contract(
    """
    draft_logits   [max_num_reqs, num_steps, vocab_size] float, changed in place: -inf but at the kept candidates
    cached_ids     [max_num_reqs, num_steps, num_candidates] int64, changed in place: the kept candidates
    candidate_ids  [bs, num_steps, num_candidates] int64, 0 to vocab_size - 1: candidates for each draft, without
                   duplicates
    scores         [bs, num_steps, num_candidates] float: their logits
    idx_mapping    [bs] int32: row of each request's state; -1: it is left alone
    """
)
def cache_candidate_logits(
    draft_logits: Tensor, cached_ids: Tensor, candidate_ids: Tensor, scores: Tensor, idx_mapping: Tensor
) -> None:
    """Keep the distributions that drafts were drawn from as logits over the vocabulary, in the place of older ones.

    Source: vLLM's DFlash with a selector.
    """
    has_row = idx_mapping >= 0
    row = idx_mapping[has_row].long()
    draft_logits[row] = draft_logits[row].scatter(2, cached_ids[row], -torch.inf)
    draft_logits[row] = draft_logits[row].scatter(2, candidate_ids[has_row], scores[has_row])
    cached_ids[row] = candidate_ids[has_row]


@contract(
    """
    base_logits     [bs, vocab_size >= 1] float: any values
    prev_embeds     [bs, rank] float: embedding of each request's last draft
    w2_weight       [vocab_size, rank] float: what it adds to the logit of each token
    -> next_tokens  [bs] int64: the highest logit's token, of equal ones the lowest; of a row with NaN any token
    """
)
def markov_greedy_step(base_logits: Tensor, prev_embeds: Tensor, w2_weight: Tensor) -> Tensor:
    """The next draft of a block drafter whose logits depend on the draft before it. Source: SGLang's DSpark."""
    return (base_logits + prev_embeds @ w2_weight.T).argmax(dim=1)


@contract(
    """
    logits        [bs, vocab_size >= 1] float: above -1e30, or NaN, which counts as -1e30
    positions     [bs] int64, changed in place: of each request; one more
    draft_tokens  [bs, num_steps] int64, changed in place: column `step` gets the draft
    step          int: number of the draft, 0 to num_steps - 1
    -> Top1
    """
)
def draft_topk1(logits: Tensor, positions: Tensor, draft_tokens: Tensor, step: int) -> Top1:
    """Draft the most probable token, of equal ones the lowest, and go on to the next position.

    Raises ValueError for a step that the drafts do not have. Source: SGLang's chains of topk 1.
    """
    if validation.enabled():
        validation.require_scalar("step", step, 0, draft_tokens.shape[1] - 1)
    token = torch.where(logits.isnan(), -1e30, logits).argmax(dim=1)
    positions += 1
    draft_tokens[:, step] = token
    return Top1(torch.ones_like(logits[:, :1]), token[:, None])


@contract(
    """
    logits     [num_rows, vocab_size] float: any values but NaN and +inf; not all of a row -inf
    k          int, 1 or more: tokens that are kept, at most vocab_size
    -> TopkLse
    """
)
def topk_lse(logits: Tensor, k: int) -> TopkLse:
    """The best tokens of each row, with what makes their logits log-probabilities.

    Raises ValueError for NaN, for rows that are -inf alone and for more tokens than there are.
    Source: SGLang's LiLiCorr.
    """
    if validation.enabled():
        validation.require_scalar("k", k, 1, logits.shape[1])
        validation.require_all(~logits.isnan(), "logits", logits, "no NaN")
        highest = logits.amax(dim=1)
        validation.require_all(highest.isfinite(), "highest logit of row ", highest, "finite")
    ordered, ids = logits.sort(dim=1, descending=True, stable=True)
    return TopkLse(ordered[:, :k], ids[:, :k], logits.logsumexp(dim=1))


@contract(
    """
    logits        [bs, num_depths, vocab_size] float: finite or -inf; not all of a row -inf
    top_values    [bs, num_depths, num_candidates] float: the highest of each row
    temperatures  [bs] float, 0 or more: of each request; 0 counts as 1
    -> log_probs  [bs, num_depths, num_candidates] float: their log-probabilities, at most 0
    """
)
def candidate_log_probs(logits: Tensor, top_values: Tensor, temperatures: Tensor) -> Tensor:
    """The log-probabilities of candidates, over the whole vocabulary.

    Raises ValueError for NaN and for rows that are -inf alone. Source: SGLang's UNO.
    """
    if validation.enabled():
        highest = logits.amax(dim=2)
        validation.require_all(highest.isfinite(), "highest logit of row ", highest, "finite")
    scale = torch.where(temperatures > 0, 1 / temperatures, 1.0)[:, None, None]
    return (top_values * scale - (logits * scale).logsumexp(dim=2, keepdim=True)).clamp(max=0.0)


@contract(
    """
    top_token_ids     [bs, num_depths, num_candidates] int64: candidates at each depth
    top_log_probs     [bs, num_depths, num_candidates] float: their log-probabilities, at most 0
    num_draft_tokens  int, 2 or more: nodes of the tree, the root among them; num_depths + 1 or more
    -> BestFirstTree
    """
)
def build_best_first_tree(top_token_ids: Tensor, top_log_probs: Tensor, num_draft_tokens: int) -> BestFirstTree:
    """Take the most probable node that is not in the tree and whose parent is, until the tree has all its nodes.

    Every node of a depth has the same candidates. Of equal nodes that of the shallower depth is taken, then that of the
    better rank, of the lower token and of the earlier parent. Raises ValueError for fewer nodes than a chain has, and
    for more than there are candidates, or than `parent_list` has room for. Source: SGLang's UNO.
    """
    bs, num_depths, k = top_token_ids.shape
    device = top_token_ids.device
    if validation.enabled():
        most = min(_most_nodes(num_depths, k, num_draft_tokens), k * (num_depths - 1) + 2)
        validation.require_scalar("num_draft_tokens", num_draft_tokens, num_depths + 1, most)
    edge = torch.arange(num_draft_tokens * k, device=device)  # parent node * k + rank
    parent, rank = edge // k, edge % k
    depths = torch.zeros((bs, num_draft_tokens), dtype=torch.int64, device=device)
    masses = torch.zeros((bs, num_draft_tokens), dtype=top_log_probs.dtype, device=device)
    free = torch.ones((bs, edge.shape[0]), dtype=torch.bool, device=device)
    request = torch.arange(bs, device=device)
    tokens, edges = [], []
    for node in range(1, num_draft_tokens):
        depth = depths[:, parent]  # [bs, edges], of the parent
        possible = free & (parent < node) & (depth < num_depths)
        at = (request[:, None], depth.clamp(max=num_depths - 1), rank)
        mass = torch.where(possible, masses[:, parent] + top_log_probs[at], -torch.inf)
        token = top_token_ids[at]
        winner = possible & (mass == mass.amax(dim=1, keepdim=True))
        for key in (depth, rank.expand_as(depth), token, parent.expand_as(depth)):
            least = torch.where(winner, key, 2**62).amin(dim=1, keepdim=True)
            winner = winner & (key == least)
        chosen = winner.to(torch.int64).argmax(dim=1)  # [bs]
        depths[:, node] = depth[request, chosen] + 1
        masses[:, node] = mass[request, chosen]
        free[request, chosen] = False
        tokens.append(token[request, chosen])
        edges.append(chosen)
    index = torch.stack(edges, dim=1)
    parents = torch.full((bs, k * (num_depths - 1) + 1), -1, dtype=torch.int64, device=device)
    parents[:, 1 : num_draft_tokens - 1] = index[:, : num_draft_tokens - 2]
    return BestFirstTree(torch.stack(tokens, dim=1), index, parents)


def _most_nodes(num_depths: int, k: int, enough: int) -> int:
    """Nodes of a tree of every candidate; `enough` or more of them are not counted on."""
    count, width = 1, 1
    for _ in range(num_depths):
        width *= k
        count += width
        if count >= enough:
            break
    return count
