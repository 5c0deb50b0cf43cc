"""The host functions of SGLang by release: where each lives, what it is called and how, and how fields are named.

Written for the releases of `releases.txt`, which moved and renamed many of them. A function is found by looking, newest
place first, not by comparing versions, so that a checkout between two releases is read as what it is. A function that
is found nowhere, or with parameters that are not listed, is not run. A new release takes a place, a parameter list or a
field's name here.

| what moved | |
|---|---|
| the bonus is claimed at the launch | 0.5.11 to 0.5.14: in the functions themselves, and the rules read KVready |
| lengths and the row of a request | to its KV record: the allocated length in 0.5.16, all in 0.5.19 (`KV_RECORD`) |
| the configuration | one object; a getter in 0.5.16, one for each group of options in 0.5.17 (`CONFIGURATION`) |
| the cache without a tree | a class of its own; since 0.5.22 one with its tree off, that has the sessions (`CACHES`) |
"""

from __future__ import annotations

from dataclasses import dataclass

_BATCH = "srt/managers/schedule_batch.py"
_COMMON = "srt/mem_cache/common.py"
_SIZING = "srt/mem_cache/allocation_sizing.py"
_MANAGER_UTILS = "srt/managers/utils.py"
_BASE_CACHE = "srt/mem_cache/base_prefix_cache.py"
_CHUNK_CACHE = "srt/mem_cache/chunk_cache.py"
_UNIFIED_CACHE = "srt/mem_cache/unified_radix_cache.py"
_ALLOCATION = "srt/mem_cache/allocation.py"
_DRAFT_INPUT = "srt/speculative/eagle_info_v2.py"
_EAGLE = "srt/speculative/eagle_utils.py"
_RESULT_PROCESSOR = "srt/managers/scheduler_components/batch_result_processor.py"
_RESULT_MIXIN = "srt/managers/scheduler_output_processor_mixin.py"
_SESSION = "srt/session/streaming_session.py"
_SESSION_BEFORE = "srt/mem_cache/session_aware_cache.py"

REQUEST_CLASS = (_BATCH, "Req")
BATCH_CLASS = (_BATCH, "ScheduleBatch")
SERVER_ARGS_CLASS = ("srt/server_args.py", "ServerArgs")
SERVER_ARGS_FOLDER = "srt/arg_groups/fields"  # where its fields are by groups
ABORT_CLASS = "FINISH_ABORT"
FINISH_CLASSES = ("BaseFinishReason", "FINISH_")  # beginnings of the names of finish reasons

# Functions that give the configuration: `get_` of these files, whatever group of options it is of.
CONFIGURATION = ("srt/runtime_context.py",)
CONFIGURATION_BEFORE = "get_global_server_args"

# The record of a request's KV, and the fields that moved there from the request and from the session's slot.
KV_RECORD = (_BATCH, "ReqKvInfo")
RECORD_FIELDS = {"row": "req_pool_idx", "committed": "kv_committed_len", "allocated": "kv_allocated_len"}

# The abstract classes whose methods the caches and allocators of a release have beside their own.
CACHE_BASE = (_BASE_CACHE, "BasePrefixCache")
ALLOCATOR_BASES = (
    ("srt/mem_cache/allocator/base.py", "BaseTokenToKVPoolAllocator"),
    ("srt/mem_cache/allocator.py", "BaseTokenToKVPoolAllocator"),
)

