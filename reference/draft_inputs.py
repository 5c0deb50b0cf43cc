"""What a pass of the draft model reads, and where it writes: lengths, positions, windows of slots.

After a verification the draft model *extends*: it computes KV for `num_draft_tokens` tokens of each request, of which
the accepted ones count. A draft model of several layers repeats `front` tokens before them, of which a stash keeps what
it needs. A draft model with a window attends to the newest tokens alone.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields
from specsim.reference.kv import DraftKvIndices, kv_lists


@fields(
    """
    num_correct_drafts  [bs] int32: accepted drafts of each request
    select_index        [bs] int64: row of its last accepted node
    input_ids           [num_nodes] int64: token that follows each node
    """
)
class DraftExtendInputs(NamedTuple):
    """What the draft model extends with [num_nodes] int64, and which row of each request counts, [bs]."""

    num_correct_drafts: Tensor
    select_index: Tensor
    input_ids: Tensor


@fields(
    """
    prefix_lens  [bs] int32: tokens of each request before the extension
    extend_lens  [bs] int32: tokens of the extension
    post_lens    [bs] int64: length of each request with them
    """
)
class DraftExtendLengths(NamedTuple):
    """Lengths [bs] before, of and after an extension."""

    prefix_lens: Tensor
    extend_lens: Tensor
    post_lens: Tensor


@fields(
    """
    prefix_lens       [bs] int32: tokens of each request before the extension
    extend_lens       [bs] int32: tokens of the extension
    post_lens         [bs] int64: length of each request with them
    positions         [num_nodes] int64: of each token of the extension in its request
    extend_start_loc  [bs] int32: where each request's tokens start
    """
)
class DraftExtendLayout(NamedTuple):
    """Lengths [bs] before, of and after an extension, its positions [num_nodes] and starts [bs]."""

    prefix_lens: Tensor
    extend_lens: Tensor
    post_lens: Tensor
    positions: Tensor
    extend_start_loc: Tensor


@fields(
    """
    out_cache_loc  [num_window] int64: KV slot of each row of the windows; 0 where none is written
    positions      [num_window] int64: its position in its request; 0 where nothing is known of it
    """
)
class WidenedLocs(NamedTuple):
    """Slots and positions of the rows of windows, each [num_window] int64."""

    out_cache_loc: Tensor
    positions: Tensor


@fields(
    """
    context_lens  [bs] int32: tokens of each request's window
    offsets       [bs, window] int64: positions of the `window` tokens before the block; 0 before the first
    invalid       [bs, window] bool: there is no such position
    """
)
class WindowGather(NamedTuple):
    """The window before a block: how many tokens it has [bs], and their positions [bs, window]."""

    context_lens: Tensor
    offsets: Tensor
    invalid: Tensor


@fields(
    """
    swa_page_indices  [num_nodes, target_width] int32: of each node the window's slots, then the block's, then -1
    swa_topk_lengths  [num_nodes] int32: how many those are
    """
)
class SwaPageIndices(NamedTuple):
    """What each node of a block attends to: slots [num_nodes, target_width], and how many [num_nodes]."""

    swa_page_indices: Tensor
    swa_topk_lengths: Tensor


@contract(
    """
    accept_lens       [bs] int32, 1 to num_draft_tokens: accepted nodes of each request, the root among them
    predict           [num_nodes] int32: token that follows each node
    num_draft_tokens  int: nodes of each request
    -> DraftExtendInputs
    """
)
def prepare_draft_extend_inputs(accept_lens: Tensor, predict: Tensor, num_draft_tokens: int) -> DraftExtendInputs:
    """The tokens that a draft model extends with, and the row of each request that it goes on from.

    Raises ValueError for lengths outside 1 to num_draft_tokens. Source: SGLang's EAGLE workers.
    """
    first = torch.arange(len(accept_lens), device=accept_lens.device) * num_draft_tokens
    return DraftExtendInputs(accept_lens - 1, first + accept_lens - 1, predict.to(torch.int64))


@contract(
    """
    seq_lens          [bs] int64, 0 or more: length of each request before the verification
    num_draft_tokens  int: nodes of each request
    front_offset      int, 0 or more: tokens before them that are computed once more
    -> DraftExtendLengths
    """
)
def prepare_draft_extend_lengths(seq_lens: Tensor, num_draft_tokens: int, front_offset: int) -> DraftExtendLengths:
    """The lengths of an extension. Source: SGLang's EAGLE workers."""
    prefix = (seq_lens - front_offset).clamp(min=0).to(torch.int32)
    return DraftExtendLengths(
        prefix, torch.full_like(prefix, num_draft_tokens + front_offset), seq_lens + num_draft_tokens
    )


