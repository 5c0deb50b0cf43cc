"""Verification at a temperature: the release's own path to its samplers, and its Triton samplers of chains."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from specsim.contracts.contract import Sizes, WrongResultError
from specsim.engines.sglang.operations.functions import FunctionNames, Lifted
from specsim.engines.sglang.operations.verification import (
    SAMPLE_FOLLOWS,
    SAMPLE_FUNCTION,
    SAMPLE_PLACES,
    SAMPLE_SIGNATURES,
    TOP_K_ALL,
    around_samplers,
    sample,
    sampling_info,
)
from specsim.engines.sglang.where import places

Tensor = torch.Tensor
_Verified = tuple[Tensor, Tensor, Tensor]

_CHAIN_SAMPLER = places("chain_speculative_sampling_triton")


def _temperatures(bs: int) -> Tensor:
    """[bs, 1]: one for each request."""
    return torch.tensor([[2.0 ** (b % 5)] for b in range(bs)])


def _sampled(lifted: Lifted, candidates: Tensor, links: Any, probs: Tensor, num_steps: int, **inputs: Any) -> _Verified:
    """Run the release on a distribution [bs, ndt, V] as logits, with a temperature, top_k and top_p of each request."""
    bs, nodes, vocab_size = probs.shape
    temperatures = _temperatures(bs)
    top_ps = 1.0 - torch.arange(bs) * 2.0**-20
    info = sampling_info(
        is_all_greedy=False,
        temperatures=temperatures,
        top_ks=torch.tensor([TOP_K_ALL - b for b in range(bs)], dtype=torch.int32),
        top_ps=top_ps,
    )
    logits = (probs.log() * temperatures[:, :, None]).reshape(bs * nodes, vocab_size)
    lifted.given["top_p_renorm_prob"].expected = probs.reshape(bs * nodes, vocab_size)
    predict, accept_lens, accept_index = sample(lifted, logits, candidates, links, num_steps, info, **inputs)
    for name, filter_name, of_request in (
        ("top_k", "top_k_renorm_prob", info.top_ks),
        ("top_p", "top_p_renorm_prob", top_ps),
    ):
        found, wanted = lifted.given[filter_name].parameters, of_request.repeat_interleave(nodes)
        if not torch.equal(found, wanted):
            raise WrongResultError(f"{name} of the nodes is {found.tolist()}, their requests have {wanted.tolist()}")
    return predict, accept_index, accept_lens - 1


def _tree_target_only(
    lifted: Lifted,
    candidates: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    target_probs: Tensor,
    threshold_single: Tensor,
    threshold_acc: Tensor,
    num_steps: int,
) -> _Verified:
    coins, config = lifted.given["torch"], lifted.given["config"]
    coins.samples, coins.final = uniform_samples, uniform_final
    config.speculative_accept_threshold_single = float(threshold_single)
    config.speculative_accept_threshold_acc = float(threshold_acc)
    links = (retrieve_index, retrieve_next_token, retrieve_next_sibling)
    return _sampled(lifted, candidates, links, target_probs, num_steps)


def _chain_links(bs: int, nodes: int) -> tuple[Tensor, Tensor, Tensor]:
    column = torch.arange(nodes)
    following = torch.where(column + 1 < nodes, column + 1, -1).expand(bs, nodes).contiguous()
    return torch.arange(bs * nodes).view(bs, nodes), following, torch.full((bs, nodes), -1)


def _coins_of_slots(uniform_samples: Tensor) -> Tensor:
    """A uniform draw for each slot [bs, num_steps + 1]; the last one decides about no draft."""
    return torch.nn.functional.pad(uniform_samples, (0, 1), value=0.5)


def _chain_in_sample(
    lifted: Lifted,
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_samples: Tensor,
    uniform_final: Tensor,
    block: bool = False,
) -> _Verified:
    coins, config = lifted.given["torch"], lifted.given["config"]
    coins.samples, coins.final = _coins_of_slots(uniform_samples), uniform_final
    config.speculative_use_rejection_sampling, config.speculative_use_block_verification = True, block
    links = _chain_links(*candidates.shape)
    num_steps = candidates.shape[1] - 1
    return _sampled(lifted, candidates, links, target_probs, num_steps, draft_probs=draft_probs)


def _has_numbers(sizes: Sizes) -> bool:
    """Before it samples it renormalises, which has no contract for rows of NaN."""
    return not sizes["has_nan"]


def _is_small(sizes: Sizes) -> bool:
    """The interpreter takes a tenth of a second for a request of a chain: the kernel itself is tested on more. SGLang
    drafts no placeholders.
    """
    return _has_numbers(sizes) and sizes["bs"] <= 2 and sizes["num_steps"] <= 3 and not sizes.get("has_placeholders")


_SAMPLE = "caller:eagle_sample"

FUNCTIONS: tuple[FunctionNames, ...] = (
    FunctionNames(
        "verify_tree_target_only",
        f"{_SAMPLE}, tree",
        SAMPLE_PLACES,
        SAMPLE_SIGNATURES,
        _tree_target_only,
        accepts=_has_numbers,
        stubs=around_samplers,
        follow=SAMPLE_FOLLOWS,
        role="caller",
    ),
    FunctionNames(
        "verify_chain_rejection",
        f"{_SAMPLE}, chain",
        SAMPLE_FUNCTION,
        SAMPLE_SIGNATURES[:4],
        _chain_in_sample,
        stubs=around_samplers,
        follow=SAMPLE_FOLLOWS,
        kernels=(_CHAIN_SAMPLER,),
        role="caller",
        accepts=_is_small,
        by_option=True,
    ),
    FunctionNames(
        "verify_chain_block",
        f"{_SAMPLE}, block",
        SAMPLE_FUNCTION,
        SAMPLE_SIGNATURES[:4],
        partial(_chain_in_sample, block=True),
        stubs=around_samplers,
        follow=SAMPLE_FOLLOWS,
        kernels=(_CHAIN_SAMPLER,),
        reads=frozenset({"speculative_use_block_verification"}),
        role="caller",
        accepts=_is_small,
        by_option=True,
    ),
)
