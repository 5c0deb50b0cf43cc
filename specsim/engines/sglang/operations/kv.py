"""Which KV a draft's branches attend to, and how KV moves."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.pointers import pointers_to
from specsim.contracts.provider import NotCalledError
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    named,
    on_grid,
    power_of_two,
    running_batch,
    without_overlap,
    words,
)
from specsim.engines.sglang.where import SPECULATIVE, places

# As the attention backends launch it. The first axis of the grid is the step; a kernel that has NUM_STEPS runs the
# historical form where it is 0.
_KV_INDICES = words(
    "req_pool_indices req_to_token paged_kernel_lens kv_indices kv_indptr positions pool_len kv_indices_stride "
    "kv_indptr_stride bs_upper iter_upper num_tokens_upper page_size"
)
_WINDOWED = words("window_size sink_size NUM_STEPS ENTRY_PAGE_SIZE v2p TRANSLATE")
_FORMS = (
    _KV_INDICES,
    (*_KV_INDICES, "NUM_STEPS"),
    (*_KV_INDICES, *_WINDOWED[:3]),
    (*("row_stride" if name == "pool_len" else name for name in _KV_INDICES), *_WINDOWED),
)


_PAGED = words(
    "req_pool_indices req_to_token seq_lens extend_lens num_new_pages_per_topk out_cache_loc source_cache_loc "
    "target_cache_loc last_page_lens_cumsum duplicate_cache_len pool_len topk speculative_num_steps page_size bs_upper "
    "iter_upper"
)


def _launch_kv_indices(sizes: Sizes, t: Tensors, *, by_blocks: bool = False) -> KernelLaunch:
    """`by_blocks`: the form in which the first axis is the step and the block of 512 tokens; here two blocks a step."""
    bs, topk, num_steps = len(t["seq_lens"]), sizes["topk"], sizes["num_steps"]
    return on_grid(
        (num_steps * (2 if by_blocks else 1), bs, topk),
        *named(t, "req_pool_indices req_to_token seq_lens kv_indices kv_indptr"),
        t["seq_lens"].repeat_interleave(topk),
        *(t[name].shape[1] for name in ("req_to_token", "kv_indices", "kv_indptr")),
        *map(power_of_two, (bs, num_steps, bs * topk)),
        sizes["page_size"],
        **({"NUM_STEPS": num_steps} if by_blocks else {}),
    )


def _launch_draft_locs_paged(sizes: Sizes, t: Tensors) -> KernelLaunch:
    """The kernel first enters the slots of all branches' pages, which it is given, into the rows. Here they are in the
    rows: it is given what it finds there. A row is as wide as its last branch's pages need.
    """
    req_pool_indices, req_to_token, seq_lens = named(t, "req_pool_indices req_to_token seq_lens")
    topk, num_steps, page_size = (sizes[name] for name in ("topk", "num_steps", "page_size"))
    bs, device = len(seq_lens), seq_lens.device
    tail = seq_lens % page_size
    pages = (tail + num_steps + page_size - 1) // page_size
    is_paged = page_size > 1 and topk > 1
    extend = pages * page_size * topk - tail if is_paged else torch.full_like(seq_lens, topk * num_steps)
    table = torch.nn.functional.pad(req_to_token, (0, int(extend.max())))
    slots = torch.cat(
        [
            table[row, start : start + count]
            for row, start, count in zip(req_pool_indices.tolist(), seq_lens.tolist(), extend.tolist(), strict=True)
        ]
    ).to(torch.int64)
    copies = int(tail.sum()) * (topk - 1) if is_paged else 0
    source = torch.zeros(copies, dtype=torch.int32, device=device) if is_paged else None
    target = torch.zeros(copies, dtype=torch.int32, device=device) if is_paged else None
    return KernelLaunch(
        (
            *(req_pool_indices, table, seq_lens, extend, pages, slots, source, target),
            *(tail.cumsum(0) if is_paged else None, copies, table.shape[1], topk, num_steps, page_size),
            *(power_of_two(bs), power_of_two(num_steps + page_size)),
        ),
        (bs,),
        returned=lambda _nothing: (slots[: bs * topk * num_steps], *_moved(target, source, device)),
    )


def _moved(
    target: torch.Tensor | None, source: torch.Tensor | None, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    if target is None or source is None:
        nothing = torch.zeros(0, dtype=torch.int64, device=device)
        return nothing, nothing
    return target.long(), source.long()


def _launch_some_unaligned(sizes: Sizes, t: Tensors) -> KernelLaunch:
    if _all_aligned(t["seq_lens"], sizes["topk"], sizes["page_size"]):
        raise NotCalledError("that is the other form")
    return _launch_draft_locs_paged(sizes, t)


def _launch_all_aligned(sizes: Sizes, t: Tensors) -> KernelLaunch:
    """With nothing to copy the worker has the kernel skip the part that brings the slots to the front."""
    if not _all_aligned(t["seq_lens"], sizes["topk"], sizes["page_size"]):
        raise NotCalledError("that is the other form")
    return _launch_draft_locs_paged(sizes, t)


def _all_aligned(seq_lens: torch.Tensor, topk: int, page_size: int) -> bool:
    return topk > 1 and page_size > 1 and not bool((seq_lens % page_size).any())


def _launch_fill_accept(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    size = t["accept_index"].numel()
    return on_grid((size,), *named(t, "accept_index out_cache_loc accept_out_cache_loc"), power_of_two(size))


BYTES_PER_TILE = 128
MOVES_MAX = 256
"""The release moves no more in one launch, whose programs each hold a tile of all of them."""


def _launch_move(_sizes: Sizes, t: Tensors) -> KernelLaunch | None:
    buffer, target, source = named(t, "buffer target source")
    if not len(target):
        return None
    stride = buffer.stride(0) * buffer.element_size()
    strides = torch.tensor([stride], dtype=torch.int64, device=buffer.device)
    grid = (1, -(-stride // BYTES_PER_TILE))
    counts = (len(target), power_of_two(len(target)), BYTES_PER_TILE)
    return on_grid(grid, pointers_to([buffer]), strides, target, source, *counts)


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "generate_draft_decode_kv_indices",
        places("generate_draft_decode_kv_indices"),
        _FORMS,
        _launch_kv_indices,
        cost=10,
    ),
    KernelNames(
        "generate_draft_decode_kv_indices",
        places("generate_draft_decode_kv_indices"),
        _FORMS[1:],
        partial(_launch_kv_indices, by_blocks=True),
        variant="blocks",
        cost=10,
    ),
    KernelNames(
        "draft_cache_locs_paged",
        places("assign_draft_cache_locs"),
        (_PAGED,),
        _launch_some_unaligned,
        reach=without_overlap,
    ),
    KernelNames(
        "draft_cache_locs_paged",
        places("assign_draft_cache_locs"),
        (_PAGED,),
        _launch_all_aligned,
        variant="whole-pages",
        accepts=lambda sizes: sizes["topk"] > 1 and sizes["page_size"] > 1,
        reach=without_overlap,
    ),
    KernelNames(
        "fill_accept_out_cache_loc",
        places("fill_accept_out_cache_loc"),
        (
            ("accept_index", "out_cache_loc", "accept_out_cache_loc", "size_upper"),
            ("accept_index", "out_cache_loc", "accepted_out_cache_loc", "size_upper"),
        ),
        _launch_fill_accept,
    ),
    KernelNames(
        "move_kv",
        places("copy_all_layer_kv_cache_tiled"),
        (words("data_ptrs strides tgt_loc_ptr src_loc_ptr num_locs num_locs_upper BYTES_PER_TILE"),),
        _launch_move,
        accepts=lambda sizes: sizes["num_moves"] <= MOVES_MAX,
    ),
)


def _after_verify(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`verify`, where it moves the KV of the accepted tokens; the lengths and rows are of the move's targets."""
    bs, device = sizes["bs"], tensors["out_cache_loc"].device
    nothing = torch.zeros(bs, dtype=torch.int64, device=device)
    batch = running_batch(seq_lens=nothing, req_pool_indices=nothing, out_cache_loc=tensors["out_cache_loc"])
    return {
        "torch": torch,
        "next_power_of_2": power_of_two,
        "self": SimpleNamespace(speculative_num_draft_tokens=sizes["num_draft_tokens"], device=device),
        "batch": batch,
        "device": device,
        "accept_index": tensors["accept_index"].long(),
    }


