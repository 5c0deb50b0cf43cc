"""Where SGLang keeps each operation, under which names, and how it launches it.

One table for all releases and checkouts: an operation is looked for in the files and under the names that it had,
newest first, and is taken only when its parameters are among those known here; anything else is reported as drift. The
renames, with the release that made them: fill_new_verified_id -> fill_bonus_tokens (0.5.12), its stride argument
num_draft_tokens -> accept_stride (0.5.13), assign_draft_cache_locs_page_size_1 -> assign_draft_cache_locs_contiguous
(0.5.13), accept_length -> accept_lens in the workers (0.5.11); the kernels moved to speculative/triton_ops in 0.5.13.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch

from specsim.ops.contract import Sizes, Tensors
from specsim.ops.provider import NotCalledError

_CACHE_LOCS = (
    "srt/speculative/triton_ops/cache_locs.py",
    "srt/speculative/spec_utils.py",
    "srt/speculative/eagle_info_v2.py",
)
_EAGLE = ("srt/speculative/triton_ops/eagle.py", "srt/speculative/eagle_info_v2.py")
_INPUTS = ("srt/speculative/eagle_info_v2.py",)

_RAGGED = ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "out_cache_loc", "pool_len", "bs_upper")


@dataclass(frozen=True, slots=True)
class KernelNames:
    """A kernel: `launch(kernel, **contract arguments)` runs it as its documentation says."""

    op: str
    names: tuple[str, ...]
    paths: tuple[str, ...]
    signatures: tuple[tuple[str, ...], ...]
    launch: Callable[..., None]


def _launch_ragged(
    kernel: Any,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    start_offset: torch.Tensor,
    end_offset: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> None:
    bs, pool_len = len(req_pool_indices), req_to_token.shape[1]
    bs_upper = 1 << (bs - 1).bit_length()
    kernel[(bs,)](req_pool_indices, req_to_token, start_offset, end_offset, out_cache_loc, pool_len, bs_upper)


def _launch_draft_locs(
    kernel: Any,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    seq_lens: torch.Tensor,
    out_cache_loc: torch.Tensor,
    topk: int,
    num_steps: int,
) -> None:
    bs, pool_len = len(req_pool_indices), req_to_token.shape[1]
    kernel[(bs,)](req_pool_indices, req_to_token, seq_lens, out_cache_loc, pool_len, topk, num_steps)


def _launch_bonus(
    kernel: Any,
    predict: torch.Tensor,
    accept_index: torch.Tensor,
    accept_lens: torch.Tensor,
    bonus_tokens: torch.Tensor,
) -> None:
    bs, accept_width = accept_index.shape
    # A padding -1 reads the last node, as it does in the workers; the kernel must not look at those entries.
    kernel[(bs,)](predict[accept_index.long()], accept_lens, bonus_tokens, accept_width)


KERNELS: tuple[KernelNames, ...] = (
    KernelNames("assign_req_to_token_pool", ("assign_req_to_token_pool",), _CACHE_LOCS, (_RAGGED,), _launch_ragged),
    KernelNames(
        "assign_draft_cache_locs_contiguous",
        ("assign_draft_cache_locs_contiguous", "assign_draft_cache_locs_page_size_1"),
        _CACHE_LOCS,
        (
            (
                "req_pool_indices",
                "req_to_token",
                "seq_lens",
                "out_cache_loc",
                "pool_len",
                "topk",
                "speculative_num_steps",
            ),
        ),
        _launch_draft_locs,
    ),
    KernelNames("assign_extend_cache_locs", ("assign_extend_cache_locs",), _CACHE_LOCS, (_RAGGED,), _launch_ragged),
    KernelNames(
        "fill_bonus_tokens",
        ("fill_bonus_tokens", "fill_new_verified_id"),
        _EAGLE,
        (
            ("accept_tokens", "accept_lens", "bonus_tokens_ptr", "accept_stride"),
            ("accept_tokens", "accept_lens", "bonus_tokens_ptr", "num_draft_tokens"),
            ("verified_id", "accept_lens", "new_verified_id", "num_draft_tokens"),
        ),
        _launch_bonus,
    ),
)

# Operations that these releases have only as CUDA code of a compiled extension.
CUDA_ONLY = {
    "build_tree": "sgl_kernel.build_tree_kernel_efficient",
    "verify_tree_greedy": "sgl_kernel.verify_tree_greedy",
}


@dataclass(frozen=True, slots=True)
class CallerNames:
    """A place in the engine that calls an operation.

    `callees`      the names under which it is called there: the kernel's, or those of a host function that launches it
    `host_paths`   files of the host function, () when the kernel itself is launched
    `environment`  stands for the caller's surroundings, made from a case
    `result`       names of the callee's parameter that receives the result; () when the call returns it; None when it
                   is written into the case's own in-out tensor
    `accepts`      the configurations that the caller's class accepts; it is not judged on others
    """

    op: str
    function: str
    paths: tuple[str, ...]
    callees: tuple[str, ...]
    environment: Callable[[Sizes, Tensors], dict[str, Any]]
    result: tuple[str, ...] | None
    host_paths: tuple[str, ...] = ()
    accepts: Callable[[Sizes], bool] = lambda _sizes: True


def _running_batch(**fields: Any) -> SimpleNamespace:
    """A `ScheduleBatch` or `ModelWorkerBatch` that decodes."""
    return SimpleNamespace(forward_mode=SimpleNamespace(is_idle=lambda: False), **fields)


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
        "batch": _running_batch(device=tensors["predict"].device),
        "bs": sizes["bs"],
        "predict": tensors["predict"],
        "accept_index": tensors["accept_index"].long(),
        "accept_lens": tensors["accept_lens"],
        "accept_length": tensors["accept_lens"],
    }


def _before_draft(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`prepare_for_v2_draft`."""
    device = tensors["req_to_token"].device
    return {
        "torch": torch,
        "self": SimpleNamespace(),
        "batch": _running_batch(
            req_pool_indices=tensors["req_pool_indices"],
            seq_lens=tensors["seq_lens"],
            input_ids=tensors["seq_lens"],
            device=device,
            token_to_kv_pool_allocator=SimpleNamespace(page_size=1),
        ),
        "req_to_token_pool": SimpleNamespace(req_to_token=tensors["req_to_token"]),
        "topk": sizes["topk"],
        "num_steps": sizes["num_steps"],
    }


