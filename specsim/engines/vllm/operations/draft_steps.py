"""How vLLM's V2 model runner drafts: what each kind of drafter reads of a batch, step by step.

Host functions that launch one kernel each, two kernels that look for n-grams, and the one that applies grammars' masks.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from specsim.contracts.provider import NotCalledError
from specsim.engines.vllm.operations.names import CoinTorch, Names, power_of_two

Tensor = torch.Tensor

_DRAFTERS = "v1/worker/gpu/spec_decode"
AUTOREGRESSIVE = tuple(f"{_DRAFTERS}/{name}/speculator.py" for name in ("target_dependent_ar", "autoregressive"))
STANDALONE = tuple(f"{_DRAFTERS}/{name}/speculator.py" for name in ("standalone_ar", "draft_model"))
MULTI_MODULE = f"{_DRAFTERS}/multi_module_mtp/speculator.py"
NGRAM = f"{_DRAFTERS}/ngram/speculator.py"
DFLASH = f"{_DRAFTERS}/dflash/speculator.py"
GRAMMARS = "v1/worker/gpu/structured_outputs.py"

SELECTOR = f"{_DRAFTERS}/dflash2/speculator.py"
XPRESS = f"{_DRAFTERS}/xpress/kernels.py"

NGRAM_BLOCK, MASK_BLOCK, ARGMAX_BLOCK = 16, 4096, 16  # places, and tokens, of a program


def _ngrams(
    kernels: Any,
    _coins: CoinTorch,
    idx_mapping: Tensor,
    all_token_ids: Tensor,
    total_len: Tensor,
    num_sampled: Tensor,
    last_sampled_tokens: Tensor,
    min_n: int,
    max_n: int,
    num_steps: int,
) -> Tensor:
    scan, finalize = kernels
    bs, length = idx_mapping.shape[0], all_token_ids.shape[1]
    blocks = -(-length // NGRAM_BLOCK)
    scratch = torch.zeros((bs, blocks), dtype=torch.int64, device=idx_mapping.device)
    drafts = torch.zeros((bs, num_steps), dtype=torch.int64, device=idx_mapping.device)
    of_state = (all_token_ids, all_token_ids.stride(0), idx_mapping, total_len, num_sampled)
    places = (scratch, scratch.stride(0))
    scan[(bs, blocks)](*of_state, *places, length, min_n, max_n, power_of_two(max_n), NGRAM_BLOCK)
    of_drafts = (num_steps, power_of_two(num_steps), power_of_two(blocks))
    finalize[(bs,)](*of_state, last_sampled_tokens, *places, drafts, length, blocks, *of_drafts)
    return drafts


def _prefill(
    function: Any,
    _coins: CoinTorch,
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    next_prefill_tokens: Tensor,
    last_token_indices: Tensor,
    draft_query_start_loc: Tensor,
    draft_seq_lens: Tensor,
    current_step: Tensor,
) -> None:
    buffers = _buffers(draft_input_ids, draft_positions, draft_query_start_loc, draft_seq_lens)
    batch = _batch(input_ids, positions, idx_mapping, query_start_loc, seq_lens)
    counts = (num_sampled, num_rejected, last_sampled_tokens, next_prefill_tokens)
    function(last_token_indices, current_step, buffers, batch, *counts, len(last_sampled_tokens))


def _buffers(input_ids: Tensor, positions: Tensor, query_start_loc: Tensor, seq_lens: Tensor) -> SimpleNamespace:
    return SimpleNamespace(input_ids=input_ids, positions=positions, query_start_loc=query_start_loc, seq_lens=seq_lens)


def _batch(
    input_ids: Tensor, positions: Tensor, idx_mapping: Tensor, query_start_loc: Tensor, seq_lens: Tensor | None
) -> SimpleNamespace:
    return SimpleNamespace(
        num_reqs=len(idx_mapping),
        num_tokens=len(positions),
        input_ids=input_ids,
        positions=positions,
        idx_mapping=idx_mapping,
        query_start_loc=query_start_loc,
        query_start_loc_np=query_start_loc.cpu().numpy(),
        num_scheduled_tokens=query_start_loc.diff().cpu().numpy(),
        seq_lens=seq_lens,
    )


def _decode(
    function: Any,
    _coins: CoinTorch,
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    sample_positions: Tensor,
    draft_tokens: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    max_model_len: int,
    advances: int,
    draft_query_start_loc: Tensor,
    draft_seq_lens: Tensor,
) -> None:
    buffers = _buffers(draft_input_ids, draft_positions, draft_query_start_loc, draft_seq_lens)
    of_batch = (draft_tokens, seq_lens, num_rejected, buffers, sample_positions)
    function(*of_batch, max_model_len, len(draft_input_ids), advance_draft_positions=bool(advances))


def _update(
    function: Any,
    _coins: CoinTorch,
    draft_tokens: Tensor,
    next_hidden: Tensor,
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    sample_positions: Tensor,
    draft_seq_lens: Tensor,
    sampled: Tensor,
    current_step: Tensor,
    hidden: Tensor,
    max_model_len: int,
    advances: int,
) -> None:
    starts = torch.empty(0, dtype=torch.int32, device=sampled.device)
    buffers = _buffers(draft_input_ids, draft_positions, starts, draft_seq_lens)
    of_batch = (sampled, current_step, hidden, draft_tokens, next_hidden, buffers, sample_positions)
    bs, num_steps = draft_tokens.shape
    function(*of_batch, bs, max_model_len, num_steps, advance_draft_positions=bool(advances))


def _module(
    function: Any,
    _coins: CoinTorch,
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    draft_query_start_loc: Tensor,
    draft_overrides: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    cached_input_ids: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    next_prefill_tokens: Tensor,
    last_token_indices: Tensor,
    draft_seq_lens: Tensor,
) -> None:
    size, num_steps = len(last_sampled_tokens), len(next_prefill_tokens)
    function(
        num_reqs=len(idx_mapping),
        input_batch=_batch(input_ids, positions, idx_mapping, query_start_loc, seq_lens),
        cached_draft_input_ids=cached_input_ids,
        num_sampled=num_sampled,
        num_rejected=num_rejected,
        last_sampled=last_sampled_tokens,
        next_prefill_tokens=next_prefill_tokens,
        draft_input_id_overrides=draft_overrides,
        input_buffers=_buffers(draft_input_ids, draft_positions, draft_query_start_loc, draft_seq_lens),
        last_token_indices=last_token_indices,
        max_num_reqs=size,
        num_speculative_steps=num_steps,
    )


def _module_hidden(
    function: Any,
    _coins: CoinTorch,
    draft_hidden: Tensor,
    draft_embeds: Tensor,
    target_hidden: Tensor,
    cached_hidden: Tensor,
    cached_embeds: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    num_rejected: Tensor,
) -> None:
    function(
        num_reqs=len(idx_mapping),
        max_query_len=int(query_start_loc.diff().max()),
        hidden_states=draft_hidden,
        target_hidden_states=target_hidden,
        cached_target_hidden_states=cached_hidden,
        input_embeds=draft_embeds,
        cached_draft_input_embeds=cached_embeds,
        input_batch=SimpleNamespace(idx_mapping=idx_mapping),
        input_buffers=SimpleNamespace(query_start_loc=query_start_loc),
        num_rejected=num_rejected,
        num_speculative_steps=cached_hidden.shape[1] + 1,
    )


def _trailing(
    function: Any, _coins: CoinTorch, slot_mappings: Tensor, query_start_loc: Tensor, last_token_indices: Tensor
) -> None:
    function(slot_mappings, query_start_loc, last_token_indices, len(last_token_indices))


def _cache(
    function: Any,
    _coins: CoinTorch,
    cached_input_ids: Tensor,
    cached_embeds: Tensor,
    cached_hidden: Tensor,
    draft_input_ids: Tensor,
    draft_embeds: Tensor,
    draft_hidden: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    last_token_indices: Tensor,
) -> None:
    buffers = SimpleNamespace(input_ids=draft_input_ids, query_start_loc=query_start_loc)
    function(
        *(buffers, draft_embeds, draft_hidden, cached_input_ids, cached_embeds, cached_hidden, last_token_indices),
        *(idx_mapping, len(idx_mapping), cached_input_ids.shape[1] + 1, True),
    )


def _shift(
    function: Any,
    _coins: CoinTorch,
    draft_input_ids: Tensor,
    draft_embeds: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    last_token_indices: Tensor,
    next_tokens: Tensor,
    next_embeds: Tensor,
) -> None:
    buffers = SimpleNamespace(input_ids=draft_input_ids, query_start_loc=query_start_loc)
    of_batch = (last_token_indices, idx_mapping, len(idx_mapping))
    function(next_tokens, next_embeds, buffers, draft_embeds, *of_batch)


def _standalone(
    function: Any,
    _coins: CoinTorch,
    input_ids: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    seq_lens: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    max_model_len: int,
    draft_input_ids: Tensor,
    draft_positions: Tensor,
    last_token_indices: Tensor,
    draft_query_start_loc: Tensor,
    draft_seq_lens: Tensor,
) -> None:
    buffers = _buffers(draft_input_ids, draft_positions, draft_query_start_loc, draft_seq_lens)
    batch = _batch(input_ids, positions, idx_mapping, query_start_loc, seq_lens)
    expanded = (draft_input_ids, draft_positions, last_token_indices)
    size = len(last_sampled_tokens)
    function(buffers, batch, last_sampled_tokens, num_rejected.long(), *expanded, size, max_model_len)


def _block(
    function: Any,
    _coins: CoinTorch,
    draft_temperature: Tensor,
    draft_seeds: Tensor,
    positions: Tensor,
    idx_mapping: Tensor,
    query_start_loc: Tensor,
    num_sampled: Tensor,
    num_rejected: Tensor,
    last_sampled_tokens: Tensor,
    next_prefill_tokens: Tensor,
    temperature: Tensor,
    seeds: Tensor,
    block_table: Tensor,
    page_size: int,
    mask_token_id: int,
    num_steps: int,
    num_block_tokens: int,
    max_model_len: int,
    padded_tokens: int,
    block_ids: Tensor,
    block_positions: Tensor,
    is_padding: Tensor,
    draft_query_start_loc: Tensor,
    draft_seq_lens: Tensor,
    block_slots: Tensor,
    context_positions: Tensor,
    context_slots: Tensor,
    sample_indices: Tensor,
    sample_positions: Tensor,
    sample_idx_mapping: Tensor,
) -> None:
    buffers = _buffers(block_ids, block_positions, draft_query_start_loc, draft_seq_lens)
    buffers.is_padding = is_padding
    batch = _batch(block_ids, positions, idx_mapping, query_start_loc, None)
    function(
        input_buffers=buffers,
        query_slot_mapping=block_slots,
        context_positions=context_positions,
        context_slot_mapping=context_slots,
        sample_indices=sample_indices,
        sample_pos=sample_positions,
        sample_idx_mapping=sample_idx_mapping,
        temperature=draft_temperature,
        seeds=draft_seeds,
        input_batch=batch,
        num_sampled=num_sampled,
        num_rejected=num_rejected,
        last_sampled=last_sampled_tokens,
        next_prefill_tokens=next_prefill_tokens,
        input_temperature=temperature,
        input_seeds=seeds,
        block_table=block_table,
        block_size=page_size,
        cp_rank=0,
        cp_size=1,
        cp_interleave=1,
        parallel_drafting_token_id=mask_token_id,
        num_query_per_req=num_block_tokens,
        num_speculative_steps=num_steps,
        max_num_reqs=len(last_sampled_tokens),
        max_num_tokens=padded_tokens,
        max_model_len=max_model_len,
        sample_from_anchor=num_block_tokens == num_steps,
    )


def _walk(
    kernel: Any,
    _coins: CoinTorch,
    candidate_ids: Tensor,
    scores: Tensor,
    *,
    probabilistic: bool,
) -> tuple[Tensor, Tensor]:
    """Requests at temperature 0, which draw nothing, among those that may draw, or among such as do not."""
    bs, num_steps, top_k = candidate_ids.shape
    device = candidate_ids.device
    tokens = torch.zeros((bs, num_steps), dtype=torch.int64, device=device)
    kept = torch.zeros((bs, num_steps, top_k), device=device)
    zeros = torch.zeros(bs, dtype=torch.int64, device=device)
    kernel[(bs,)](
        *(scores, candidate_ids, torch.ones_like(tokens), torch.arange(bs, device=device).repeat_interleave(num_steps)),
        *(zeros.to(torch.float32), zeros, tokens, kept),
        num_steps=num_steps,
        top_k=top_k,
        BLOCK_K=power_of_two(top_k),
        SAMPLE_PROBABILISTIC=probabilistic,
        USE_FP64=False,
        num_warps=1,
    )
    return tokens, kept


def _cache_logits(
    kernel: Any,
    _coins: CoinTorch,
    draft_logits: Tensor,
    cached_ids: Tensor,
    candidate_ids: Tensor,
    scores: Tensor,
    idx_mapping: Tensor,
) -> None:
    bs, num_steps, top_k = candidate_ids.shape
    kernel[(bs * num_steps,)](
        *(draft_logits, cached_ids, candidate_ids, scores, idx_mapping.repeat_interleave(num_steps)),
        *draft_logits.stride()[:2],
        num_steps=num_steps,
        top_k=top_k,
        BLOCK_K=power_of_two(top_k),
        num_warps=1,
    )


def _best(function: Any, _coins: CoinTorch, logits: Tensor, bias: Tensor, candidate_ids: Tensor) -> Tensor:
    block = torch.zeros((len(logits), logits.shape[1] + 1), dtype=torch.int64, device=logits.device)
    function(logits, bias, candidate_ids, block)
    return block[:, 1:]


def _argmax(function: Any, _coins: CoinTorch, base_logits: Tensor, prev_embeds: Tensor, w2_weight: Tensor) -> Tensor:
    """The draft of a block of two tokens, of which the first is known."""
    bs, vocab_size = base_logits.shape
    parts = -(-vocab_size // ARGMAX_BLOCK)
    values = torch.empty((bs, parts), device=base_logits.device)
    places = torch.empty((bs, parts), dtype=torch.int64, device=base_logits.device)
    block = torch.zeros((bs, 2), dtype=torch.int64, device=base_logits.device)
    function(base_logits, prev_embeds @ w2_weight.T, values, places, block, block_v=ARGMAX_BLOCK)
    return block[:, 1].contiguous()


def _bitmask(
    kernel: Any,
    _coins: CoinTorch,
    logits: Tensor,
    bitmask: Tensor,
    logits_indices: Tensor,
    cu_num_logits: Tensor,
    mask_stride: int,
) -> None:
    num_masks, vocab_size = len(bitmask), logits.shape[1]
    if num_masks == 0:
        raise NotCalledError
    kernel[(num_masks, -(-vocab_size // MASK_BLOCK))](
        *(logits, logits.stride(0), logits_indices, cu_num_logits, bitmask, bitmask.stride(0), vocab_size),
        MASK_STRIDE=mask_stride,
        BLOCK_SIZE=MASK_BLOCK,
    )


_STATE = ("token_ids_ptr", "token_ids_stride", "idx_mapping_ptr", "total_len_ptr", "num_sampled_ptr")
_SCRATCH = ("scratch_ptr", "scratch_stride")
_COUNTS = ("num_sampled", "num_rejected", "last_sampled", "next_prefill_tokens")
_GRAPH = ("max_model_len", "max_num_reqs", "advance_draft_positions")

IMPLEMENTATIONS: tuple[Names, ...] = (
    Names(
        "propose_ngrams",
        ("_ngram_scan_kernel",),
        NGRAM,
        ((*_STATE, *_SCRATCH, "L", "MIN_N", "MAX_N", "MAX_N_PO2", "BLOCK_L"),),
        _ngrams,
        beside=("_ngram_finalize_kernel",),
    ),
    Names(
        "prepare_draft_prefill",
        ("prepare_prefill_inputs",),
        AUTOREGRESSIVE,
        (("last_token_indices", "current_draft_step", "input_buffers", "input_batch", *_COUNTS, "max_num_reqs"),),
        _prefill,
    ),
    Names(
        "prepare_draft_decode",
        ("prepare_decode_inputs",),
        AUTOREGRESSIVE,
        (("draft_tokens", "target_seq_lens", "num_rejected", "input_buffers", "sample_src_positions", *_GRAPH),),
        _decode,
    ),
    Names(
        "update_draft_inputs",
        ("update_draft_inputs",),
        AUTOREGRESSIVE,
        (
            (
                *("draft_tokens", "current_draft_step", "hidden_states", "output_draft_tokens"),
                *("next_input_hidden_states", "input_buffers", "sample_src_positions", "num_reqs", "max_model_len"),
                *("num_speculative_steps", "advance_draft_positions"),
            ),
        ),
        _update,
    ),
    Names(
        "prepare_module_inputs",
        ("prepare_input_buffers",),
        MULTI_MODULE,
        (
            (
                *("num_reqs", "input_batch", "cached_draft_input_ids", *_COUNTS, "draft_input_id_overrides"),
                *("input_buffers", "last_token_indices", "max_num_reqs", "num_speculative_steps"),
            ),
        ),
        _module,
    ),
    Names(
        "prepare_module_hidden",
        ("prepare_input_hidden_states_and_embeddings",),
        MULTI_MODULE,
        (
            (
                *("num_reqs", "max_query_len", "hidden_states", "target_hidden_states", "cached_target_hidden_states"),
                *("input_embeds", "cached_draft_input_embeds", "input_batch", "input_buffers", "num_rejected"),
                "num_speculative_steps",
            ),
        ),
        _module_hidden,
    ),
    Names(
        "pad_trailing_slots",
        ("pad_trailing_draft_slots",),
        MULTI_MODULE,
        (("slot_mappings", "query_start_loc", "last_token_indices", "num_reqs"),),
        _trailing,
    ),
    Names(
        "cache_module_inputs",
        ("cache_inputs",),
        MULTI_MODULE,
        (
            (
                *("input_buffers", "draft_input_embeds", "draft_input_hidden_states", "cached_draft_input_ids"),
                *("cached_draft_input_embeds", "cached_target_hidden_states", "last_token_indices", "idx_mapping"),
                *("num_reqs", "num_speculative_steps", "use_input_embeds"),
            ),
        ),
        _cache,
    ),
    Names(
        "shift_draft_inputs",
        ("update_draft_inputs",),
        MULTI_MODULE,
        (
            (
                *("draft_tokens", "draft_embeds", "input_buffers", "input_embeds", "last_token_indices"),
                *("idx_mapping", "num_reqs"),
            ),
        ),
        _shift,
    ),
    Names(
        "prepare_standalone_prefill",
        ("prepare_prefill_inputs",),
        STANDALONE,
        (
            (
                *("input_buffers", "input_batch", "last_sampled", "num_rejected", "expanded_input_ids"),
                *("expanded_positions", "last_token_indices", "max_num_reqs", "max_model_len"),
            ),
        ),
        _standalone,
    ),
    Names(
        "prepare_block_draft",
        ("prepare_dflash_inputs",),
        DFLASH,
        (
            (
                *("input_buffers", "query_slot_mapping", "context_positions", "context_slot_mapping"),
                *("sample_indices", "sample_pos", "sample_idx_mapping", "temperature", "seeds", "input_batch"),
                *_COUNTS,
                *("input_temperature", "input_seeds", "block_table", "block_size", "cp_rank", "cp_size"),
                *("cp_interleave", "parallel_drafting_token_id", "num_query_per_req", "num_speculative_steps"),
                *("max_num_reqs", "max_num_tokens", "max_model_len", "sample_from_anchor", "num_reqs_override"),
            ),
        ),
        _block,
    ),
    *(
        Names(
            "walk_candidates_greedy",
            ("_selector_walk_kernel",),
            SELECTOR,
            (
                (
                    *("scores_ptr", "candidate_ptr", "sample_pos_ptr", "req_state_ptr", "temperature_ptr", "seeds_ptr"),
                    *("tokens_ptr", "realized_scores_ptr", "num_steps", "top_k", "BLOCK_K", "SAMPLE_PROBABILISTIC"),
                    "USE_FP64",
                ),
            ),
            partial(_walk, probabilistic=bool(variant)),
            variant,
        )
        for variant in ("", "temperature-0")
    ),
    Names(
        "cache_candidate_logits",
        ("_cache_draft_logits_kernel",),
        SELECTOR,
        (
            (
                *("draft_logits_ptr", "cached_candidate_ptr", "candidate_ptr", "scores_ptr", "req_state_ptr"),
                *("draft_logits_stride_0", "draft_logits_stride_1", "num_steps", "top_k", "BLOCK_K"),
            ),
        ),
        _cache_logits,
    ),
    Names("best_candidates", ("fused_topc_argmax_to_blk",), XPRESS, (("base_c", "bias_c", "cand", "blk"),), _best),
    Names(
        "markov_greedy_step",
        ("fused_add_argmax_to_blk",),
        XPRESS,
        (("base", "bias", "out_val", "out_idx", "blk", "block_v"),),
        _argmax,
    ),
    Names(
        "apply_grammar_bitmask",
        ("_apply_grammar_bitmask_kernel",),
        GRAMMARS,
        (
            (
                *("logits_ptr", "logits_stride", "logits_indices_ptr", "cu_num_logits_ptr", "bitmask_ptr"),
                *("bitmask_stride", "vocab_size", "MASK_STRIDE", "BLOCK_SIZE"),
            ),
        ),
        _bitmask,
    ),
)
