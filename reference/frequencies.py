"""How often a sampler with random numbers of its own must emit each token, or each chain of tokens.

Other rules get their uniform draws as arguments and are compared with the reference draw by draw (`sampling`). Of a
sampler that draws its own, only counts can be checked: so here an operation's results are frequencies, what occurs at
all, and whether that fits.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract
from specsim.reference.sampling import chain_blocks

_DRAFTS = """
    candidates       [bs, num_draft_tokens] int64, 0 to vocab_size - 1: the root, then the S = num_draft_tokens - 1
                     drafts
    draft_probs      [bs, num_steps = num_draft_tokens - 1, vocab_size] float: the distribution from which each draft
                     was drawn; positive at the draft; not read when has_draft_probs is 0
    target_probs     [bs, num_draft_tokens, vocab_size] float: the target model's distribution after each node
"""
_DRAWS = """\
    has_draft_probs  int: 0: every draft was certain
    seed             int: of the implementation's own random numbers
    draws            int: how often each request is drawn, independently
    -> frequencies   [bs, num_draft_tokens, vocab_size] float: share of the draws that each outcome has
    -> occurs        [bs, num_draft_tokens, vocab_size] bool: drawn at all; defined where the probability is 0
    -> fits          [bs] bool: the counts can be draws of the distribution: p-value 1e-12 or more
"""


class Frequencies(NamedTuple):
    """What is counted of a sampler, for each request.

    frequencies  the share of the draws that each outcome has, float
    occurs       whether it was drawn at all, bool
    fits         [bs] bool: whether the counts can be draws of the distribution
    """

    frequencies: Tensor
    occurs: Tensor
    fits: Tensor


class MarkovFrequencies(NamedTuple):
    """`Frequencies` of drafts, and their logits [bs, vocab_size]."""

    logits: Tensor
    frequencies: Tensor
    occurs: Tensor
    fits: Tensor


@contract(
    """
    probs           [bs, vocab_size] float: the model's distribution; sums to 1
    top_k           [bs] int32, 1 or more: a token stays iff fewer are more probable
    top_p           [bs] float: above 0, at most 1: a token stays iff the more probable ones have less than this
                    together
    min_p           [bs] float, 0 to 1: a token stays iff it has at least this share of the most probable one's
                    probability
    which_filter    int: which is in use: 0 none, 1 top_k, 2 top_p, 3 min_p, 4 top_k and top_p jointly
    seed            int: of the implementation's own random numbers
    draws           int: how often each request is drawn, independently
    -> frequencies  [bs, vocab_size] float: share of the draws that each outcome has
    -> occurs       [bs, vocab_size] bool: drawn at all; defined where the probability is 0
    -> fits         [bs] bool: the counts can be draws of the distribution: p-value 1e-12 or more
    """
)
def token_frequencies(
    probs: Tensor, top_k: Tensor, top_p: Tensor, min_p: Tensor, which_filter: int = 0, seed: int = 0, draws: int = 0
) -> Frequencies:
    """The distribution of a token that is drawn from `probs` with filters.

    `which_filter`, `seed` and `draws` concern the sampler alone: the distribution does not depend on them.
    All filters look at `probs` as it is; what stays is divided by its sum. Equal tokens stay or go together.
    Raises ValueError for wrong shapes and dtypes and values out of range.
    Source: FlashInfer's `top_k_top_p_sampling_from_probs` with its joint order, `min_p_sampling_from_probs`.
    """
    if validation.enabled():
        validation.require_all((top_p > 0) & (top_p <= 1), "top_p", top_p, "above 0, at most 1")
    p = probs.double()
    above = p[:, None, :] > p[:, :, None]  # [bs, V, V]: which tokens are more probable than each
    mass = torch.where(above, p[:, None, :], 0.0).sum(dim=2)
    stays = (above.sum(dim=2) < top_k[:, None]) & (mass < top_p[:, None].double()) & (p > 0)
    stays &= p >= min_p[:, None].double() * p.amax(dim=1, keepdim=True)
    kept = torch.where(stays, p, 0.0)
    return _law(kept / kept.sum(dim=1, keepdim=True), probs.dtype)


@contract(
    """
    base_logits     [bs, padded_vocab] float: any values but NaN and +inf; those from vocab_size on are of no token; of
                    the others not all -inf
    bias            [bs, vocab_size] float: what each has more after the draft before
    temperatures    [bs] float, 0 or more: 0: the most probable token, of equal ones the lowest, is certain
    seed            int: of the implementation's own random numbers
    draws           int: how often each request is drawn, independently
    -> logits       [bs, vocab_size] float: the sums, whose softmax with the temperature the draft is drawn from
    -> frequencies  [bs, vocab_size] float: share of the draws that each token has
    -> occurs       [bs, vocab_size] bool: drawn at all; defined where the probability is 0
    -> fits         [bs] bool: the counts can be draws of the distribution: p-value 1e-12 or more
    """
)
def markov_frequencies(
    base_logits: Tensor, bias: Tensor, temperatures: Tensor, seed: int = 0, draws: int = 0
) -> MarkovFrequencies:
    """The distribution of the next draft of a block drafter whose logits depend on the draft before it.

    A verification divides by this distribution, so it is to be drawn from as it stands. `seed` and `draws` concern the
    sampler alone. Raises ValueError for wrong shapes and dtypes. Source: SGLang's DSpark.
    """
    vocab_size = bias.shape[1]
    logits = base_logits[:, :vocab_size] + bias
    certain = torch.nn.functional.one_hot(logits.argmax(dim=1), vocab_size).double()
    scaled = logits.double() / torch.where(temperatures > 0, temperatures, 1.0)[:, None]
    dist = torch.where(temperatures[:, None] > 0, torch.softmax(scaled, dim=1), certain)
    return MarkovFrequencies(logits, *_law(dist, logits.dtype))


@contract(_DRAFTS + _DRAWS)
def chain_frequencies(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    has_draft_probs: int = 1,
    seed: int = 0,
    draws: int = 0,
) -> Frequencies:
    """The distribution of what chain rejection emits for given drafts: accepted drafts, and the token after them.

    Entry [b, n, t] of frequencies and occurs [bs, S + 1, V] is of n accepted drafts and then token t. Draft i is
    accepted with probability min(1, p_i / q_i); after a rejection the token is drawn from the positive part of p - q,
    after S accepted ones from p_(S+1). `seed` and `draws` concern the sampler alone.
    Raises ValueError for wrong shapes and dtypes and drafts out of range.
    Source: Leviathan et al. (arXiv 2211.17192), algorithm 1.
    """
    return _law(_chain(candidates, draft_probs, target_probs, has_draft_probs), target_probs.dtype)


@contract(
    _DRAFTS
    + """\
    verify_lens      [bs] int32, 1 to num_draft_tokens: nodes of each chain that are verified