def _before_verify(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`prepare_for_v2_verify`: every request verifies the same number of nodes."""
    widths = tensors["end_offset"] - tensors["start_offset"]
    if bool((widths != sizes["num_draft_tokens"]).any()):
        raise NotCalledError("prepare_for_v2_verify has one width for all requests")
    return {
        "torch": torch,
        "self": SimpleNamespace(draft_token_num=sizes["num_draft_tokens"], draft_token=tensors["start_offset"]),
        "batch": _running_batch(
            req_pool_indices=tensors["req_pool_indices"],
            seq_lens=tensors["start_offset"],
            device=tensors["req_to_token"].device,
        ),
        "req_to_token_pool": SimpleNamespace(req_to_token=tensors["req_to_token"]),
    }


def _after_allocation(_sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`prepare_for_decode`, after the slots are allocated: lengths before and after are int32 on the CPU there."""
    return {
        "torch": torch,
        "self": SimpleNamespace(),
        "batch": _running_batch(
            req_pool_indices=tensors["req_pool_indices"],
            req_to_token_pool=SimpleNamespace(req_to_token=tensors["req_to_token"]),
            device=tensors["req_to_token"].device,
        ),
        "bs": len(tensors["req_pool_indices"]),
        "cur_kv_lens_cpu": tensors["start_offset"].to(device="cpu", dtype=torch.int32),
        "nxt_kv_lens_cpu": tensors["end_offset"].to(device="cpu", dtype=torch.int32),
        "out_cache_loc": tensors["out_cache_loc"],
    }


_BONUS_RESULT = ("bonus_tokens_ptr", "new_verified_id")

CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "assign_req_to_token_pool",
        "EagleDraftInputV2Mixin.prepare_for_decode",
        _INPUTS,
        ("assign_req_to_token_pool_func",),
        _after_allocation,
        None,
        host_paths=_CACHE_LOCS,
    ),
    CallerNames(
        "assign_draft_cache_locs_contiguous",
        "EagleDraftInputV2Mixin.prepare_for_v2_draft",
        _INPUTS,
        ("assign_draft_cache_locs_contiguous", "assign_draft_cache_locs_page_size_1"),
        _before_draft,
        ("out_cache_loc",),
    ),
    CallerNames(
        "assign_extend_cache_locs",
        "EagleVerifyInputV2Mixin.prepare_for_v2_verify",
        _INPUTS,
        ("assign_extend_cache_locs_func",),
        _before_verify,
        (),
        host_paths=_CACHE_LOCS,
    ),
    CallerNames(
        "fill_bonus_tokens",
        "EAGLEWorkerV2.verify",
        ("srt/speculative/eagle_worker_v2.py",),
        ("fill_bonus_tokens", "fill_new_verified_id"),
        _after_verify,
        _BONUS_RESULT,
    ),
    CallerNames(
        "fill_bonus_tokens",
        "MultiLayerEagleWorkerV2.verify",
        ("srt/speculative/multi_layer_eagle_worker_v2.py",),
        ("fill_bonus_tokens", "fill_new_verified_id"),
        _after_verify,
        _BONUS_RESULT,
        # One draft layer a step and a chain of tokens: the multi-layer worker has no trees.
        accepts=lambda sizes: sizes["topk"] == 1,
    ),
)
