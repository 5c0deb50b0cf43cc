"""Verification at a temperature: accepted drafts and the token after them follow the target model's distribution.

At temperature 0 a draft is correct or not (`verify`). Above it the target model gives every token a probability, and a
rule decides with random numbers which drafts are accepted, such that what is emitted has the distribution of decoding
token by token. The random numbers are arguments, called `coins` elsewhere: the rules are functions, and their
distributions can be enumerated (`specsim.contracts.enumeration`). They are uniform in [0, 1) and independent; 1 is
taken too and never accepts by chance alone.

Each rule ends by drawing one token from what is left of a distribution: the smallest token whose cumulative weight
exceeds `uniform_final` times the total, of those with a positive weight. Where there is none (a uniform draw of 1, a
sum that rounds down) it is the last token with a positive weight, and the last of the vocabulary when no weight is
positive.

Distributions are float32 or float64, all floating-point arguments of a call the same, and rows need not be normalised.
Two implementations can differ where a uniform draw lies within rounding of a threshold. With dyadic probabilities the
target-only rule and the token rule have no rounding, except for a division by `threshold_acc`.

`ndt` is short for `num_draft_tokens`, V for the size of the vocabulary.
"""

from __future__ import annotations

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract
from specsim.reference.verify import Verified, check_links

__all__ = ["verify_chain_block", "verify_chain_rejection", "verify_tree_rejection", "verify_tree_target_only"]

PLACEHOLDER = -1  # in place of a draft that must not be verified
THRESHOLD_ACC_MIN = 1e-9  # a smaller threshold_acc is raised to this, so that 0 divides
ROUNDING = 2.0**-10  # by which a probability may exceed 1: the distance of half precision's numbers there


@contract(
    """
    candidates             [bs, num_draft_tokens >= 1] int64, 0 to vocab_size - 1: token of each node; node 0 is the
                           root
    retrieve_index         [bs, num_draft_tokens] int64: number of the node in the batch, within its own row
    retrieve_next_token    [bs, num_draft_tokens] int64: first child, a later node; -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64: next sibling, an earlier or a later node, without a cycle; -1
                           if there is none
    uniform_samples        [bs, num_draft_tokens] float, 0 to 1: uniform draw of each node, which decides between its
                           children
    uniform_final          [bs] float, 0 to 1: uniform draw of the token after the path
    target_probs           [bs, num_draft_tokens, vocab_size >= 1] float, 0 to 1 or NaN: the target model's distribution
                           after each node; none of its children is accepted behind a row of NaN
    threshold_single       [1] number: 0 to 1: a child at least as probable is accepted; 1 changes nothing
    threshold_acc          [1] number: 0 to 1: divides the children's cumulative probability, at least 1e-9; 1 changes
                           nothing
    num_steps              int, 0 or more: drafts that can be accepted; a deeper tree is cut there
    -> Verified
    """
)
def verify_tree_target_only(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    target_probs: Tensor,
    threshold_single: Tensor | float,
    threshold_acc: Tensor | float,
    num_steps: int,
) -> Verified:
    """Walk each tree: the children of a node share out its uniform draw by their probabilities under the target model.

    At a node with uniform draw u, the children c in link order add up their probabilities p(c) to A. The first with
    p(c) > 0 and (u < A / threshold_acc or p(c) >= threshold_single) is accepted; the walk goes on there, with the
    uniform draw of that node and A = 0. Where none is, the next token is drawn from p without the rejected children's
    tokens. After `num_steps` accepted drafts, and at a leaf, it is drawn from p itself.

    The emitted tokens have the target's distribution if both thresholds are 1 and no two siblings hold the same token,
    whatever the tree, as long as it does not depend on the uniform draws. A second sibling with the same token counts
    twice; thresholds below 1 prefer drafts. Entries of `predicts` that are not defined are 0.
    Raises ValueError for links and indices that leave the row or lead to the root, cycles, tokens outside
    the vocabulary, and uniform draws, probabilities and thresholds outside 0 to 1.
    Source: SGLang's `tree_speculative_sampling_target_only`, with the strict comparison and without the
    zero-probability children of PR #35798.
    """
    if validation.enabled():
        check_links(retrieve_index, retrieve_next_token, retrieve_next_sibling)
        _check_threshold("threshold_single", threshold_single)
        _check_threshold("threshold_acc", threshold_acc)
    bs, ndt = candidates.shape
    device = candidates.device
    single = _threshold(threshold_single, target_probs)  # []
    acc = _threshold(threshold_acc, target_probs).clamp(min=THRESHOLD_ACC_MIN)  # []
    request = torch.arange(bs, device=device)  # [bs]
    predicts = torch.zeros(bs * ndt, dtype=torch.int32, device=device)
    accept_index = torch.full((bs, num_steps + 1), -1, dtype=torch.int32, device=device)
    accept_token_num = torch.zeros(bs, dtype=torch.int32, device=device)

    node = torch.zeros_like(request)  # [bs]: where each walk stands
    walking = torch.ones_like(request, dtype=torch.bool)  # [bs]
    dist = target_probs[:, 0].clone()  # [bs, V]: what is left of the distribution at `node`
    for step in range(num_steps + 1):
        number = retrieve_index[request, node]  # [bs]
        accept_index[:, step] = torch.where(walking, number, -1).to(torch.int32)
        if step == num_steps:
            break
        coin = uniform_samples[request, node]  # [bs]
        mass = torch.zeros_like(coin)  # [bs]
        child = torch.where(walking, retrieve_next_token[request, node], -1)  # [bs]
        for _ in range(ndt):  # a node has fewer than ndt children
            token = candidates[request, child]  # [bs]; of no use where there is no child
            prob = target_probs[request, node, token]  # [bs]
            mass = mass + prob
            accepts = (prob > 0) & ((coin < mass / acc) | (prob >= single))
            rejected = (child >= 0) & ~accepts
            if not bool(rejected.any()):
                break
            dist[request[rejected], token[rejected]] = 0
            # A walk that has accepted stays at its child, and accepts it again: its mass only grows.
            child = torch.where(rejected, retrieve_next_sibling[request, child], child)
        walking = child >= 0
        predicts[number[walking]] = candidates[request, child][walking].to(torch.int32)
        accept_token_num += walking
        dist = torch.where(walking[:, None], target_probs[request, child], dist)
        node = torch.where(walking, child, node)
    predicts[retrieve_index[request, node]] = _invert_cdf(dist, uniform_final)
    return Verified(predicts, accept_index, accept_token_num)


