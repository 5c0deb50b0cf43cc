"""What follows a verification: slots and positions of the accepted tokens, and what the next draft starts from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelLaunch,
    KernelNames,
    as_is,
    host_call,
    named,
    on_grid,
    power_of_two,
    running_batch,
    without_overlap,
    words,
)
from specsim.engines.sglang.where import SPECULATIVE, places


def _launch_extend_after_decode(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """A block has lanes for the batch and for the longest segment."""
    bs = len(t["seq_lens"])
    lanes = power_of_two(max(bs, int(t["accept_lens"].max())))
    return on_grid((bs,), *named(t, "accept_tokens seq_lens accept_lens positions bonus_tokens"), lanes)


def _launch_target(sizes: Sizes, t: Tensors) -> KernelLaunch:
    bs, nodes = len(t["accept_token_num"]), sizes["num_draft_tokens"]
    tensors = named(t, "tgt_cache_loc to_free_slots accept_token_num to_free_num_slots out_cache_loc")
    return on_grid((bs,), *tensors, nodes, power_of_two(nodes), power_of_two(bs))


def _launch_filter(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """The tree's size is not among the arguments: a block has lanes for the longest segment."""
    bs, lanes = len(t["accept_token_num"]), power_of_two(int(t["accept_token_num"].max()) + 1)
    tensors = named(t, "out_cache_loc tgt_cache_loc accept_token_num num_accept_tokens_filter")
    return on_grid((bs,), *tensors, power_of_two(bs), lanes)


def _launch_align(sizes: Sizes, t: Tensors) -> KernelLaunch:
    nodes = sizes["num_draft_tokens"]
    tensors = named(t, "seq_lens evict_mask")
    return on_grid((len(t["seq_lens"]),), *tensors, sizes["page_size"], nodes, power_of_two(nodes))


def _launch_gather(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, "indices topk_p_buf topk_index_buf output_tokens_buf hidden_states_buf"), returned=as_is)


def _launch_commit(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(*named(t, "predict accept_index accept_lens seq_lens"), returned=as_is)


def _launch_commit_of_chains(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    """As for chains, where the launch prepares the draft extend too; those outputs have no contract here."""
    tensors, nodes = named(t, "predict accept_index accept_lens seq_lens"), t["accept_index"].shape[1]
    return host_call(*tensors, num_draft_tokens=nodes, returned=lambda returned: returned[:2])


_COMMIT = words("predict accept_index accept_lens seq_lens num_draft_tokens mamba_track_interval")


def _get_target(accepted: str) -> tuple[str, ...]:
    return words(
        f"tgt_cache_loc to_free_slots {accepted} to_free_num_slots out_cache_loc num_verify_tokens "
        "num_verify_tokens_upper bs_upper"
    )


def _filter(accepted: str, kept: str) -> tuple[str, ...]:
    return words(f"out_cache_loc tgt_cache_loc {accepted} {kept} bs_upper num_verify_tokens_upper")


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "create_extend_after_decode",
        places("create_extend_after_decode_spec_info"),
        (
            words("accept_tokens seq_lens accept_lens positions bonus_tokens_ptr bs_upper"),
            words("verified_id seq_lens accept_lens positions new_verified_id bs_upper"),
        ),
        _launch_extend_after_decode,
        reach=without_overlap,
    ),
    KernelNames(
        "get_target_cache_loc",
        places("get_target_cache_loc"),
        (_get_target("accept_length"), _get_target("num_accepted_drafts"), _get_target("num_correct_drafts")),
        _launch_target,
        reach=without_overlap,
        called_from=(SPECULATIVE,),
    ),
    KernelNames(
        "filter_finished_cache_loc",
        places("filter_finished_cache_loc_kernel"),
        (
            _filter("accept_length", "accept_length_filter"),
            _filter("num_accepted_drafts", "num_accepted_drafts_filter"),
            _filter("num_correct_drafts", "num_accept_tokens_filter"),
        ),
        _launch_filter,
        reach=without_overlap,
        called_from=(SPECULATIVE,),
    ),
    KernelNames(
        "align_evict_mask_to_page_size",
        places("align_evict_mask_to_page_size"),
        (("seq_lens", "evict_mask", "page_size", "num_draft_tokens", "BLOCK_SIZE"),),
        _launch_align,
        reach=without_overlap,
        called_from=(SPECULATIVE,),
    ),
    KernelNames(
        "gather_rows",
        places("gather_spec_extras"),
        (("indices", "topk_p_buf", "topk_index_buf", "output_tokens_buf", "hidden_states_buf"),),
        _launch_gather,
    ),
    KernelNames(
        "verify_commit_outputs",
        places("prepare_verify_commit_outputs"),
        (_COMMIT,),
        _launch_commit,
    ),
    KernelNames(
        "verify_commit_outputs",
        places("prepare_verify_commit_outputs"),
        (_COMMIT,),
        _launch_commit_of_chains,
        variant="chains",
        accepts=lambda sizes: sizes["topk"] == 1 and sizes["num_draft_tokens"] == sizes["accept_width"],
    ),
)


