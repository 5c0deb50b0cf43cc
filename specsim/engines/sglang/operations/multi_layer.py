"""Draft models of several layers: windows of tokens and hidden states that move by one position a layer."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.provider import NotCalledError
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    by_option,
    host_call,
    named,
    option_kernel,
    running_batch,
    words,
)
from specsim.engines.sglang.where import places

_STATE = "input_ids positions hidden_states out_cache_loc extend_seq_lens extend_start_loc"
_OLD_STATE = " ".join(f"old_{name}" for name in words(_STATE))
_ROTATE = "input_ids extend_start_loc extend_seq_lens topk_index select_index"
_STASH = (
    "src_tokens src_hiddens src_row_ends num_available req_pool_indices stash_tokens stash_hiddens stash_valid_lens"
)
_WIDENED = (
    "input_ids hidden_states predict verify_hiddens stash_tokens stash_hiddens stash_valid_lens seq_lens "
    "req_pool_indices"
)
_POOLS = "req_pool_indices req_to_token req_to_hidden_states_pool"


def _launch_rotate(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, _ROTATE))


def _launch_pool(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    pool = t["req_to_hidden_states_pool"]
    inputs = (t["hidden_states"], t["req_pool_indices"], pool, pool.shape[1], len(t["req_pool_indices"]))
    return host_call(*inputs, t["extend_seq_lens"], t["extend_start_loc"])


def _launch_new_state(sizes: Sizes, t: Tensors) -> KernelLaunch:
    tensors = named(t, f"next_token_ids {_OLD_STATE} {_STATE} seq_lens padding_lens")
    return host_call(*tensors, len(t["seq_lens"]), sizes["step"], *named(t, _POOLS))


def _launch_stash(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, _STASH), bool(sizes["set_valid"]))


def _launch_widened(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, _WIDENED), sizes["num_draft_tokens"])


KERNELS: tuple[KernelNames, ...] = (
    option_kernel("rotate_input_ids", "rotate_input_ids", _ROTATE, _launch_rotate),
    option_kernel(
        "assign_hidden_states_pool",
        "assign_hidden_states_pool_triton",
        "hidden_states req_pool_indices req_to_hidden_states_pool pool_size num_seqs extend_seq_lens extend_start_loc",
        _launch_pool,
    ),
    KernelNames(
        "assign_new_state",
        places("assign_new_state_triton"),
        (words(f"next_token_ids {_OLD_STATE} {_STATE} seq_lens padding_lens num_seqs step {_POOLS}"),),
        _launch_new_state,
        # The graphs that it runs in have windows of one width.
        accepts=lambda sizes: (
            sizes["num_old"] == sizes["bs"] * (sizes["num_draft_tokens"] + sizes["step"] + sizes["gap"])
        ),
        cost=4,
        reach=by_option,
    ),
    option_kernel(
        "stash_append_boundary_state", "stash_append_boundary_state_triton", f"{_STASH} set_valid", _launch_stash
    ),
    option_kernel(
        "fill_widened_draft_extend_inputs",
        "fill_widened_draft_extend_inputs_triton",
        f"{_WIDENED} draft_token_num",
        _launch_widened,
    ),
)


def _after_verify(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The multi-layer worker, before the first layer extends the draft."""
    forward_batch = running_batch(
        input_ids=tensors["input_ids"], spec_info=SimpleNamespace(hidden_states=tensors["hidden_states"])
    )
    worker = SimpleNamespace(
        speculative_num_draft_tokens=sizes["num_draft_tokens"],
        draft_extend_num_front_tokens=tensors["stash_tokens"].shape[1],
        boundary_kv_stash_tokens=tensors["stash_tokens"],
        boundary_kv_stash_hiddens=tensors["stash_hiddens"],
        boundary_kv_stash_valid_lens=tensors["stash_valid_lens"],
    )
    return {
        "torch": torch,
        "self": worker,
        "batch": running_batch(seq_lens=tensors["seq_lens"], req_pool_indices=tensors["req_pool_indices"]),
        "forward_batch": forward_batch,
        "predict": tensors["predict"],
        "verify_hiddens": tensors["verify_hiddens"],
    }


