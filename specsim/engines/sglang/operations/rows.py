"""Rows of logits and chains of drafts: argmax, softmax, and sampling by rejection."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    as_is,
    by_option,
    host_call,
    named,
    option_kernel,
    words,
)
from specsim.engines.sglang.where import places

_CHAIN = words(
    "predicts accept_index accept_token_num candidates retrive_index retrive_next_token retrive_next_sibling "
    "uniform_samples uniform_samples_for_final_sampling target_probs draft_probs threshold_single threshold_acc "
    "deterministic"
)
BLOCK_PARAMETERS = (*_CHAIN, "block_verification")
_CHAIN_STRIDED = frozenset({"candidates", "uniform_samples", "target_probs", "draft_probs"})


def _launch_chain(_sizes: Sizes, t: Tensors, **options: Any) -> KernelLaunch:
    """In a chain the number of a node is its place; links and thresholds are there for the signature's sake."""
    candidates = t["candidates"]
    numbers = torch.arange(candidates.numel(), device=candidates.device).view(candidates.shape)
    outputs = named(t, "predicts accept_index accept_token_num")
    probs = named(t, "uniform_samples uniform_final target_probs draft_probs")
    return host_call(*outputs, candidates, numbers, None, None, *probs, 1.0, 1.0, True, **options)


def _has_every_draft(sizes: Sizes) -> bool:
    """SGLang drafts no placeholders."""
    return not sizes.get("has_placeholders")


ARGMAX_ROWS_MAX = 8


def _launch_argmax(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """It says that it is `logits.argmax(-1)`, of which a NaN is the result: policy 0."""
    return host_call(t["logits"], returned=as_is)


def _launch_wide_softmax(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(t["logits"], t["temperature"][:, None], t["probs"])


def _launch_temperature_softmax(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(t["logits"], t["temperature"][:, None], returned=as_is)


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "verify_chain_rejection",
        places("chain_speculative_sampling_triton"),
        (_CHAIN, BLOCK_PARAMETERS),
        _launch_chain,
        cost=5,
        accepts=_has_every_draft,
        reach=by_option,
        strided=_CHAIN_STRIDED,
    ),
    KernelNames(
        "verify_chain_block",
        places("chain_speculative_sampling_triton"),
        (BLOCK_PARAMETERS,),
        partial(_launch_chain, block_verification=True),
        cost=5,
        accepts=_has_every_draft,
        reach=by_option,
        strided=_CHAIN_STRIDED,
    ),
    KernelNames(
        "row_argmax",
        places("row_argmax"),
        (("x",),),
        _launch_argmax,
        # 65 programs a row: few rows are enough.
        accepts=lambda sizes: sizes["nan_policy"] == 0 and sizes["num_nodes"] <= ARGMAX_ROWS_MAX,
        cost=10,
        reach=by_option,
        strided=frozenset({"logits"}),
    ),
    KernelNames(
        "row_argmax",
        places("_medium_row_argmax"),  # its form for more than 64 rows
        (("x", "divisor"),),
        _launch_argmax,
        variant="medium",
        accepts=lambda sizes: sizes["nan_policy"] == 0,
        reach=by_option,
        strided=frozenset({"logits"}),
    ),
    option_kernel(
        "temperature_softmax",
        "wide_row_softmax_triton",
        "logits temperatures out",
        _launch_wide_softmax,
        variant="wide-rows",
        cost=3,
        strided=frozenset({"probs"}),
    ),
    option_kernel(
        "temperature_softmax",
        "temperature_softmax",
        "logits temperatures",
        _launch_temperature_softmax,
        variant="split",
    ),
)


def _in_graph(_sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """A draft step of the captured runner: its probabilities are one of the steps' of a buffer for more requests."""
    logits, steps, step = tensors["logits"], 3, 1
    rows, vocab_size = logits.shape
    buffers = SimpleNamespace(
        temperatures=torch.nn.functional.pad(tensors["temperature"], (0, 2), value=1.0)[:, None],
        draft_probs=torch.zeros(rows + 2, steps, vocab_size, device=logits.device),
    )
    runner = SimpleNamespace(buffers=buffers, step=step, _select_step_logits=lambda _ret, bs: logits[:bs])
    return {"torch": torch, "self": runner, "bs": rows, "ret": None}


CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "temperature_softmax",
        "MultiLayerEagleDraftExtendCudaGraphRunner._sample_draft_proposal",
        places("MultiLayerEagleDraftExtendCudaGraphRunner._sample_draft_proposal"),
        ("wide_row_softmax_triton",),
        _in_graph,
        ("out",),
        variant="wide-rows",
        cost=10,
        reach=by_option,
    ),
)