# The allocators of slots: for pages of one token, and for larger ones; newest place first.
SLOT_ALLOCATORS = {
    "token allocator": (
        ("srt/mem_cache/allocator/token.py", "TokenToKVPoolAllocator"),
        ("srt/mem_cache/allocator.py", "TokenToKVPoolAllocator"),
    ),
    "paged allocator": (
        ("srt/mem_cache/allocator/paged.py", "PagedTokenToKVPoolAllocator"),
        ("srt/mem_cache/allocator.py", "PagedTokenToKVPoolAllocator"),
    ),
}
WINDOW_ALLOCATORS = (
    ("srt/mem_cache/allocator/swa.py", "SWATokenToKVPoolAllocator"),
    ("srt/mem_cache/swa_memory_pool.py", "SWATokenToKVPoolAllocator"),
)
ROW_POOL = ("srt/mem_cache/memory_pool.py", "ReqToTokenPool")
# What the paged allocator launches to extend requests, and the same in PyTorch beside it, with its parameters.
EXTEND_KERNELS = (
    ("kernels/ops/memory/allocator.py", "alloc_extend_kernel"),
    ("srt/mem_cache/triton_ops/allocator.py", "alloc_extend_kernel"),
    ("srt/mem_cache/allocator.py", "alloc_extend_kernel"),
)
EXTEND_IN_TORCH = "alloc_extend_naive"
EXTEND_IN_TORCH_PARAMETERS = (
    "prefix_lens",
    "seq_lens",
    "last_loc",
    "free_pages",
    "out_indices",
    "page_size",
    "device",
)
# Where an allocator keeps what is free: a tensor of slots or pages, or a list of such.
FREE_LISTS = ("free_pages", "release_pages", "staged_pages")
# The radix cache, and the functions that make a server's caches: one that makes no other runs none of it.
RADIX_CACHE = ("srt/mem_cache/radix_cache.py", "RadixCache")
RADIX_KEY = ("srt/mem_cache/radix_cache.py", "RadixKey")
# The cache that newer servers make instead, and the option that says in which language its tree is.
UNIFIED_CACHE = ("srt/mem_cache/unified_radix_cache.py", "UnifiedRadixCache")
TREE_CORE = ("srt/environ.py", "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND")
TREE_MAKERS = (
    ("srt/mem_cache/registry.py", "default_radix_cache_factory"),
    ("srt/managers/scheduler.py", "Scheduler.init_cache_with_memory_pool"),
)
CACHE_PARAMS = ("srt/mem_cache/cache_init_params.py", "CacheInitParams")
MATCH_PARAMS = (_BASE_CACHE, "MatchPrefixParams")
# Its methods that change the tree, the one that takes a lock and the one that gives it back.
TREE_CALLS = ("match_prefix", "insert", "cache_finished_req", "cache_unfinished_req", "evict", "evict_for_alloc")
TREE_LOCK, TREE_UNLOCK = "inc_lock_ref", "dec_lock_ref"
TREE_ENTRIES = {"prefix match": "match_prefix", "tree insert": "cache_unfinished_req"}
# What makes room before a prefill is given slots.
EVICT = (_COMMON, "evict_from_tree_cache")
# Events of the cache, which nobody reads here.
EVENTS_FILE = "srt/disaggregation/kv_events.py"
# The sessions of the controller, and what is called of one.
SESSION_CLASSES = (
    ("srt/session/session_controller.py", "Session"),
    ("srt/managers/session_controller.py", "Session"),
)
SESSION_CALLS = ("create_req", "finish_req", "abort_req")
# A session knows how its turns end where it has the first of these; the others are notified of an abort in the queue.
SESSION_END = "finish_req"
QUEUE_ABORTS = (
    ("srt/managers/scheduler.py", "Scheduler._release_aborted_request"),
    ("srt/managers/scheduler.py", "Scheduler.abort_request"),
)
SESSION_ABORT = "abort_req"
# Methods of an allocator that hand slots out, and that take slots, or pages by their numbers, back.
HANDS_OUT = ("alloc", "alloc_extend", "alloc_decode")
TAKES_BACK = ("free", "free_segment")
TAKES_BACK_PAGES = ("free_page_ids",)


@dataclass(frozen=True, slots=True)
class CacheClass:
    """What a release has in place of a radix cache when it is disabled.

    `has_sessions` it owns the sessions; else they wrap it
    """

    path: str
    name: str
    has_sessions: bool = False


# The first that a release has.
CACHES = (CacheClass(_CHUNK_CACHE, "ChunkCache"), CacheClass(_UNIFIED_CACHE, "UnifiedRadixCache", has_sessions=True))


