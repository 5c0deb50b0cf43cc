"""Cache-location kernels: which slots of `req_to_token` a launch reads and writes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import NotCalledError
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    named,
    on_grid,
    power_of_two,
    running_batch,
    words,
)
from specsim.engines.sglang.where import places

_RAGGED = words("req_pool_indices req_to_token start_offset end_offset out_cache_loc pool_len bs_upper")
_UNIFORM = words("req_pool_indices req_to_token start_offset out_cache_loc pool_len draft_token_num")
_DRAFT_LOCS = words("req_pool_indices req_to_token seq_lens out_cache_loc pool_len topk speculative_num_steps")
_POSITIONS = words("positions mrope BS WRITE_POSITIONS WRITE_MROPE")
_TRANSLATED = words(
    "full_v2p swa_v2p full_out swa_out PAGE_SIZE num_v_pages num_swa_pages positions_out anchor_src anchor_out "
    "anchor_stride"
)


def _launch_ragged(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    bs, pool_len = len(t["req_pool_indices"]), t["req_to_token"].shape[1]
    tensors = named(t, "req_pool_indices req_to_token start_offset end_offset out_cache_loc")
    return on_grid((bs,), *tensors, pool_len, power_of_two(bs))


def _launch_draft_locs(sizes: Sizes, t: Tensors) -> KernelLaunch:
    bs, pool_len = len(t["req_pool_indices"]), t["req_to_token"].shape[1]
    tensors = named(t, "req_pool_indices req_to_token seq_lens out_cache_loc")
    return on_grid((bs,), *tensors, pool_len, sizes["topk"], sizes["num_steps"])


def _launch_uniform(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """For segments of one width, which is not 0."""
    widths = t["end_offset"] - t["start_offset"]
    if not int(widths[0]) or bool((widths != widths[0]).any()):
        raise NotCalledError("it is for segments of one width")
    tensors = named(t, "req_pool_indices req_to_token start_offset out_cache_loc")
    return on_grid((len(widths),), *tensors, t["req_to_token"].shape[1], int(widths[0]))


KERNELS: tuple[KernelNames, ...] = (
    KernelNames("assign_req_to_token_pool", places("assign_req_to_token_pool"), (_RAGGED,), _launch_ragged),
    KernelNames(
        "assign_draft_cache_locs_contiguous",
        places("assign_draft_cache_locs_contiguous"),
        (_DRAFT_LOCS, _DRAFT_LOCS + _POSITIONS),
        _launch_draft_locs,
    ),
    KernelNames("assign_extend_cache_locs", places("assign_extend_cache_locs"), (_RAGGED,), _launch_ragged),
    KernelNames(
        "assign_extend_cache_locs",
        places("assign_extend_cache_locs_uniform"),
        (_UNIFORM, _UNIFORM + _TRANSLATED),
        _launch_uniform,
        variant="uniform",
    ),
)


def _before_draft(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`prepare_for_v2_draft`."""
    device = tensors["req_to_token"].device
    return {
        "torch": torch,
        "_is_cpu": False,
        "self": SimpleNamespace(),
        "batch": running_batch(
            req_pool_indices=tensors["req_pool_indices"],
            seq_lens=tensors["seq_lens"],
            input_ids=tensors["seq_lens"],
            device=device,
            token_to_kv_pool_allocator=SimpleNamespace(page_size=1),
        ),
        "req_to_token_pool": SimpleNamespace(req_to_token=tensors["req_to_token"]),
        "page_size": 1,
        "topk": sizes["topk"],
        "num_steps": sizes["num_steps"],
        "num_draft_tokens": None,
        # The window of a chain's verification is another launch's; positions are made with it on a GPU alone.
        "plans_window": False,
        "prepared_positions": None,
        "prepared_mrope_positions": None,
    }


def _before_verify(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`prepare_for_v2_verify`: every request verifies the same number of nodes."""
    widths = tensors["end_offset"] - tensors["start_offset"]
    if bool((widths != sizes["num_draft_tokens"]).any()):
        raise NotCalledError("prepare_for_v2_verify has one width for all requests")
    verify_input = SimpleNamespace(
        draft_token_num=sizes["num_draft_tokens"], draft_token=tensors["start_offset"], prepared_out_cache_loc=None
    )
    return {
        "torch": torch,
        "self": verify_input,
        "verify_input": verify_input,
        "batch": running_batch(
            req_pool_indices=tensors["req_pool_indices"],
            seq_lens=tensors["start_offset"],
            device=tensors["req_to_token"].device,
        ),
        "req_to_token_pool": SimpleNamespace(req_to_token=tensors["req_to_token"]),
    }


def _after_allocation(_sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`prepare_for_decode`, after the slots are allocated: lengths before and after are int32 on the CPU there, and
    on the device too from the release on that hands them over.
    """
    device = tensors["req_to_token"].device
    pool = SimpleNamespace(req_to_token=tensors["req_to_token"])
    before, after = (tensors[name].to(torch.int32) for name in ("start_offset", "end_offset"))
    return {
        "torch": torch,
        "self": SimpleNamespace(),
        "batch": running_batch(req_pool_indices=tensors["req_pool_indices"], req_to_token_pool=pool, device=device),
        "bs": len(tensors["req_pool_indices"]),
        "reqs": [None] * len(tensors["req_pool_indices"]),
        "req_pool_indices": tensors["req_pool_indices"],
        "req_to_token_pool": pool,
        "num_needed_tokens": len(tensors["out_cache_loc"]),
        "cur_kv_lens": before,
        "nxt_kv_lens": after,
        "cur_kv_lens_device": before,
        "nxt_kv_lens_device": after,
        "cur_kv_lens_cpu": tensors["start_offset"].to(device="cpu", dtype=torch.int32),
        "nxt_kv_lens_cpu": tensors["end_offset"].to(device="cpu", dtype=torch.int32),
        "out_cache_loc": tensors["out_cache_loc"],
    }


CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "assign_req_to_token_pool",
        "EagleDraftInputV2Mixin.prepare_for_decode",
        places("prepare_for_decode"),
        ("assign_req_to_token_pool_func",),
        _after_allocation,
        None,
        host=places("assign_req_to_token_pool_func"),
    ),
    CallerNames(
        "assign_draft_cache_locs_contiguous",
        "EagleDraftInputV2Mixin.prepare_for_v2_draft",
        places("prepare_for_draft"),
        ("assign_draft_cache_locs_contiguous", "assign_draft_cache_locs_page_size_1"),
        _before_draft,
        ("out_cache_loc",),
    ),
    CallerNames(
        "assign_draft_cache_locs_contiguous",
        "EagleDraftInputV2Mixin.prepare_for_v2_draft",
        places("prepare_for_draft"),
        ("assign_draft_cache_locs_contiguous_func",),
        _before_draft,
        ("out_cache_loc",),
        host=places("assign_draft_cache_locs_contiguous_func"),
    ),
    CallerNames(
        "assign_extend_cache_locs",
        "EagleVerifyInputV2Mixin.prepare_for_v2_verify",
        places("prepare_for_verify"),
        ("assign_extend_cache_locs_func",),
        _before_verify,
        (),
        host=places("assign_extend_cache_locs_func"),
    ),
    CallerNames(
        "assign_extend_cache_locs",
        "EagleVerifyInputV2Mixin.prepare_for_v2_verify",
        places("prepare_for_verify"),
        ("assign_extend_cache_locs_uniform_func",),
        _before_verify,
        (),
        host=places("assign_extend_cache_locs_uniform_func"),
        variant="uniform",
    ),
)
