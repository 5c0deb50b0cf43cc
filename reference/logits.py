"""From the target model's logits to the law that verification draws from, after every node of a tree.

The order is SGLang's outside speculation; all of it is per request:

1. frequency and presence penalties, subtracted: `frequency_penalty * count + presence_penalty` where count > 0
2. repetition penalty where count > 0: logits below 0 are multiplied, the others divided by it
3. `min_new_tokens`: while fewer tokens are out, the stop tokens are -inf
4. logit bias, added; it is finite or -inf, so 3 and 5 may as well come before it
5. grammar: tokens whose bit is 0 are -inf
6. a custom logit processor, which can bring back what 3 and 5 took
7. temperature and softmax, then top-k, top-p and min-p, each of which renormalises

Counts are of output tokens; the prompt is not in them. Greedy requests are encoded as temperature 1 and `top_k` 1: a
tie for the most probable token then leaves several. A batch in which all are greedy takes `row_argmax` after step 6.

The history of a node is its request's output before the tree, the root included, and then the drafts on the node's own
path, itself included. Two *laws* differ in what of it they see:

EXACT    each node is penalised for its own history, as decoding token by token would
RELAXED  as shipped: each node of a tree for what was out before the tree. At the root there is no difference

What SGLang's verification of trees did otherwise, for long or still:

* penalties are relaxed; before PR #22049 V2 had none, and no logit bias
* of each step only the last token is counted (PR #33643, open), so that a frequency penalty fades and `min_new_tokens`
  lasts longer as more drafts are accepted; V2 first counts the last token of the prompt
* min_p is ignored; so is a custom processor in V2, and V1 runs it before step 1. (vLLM ignored min_p and logit bias in
  verification: issue #42744)

Outside speculation it adds the bias after step 5, and unless there is a min_p, top-p is of the law before top-k.

Logits and laws are float32 or float64, all floating-point arguments of a call the same. Penalties of dyadic numbers
have no rounding. `ndt` is short for `num_draft_tokens`, V for the size of the vocabulary; node i of request b has row
`b * ndt + i`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation

__all__ = [
    "EXACT",
    "NAN_HIGHEST",
    "NAN_LOWEST",
    "RELAXED",
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


def accumulate_penalties(
    output_counts: Tensor, output_lens: Tensor, accept_tokens: Tensor, accept_lens: Tensor, law: int
) -> None:
    """Count what a step put out: all of it (EXACT), or its last token alone (RELAXED, as shipped).

    output_counts  [bs, V] int32, changed in place: how often each token was put out
    output_lens    [bs] int32, changed in place: how many tokens were
    accept_tokens  [bs, accept_width] int32: the step's tokens, the bonus last, then anything; 0 to V - 1
    accept_lens    [bs] int32: how many they are, 1 to `accept_width`
    law            EXACT or RELAXED, which falls behind by `accept_lens - 1` tokens a step

    The first output token, which comes from the prompt's prefill, is a step of length 1.
    Raises ValueError for tokens outside the vocabulary, lengths out of range and unknown laws.
    Source: SGLang PR #22049 for the last token alone, PR #33643 for all of them.
    """
    if validation.enabled():
        _check_accumulate(output_counts, output_lens, accept_tokens, accept_lens, law)
    column = torch.arange(accept_tokens.shape[1], device=accept_tokens.device)
    counted = column < accept_lens[:, None]  # [bs, accept_width]
    if law == RELAXED:
        counted = column == accept_lens[:, None] - 1
    tokens = torch.where(counted, accept_tokens, 0).to(torch.int64)
    output_counts.scatter_add_(1, tokens, counted.to(torch.int32))
    output_lens += counted.sum(1)


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
    """Steps 1 to 4 for every node of the trees.

    logits              [bs * ndt, V] float, changed in place; neither NaN nor +inf
    output_counts       [bs, V] int32: how often each token was put out, the root's included
    output_lens         [bs] int32: how many tokens were, the root included
    candidates          [bs, ndt] int64: the token of each node, 0 to V - 1
    tree_mask           [bs, ndt, ndt] bool: True at the ancestors of a node, earlier nodes, and at the node itself
    frequency_penalty   [bs] float
    presence_penalty    [bs] float
    repetition_penalty  [bs] float, above 0
    min_new_tokens      [bs] int32: the length of the history below which stop tokens are -inf
    stop_token_ids      [bs, num_stop_tokens] int64, padded with V
    logit_bias          [bs, V] float: finite or -inf
    law                 EXACT or RELAXED; the latter reads neither `candidates` nor `tree_mask`

    A token that is on a path more than once counts as often for the frequency penalty, and once for the other two.
    The root's token is in `output_counts`; counting it on the path too was a bug in vLLM (PR #33251).
    Raises ValueError for values out of range and masks that are not of trees. Source: SGLang PR #22049 for RELAXED.
    """
    if validation.enabled():
        _check_history(logits, output_counts, output_lens, candidates, tree_mask, law)
        penalties = (frequency_penalty, presence_penalty, repetition_penalty)
        _check_penalties(logits, output_counts, penalties, min_new_tokens, stop_token_ids, logit_bias)
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


def apply_token_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor) -> None:
    """Step 5: forbid the tokens whose bit is 0.

    logits   [num_rows, V] float, changed in place; NaN and infinities too become -inf where they are forbidden
    bitmask  [num_rows, ceil(V / 32)] int32: token v is bit `v % 32`, the lowest first, of word `v // 32`; the bits
             from V on mean nothing
    indices  [num_indices] int32: the rows that are masked, in any order; the others stay as they are

    Raises ValueError for rows that are not there. Source: XGrammar's `apply_token_bitmask_inplace`.
    """
    if validation.enabled():
        _check_bitmask(logits, bitmask, indices)
    num_rows, vocab_size = logits.shape
    masked = torch.zeros((num_rows, 1), dtype=torch.bool, device=logits.device)
    masked[indices.to(torch.int64)] = True
    for bit in range(min(WORD_BITS, vocab_size)):
        tokens = logits[:, bit::WORD_BITS]  # [num_rows, words that have such a token], a view
        forbidden = bitmask[:, : tokens.shape[1]] >> bit & 1 == 0
        tokens.masked_fill_(forbidden & masked, float("-inf"))


def row_argmax(logits: Tensor, nan_policy: int) -> Tensor:
    """The greedy token of each row; of equal ones the lowest.

    logits      [num_rows, V] float; infinities are values like others
    nan_policy  NAN_HIGHEST: the first NaN of a row is its result, as in `torch.argmax`; NAN_LOWEST: NaN counts as
                -inf, as it does among logits above -1e30 under SGLANG_SANITIZE_NAN_LOGITS

    Returns ids [num_rows] int64. Raises ValueError for an empty vocabulary and unknown policies.
    Source: SGLang's greedy verification.
    """
    if validation.enabled():
        _check_argmax(logits, nan_policy)
    if nan_policy == NAN_LOWEST:
        logits = torch.where(logits.isnan(), float("-inf"), logits)
    return logits.argmax(dim=1)


def temperature_softmax(logits: Tensor, temperature: Tensor) -> Tensor:
    """The law of each row: the softmax of `logits / temperature`.

    logits       [num_rows, V] float: finite or -inf, which is probability 0; not all of a row -inf
    temperature  [num_rows] float, above 0; greedy rows have 1 and are left to `top_k` 1

    Returns probs [num_rows, V] float. Raises ValueError for NaN, +inf and rows in which every token is forbidden, which
    have no law. Source: SGLang's sampler.
    """
    if validation.enabled():
        _check_softmax(logits, temperature)
    return torch.softmax(logits / temperature[:, None], dim=1)


def top_k_renorm_probs(probs: Tensor, top_k: Tensor) -> Tensor:
    """Keep the k most probable tokens of each row and every token as probable as the last of them.

    probs  [num_rows, V] float, 0 or more, with a sum above 0
    top_k  [num_rows] int32: k, 1 or more; all tokens are kept from V on

    Returns renorm_probs [num_rows, V]: what is kept, divided by its sum, and 0 elsewhere. Raises ValueError for k below
    1, which SGLang refuses too, and rows of zeros. Source: FlashInfer's `top_k_renorm_probs`; ties: its issue #769.
    """
    if validation.enabled():
        _check_renorm(probs, "top_k", top_k, torch.int32, top_k >= 1, "1 or more")
    last = top_k.to(torch.int64).clamp(max=probs.shape[1])[:, None] - 1  # [num_rows, 1]
    return _renormalised(probs, probs.sort(dim=1, descending=True).values.gather(1, last))


def top_p_renorm_probs(probs: Tensor, top_p: Tensor) -> Tensor:
    """Keep the fewest most probable tokens of each row that add up to p, and every token as probable as the last.

    probs  [num_rows, V] float, 0 or more, with sum 1
    top_p  [num_rows] float: p, above 0, at most 1, which keeps all tokens; so does a p that rounding keeps out of reach

    Returns renorm_probs [num_rows, V]: what is kept, divided by its sum, and 0 elsewhere. A p close to 0 keeps the most
    probable token and those equal to it. Raises ValueError for p outside its range and rows of zeros.
    Source: Holtzman et al. (arXiv 1904.09751), section 3.1; ties: FlashInfer's `top_p_renorm_probs`.
    """
    if validation.enabled():
        _check_renorm(probs, "top_p", top_p, probs.dtype, (top_p > 0) & (top_p <= 1), "above 0, at most 1")
    ordered = probs.sort(dim=1, descending=True).values  # [num_rows, V]
    too_few = (ordered.cumsum(1) < top_p[:, None]).sum(1, keepdim=True)  # [num_rows, 1]
    pivot = ordered.gather(1, too_few.clamp(max=probs.shape[1] - 1))
    return _renormalised(probs, torch.where(top_p[:, None] < 1, pivot, 0))


def min_p_renorm_probs(probs: Tensor, min_p: Tensor) -> Tensor:
    """Keep the tokens of each row that have at least the share `min_p` of the most probable token's probability.

    probs  [num_rows, V] float, 0 or more, with a sum above 0
    min_p  [num_rows] float: 0, which keeps all tokens, to 1, which keeps the most probable and those equal to it

    Returns renorm_probs [num_rows, V]: what is kept, divided by its sum, and 0 elsewhere. Raises ValueError for `min_p`
    outside its range and rows of zeros. Source: Nguyen et al. (arXiv 2407.01082), section 3.
    """
    if validation.enabled():
        _check_renorm(probs, "min_p", min_p, probs.dtype, (min_p >= 0) & (min_p <= 1), "0 to 1")
    return _renormalised(probs, probs.amax(1, keepdim=True) * min_p[:, None])


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
) -> Tensor:
    """All steps in order: the law after each node.

    logits                  [bs * ndt, V] float: neither NaN nor +inf; not changed
    output_counts           [bs, V] int32, output_lens [bs] int32, candidates [bs, ndt] int64 and tree_mask
                            [bs, ndt, ndt] bool: as `apply_penalties` takes them
    params                  the parameters of each request
    law                     EXACT or RELAXED, for the penalties. What else a verification leaves out, the other
                            arguments say: `min_p` 0, no custom processor
    bitmask                 [bs * ndt, ceil(V / 32)] int32, or None where there is no grammar
    custom_logit_processor  gets logits [bs * ndt, V], may change them, and returns such logits

    Returns probs [bs * ndt, V] float. Raises ValueError as its steps do. Its slow twin, for EXACT, is
    `sequential.next_token_law` after each node's path. Source: SGLang's sampler; PR #22049.
    """
    ndt = candidates.shape[1]
    logits = logits.clone()
    apply_penalties(logits, output_counts, output_lens, candidates, tree_mask, *params[:6], law)
    if bitmask is not None:
        apply_token_bitmask(logits, bitmask, torch.arange(logits.shape[0], dtype=torch.int32, device=logits.device))
    if custom_logit_processor is not None:
        logits = custom_logit_processor(logits)
    probs = temperature_softmax(logits, params.temperature.repeat_interleave(ndt))
    probs = top_k_renorm_probs(probs, params.top_k.repeat_interleave(ndt))
    probs = top_p_renorm_probs(probs, params.top_p.repeat_interleave(ndt))
    return min_p_renorm_probs(probs, params.min_p.repeat_interleave(ndt))


def total_variation(probs: Tensor, other_probs: Tensor) -> Tensor:
    """How far apart two laws are: the largest difference that they make to the probability of any event.

    probs        [num_rows, V] float
    other_probs  [num_rows, V] float

    Returns distance [num_rows] float: half the sum of the differences, from 0 for equal laws to 1 for laws that share
    no token. Between the exact and the relaxed law of a node: how often, at least, the relaxed one emits another token.
    Raises ValueError for different shapes. Source: Levin and Peres, Markov Chains and Mixing Times, proposition 4.2.
    """
    if validation.enabled():
        _check_probs("probs", probs)
        validation.require_tensor(
            "other_probs", other_probs, probs.dtype, num_rows=probs.shape[0], vocab_size=probs.shape[1]
        )
    return (probs - other_probs).abs().sum(1) / 2


def _renormalised(probs: Tensor, pivot: Tensor) -> Tensor:
    """What of `probs` [num_rows, V] is at least `pivot` [num_rows, 1], with sum 1."""
    kept = torch.where(probs >= pivot, probs, 0)
    return kept / kept.sum(1, keepdim=True)


def _check_law(law: int) -> None:
    if law not in (EXACT, RELAXED):
        raise ValueError(f"law is {law}; allowed: EXACT ({EXACT}), RELAXED ({RELAXED})")


def _check_counts(output_counts: Tensor, output_lens: Tensor, bs: int) -> None:
    validation.require_tensor("output_counts", output_counts, torch.int32, bs=bs, vocab_size=None)
    validation.require_tensor("output_lens", output_lens, torch.int32, bs=bs)
    validation.require_between("output_counts", output_counts, 0, 2**31 - 1)
    validation.require_between("output_lens", output_lens, 0, 2**31 - 1)


def _check_accumulate(
    output_counts: Tensor, output_lens: Tensor, accept_tokens: Tensor, accept_lens: Tensor, law: int
) -> None:
    _check_law(law)
    validation.require_tensor("accept_tokens", accept_tokens, torch.int32, bs=None, accept_width=None)
    bs, accept_width = accept_tokens.shape
    _check_counts(output_counts, output_lens, bs)
    validation.require_tensor("accept_lens", accept_lens, torch.int32, bs=bs)
    validation.require_between("accept_lens", accept_lens, 1, accept_width)
    validation.require_between("accept_tokens", accept_tokens, 0, output_counts.shape[1] - 1)


def _check_rows(name: str, rows: Tensor) -> None:
    if rows.dtype not in (torch.float32, torch.float64):
        raise ValueError(f"{name} has dtype {rows.dtype}; allowed: torch.float32, torch.float64")
    validation.require_tensor(name, rows, rows.dtype, num_rows=None, vocab_size=None)
    validation.require_scalar(f"vocab_size (the width of {name})", rows.shape[1], 1)


def _check_probs(name: str, probs: Tensor) -> None:
    _check_rows(name, probs)
    validation.require_all((probs >= 0) & probs.isfinite(), name, probs, "finite, 0 or more")


def _check_history(
    logits: Tensor, output_counts: Tensor, output_lens: Tensor, candidates: Tensor, tree_mask: Tensor, law: int
) -> None:
    _check_law(law)
    validation.require_tensor("candidates", candidates, torch.int64, bs=None, num_draft_tokens=None)
    bs, ndt = candidates.shape
    validation.require_scalar("num_draft_tokens (the width of candidates)", ndt, 1)
    _check_counts(output_counts, output_lens, bs)
    _check_rows("logits", logits)
    validation.require_tensor("logits", logits, logits.dtype, num_nodes=bs * ndt, vocab_size=output_counts.shape[1])
    validation.require_all(logits < float("inf"), "logits", logits, "finite or -inf")
    validation.require_between("candidates", candidates, 0, logits.shape[1] - 1)
    validation.require_tensor("tree_mask", tree_mask, torch.bool, bs=bs, num_draft_tokens=ndt, nodes=ndt)
    node = torch.arange(ndt, device=tree_mask.device)
    itself_or_root = (node == node[:, None]) | (node == 0)  # [ndt, ndt]
    later = node > node[:, None]
    allowed = "True at the root and the node itself, False at later nodes"
    validation.require_all((tree_mask | ~itself_or_root) & ~(tree_mask & later), "tree_mask", tree_mask, allowed)


def _check_penalties(
    logits: Tensor,
    output_counts: Tensor,
    penalties: tuple[Tensor, Tensor, Tensor],
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
) -> None:
    bs, vocab_size = output_counts.shape
    for name, penalty in zip(SamplingBatchInfo._fields, penalties, strict=False):
        validation.require_tensor(name, penalty, logits.dtype, bs=bs)
        validation.require_all(penalty.isfinite(), name, penalty, "finite")
    validation.require_all(penalties[2] > 0, "repetition_penalty", penalties[2], "above 0")
    validation.require_tensor("min_new_tokens", min_new_tokens, torch.int32, bs=bs)
    validation.require_between("min_new_tokens", min_new_tokens, 0, 2**31 - 1)
    validation.require_tensor("stop_token_ids", stop_token_ids, torch.int64, bs=bs, num_stop_tokens=None)
    validation.require_between("stop_token_ids", stop_token_ids, 0, vocab_size)
    validation.require_tensor("logit_bias", logit_bias, logits.dtype, bs=bs, vocab_size=vocab_size)
    validation.require_all(logit_bias < float("inf"), "logit_bias", logit_bias, "finite or -inf")


def _check_bitmask(logits: Tensor, bitmask: Tensor, indices: Tensor) -> None:
    _check_rows("logits", logits)
    num_rows, vocab_size = logits.shape
    num_words = -(-vocab_size // WORD_BITS)
    validation.require_tensor("bitmask", bitmask, torch.int32, num_rows=num_rows, num_words=num_words)
    validation.require_tensor("indices", indices, torch.int32, num_indices=None)
    validation.require_between("indices", indices, 0, num_rows - 1)


def _check_argmax(logits: Tensor, nan_policy: int) -> None:
    _check_rows("logits", logits)
    if nan_policy not in (NAN_HIGHEST, NAN_LOWEST):
        raise ValueError(f"nan_policy is {nan_policy}; allowed: NAN_HIGHEST ({NAN_HIGHEST}), NAN_LOWEST ({NAN_LOWEST})")


def _check_softmax(logits: Tensor, temperature: Tensor) -> None:
    _check_rows("logits", logits)
    validation.require_all(logits < float("inf"), "logits", logits, "finite or -inf")
    highest = logits.amax(1)  # [num_rows]
    validation.require_all(highest.isfinite(), "highest logit of row ", highest, "finite")
    validation.require_tensor("temperature", temperature, logits.dtype, num_rows=logits.shape[0])
    positive = (temperature > 0) & temperature.isfinite()
    validation.require_all(positive, "temperature", temperature, "finite, above 0")


def _check_renorm(probs: Tensor, name: str, limit: Tensor, dtype: torch.dtype, valid: Tensor, allowed: str) -> None:
    _check_probs("probs", probs)
    validation.require_tensor(name, limit, dtype, num_rows=probs.shape[0])
    validation.require_all(valid, name, limit, allowed)
    total = probs.sum(1)  # [num_rows]
    validation.require_all(total > 0, "sum of the row of probs ", total, "above 0")
