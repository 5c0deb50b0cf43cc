"""From the target model's logits to the distribution that verification draws from, after every node of a tree.

The order is SGLang's outside speculation; all of it is per request:

1. frequency and presence penalties, subtracted: `frequency_penalty * count + presence_penalty` where count > 0
2. repetition penalty where count > 0: logits below 0 are multiplied, the others divided by it
3. `min_new_tokens`: while fewer tokens are out, the stop tokens are -inf
4. logit bias, added; it is finite or -inf, so 3 and 5 may as well come before it
5. grammar: tokens whose bit is 0 are -inf
6. a custom logit processor, which can bring back what 3 and 5 took
7. temperature and softmax, then top-k, top-p and min-p, each of which renormalises; top-k and top-p can be applied
   jointly (JOINT)

Counts are of output tokens; the prompt is not in them. Greedy requests are encoded as temperature 1 and `top_k` 1: a
tie for the most probable token then leaves several. A batch in which all are greedy takes `row_argmax` after step 6.

The history of a node is its request's output before the tree, the root included, and then the drafts on the node's own
path, itself included. Two settings of the argument `law` differ in how much of it they see:

EXACT    each node is penalised for its own history, as decoding token by token would
RELAXED  as shipped: each node of a tree for what was out before the tree. At the root there is no difference

What SGLang's verification of trees did otherwise, for long or still:

* penalties are relaxed; before PR #22049 V2 had none, and no logit bias
* of each step only the last token is counted (PR #33643, open), so that a frequency penalty fades and `min_new_tokens`
  lasts longer as more drafts are accepted; V2 first counts the last token of the prompt
* min_p is ignored; so is a custom processor in V2, and V1 runs it before step 1. (vLLM ignored min_p and logit bias in
  verification: issue #42744)

Outside speculation it adds the bias after step 5, and unless there is a min_p, top-p is of the distribution before
top-k. These differ in step 7:

TOP_K_FIRST  top-p is of what top-k kept, scaled to sum 1: vLLM, and SGLang's verification
JOINT        top-k and top-p are both of the distribution before either, and what both keep stays: SGLang outside
             speculation, and everywhere in its PR #36173 (closed)

Logits and distributions are float32 or float64, all floating-point arguments of a call the same. Penalties of dyadic
numbers have no rounding. `ndt` is short for `num_draft_tokens`, V for the size of the vocabulary; node i of request b
has row `b * ndt + i`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract

__all__ = [
    "EXACT",
    "JOINT",
    "NAN_HIGHEST",
    "NAN_LOWEST",
    "RELAXED",
    "TOP_K_FIRST",
    "SamplingBatchInfo",
    "accumulate_penalties",
    "apply_penalties",
    "apply_token_bitmask",
    "min_p_renorm_probs",
    "process_logits",
    "row_argmax",
    "temperature_softmax",
    "top_k_renorm_probs",
    "top_p_renorm_probs",
    "total_variation",
]

EXACT = 0
RELAXED = 1

NAN_HIGHEST = 0
NAN_LOWEST = 1

TOP_K_FIRST = 0
JOINT = 1

WORD_BITS = 32


class SamplingBatchInfo(NamedTuple):
    """What SGLang's SamplingParams say, for each request. Floating-point tensors have the dtype of the logits.

    frequency_penalty   [bs] float: 0 changes nothing
    presence_penalty    [bs] float: 0 changes nothing
    repetition_penalty  [bs] float, above 0: 1 changes nothing
    min_new_tokens      [bs] int32
    stop_token_ids      [bs, num_stop_tokens] int64: end-of-sequence and stop tokens, padded with V
    logit_bias          [bs, V] float: finite or -inf
    temperature         [bs] float, above 0
    top_k               [bs] int32: 1 or more; V or more changes nothing
    top_p               [bs] float: above 0, at most 1; 1 changes nothing
    min_p               [bs] float: 0 to 1; 0 changes nothing
    """

    frequency_penalty: Tensor
    presence_penalty: Tensor
    repetition_penalty: Tensor
    min_new_tokens: Tensor
    stop_token_ids: Tensor
    logit_bias: Tensor
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor


@contract(
    """
    output_counts  [bs, vocab_size] int32, 0 to 2**31 - 1, changed in place: how often each token was put out
    output_lens    [bs] int32, 0 to 2**31 - 1, changed in place: how many tokens were put out
    accept_tokens  [bs, accept_width] int32, 0 to vocab_size - 1: the step's tokens, the bonus last, then any tokens of
                   the vocabulary
    accept_lens    [bs] int32, 1 to accept_width: how many they are
    law            int: EXACT, all of them; RELAXED, the last alone, which falls behind by accept_lens - 1 tokens a step
    """
)
def accumulate_penalties(
    output_counts: Tensor, output_lens: Tensor, accept_tokens: Tensor, accept_lens: Tensor, law: int
) -> None:
    """Count what a step put out: all of it (EXACT), or its last token alone (RELAXED, as shipped).

    The first output token, which comes from the prompt's prefill, is a step of length 1.
    Raises ValueError for tokens outside the vocabulary, lengths out of range and an unknown `law`.
    Source: SGLang PR #22049 for the last token alone, PR #33643 for all of them.
    """
    if validation.enabled():
        _check_law(law)
    column = torch.arange(accept_tokens.shape[1], device=accept_tokens.device)
    counted = column < accept_lens[:, None]  # [bs, accept_width]
    if law == RELAXED:
        counted = column == accept_lens[:, None] - 1
    tokens = torch.where(counted, accept_tokens, 0).to(torch.int64)
    output_counts.scatter_add_(1, tokens, counted.to(torch.int32))
    output_lens += counted.sum(1)


@contract(
    """
    logits              [num_nodes = bs * num_draft_tokens, vocab_size >= 1] float, changed in place: finite or -inf
    output_counts       [bs, vocab_size] int32, 0 to 2**31 - 1: how often each token was put out, the root included
    output_lens         [bs] int32, 0 to 2**31 - 1: how many tokens were put out, the root included
    candidates          [bs, num_draft_tokens >= 1] int64, 0 to vocab_size - 1: token of each node
    tree_mask           [bs, num_draft_tokens, num_draft_tokens] bool: True at the ancestors of a node, earlier nodes,
                        and at the node itself
    frequency_penalty   [bs] float: subtracted for each time that a token occurs
    presence_penalty    [bs] float: subtracted once from tokens that occur
    repetition_penalty  [bs] float: above 0: multiplies the negative logits of tokens that occur, divides the others
    min_new_tokens      [bs] int32, 0 to 2**31 - 1: length of the history below which stop tokens are -inf
    stop_token_ids      [bs, num_stop_tokens] int64, 0 to vocab_size: stop tokens, padded with vocab_size
    logit_bias          [bs, vocab_size] float: added after the penalties; finite or -inf
    law                 int: EXACT, each node's own path counts; RELAXED, what was out before the tree, and neither
                        candidates nor tree_mask is read
    """
)
def apply_penalties(
    logits: Tensor,
    output_counts: Tensor,
    output_lens: Tensor,
    candidates: Tensor,
    tree_mask: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    repetition_penalty: Tensor,
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
    law: int,
) -> None:
    """Apply penalties, `min_new_tokens` and logit bias at every node of the trees: steps 1 to 4.

    A token that is on a path more than once counts as often for the frequency penalty, and once for the other two. The
    root's token is in `output_counts`; counting it on the path too was a bug in vLLM (PR #33251). Raises ValueError for
    values out of range and masks that are not of trees. Source: SGLang's penalizers; PR #22049 for RELAXED.
    """
    if validation.enabled():
        _check_law(law)
        _check_history(logits, tree_mask)
        _check_penalties((frequency_penalty, presence_penalty, repetition_penalty), logit_bias)
    bs, ndt = candidates.shape
    vocab_size = logits.shape[1]
    stopped = torch.zeros((bs, vocab_size + 1), dtype=torch.bool, device=logits.device)
    stopped = stopped.scatter_(1, stop_token_ids, True)[:, :vocab_size]  # [bs, V]
    counts, lens = output_counts, output_lens
    for node in range(ndt):
        if law == EXACT:
            on_path = tree_mask[:, node, 1:].to(torch.int32)  # [bs, ndt - 1], without the root
            counts = output_counts.scatter_add(1, candidates[:, 1:], on_path)  # [bs, V]
            lens = output_lens + on_path.sum(1)  # [bs]
        row = logits.view(bs, ndt, vocab_size)[:, node]  # [bs, V], a view
        present = counts > 0
        row -= frequency_penalty[:, None] * counts + torch.where(present, presence_penalty[:, None], 0)
        scaling = torch.where(present, repetition_penalty[:, None], 1)
        row.copy_(torch.where(row < 0, row * scaling, row / scaling) + logit_bias)
        row.masked_fill_(stopped & (lens < min_new_tokens)[:, None], float("-inf"))


@contract(
    """
    logits   [num_nodes, vocab_size >= 1] float, changed in place: any values; NaN and infinities too become -inf where
             they are forbidden
    bitmask  [num_nodes, num_words = (vocab_size + 31) // 32] int32: token v is bit v % 32, the lowest first, of word v
             // 32; 0 forbids; bits from vocab_size on mean nothing
    indices  [num_indices] int32, 0 to num_nodes - 1: rows that are masked, in any order; the others stay as they are
    """
)
def apply_token_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor) -> None:
    """Forbid the tokens whose bit is 0: step 5.

    Raises ValueError for rows that are not there. Source: XGrammar's `apply_token_bitmask_inplace`.
    """
    num_rows, vocab_size = logits.shape
    masked = torch.zeros((num_rows, 1), dtype=torch.bool, device=logits.device)
    masked[indices.to(torch.int64)] = True
    for bit in range(min(WORD_BITS, vocab_size)):
        tokens = logits[:, bit::WORD_BITS]  # [num_rows, words that have such a token], a view
        forbidden = bitmask[:, : tokens.shape[1]] >> bit & 1 == 0
        tokens.masked_fill_(forbidden & masked, float("-inf"))


@contract(
    """
    logits      [num_nodes, vocab_size >= 1] float: any values
    nan_policy  int: NAN_HIGHEST, the first NaN of a row is its result, as in `torch.argmax`; NAN_LOWEST, NaN counts as
                -inf, as it does among logits above -1e30 under SGLANG_SANITIZE_NAN_LOGITS
    -> ids      [num_nodes] int64: the highest logit's token, of equal ones the lowest
    """
)
def row_argmax(logits: Tensor, nan_policy: int) -> Tensor:
    """The greedy token of each row; of equal ones the lowest.

    Raises ValueError for an empty vocabulary and unknown policies.
    Source: SGLang's greedy verification.
    """
    if validation.enabled():
        _check_argmax(logits, nan_policy)
    if nan_policy == NAN_LOWEST:
        logits = torch.where(logits.isnan(), float("-inf"), logits)
    return logits.argmax(dim=1)


@contract(
    """
    logits       [num_nodes, vocab_size >= 1] float: finite or -inf, which is probability 0; not all of a row -inf
    temperature  [num_nodes] float: above 0; 1 where top_k is 1 for greedy requests
    -> probs     [num_nodes, vocab_size] float: distribution after each node
    """
)
def temperature_softmax(logits: Tensor, temperature: Tensor) -> Tensor:
    """The distribution of each row: the softmax of `logits / temperature`.

    Raises ValueError for NaN, +inf and rows in which every token is forbidden, which
    have none. Source: SGLang's sampler.
    """
    if validation.enabled():
        _check_softmax(logits, temperature)
    return torch.softmax(logits / temperature[:, None], dim=1)


@contract(
    """
    probs            [num_nodes, vocab_size >= 1] float: distribution after each node; 0 or more, sums to 1
    top_k            [num_nodes] int32, 1 or more: k; from vocab_size on all tokens are kept
    -> renorm_probs  [num_nodes, vocab_size] float: what is kept, divided by its sum, and 0 elsewhere; the row of probs
                     itself where top_k is vocab_size or more
    """
)
def top_k_renorm_probs(probs: Tensor, top_k: Tensor) -> Tensor:
    """Keep the k most probable tokens of each row and every token as probable as the last of them.

    Raises ValueError for k below
    1, which SGLang refuses too, and rows of zeros. Source: FlashInfer's `top_k_renorm_probs`; ties: its issue #769.
    """
    if validation.enabled():
        _check_total(probs)
    last = top_k.to(torch.int64).clamp(max=probs.shape[1])[:, None] - 1  # [num_rows, 1]
    pivot = probs.sort(dim=1, descending=True).values.gather(1, last)
    return _renormalised(probs, pivot, top_k < probs.shape[1])


@contract(
    """
    probs            [num_nodes, vocab_size >= 1] float: distribution after each node; 0 or more, sums to 1
    top_p            [num_nodes] float: p, above 0, at most 1, which keeps all tokens; so does a p that rounding keeps
                     out of reach. What counts up from the least probable token to 1 - p may keep one more, and those
                     equal to it, where fewer add up to p but for its rounding
    -> renorm_probs  [num_nodes, vocab_size] float: what is kept, divided by its sum, and 0 elsewhere; the row of probs
                     itself where top_p is 1
    """
)
def top_p_renorm_probs(probs: Tensor, top_p: Tensor) -> Tensor:
    """Keep the fewest most probable tokens of each row that add up to p, and every token as probable as the last.

    A p close to 0 keeps the most
    probable token and those equal to it. Raises ValueError for p outside its range and rows of zeros.
    Source: Holtzman et al. (arXiv 1904.09751), section 3.1; ties: FlashInfer's `top_p_renorm_probs`.
    """
    if validation.enabled():
        validation.require_all((top_p > 0) & (top_p <= 1), "top_p", top_p, "above 0, at most 1")
        _check_total(probs)
    ordered = probs.sort(dim=1, descending=True).values  # [num_rows, V]
    too_few = (ordered.cumsum(1) < top_p[:, None]).sum(1, keepdim=True)  # [num_rows, 1]
    pivot = ordered.gather(1, too_few.clamp(max=probs.shape[1] - 1))
    return _renormalised(probs, pivot, top_p < 1)


@contract(
    """
    probs            [num_nodes, vocab_size >= 1] float: distribution after each node; 0 or more, sums to 1
    min_p            [num_nodes] float, 0 to 1: 0 keeps all tokens, 1 the most probable and those equal to it
    -> renorm_probs  [num_nodes, vocab_size] float: what is kept, divided by its sum, and 0 elsewhere; the row of probs
                     itself where min_p is 0
    """
)
def min_p_renorm_probs(probs: Tensor, min_p: Tensor) -> Tensor:
    """Keep the tokens of each row that have at least the share `min_p` of the most probable token's probability.

    Raises ValueError for `min_p`
    outside its range and rows of zeros. Source: Nguyen et al. (arXiv 2407.01082), section 3.
    """
    if validation.enabled():
        _check_total(probs)
    return _renormalised(probs, probs.amax(1, keepdim=True) * min_p[:, None], min_p > 0)


def process_logits(
    logits: Tensor,
    output_counts: Tensor,
    output_lens: Tensor,
    candidates: Tensor,
    tree_mask: Tensor,
    params: SamplingBatchInfo,
    law: int,
    bitmask: Tensor | None = None,
    custom_logit_processor: Callable[[Tensor], Tensor] | None = None,
    filter_apply_order: int = TOP_K_FIRST,
) -> Tensor:
    """All steps in order: the distribution after each node.

    logits                  [bs * ndt, V] float: neither NaN nor +inf; not changed
    output_counts           [bs, V] int32, output_lens [bs] int32, candidates [bs, ndt] int64 and tree_mask
                            [bs, ndt, ndt] bool: as `apply_penalties` takes them
    params                  the parameters of each request
    law                     EXACT or RELAXED, for the penalties. What else a verification leaves out, the other
                            arguments say: `min_p` 0, no custom processor
    bitmask                 [bs * ndt, ceil(V / 32)] int32, or None where there is no grammar
    custom_logit_processor  gets logits [bs * ndt, V], may change them, and returns such logits
    filter_apply_order      TOP_K_FIRST or JOINT

    Returns probs [bs * ndt, V] float. Raises ValueError as its steps do, and for an unknown order. Its naive
    implementation, for EXACT, is `sequential.next_token_law` after each node's path. Source: SGLang's sampler; PR
    #22049; PR #36173 and FlashInfer's `filter_apply_order` for the orders.
    """
    if validation.enabled():
        check_filter_apply_order(filter_apply_order)
    ndt = candidates.shape[1]
    logits = logits.clone()
    apply_penalties(logits, output_counts, output_lens, candidates, tree_mask, *params[:6], law)
    if bitmask is not None:
        apply_token_bitmask(logits, bitmask, torch.arange(logits.shape[0], dtype=torch.int32, device=logits.device))
    if custom_logit_processor is not None:
        logits = custom_logit_processor(logits)
    probs = temperature_softmax(logits, params.temperature.repeat_interleave(ndt))
    top_k, top_p = params.top_k.repeat_interleave(ndt), params.top_p.repeat_interleave(ndt)
    if filter_apply_order == JOINT:  # of what top-p kept, top-k keeps what it would have kept of all
        probs = top_k_renorm_probs(top_p_renorm_probs(probs, top_p), top_k)
    else:
        probs = top_p_renorm_probs(top_k_renorm_probs(probs, top_k), top_p)
    return min_p_renorm_probs(probs, params.min_p.repeat_interleave(ndt))


@contract(
    """
    probs        [num_rows, vocab_size >= 1] float: one distribution a row
    other_probs  [num_rows, vocab_size] float: another
    -> distance  [num_rows] float: half the sum of the differences, from 0 for equal distributions to 1 for
                 distributions that share no token
    """
)
def total_variation(probs: Tensor, other_probs: Tensor) -> Tensor:
    """How far apart two distributions are: the largest difference that they make to the probability of any event.

    Between the exact and the relaxed distribution of a node: how often, at least,
    the relaxed one emits another token. Raises ValueError for different shapes. Source: Levin and Peres, Markov Chains
    and Mixing Times, proposition 4.2.
    """
    if validation.enabled():
        _check_probs(probs)
    return (probs - other_probs).abs().sum(1) / 2


def _renormalised(probs: Tensor, pivot: Tensor, is_filtered: Tensor) -> Tensor:
    """What of `probs` [num_rows, V] is at least `pivot` [num_rows, 1], with sum 1; rows that are not `is_filtered`
    [num_rows] as they are, and not divided by a sum that is 1 but for its rounding.
    """
    kept = torch.where(probs >= pivot, probs, 0)
    return torch.where(is_filtered[:, None], kept / kept.sum(1, keepdim=True), probs)


def _check_law(law: int) -> None:
    if law not in (EXACT, RELAXED):
        raise ValueError(f"law is {law}; allowed: EXACT ({EXACT}), RELAXED ({RELAXED})")


def check_filter_apply_order(order: int) -> None:
    if order not in (TOP_K_FIRST, JOINT):
        raise ValueError(f"filter_apply_order is {order}; allowed: TOP_K_FIRST ({TOP_K_FIRST}), JOINT ({JOINT})")


def _check_probs(probs: Tensor) -> None:
    validation.require_all((probs >= 0) & probs.isfinite(), "probs", probs, "finite, 0 or more")


def _check_history(logits: Tensor, tree_mask: Tensor) -> None:
    ndt = tree_mask.shape[1]
    validation.require_all(logits < float("inf"), "logits", logits, "finite or -inf")
    node = torch.arange(ndt, device=tree_mask.device)
    itself_or_root = (node == node[:, None]) | (node == 0)  # [ndt, ndt]
    later = node > node[:, None]
    allowed = "True at the root and the node itself, False at later nodes"
    validation.require_all((tree_mask | ~itself_or_root) & ~(tree_mask & later), "tree_mask", tree_mask, allowed)


def _check_penalties(penalties: tuple[Tensor, Tensor, Tensor], logit_bias: Tensor) -> None:
    for name, penalty in zip(SamplingBatchInfo._fields, penalties, strict=False):
        validation.require_all(penalty.isfinite(), name, penalty, "finite")
    validation.require_all(penalties[2] > 0, "repetition_penalty", penalties[2], "above 0")
    validation.require_all(logit_bias < float("inf"), "logit_bias", logit_bias, "finite or -inf")


def _check_argmax(logits: Tensor, nan_policy: int) -> None:
    if nan_policy not in (NAN_HIGHEST, NAN_LOWEST):
        raise ValueError(f"nan_policy is {nan_policy}; allowed: NAN_HIGHEST ({NAN_HIGHEST}), NAN_LOWEST ({NAN_LOWEST})")


def _check_softmax(logits: Tensor, temperature: Tensor) -> None:
    validation.require_all(logits < float("inf"), "logits", logits, "finite or -inf")
    highest = logits.amax(1)  # [num_rows]
    validation.require_all(highest.isfinite(), "highest logit of row ", highest, "finite")
    positive = (temperature > 0) & temperature.isfinite()
    validation.require_all(positive, "temperature", temperature, "finite, above 0")


def _check_total(probs: Tensor) -> None:
    _check_probs(probs)
    total = probs.sum(1)  # [num_rows]
    validation.require_all(total > 0, "sum of the row of probs ", total, "above 0")
