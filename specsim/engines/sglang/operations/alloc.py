"""Allocation: which slots a request's new tokens get, and how they come into the page table."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.pointers import pointers_to
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    always,
    as_is,
    host_call,
    named,
    on_grid,
    paged,
    power_of_two,
    words,
)
from specsim.engines.sglang.stubs import OFF
from specsim.engines.sglang.where import MEM_CACHE, places

_EXTEND = words("pre_lens_ptr seq_lens_ptr last_loc_ptr free_page_ptr out_indices bs_upper page_size")
_WRITE = words("req_to_token_ptr req_pool_indices prefix_tensors pre_lens seq_lens extend_lens out_cache_loc")
_LAST_LOC = words("req_to_token req_pool_indices_tensor prefix_lens_tensor")


def _launch_extend(sizes: Sizes, t: Tensors) -> KernelLaunch:
    bs = len(t["seq_lens"])
    tensors = named(t, "prefix_lens seq_lens last_loc free_pages out_cache_loc")
    return on_grid((bs,), *tensors, power_of_two(bs), sizes["page_size"])


def _launch_decode(sizes: Sizes, t: Tensors) -> KernelLaunch:
    bs = len(t["seq_lens"])
    return on_grid((bs,), *named(t, "seq_lens last_loc free_pages out_cache_loc"), power_of_two(bs), sizes["page_size"])


def _launch_write(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """The cached slots of each request are a tensor of its own there; here they are parts of one."""
    prefixes = pointers_to(torch.split(t["prefix_indices"], t["prefix_lens"].tolist()))
    rows, lens = named(t, "req_to_token req_pool_indices"), named(t, "prefix_lens seq_lens")
    extend_lens = t["seq_lens"] - t["prefix_lens"]
    width = t["req_to_token"].shape[1]
    return on_grid((len(extend_lens),), *rows, prefixes, *lens, extend_lens, t["out_cache_loc"], width)


def _launch_last_loc(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, "req_to_token req_pool_indices prefix_lens"), returned=as_is)


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "alloc_extend",
        places("alloc_extend_kernel"),
        (_EXTEND,),
        _launch_extend,
        reach=paged,
    ),
    KernelNames(
        "alloc_decode",
        places("alloc_decode_kernel"),
        (_EXTEND[1:],),
        _launch_decode,
        reach=paged,
    ),
    KernelNames(
        "write_req_to_token_pool",
        places("write_req_to_token_pool_triton"),
        ((*_WRITE, "req_to_token_ptr_stride"),),
        _launch_write,
        reach=always,
    ),
    KernelNames("get_last_loc", places("get_last_loc_triton_safe"), (_LAST_LOC,), _launch_last_loc, reach=always),
    KernelNames(
        "get_last_loc",
        places("get_last_loc_triton"),
        (_LAST_LOC,),
        _launch_last_loc,
        variant="legacy",
        reach=always,
        called_from=(MEM_CACHE,),
    ),
)


def _in_allocator(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The allocator of pages, with as many free ones as are needed."""
    device = tensors["seq_lens"].device
    allocator = SimpleNamespace(
        page_size=sizes["page_size"],
        device=device,
        free_pages=tensors["free_pages"],
        need_sort=False,
        debug_mode=False,
        use_triton_kernels=True,
    )
    return {
        "torch": torch,
        "next_power_of_2": power_of_two,
        "self": allocator,
        "prefix_lens": tensors.get("prefix_lens"),
        "seq_lens": tensors["seq_lens"],
        "last_loc": tensors["last_loc"],
        "extend_num_tokens": sizes.get("num_locs", 0),
    }


def _before_prefill(_sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The allocation for a prefill, where the cached slots are a tensor for each request."""
    prefixes = torch.split(tensors["prefix_indices"], tensors["prefix_lens"].tolist())
    return {
        "torch": torch,
        "support_triton": lambda _backend: True,
        **dict.fromkeys(("get_global_server_args", "get_server_args", "get_flags", "get_exec"), OFF),
        "attention_backends": lambda: ("triton", "triton"),
        "req_to_token_pool": SimpleNamespace(
            req_to_token=tensors["req_to_token"], device=tensors["req_to_token"].device
        ),
        "req_pool_indices_tensor": tensors["req_pool_indices"],
        "prefix_tensors": prefixes,
        "prefix_pointers": pointers_to(prefixes),
        "prefix_lens_tensor": tensors["prefix_lens"],
        "seq_lens_tensor": tensors["seq_lens"],
        "extend_lens_tensor": tensors["seq_lens"] - tensors["prefix_lens"],
        "out_cache_loc": tensors["out_cache_loc"],
    }


CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "alloc_extend",
        "PagedTokenToKVPoolAllocator.alloc_extend",
        places("PagedTokenToKVPoolAllocator.alloc_extend"),
        ("alloc_extend_kernel",),
        _in_allocator,
        ("out_indices",),
        reach=paged,
    ),
    CallerNames(
        "alloc_decode",
        "PagedTokenToKVPoolAllocator.alloc_decode",
        places("PagedTokenToKVPoolAllocator.alloc_decode"),
        ("alloc_decode_kernel",),
        _in_allocator,
        ("out_indices",),
        reach=paged,
    ),
    CallerNames(
        "write_req_to_token_pool",
        "write_cache_indices",
        places("write_cache_indices"),
        ("write_req_to_token_pool_triton",),
        _before_prefill,
        None,
        reach=always,
    ),
)
