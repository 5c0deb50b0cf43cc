"""What a pass of the draft model reads, and where it writes."""

from __future__ import annotations

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.registry import OPS
from specsim.engines.sglang.operations.names import (
    KernelLaunch,
    KernelNames,
    as_is,
    host_call,
    named,
    on_grid,
    option_kernel,
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


def _launch_block_lens(sizes: Sizes, t: Tensors) -> KernelLaunch:
    lens = t["seq_lens"]
    return host_call(seq_lens=lens, block_size=sizes["num_draft_tokens"], device=lens.device, returned=as_is)


def _launch_gather(sizes: Sizes, t: Tensors) -> KernelLaunch:
    """Its lengths are those of each token of the blocks."""
    ndt, prefix = sizes["num_draft_tokens"], t["prefix_lens"]
    more = {"valid_from": t["valid_from"]} if sizes["has_valid_from"] else {}
    return host_call(
        seq_lens_casual=OPS["block_seq_lens_causal"].reference(prefix, ndt),
        req_pool_indices_repeated=t["req_pool_indices"].repeat_interleave(ndt),
        block_size=ndt,
        swa_window=sizes["window"],
        **more,
        returned=lambda found: (found.context_lens, found.offsets, found.invalid),
    )


def _launch_page_indices(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(
        req_to_token=t["req_to_token"],
        full_to_swa_mapping=t["full_to_swa_mapping"],
        req_pool_indices_per_request=t["req_pool_indices"],
        offsets=t["offsets"],
        out_loc=t["out_loc"],
        context_lens=t["context_lens"],
        block_size=sizes["num_draft_tokens"],
        swa_window=sizes["window"],
        page_index_aligned_size=sizes["alignment"],
        returned=as_is,
    )


def _launch_buffers(sizes: Sizes, t: Tensors) -> KernelLaunch:
    buffers = "seq_lens_dst req_pool_indices_dst num_correct_dst accept_lens_dst select_index_dst temperatures_dst"
    sources = "seq_lens req_pool_indices num_correct accept_lens temperatures"
    return host_call(
        *named(t, "input_ids_dst positions_dst cache_loc_dst input_ids positions cache_loc"),
        *named(t, f"{buffers} {sources} hidden_dst hidden rank_tokens_dst rank_logprob_tokens_dst"),
        sizes["bs"],
        sizes["padded_bs"],
        sizes["front"] + sizes["num_draft_tokens"],
        sizes["front"],
        sizes["fill_value"],
    )


_GATHER = "seq_lens_casual req_pool_indices_repeated block_size swa_window"
_PAGE_INDICES = (
    "req_to_token full_to_swa_mapping req_pool_indices_per_request offsets out_loc context_lens block_size swa_window "
    "page_index_aligned_size"
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
    option_kernel(
        "widened_draft_extend_locs",
        "compute_widened_draft_extend_locs_positions_triton",
        "seq_lens req_pool_indices req_to_token stash_valid_lens draft_token_num num_front_tokens num_warmup_tokens",
        _launch_widened,
    ),
    option_kernel(
        "rebuild_compact_draft_req_to_token",
        "rebuild_compact_draft_req_to_token_func",
        "draft_req_to_token target_req_to_token req_pool_indices suffix_start draft_prefix_lens "
        "verify_out_cache_loc_2d batch_size block_size",
        _launch_compact,
    ),
    option_kernel(
        "generate_draft_decode_window_kv_indices",
        "generate_draft_decode_window_kv_indices",
        "req_pool_indices req_to_token paged_kernel_lens window_kv_indices window_kv_indptr positions "
        "row_stride kv_indices_stride kv_indptr_stride bs_upper iter_upper num_tokens_upper page_size window "
        "ENTRY_PAGE_SIZE v2p TRANSLATE",
        _launch_window,
        cost=10,
    ),
    option_kernel(
        "fill_draft_extend_buffers",
        "fill_draft_extend_prepare_buffers_triton",
        "input_ids positions out_cache_loc src_input_ids src_positions src_out_cache_loc seq_lens "
        "req_pool_indices num_correct_drafts num_accept_tokens select_index temperatures src_seq_lens "
        "src_req_pool_indices src_num_correct_drafts src_num_accept_tokens src_temperatures hidden_states "
        "src_hidden_states global_num_tokens global_num_tokens_for_logprob raw_bs bs num_tokens_per_bs "
        "num_front_tokens seq_len_fill_value",
        _launch_buffers,
    ),
    option_kernel(
        "block_seq_lens_causal", "build_block_seq_lens_causal_triton", "seq_lens block_size device", _launch_block_lens
    ),
    option_kernel(
        "draft_window_gather",
        "compute_dspark_window_gather_triton",
        (_GATHER, f"{_GATHER} valid_from"),
        _launch_gather,
        accepts=lambda sizes: not sizes["has_valid_from"],
    ),
    option_kernel(
        "draft_window_gather",
        "compute_dspark_window_gather_triton",
        f"{_GATHER} valid_from",
        _launch_gather,
        variant="valid from",
    ),
    option_kernel(
        "draft_swa_page_indices", "build_dspark_swa_page_indices_triton", _PAGE_INDICES, _launch_page_indices
    ),
)
