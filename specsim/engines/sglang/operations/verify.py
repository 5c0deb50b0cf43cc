"""What follows the walk of a verification."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import CallerNames, KernelLaunch, KernelNames, on_grid, running_batch
from specsim.engines.sglang.where import places


def _launch_bonus(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    index = t["accept_index"].long()
    # A padding -1 reads the last node, as it does in the workers; the kernel must not look at those entries.
    return on_grid((len(index),), t["predict"][index], t["accept_lens"], t["bonus_tokens"], index.shape[1])


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "fill_bonus_tokens",
        places("fill_bonus_tokens"),
        (
            ("accept_tokens", "accept_lens", "bonus_tokens_ptr", "accept_stride"),
            ("accept_tokens", "accept_lens", "bonus_tokens_ptr", "num_draft_tokens"),
            ("verified_id", "accept_lens", "new_verified_id", "num_draft_tokens"),
        ),
        _launch_bonus,
    ),
)


def _after_verify(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`verify`, after `sample` has returned."""
    worker = SimpleNamespace(
        speculative_num_draft_tokens=sizes["num_draft_tokens"],
        speculative_num_steps=sizes["num_steps"],
        topk=sizes["topk"],
        device=tensors["predict"].device,
    )
    return {
        "torch": torch,
        "self": worker,
        "batch": running_batch(device=tensors["predict"].device),
        "device": tensors["predict"].device,
        "bs": sizes["bs"],
        "fused_commit_outputs": False,
        "predict": tensors["predict"],
        "accept_index": tensors["accept_index"].long(),
        "accept_lens": tensors["accept_lens"],
        "accept_length": tensors["accept_lens"],
    }


_BONUS_RESULT = ("bonus_tokens_ptr", "new_verified_id")

CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "fill_bonus_tokens",
        "EAGLEWorkerV2.verify",
        places("run_eagle_verify"),
        ("fill_bonus_tokens", "fill_new_verified_id"),
        _after_verify,
        _BONUS_RESULT,
    ),
    CallerNames(
        "fill_bonus_tokens",
        "EAGLEWorkerV2.verify",
        places("run_eagle_verify"),
        ("fill_bonus_tokens_func",),
        _after_verify,
        ("bonus_tokens",),
        host=places("fill_bonus_tokens_func"),
    ),
    CallerNames(
        "fill_bonus_tokens",
        "MultiLayerEagleWorkerV2.verify",
        places("MultiLayerEagleWorkerV2.verify"),
        ("fill_bonus_tokens", "fill_new_verified_id"),
        _after_verify,
        _BONUS_RESULT,
        # One draft layer a step and a chain of tokens: the multi-layer worker has no trees.
        accepts=lambda sizes: sizes["topk"] == 1,
    ),
)