@contract(
    """
    seq_lens          [bs] int64, 0 or more: length of each request before the verification
    num_draft_tokens  int: nodes of each request
    -> DraftExtendLayout
    """
)
def prepare_draft_extend_layout(seq_lens: Tensor, num_draft_tokens: int) -> DraftExtendLayout:
    """`prepare_draft_extend_lengths` without tokens before, and positions. Source: SGLang's EAGLE workers."""
    lens = prepare_draft_extend_lengths(seq_lens, num_draft_tokens, 0)
    positions = seq_lens[:, None] + torch.arange(num_draft_tokens, device=seq_lens.device)
    starts = torch.arange(len(seq_lens), dtype=torch.int32, device=seq_lens.device) * num_draft_tokens
    return DraftExtendLayout(*lens, positions.flatten(), starts)


@contract(
    """
    seq_lens          [bs] int64, 0 or more: length of each request before the verification
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: its row
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    stash_valid_lens  [pool_rows] int32, 0 to front: tokens before the extension of which the stash has what is needed
    num_draft_tokens  int: nodes of each request
    front             int: rows before them
    num_warmup        int, 0 or more: rows of the stash of which no KV is written
    -> WidenedLocs
    """
)
def widened_draft_extend_locs(
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    stash_valid_lens: Tensor,
    num_draft_tokens: int,
    front: int,
    num_warmup: int,
) -> WidenedLocs:
    """Slots and positions of windows of `front + num_draft_tokens` rows.

    A row before the extension is known when the stash has it and the request is long enough; the first `num_warmup` of
    those that are known write to slot 0, which is nobody's. Raises ValueError for windows behind the end of the table
    and for stashes of more than `front`. Source: SGLang's multi-layer EAGLE.
    """
    if validation.enabled():
        ends = seq_lens + num_draft_tokens
        validation.require_between("seq_lens + num_draft_tokens", ends, 0, req_to_token.shape[1])
    row = torch.arange(front + num_draft_tokens, device=seq_lens.device)
    position = seq_lens[:, None] - front + row  # [bs, width]
    held = torch.minimum(stash_valid_lens[req_pool_indices].to(torch.int64), seq_lens)
    first = (front - held).clamp(min=0)[:, None]  # [bs, 1]: the first row that is known
    slot = req_to_token[req_pool_indices[:, None], position.clamp(min=0)].to(torch.int64)
    written = row >= (first + num_warmup).clamp(max=front)
    return WidenedLocs(torch.where(written, slot, 0).flatten(), torch.where(row >= first, position, 0).flatten())


@contract(
    """
    draft_req_to_token   [pool_rows, draft_pool_len] int32, changed in place: KV slot by row and column, of the draft
                         model
    target_req_to_token  [pool_rows, pool_len] int32: KV slot by row and column
    req_pool_indices     [bs] int64, 0 to pool_rows - 1: row of each request, without duplicates
    suffix_start         [bs] int64, 0 or more: first token of each request that the draft model attends to
    draft_prefix_lens    [bs] int64, 0 or more: how many those are before its block
    verify_cache_loc     [bs, num_draft_tokens] int64: KV slots of the block
    """
)
def rebuild_compact_draft_req_to_token(
    draft_req_to_token: Tensor,
    target_req_to_token: Tensor,
    req_pool_indices: Tensor,
    suffix_start: Tensor,
    draft_prefix_lens: Tensor,
    verify_cache_loc: Tensor,
) -> None:
    """Write the row of each request: the slots of its newest tokens, then those of the block.

    Columns behind them are left alone. Raises ValueError where the rows are too short. Source: SGLang's DFlash.
    """
    ndt = verify_cache_loc.shape[1]
    if validation.enabled():
        ends = suffix_start + draft_prefix_lens
        validation.require_between("suffix_start + draft_prefix_lens", ends, 0, target_req_to_token.shape[1])
        width = draft_req_to_token.shape[1] - ndt
        validation.require_between("draft_prefix_lens", draft_prefix_lens, 0, width)
    column = torch.arange(draft_req_to_token.shape[1], device=suffix_start.device)
    within = column - draft_prefix_lens[:, None]  # [bs, draft_pool_len]: place in the block
    source = (suffix_start[:, None] + column).clamp(max=target_req_to_token.shape[1] - 1)
    prefix = target_req_to_token[req_pool_indices[:, None], source]
    block = verify_cache_loc.to(torch.int32).gather(1, within.clamp(0, ndt - 1))
    new = torch.where(within < 0, prefix, block)
    draft_req_to_token[req_pool_indices] = torch.where(within < ndt, new, draft_req_to_token[req_pool_indices])