def _after_prefill(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The multi-layer worker, before and after the draft's prefill; a prompt's token is put at its end."""
    starts, lens = tensors["extend_start_loc"], tensors["extend_seq_lens"]
    if bool((tensors["select_index"] != (starts + lens - 1).clamp(min=starts)).any()):
        raise NotCalledError("a prefill selects the last row of each prompt")
    return {
        "batch": running_batch(),
        "forward_batch": running_batch(input_ids=tensors["input_ids"], extend_start_loc=starts, extend_seq_lens=lens),
        "next_token_ids": tensors["topk_index"],
    }


def _stash(tensors: Tensors) -> dict[str, Any]:
    return {
        "draft_extend_num_front_tokens": tensors["stash_tokens"].shape[1],
        "boundary_kv_stash_tokens": tensors["stash_tokens"],
        "boundary_kv_stash_hiddens": tensors["stash_hiddens"],
        "boundary_kv_stash_valid_lens": tensors["stash_valid_lens"],
    }


def _seeding(_sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The stash's first rows, from a prompt."""
    forward_batch = running_batch(
        input_ids=tensors["src_tokens"],
        extend_seq_lens=tensors["num_available"],
        extend_start_loc=tensors["src_row_ends"] - tensors["num_available"],
        req_pool_indices=tensors["req_pool_indices"],
    )
    worker = SimpleNamespace(**_stash(tensors))
    return {
        "torch": torch,
        "self": worker,
        "forward_batch": forward_batch,
        "target_hidden_states": tensors["src_hiddens"],
    }


def _updating(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The stash after a verification: the accepted rows of windows of one width, side by side."""
    ends, taken = tensors["src_row_ends"], tensors["num_available"]
    width = sizes["num_draft_tokens"]
    if bool((ends - taken != torch.arange(len(taken), device=taken.device) * width).any()):
        raise NotCalledError("verified rows are windows of num_draft_tokens, side by side")
    return {
        "torch": torch,
        "self": SimpleNamespace(speculative_num_draft_tokens=width, **_stash(tensors)),
        "batch": running_batch(seq_lens=taken, req_pool_indices=tensors["req_pool_indices"]),
        "predict": tensors["src_tokens"],
        "verify_hiddens": tensors["src_hiddens"],
        "accept_lens": taken,
    }


CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "rotate_input_ids",
        "MultiLayerEagleDraftWorker._draft_extend_for_prefill",
        places("MultiLayerEagleDraftWorker._draft_extend_for_prefill"),
        ("rotate_input_ids", "rotate_input_ids_triton"),
        _after_prefill,
        None,
        host=places("rotate_input_ids"),
        reach=by_option,
    ),
    CallerNames(
        "stash_append_boundary_state",
        "MultiLayerEagleDraftWorker._seed_boundary_kv_stash",
        places("MultiLayerEagleDraftWorker._seed_boundary_kv_stash"),
        ("stash_append_boundary_state_triton",),
        _seeding,
        None,
        accepts=lambda sizes: sizes["set_valid"] == 1,
        reach=by_option,
    ),
    CallerNames(
        "stash_append_boundary_state",
        "MultiLayerEagleDraftWorker._fill_boundary_kv_front_and_update_stash, updating",
        places("MultiLayerEagleDraftWorker._fill_boundary_kv_front_and_update_stash"),
        ("stash_append_boundary_state_triton",),
        _updating,
        None,
        accepts=lambda sizes: sizes["set_valid"] == 0,
        reach=by_option,
    ),
    CallerNames(
        "fill_widened_draft_extend_inputs",
        "MultiLayerEagleDraftWorker._fill_boundary_kv_front_and_update_stash",
        places("MultiLayerEagleDraftWorker._fill_boundary_kv_front_and_update_stash"),
        ("fill_widened_draft_extend_inputs_triton",),
        _after_verify,
        None,
        reach=by_option,
    ),
)
