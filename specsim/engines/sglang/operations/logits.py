"""What is done to logits before a verification: penalties and bias, the grammar's mask, softmax, filters, argmax."""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.logits import as_fewest
from specsim.contracts.provider import NotCalledError
from specsim.engines.sglang.operations.functions import FunctionNames, Lifted
from specsim.engines.sglang.operations.names import KernelLaunch, KernelNames, host_call
from specsim.engines.sglang.operations.verification import (
    SAMPLE_FOLLOWS,
    SAMPLE_PLACES,
    SAMPLE_SIGNATURES,
    TOP_K_ALL,
    around_samplers,
    around_sampling,
    no_trees,
    sample,
    sampling_info,
)
from specsim.engines.sglang.penalties import RELAXED, ReleasePenalizers, sampling_request
from specsim.engines.sglang.stubs import Fields
from specsim.engines.sglang.where import places
from specsim.lifting.lift import Lifter

NAN_HIGHEST = 0  # of row_argmax's nan_policy
Tensor = torch.Tensor

_SAMPLE = "caller:eagle_sample"


# Penalties: each request has penalizers of its own, which were fed what it put out


def _release(lifter: Lifter) -> dict[str, Any]:
    return {"release": _penalizers(lifter)}


@lru_cache(maxsize=1)
def _penalizers(lifter: Lifter) -> ReleasePenalizers:
    return ReleasePenalizers(lifter)


def _fed(release: ReleasePenalizers, counts: Tensor, stop_ids: list[int], **params: Any) -> Any:
    """`SamplingBatchInfo` of one request that put out tokens `counts` [V] times, by the release's own penalizers."""
    vocab_size = len(counts)
    eos, *others = [token for token in stop_ids if token < vocab_size] or [vocab_size - 1]
    request = sampling_request([0], [], stop_token_ids=set(others), **params)
    request.tokenizer, request.eos_token_ids = Fields(eos_token_id=eos), {eos}
    info = release.info([request], Fields(), vocab_size)
    for token in torch.arange(vocab_size).repeat_interleave(counts).tolist():
        info.penalizer_orchestrator.cumulate_output_tokens(torch.tensor([token]))
    return info


def _infos(
    lifted: Lifted,
    output_counts: Tensor,
    frequency_penalty: Tensor,
    presence_penalty: Tensor,
    repetition_penalty: Tensor,
    min_new_tokens: Tensor,
    stop_token_ids: Tensor,
    logit_bias: Tensor,
    law: int,
    **_of_trees: Tensor,
) -> Iterator[Any]:
    """`SamplingBatchInfo` of each request alone, of the arguments of `apply_penalties`."""
    if law != RELAXED:
        raise NotCalledError("the release has one distribution for all nodes")
    for b, counts in enumerate(output_counts):
        bias = {str(token): float(logit_bias[b, token]) for token in logit_bias[b].nonzero().flatten().tolist()}
        yield _fed(
            lifted.given["release"],
            counts,
            stop_token_ids[b].tolist(),
            frequency_penalty=float(frequency_penalty[b]),
            presence_penalty=float(presence_penalty[b]),
            repetition_penalty=float(repetition_penalty[b]),
            min_new_tokens=int(min_new_tokens[b]),
            **({"logit_bias": bias} if bias else {}),
        )


def _rows(parts: list[Any], like: Tensor, neutral: float) -> Tensor | None:
    """One tensor [bs, V] of the requests' own, None where no request has any, as in a batch."""
    if all(part is None for part in parts):
        return None
    return torch.cat([torch.full_like(like[:1], neutral) if part is None else part for part in parts])


def _penalties_in_sample(lifted: Lifted, logits: Tensor, candidates: Tensor, logit_bias: Tensor, **case: Any) -> None:
    """One distribution for all nodes, which the release states."""
    infos = list(_infos(lifted, logit_bias=logit_bias, **case))
    for info in infos:
        info.update_penalties()
    batch = sampling_info(
        acc_additive_penalties=_rows([i.acc_additive_penalties for i in infos], logit_bias, 0.0),
        acc_scaling_penalties=_rows([i.acc_scaling_penalties for i in infos], logit_bias, 1.0),
        logit_bias=_rows([i.logit_bias for i in infos], logit_bias, 0.0),
    )
    bs, nodes = candidates.shape
    sample(lifted, logits, candidates, no_trees(bs, nodes), nodes - 1, batch)


def _apply_logits_bias(lifted: Lifted, logits: Tensor, candidates: Tensor, logit_bias: Tensor, **case: Any) -> None:
    """With the accumulated penalties of the overlap schedule, a node at a time.

    Without it the penalizers are applied in the order of a Python set of classes, which is another in each process.
    """
    infos = list(_infos(lifted, logit_bias=logit_bias, **case))
    of_nodes = logits.view(*candidates.shape, -1)  # [bs, ndt, V]
    for b, info in enumerate(infos):
        info.update_penalties()
        info.penalizer_orchestrator = None
        for node in range(candidates.shape[1]):
            lifted.value(info, of_nodes[b, node : node + 1])