# What a cache with sessions does for a request that ends or has a row, and what its matches are.
CACHE_WITH_SESSIONS = (
    "match_prefix",
    "claim_kv_row",
    "checkpoint",
    "unlock",
    "release_session",
    "maybe_hand_to_session",
)
MATCH_RESULT = (_BASE_CACHE, "MatchResult")


@dataclass(frozen=True, slots=True)
class HostFunction:
    """One host function of a part of the seam (`specsim.engine.accounting_target.PARTS`).

    `places`      (file, function or Class.method), newest first
    `signatures`  the parameter lists that the adapter knows, () for any
    `optional`    releases exist that do without it
    """

    part: str
    places: tuple[tuple[str, str], ...]
    signatures: tuple[tuple[str, ...], ...] = ()
    optional: bool = False


# Features of the simulator that a release has when it has this, as (file, function or Class.method).
FEATURE_SIGNS = {
    "adaptive steps": ("srt/speculative/eagle_worker_v2.py", "EAGLEWorkerV2.apply_runtime_state"),
    # An abort between two parts of a prefill is answered at once; before, when the whole prefill was done.
    "chunked prefill": ("srt/managers/scheduler.py", "Scheduler.process_pending_chunked_abort"),
    "pauses": (_BATCH, "retract_all"),
}

