"""Defects in what a release's scheduler does with a feature are found; each is planted into its source in memory."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from property_tests.support.known_releases import FEW, RELEASES
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.isolation.environment import of_target
from specsim.lifting.source import SourceTree

V1, V2, NEWEST = FEW[2], FEW[-1], RELEASES[-1]
"""Releases whose worker is of spec v1 where batches do not overlap, of spec v2, and one with mixed chunks."""
SCHEDULES = 10
WITHOUT_OVERLAP = next(str(number) for number, setup in enumerate(SETUPS) if not setup.overlap)
MIXED = next(str(number) for number, setup in enumerate(SETUPS) if setup.mixed)
WINDOWED = next(str(number) for number, setup in enumerate(SETUPS) if setup.window and setup.page_size == 1)
PUBLISHES = next(str(number) for number, setup in enumerate(SETUPS) if setup.kv_events and not setup.window)
PROCESSOR, RELAY = "managers.scheduler_components.batch_result_processor", "managers.overlap_utils"
APPENDS_HIDDEN = "SchedulerBatchResultProcessor._append_decode_hidden_states"
PREFILLED = "SchedulerBatchResultProcessor.process_batch_result_prefill"
TREES_OF_V1 = next(
    str(i) for i, setup in enumerate(SETUPS) if setup.worker == "release" and setup.topk > 1 and not setup.overlap
)
VERIFY, DRAFT = "EagleVerifyInput.verify", "EAGLEWorker._draft_preprocess_decode"
BATCH, LOOP = "managers.schedule_batch", "managers.scheduler"
RESULTS, MIXIN = "managers.scheduler_output_processor_mixin", "SchedulerOutputProcessorMixin."
FEEDS, PENALTIES = "EagleDraftInputV2Mixin.prepare_for_decode", "sampling.penaltylib."
PRESENCE = "BatchedPresencePenalizer._filter"
OWN_WORKER = next(str(number) for number, setup in enumerate(SETUPS) if setup.worker == "release")
SENDS_HIDDEN = next(str(number) for number, setup in enumerate(SETUPS) if setup.hidden_states)
OWN_WINDOW = next(str(i) for i, setup in enumerate(SETUPS) if setup.worker == "release" and setup.window)
COPIES_BACK, COPIES_BACK_OF_FAKE, COPIES_AT_ONCE = (
    next(str(i) for i, setup in enumerate(SETUPS) if setup.worker == worker and setup.hicache == policy)
    for worker, policy in (("release", "write_back"), ("fake", "write_back"), ("release", "write_through"))
)
CONTROLLER, TREE = "managers.cache_controller", "mem_cache.unified_radix_cache"
PLANS = "layers.attention.triton_backend"
SAMPLES = "speculative.eagle_utils"
OFFSET = "send_output_token_logprobs_offset"
DEFECTS = {
    "a request's salt is not handed on": (
        (V1, "", "0", LOOP, "Scheduler.handle_generate_request", "drop-keyword", "extra_key", "0"),
        "scheduler:S22:request",
    ),
    "a turn of a session that nobody opened is taken": (
        (V1, "refusals", "0", LOOP, "Scheduler.handle_generate_request", "drop-call", "set_finish_with_abort", "0"),
        "scheduler:I40:request:refused",
    ),
    "who has ended is not filtered from its batch": (
        (V1, "", "0", LOOP, "Scheduler.update_running_batch", "drop-call", "filter_batch", "0"),
        "scheduler:I65:end",
    ),
    "KV that has slid out of the window is kept": (
        (V1, "", WINDOWED, BATCH, "ScheduleBatch.maybe_evict_swa", "drop-call", "_evict_swa", "0"),
        "scheduler:S16:window",
    ),
    "what the cache has of a window is passed over": (
        (
            *(V1, "", WINDOWED, "mem_cache.swa_radix_cache", "SWARadixCache._match_prefix_helper"),
            *("drop-assignment", "best_value_len", "2"),
        ),
        "scheduler:S15:prompt",
    ),
    "events are published again with the next ones": (
        (
            *(V1, "", PUBLISHES, "mem_cache.events", "KVCacheEventMixin.take_events"),
            *("drop-assignment", "kv_event_queue", "0"),
        ),
        "scheduler:S17:again",
    ),
    "a batch is handed the tokens of the one before": (
        (V1, "", "", RELAY, "FutureMap.alloc_future_indices", "minus-one", "bs", "0"),
        "scheduler:I05:input:other-tokens",
    ),
    "rows are not filtered with the batch": (
        (V1, "", "", BATCH, "ScheduleBatch.filter_batch", "drop-assignment", "req_pool_indices", "0"),
        "scheduler:I52:req_pool_indices",
    ),
    "lengths on the host are those of the step before": (
        (V1, "", "", "speculative.eagle_info_v2", FEEDS, "drop-assignment", "seq_lens_cpu", "0"),
        "scheduler:S13:mirror:seq_lens",
    ),
    "the sum of lengths is that of the step before": (
        (V1, "", "", "speculative.eagle_info_v2", FEEDS, "drop-assignment", "seq_lens_sum", "0"),
        "scheduler:S13:mirror:seq_lens_sum",
    ),
    "rows on the host are not filtered with the batch": (
        (NEWEST, "", "", BATCH, "ScheduleBatch.filter_batch", "drop-assignment", "req_pool_indices_cpu", "0"),
        "scheduler:S13:mirror:req_pool_indices",
    ),
    "a batch does not hear of the grammar that joins it": (
        (V1, "grammars", "", BATCH, "ScheduleBatch.merge_batch", "drop-assignment", "has_grammar", "0"),
        "scheduler:I60:unmasked",
    ),
    "rows of logprobs are not filtered with the batch": (
        (V1, "logprobs", "", BATCH, "ScheduleBatch.filter_batch", "drop-assignment", "top_logprobs_nums", "0"),
        "scheduler:X1:run_batch:IndexError",
    ),
    "the logprobs of the token before": (
        (V1, "logprobs", "", RESULTS, f"{MIXIN}process_batch_result_decode", "minus-one", "flat_idx", "0"),
        "scheduler:T6:top-logprobs",
    ),
    "the logprob of the next token": (
        (V1, "logprobs", "", RESULTS, f"{MIXIN}process_batch_result_decode", "plus-one", "j", "0"),
        "scheduler:X1:process_batch_result_decode:IndexError",
    ),
    "logprobs are sent again": (
        (V1, "logprobs", "", RESULTS, f"{MIXIN}stream_output_generation", "drop-assignment", OFFSET, "1"),
        "scheduler:T6:rows",
    ),
    "penalties are fed nothing": (
        (V1, "penalties", "", "speculative.eagle_info_v2", FEEDS, "drop-call", "cumulate_output_tokens", "0"),
        "scheduler:I67:verify",
    ),
    "a filter takes the penalties of another row": (
        (V1, "penalties", "", f"{PENALTIES}presence_penalty", PRESENCE, "minus-one", "keep_indices", "1"),
        "scheduler:I67:verify",
    ),
    "the plan of a sliding window begins a token too early": (
        (NEWEST, "", OWN_WINDOW, PLANS, "update_sliding_window_buffer", "minus-one", "window_kv_start_idx", "0"),
        "scheduler:I05:window:other-tokens",
    ),
    "logprobs of a prompt are those of the token behind": (
        (NEWEST, "", SENDS_HIDDEN, BATCH, "ScheduleBatch.prepare_for_extend", "plus-one", "global_start_idx", "0"),
        "scheduler:T6:prompt-logprobs",
    ),
    "a hidden state is that of the token behind": (
        (NEWEST, "", SENDS_HIDDEN, PROCESSOR, APPENDS_HIDDEN, "plus-one", "start", "0"),
        "scheduler:T6:hidden-states:last",
    ),
    "a verification of a release's own worker adds no penalties": (
        (NEWEST, "penalties", OWN_WORKER, SAMPLES, "eagle_sample", "drop-call", "add_", "0"),
        "scheduler:I67:verify",
    ),
    "a verification of a release's own worker has no bias": (
        (NEWEST, "penalties", OWN_WORKER, SAMPLES, "eagle_sample", "drop-call", "add_", "1"),
        "scheduler:I40:request:bias:another-token",
    ),
    "a verification of a release's own worker has no mask": (
        (NEWEST, "grammars", OWN_WORKER, SAMPLES, "eagle_sample", "drop-call", "apply", "0"),
        "scheduler:I39:request:by-itself",
    ),
    "what was copied to the host stays locked": (
        (
            *(NEWEST, "", COPIES_AT_ONCE, TREE, "UnifiedRadixCache._finish_write_through_ack"),
            *("drop-call", "dec_lock_ref", "0"),
        ),
        "scheduler:I66:slots:lost",
    ),
    "what is evicted from the host keeps its slots": (
        (
            *(NEWEST, "", COPIES_BACK, "mem_cache.unified_cache.components.full", "FullComponent.free_host_values"),
            *("drop-call", "free", "0"),
        ),
        "scheduler:I66:host-slots:lost",
    ),
    "without overlap lengths stay what they were": (
        (V2, "", WITHOUT_OVERLAP, LOOP, "Scheduler.run_batch", "drop-assignment", "seq_lens", "0"),
        "scheduler:I05:input:other-tokens",
    ),
    "without overlap the last batch is forgotten": (
        (V2, "", WITHOUT_OVERLAP, LOOP, "Scheduler.event_loop_normal", "drop-assignment", "last_batch", "0"),
        "scheduler:S1:request",
    ),
    "what was decoded beside a prefill is not claimed": (
        (NEWEST, "", MIXED, PROCESSOR, PREFILLED, "drop-assignment", "kv_committed_len", "0"),
        "scheduler:I05:full:a-rejected-draft",
    ),
    "what is decoded beside a prefill is where the launch before began": (
        (NEWEST, "", MIXED, RELAY, "resolve_forward_inputs", "drop-call", "resolve_mixed_spec_tails", "0"),
        "scheduler:I05:input:other-tokens",
    ),
    "a verification of spec v1 keeps what it rejects": (
        (V1, "", TREES_OF_V1, "speculative.eagle_info", VERIFY, "drop-call", "free", "0"),
        "scheduler:X1:raise_error_or_warn:ValueError",
    ),
    "a verification of spec v1 leaves its row as it was": (
        (V1, "", TREES_OF_V1, "speculative.eagle_info", VERIFY, "drop-call", "assign_req_to_token_pool_func", "0"),
        "scheduler:I05:full:other-tokens",
    ),
    "a draft of spec v1 does not give its slots back": (
        (V1, "", TREES_OF_V1, "speculative.eagle_worker", DRAFT, "drop-call", "restore_state", "0"),
        "scheduler:X1:alloc_token_slots:RuntimeError",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_a_feature_is_found(release: Callable[[str], SourceTree], name: str) -> None:
    (version, *defect), expected = DEFECTS[name]
    release(version)
    assert expected in shown(version, *defect)
    assert expected not in shown(version, *defect[:2], "managers", "", "", "", "0")


@pytest.mark.parametrize(
    "setup", [pytest.param(COPIES_BACK, marks=pytest.mark.slow), COPIES_BACK_OF_FAKE], ids=["release", "fake"]
)
def test_a_pass_that_does_not_wait_for_a_hierarchical_cache_is_found_on_both_sides(
    release: Callable[[str], SourceTree], setup: str
) -> None:
    release(V2)
    defect = CONTROLLER, "LayerLoadingEvent.complete", "drop-call", "record", "0"
    found = shown(V2, "", setup, *defect, schedules=3 * SCHEDULES)
    assert {"scheduler:I05:full:other-tokens", "scheduler:I27:host"} <= set(found)


def shown(version: str, feature: str, setup: str, *defect: str, schedules: int = SCHEDULES) -> list[str]:
    """The signatures that schedules show; see the program."""
    module = "property_tests.support.planted_schedules"
    command = [sys.executable, "-m", module, version, str(schedules), feature, setup, *defect]
    ended = subprocess.run(command, env=of_target(), check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    signatures: list[str] = json.loads(ended.stdout.splitlines()[-1])
    return signatures