def _apply_repeated(lifted: Lifted, logits: Tensor, candidates: Tensor, logit_bias: Tensor, **case: Any) -> None:
    """A request's penalizers, on the nodes of its tree; the bias, which is none of theirs, is added here."""
    infos = list(_infos(lifted, logit_bias=logit_bias, **case))
    of_nodes = logits.view(*candidates.shape, -1)  # [bs, ndt, V]
    for b, info in enumerate(infos):
        lifted.value(info.penalizer_orchestrator, of_nodes[b], candidates.shape[1])
        of_nodes[b] += logit_bias[b]


def _cumulate(
    lifted: Lifted, output_counts: Tensor, output_lens: Tensor, accept_tokens: Tensor, accept_lens: Tensor, law: int
) -> None:
    """A penalty of 1 for each occurrence counts the tokens; RELAXED, and so the release's feed, has the last alone.

    The penalizers count from nothing, and what they counted is added to the history.
    """
    for b, (counts, tokens, length) in enumerate(zip(output_counts, accept_tokens, accept_lens.tolist(), strict=True)):
        none = torch.zeros_like(counts)
        info = _fed(lifted.given["release"], none, [0], frequency_penalty=1.0, min_new_tokens=1)
        for column in range(length - 1 if law == RELAXED else 0, length):
            lifted.value(info.penalizer_orchestrator, tokens[column : column + 1].long())
        info.update_penalties()
        output_counts[b] -= info.acc_additive_penalties[0].to(counts.dtype)
        lens = [p.len_output_tokens for p in info.penalizer_orchestrator.penalizers.values() if _has_lens(p)]
        output_lens[b] += int(lens[0])


def _has_lens(penalizer: Any) -> bool:
    return hasattr(penalizer, "len_output_tokens")


# Softmax, argmax and filters


def _softmax(lifted: Lifted, logits: Tensor, temperature: Tensor) -> Tensor:
    """Each row is the root of a request that has no other node."""
    rows = logits.shape[0]
    coins = lifted.given["torch"]
    coins.samples, coins.final = torch.full((rows, 1), 0.5), torch.full((rows,), 0.5)
    info = sampling_info(
        is_all_greedy=False,
        temperatures=temperature[:, None],
        top_ks=torch.full((rows,), TOP_K_ALL, dtype=torch.int32),
        top_ps=torch.ones(rows),
    )
    sample(lifted, logits, torch.zeros(rows, 1, dtype=torch.int64), no_trees(rows, 1), 1, info)
    probs: Tensor = lifted.given["top_k_renorm_prob"].probs
    return probs


def _argmax(lifted: Lifted, logits: Tensor, nan_policy: int) -> Tensor:
    """All rows are nodes of one request."""
    if nan_policy != NAN_HIGHEST:
        raise NotCalledError("NaN counts as -1e30 only where SGLANG_SANITIZE_NAN_LOGITS is set")
    nodes = logits.shape[0]
    # The release may write to its logits, which are its own.
    sample(lifted, logits.clone(), torch.arange(nodes)[None], no_trees(1, nodes), 1, sampling_info())
    targets: Tensor = lifted.given["verify_tree_greedy"].targets
    return targets.flatten()


def _min_p_in_sample(lifted: Lifted, probs: Tensor, min_p: Tensor) -> Tensor:
    """The distribution that the sampler gets for requests with min_p; each row is the root of one, alone."""
    rows = probs.shape[0]
    coins, exact = lifted.given["torch"], lifted.given["top_p_renorm_prob"]
    coins.samples, coins.final = torch.full((rows, 1), 0.5), torch.full((rows,), 0.5)
    exact.expected = probs
    info = sampling_info(
        is_all_greedy=False,
        temperatures=torch.ones(rows, 1),
        top_ks=torch.full((rows,), TOP_K_ALL, dtype=torch.int32),
        top_ps=torch.ones(rows),
        min_ps=min_p,
        need_min_p_sampling=True,
    )
    sample(lifted, probs.log(), torch.zeros(rows, 1, dtype=torch.int64), no_trees(rows, 1), 1, info)
    sampled: Tensor = lifted.given["tree_speculative_sampling_target_only"].probs
    return sampled[:, 0]


class _Multinomial:
    """`torch`, whose `multinomial` notes the weights that it is given, and draws the first token."""

    def __init__(self) -> None:
        self.weights = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(torch, name)

    def multinomial(self, weights: Tensor, num_samples: int) -> Tensor:
        self.weights = weights.clone()
        return torch.zeros(weights.shape[0], num_samples, dtype=torch.int64)


