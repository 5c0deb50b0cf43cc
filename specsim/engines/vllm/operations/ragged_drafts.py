"""Which functions of vLLM implement the operations of ragged drafts, and how they are called.

A table for all releases. A kernel, a host function that launches it, and the whole of `rejection_sample` are each
looked for by name and taken only with parameters that are known here; anything else is reported as drift.
"""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes
from specsim.engines.vllm.operations.names import CoinTorch, Names, power_of_two

Tensor = torch.Tensor

SAMPLER = "v1/sample/rejection_sampler.py"
UTILS = "v1/spec_decode/utils.py"


def launch_greedy(
    kernel: Any,
    _coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    target_argmax: Tensor,
    bonus_token_ids: Tensor,
    is_greedy: Tensor,
    num_steps: int,
    output_token_ids: Tensor,
) -> None:
    absent: dict[str, Any] = dict.fromkeys(("uniform_probs_ptr", "synthetic_conditional_rates_ptr"))
    more = absent | {"SYNTHETIC_MODE": False} if "SYNTHETIC_MODE" in kernel.arg_names else {}
    kernel[(len(is_greedy),)](
        output_token_ids,
        cu_num_draft_tokens,
        draft_token_ids,
        target_argmax,
        bonus_token_ids,
        is_greedy,
        num_steps,
        **more,
    )


def launch_rejection(
    kernel: Any,
    _coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    recovered_token_ids: Tensor,
    uniform_probs: Tensor,
    is_greedy: Tensor,
    has_draft_probs: int,
    num_steps: int,
    output_token_ids: Tensor,
) -> None:
    is_synthetic = "SYNTHETIC_MODE" in kernel.arg_names
    more = {"synthetic_conditional_rates_ptr": None, "SYNTHETIC_MODE": False} if is_synthetic else {}
    kernel[(len(is_greedy),)](
        output_token_ids,
        cu_num_draft_tokens,
        draft_token_ids,
        draft_probs if has_draft_probs else None,
        target_probs,
        bonus_token_ids,
        recovered_token_ids,
        uniform_probs,
        is_greedy,
        num_steps,
        target_probs.shape[1],
        NO_DRAFT_PROBS=not has_draft_probs,
        **more,
    )


def _metadata(is_greedy: Tensor, greedy_temperature: float) -> SimpleNamespace:
    temperature = torch.where(is_greedy, greedy_temperature, 1.0)
    return SimpleNamespace(
        all_greedy=bool(is_greedy.all()),
        all_random=not bool(is_greedy.any()),
        temperature=temperature.to(torch.float32),
        generators={},
    )


def counts_of(ends: Tensor) -> list[int]:
    return ends.diff(prepend=ends.new_zeros(1)).tolist()


def _recovered(
    function: Any,
    coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    race: Tensor,
    has_draft_probs: int,
) -> Tensor:
    coins.race = race
    counts = counts_of(cu_num_draft_tokens)
    metadata = SimpleNamespace(generators={})
    probs = (draft_probs if has_draft_probs else None, target_probs)
    found: Tensor = function(
        max(counts), counts, cu_num_draft_tokens, draft_token_ids, *probs, metadata, target_probs.device
    )
    return found


def _whole(
    function: Any,
    coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    draft_token_ids: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    bonus_token_ids: Tensor,
    uniform_probs: Tensor,
    race: Tensor,
    is_greedy: Tensor,
    has_draft_probs: int,
    num_steps: int,
) -> Tensor:
    coins.race, coins.uniform = race, uniform_probs
    namespace = function.__globals__
    # Newer ones take logits and make probabilities of them: those get the logarithm.
    scores = target_probs.log() if "target_logits" in function.__code__.co_varnames else target_probs
    found: Tensor = function(
        draft_token_ids,
        counts_of(cu_num_draft_tokens),
        num_steps,
        cu_num_draft_tokens,
        draft_probs if has_draft_probs else None,
        scores,
        bonus_token_ids[:, None].contiguous(),
        _metadata(is_greedy, float(namespace["GREEDY_TEMPERATURE"])),
    )
    return found


def _expand(
    function: Any,
    _coins: CoinTorch,
    values: Tensor,
    cu_num_draft_tokens: Tensor,
    replace_from: int,
    replace_to: int,
) -> Tensor:
    count = int(cu_num_draft_tokens[-1])
    found: Tensor = function(values, cu_num_draft_tokens, count, replace_from=replace_from, replace_to=replace_to)
    return found


def _inputs(
    kernel: Any,
    _coins: CoinTorch,
    cu_num_draft_tokens: Tensor,
    valid_sampled_tokens_count: Tensor,
    query_start_loc: Tensor,
    token_indices_to_sample: Tensor,
    num_rejected_tokens: Tensor,
) -> None:
    bs = len(cu_num_draft_tokens)
    outputs = (token_indices_to_sample, num_rejected_tokens)
    kernel[(bs,)](cu_num_draft_tokens, valid_sampled_tokens_count, query_start_loc, *outputs, bs)