@contract(
    """
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request; 0 for padding
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    seq_lens          [bs] int64: tokens before the draft; the last branch must fit in the row
    -> DraftKvIndices
    topk              int, 1 or more: branches of the draft
    num_steps         int, 1 or more: drafting steps
    page_size         int: slots a page, a power of two; decides where branches start, the lists are by token
    window            int, 1 or more: newest tokens that are attended to
    """
)
def generate_draft_decode_window_kv_indices(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    page_size: int,
    window: int,
) -> DraftKvIndices:
    """As `generate_draft_decode_kv_indices`, but of each list its last `window` slots.

    Raises ValueError as that does. Source: SGLang's Triton attention backend.
    """
    return kv_lists(req_pool_indices, req_to_token, seq_lens, topk, num_steps, page_size, window)


@contract(
    """
    seq_lens            [bs] int64, 0 or more: length of each request before the block
    num_draft_tokens    int: tokens of a block
    -> block_seq_lens   [num_nodes] int32: length of its request up to each token of the blocks
    """
)
def block_seq_lens_causal(seq_lens: Tensor, num_draft_tokens: int) -> Tensor:
    """How many tokens each token of a block sees, itself among them. Source: SGLang's DSpark."""
    step = torch.arange(1, num_draft_tokens + 1, device=seq_lens.device)
    return (seq_lens[:, None] + step).to(torch.int32).flatten()


@contract(
    """
    prefix_lens       [bs] int64, 0 or more: length of each request before the block
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: its row
    valid_from        [pool_rows] int64, 0 or more: first token of each row that has KV of the draft model
    has_valid_from    int: 0: every token has, and valid_from is not read
    window            int, 1 or more: tokens before the block that are attended to, at most
    -> WindowGather
    """
)
def draft_window_gather(
    prefix_lens: Tensor, req_pool_indices: Tensor, valid_from: Tensor, has_valid_from: int, window: int
) -> WindowGather:
    """The positions of the newest tokens before a block. Source: SGLang's DSpark."""
    context = prefix_lens.clamp(max=window)
    if has_valid_from:
        context = torch.minimum(context, (prefix_lens - valid_from[req_pool_indices]).clamp(min=0))
    position = prefix_lens[:, None] - window + torch.arange(window, device=prefix_lens.device)
    return WindowGather(context.to(torch.int32), position.clamp(min=0), position < 0)