def _for_branches(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The attention backend of the draft, before it runs its steps."""
    bs, topk, num_steps, table = sizes["bs"], sizes["topk"], sizes["num_steps"], tensors["req_to_token"]
    forward_batch = running_batch(
        batch_size=bs,
        req_pool_indices=tensors["req_pool_indices"],
        seq_lens=tensors["seq_lens"],
        seq_lens_sum=None,
        positions=tensors["seq_lens"].repeat_interleave(topk),
        req_to_token_pool=SimpleNamespace(req_to_token=table),
    )
    backend = SimpleNamespace(
        topk=topk,
        speculative_num_steps=num_steps,
        page_size=sizes["page_size"],
        pool_len=table.shape[1],
        req_to_token_pool=SimpleNamespace(req_to_token=table),
        kv_indptr=tensors["kv_indptr"],
        max_context_len=table.shape[1],
        draft_window_size=0,
        draft_sink_size=0,
    )
    # Where rows are translated this is what comes of it; the rows are the pool's own here.
    source = SimpleNamespace(
        row_ids=tensors["req_pool_indices"], ids=table, row_stride=table.shape[1], entry_page_size=1, v2p=None
    )
    return {
        "torch": torch,
        "next_power_of_2": power_of_two,
        "self": backend,
        "src": source,
        "forward_batch": forward_batch,
        "kv_indices_buffer": tensors["kv_indices"],
        "num_seqs": bs,
        "bs": bs * topk,
    }


def _in_pool(_sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The KV pool, of which this is the only buffer."""
    buffer, target = tensors["buffer"], tensors["target"]
    if not len(target):
        raise NotCalledError("nothing is moved")
    stride = buffer.stride(0) * buffer.element_size()
    config = {
        "bytes_per_tile": BYTES_PER_TILE,
        "byte_tiles": -(-stride // BYTES_PER_TILE),
        "num_warps": 4,
        "num_locs_upper": MOVES_MAX,
    }
    pool = SimpleNamespace(
        data_ptrs=pointers_to([buffer]),
        data_strides=torch.tensor([stride], dtype=torch.int64, device=buffer.device),
        _kv_copy_config=config,
    )
    return {
        "torch": torch,
        "next_power_of_2": power_of_two,
        "self": pool,
        "tgt_loc": target,
        "src_loc": tensors["source"],
    }


MOVE = "move_accept_tokens_to_target_kvcache"

CALLERS: tuple[CallerNames, ...] = (
    *(
        CallerNames(
            "fill_accept_out_cache_loc",
            function,
            places(MOVE),
            callees,
            _after_verify,
            ("accept_out_cache_loc", "accepted_out_cache_loc"),
            host=host,
            accepts=accepts,
            other_length=True,
            cost=cost,
            called_from=(SPECULATIVE,),
        )
        for function, accepts, cost in (
            (MOVE, lambda sizes: sizes["num_draft_tokens"] >= sizes["accept_width"], 3),
            (f"{MOVE}:small-trees", lambda sizes: sizes["num_draft_tokens"] < sizes["accept_width"], 1),
        )
        for callees, host in (
            (("fill_accept_out_cache_loc", "fill_accepted_out_cache_loc"), ()),
            (("fill_accept_out_cache_loc_func",), places("fill_accept_out_cache_loc_func")),
        )
    ),
    *(
        CallerNames(
            "move_kv",
            "MHATokenToKVPool.move_kv_cache",
            places("MHATokenToKVPool.move_kv_cache"),
            callees,
            _in_pool,
            None,
            host=host,
            accepts=lambda sizes: sizes["num_moves"] <= MOVES_MAX,
        )
        for callees, host in (
            (("copy_all_layer_kv_cache_tiled",), ()),
            (("copy_all_layer_kv_cache_func",), places("copy_all_layer_kv_cache_func")),
        )
    ),
    CallerNames(
        "generate_draft_decode_kv_indices",
        "TritonMultiStepDraftBackend.common_template",
        places("TritonMultiStepDraftBackend.common_template"),
        ("generate_draft_decode_kv_indices",),
        _for_branches,
        None,
        cost=10,
    ),
)