def _next_token(
    kernel: Any,
    _coins: CoinTorch,
    sampled_token_ids: Tensor,
    discard_request_mask: Tensor,
    backup_next_token_ids: Tensor,
    vocab_size: int,
    next_token_ids: Tensor,
    valid_sampled_tokens_count: Tensor,
) -> None:
    bs, width = sampled_token_ids.shape
    kernel[(bs,)](
        sampled_token_ids,
        discard_request_mask,
        backup_next_token_ids,
        next_token_ids,
        valid_sampled_tokens_count,
        vocab_size,
        width,
        bs,
        sampled_token_ids.stride(0),
        BLOCK_SIZE_TOKENS=power_of_two(width),
    )


def _step(
    function: Any,
    _coins: CoinTorch,
    positions: Tensor,
    block_table: Tensor,
    seq_lens: Tensor,
    page_size: int,
    max_model_len: int,
    padded_bs: int,
    clamped_positions: Tensor,
    slot_mapping: Tensor,
) -> None:
    outputs = (clamped_positions, slot_mapping)
    function(positions, block_table, seq_lens, page_size, max_model_len, *outputs, input_batch_size=padded_bs)


def _draft_inputs(
    kernel: Any,
    _coins: CoinTorch,
    target_token_ids: Tensor,
    target_positions: Tensor,
    next_token_ids: Tensor,
    query_start_loc: Tensor,
    query_end_loc: Tensor,
    padding_token_id: int,
    parallel_drafting_token_id: int,
    num_padding_slots: int,
    shift_input_ids: int,
    input_ids: Tensor,
    positions: Tensor,
    is_rejected: Tensor,
    is_masked: Tensor,
    new_token_indices: Tensor,
    hidden_state_mapping: Tensor,
) -> None:
    longest = int(query_start_loc.diff().max()) + num_padding_slots
    block = min(4, power_of_two(longest))  # few, so that requests have more than one block
    kernel[(len(next_token_ids), -(-longest // block))](
        target_token_ids,
        target_positions,
        next_token_ids,
        input_ids,
        positions,
        is_rejected,
        is_masked,
        new_token_indices,
        hidden_state_mapping,
        query_start_loc,
        query_end_loc,
        padding_token_id,
        parallel_drafting_token_id,
        len(target_token_ids),
        num_padding_slots,
        bool(shift_input_ids),
        BLOCK_SIZE_TOKENS=block,
    )


def _block_inputs(
    kernel: Any,
    _coins: CoinTorch,
    next_token_ids: Tensor,
    target_positions: Tensor,
    query_start_loc: Tensor,
    num_rejected: Tensor,
    block_table: Tensor,
    mask_token_id: int,
    page_size: int,
    num_steps: int,
    has_rejected: int,
    block_ids: Tensor,
    block_positions: Tensor,
    block_slots: Tensor,
    context_positions: Tensor,
    context_slots: Tensor,
    sample_indices: Tensor,
) -> None:
    longest = int(query_start_loc.diff().max()) + num_steps + 1
    block = min(4, power_of_two(longest))  # few, so that requests have more than one block
    kernel[(len(next_token_ids), -(-longest // block))](
        *(next_token_ids, target_positions, block_ids, context_positions, block_positions, context_slots, block_slots),
        *(sample_indices, block_table, block_table.stride(0), query_start_loc, num_rejected if has_rejected else 0),
        *(mask_token_id, page_size, num_steps + 1, num_steps, len(target_positions)),
        BLOCK_SIZE=block,
        HAS_NUM_REJECTED=bool(has_rejected),
    )


def _usual(sizes: Sizes) -> bool:
    return not sizes["zero_coins"] and not sizes["has_placeholders"]


def _with_zeros(sizes: Sizes) -> bool:
    return bool(sizes["zero_coins"]) and not sizes["has_placeholders"]


def _with_placeholders(sizes: Sizes) -> bool:
    return bool(sizes["has_placeholders"]) and not sizes["zero_coins"]


_VERIFIED = ("output_token_ids_ptr", "cu_num_draft_tokens_ptr", "draft_token_ids_ptr")
_GREEDY = (*_VERIFIED, "target_argmax_ptr", "bonus_token_ids_ptr", "is_greedy_ptr", "max_spec_len")
_SYNTHETIC = ("uniform_probs_ptr", "synthetic_conditional_rates_ptr", "SYNTHETIC_MODE")
_RANDOM = (
    *(*_VERIFIED, "draft_probs_ptr", "target_probs_ptr", "bonus_token_ids_ptr", "recovered_token_ids_ptr"),
    *("uniform_probs_ptr", "is_greedy_ptr", "max_spec_len", "vocab_size"),
)
_DRAFTS = ("draft_token_ids", "num_draft_tokens", "max_spec_len", "cu_num_draft_tokens", "draft_probs")
_SAMPLE = ("bonus_token_ids", "sampling_metadata")
_MORE = ("synthetic_mode", "synthetic_conditional_rates", "use_fp64_gumbel")
_FLY = ("fly_window_size", "fly_entropy_threshold", "fly_entropy_top_k")
_RECOVER = (
    *("max_spec_len", "num_draft_tokens", "cu_num_draft_tokens", "draft_token_ids", "draft_probs", "target_probs"),
    *("sampling_metadata", "device"),
)
_PADDED = ("cu_num_draft_tokens_ptr", "valid_sampled_tokens_count_ptr", "query_start_loc_gpu_ptr")

_COPY = (
    *("target_token_ids_ptr", "target_positions_ptr", "next_token_ids_ptr", "out_input_ids_ptr", "out_positions_ptr"),
    *("out_is_rejected_token_mask_ptr", "out_is_masked_token_mask_ptr", "out_new_token_indices_ptr"),
    *("out_hidden_state_mapping_ptr", "query_start_loc_ptr", "query_end_loc_ptr", "padding_token_id"),
    *("parallel_drafting_token_id", "total_input_tokens", "num_padding_slots_per_request", "shift_input_ids"),
    "BLOCK_SIZE_TOKENS",
)

_NAMED: tuple[Names, ...] = (
    Names(
        "verify_ragged_greedy",
        ("rejection_greedy_sample_kernel",),
        SAMPLER,
        (_GREEDY, (*_GREEDY, *_SYNTHETIC)),
        launch_greedy,
    ),
    Names(
        "verify_ragged_rejection",
        ("rejection_random_sample_kernel",),
        SAMPLER,
        (
            (*_RANDOM, "NO_DRAFT_PROBS"),
            (*_RANDOM, "synthetic_conditional_rates_ptr", "NO_DRAFT_PROBS", "SYNTHETIC_MODE"),
        ),
        launch_rejection,
        accepts=_usual,
    ),
    Names(
        "sample_recovered_tokens",
        ("sample_recovered_tokens",),
        SAMPLER,
        (_RECOVER, (*_RECOVER, "use_fp64_gumbel")),
        _recovered,
    ),
    Names(
        "verify_ragged_sampled",
        ("rejection_sample",),
        SAMPLER,
        (
            (*_DRAFTS, "target_probs", *_SAMPLE),
            (*_DRAFTS, "target_logits", *_SAMPLE),
            (*_DRAFTS, "target_logits", *_SAMPLE, *_MORE),
            (*_DRAFTS, "target_logits", *_SAMPLE, *_MORE, *_FLY),
        ),
        _whole,
        accepts=_usual,
    ),
    Names(
        "expand_to_drafts",
        ("expand_batch_to_tokens",),
        SAMPLER,
        (("x", "cu_num_tokens", "num_tokens", "replace_from", "replace_to"),),
        _expand,
    ),
    Names(
        "prepare_inputs_padded",
        ("eagle_prepare_inputs_padded_kernel",),
        UTILS,
        ((*_PADDED, "token_indices_to_sample_ptr", "num_rejected_tokens_gpu_ptr", "num_reqs"),),
        _inputs,
    ),
    Names(
        "prepare_next_token_padded",
        ("eagle_prepare_next_token_padded_kernel",),
        UTILS,
        (
            (
                *("sampled_token_ids_ptr", "discard_request_mask_ptr", "backup_next_token_ids_ptr"),
                *("next_token_ids_ptr", "valid_sampled_tokens_count_ptr", "vocab_size", "num_sampled_tokens_per_req"),
                *("num_reqs", "stride_sampled_token_ids", "BLOCK_SIZE_TOKENS"),
            ),
        ),
        _next_token,
    ),
    Names(
        "step_slot_mapping",
        ("eagle_step_update_slot_mapping_and_metadata",),
        UTILS,
        (
            (
                *("positions_1d", "block_table_tensor", "seq_lens", "block_size", "max_model_len"),
                *("out_clamped_positions", "out_slot_mapping", "input_batch_size"),
            ),
        ),
        _step,
    ),
    Names(
        "expand_block_inputs",
        ("copy_and_expand_dflash_inputs_kernel",),
        UTILS,
        (
            (
                *("next_token_ids_ptr", "target_positions_ptr", "out_input_ids_ptr", "out_context_positions_ptr"),
                *("out_query_positions_ptr", "out_context_slot_mapping_ptr", "out_query_slot_mapping_ptr"),
                *("out_token_indices_ptr", "block_table_ptr", "block_table_stride", "query_start_loc_ptr"),
                *("num_rejected_tokens_ptr", "parallel_drafting_token_id", "block_size", "num_query_per_req"),
                *("num_speculative_tokens", "total_input_tokens", "BLOCK_SIZE", "HAS_NUM_REJECTED"),
            ),
        ),
        _block_inputs,
    ),
    Names("expand_draft_inputs", ("copy_and_expand_eagle_inputs_kernel",), UTILS, (_COPY,), _draft_inputs),
)

# What is wrong at uniform draws of 0 alone, or at placeholders, is tested by itself, or it would hide whatever else is.
IMPLEMENTATIONS = (
    *_NAMED,
    *(
        replace(names, variant=variant, accepts=accepts)
        for variant, accepts in (("coin-0", _with_zeros), ("placeholder", _with_placeholders))
        for names in _NAMED
        if names.accepts is _usual
    ),
)