@contract(
    """
    candidates       [bs, num_draft_tokens >= 1] int64, -1 to vocab_size - 1: the root, then the S = num_draft_tokens -
                     1 drafted tokens x_1..x_S; -1 in place of a draft that must not be verified
    draft_probs      [bs, num_steps = num_draft_tokens - 1, vocab_size] float, 0 or more: q_1..q_S, the distributions
                     from which the drafts were really drawn; positive at the draft; what rounds to more than 1, by up
                     to 2**-10, counts as 1
    target_probs     [bs, num_draft_tokens, vocab_size >= 1] float, 0 to 1 or NaN: p_1..p_(S+1), the target model's
                     distributions after the root and each draft; no draft is accepted behind a row of NaN
    uniform_samples  [bs, num_steps] float, 0 to 1: u_1..u_S, the uniform draw of each draft, in the column of its
                     parent
    uniform_final    [bs] float, 0 to 1: uniform draw of the token after the path
    -> Verified
    """
)
def verify_chain_rejection(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
) -> Verified:
    """Accept each chain's drafts one after the other, by the ratio of target to draft probability.

    Draft i is accepted iff u_i q_i(x_i) < p_i(x_i) and q_i(x_i) > 0. After the first rejection, at i, the next token
    is drawn from the positive part of p_i - q_i; after S accepted drafts from p_(S+1). With S = 0 nothing is verified
    and a token is drawn from p_1. Node i of request b has the number b (S + 1) + i in the result, whose `num_steps`
    is S.

    The emitted tokens have the target's distribution iff each x_i was drawn from q_i. A draft with q_i(x_i) = 0, which
    cannot have been drawn, is rejected, and so is a placeholder, -1: no probability is read for it. The distribution
    stays the target's where a placeholder stands for a draft that the target excludes, as a grammar does, and where
    nothing was drawn and q_i is 0 throughout. Raises ValueError for other tokens outside the vocabulary, and uniform
    draws and probabilities outside 0 to 1. Source: Leviathan et al. (arXiv 2211.17192), algorithm 1; Chen et al. (arXiv
    2302.01318), algorithm 2; placeholders: vLLM PR #46533.
    """
    num_steps = draft_probs.shape[1]
    draft_probs = _at_most_one(draft_probs)
    drafted = candidates[:, 1:, None].clamp(min=0)  # [bs, S, 1]
    p = target_probs[:, :num_steps].gather(2, drafted)[:, :, 0]  # [bs, S]
    q = draft_probs.gather(2, drafted)[:, :, 0].masked_fill(candidates[:, 1:] == PLACEHOLDER, 0)  # [bs, S]
    accepts = (uniform_samples * q < p) & (q > 0)  # [bs, S]
    accepted = accepts.long().cumprod(dim=1).sum(dim=1)  # [bs]
    residual = (target_probs[:, :num_steps] - draft_probs).clamp(min=0)  # [bs, S, V]
    dists = torch.cat([residual, target_probs[:, num_steps:]], dim=1)  # [bs, S + 1, V]
    return _verified_chain(candidates, accepted, dists, uniform_final)


