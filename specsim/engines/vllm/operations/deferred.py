"""FLy: how vLLM's first model runner puts off rejections before it verifies."""

from __future__ import annotations

from typing import Any

import torch

from specsim.engines.vllm.operations.names import CoinTorch, Names

Tensor = torch.Tensor

FLY = "v1/spec_decode/fly.py"


def _greedy(
    kernel: Any,
    _coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    target_logits: Tensor,
    entropy: Tensor,
    is_greedy: Tensor,
    threshold: Tensor,
    window: int,
) -> None:
    kernel[(len(is_greedy),)](
        *(cu_num_draft_tokens, draft_token_ids, target_argmax, target_logits, entropy, is_greedy),
        *(target_logits.shape[1], float(threshold)),
        FLY_WINDOW_SIZE=window,
    )


def _sampled(
    kernel: Any,
    _coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    uniform_probs: Tensor,
    entropy: Tensor,
    is_greedy: Tensor,
    threshold: Tensor,
    window: int,
    has_draft_probs: int,
) -> None:
    probs = (draft_probs if has_draft_probs else None, target_probs)
    kernel[(len(is_greedy),)](
        *(cu_num_draft_tokens, draft_token_ids, *probs, uniform_probs, entropy, is_greedy),
        *(target_probs.shape[1], float(threshold)),
        NO_DRAFT_PROBS=not has_draft_probs,
        FLY_WINDOW_SIZE=window,
    )


_DRAFTS = ("cu_num_draft_tokens_ptr", "draft_token_ids_ptr")
_DOUBTS = ("fly_entropy_ptr", "is_greedy_ptr", "vocab_size", "fly_entropy_threshold")

IMPLEMENTATIONS: tuple[Names, ...] = (
    Names(
        "defer_rejections_greedy",
        ("apply_fly_greedy_acceptance_kernel",),
        FLY,
        ((*_DRAFTS, "target_argmax_ptr", "target_logits_ptr", *_DOUBTS, "FLY_WINDOW_SIZE"),),
        _greedy,
    ),
    Names(
        "defer_rejections",
        ("apply_fly_random_acceptance_kernel",),
        FLY,
        (
            (
                *(*_DRAFTS, "draft_probs_ptr", "target_probs_ptr", "uniform_probs_ptr", *_DOUBTS),
                *("NO_DRAFT_PROBS", "FLY_WINDOW_SIZE"),
            ),
        ),
        _sampled,
    ),
)
