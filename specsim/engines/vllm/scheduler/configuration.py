"""The configuration of an engine of vLLM, as far as its scheduler and its loop read it.

What is not given and not known here is drift, and named: see `specsim.world.fakes`.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

from specsim.engines.vllm.scheduler.connector import Outside, connector
from specsim.world.fakes import Answers, Fake, nothing, said
from specsim.world.hash_model import VOCABULARY
from specsim.world.scheduler import Setup

CONTEXT = 240
_ABSENT = (
    *("diffusion_config", "ec_transfer_config", "lora_config"),
    *("mamba_config", "offload_config", "reasoning_config", "watermark_config"),
)
_OTHER_DRAFTS = ("use_dflash", "use_dspark", "use_multi_module_mtp", "use_ngram", "uses_draft_model", "uses_ngram")
_NOT_OF_THE_MODEL = (
    "enable_prompt_embeds",
    "enable_return_routed_experts",
    "is_diffusion",
    "enable_trace_replay",
    "is_encoder_decoder",
    "is_moe",
    "is_multimodal_model",
    "return_sampling_mask",
    "skip_tokenizer_init",
    "supports_multimodal_inputs",
    "use_fp64_gumbel",
    "uses_mrope",
    "uses_xdrope",
)


def blocks_of(setup: Setup) -> int:
    """Blocks of the KV cache. The first one is nobody's."""
    return setup.slots // setup.page_size + 1


def configuration(
    setup: Setup,
    answers: Answers,
    scheduler: Any,
    outside: Outside | None = None,
    *,
    is_v2: bool,
    publishes: bool = False,
) -> Fake:
    """`scheduler` is the class, `outside` is what a connector has KV of, if there is one, and `is_v2` says which of the
    two model runners of a release there would be. KV cache events are made where it `publishes`. What a release
    computes of this is not in it yet: see `runners.complete`.
    """

    def fake(name: str, **given: Any) -> Fake:
        return Fake(name, answers, **given)

    steps = setup.steps
    eagle = fake(
        "speculative_config",
        method="eagle",
        num_speculative_tokens=steps,
        num_speculative_tokens_per_batch_size=None,
        max_num_new_slots_for_drafting=0,
        parallel_drafting=False,
        disable_eagle_block_drop=False,
        disable_lookahead_block_hashes=not setup.lookahead_hashes,
        rejection_sample_method="standard",
        enable_adaptive_verification=False,
        **{name: said(True) for name in ("use_eagle", "use_eagle_block_drop", "needs_eagle_block_drop")},
        **{name: said(False) for name in _OTHER_DRAFTS},
    )
    return fake(
        "vllm_config",
        model_config=fake(
            "model_config",
            max_model_len=setup.context or CONTEXT,
            runner_type="generate",
            dtype=torch.float32,
            get_vocab_size=said(VOCABULARY),
            logprobs_mode="raw_logprobs",
            **dict.fromkeys(("hf_config", "logits_processors", "rswa_window")),
            **dict.fromkeys(_NOT_OF_THE_MODEL, False),
        ),
        cache_config=fake(
            "cache_config",
            block_size=setup.page_size,
            num_gpu_blocks=blocks_of(setup),
            enable_prefix_caching=setup.radix,
            prefix_caching_hash_algo="sha256",
            hash_block_size=None,
            prefix_match_unit=None,
            mamba_cache_mode="none",
            enable_mamba_fine_grained_prefix_cache=False,
            enable_mamba_shared_prefix_checkpoint=False,
            cache_dtype="auto",
            use_replayssm=False,
            kv_sharing_fast_prefill=False,
        ),
        scheduler_config=fake(
            "scheduler_config",
            max_num_seqs=setup.rows,
            max_num_active_seqs=None,
            max_num_scheduled_tokens=None,
            max_num_batched_tokens=setup.chunk,
            long_prefill_token_threshold=0,
            long_prefill_token_threshold_adaptive=False,
            policy="priority" if setup.priorities else "fcfs",
            watermark=setup.watermark,
            scheduler_reserve_full_isl=True,
            prefill_schedule_interval=1,
            enable_chunked_prefill=True,
            async_scheduling=setup.overlap,
            disable_chunked_mm_input=False,
            disable_hybrid_kv_cache_manager=False,
            max_num_partial_prefills=1,
            get_scheduler_cls=said(scheduler),
        ),
        parallel_config=fake(
            "parallel_config",
            pipeline_parallel_size=setup.stages,
            data_parallel_size=1,
            data_parallel_index=0,
            data_parallel_rank=0,
            data_parallel_rank_local=0,
            decode_context_parallel_size=1,
            prefill_context_parallel_size=1,
            tensor_parallel_size=1,
            distributed_executor_backend="mp",
            cp_kv_cache_interleave_size=1,
            enable_batch_sharded_sampling=False,
        ),
        observability_config=fake(
            "observability_config",
            per_request_spec_decode_metrics=None,
            kv_cache_metrics=False,
            enable_mfu_metrics=False,
            enable_logging_iteration_details=False,
            cudagraph_metrics=False,
        ),
        compilation_config=fake(
            "compilation_config",
            cudagraph_mode=None,
            mode=None,
            resolve_cudagraph_mode_and_sizes=nothing,
            static_forward_context={},
        ),
        load_config=fake("load_config"),
        structured_outputs_config=fake(
            "structured_outputs_config", reasoning_parser="", reasoning_parser_plugin="", enable_in_reasoning=False
        ),
        ec_manager_config=fake("ec_manager_config", get_encoder_cache_manager_obj=said(None)),
        aux_output_config=fake("aux_output_config", enabled=False),
        speculative_config=eagle if steps else None,
        kv_transfer_config=fake(
            "kv_transfer_config",
            make=functools.partial(connector, outside),
            engine_id="engine",
            is_kv_consumer=True,
            is_kv_producer=True,
            kv_connector_extra_config={},
            kv_load_failure_policy="recompute",
            has_connector=said(False),
        )
        if outside is not None
        else None,
        kv_events_config=fake("kv_events_config", enable_kv_cache_events=True, publisher="null") if publishes else None,
        **dict.fromkeys(_ABSENT),
        use_v2_model_runner=is_v2,
        is_encoder_only=False,
        is_mm_encoder_only=False,
    )
