"""Chains that are cut to what is worth verifying (DSpark), and what a block drafter reads and leaves (DFlash)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from types import FunctionType
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.frequencies import Frequencies, chain_frequencies, cut_chain_frequencies, evidence, histogram
from specsim.engines.sglang.operations.names import KernelLaunch, KernelNames, as_is, host_call, named, option_kernel
from specsim.engines.sglang.operations.trees import OnGpu
from specsim.engines.sglang.stubs import Fields
from specsim.lifting.lift import DriftError

Tensor = torch.Tensor

BLOCKS = {"_STATS_BLOCK": 4, "_RESAMPLE_BLOCK": 2}
"""Tokens of a block here, by the names of thousands in the release: so a small vocabulary has several."""
ROWS_MAX = 2**14
"""Requests of a launch."""
CHAINS_MAX = 2**10
"""Of a launch whose rows of logits are as wide as there are tokens in it."""
TEMPERATURES = (2.0, 0.5)
"""Of the target model and the draft model, whose logits are made for them."""


# How long the chains are


def _launch_schedule(sizes: Sizes, t: Tensors) -> KernelLaunch:
    most = sizes["max_verify_len"]
    cfg = Fields(
        min_verify_len=sizes["min_verify_len"],
        survival_eps=float(t["survival_eps"]),
        resolved_max_verify_len=lambda: most,
    )
    return host_call(confidence=t["confidence"], budget=sizes["budget"], cfg=cfg, returned=as_is)


def _launch_padding(sizes: Sizes, t: Tensors) -> KernelLaunch:
    rest = {"graph_num_tokens": sizes["num_packed"], "bs": sizes["bs"], "padded_bs": sizes["padded_bs"]}
    return host_call(verify_lens=t["verify_lens"], **rest, returned=as_is)


def _launch_indptr(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(verify_lens=t["verify_lens"], returned=lambda result: (result.qo_indptr, result.extend_start_loc))


def _layout(t: Tensors, num_packed: int) -> Fields:
    return Fields(verify_lens=t["verify_lens"], graph_num_tokens=num_packed)


def _launch_window(sizes: Sizes, t: Tensors) -> KernelLaunch:
    candidates = t["candidates"]
    block = torch.full_like(candidates[:, 1:], -1)  # a block drafter reads masks behind the root
    block[:, 0] = candidates[:, 0]
    return host_call(
        batch=Fields(seq_lens=t["seq_lens"], req_pool_indices=t["req_pool_indices"]),
        layout=_layout(t, sizes["num_packed"]),
        draft_block_ids=block,
        draft_tokens=candidates[:, 1:],
        bs=sizes["bs"],
        device=candidates.device,
        verify_num_draft_tokens=sizes["num_draft_tokens"],
        model_runner=Fields(req_to_token_pool=Fields(req_to_token=t["req_to_token"])),
        returned=lambda window: (window.verify_ids, window.positions, window.verify_cache_loc),
    )


def _launch_scatter(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(
        compact=t["compact"],
        layout=_layout(t, sizes["num_packed"]),
        fill_value=0.0,
        verify_num_draft_tokens=sizes["num_draft_tokens"],
        returned=as_is,
    )


# What is accepted


def _launch_greedy(sizes: Sizes, t: Tensors) -> KernelLaunch:
    """Tokens are numbered anew, so that the rows of logits are as wide as there are tokens: few in a few chains."""
    candidates, target = t["candidates"], t["target_predict"]
    vocabulary = torch.cat([candidates.flatten(), target.flatten()]).unique()
    logits = torch.zeros((target.numel(), len(vocabulary)), device=target.device)
    logits.scatter_(1, torch.searchsorted(vocabulary, target.flatten())[:, None], 1.0)
    return host_call(
        candidates=torch.searchsorted(vocabulary, candidates).as_subclass(OnGpu),
        target_logits=logits,
        verify_num_draft_tokens=sizes["num_draft_tokens"],
        cutoff_verify_lens=t["verify_lens"] if sizes["has_cut"] else None,
        returned=lambda result: (result[0].to(torch.int32), vocabulary[result[1]], result[2].to(torch.int32)),
    )


_KINDS = ("len", "bonus", "trim")


def _launch_mixed(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    of_kinds = {f"{kind}_{name}": t[f"{kind}_{name}"] for kind in ("greedy", "sampling") for name in _KINDS}
    return host_call(
        greedy_mask=t["is_greedy"],
        **of_kinds,
        returned=lambda chosen: (chosen.correct_len, chosen.bonus, chosen.cap_trim_lens),
    )


def _launch_two_level(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(
        accept_index=t["accept_index"],
        predicts=t["predict"],
        correct_len=t["accept_lens"] - 1,
        returned=lambda bonus: bonus.to(torch.int32),
    )


def _launch_lens(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    cut = torch.zeros_like(t["correct_len"])
    return host_call(
        correct_len=t["correct_len"],
        cap_trim_lens=cut,
        prefix_lens=t["prefix_lens"],
        returned=lambda result: (result.commit_lens, result.new_seq_lens),
    )


def _launch_out_tokens(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(
        draft_tokens=t["draft_tokens"],
        correct_len=t["correct_len"],
        bonus=t["bonus"],
        verify_num_draft_tokens=sizes["num_draft_tokens"],
        gamma=sizes["num_steps"],
        returned=as_is,
    )


def _launch_accept_bonus(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(
        *named(t, "candidates target_predict correct_len commit_lens bonus out_tokens prefix_lens new_seq_lens")
    )


def _launch_tail(sizes: Sizes, t: Tensors) -> KernelLaunch:
    whole = torch.full_like(t["correct_len"], sizes["num_draft_tokens"])
    options: dict[str, Any] = {
        "candidates": t["candidates"],
        "target_predict": t["target_predict"].flatten(),
        "seq_lens": t["prefix_lens"],
        "verify_lens": whole,
        "gate": torch.ones_like(whole[:1]),
        "cap_trim_lens_out": torch.zeros_like(whole),
        "gated_commit_lens_out": torch.zeros_like(whole),
    }
    options |= {
        f"{name}_out": t[name] for name in ("correct_len", "bonus", "commit_lens", "new_seq_lens", "out_tokens")
    }
    return KernelLaunch((), options=options)


# Where it is kept


def _launch_inject(sizes: Sizes, t: Tensors) -> KernelLaunch:
    width = sizes["num_draft_tokens"]
    names = ("req_pool_indices", "req_to_token", "prefix_lens", "full_to_swa_mapping", "commit_lens")
    return host_call(
        **{name: t[name] for name in names},
        block_pos_offsets=torch.arange(width, device=t["prefix_lens"].device),
        stride=width,
        returned=lambda layout: (layout.swa_loc, layout.positions),
    )


def _launch_locations(sizes: Sizes, t: Tensors) -> KernelLaunch:
    given = named(t, "cache_loc full_to_swa_mapping commit_lens")
    return host_call(*given, sizes["num_draft_tokens"], returned=as_is)


def _launch_stage(sizes: Sizes, t: Tensors) -> KernelLaunch:
    names = ("cache_loc_dst", "positions_dst", "commit_lens_dst", "cache_loc", "positions", "commit_lens")
    options: dict[str, Any] = {name: t[name] for name in names}
    return KernelLaunch(
        (), options={**options, "state_slot": None, "state_slot_dst": None, "rows": sizes["num_packed"]}
    )


# A sampler with random numbers of its own


def _counting(function: Any) -> Any:
    """Counts what the release's function emits, with smaller blocks. Raises DriftError where it has no such blocks."""
    return partial(_count, with_values(function, BLOCKS))