"""
    + _DRAWS
)
def cut_chain_frequencies(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    verify_lens: Tensor,
    has_draft_probs: int = 1,
    seed: int = 0,
    draws: int = 0,
) -> Frequencies:
    """The distribution of what chain rejection emits for chains of which a prefix is verified.

    As `chain_frequencies`, but of n > verify_lens[b] - 1 accepted drafts the first verify_lens[b] are emitted: the last
    of them is the bonus. `seed` and `draws` concern the sampler alone.
    Raises ValueError for wrong shapes and dtypes, drafts out of range and lengths outside 1 to num_draft_tokens.
    Source: SGLang's DSpark.
    """
    dist = _chain(candidates, draft_probs, target_probs, has_draft_probs)  # [bs, S + 1, V]
    last = verify_lens[:, None].long() - 1  # [bs, 1]: drafts that may be accepted
    is_cut = torch.arange(dist.shape[1], device=dist.device) > last  # [bs, S + 1]
    emitted = torch.where(is_cut[:, :, None], 0.0, dist)
    request = torch.arange(dist.shape[0], device=dist.device)
    bonus = candidates.gather(1, (last + 1).clamp(max=draft_probs.shape[1]))[:, 0]
    emitted[request, last[:, 0], bonus] += torch.where(is_cut[:, :, None], dist, 0.0).sum(dim=(1, 2))
    return _law(emitted, target_probs.dtype)


@contract(_DRAFTS + _DRAWS)
def block_frequencies(
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    has_draft_probs: int = 1,
    seed: int = 0,
    draws: int = 0,
) -> Frequencies:
    """The distribution of what block verification emits for given drafts: accepted drafts, and the token after them.

    Entry [b, n, t] of frequencies and occurs [bs, S + 1, V] is of n accepted drafts and then token t: with h_0 = 1 and
    h_1..h_S as `verify_chain_block` has them, n are accepted with probability h_n (1 - h_(n+1))..(1 - h_S). `seed` and
    `draws` concern the sampler alone. Raises ValueError for wrong shapes and dtypes and drafts out of range.
    Source: Sun et al. (arXiv 2403.10444), algorithm 2.
    """
    draft = _drafts(candidates, draft_probs, has_draft_probs)
    height, dists = chain_blocks(candidates, draft, target_probs.double())
    certain = torch.ones_like(height[:, :1])
    no_longer = torch.cat([1 - height, certain], dim=1).flip(1).cumprod(dim=1).flip(1)  # [bs, S + 1]
    ends = torch.cat([certain, height], dim=1) * no_longer  # [bs, S + 1]: n are accepted, and no more
    return _law(ends[:, :, None] * _normalised(dists), target_probs.dtype)


def _chain(candidates: Tensor, draft_probs: Tensor, target_probs: Tensor, has_draft_probs: int) -> Tensor:
    """How often n drafts are accepted and then token t follows [bs, S + 1, V] float64."""
    num_steps, drafted = draft_probs.shape[1], candidates[:, 1:, None]
    target, draft = target_probs.double(), _drafts(candidates, draft_probs, has_draft_probs)
    p, q = target[:, :num_steps].gather(2, drafted)[:, :, 0], draft.gather(2, drafted)[:, :, 0]  # [bs, S]
    accepts = torch.where(q > 0, (p / q.clamp(min=1e-300)).clamp(max=1), 0.0)
    reaches = torch.cat([torch.ones_like(accepts[:, :1]), accepts.cumprod(dim=1)], dim=1)  # [bs, S + 1]
    ends = reaches * torch.cat([1 - accepts, torch.ones_like(accepts[:, :1])], dim=1)  # [bs, S + 1]
    rest = torch.cat([(target[:, :num_steps] - draft).clamp(min=0), target[:, num_steps:]], dim=1)  # [bs, S + 1, V]
    return ends[:, :, None] * _normalised(rest)


def _drafts(candidates: Tensor, draft_probs: Tensor, has_draft_probs: int) -> Tensor:
    """The distribution of each draft [bs, S, V] float64."""
    if has_draft_probs:
        return draft_probs.double()
    return torch.nn.functional.one_hot(candidates[:, 1:], draft_probs.shape[2]).double()


def _normalised(weights: Tensor) -> Tensor:
    """Divided by their sum over the last dimension; 0 where nothing is left."""
    total = weights.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, weights / total.clamp(min=1e-300), 0.0)


def _law(dist: Tensor, dtype: torch.dtype) -> Frequencies:
    fits = torch.ones(dist.shape[0], dtype=torch.bool, device=dist.device)
    return Frequencies(dist.to(dtype), dist > 0, fits)
