"""`specsim.reference.accepted` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from property_tests.naive.verify import (
    fill_bonus_tokens_naive,
)
from specsim.reference.accepted import CommitOutputs, ExtendAfterDecode, GatheredRows, TargetCacheLoc


def gather_accept_tokens_naive(predicts: Tensor, accept_index: Tensor) -> Tensor:
    """`gather_accept_tokens`, one token at a time."""
    tokens = predicts.tolist()
    rows = [[-1 if node == -1 else tokens[node] for node in path] for path in accept_index.tolist()]
    return predicts.new_tensor(rows).view(accept_index.shape)


def verify_commit_outputs_naive(
    predict: Tensor, accept_index: Tensor, accept_lens: Tensor, seq_lens: Tensor
) -> CommitOutputs:
    """`verify_commit_outputs`, one request at a time."""
    new_seq_lens = [before + new for before, new in zip(seq_lens.tolist(), accept_lens.tolist(), strict=True)]
    bonus_tokens = fill_bonus_tokens_naive(predict, accept_index, accept_lens)
    return CommitOutputs(seq_lens.new_tensor(new_seq_lens), bonus_tokens)


def create_extend_after_decode_naive(accept_tokens: Tensor, seq_lens: Tensor, accept_lens: Tensor) -> ExtendAfterDecode:
    """`create_extend_after_decode`, one token at a time."""
    tokens = accept_tokens.tolist()
    positions: list[int] = []
    bonus = []
    for seq_len, accept_len in zip(seq_lens.tolist(), accept_lens.tolist(), strict=True):
        positions += range(seq_len - accept_len, seq_len)
        bonus.append(tokens[len(positions) - 1])
    return ExtendAfterDecode(seq_lens.new_tensor(positions), accept_tokens.new_tensor(bonus))


def get_target_cache_loc_naive(
    accept_token_num: Tensor, to_free_num_slots: Tensor, out_cache_loc: Tensor, num_draft_tokens: int
) -> TargetCacheLoc:
    """`get_target_cache_loc`, one request at a time."""
    slots, targets, freed = out_cache_loc.tolist(), [], []
    for b, (accepted, free) in enumerate(zip(accept_token_num.tolist(), to_free_num_slots.tolist(), strict=True)):
        start, end = b * num_draft_tokens, (b + 1) * num_draft_tokens
        targets += slots[start : start + accepted + 1]
        freed += slots[end - free : end]
    return TargetCacheLoc(out_cache_loc.new_tensor(targets), out_cache_loc.new_tensor(freed))


def filter_finished_cache_loc_naive(
    tgt_cache_loc: Tensor, accept_token_num: Tensor, num_accept_tokens_filter: Tensor
) -> Tensor:
    """`filter_finished_cache_loc`, one request at a time."""
    slots, kept = tgt_cache_loc.tolist(), []
    for accepted, count in zip(accept_token_num.tolist(), num_accept_tokens_filter.tolist(), strict=True):
        kept += slots[:count]
        slots = slots[accepted + 1 :]
    return tgt_cache_loc.new_tensor(kept)


def write_req_to_token_pool_naive(
    req_to_token: Tensor,
    req_pool_indices: Tensor,
    prefix_indices: Tensor,
    prefix_lens: Tensor,
    seq_lens: Tensor,
    out_cache_loc: Tensor,
) -> None:
    """`write_req_to_token_pool`, one slot at a time."""
    cached, new = iter(prefix_indices.tolist()), iter(out_cache_loc.tolist())
    rows, prefixes, lens = req_pool_indices.tolist(), prefix_lens.tolist(), seq_lens.tolist()
    for row, prefix_len, seq_len in zip(rows, prefixes, lens, strict=True):
        for column in range(seq_len):
            req_to_token[row, column] = next(cached if column < prefix_len else new)


def gather_rows_naive(
    indices: Tensor, topk_p_buf: Tensor, topk_index_buf: Tensor, output_tokens_buf: Tensor, hidden_states_buf: Tensor
) -> GatheredRows:
    """`gather_rows`, one row at a time."""
    buffers, rows = (topk_p_buf, topk_index_buf, output_tokens_buf, hidden_states_buf), indices.tolist()
    return GatheredRows(*(torch.cat([buffer[:0], *(buffer[row : row + 1] for row in rows)]) for buffer in buffers))