# What a row has beyond the context; up to 0.5.12 a variable of the function that makes the pools.
ROW_WIDTH = HostFunction(
    "row width",
    tuple((path, "get_req_to_token_extra_context_len") for path in (_SIZING, _COMMON)),
    (("server_args",), ()),
    optional=True,
)
ROW_WIDTH_LOCAL = (
    "srt/model_executor/model_runner_kv_cache_mixin.py",
    "ModelRunnerKVCacheMixin._init_pools",
    "extra_max_context_len",
)
# Slots and rows of the memory that is left for them; the runner's own up to 0.5.15.
_SIZERS = (
    ("srt/mem_cache/kv_cache_configurator.py", "KVCacheConfigurator"),
    ("srt/model_executor/model_runner_kv_cache_mixin.py", "ModelRunnerKVCacheMixin"),
)
POOL_SIZE = HostFunction(
    "pool size",
    tuple((path, f"{name}._resolve_memory_pool_config") for path, name in _SIZERS),
    (("self", "pre_model_load_memory"),),
)
# By the kind of model, from 0.5.11 on.
_POOL_CONFIGURATOR = "srt/model_executor/pool_configurator.py"
POOL_CONFIGURATOR = (_POOL_CONFIGURATOR, "DefaultPoolConfigurator")
POOL_CONFIGURATOR_BASE = (_POOL_CONFIGURATOR, "MemoryPoolConfigurator")
# Prompt and answer are so much shorter than the context, by the limit that the scheduler sets to `max_new_tokens`.
CONTEXT_UNUSED = 2
ALLOC_LEN = HostFunction(
    "alloc length",
    tuple((path, "get_alloc_len_per_decode") for path in (_SIZING, _COMMON, _MANAGER_UTILS)),
    (("server_args",), ()),
)
# Twice the alloc length; a function of its own since 0.5.13.
ALLOC_RESERVE = HostFunction(
    "alloc length",
    tuple((path, "get_alloc_reserve_per_decode") for path in (_SIZING, _COMMON)),
    (("server_args",), ()),
    optional=True,
)
PREPARE = HostFunction(
    "prepare",
    ((_EAGLE, "eagle_prepare_for_decode"), (_DRAFT_INPUT, "EagleDraftInputV2Mixin.prepare_for_decode")),
    (("batch",), ("self", "batch")),
)
# What feeds the penalizers before a launch; up to 0.5.13 statements of `PREPARE`, which call this of the orchestrator.
PENALTY_FEED = HostFunction(
    "penalty feed", ((_BATCH, "ScheduleBatch.cumulate_penalty_output_tokens"),), (("self",),), optional=True
)
CUMULATE = "cumulate_output_tokens"
_WORKER = "srt/speculative/eagle_worker_common.py"
_BASE_WORKER = "srt/speculative/base_spec_worker.py"
_ARGUMENTS_OF_A_DRAFT = (
    "req_to_token_pool",
    "batch",
    "cuda_graph_runner",
    "draft_model_runner",
    "topk",
    "num_steps",
)
DRAFT_LOCATIONS = HostFunction(
    "draft locations",
    (
        (_WORKER, "prepare_for_draft"),
        (_BASE_WORKER, "EagleDraftWorkerBase.prepare_for_draft"),
        (_DRAFT_INPUT, "EagleDraftInputV2Mixin.prepare_for_v2_draft"),
    ),
    (
        ("draft_input", *_ARGUMENTS_OF_A_DRAFT, "target_translator", "num_draft_tokens"),
        ("draft_input", *_ARGUMENTS_OF_A_DRAFT),
        ("self", "draft_input", *_ARGUMENTS_OF_A_DRAFT),
        ("self", *_ARGUMENTS_OF_A_DRAFT),
    ),
)
VERIFY_LOCATIONS = HostFunction(
    "verify locations",
    ((_EAGLE, "eagle_prepare_for_verify"), (_DRAFT_INPUT, "EagleVerifyInputV2Mixin.prepare_for_v2_verify")),
    (
        ("verify_input", "req_to_token_pool", "batch", "target_worker"),
        ("self", "req_to_token_pool", "batch", "target_worker"),
    ),
)
# The kernels that both launch, with the parameters that are known, and where they are.
CACHE_LOCS = (
    "kernels/ops/speculative/cache_locs.py",
    "srt/speculative/triton_ops/cache_locs.py",
    "srt/speculative/eagle_info_v2.py",
)
_DRAFT_KERNEL = (
    "req_pool_indices",
    "req_to_token",
    "seq_lens",
    "out_cache_loc",
    "pool_len",
    "topk",
    "speculative_num_steps",
)
_UNIFORM_KERNEL = ("req_pool_indices", "req_to_token", "start_offset", "out_cache_loc", "pool_len", "draft_token_num")
_RAGGED_KERNEL = (
    "req_pool_indices",
    "req_to_token",
    "start_offset",
    "end_offset",
    "out_cache_loc",
    "pool_len",
    "bs_upper",
)
LOCATION_KERNELS: dict[str, tuple[tuple[str, ...], ...]] = {
    "assign_draft_cache_locs_page_size_1": (_DRAFT_KERNEL,),
    "assign_draft_cache_locs_contiguous": (
        _DRAFT_KERNEL,
        (*_DRAFT_KERNEL, "positions", "mrope", "BS", "WRITE_POSITIONS", "WRITE_MROPE"),
    ),
    "assign_extend_cache_locs": (_RAGGED_KERNEL,),
    "assign_extend_cache_locs_uniform": (
        _UNIFORM_KERNEL,
        (
            *_UNIFORM_KERNEL,
            "full_v2p",
            "swa_v2p",
            "full_out",
            "swa_out",
            "PAGE_SIZE",
            "num_v_pages",
            "num_swa_pages",
            "positions_out",
            "anchor_src",
            "anchor_out",
            "anchor_stride",
        ),
    ),
}
# What they call that is not simulated: checks of values, recurrent states, models of other kinds.
NOTHING_FOR_LOCATIONS = (
    "maybe_detect_oob",
    "maybe_build_dsv4_verify_bundle",
    "prepare_mamba_track_for_verify",
    "set_mamba_track_indices_from_reqs",
)
LOCATIONS_OF_OTHER_DEVICES = ("assign_draft_cache_locs_contiguous_cpu", "assign_extend_cache_locs_cpu")
RESOLVE = HostFunction(
    "resolve",
    (
        (_RESULT_PROCESSOR, "SchedulerBatchResultProcessor._resolve_spec_v2_tokens"),
        (_RESULT_MIXIN, "SchedulerOutputProcessorMixin._resolve_spec_overlap_tokens"),
        (_RESULT_MIXIN, "SchedulerOutputProcessorMixin._resolve_spec_overlap_token_ids"),
    ),
    (("self", "result", "batch"),),
)
PROCESS = HostFunction(
    "result handling",
    (
        (_RESULT_PROCESSOR, "SchedulerBatchResultProcessor.process_batch_result_decode"),
        (_RESULT_MIXIN, "SchedulerOutputProcessorMixin.process_batch_result_decode"),
    ),
    (("self", "batch", "result"),),
)
# Frees in a group, in the releases in which this calls `FREE_GROUP`.
PREFILL_RESULT = tuple((path, f"{name.split('.')[0]}.process_batch_result_prefill") for path, name in PROCESS.places)
FREE_GROUP = "free_group_begin"
FINISH_CHECK = HostFunction(
    "finish check",
    ((_BATCH, "Req.update_finish_state"), (_BATCH, "Req.check_finished")),
    (("self", "new_accepted_len"),),
)
RELEASE = HostFunction(
    "release",
    ((_COMMON, "release_kv_cache"),),
    (("req", "tree_cache", "is_insert"), ("req", "tree_cache", "checkpoint")),
)
# What the parameter says that hands the KV to the tree, by its names: a request that ends does.
AT_THE_END = {"is_insert": True, "checkpoint": True}
NEED = HostFunction(
    "decode need", ((_BATCH, "ScheduleBatch.new_tokens_required_next_decode"),), (("self", "selected_indices"),)
)
RETRACT = HostFunction("retract", ((_BATCH, "ScheduleBatch.retract_decode"),), (("self", "server_args"), ("self",)))
# Of a pause; before 0.5.13 a method of a batch.
RETRACT_ALL = HostFunction("retract", ((_BATCH, "retract_all"),), optional=True)
RESET = HostFunction("reset for retract", ((_BATCH, "Req.reset_for_retract"),), (("self",),))
SESSION_MATCH = HostFunction(
    "session match",
    ((_SESSION, "StreamingSession.try_match_prefix"), (_SESSION_BEFORE, "SessionAwareCache.match_prefix")),
    (("self", "params"),),
)
NEXT_ROUND = HostFunction(
    "session match", ((_BATCH, "Req.init_next_round_input"),), (("self", "tree_cache", "cow_mamba"),)
)
SESSION_SAVE = HostFunction(
    "session save",
    ((_SESSION, "StreamingSession.try_cache_finished_req"), (_SESSION_BEFORE, "SessionAwareCache.cache_finished_req")),
    (("self", "req", "is_insert"), ("self", "req")),
)
SESSION_CLOSE = HostFunction(
    "session close",
    ((_SESSION, "StreamingSession.release_session"), (_SESSION_BEFORE, "SessionAwareCache.release_session")),
    (("self", "session_id"),),
)