def with_values(function: FunctionType, values: Mapping[str, int], calls: str = "") -> FunctionType:
    """The function with other values of names of its module, which the function `calls` of that module gets too.

    Raises DriftError where the module has no such names.
    """
    known = function.__globals__
    if missing := {*values, *calls.split()} - known.keys():
        raise DriftError(f"changed: {function.__name__} has no {' and '.join(sorted(missing))}")
    known = {**known, **values}
    if calls:
        known[calls] = _within(known[calls], known)
    return _within(function, known)


def _within(function: FunctionType, known: dict[str, Any]) -> FunctionType:
    made = FunctionType(function.__code__, known, function.__name__, function.__defaults__)
    made.__kwdefaults__ = function.__kwdefaults__
    return made


def _count(
    function: Any,
    candidates: Tensor,
    draft_probs: Tensor,
    target_probs: Tensor,
    verify_lens: Tensor | None,
    has_draft_probs: int,
    seed: int,
    draws: int,
) -> Frequencies:
    """How often each request emits each outcome, drawn as many requests at once."""
    bs, width, vocab_size = target_probs.shape
    counts = torch.zeros((bs, width * vocab_size), dtype=torch.int64, device=target_probs.device)
    noise = Fields(key=seed, counter=torch.zeros(1, dtype=torch.int64, device=counts.device))
    for b in range(bs):
        for first in range(0, draws, ROWS_MAX):
            n = min(ROWS_MAX, draws - first)
            accepted, bonus, _cut = function(
                candidates=candidates[b].repeat(n, 1),
                target_logits=target_probs[b].log().mul(TEMPERATURES[0]).repeat(n, 1),
                draft_logits=draft_probs[b].log().mul(TEMPERATURES[1]).expand(n, -1, -1) if has_draft_probs else None,
                target_temperatures=torch.full((n,), TEMPERATURES[0], device=counts.device),
                draft_temperatures=torch.full((n,), TEMPERATURES[1], device=counts.device),
                noise=noise,
                cutoff_verify_lens=None if verify_lens is None else verify_lens[b].repeat(n),
            )
            right = (accepted >= 0) & (accepted < width) & (bonus >= 0) & (bonus < vocab_size)
            outcome = accepted.long() * vocab_size + bonus
            counts[b] += histogram(outcome[None], right, width * vocab_size)[0]
    given = (candidates, draft_probs, target_probs)
    law = (
        chain_frequencies(*given, has_draft_probs)
        if verify_lens is None
        else cut_chain_frequencies(*given, verify_lens, has_draft_probs)
    )
    return evidence(counts.view(target_probs.shape), law.frequencies, draws)


