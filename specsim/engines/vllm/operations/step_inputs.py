"""How vLLM's V2 model runner prepares the inputs of a step, and what it does with what was sampled.

Host functions that launch one kernel each, and two kernels that read tables of addresses.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from specsim.contracts.contract import Sizes
from specsim.contracts.pointers import pointers_to
from specsim.contracts.provider import NotCalledError
from specsim.engines.vllm.operations.names import CoinTorch, Names

Tensor = torch.Tensor

INPUTS = "v1/worker/gpu/input_batch.py"
TABLES = "v1/worker/gpu/block_table.py"
VERIFIER = "v1/worker/gpu/spec_decode/rejection_sampler.py"

PAD_SLOT_ID = -1


def _expand(function: Any, _coins: CoinTorch, idx_mapping: Tensor, cu_num_logits: Tensor) -> tuple[Tensor, Tensor]:
    counts = cu_num_logits.diff()
    found: tuple[Tensor, Tensor] = function(idx_mapping, int(cu_num_logits[-1]), cu_num_logits, int(counts.max()))
    return found


def _prefill(
    function: Any,
    _coins: CoinTorch,
    input_ids: Tensor,
    next_prefill_tokens: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    all_token_ids: Tensor,
    prefill_len: Tensor,
    num_computed_tokens: Tensor,
) -> None:
    kernel = function.__globals__["_prepare_prefill_inputs_kernel"]
    ahead = next_prefill_tokens
    if "num_lookahead" not in kernel.arg_names:  # an older one looks one token ahead
        if len(ahead) > 1:
            raise NotCalledError
        ahead = ahead[0]
    of_state = (all_token_ids, prefill_len, num_computed_tokens)
    function(input_ids, ahead, idx_mapping, query_start_loc, *of_state)


def _positions(
    function: Any,
    _coins: CoinTorch,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    num_computed_tokens: Tensor,
    positions: Tensor,
    seq_lens: Tensor,
) -> None:
    function(idx_mapping, query_start_loc, num_computed_tokens, positions, seq_lens)


def _combine(
    function: Any,
    _coins: CoinTorch,
    input_ids: Tensor,
    idx_mapping: Tensor,
    last_sampled_tokens: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    prefill_len: Tensor,
    draft_tokens: Tensor,
    cu_num_logits: Tensor,
    num_new_sampled_tokens: int,
) -> Tensor:
    more = {"num_new_sampled_tokens": num_new_sampled_tokens}
    if "num_new_sampled_tokens" not in function.__code__.co_varnames:
        if num_new_sampled_tokens != 1:
            raise NotCalledError
        more = {}
    of_state = (last_sampled_tokens[:, None], query_start_loc, seq_lens, prefill_len, draft_tokens, cu_num_logits)
    found: Tensor = function(input_ids, idx_mapping, *of_state, int(cu_num_logits[-1]), **more)
    return found


def _gather_drafts(
    function: Any,
    _coins: CoinTorch,
    input_ids: Tensor,
    positions: Tensor,
    logits_indices: Tensor,
    expanded_idx_mapping: Tensor,
    expanded_local_pos: Tensor,
    prefill_len: Tensor,
) -> tuple[Tensor, Tensor]:
    of_rows = (logits_indices, expanded_idx_mapping, expanded_local_pos)
    found: tuple[Tensor, Tensor] = function(input_ids, positions, *of_rows, prefill_len)
    return found


def _flatten(
    kernel: Any, _coins: CoinTorch, sampled: Tensor, num_sampled: Tensor, cu_num_logits: Tensor, flat_sampled: Tensor
) -> None:
    kernel[(len(num_sampled),)](flat_sampled, sampled, sampled.stride(0), num_sampled, cu_num_logits)


def _count(
    function: Any,
    _coins: CoinTorch,
    num_sampled: Tensor,
    seq_lens: Tensor,
    cu_num_logits: Tensor,
    idx_mapping: Tensor,
    prefill_len: Tensor,
) -> Tensor:
    _num_sampled, num_rejected = function(num_sampled, seq_lens, cu_num_logits, idx_mapping, prefill_len)
    found: Tensor = num_rejected
    return found


def _update(
    function: Any,
    _coins: CoinTorch,
    idx_mapping: Tensor,
    num_computed_tokens: Tensor,
    last_sampled_tokens: Tensor,
    output_bin_counts: Tensor,
    sampled_tokens: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    query_start_loc: Tensor,
    all_token_ids: Tensor,
    total_len: Tensor,
) -> None:
    of_step = (sampled_tokens, num_sampled, num_rejected, query_start_loc)
    of_state = (num_computed_tokens, last_sampled_tokens[:, None], output_bin_counts)
    function(idx_mapping, *of_state, *of_step, all_token_ids, total_len)


def _update_computed(
    function: Any, _coins: CoinTorch, idx_mapping: Tensor, num_computed_tokens: Tensor, query_start_loc: Tensor
) -> None:
    function(idx_mapping, num_computed_tokens, query_start_loc)


def _strides(tables: Tensor) -> Tensor:
    return torch.tensor([table.stride(0) for table in tables], dtype=torch.int64, device=tables.device)


def _gather_tables(
    kernel: Any,
    _coins: CoinTorch,
    idx_mapping: Tensor,
    block_tables: Tensor,
    num_blocks: Tensor,
    num_computed_tokens: Tensor,
    sliding_window_reach: Tensor,
    block_sizes: Tensor,
    padded_bs: int,
    input_block_tables: Tensor,
) -> None:
    groups, bs = len(block_tables), len(idx_mapping)
    arguments: dict[str, Any] = {
        "batch_idx_to_req_idx": idx_mapping,
        "src_block_table_ptrs": pointers_to(list(block_tables)),
        "dst_block_table_ptrs": pointers_to(list(input_block_tables)),
        "block_table_strides": _strides(block_tables),
        "num_blocks_ptr": num_blocks,
        "num_blocks_stride": num_blocks.stride(0),
        "num_reqs": bs,
        "max_num_blocks": block_tables.shape[2],
        "num_computed_tokens_ptr": num_computed_tokens,
        "sliding_window_reach_ptr": sliding_window_reach,
        "block_sizes_ptr": block_sizes,
        "MASK_SLIDING_WINDOW": bool((sliding_window_reach > 0).any()),
        "BLOCK_SIZE": 8,  # few, so that rows have more than one
    }
    if arguments["MASK_SLIDING_WINDOW"] and "MASK_SLIDING_WINDOW" not in kernel.arg_names:
        raise NotCalledError
    kernel[(groups, padded_bs)](**{name: arguments[name] for name in kernel.arg_names})


def _map_slots(
    kernel: Any,
    _coins: CoinTorch,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    positions: Tensor,
    block_tables: Tensor,
    block_sizes: Tensor,
    slot_mapping_enabled: Tensor,
    padded_tokens: int,
    slot_mappings: Tensor,
) -> None:
    arguments: dict[str, Any] = {
        "max_num_tokens": padded_tokens,
        "idx_mapping": idx_mapping,
        "query_start_loc": query_start_loc,
        "pos": positions,
        "block_table_ptrs": pointers_to(list(block_tables)),
        "block_table_strides": _strides(block_tables),
        "block_sizes": block_sizes,
        "kernel_block_sizes": block_sizes,
        "slot_mapping_enabled": slot_mapping_enabled,
        "dcp_sharded": torch.ones_like(slot_mapping_enabled),
        "slot_mappings_ptr": slot_mappings,
        "slot_mappings_stride": slot_mappings.stride(0),
        "cp_rank": 0,
        "CP_SIZE": 1,
        "CP_INTERLEAVE": 1,
        "PAD_ID": PAD_SLOT_ID,
        "TRITON_BLOCK_SIZE": 4,  # few, so that requests have more than one
    }
    if not bool(slot_mapping_enabled.all()) and "slot_mapping_enabled" not in kernel.arg_names:
        raise NotCalledError
    kernel[(len(block_tables), len(idx_mapping) + 1)](**{name: arguments[name] for name in kernel.arg_names})


def _flag(name: str, value: int) -> Callable[[Sizes], bool]:
    return lambda sizes: sizes[name] == value


_STATE = ("all_token_ids", "prefill_len", "num_computed_tokens")
_COMBINED = (
    *("input_ids", "idx_mapping", "last_sampled_tokens", "query_start_loc", "seq_lens", "prefill_len"),
    *("draft_tokens", "cu_num_logits", "num_logits"),
)
_UPDATED = (
    *("idx_mapping", "num_computed_tokens", "last_sampled_tokens", "output_bin_counts", "sampled_tokens"),
    *("num_sampled", "num_rejected", "query_start_loc", "all_token_ids", "total_len"),
)
_GATHERED = (
    *("batch_idx_to_req_idx", "src_block_table_ptrs", "dst_block_table_ptrs", "block_table_strides"),
    *("num_blocks_ptr", "num_blocks_stride", "num_reqs"),
)
_WINDOWED = ("num_computed_tokens_ptr", "sliding_window_reach_ptr", "block_sizes_ptr", "MASK_SLIDING_WINDOW")
_MAPPED = (
    *("max_num_tokens", "idx_mapping", "query_start_loc", "pos", "block_table_ptrs", "block_table_strides"),
    "block_sizes",
)
_SLOTS = (
    *("slot_mappings_ptr", "slot_mappings_stride", "cp_rank", "CP_SIZE", "CP_INTERLEAVE", "PAD_ID"),
    "TRITON_BLOCK_SIZE",
)
_DRAFTS_IN_BATCH = (
    *("input_ids", "positions", "logits_indices", "expanded_idx_mapping", "expanded_local_pos"),
    "prefill_len",
)

IMPLEMENTATIONS = (
    Names(
        "expand_idx_mapping",
        ("expand_idx_mapping",),
        INPUTS,
        (("idx_mapping", "total_num_logits", "cu_num_logits", "max_expand_len"),),
        _expand,
    ),
    Names(
        "prepare_prefill_inputs",
        ("prepare_prefill_inputs",),
        INPUTS,
        (("input_ids", "next_prefill_tokens", "idx_mapping", "query_start_loc", *_STATE),),
        _prefill,
    ),
    Names(
        "prepare_pos_seq_lens",
        ("prepare_pos_seq_lens",),
        INPUTS,
        (("idx_mapping", "query_start_loc", "num_computed_tokens", "pos", "seq_lens"),),
        _positions,
    ),
    *(
        Names(
            "combine_sampled_and_draft_tokens",
            ("combine_sampled_and_draft_tokens",),
            INPUTS,
            (_COMBINED, (*_COMBINED, "num_new_sampled_tokens")),
            _combine,
            variant,
            _flag("drafts_behind_prompt", int(bool(variant))),
            since=since,
        )
        for variant, since in (("", ""), ("behind-prompt", "0.25.0"))
    ),
    Names("gather_draft_sampled", ("gather_draft_sampled",), VERIFIER, (_DRAFTS_IN_BATCH,), _gather_drafts),
    Names(
        "flatten_sampled",
        ("_flatten_sampled_kernel",),
        VERIFIER,
        (("flat_sampled_ptr", "sampled_ptr", "sampled_stride", "num_sampled_ptr", "cu_num_logits_ptr"),),
        _flatten,
    ),
    Names(
        "get_num_sampled_and_rejected",
        ("get_num_sampled_and_rejected",),
        INPUTS,
        (("num_sampled", "seq_lens", "cu_num_logits", "idx_mapping", "prefill_len"),),
        _count,
    ),
    *(
        Names(
            "post_update",
            ("post_update",),
            INPUTS,
            (_UPDATED, (*_UPDATED, "draft_tokens", "draft_tokens_out")),
            _update,
            variant,
            _flag("has_padding", int(bool(variant))),
            since=since,
        )
        for variant, since in (("", ""), ("left-alone", "0.23.0"))
    ),
    Names(
        "post_update_num_computed_tokens",
        ("post_update_num_computed_tokens",),
        INPUTS,
        (("idx_mapping", "num_computed_tokens", "query_start_loc"),),
        _update_computed,
    ),
    Names(
        "gather_block_tables",
        ("_gather_block_tables_kernel",),
        TABLES,
        (
            (*_GATHERED, "max_num_blocks", "BLOCK_SIZE"),
            (*_GATHERED, "BLOCK_SIZE"),
            (*_GATHERED, *_WINDOWED, "BLOCK_SIZE"),
        ),
        _gather_tables,
    ),
    *(
        Names(
            "compute_slot_mappings",
            ("_compute_slot_mappings_kernel",),
            TABLES,
            (
                (*_MAPPED, *_SLOTS),
                (*_MAPPED, "kernel_block_sizes", "slot_mapping_enabled", *_SLOTS),
                (*_MAPPED, "kernel_block_sizes", "slot_mapping_enabled", "dcp_sharded", *_SLOTS),
                (*_MAPPED, "slot_mapping_enabled", "dcp_sharded", *_SLOTS),
            ),
            _map_slots,
            variant,
            _flag("has_padding", int(bool(variant))),
            since=since,
        )
        for variant, since in (("", ""), ("left-alone", "0.31.0"))
    ),
)