@contract(
    """
    candidates       [bs, num_draft_tokens >= 1] int64, -1 to vocab_size - 1: the root, then the S = num_draft_tokens -
                     1 drafted tokens x_1..x_S; -1 in place of a draft that must not be verified
    draft_probs      [bs, num_steps = num_draft_tokens - 1, vocab_size] float, 0 or more: q_1..q_S, the distributions
                     from which the drafts were really drawn; positive at the draft; what rounds to more than 1, by up
                     to 2**-10, counts as 1
    target_probs     [bs, num_draft_tokens, vocab_size >= 1] float, 0 to 1: p_1..p_(S+1), the target model's
                     distributions after the root and each draft
    uniform_samples  [bs, num_steps] float, 0 to 1: u_1..u_S, the uniform draw of each draft, in the column of its
                     parent
    uniform_final    [bs] float, 0 to 1: uniform draw of the token after the path
    -> Verified
    """
)
def verify_chain_block(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
) -> Verified:
    """Accept a prefix of each chain as a block: the same distribution as `verify_chain_rejection`, and longer prefixes.

    With r_0 = 1, r_i = min(r_(i-1) p_i(x_i) / q_i(x_i), 1) and R_i the mass of the positive part of
    r_i p_(i+1) - q_(i+1), let h_S = r_S and h_i = R_i / (R_i + 1 - r_i), which is r_i where r_i is 0 or 1. The
    accepted length n is the largest i with u_i < h_i, 0 if there is none: a draft can be accepted after one that
    fails its own test. The next token is drawn from the positive part of r_n p_(n+1) - q_(n+1), or from p_(S+1)
    when n = S. With S = 0 a token is drawn from p_1. Nodes are numbered as in `verify_chain_rejection`.

    The emitted tokens have the target's distribution iff each x_i was drawn from q_i. A draft with q_i(x_i) = 0, which
    cannot have been drawn, has r_i = 0, and so has a placeholder, -1, as `verify_chain_rejection` says; no prefix that
    holds it is accepted. Raises ValueError for other tokens outside the vocabulary and uniform draws and probabilities
    outside 0 to 1. Source: Sun et al. (arXiv 2403.10444), algorithm 2.
    """
    height, dists = chain_blocks(candidates, _at_most_one(draft_probs), target_probs)
    length = torch.arange(1, height.shape[1] + 1, device=candidates.device)  # [S]
    passed = (uniform_samples < height) * length  # [bs, S]: i where u_i < h_i, else 0
    accepted = torch.cat([torch.zeros_like(candidates[:, :1]), passed], dim=1).amax(dim=1)  # [bs]
    return _verified_chain(candidates, accepted, dists, uniform_final)


