"""Cache-location kernels: which slots of `req_to_token` a launch reads and writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.ops.contract import Sizes, Tensors
from specsim.ops.provider import NotCalledError
from specsim.targets.sglang.operations.names import CallerNames, KernelNames, running_batch

_CACHE_LOCS = (
    "srt/speculative/triton_ops/cache_locs.py",
    "srt/speculative/spec_utils.py",
    "srt/speculative/eagle_info_v2.py",
)
_INPUTS = ("srt/speculative/eagle_info_v2.py",)


_RAGGED = ("req_pool_indices", "req_to_token", "start_offset", "end_offset", "out_cache_loc", "pool_len", "bs_upper")


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
)


def _before_draft(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`prepare_for_v2_draft`."""
    device = tensors["req_to_token"].device
    return {
        "torch": torch,
        "self": SimpleNamespace(),
        "batch": running_batch(
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
        "batch": running_batch(
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
        "batch": running_batch(
            req_pool_indices=tensors["req_pool_indices"],
            req_to_token_pool=SimpleNamespace(req_to_token=tensors["req_to_token"]),
            device=tensors["req_to_token"].device,
        ),
        "bs": len(tensors["req_pool_indices"]),
        "cur_kv_lens_cpu": tensors["start_offset"].to(device="cpu", dtype=torch.int32),
        "nxt_kv_lens_cpu": tensors["end_offset"].to(device="cpu", dtype=torch.int32),
        "out_cache_loc": tensors["out_cache_loc"],
    }


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
)
