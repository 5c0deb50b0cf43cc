"""The release's own verification after the target's forward: `eagle_sample`, `EagleVerifyInputV2Mixin.sample` before.

It is run as it is, on logits of a case. In place of what has no source: the reference's greedy walk and tree sampler,
which refuse buffers that their callers have to fill, the reference's filters, and uniform draws of the case. Without
tensor parallelism nothing is broadcast. On 0.5.10.post1 and later a grammar is none of it: `apply_token_bitmask` is
tested on its own.
"""

from __future__ import annotations

import contextlib
from functools import partial
from typing import Any

import torch

from specsim.contracts.contract import WrongResultError
from specsim.contracts.registry import OPS
from specsim.engines.sglang.operations.functions import Fields, Lifted, TorchWithoutTies
from specsim.engines.sglang.stubs import nothing
from specsim.engines.sglang.where import places

SAMPLE_METHOD = "EagleVerifyInputV2Mixin.sample"
SAMPLE_FUNCTION = places("eagle_sample")
SAMPLE_PLACES = (*SAMPLE_FUNCTION, *places(SAMPLE_METHOD))
_PARAMETERS = ("verify_input", "batch", "logits_output", "grammar_mask", "uno_target_max_top_k")
SAMPLE_SIGNATURES = (
    (*_PARAMETERS, "watermark_state", "watermark_full_mask"),
    _PARAMETERS,
    _PARAMETERS[:4],
    ("verify_input", "batch", "logits_output", "vocab_mask"),
    ("self", "batch", "logits_output", "vocab_mask"),
)
SAMPLE_FOLLOWS = frozenset(
    {
        "verify_tree_greedy_func",
        "apply_scaling_penalties",
        "_verify_uses_greedy",
        "_verify_coins",
        "_can_use_sparse_uno_tree_target_sampling",
    }
)

TOP_K_ALL = 1 << 30
Tensor = torch.Tensor


class TorchWithCoins:
    """`torch`, whose `rand` and `rand_like` give the uniform draws of the case; equal values have an order."""

    def __init__(self) -> None:
        self.samples = self.final = torch.empty(0)

    def __getattr__(self, name: str) -> Any:
        return getattr(TorchWithoutTies, name, None) or getattr(torch, name)

    def rand_like(self, like: Tensor, **_options: Any) -> Tensor:
        return _of_shape("the uniform draws of the nodes", self.samples, tuple(like.shape))

    def rand(self, shape: tuple[int, ...], **_options: Any) -> Tensor:
        return _of_shape("the final coins", self.final, tuple(shape))


def _of_shape(what: str, tensor: Tensor, shape: tuple[int, ...]) -> Tensor:
    if tuple(tensor.shape) != shape:
        raise WrongResultError(f"{what} are requested with shape {list(shape)}, they have {list(tensor.shape)}")
    return tensor.clone()


def _filled(accept_index: Tensor) -> None:
    if not bool((accept_index == -1).all()):
        raise WrongResultError("accept_index is not filled with -1 before the walk")


class GreedyWalk:
    """In place of the CUDA kernel of greedy verification; the rest is what it was given and what it gave."""

    def __init__(self) -> None:
        self.targets = self.predicts = self.accept_index = torch.empty(0)

    def __call__(
        self,
        predicts: Tensor,
        accept_index: Tensor,
        accept_token_num: Tensor,
        candidates: Tensor,
        retrive_index: Tensor,
        retrive_next_token: Tensor,
        retrive_next_sibling: Tensor,
        target_predict: Tensor,
        **_more: Any,
    ) -> None:
        _filled(accept_index)
        self.targets, self.predicts, self.accept_index = target_predict, predicts, accept_index
        found = OPS["verify_tree_greedy"].reference(
            candidates,
            retrive_index,
            retrive_next_token,
            retrive_next_sibling,
            target_predict,
            num_steps=accept_index.shape[1] - 1,
        )
        _write((predicts, accept_index, accept_token_num), found)


class TreeSampler:
    """In place of the CUDA kernel of sampled verification; `probs` are the target's that it was given."""

    def __init__(self) -> None:
        self.probs: Tensor | None = None

    def __call__(
        self,
        predicts: Tensor,
        accept_index: Tensor,
        accept_token_num: Tensor,
        candidates: Tensor,
        retrive_index: Tensor,
        retrive_next_token: Tensor,
        retrive_next_sibling: Tensor,
        uniform_samples: Tensor,
        uniform_samples_for_final_sampling: Tensor,
        target_probs: Tensor,
        draft_probs: Tensor,
        threshold_single: float,
        threshold_acc: float,
        deterministic: bool = True,
    ) -> None:
        del deterministic
        _filled(accept_index)
        if bool((draft_probs != 0).any()) or draft_probs.shape != target_probs.shape:
            raise WrongResultError(
                "draft_probs, the sampler's scratch, is not as many zeros as target_probs has values"
            )
        self.probs = target_probs
        found = OPS["verify_tree_target_only"].reference(
            candidates,
            retrive_index,
            retrive_next_token,
            retrive_next_sibling,
            uniform_samples,
            uniform_samples_for_final_sampling,
            target_probs,
            torch.tensor([threshold_single], dtype=torch.float32),
            torch.tensor([threshold_acc], dtype=torch.float32),
            num_steps=accept_index.shape[1] - 1,
        )
        _write((predicts, accept_index, accept_token_num), found)


