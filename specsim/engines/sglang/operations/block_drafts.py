"""Drafters of whole blocks (DFlash, DSpark, LiLiCorr, UNO), and the drafts of topk 1."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from specsim.contracts.contract import Sizes, Tensors
from specsim.contracts.frequencies import MarkovFrequencies, evidence, histogram, markov_frequencies
from specsim.engines.sglang.operations.names import (
    KernelLaunch,
    KernelNames,
    as_is,
    host_call,
    named,
    on_grid,
    option_kernel,
    overlap_worker,
    power_of_two,
)
from specsim.engines.sglang.operations.ragged_verify import ROWS_MAX, few_draws, with_values
from specsim.engines.sglang.operations.trees import OnGpu

Tensor = torch.Tensor


def _launch_block(sizes: Sizes, t: Tensors) -> KernelLaunch:
    given = named(t, "bonus_tokens prefix_lens req_pool_indices req_to_token block_ids positions cache_loc")
    return host_call(*given, sizes["mask_token_id"])


def _launch_walk(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    names = ("candidate_ids", "scores", "uniforms", "temperatures")
    return host_call(**{name: t[name] for name in names}, greedy_mask=t["is_greedy"], returned=as_is)


def _launch_markov(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(**{name: t[name] for name in ("base_logits", "prev_embeds", "w2_weight")}, returned=as_is)


def _launch_step(sizes: Sizes, t: Tensors) -> KernelLaunch:
    """The step that draws, of requests at temperature 0, without drawing and with it."""
    logits = t["base_logits"]
    return host_call(
        base_logits=logits,
        bias=t["prev_embeds"] @ t["w2_weight"].T,
        temperatures=torch.zeros(sizes["bs"], device=logits.device),
        key=0,
        offset=torch.zeros(1, dtype=torch.int64, device=logits.device),
        step=0,
        step_dtype=torch.float32,
        has_sampled_rows=sizes["bs"] % 2 > 0,
        returned=as_is,
    )


def _counting(method: Any) -> Any:
    """Counts what the release's step draws, with smaller blocks."""
    function = with_values(method.__func__, {"_BLOCK": STEP_BLOCK}, calls="_launch_partial")
    return partial(_count, partial(function, method.__self__))


def _count(
    draw: Any, base_logits: Tensor, bias: Tensor, temperatures: Tensor, seed: int, draws: int
) -> MarkovFrequencies:
    """How often each request drafts each token, drawn as many requests at once."""
    logits = torch.empty_like(base_logits)
    counts = torch.zeros(bias.shape, dtype=torch.int64, device=bias.device)
    offset = torch.zeros(1, dtype=torch.int64, device=bias.device)
    for b in range(len(bias)):
        for first in range(0, draws, ROWS_MAX):
            rows = min(ROWS_MAX, draws - first)
            kept = torch.empty((rows, base_logits.shape[1]), device=bias.device)
            tokens = draw(
                base_logits=base_logits[b].repeat(rows, 1),
                bias=bias[b].repeat(rows, 1),
                temperatures=temperatures[b].repeat(rows),
                key=seed,
                offset=offset,
                step=b,
                step_dtype=torch.float32,
                logits_out=kept,
            )
            offset += 1
            logits[b] = kept[-1]
            counts[b] += histogram(tokens[None], torch.ones_like(tokens, dtype=torch.bool), bias.shape[1])[0]
    law = markov_frequencies(base_logits, bias, temperatures)
    return MarkovFrequencies(logits[:, : bias.shape[1]], *evidence(counts, law.frequencies, draws))


def _launch_counting(sizes: Sizes, t: Tensors) -> KernelLaunch:
    given = named(t, "base_logits bias temperatures")
    return host_call(*given, sizes["seed"], sizes["draws"], returned=tuple)


def _launch_topk1(sizes: Sizes, t: Tensors) -> KernelLaunch:
    given = named(t, "logits positions draft_tokens")
    return host_call(*given, sizes["step"], returned=as_is)