def chain_blocks(candidates: Tensor, draft_probs: Tensor, target_probs: Tensor) -> tuple[Tensor, Tensor]:
    """h_1..h_S of `verify_chain_block` [bs, S], and what the token after 0..S accepted drafts is drawn from
    [bs, S + 1, V], which need not sum to 1.
    """
    num_steps = draft_probs.shape[1]
    drafted = candidates[:, 1:, None].clamp(min=0)  # [bs, S, 1]
    p = target_probs[:, :num_steps].gather(2, drafted)[:, :, 0]  # [bs, S]
    q = draft_probs.gather(2, drafted)[:, :, 0].masked_fill(candidates[:, 1:] == PLACEHOLDER, 0)  # [bs, S]
    reach = torch.ones_like(target_probs[:, :, 0])  # [bs, S + 1]: r_0..r_S
    for step in range(num_steps):
        ratio = torch.where(q[:, step] > 0, reach[:, step] * p[:, step] / q[:, step], 0)
        reach[:, step + 1] = ratio.clamp(max=1)
    scaled = reach[:, :num_steps, None] * target_probs[:, :num_steps]
    residual = (scaled - draft_probs).clamp(min=0)  # [bs, S, V]: row i is what is left after i accepted drafts
    mass = residual.sum(dim=2)[:, 1:]  # [bs, S - 1]: R_1..R_(S-1)
    height = reach[:, 1:].clone()  # [bs, S]: h_1..h_S
    inner = height[:, : mass.shape[1]]
    inner[:] = torch.where((inner > 0) & (inner < 1), mass / (mass + 1 - inner), inner)
    dists = torch.cat([residual, target_probs[:, num_steps:]], dim=1)  # [bs, S + 1, V]
    return height, dists


@contract(
    """
    candidates             [bs, num_draft_tokens >= 1] int64, -1 to vocab_size - 1: token of each node; node 0 is the
                           root; -1 in place of a draft that must not be verified
    retrieve_index         [bs, num_draft_tokens] int64: number of the node in the batch, within its own row
    retrieve_next_token    [bs, num_draft_tokens] int64: first child, a later node; -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64: next sibling, an earlier or a later node, without a cycle; -1
                           if there is none
    uniform_samples        [bs, num_draft_tokens] float, 0 to 1: uniform draw that decides about each node; the root's
                           is not read
    uniform_final          [bs] float, 0 to 1: uniform draw of the token after the path
    draft_probs            [bs, num_draft_tokens, vocab_size] float, 0 or more: the distribution from which the children
                           of each node were drawn, one after the other, with or without replacement; not read at
                           leaves; what rounds to more than 1, by up to 2**-10, counts as 1
    target_probs           [bs, num_draft_tokens, vocab_size >= 1] float, 0 to 1 or NaN: the target model's distribution
                           after each node; none of its children is accepted behind a row of NaN
    num_steps              int, 0 or more: drafts that can be accepted; a deeper tree is cut there
    -> Verified
    """
)
def verify_tree_rejection(
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    num_steps: int,
) -> Verified:
    """Walk each tree; every child has a uniform draw of its own, and is compared with what its siblings left over.

    At a node with distributions p and q, a child c with uniform draw u is accepted iff u q(c) < p(c) and q(c) > 0. When
    it is rejected, p becomes the positive part of p - q, normalised, and q loses the token c and is normalised; then
    the next sibling is compared with them. Where no child is accepted, the next token is drawn from the p that is left;
    after `num_steps` accepted drafts, and at a leaf, from p itself. A child with q(c) = 0, such as a second one with
    the same token, was not drawn: it is passed over and leaves p and q as they are; so is a placeholder, -1. Where p
    and q are equal nothing is left of p, and no later sibling is accepted; that takes a uniform draw of 1 or rounding.

    The emitted tokens have the target's distribution if the children of each node were drawn from q, one after the
    other, without replacement, and as well with: a token that comes again is passed over, and one that does not has the
    distribution of a draw without. Keeping p and q fixed between siblings loses that. Entries of `predicts` that are
    not defined are 0.
    Raises ValueError as `verify_tree_target_only` does.
    Source: SpecInfer (arXiv 2305.09781), section 4.3; without replacement: Jeon et al. (arXiv 2402.14160).
    """
    if validation.enabled():
        check_links(retrieve_index, retrieve_next_token, retrieve_next_sibling)
    draft_probs = _at_most_one(draft_probs)
    bs, ndt = candidates.shape
    device = candidates.device
    request = torch.arange(bs, device=device)  # [bs]
    predicts = torch.zeros(bs * ndt, dtype=torch.int32, device=device)
    accept_index = torch.full((bs, num_steps + 1), -1, dtype=torch.int32, device=device)
    accept_token_num = torch.zeros(bs, dtype=torch.int32, device=device)

    node = torch.zeros_like(request)  # [bs]: where each walk stands
    walking = torch.ones_like(request, dtype=torch.bool)  # [bs]
    dist = target_probs[:, 0]  # [bs, V]: p, as far as it is left at `node`
    for step in range(num_steps + 1):
        number = retrieve_index[request, node]  # [bs]
        accept_index[:, step] = torch.where(walking, number, -1).to(torch.int32)
        if step == num_steps:
            break
        proposal = draft_probs[request, node]  # [bs, V]: q
        child = torch.where(walking, retrieve_next_token[request, node], -1)  # [bs]
        for _ in range(ndt):  # a node has fewer than ndt children
            drafted = candidates[request, child]  # [bs]; of no use where there is no child
            token = drafted.clamp(min=0)
            p, q = dist[request, token], proposal[request, token].masked_fill(drafted == PLACEHOLDER, 0)  # [bs]
            rejected = (child >= 0) & ~((uniform_samples[request, child] * q < p) & (q > 0))
            if not bool(rejected.any()):
                break
            drawn = (rejected & (q > 0))[:, None]  # [bs, 1]
            residual = _normalised((dist - proposal).clamp(min=0))  # [bs, V]
            without = _normalised(proposal.scatter(1, token[:, None], 0))  # [bs, V]
            dist, proposal = torch.where(drawn, residual, dist), torch.where(drawn, without, proposal)
            child = torch.where(rejected, retrieve_next_sibling[request, child], child)
        walking = child >= 0
        predicts[number[walking]] = candidates[request, child][walking].to(torch.int32)
        accept_token_num += walking
        dist = torch.where(walking[:, None], target_probs[request, child], dist)
        node = torch.where(walking, child, node)
    predicts[retrieve_index[request, node]] = _invert_cdf(dist, uniform_final)
    return Verified(predicts, accept_index, accept_token_num)