def _min_p(lifted: Lifted, probs: Tensor, min_p: Tensor) -> Tensor:
    """The weights that are drawn from, divided by their sum, which `torch.multinomial` does by itself."""
    order = probs.sort(dim=-1, descending=True).indices
    rows = probs.shape[0]
    everything = torch.full((rows,), TOP_K_ALL, dtype=torch.int32)
    lifted.value(probs.clone(), everything, torch.ones(rows), min_p, True, None, torch.zeros(rows, dtype=torch.int64))
    weights = lifted.given["torch"].weights
    kept = torch.zeros_like(probs).scatter_(1, order, weights)
    return kept / kept.sum(dim=1, keepdim=True)


# Kernels


def _on_a_gpu(probs: Tensor) -> Tensor:
    if not probs.is_cuda:
        raise NotCalledError("the release's function refuses tensors that are not on a GPU")
    return probs


def _launch_top_k(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(_on_a_gpu(t["probs"]), t["top_k"], returned=t["renorm_probs"].copy_)


def _launch_top_p(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """Its documentation says that it discards what has less than a mass of 1 - p below it."""
    probs, top_p = _on_a_gpu(t["probs"]), t["top_p"]
    return host_call(probs, top_p, returned=lambda kept: t["renorm_probs"].copy_(as_fewest(probs, top_p, kept)))


KERNELS: tuple[KernelNames, ...] = (
    KernelNames("top_k_renorm_probs", places("top_k_renorm_probs_triton"), (("probs", "top_k"),), _launch_top_k),
    KernelNames("top_p_renorm_probs", places("top_p_renorm_probs_triton"), (("probs", "top_p"),), _launch_top_p),
)


def _is_small(sizes: Sizes) -> bool:
    """Penalizers are fed a token at a time."""
    return sizes["vocab_size"] <= 65


_SAMPLER_PARAMETERS = ("probs", "top_ks", "top_ps", "min_ps", "need_min_p_sampling", "sampling_seed", "positions")

FUNCTIONS: tuple[FunctionNames, ...] = (
    FunctionNames(
        "apply_penalties",
        f"{_SAMPLE}, penalties",
        SAMPLE_PLACES,
        SAMPLE_SIGNATURES,
        _penalties_in_sample,
        stubs=around_sampling,
        of_release=_release,
        follow=SAMPLE_FOLLOWS,
        role="caller",
        accepts=_is_small,
        by_option=True,
    ),
    FunctionNames(
        "apply_penalties",
        "function:SamplingBatchInfo.apply_logits_bias",
        places("SamplingBatchInfo.apply_logits_bias"),
        (("self", "logits"),),
        _apply_logits_bias,
        of_release=_release,
        follow=frozenset({"apply_scaling_penalties"}),
        accepts=_is_small,
        by_option=True,
    ),
    FunctionNames(
        "apply_penalties",
        "function:BatchedPenalizerOrchestrator.apply",
        places("BatchedPenalizerOrchestrator.apply"),
        (("self", "logits", "repeat"),),
        _apply_repeated,
        of_release=_release,
        follow=frozenset({"apply_scaling_penalties"}),
        accepts=_is_small,
        by_option=True,
    ),
    FunctionNames(
        "accumulate_penalties",
        "function:BatchedPenalizerOrchestrator.cumulate_output_tokens",
        places("BatchedPenalizerOrchestrator.cumulate_output_tokens"),
        (("self", "output_ids"),),
        _cumulate,
        of_release=_release,
        accepts=_is_small,
        by_option=True,
    ),
    FunctionNames(
        "temperature_softmax",
        f"{_SAMPLE}, softmax",
        SAMPLE_PLACES,
        SAMPLE_SIGNATURES,
        _softmax,
        stubs=around_sampling,
        follow=SAMPLE_FOLLOWS,
        role="caller",
    ),
    FunctionNames(
        "row_argmax",
        f"{_SAMPLE}, argmax",
        SAMPLE_PLACES,
        SAMPLE_SIGNATURES,
        _argmax,
        stubs=around_sampling,
        follow=SAMPLE_FOLLOWS,
        role="caller",
    ),
    FunctionNames(
        "min_p_renorm_probs",
        f"{_SAMPLE}, min_p",
        SAMPLE_PLACES,
        SAMPLE_SIGNATURES,
        _min_p_in_sample,
        stubs=around_samplers,
        follow=SAMPLE_FOLLOWS,
        role="caller",
        by_option=True,
    ),
    FunctionNames(
        "min_p_renorm_probs",
        "function:top_k_top_p_min_p_sampling_from_probs_torch",
        places("top_k_top_p_min_p_sampling_from_probs_torch"),
        (
            (*_SAMPLER_PARAMETERS, "return_filtered_probs", "max_top_k"),
            (*_SAMPLER_PARAMETERS, "return_filtered_probs"),
            _SAMPLER_PARAMETERS,
        ),
        _min_p,
        stubs=lambda: {"torch": _Multinomial()},
        by_option=True,
    ),
)