@contract(
    """
    req_to_token         [pool_rows, pool_len] int32: KV slot by row and column
    full_to_swa_mapping  [num_slots] int64: slot in the pool of the window of each slot
    req_pool_indices     [bs] int64, 0 to pool_rows - 1: row of each request
    offsets              [bs, window] int64, 0 to pool_len - 1: positions of the `window` tokens before the block
    out_loc              [num_nodes] int64: KV slots of the block
    context_lens         [bs] int32, 0 to window: how many of the last of those positions are attended to
    num_draft_tokens     int: tokens of a block
    alignment            int, 1 or more: the width is a multiple of it
    -> SwaPageIndices
    """
)
def draft_swa_page_indices(
    req_to_token: Tensor,
    full_to_swa_mapping: Tensor,
    req_pool_indices: Tensor,
    offsets: Tensor,
    out_loc: Tensor,
    context_lens: Tensor,
    num_draft_tokens: int,
    alignment: int,
) -> SwaPageIndices:
    """The slots that the nodes of a block attend to: all of its window, then all of the block, in the window's pool.

    Source: SGLang's DSpark.
    """
    bs, window = offsets.shape
    width = -(-(window + num_draft_tokens) // alignment) * alignment
    column = torch.arange(width, device=offsets.device)
    context = context_lens[:, None].to(torch.int64)
    slots = req_to_token[req_pool_indices[:, None], offsets].to(torch.int64)  # [bs, window]
    of_window = slots.gather(1, (window - context + column).clamp(0, window - 1))
    of_block = out_loc.view(bs, -1).gather(1, (column - context).clamp(0, num_draft_tokens - 1))
    full = torch.where(column < context, of_window, of_block)
    found = torch.where(column < context + num_draft_tokens, full_to_swa_mapping[full], -1).to(torch.int32)
    lengths = context_lens + num_draft_tokens
    return SwaPageIndices(found.repeat_interleave(num_draft_tokens, 0), lengths.repeat_interleave(num_draft_tokens))


@contract(
    """
    input_ids_dst              [max_window] int64, changed in place: of each row of a window the token; 0 behind them
    positions_dst              [max_window] int64, changed in place: likewise its position
    cache_loc_dst              [max_window] int64, changed in place: likewise its KV slot
    hidden_dst                 [max_window, hidden_size] float, changed in place: likewise its hidden state; rows
                               behind num_window are left alone
    seq_lens_dst               [max_bs] int32, changed in place: length of each request; `fill_value` behind them
    req_pool_indices_dst       [max_bs] int64, changed in place: its row
    num_correct_dst            [max_bs] int32, changed in place: its accepted drafts
    accept_lens_dst            [max_bs] int32, changed in place: its accepted nodes; -1 behind them, up to padded_bs
    select_index_dst           [max_bs] int64, changed in place: the row of its last accepted node; up to padded_bs, by
                               what num_correct_dst has there
    temperatures_dst           [max_bs, 1] float, changed in place: its temperature; 1 behind them, up to padded_bs
    rank_tokens_dst            [num_ranks] int32, changed in place: rows of every rank
    rank_logprob_tokens_dst    [num_ranks] int32, changed in place: likewise
    input_ids                  [num_window] int64: of each row of a window the token
    positions                  [num_window] int64: its position
    cache_loc                  [num_window] int64: its KV slot
    hidden                     [num_window, hidden_size] float: its hidden state
    seq_lens                   [bs] int64: length of each request
    req_pool_indices           [bs] int64: its row
    num_correct                [bs] int32, 0 to num_draft_tokens - 1: its accepted drafts
    accept_lens                [bs] int32: its accepted nodes
    temperatures               [bs, 1] float: its temperature
    padded_bs                  int: requests of the graph, bs to max_bs
    num_draft_tokens           int: nodes of each request
    front                      int: rows of a window before them
    fill_value                 int: length of a request that pads
    """
)
def fill_draft_extend_buffers(
    input_ids_dst: Tensor,
    positions_dst: Tensor,
    cache_loc_dst: Tensor,
    hidden_dst: Tensor,
    seq_lens_dst: Tensor,
    req_pool_indices_dst: Tensor,
    num_correct_dst: Tensor,
    accept_lens_dst: Tensor,
    select_index_dst: Tensor,
    temperatures_dst: Tensor,
    rank_tokens_dst: Tensor,
    rank_logprob_tokens_dst: Tensor,
    input_ids: Tensor,
    positions: Tensor,
    cache_loc: Tensor,
    hidden: Tensor,
    seq_lens: Tensor,
    req_pool_indices: Tensor,
    num_correct: Tensor,
    accept_lens: Tensor,
    temperatures: Tensor,
    padded_bs: int,
    num_draft_tokens: int,
    front: int,
    fill_value: int,
) -> None:
    """Fill the buffers that a CUDA graph reads: windows of `front + num_draft_tokens` rows, and requests that pad.

    What is behind padded_bs is left alone, but for lengths. Raises ValueError where the batch does not fit.
    Source: SGLang's multi-layer EAGLE.
    """
    bs, rows = len(seq_lens), len(input_ids)
    if validation.enabled():
        validation.require_scalar("padded_bs", padded_bs, bs, len(seq_lens_dst))
        validation.require_scalar("num_window", rows, 0, len(input_ids_dst))
    _fill(input_ids_dst, input_ids, 0)
    _fill(positions_dst, positions, 0)
    _fill(cache_loc_dst, cache_loc, 0)
    _fill(seq_lens_dst, seq_lens, fill_value)
    _fill(accept_lens_dst[:padded_bs], accept_lens, -1)
    _fill(temperatures_dst[:padded_bs], temperatures, 1)
    hidden_dst[:rows] = hidden
    req_pool_indices_dst[:bs] = req_pool_indices
    num_correct_dst[:bs] = num_correct
    window = torch.arange(padded_bs, device=seq_lens.device) * (front + num_draft_tokens)
    select_index_dst[:padded_bs] = window + front + num_correct_dst[:padded_bs]
    rank_tokens_dst.fill_(padded_bs * (front + num_draft_tokens))
    rank_logprob_tokens_dst.fill_(padded_bs * (front + num_draft_tokens))


def _fill(buffer: Tensor, values: Tensor, padding: int) -> None:
    """Write the values to the front of a buffer, and the padding behind them."""
    buffer[: len(values)] = values
    buffer[len(values) :] = padding