def _launch_softmax(_sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(logits=t["logits"], temperatures=t["temperature"], rows_per_request=1, returned=as_is)


def _launch_topk_lse(sizes: Sizes, t: Tensors) -> KernelLaunch:
    return host_call(t["logits"].as_subclass(OnGpu), sizes["k"], returned=as_is)


def _launch_log_probs(sizes: Sizes, t: Tensors) -> KernelLaunch:
    """It is given room for the parts of each row."""
    logits = t["logits"]
    rows, blocks = sizes["bs"] * sizes["num_depths"], -(-sizes["vocab_size"] // UNO_BLOCK)
    parts = [torch.empty((rows, blocks), device=logits.device) for _ in range(2)]
    return host_call(logits, t["top_values"], t["log_probs"], *parts, t["temperatures"])


def _launch_tree(sizes: Sizes, t: Tensors) -> KernelLaunch:
    ids, probs, parents = named(t, "top_token_ids top_log_probs parent_list")
    bs, nodes, k = sizes["bs"], sizes["num_draft_tokens"], sizes["num_candidates"]
    depths = torch.empty((bs, nodes), dtype=torch.int32, device=ids.device)
    masses = torch.empty((bs, nodes), dtype=torch.float32, device=ids.device)
    return on_grid(
        (bs,),
        *(ids, probs, t["draft_tokens"], t["top_scores_index"], parents, depths, masses),
        *(*ids.stride(), *probs.stride(), parents.stride(0)),
        *(sizes["num_depths"], k, nodes, power_of_two(nodes * k)),
    )


UNO_BLOCK = 8192  # tokens, of which each has a part of the sum

STEP_BLOCK = 8  # tokens, of which each part of the step has as many here; so a small vocabulary has several
_STEP = (
    "cls base_logits bias temperatures key offset step step_dtype vocab_start gather gather_logits logits_out "
    "has_sampled_rows"
)

KERNELS: tuple[KernelNames, ...] = (
    option_kernel(
        "prepare_draft_block",
        "_prepare_dflash_draft_block_unchecked",
        "bonus_tokens prefix_lens req_pool_indices req_to_token block_ids_out positions_out cache_loc_out "
        "mask_token_id",
        _launch_block,
    ),
    option_kernel(
        "walk_candidates",
        "selector_walk_triton",
        "candidate_ids scores uniforms temperatures greedy_mask",
        _launch_walk,
    ),
    option_kernel(
        "markov_greedy_step", "markov_greedy_step_triton", "base_logits prev_embeds w2_weight", _launch_markov, cost=5
    ),
    option_kernel(
        "markov_greedy_step", "MarkovSampleStep.triton", _STEP, _launch_step, variant="at temperature 0", cost=5
    ),
    option_kernel(
        "markov_frequencies",
        "MarkovSampleStep.triton",
        _STEP,
        _launch_counting,
        accepts=few_draws,
        prepare=_counting,
        cost=30,
    ),
    option_kernel(
        "draft_topk1",
        "draft_topk1_postprocess",
        "next_token_logits positions draft_tokens draft_token_column",
        _launch_topk1,
        reach=overlap_worker,
    ),
    option_kernel(
        "temperature_softmax",
        "softmax_temp_triton",
        "logits temperatures rows_per_request",
        _launch_softmax,
        variant="dspark",
    ),
    option_kernel("topk_lse", "lilicorr_topk_lse", "logits k", _launch_topk_lse, cost=5),
    option_kernel(
        "candidate_log_probs",
        "_build_candidate_log_probs",
        "logits top_values top_log_probs partial_max partial_sum temperature",
        _launch_log_probs,
        cost=10,
    ),
    option_kernel(
        "build_best_first_tree",
        "_build_tree_kernel",
        "top_token_ids top_log_probs draft_tokens selected_edges parent_list search_depths search_log_masses "
        "TOKEN_BATCH_STRIDE TOKEN_DEPTH_STRIDE TOKEN_RANK_STRIDE PROB_BATCH_STRIDE PROB_DEPTH_STRIDE PROB_RANK_STRIDE "
        "PARENT_BATCH_STRIDE NUM_DEPTHS K Q BLOCK_CANDIDATES",
        _launch_tree,
        cost=10,
    ),
)
