"""How vLLM's second model runner guesses, draft by draft, what its target will accept, and learns from what it did."""

from __future__ import annotations

from typing import Any

import torch

from specsim.engines.vllm.operations.names import CoinTorch, Names, power_of_two

Tensor = torch.Tensor

ESTIMATOR = "v1/worker/gpu/spec_decode/acceptance_estimator.py"
BLOCK_SIZE = 4096  # tokens of a block, as the release has it
_MAX_LOG_ODDS = 40.0


def _accumulate(
    kernel: Any,
    _coins: CoinTorch,
    info: Tensor,
    grad: Tensor,
    num_judged: Tensor,
    idx_mapping: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    certainty: Tensor,
    accept_prob: Tensor,
) -> None:
    bs, num_steps = len(idx_mapping), certainty.shape[1]
    kernel[(num_steps,)](
        *(info, grad, idx_mapping, num_sampled, num_rejected, certainty, certainty.stride(0)),
        *(accept_prob, accept_prob.stride(0), num_judged, bs),
        BLOCK_R=max(256, power_of_two(bs)),
    )


def _refit(
    kernel: Any,
    _coins: CoinTorch,
    slope: Tensor,
    intercepts: Tensor,
    info: Tensor,
    grad: Tensor,
    num_judged: Tensor,
    ridge: Tensor,
    damping: Tensor,
) -> None:
    num_steps = len(intercepts)
    kernel[(1,)](
        *(slope, intercepts, info, info.stride(0), grad, grad.stride(0), num_judged),
        NUM_SPECULATIVE_STEPS=num_steps,
        L2=float(ridge),
        DAMPING=float(damping),
        BLOCK=power_of_two(num_steps),
    )


def _predict(
    kernels: Any,
    _coins: CoinTorch,
    certainty: Tensor,
    accept_prob: Tensor,
    confidence: Tensor,
    logits: Tensor,
    idx_mapping: Tensor,
    temperature: Tensor,
    slope: Tensor,
    intercepts: Tensor,
    step: Tensor,
) -> None:
    predict, parts = kernels
    bs, vocab_size = logits.shape
    num_blocks = -(-vocab_size // BLOCK_SIZE)
    highest = torch.empty(bs, num_blocks, dtype=torch.float32, device=logits.device)
    sums = torch.empty_like(highest)
    of_parts = (highest, highest.stride(0), sums, sums.stride(0))
    rows = (idx_mapping, idx_mapping.stride(0))
    parts[(bs, num_blocks)](
        *of_parts, logits, logits.stride(0), *rows, temperature, bs, vocab_size, BLOCK_SIZE=BLOCK_SIZE
    )
    predict[(bs,)](
        *(certainty, certainty.stride(0), accept_prob, accept_prob.stride(0), confidence, confidence.stride(0)),
        *(slope, intercepts, *of_parts, *rows, step, bs, num_blocks),
        per_token_step=False,
        NUM_SPECULATIVE_STEPS=len(intercepts),
        MAX_LOG_ODDS=_MAX_LOG_ODDS,
        PADDED_VOCAB_NUM_BLOCKS=power_of_two(num_blocks),
    )


_JUDGED = ("idx_mapping_ptr", "num_sampled_ptr", "num_rejected_ptr", "features_ptr", "features_stride")
_PREDICTED = ("pred_ptr", "pred_stride")
_FIT = ("info_row_stride", "grad_ptr", "grad_row_stride", "counts_ptr", "NUM_SPECULATIVE_STEPS", "L2", "DAMPING")
_PARTS = ("local_max_ptr", "local_max_stride", "local_sumexp_ptr", "local_sumexp_stride")
_ROWS = ("idx_mapping_ptr", "idx_mapping_stride")

IMPLEMENTATIONS: tuple[Names, ...] = (
    Names(
        "accumulate_acceptance",
        ("_accumulate_kernel",),
        ESTIMATOR,
        (("info_ptr", "grad_ptr", *_JUDGED, *_PREDICTED, "counts_ptr", "num_reqs", "BLOCK_R"),),
        _accumulate,
    ),
    Names(
        "refit_acceptance",
        ("_refit_kernel",),
        ESTIMATOR,
        (("slope_ptr", "intercepts_ptr", "info_ptr", *_FIT, "BLOCK"),),
        _refit,
    ),
    Names(
        "predict_acceptance",
        ("_predict_kernel",),
        ESTIMATOR,
        (
            (
                *("features_ptr", "features_stride", *_PREDICTED, "conf_ptr", "conf_stride", "slope_ptr"),
                *("intercepts_ptr", *_PARTS, *_ROWS, "step_ptr", "num_tokens", "vocab_num_blocks", "per_token_step"),
                *("NUM_SPECULATIVE_STEPS", "MAX_LOG_ODDS", "PADDED_VOCAB_NUM_BLOCKS"),
            ),
        ),
        _predict,
        beside=("_local_max_sumexp_kernel",),
    ),
)