def _threshold(threshold: Tensor | float, like: Tensor) -> Tensor:
    return torch.as_tensor(threshold, dtype=like.dtype, device=like.device).reshape(())


def _at_most_one(draft_probs: Tensor) -> Tensor:
    """Without this, a certain draft that the target is certain of can be rejected, and nothing is left to draw from."""
    if validation.enabled():
        allowed = f"0 to 1, and what rounding adds, at most {ROUNDING}"
        validation.require_all(draft_probs <= 1 + ROUNDING, "draft_probs", draft_probs, allowed)
    return draft_probs.clamp(max=1)


def _invert_cdf(weights: Tensor, coin: Tensor) -> Tensor:
    """The token [bs] int32 that `coin` [bs] draws from `weights` [bs, V]; see the head of the module."""
    cdf = weights.cumsum(dim=1)  # [bs, V]
    positive = weights > 0
    above = positive & (cdf > coin[:, None] * cdf[:, -1:])
    first_above = above.int().argmax(dim=1)  # [bs]
    last_positive = weights.shape[1] - 1 - positive.flip(1).int().argmax(dim=1)  # V - 1 if none is
    return torch.where(above.any(dim=1), first_above, last_positive).to(torch.int32)


def _normalised(weights: Tensor) -> Tensor:
    """Rows with sum 1; rows of zeros stay as they are."""
    total = weights.sum(dim=1, keepdim=True)
    return weights / torch.where(total > 0, total, 1)


def _verified_chain(candidates: Tensor, accepted: Tensor, dists: Tensor, uniform_final: Tensor) -> Verified:
    """The result for chains: the first `accepted` [bs] drafts, then a token of that row of `dists` [bs, S + 1, V]."""
    bs, ndt = candidates.shape
    request = torch.arange(bs, device=candidates.device)  # [bs]
    node = torch.arange(ndt, device=candidates.device)  # [ndt]
    number = request[:, None] * ndt + node  # [bs, ndt]
    on_path = node <= accepted[:, None]  # [bs, ndt]
    following = torch.cat([candidates[:, 1:], torch.zeros_like(candidates[:, :1])], dim=1).to(torch.int32)
    following[request, accepted] = _invert_cdf(dists[request, accepted], uniform_final)
    return Verified(
        predicts=torch.where(on_path, following, 0).flatten(),
        accept_index=torch.where(on_path, number, -1).to(torch.int32),
        accept_token_num=accepted.to(torch.int32),
    )


def _check_threshold(name: str, threshold: Tensor | float) -> None:
    if isinstance(threshold, Tensor) and threshold.numel() != 1:
        raise ValueError(f"{name} has shape {list(threshold.shape)}; allowed: a number or [1]")
    value = float(threshold)
    if not 0 <= value <= 1:
        raise ValueError(f"{name} is {value}; allowed: 0 to 1")
