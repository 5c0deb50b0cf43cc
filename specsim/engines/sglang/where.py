"""Where releases of SGLang have had what specsim takes of them by its path: each path once.

A place is a file below the package and a name in it. `PLACES` has the places of each name, newest first. A name is
specsim's own, whatever a release calls the function. Who looks for one takes the first place that the release has, so a
function that moved costs one line, above the other places of it.

A file alone is a place with the same name in that file. A method that has no line of its own is where its class is.
Kernels have moved with their files: to `triton_ops` in 0.5.13, to `kernels/ops` in 0.5.16. What a function takes and
how it is called is said in `operations`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

Place = tuple[str, str]  # file, and name in it: a function, a class or "Class.method"

# Folders.
ATTENTION = "srt/layers/attention"
CUDA_HEADERS = "kernels/jit/include"
MEM_CACHE = "srt/mem_cache"
RUST_TREE = "srt/mem_cache/rust_tree_core"  # the radix tree in Rust, where a release has one
SPECULATIVE = "srt/speculative"
OF_SCHEDULER = ("srt/managers", MEM_CACHE, "srt/session", SPECULATIVE)  # what a change of the scheduler is a change of
OF_SCHEDULES = (*OF_SCHEDULER, "srt/sampling")  # what a schedule runs of

# Files that are searched.
CONFIGURATION = ("srt/arg_groups/speculative_hook.py", "srt/server_args.py")  # of speculative decoding, newest first
ENVIRONMENT = "srt/environ.py"
FIXES = "srt/debug_utils/pr_fix_toggle.py"  # that a release can take back
SCHEDULER = "srt/managers/scheduler.py"

# Files with several names.
_ALLOCATION = "srt/mem_cache/allocation.py"
_BASE_WORKER = "srt/speculative/base_spec_worker.py"
_CACHE_UTILS = "srt/mem_cache/utils.py"
_EAGLE_INFO = "srt/speculative/eagle_info.py"
_EAGLE_INFO_V2 = "srt/speculative/eagle_info_v2.py"
_EAGLE_KERNELS = "kernels/ops/speculative/eagle.py"
_EAGLE_UTILS = "srt/speculative/eagle_utils.py"
_MEMORY_POOL = "srt/mem_cache/memory_pool.py"
_MULTI_LAYER_KERNELS = "kernels/ops/speculative/multi_layer_eagle.py"
_MULTI_LAYER_WORKER = "srt/speculative/multi_layer_eagle_worker_v2.py"
_OLD_ALLOCATOR = "srt/mem_cache/allocator.py"
_OLD_COMMON = "srt/mem_cache/common.py"
_ORCHESTRATOR = "srt/sampling/penaltylib/orchestrator.py"
_RECONSTRUCT = "kernels/ops/speculative/reconstruct_tree.py"
_RENORM = "kernels/ops/sampling/renorm_triton.py"
_REPETITION = "srt/sampling/penaltylib/repetition_penalty.py"
_ROW_ARGMAX = "kernels/ops/speculative/row_argmax.py"
_SPEC_TREE = "kernels/ops/speculative/spec_tree.py"
_SPEC_UTILS = "srt/speculative/spec_utils.py"
_WORKER = "srt/speculative/eagle_worker_v2.py"
_WORKER_COMMON = "srt/speculative/eagle_worker_common.py"

# Where kernels have stood that moved together, newest first.
_ALLOCATOR = ("kernels/ops/memory/allocator.py", "srt/mem_cache/triton_ops/allocator.py", _OLD_ALLOCATOR)
_BITMASK = ("kernels/ops/grammar/bitmask_ops.py", "srt/constrained/triton_ops/bitmask_ops.py")
_CACHE_LOCS = ("kernels/ops/speculative/cache_locs.py", "srt/speculative/triton_ops/cache_locs.py", _SPEC_UTILS)
_COMMON = ("kernels/ops/memory/common.py", "srt/mem_cache/triton_ops/common.py", _OLD_COMMON)
_DSPARK_ACCEPT = "kernels/ops/speculative/dspark/dspark_accept.py"
_DSPARK_ATTENTION = "kernels/ops/speculative/dspark/dspark_attn_metadata.py"
_DSPARK_WINDOW = "kernels/ops/speculative/dspark/dspark_verify_window.py"
_DFLASH = "kernels/ops/speculative/dflash.py"
_EAGLE = (_EAGLE_KERNELS, "srt/speculative/triton_ops/eagle.py", _EAGLE_INFO_V2)
_MOVE = ("kernels/ops/kvcache/cache_move.py", "srt/mem_cache/triton_ops/cache_move.py", _MEMORY_POOL)
_MULTI_LAYER = (
    _MULTI_LAYER_KERNELS,
    "srt/speculative/triton_ops/multi_layer_eagle.py",
    "srt/speculative/multi_layer_eagle_utils.py",
)
_RAGGED_VERIFY = "kernels/ops/speculative/ragged_verify_kernels.py"
_REJECTION = ("kernels/ops/speculative/reject_sampling.py", "srt/speculative/reject_sampling.py")
_UNO = ("kernels/ops/speculative/uno_tree.py", "srt/speculative/uno_tree.py")
_ROWS = (_CACHE_LOCS[0], _ALLOCATION, *_CACHE_LOCS[1:], _EAGLE_INFO_V2)


def _renamed(paths: Sequence[str], *names: str) -> tuple[Place, ...]:
    """Any of the names in any of the files."""
    return tuple((path, name) for path in paths for name in names)


PLACES: Mapping[str, tuple[str | Place, ...]] = {
    # Slots and rows.
    "PagedTokenToKVPoolAllocator": ("srt/mem_cache/allocator/paged.py", _OLD_ALLOCATOR),
    "SWATokenToKVPoolAllocator": ("srt/mem_cache/allocator/swa.py", "srt/mem_cache/swa_memory_pool.py"),
    "HostTensorAllocator": ("srt/mem_cache/pool_host/common.py", "srt/mem_cache/memory_pool_host.py"),
    "alloc_decode_kernel": _ALLOCATOR,
    "alloc_extend_kernel": _ALLOCATOR,
    "assign_draft_cache_locs": (_SPEC_UTILS,),
    "assign_draft_cache_locs_contiguous": _renamed(
        _ROWS, "assign_draft_cache_locs_contiguous", "assign_draft_cache_locs_page_size_1"
    ),
    "assign_draft_cache_locs_contiguous_func": _ROWS,
    "assign_extend_cache_locs": _ROWS,
    "assign_extend_cache_locs_func": _ROWS,
    "assign_extend_cache_locs_uniform": _ROWS,
    "assign_extend_cache_locs_uniform_func": _ROWS,
    "assign_req_to_token_pool": _ROWS,
    "assign_req_to_token_pool_func": _ROWS,
    "generate_draft_decode_kv_indices": _CACHE_LOCS,
    "compute_node_event_hash_values": (_CACHE_UTILS,),
    "compute_node_hash_values": (_CACHE_UTILS, "srt/mem_cache/radix_cache.py"),
    "get_last_loc": (_ALLOCATION, _OLD_COMMON),
    "get_last_loc_triton": _COMMON,
    "get_last_loc_triton_safe": _COMMON,
    "get_req_to_token_extra_context_len": ("srt/mem_cache/allocation_sizing.py", _OLD_COMMON),
    "hash_str_to_int64": (_CACHE_UTILS, "srt/mem_cache/hicache_storage.py"),
    "write_cache_indices": (_ALLOCATION, _OLD_COMMON),
    "write_req_to_token_pool_triton": _COMMON,
    # Before a launch. These were methods of what the launch is given.
    "prepare_extend_after_decode": (
        (_EAGLE_INFO, "EagleDraftExtendInput.prepare_extend_after_decode"),
        (_EAGLE_INFO, "EagleDraftInput.prepare_extend_after_decode"),
    ),
    "prepare_for_decode": (
        (_ALLOCATION, "alloc_for_spec_decode"),
        (_EAGLE_UTILS, "eagle_prepare_for_decode"),
        (_EAGLE_INFO_V2, "EagleDraftInputV2Mixin.prepare_for_decode"),
    ),
    "prepare_for_draft": (
        _WORKER_COMMON,
        (_BASE_WORKER, "EagleDraftWorkerBase.prepare_for_draft"),
        (_EAGLE_INFO_V2, "EagleDraftInputV2Mixin.prepare_for_v2_draft"),
    ),
    "prepare_for_verify": (
        (_EAGLE_UTILS, "eagle_prepare_for_verify"),
        (_EAGLE_INFO_V2, "EagleVerifyInputV2Mixin.prepare_for_v2_verify"),
    ),
    # Passes of the draft model.
    "build_block_seq_lens_causal_triton": (_DSPARK_ATTENTION,),
    "build_dspark_swa_page_indices_triton": (_DSPARK_ATTENTION,),
    "compute_dspark_window_gather_triton": (_DSPARK_ATTENTION,),
    "compute_widened_draft_extend_locs_positions_triton": _MULTI_LAYER,
    "fill_draft_extend_prepare_buffers_triton": _MULTI_LAYER,
    "generate_draft_decode_window_kv_indices": _CACHE_LOCS,
    "prepare_draft_extend_inputs": (_EAGLE_KERNELS,),
    "prepare_draft_extend_layout": (_EAGLE_KERNELS,),
    "prepare_draft_extend_lengths": (_EAGLE_KERNELS,),
    "rebuild_compact_draft_req_to_token_func": _CACHE_LOCS,
    # Drafts and their trees.
    "EAGLEWorker": ("srt/speculative/eagle_worker.py",),
    "EagleDraftWorker": (_WORKER,),
    "FutureMap": ("srt/managers/overlap_utils.py",),
    "TritonMultiStepDraftBackend": ("srt/layers/attention/triton_backend.py",),
    "_rebuild_topk1_chain_buffers": (
        (_BASE_WORKER, "EagleDraftWorkerBase._rebuild_topk1_chain_buffers"),
        (_WORKER, "EagleDraftWorker._rebuild_topk1_chain_buffers"),
    ),
    "build_chain_tree": (_EAGLE_KERNELS,),
    "build_eagle_verify_input": (_WORKER_COMMON,),
    "build_tree_kernel_efficient": (_EAGLE_UTILS,),
    "build_tree_kernel_efficient_func": (_SPEC_TREE,),
    "fast_prefill_plan": ("srt/layers/attention/flashinfer_backend.py",),
    "fast_sample": (_SPEC_UTILS,),
    "gather_spec_extras": (
        "kernels/ops/speculative/gather_spec_extras.py",
        "srt/speculative/triton_ops/gather_spec_extras.py",
    ),
    "organize_draft_results": (_EAGLE_UTILS,),
    "pack_verify_mask_into": ("kernels/ops/speculative/pack_verify_mask.py",),
    "reconstruct_indices_from_tree_mask_func": (_RECONSTRUCT,),
    "reconstruct_indices_from_tree_mask_triton": (_RECONSTRUCT,),
    "select_top_k_tokens": (_SPEC_UTILS,),
    "sgl_build_tree_kernel_efficient_triton": (_SPEC_TREE,),
    "sgl_build_tree_kernel_triton": (_SPEC_TREE, _EAGLE_UTILS),
    # Drafts of several layers.
    "MultiLayerEagleDraftExtendCudaGraphRunner": (
        "srt/speculative/multi_layer_eagle_draft_extend_cuda_graph_runner.py",
    ),
    "MultiLayerEagleDraftWorker": (_MULTI_LAYER_WORKER,),
    "MultiLayerEagleWorkerV2": (_MULTI_LAYER_WORKER,),
    "assign_hidden_states_pool_triton": _MULTI_LAYER,
    "assign_new_state_triton": _MULTI_LAYER,
    "fill_widened_draft_extend_inputs_triton": _MULTI_LAYER,
    "rotate_input_ids": _renamed(_MULTI_LAYER, "rotate_input_ids", "rotate_input_ids_triton"),
    "stash_append_boundary_state_triton": _MULTI_LAYER,
    "wide_row_softmax_triton": (_MULTI_LAYER_KERNELS,),
    # Logits, and what is drawn from them.
    "BatchedFrequencyPenalizer": ("srt/sampling/penaltylib/frequency_penalty.py",),
    "BatchedMinNewTokensPenalizer": ("srt/sampling/penaltylib/min_new_tokens.py",),
    "BatchedPenalizerOrchestrator": (_ORCHESTRATOR,),
    "BatchedPresencePenalizer": ("srt/sampling/penaltylib/presence_penalty.py",),
    "BatchedRepetitionPenalizer": (_REPETITION,),
    "SamplingBatchInfo": ("srt/sampling/sampling_batch_info.py",),
    "XGrammarGrammar": ("srt/constrained/xgrammar_backend.py",),
    "_BatchedPenalizer": (_ORCHESTRATOR,),
    "_medium_argmax_partial_kernel": (_ROW_ARGMAX,),
    "_medium_row_argmax": (_ROW_ARGMAX,),
    "apply_scaling_penalties": (_REPETITION,),
    "apply_token_bitmask_inplace_kernel": _BITMASK,
    "apply_token_bitmask_inplace_triton": _BITMASK,
    "row_argmax": (_ROW_ARGMAX,),
    "softmax": ("kernels/ops/sampling/__init__.py",),
    "temperature_softmax": ("kernels/ops/sampling/temperature_softmax.py",),
    "top_k_renorm_probs_triton": (_RENORM,),
    "top_k_top_p_min_p_sampling_from_probs_torch": ("srt/layers/sampler.py",),
    "top_p_renorm_probs_triton": (_RENORM,),
    # Verification.
    "EagleVerifyInput": (_EAGLE_INFO,),
    "EagleVerifyInputV2Mixin": (_EAGLE_INFO_V2,),
    "chain_speculative_sampling_triton": _REJECTION,
    "eagle_sample": (_EAGLE_UTILS,),  # EagleVerifyInputV2Mixin.sample before, which sampled no chains
    "run_eagle_verify": (_WORKER_COMMON, (_WORKER, "EAGLEWorkerV2.verify")),
    "speculative_sampling_classic_kernel": _REJECTION,
    "verify_tree_greedy_func": (_SPEC_TREE,),
    "verify_tree_greedy_kernel_triton": (_SPEC_TREE,),
    "verify_tree_greedy_triton": (_SPEC_TREE, _EAGLE_UTILS),
    # After it.
    "MHATokenToKVPool.move_kv_cache": ((_MEMORY_POOL, "MHATokenToKVPool._move_kv_cache_impl"), _MEMORY_POOL),
    "_compact_accept_to_front": (_WORKER_COMMON, (_WORKER, "EAGLEWorkerV2._compact_accept_to_front")),
    "_finalize_accept_tree_path": (_WORKER_COMMON, (_WORKER, "EAGLEWorkerV2._finalize_accept_tree_path")),
    "align_evict_mask_to_page_size": _CACHE_LOCS,
    "copy_all_layer_kv_cache_func": _MOVE,
    "copy_all_layer_kv_cache_tiled": _MOVE,
    "create_extend_after_decode_spec_info": _CACHE_LOCS,
    "fill_accept_out_cache_loc": _renamed(_EAGLE, "fill_accept_out_cache_loc", "fill_accepted_out_cache_loc"),
    "fill_accept_out_cache_loc_func": _EAGLE,
    "fill_bonus_tokens": _renamed(_EAGLE, "fill_bonus_tokens", "fill_new_verified_id"),
    "fill_bonus_tokens_func": _EAGLE,
    "filter_finished_cache_loc_kernel": _CACHE_LOCS,
    "get_src_tgt_cache_loc": _CACHE_LOCS,
    "get_target_cache_loc": _CACHE_LOCS,
    "move_accept_tokens_to_target_kvcache": (
        _SPEC_UTILS,
        (_WORKER, "EAGLEWorkerV2.move_accept_tokens_to_target_kvcache"),
        (_WORKER, "EAGLEWorkerV2.move_accepted_tokens_to_target_kvcache"),
    ),
    "prepare_verify_commit_outputs": (_EAGLE_KERNELS,),
    "resolve_tokens": (
        (
            "srt/managers/scheduler_components/batch_result_processor.py",
            "SchedulerBatchResultProcessor._resolve_spec_v2_tokens",
        ),
        *_renamed(
            ("srt/managers/scheduler_output_processor_mixin.py",),
            "SchedulerOutputProcessorMixin._resolve_spec_overlap_tokens",
            "SchedulerOutputProcessorMixin._resolve_spec_overlap_token_ids",
        ),
    ),
    # Chains that are cut, and block drafters.
    "_build_candidate_log_probs": _UNO,
    "_build_tree_kernel": _UNO,
    "_compute_dflash_accept_bonus_triton_unchecked": (_DFLASH,),
    "_prepare_dflash_draft_block_unchecked": (_DFLASH,),
    "accept_greedy_triton": (_DSPARK_ACCEPT,),
    "blockwise_rejection_triton": ("kernels/ops/speculative/dspark/blockwise_rejection.py",),
    "build_commit_inject_layout_triton": (_DSPARK_WINDOW,),
    "build_out_tokens_triton": (_DSPARK_WINDOW,),
    "build_qo_indptr_triton": (_RAGGED_VERIFY,),
    "build_ragged_verify_window_triton": (_DSPARK_WINDOW,),
    "committed_swa_locations": ("kernels/ops/speculative/dspark/commit_swa.py",),
    "draft_topk1_postprocess": ("kernels/ops/speculative/topk1.py",),
    "finalize_accept_lens_triton": (_DSPARK_ACCEPT,),
    "gather_two_level_bonus_triton": (_DSPARK_ACCEPT,),
    "pad_verify_lens_to_bucket_triton": (_RAGGED_VERIFY,),
    "lilicorr_topk_lse": ("kernels/ops/speculative/lilicorr.py",),
    "stage_commit": ("kernels/ops/speculative/dspark/stage_commit.py",),
    "MarkovSampleStep": ("kernels/ops/speculative/dspark/markov_sample.py",),
    "markov_greedy_step_triton": ("kernels/ops/speculative/dspark/dspark_draft_model.py",),
    "scatter_compact_to_strided_triton": (_DSPARK_WINDOW,),
    "schedule_verify_lens_topk_triton": ("kernels/ops/speculative/dspark/dspark_schedule.py",),
    "select_mixed_accept_triton": (_DSPARK_ACCEPT,),
    "selector_walk_triton": (_DFLASH,),
    "softmax_temp_triton": (_DSPARK_ACCEPT,),
    "static_accept_tail": ("kernels/ops/speculative/dspark/static_accept_tail.py",),
    # What clients send.
    "open_session": (
        "srt/managers/tokenizer_control_mixin.py",
        "srt/managers/tokenizer_communicator_mixin.py",
        "srt/managers/tokenizer_manager.py",
    ),
}


def places(name: str) -> tuple[Place, ...]:
    """The places of a function, a class or a "Class.method", newest first."""
    if name not in PLACES and "." in name:
        owner, _, method = name.rpartition(".")
        return tuple((path, f"{known}.{method}") for path, known in places(owner))
    return tuple((place, name) if isinstance(place, str) else place for place in PLACES[name])


def files(name: str) -> tuple[str, ...]:
    """The files of those places, newest first."""
    return tuple(dict.fromkeys(path for path, _name in places(name)))
