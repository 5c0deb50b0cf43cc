"""What follows a verification: slots and positions of the accepted tokens, and what the next draft starts from."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.engines.sglang.operations.names import (
    CallerNames,
    KernelNames,
    power_of_two,
    running_batch,
    without_overlap,
)

_CACHE_LOCS = (
    "kernels/ops/speculative/cache_locs.py",
    "srt/speculative/triton_ops/cache_locs.py",
    "srt/speculative/spec_utils.py",
)
# Those that call what the workers without overlap need.
_WORKERS = ("srt/speculative",)


def _launch_extend_after_decode(
    kernel: Any,
    accept_tokens: torch.Tensor,
    seq_lens: torch.Tensor,
    accept_lens: torch.Tensor,
    positions: torch.Tensor,
    bonus_tokens: torch.Tensor,
) -> None:
    """A block has lanes for the batch and for the longest segment."""
    bs = len(seq_lens)
    lanes = power_of_two(max(bs, int(accept_lens.max())))
    kernel[(bs,)](accept_tokens, seq_lens, accept_lens, positions, bonus_tokens, lanes)


def _launch_target(
    kernel: Any,
    accept_token_num: torch.Tensor,
    to_free_num_slots: torch.Tensor,
    out_cache_loc: torch.Tensor,
    tgt_cache_loc: torch.Tensor,
    to_free_slots: torch.Tensor,
    num_draft_tokens: int,
) -> None:
    bs = len(accept_token_num)
    kernel[(bs,)](
        tgt_cache_loc,
        to_free_slots,
        accept_token_num,
        to_free_num_slots,
        out_cache_loc,
        num_draft_tokens,
        power_of_two(num_draft_tokens),
        power_of_two(bs),
    )


def _launch_filter(
    kernel: Any,
    tgt_cache_loc: torch.Tensor,
    accept_token_num: torch.Tensor,
    num_accept_tokens_filter: torch.Tensor,
    out_cache_loc: torch.Tensor,
) -> None:
    """The tree's size is not among the arguments: a block has lanes for the longest segment."""
    bs = len(accept_token_num)
    lanes = power_of_two(int(accept_token_num.max()) + 1)
    kernel[(bs,)](out_cache_loc, tgt_cache_loc, accept_token_num, num_accept_tokens_filter, power_of_two(bs), lanes)


def _launch_align(
    kernel: Any, seq_lens: torch.Tensor, evict_mask: torch.Tensor, page_size: int, num_draft_tokens: int
) -> None:
    bs = len(seq_lens)
    kernel[(bs,)](seq_lens, evict_mask, page_size, num_draft_tokens, power_of_two(num_draft_tokens))


def _launch_gather(
    function: Any,
    indices: torch.Tensor,
    topk_p_buf: torch.Tensor,
    topk_index_buf: torch.Tensor,
    output_tokens_buf: torch.Tensor,
    hidden_states_buf: torch.Tensor,
) -> tuple[torch.Tensor, ...]:
    gathered: tuple[torch.Tensor, ...] = function(
        indices, topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf
    )
    return gathered


