"""The host functions of SGLang by release: where each lives, what it is called, and how its fields are named.

Written for 0.5.10.post1 to 0.5.13, which moved and renamed many of them. A function is found by looking, newest place
first, not by comparing versions, so that a checkout between two releases is read as what it is. A function that is
found nowhere, or with parameters that are not listed, is not run.
"""

from __future__ import annotations

from dataclasses import dataclass

_BATCH = "srt/managers/schedule_batch.py"
_COMMON = "srt/mem_cache/common.py"
_MANAGER_UTILS = "srt/managers/utils.py"
_CHUNK_CACHE = "srt/mem_cache/chunk_cache.py"
_DRAFT_INPUT = "srt/speculative/eagle_info_v2.py"
_RESULT_PROCESSOR = "srt/managers/scheduler_components/batch_result_processor.py"
_RESULT_MIXIN = "srt/managers/scheduler_output_processor_mixin.py"
_SESSION = "srt/session/streaming_session.py"
_SESSION_BEFORE = "srt/mem_cache/session_aware_cache.py"

REQUEST_CLASS = (_BATCH, "Req")
BATCH_CLASS = (_BATCH, "ScheduleBatch")
TREE_CLASS = (_CHUNK_CACHE, "ChunkCache")
SERVER_ARGS_CLASS = ("srt/server_args.py", "ServerArgs")
TREE_BASE_CLASS = "BasePrefixCache"
ABORT_CLASS = "FINISH_ABORT"
FINISH_CLASSES = ("BaseFinishReason", "FINISH_")  # beginnings of the names of finish reasons


@dataclass(frozen=True, slots=True)
class HostFunction:
    """One host function of a part of the seam (`specsim.sim.target.PARTS`).

    `places`      (file, function or Class.method), newest first
    `signatures`  the parameter lists that the adapter knows, () for any
    `optional`    releases exist that do without it
    """

    part: str
    places: tuple[tuple[str, str], ...]
    signatures: tuple[tuple[str, ...], ...] = ()
    optional: bool = False


ALLOC_LEN = HostFunction(
    "alloc length",
    ((_COMMON, "get_alloc_len_per_decode"), (_MANAGER_UTILS, "get_alloc_len_per_decode")),
    (("server_args",),),
)
# Twice the alloc length; a function of its own since 0.5.13.
ALLOC_RESERVE = HostFunction("alloc length", ((_COMMON, "get_alloc_reserve_per_decode"),), (("server_args",),), True)
PREPARE = HostFunction("prepare", ((_DRAFT_INPUT, "EagleDraftInputV2Mixin.prepare_for_decode"),), (("self", "batch"),))
RESOLVE = HostFunction(
    "resolve",
    (
        (_RESULT_PROCESSOR, "SchedulerBatchResultProcessor._resolve_spec_v2_tokens"),
        (_RESULT_MIXIN, "SchedulerOutputProcessorMixin._resolve_spec_overlap_tokens"),
        (_RESULT_MIXIN, "SchedulerOutputProcessorMixin._resolve_spec_overlap_token_ids"),
    ),
    (("self", "result", "batch"),),
)
FINISH_CHECK = HostFunction(
    "finish check",
    ((_BATCH, "Req.update_finish_state"), (_BATCH, "Req.check_finished")),
    (("self", "new_accepted_len"),),
)
RELEASE = HostFunction("release", ((_COMMON, "release_kv_cache"),), (("req", "tree_cache", "is_insert"),))
NEED = HostFunction(
    "decode need", ((_BATCH, "ScheduleBatch.new_tokens_required_next_decode"),), (("self", "selected_indices"),)
)
RETRACT = HostFunction("retract", ((_BATCH, "ScheduleBatch.retract_decode"),), (("self", "server_args"),))
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
    (("self", "req", "is_insert"),),
)
SESSION_CLOSE = HostFunction(
    "session close",
    ((_SESSION, "StreamingSession.release_session"), (_SESSION_BEFORE, "SessionAwareCache.release_session")),
    (("self", "session_id"),),
)

# The first function of a part is the one that is shown for it; all of them must be there.
HOST_FUNCTIONS = (
    ALLOC_LEN,
    ALLOC_RESERVE,
    PREPARE,
    RESOLVE,
    FINISH_CHECK,
    RELEASE,
    HostFunction("release", ((_BATCH, "Req.pop_committed_kv_cache"),), (("self",),)),
    HostFunction("release", ((_BATCH, "Req.pop_overallocated_kv_cache"),), (("self",),)),
    HostFunction("release", ((_CHUNK_CACHE, "ChunkCache.cache_finished_req"),), (("self", "req", "is_insert"),)),
    NEED,
    HostFunction("decode need", ((_BATCH, "ScheduleBatch.check_decode_mem"),), (("self", "selected_indices"),)),
    RETRACT,
    HostFunction(
        "retract", ((_BATCH, "ScheduleBatch.release_req"),), (("self", "idx", "remaing_req_count", "server_args"),)
    ),
    RESET,
    SESSION_MATCH,
    NEXT_ROUND,
    SESSION_SAVE,
    SESSION_CLOSE,
)

# The methods of the session classes that the engine and `release` call, whatever is behind them. They are called for
# requests without a session too, once there is a session.
SESSION_ENTRIES = {
    "match_prefix": "session match",
    "cache_finished_req": "session save",
    "release_session": "session close",
}
SESSION_CLOSER = "release_session"

# Fields of one meaning, newest name first.
REQUEST_ACCEPTED_DRAFTS = ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accepted_tokens")
REQUEST_HISTOGRAM = ("spec_correct_drafts_histogram", "spec_acceptance_histogram")
RESULT_ACCEPTED_DRAFTS = ("num_correct_drafts", "num_accepted_drafts", "num_accepted_tokens")
REQUEST_FILL_IDS = ("full_untruncated_fill_ids", "fill_ids")