def _launch_counting(sizes: Sizes, t: Tensors) -> KernelLaunch:
    given = (*named(t, "candidates draft_probs target_probs"), t.get("verify_lens"))
    return host_call(*given, *(sizes[name] for name in ("has_draft_probs", "seed", "draws")), returned=tuple)


def _few_chains(sizes: Sizes) -> bool:
    return sizes["bs"] <= CHAINS_MAX


def few_draws(sizes: Sizes) -> bool:
    """More would take a minute in the interpreter."""
    return sizes["draws"] <= ROWS_MAX


_GREEDY = "candidates target_logits verify_num_draft_tokens cutoff_verify_lens"
_WINDOW = "batch layout draft_block_ids draft_tokens bs device verify_num_draft_tokens model_runner"
_TAIL = (
    "candidates target_predict seq_lens verify_lens gate correct_len_out bonus_out cap_trim_lens_out commit_lens_out "
    "new_seq_lens_out out_tokens_out simulated_correct_len bonus_in bonus_parts gated_commit_lens_out"
)
_BLOCKWISE = option_kernel(
    "chain_frequencies",
    "blockwise_rejection_triton",
    "candidates target_logits draft_logits target_temperatures draft_temperatures noise cutoff_verify_lens",
    _launch_counting,
    accepts=few_draws,
    prepare=_counting,
    cost=30,
)

KERNELS: tuple[KernelNames, ...] = (
    option_kernel(
        "schedule_verify_lens", "schedule_verify_lens_topk_triton", "confidence budget cfg", _launch_schedule
    ),
    option_kernel(
        "pad_verify_lens",
        "pad_verify_lens_to_bucket_triton",
        "verify_lens graph_num_tokens bs padded_bs",
        _launch_padding,
    ),
    option_kernel("verify_indptr", "build_qo_indptr_triton", "verify_lens", _launch_indptr),
    option_kernel("ragged_verify_window", "build_ragged_verify_window_triton", _WINDOW, _launch_window),
    option_kernel(
        "scatter_compact_to_strided",
        "scatter_compact_to_strided_triton",
        "compact layout fill_value verify_num_draft_tokens",
        _launch_scatter,
    ),
    option_kernel(
        "accept_chain_greedy",
        "accept_greedy_triton",
        (_GREEDY, f"{_GREEDY} fused_argmax"),
        _launch_greedy,
        accepts=_few_chains,
    ),
    option_kernel(
        "select_mixed_accept",
        "select_mixed_accept_triton",
        "greedy_mask greedy_len greedy_bonus greedy_trim sampling_len sampling_bonus sampling_trim",
        _launch_mixed,
    ),
    option_kernel(
        "fill_bonus_tokens",
        "gather_two_level_bonus_triton",
        "accept_index predicts correct_len",
        _launch_two_level,
        variant="two level",
    ),
    option_kernel(
        "finalize_accept_lens", "finalize_accept_lens_triton", "correct_len cap_trim_lens prefix_lens", _launch_lens
    ),
    option_kernel(
        "build_out_tokens",
        "build_out_tokens_triton",
        "draft_tokens correct_len bonus verify_num_draft_tokens gamma",
        _launch_out_tokens,
    ),
    option_kernel(
        "commit_chain_greedy",
        "_compute_dflash_accept_bonus_triton_unchecked",
        "candidates target_top1 accept_lens_out commit_lens_out bonus_ids_out out_tokens_out prefix_lens "
        "new_seq_lens_out",
        _launch_accept_bonus,
    ),
    option_kernel("commit_chain_greedy", "static_accept_tail", _TAIL, _launch_tail, variant="static"),
    option_kernel(
        "commit_inject_layout",
        "build_commit_inject_layout_triton",
        "req_pool_indices req_to_token prefix_lens block_pos_offsets full_to_swa_mapping commit_lens stride",
        _launch_inject,
    ),
    option_kernel(
        "committed_swa_locations",
        "committed_swa_locations",
        "cache_loc full_to_swa_mapping commit_lens width",
        _launch_locations,
    ),
    option_kernel(
        "stage_commit",
        "stage_commit",
        "cache_loc_dst positions_dst commit_lens_dst state_slot_dst cache_loc positions commit_lens state_slot rows",
        _launch_stage,
    ),
    _BLOCKWISE,
    replace(_BLOCKWISE, op="cut_chain_frequencies"),
)