# The first function of a part is the one that is shown for it; all of them must be there that are not optional.
HOST_FUNCTIONS = (
    ROW_WIDTH,
    POOL_SIZE,
    HostFunction(
        "pool size",
        tuple((path, f"{name}.config_from_budget") for path, name in _SIZERS),
        optional=True,
    ),
    HostFunction(
        "pool size",
        (
            *((path, f"{name}._apply_token_constraints") for path, name in _SIZERS),
            (_SIZERS[1][0], f"{_SIZERS[1][1]}._resolve_token_capacity"),
        ),
    ),
    HostFunction(
        "pool size",
        (
            (_SIZERS[0][0], f"{_SIZERS[0][1]}.resolve_max_num_reqs"),
            (_SIZERS[1][0], f"{_SIZERS[1][1]}._resolve_max_num_reqs"),
        ),
    ),
    HostFunction("pool size", ((_POOL_CONFIGURATOR, "DefaultPoolConfigurator.calculate_pool_sizes"),), optional=True),
    ALLOC_LEN,
    ALLOC_RESERVE,
    PREPARE,
    HostFunction("prepare", ((_SIZING, "page_aligned_decode_alloc_lens"),), optional=True),
    HostFunction("prepare", ((_ALLOCATION, "alloc_for_spec_decode"),), optional=True),
    PENALTY_FEED,
    DRAFT_LOCATIONS,
    HostFunction(
        "draft locations",
        tuple((path, "duplicate_prefix_tail_to_draft_branches") for path in (_WORKER, _BASE_WORKER, _DRAFT_INPUT)),
        optional=True,
    ),
    HostFunction(
        "draft locations",
        tuple((path, "assign_draft_cache_locs_contiguous_func") for path in CACHE_LOCS),
        optional=True,
    ),
    VERIFY_LOCATIONS,
    HostFunction(
        "verify locations",
        tuple(
            (path, name)
            for name in ("assign_extend_cache_locs_uniform_func", "assign_extend_cache_locs_func")
            for path in CACHE_LOCS
        ),
        optional=True,
    ),
    RESOLVE,
    PROCESS,
    HostFunction(
        "result handling",
        (
            (_RESULT_PROCESSOR, "SchedulerBatchResultProcessor._handle_finish_state_updated_req"),
            (_RESULT_MIXIN, "SchedulerOutputProcessorMixin._handle_finished_req"),
        ),
        optional=True,
    ),
    FINISH_CHECK,
    RELEASE,
    HostFunction("release", ((_BATCH, "Req.pop_committed_kv_cache"),), (("self",),), optional=True),
    HostFunction("release", ((_BATCH, "Req.pop_overallocated_kv_cache"),), (("self",),), optional=True),
    HostFunction("release", ((_BATCH, "Req.owned_kv_len"), (_BATCH, "Req.effective_kv_committed_len")), optional=True),
    HostFunction("release", ((_COMMON, "_release_overallocated_kv_indices"),), optional=True),
    HostFunction("release", ((_CHUNK_CACHE, "ChunkCache.cache_finished_req"),), optional=True),
    NEED,
    HostFunction("decode need", ((_BATCH, "ScheduleBatch.check_decode_mem"),), (("self", "selected_indices"),)),
    RETRACT,
    HostFunction(
        "retract",
        ((_BATCH, "ScheduleBatch.release_req"),),
        (
            ("self", "idx", "remaing_req_count", "server_args"),
            ("self", "idx", "remaing_req_count", "server_args", "offload_kv"),
            ("self", "idx", "remaing_req_count", "offload_kv"),
        ),
    ),
    HostFunction("retract", ((_BATCH, "release_req"),), optional=True),
    RETRACT_ALL,
    RESET,
    SESSION_MATCH,
    NEXT_ROUND,
    SESSION_SAVE,
    SESSION_CLOSE,
)

# The methods of the session classes that the engine and `release` call, whatever is behind them: of each part the first
# that the class has. They are called for requests without a session too, once there is a session.
SESSION_ENTRIES = {
    "session match": ("match_prefix", "try_match_prefix"),
    "session save": ("cache_finished_req", "claim_kv_row", "try_cache_finished_req"),
    "session close": ("release_session",),
}
SESSION_CLOSER = "release_session"
# The method of a cache with sessions that is notified of every request that was given a row.
SESSION_TAKER = "maybe_hand_to_session"

# Fields of one meaning, newest name first.
REQUEST_ACCEPTED_DRAFTS = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
REQUEST_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_acceptance_histogram")
RESULT_ACCEPTED_DRAFTS = ("num_correct_drafts", "num_accepted_drafts", "num_accepted_tokens")
REQUEST_PREFIX = ("prefix_indices", "prefix_len")
TRUNCATED_FILL_IDS = "fill_ids"  # it ends where the part of a prefill ends; the newer one has a length beside it
REQUEST_FILL_IDS = ("full_untruncated_fill_ids", TRUNCATED_FILL_IDS)
