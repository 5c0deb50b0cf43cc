"""What a pass of the draft model reads, and where it writes."""

from __future__ import annotations

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import (
    KernelLaunch,
    KernelNames,
    as_is,
    by_option,
    host_call,
    named,
    on_grid,
    power_of_two,
    words,
)
from specsim.engines.sglang.where import places


def _launch_inputs(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, "accept_lens predict"), sizes["num_draft_tokens"], returned=as_is)


def _launch_lengths(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(t["seq_lens"], sizes["num_draft_tokens"], sizes["front_offset"], returned=as_is)


def _launch_layout(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(
        t["seq_lens"], sizes["num_draft_tokens"], False, returned=lambda layout: (*layout[:3], *layout[3][:2])
    )


def _launch_widened(sizes: Sizes, t: Tensors) -> KernelLaunch:
    given = named(t, "seq_lens req_pool_indices req_to_token stash_valid_lens")
    counts = (sizes[name] for name in ("num_draft_tokens", "front", "num_warmup"))
    return host_call(*given, *counts, returned=as_is)


def _launch_compact(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(
        draft_req_to_token=t["draft_req_to_token"],
        target_req_to_token=t["target_req_to_token"],
        req_pool_indices=t["req_pool_indices"],
        suffix_start=t["suffix_start"],
        draft_prefix_lens=t["draft_prefix_lens"],
        verify_out_cache_loc_2d=t["verify_cache_loc"],
        batch_size=sizes["bs"],
        block_size=sizes["num_draft_tokens"],
    )


def _launch_window(sizes: Sizes, t: Tensors) -> KernelLaunch:
    bs, topk, num_steps = len(t["seq_lens"]), sizes["topk"], sizes["num_steps"]
    return on_grid(
        (num_steps, bs, topk),
        *named(t, "req_pool_indices req_to_token seq_lens kv_indices kv_indptr"),
        t["seq_lens"].repeat_interleave(topk),
        *(t[name].shape[1] for name in ("req_to_token", "kv_indices", "kv_indptr")),
        *map(power_of_two, (bs, num_steps, bs * topk)),
        sizes["page_size"],
        sizes["window"],
    )


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "prepare_draft_extend_inputs",
        places("prepare_draft_extend_inputs"),
        (words("accept_lens predict num_draft_tokens"),),
        _launch_inputs,
    ),
    KernelNames(
        "prepare_draft_extend_lengths",
        places("prepare_draft_extend_lengths"),
        (words("seq_lens num_draft_tokens front_offset"),),
        _launch_lengths,
    ),
    KernelNames(
        "prepare_draft_extend_layout",
        places("prepare_draft_extend_layout"),
        (words("seq_lens num_draft_tokens with_mrope"),),
        _launch_layout,
    ),
    KernelNames(
        "widened_draft_extend_locs",
        places("compute_widened_draft_extend_locs_positions_triton"),
        (
            words(
                "seq_lens req_pool_indices req_to_token stash_valid_lens draft_token_num num_front_tokens "
                "num_warmup_tokens"
            ),
        ),
        _launch_widened,
        reach=by_option,
    ),
    KernelNames(
        "rebuild_compact_draft_req_to_token",
        places("rebuild_compact_draft_req_to_token_func"),
        (
            words(
                "draft_req_to_token target_req_to_token req_pool_indices suffix_start draft_prefix_lens "
                "verify_out_cache_loc_2d batch_size block_size"
            ),
        ),
        _launch_compact,
        reach=by_option,
    ),
    KernelNames(
        "generate_draft_decode_window_kv_indices",
        places("generate_draft_decode_window_kv_indices"),
        (
            words(
                "req_pool_indices req_to_token paged_kernel_lens window_kv_indices window_kv_indptr positions "
                "row_stride kv_indices_stride kv_indptr_stride bs_upper iter_upper num_tokens_upper page_size window "
                "ENTRY_PAGE_SIZE v2p TRANSLATE"
            ),
        ),
        _launch_window,
        cost=10,
        reach=by_option,
    ),
)