def _write(buffers: tuple[Tensor, ...], found: tuple[Tensor, ...]) -> None:
    for buffer, value in zip(buffers, found, strict=True):
        buffer.copy_(value)


class Filter:
    """In place of a CUDA filter; `probs` and the rows' `parameters` are what it was given."""

    def __init__(self, op: str) -> None:
        self._op = op
        self.probs = torch.empty(0)
        self.parameters: Tensor | None = None

    def __call__(self, probs: Tensor, parameters: Tensor) -> Tensor:
        self.probs, self.parameters = probs, parameters
        kept: Tensor = OPS[self._op].reference(probs, parameters)
        return kept


def _group() -> Fields:
    return Fields(world_size=1)


def around_sampling() -> dict[str, Any]:
    """What `sample` is given. `config` is what the release reads its options from."""
    config = Fields(speculative_accept_threshold_single=1.0, speculative_accept_threshold_acc=1.0)
    walk, sampler = GreedyWalk(), TreeSampler()
    return {
        "torch": TorchWithCoins(),
        "config": config,
        "get_global_server_args": lambda: config,
        "get_server_args": lambda: config,
        "get_spec": lambda: config,
        "get_parallel": lambda: Fields(tp_group=_group(), attn_tp_group=_group()),
        "get_tp_group": _group,
        "get_attention_tp_group": _group,
        "is_dp_attention_enabled": lambda: False,
        "partial": partial,
        "borrow_graph_pool": lambda **_user: contextlib.nullcontext(),
        "SIMULATE_ACC_LEN": -1,
        "generate_simulated_accept_index": nothing,
        "verify_tree_greedy": walk,
        "tree_speculative_sampling_target_only": sampler,
        "top_k_renorm_prob": Filter("top_k_renorm_probs"),
        "top_p_renorm_prob": Filter("top_p_renorm_probs"),
        "sampling_softmax": _softmax,
        "chain_speculative_sampling_triton": nothing,
    }


class ExactDistribution:
    """In place of the last filter before the sampler: softmax rounds, so what it should have given takes its place.

    The sampler's uniform draws lie next to edges of the case's distribution, which sums to 1 or, in some rows, to a
    little less.
    """

    def __init__(self) -> None:
        self.expected = torch.empty(0)
        self.parameters: Tensor | None = None

    def __call__(self, probs: Tensor, parameters: Tensor) -> Tensor:
        self.parameters = parameters
        wanted = self.expected / self.expected.sum(dim=1, keepdim=True)
        if probs.shape != wanted.shape or not bool(torch.isclose(probs, wanted, rtol=0, atol=1e-5).all()):
            raise WrongResultError(
                "what a node is sampled from is not the softmax of its logits / the request's temperature"
            )
        return self.expected


def around_samplers() -> dict[str, Any]:
    """`around_sampling` for distributions that the sampler is to get to the bit."""
    return {**around_sampling(), "top_p_renorm_prob": ExactDistribution()}


def _softmax(logits: Tensor, temperatures: Tensor) -> Tensor:
    """In place of the function of 0.5.22 and later that picks a kernel of the machine's."""
    return torch.softmax(logits / temperatures, dim=-1)


def sampling_info(**fields: Any) -> Fields:
    """`SamplingBatchInfo` without penalties."""
    return Fields(**{"is_all_greedy": True, "need_top_k_sampling": True, "need_top_p_sampling": True, **fields})


def sample(
    lifted: Lifted,
    logits: Tensor,
    candidates: Tensor,
    links: tuple[Tensor, Tensor, Tensor],
    num_steps: int,
    info: Any,
    **inputs: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Run the release's verification on `logits` [bs * ndt, V], which it may change.

    Returns (predict, accept_lens, accept_index). `inputs` are more fields of the release's verify input.
    """
    bs, nodes = candidates.shape
    index, next_token, next_sibling = links
    verify_input = Fields(
        draft_token=candidates.flatten(),
        draft_token_num=nodes,
        spec_steps=num_steps,
        max_tree_depth=num_steps + 1,
        topk=nodes,
        tree_topk=nodes,
        retrive_index=index,
        retrive_next_token=next_token,
        retrive_next_sibling=next_sibling,
        retrieve_index=index,
        retrieve_next_token=next_token,
        retrieve_next_sibling=next_sibling,
        **inputs,
    )
    batch = Fields(
        forward_mode=Fields(is_idle=lambda: False),
        seq_lens=torch.ones(bs, dtype=torch.int64),
        input_ids=verify_input.draft_token,
        sampling_info=info,
        device=torch.device("cpu"),
    )
    predict, accept_lens, accept_index = lifted.value(verify_input, batch, Fields(next_token_logits=logits))
    return predict, accept_lens, accept_index


def no_trees(bs: int, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    """Links of trees whose root has no child: the walk is not what is tested."""
    ends = torch.full((bs, nodes), -1)
    return torch.arange(bs * nodes).view(bs, nodes), ends, ends