def _in_future_map(_sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """What the next batch's draft starts from, in the buffers that outlive a batch."""
    buffers = ("topk_p_buf", "topk_index_buf", "output_tokens_buf", "hidden_states_buf")
    return {
        "torch": torch,
        "self": SimpleNamespace(
            device=tensors["indices"].device,
            need_topk=True,
            need_hidden_states=True,
            **{name: tensors[name] for name in buffers},
        ),
        "spec_need_hidden_states": lambda: True,
        "indices": tensors["indices"],
        "hidden_states_buf": tensors["hidden_states_buf"],
    }


def _after_sampling(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The worker on a GPU, whose outputs of a verification are made by one launch."""
    return {
        "batch": running_batch(seq_lens=tensors["seq_lens"], mamba_track_indices=None),
        "fused_commit_outputs": True,
        "track_interval": 0,
        "topk": sizes["topk"],
        "num_draft_tokens": sizes["num_draft_tokens"],
        **{name: tensors[name] for name in ("predict", "accept_index", "accept_lens")},
    }


def _before_draft_extend(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """The worker without overlap, whose accepted tokens are what the draft extends by. Older ones count the bonus token
    in, in place, before the launch: lengths are those after it.
    """
    lens = tensors["accept_lens"]
    drafts = {
        **dict.fromkeys(("seq_lens", "seq_lens_for_draft_extend"), tensors["seq_lens"]),
        **dict.fromkeys(("accept_length", "num_accepted_tokens", "num_accept_tokens"), lens),
    }
    return {
        "torch": torch,
        "next_power_of_2": power_of_two,
        "self": SimpleNamespace(**drafts),
        "batch": running_batch(input_ids=tensors["accept_tokens"], spec_info=SimpleNamespace(**drafts)),
        "speculative_num_steps": sizes["num_steps"],
    }


def _before_freeing(sizes: Sizes, tensors: Tensors) -> dict[str, Any]:
    """`verify` of the worker without overlap, where chains free whole pages alone."""
    return {
        "torch": torch,
        "next_power_of_2": power_of_two,
        "self": SimpleNamespace(topk=1, draft_token_num=sizes["num_draft_tokens"]),
        "batch": running_batch(seq_lens=tensors["seq_lens"], out_cache_loc=tensors["evict_mask"]),
        "page_size": sizes["page_size"],
        "evict_mask": tensors["evict_mask"],
    }


CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "verify_commit_outputs",
        "run_eagle_verify",
        places("run_eagle_verify"),
        ("prepare_verify_commit_outputs",),
        _after_sampling,
        (),
        which=1,
        accepts=lambda sizes: sizes["topk"] > 1,
    ),
    CallerNames(
        "verify_commit_outputs",
        "run_eagle_verify, chains",
        places("run_eagle_verify"),
        ("prepare_verify_commit_outputs",),
        _after_sampling,
        (),
        which=0,
        outputs=lambda returned: returned[:2],
        variant="chains",
        accepts=lambda sizes: sizes["topk"] == 1 and sizes["num_draft_tokens"] == sizes["accept_width"],
    ),
    CallerNames(
        "create_extend_after_decode",
        "EagleDraftInput.prepare_extend_after_decode",
        places("prepare_extend_after_decode"),
        ("create_extend_after_decode_spec_info",),
        _before_draft_extend,
        (),
        written=(("positions",), ("bonus_tokens_ptr", "new_verified_id")),
        reach=without_overlap,
    ),
    CallerNames(
        "align_evict_mask_to_page_size",
        "EagleVerifyInput.verify",
        places("EagleVerifyInput.verify"),
        ("align_evict_mask_to_page_size",),
        _before_freeing,
        None,
        reach=without_overlap,
    ),
    CallerNames(
        "gather_rows",
        "FutureMap._resolve_spec_extras",
        places("FutureMap._resolve_spec_extras"),
        ("gather_spec_extras",),
        _in_future_map,
        (),
    ),
)
