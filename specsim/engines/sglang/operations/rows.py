"""Rows of logits and chains of drafts: argmax, softmax, and sampling by rejection."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import CallerNames, KernelNames, by_option

_REJECTION = ("kernels/ops/speculative/reject_sampling.py", "srt/speculative/reject_sampling.py")
_CHAIN = (
    "predicts",
    "accept_index",
    "accept_token_num",
    "candidates",
    "retrive_index",
    "retrive_next_token",
    "retrive_next_sibling",
    "uniform_samples",
    "uniform_samples_for_final_sampling",
    "target_probs",
    "draft_probs",
    "threshold_single",
    "threshold_acc",
    "deterministic",
)
_BLOCK = (*_CHAIN, "block_verification")
_CHAIN_STRIDED = frozenset({"candidates", "uniform_samples", "target_probs", "draft_probs"})


def _chain_arguments(
    candidates: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_final: torch.Tensor,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
) -> dict[str, Any]:
    """In a chain the number of a node is its place; links and thresholds are there for the signature's sake."""
    return {
        "predicts": predicts,
        "accept_index": accept_index,
        "accept_token_num": accept_token_num,
        "candidates": candidates,
        "retrive_index": torch.arange(candidates.numel(), device=candidates.device).view(candidates.shape),
        "retrive_next_token": None,
        "retrive_next_sibling": None,
        "uniform_samples": uniform_samples,
        "uniform_samples_for_final_sampling": uniform_final,
        "target_probs": target_probs,
        "draft_probs": draft_probs,
        "threshold_single": 1.0,
        "threshold_acc": 1.0,
        "deterministic": True,
    }


def _launch_chain(
    function: Any,
    candidates: torch.Tensor,
    draft_probs: torch.Tensor,
    target_probs: torch.Tensor,
    uniform_samples: torch.Tensor,
    uniform_final: torch.Tensor,
    predicts: torch.Tensor,
    accept_index: torch.Tensor,
    accept_token_num: torch.Tensor,
    **options: bool,
) -> None:
    function(
        **_chain_arguments(
            candidates,
            draft_probs,
            target_probs,
            uniform_samples,
            uniform_final,
            predicts,
            accept_index,
            accept_token_num,
        ),
        **options,
    )


ARGMAX_ROWS_MAX = 8


def _launch_argmax(function: Any, logits: torch.Tensor, nan_policy: int) -> torch.Tensor:
    """It says that it is `logits.argmax(-1)`, of which a NaN is the result: policy 0."""
    assert nan_policy == 0
    ids: torch.Tensor = function(logits)
    return ids


def _launch_wide_softmax(function: Any, logits: torch.Tensor, temperature: torch.Tensor, probs: torch.Tensor) -> None:
    function(logits, temperature[:, None], probs)


def _launch_temperature_softmax(function: Any, logits: torch.Tensor, temperature: torch.Tensor) -> torch.Tensor:
    probs: torch.Tensor = function(logits, temperature[:, None])
    return probs


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "verify_chain_rejection",
        ("chain_speculative_sampling_triton",),
        _REJECTION,
        (_CHAIN, _BLOCK),
        _launch_chain,
        cost=5,
        reach=by_option,
        strided=_CHAIN_STRIDED,
    ),
    KernelNames(
        "verify_chain_block",
        ("chain_speculative_sampling_triton",),
        _REJECTION,
        (_BLOCK,),
        partial(_launch_chain, block_verification=True),
        cost=5,
        reach=by_option,
        strided=_CHAIN_STRIDED,
    ),
    KernelNames(
        "row_argmax",
        ("row_argmax",),
        ("kernels/ops/speculative/row_argmax.py",),
        (("x",),),
        _launch_argmax,
        # 65 programs a row: few rows are enough, and the form for more than 64 of them is not judged.
        accepts=lambda sizes: sizes["nan_policy"] == 0 and sizes["num_nodes"] <= ARGMAX_ROWS_MAX,
        cost=10,
        reach=by_option,
        strided=frozenset({"logits"}),
    ),
    KernelNames(
        "temperature_softmax",
        ("wide_row_softmax_triton",),
        ("kernels/ops/speculative/multi_layer_eagle.py",),
        (("logits", "temperatures", "out"),),
        _launch_wide_softmax,
        variant="wide-rows",
        cost=10,
        reach=by_option,
        strided=frozenset({"probs"}),
    ),
    KernelNames(
        "temperature_softmax",
        ("temperature_softmax",),
        ("kernels/ops/sampling/temperature_softmax.py",),
        (("logits", "temperatures"),),
        _launch_temperature_softmax,
        variant="split",
        reach=by_option,
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
        ("srt/speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py",),
        ("wide_row_softmax_triton",),
        _in_graph,
        ("out",),
        variant="wide-rows",
        cost=10,
        reach=by_option,
    ),
)