def _launch_commit(
    function: Any,
    predict: torch.Tensor,
    accept_index: torch.Tensor,
    accept_lens: torch.Tensor,
    seq_lens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    new_seq_lens, bonus_tokens = function(predict, accept_index, accept_lens, seq_lens)
    return new_seq_lens, bonus_tokens


def _launch_commit_of_chains(
    function: Any,
    predict: torch.Tensor,
    accept_index: torch.Tensor,
    accept_lens: torch.Tensor,
    seq_lens: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As for chains, where the launch prepares the draft extend too; those outputs have no contract here."""
    new_seq_lens, bonus_tokens, *_prepared = function(
        predict, accept_index, accept_lens, seq_lens, num_draft_tokens=accept_index.shape[1]
    )
    return new_seq_lens, bonus_tokens


_COMMIT = ("predict", "accept_index", "accept_lens", "seq_lens", "num_draft_tokens", "mamba_track_interval")


def _get_target(accepted: str) -> tuple[str, ...]:
    return (
        "tgt_cache_loc",
        "to_free_slots",
        accepted,
        "to_free_num_slots",
        "out_cache_loc",
        "num_verify_tokens",
        "num_verify_tokens_upper",
        "bs_upper",
    )


def _filter(accepted: str, kept: str) -> tuple[str, ...]:
    return ("out_cache_loc", "tgt_cache_loc", accepted, kept, "bs_upper", "num_verify_tokens_upper")


KERNELS: tuple[KernelNames, ...] = (
    KernelNames(
        "create_extend_after_decode",
        ("create_extend_after_decode_spec_info",),
        _CACHE_LOCS,
        (
            ("accept_tokens", "seq_lens", "accept_lens", "positions", "bonus_tokens_ptr", "bs_upper"),
            ("verified_id", "seq_lens", "accept_lens", "positions", "new_verified_id", "bs_upper"),
        ),
        _launch_extend_after_decode,
        reach=without_overlap,
    ),
    KernelNames(
        "get_target_cache_loc",
        ("get_target_cache_loc",),
        _CACHE_LOCS,
        (_get_target("accept_length"), _get_target("num_accepted_drafts"), _get_target("num_correct_drafts")),
        _launch_target,
        reach=without_overlap,
        called_from=_WORKERS,
    ),
    KernelNames(
        "filter_finished_cache_loc",
        ("filter_finished_cache_loc_kernel",),
        _CACHE_LOCS,
        (
            _filter("accept_length", "accept_length_filter"),
            _filter("num_accepted_drafts", "num_accepted_drafts_filter"),
            _filter("num_correct_drafts", "num_accept_tokens_filter"),
        ),
        _launch_filter,
        reach=without_overlap,
        called_from=_WORKERS,
    ),
    KernelNames(
        "align_evict_mask_to_page_size",
        ("align_evict_mask_to_page_size",),
        _CACHE_LOCS,
        (("seq_lens", "evict_mask", "page_size", "num_draft_tokens", "BLOCK_SIZE"),),
        _launch_align,
        reach=without_overlap,
        called_from=_WORKERS,
    ),
    KernelNames(
        "gather_rows",
        ("gather_spec_extras",),
        (
            "kernels/ops/speculative/gather_spec_extras.py",
            "srt/speculative/triton_ops/gather_spec_extras.py",
        ),
        (("indices", "topk_p_buf", "topk_index_buf", "output_tokens_buf", "hidden_states_buf"),),
        _launch_gather,
    ),
    KernelNames(
        "verify_commit_outputs",
        ("prepare_verify_commit_outputs",),
        ("kernels/ops/speculative/eagle.py",),
        (_COMMIT,),
        _launch_commit,
    ),
    KernelNames(
        "verify_commit_outputs",
        ("prepare_verify_commit_outputs",),
        ("kernels/ops/speculative/eagle.py",),
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


_INFO = ("srt/speculative/eagle_info.py",)

CALLERS: tuple[CallerNames, ...] = (
    CallerNames(
        "verify_commit_outputs",
        "run_eagle_verify",
        ("srt/speculative/eagle_worker_common.py",),
        ("prepare_verify_commit_outputs",),
        _after_sampling,
        (),
        which=1,
        accepts=lambda sizes: sizes["topk"] > 1,
    ),
    CallerNames(
        "verify_commit_outputs",
        "run_eagle_verify, chains",
        (),
        ("prepare_verify_commit_outputs",),
        _after_sampling,
        (),
        which=0,
        outputs=lambda returned: returned[:2],
        variant="chains",
        moved=(("run_eagle_verify", "srt/speculative/eagle_worker_common.py"),),
        accepts=lambda sizes: sizes["topk"] == 1 and sizes["num_draft_tokens"] == sizes["accept_width"],
    ),
    CallerNames(
        "create_extend_after_decode",
        "EagleDraftInput.prepare_extend_after_decode",
        _INFO,
        ("create_extend_after_decode_spec_info",),
        _before_draft_extend,
        (),
        written=(("positions",), ("bonus_tokens_ptr", "new_verified_id")),
        moved=(("EagleDraftExtendInput.prepare_extend_after_decode", _INFO[0]),),
        reach=without_overlap,
    ),
    CallerNames(
        "align_evict_mask_to_page_size",
        "EagleVerifyInput.verify",
        _INFO,
        ("align_evict_mask_to_page_size",),
        _before_freeing,
        None,
        reach=without_overlap,
    ),
    CallerNames(
        "gather_rows",
        "FutureMap._resolve_spec_extras",
        ("srt/managers/overlap_utils.py",),
        ("gather_spec_extras",),
        _in_future_map,
        (),
    ),
)
