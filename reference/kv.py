"""How much KV memory a step needs, which slots it gets, and how the KV of accepted tokens comes together.

Slots are handed out in *pages* of `page_size` slots: page g holds slots `[g * page_size, (g + 1) * page_size)`.
Position q of a request lies at offset `q % page_size` of its page; only the last page of a request may be partly
filled. Page 0 is the padding sink and never free. `page_size` is a power of two.

*Branches* are the `topk` continuations that the draft model extends side by side. With pages, each branch
needs whole pages of its own, because attention reads whole pages. The layout of a request with `seq_len` tokens,
in positions of its row, is

    tail  = seq_len % page_size                        tokens on the page that the sequence has begun
    pages = ceil((tail + num_steps) / page_size)       of each branch
    start of branch t = seq_len + t * pages * page_size

so branch 0 continues the sequence's own page, and each later branch begins `tail` slots into a page. Those `tail`
slots are *holes*, which receive copies of the sequence's last `tail` tokens before attention reads the page. With
page size 1 or one branch there are no holes, and the slots of all branches lie side by side.

*Ragged* tensors concatenate one segment per request, in batch order, without padding.
"""

from __future__ import annotations

from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields
from specsim.reference.cache_locs import ragged_segments

__all__ = [
    "CompactedPath",
    "DraftCacheLocs",
    "DraftKvIndices",
    "align_evict_mask_to_page_size",
    "alloc_decode",
    "alloc_extend",
    "alloc_len_per_decode",
    "compact_accepted_path",
    "draft_cache_locs_paged",
    "fill_accept_out_cache_loc",
    "generate_draft_decode_kv_indices",
    "get_last_loc",
    "move_kv",
    "row_width",
]

_IntOrTensor = TypeVar("_IntOrTensor", int, Tensor)

ROW_SPARE = 4  # positions that a row has beyond the context length, besides the tree's


@fields(
    """
    out_cache_loc  [num_draft_locs = bs * topk * num_steps] int64: slot of each draft token, by request, branch and step
    target         [num_copies] int64: the holes, by request, branch from the second, offset; the sum of tail * (topk -
                   1) over the requests
    source         [num_copies] int64: the slot whose KV each hole receives
    """
)
class DraftCacheLocs(NamedTuple):
    """Where the branches of a draft live. With `tail[b] = seq_lens[b] % page_size`:"""

    out_cache_loc: Tensor
    target: Tensor
    source: Tensor


@fields(
    """
    kv_indptr   [num_steps, num_bounds = bs * topk + 1] int32, prefilled with 0: where the list of branch b * topk + t
                begins in the step's row of kv_indices, and where the last one ends
    kv_indices  [num_steps, num_kv] int64: in step i, for each branch, the slots of the sequence and of the branch's
                first i + 1 draft tokens; not defined from kv_indptr[i, -1] on
    """
)
class DraftKvIndices(NamedTuple):
    """What each branch attends to. Step i of drafting sees `lens = seq_lens[b] + i + 1` tokens of a branch."""

    kv_indptr: Tensor
    kv_indices: Tensor


@fields(
    """
    target                   [num_accept_entries = bs * accept_width] int64, prefilled with 0: slots that receive KV:
                             the first accept_lens[b] of each block, ragged, then 0
    source                   [num_accept_entries] int64, prefilled with 0: slots that the KV comes from: those of the
                             accepted nodes, ragged, then 0, so that the entries after the segments move the padding
                             slot onto itself
    compacted_predict        [num_nodes] int32: the tokens of the accepted nodes at the front of each block; the rest of
                             it is not defined
    compacted_hidden_states  [num_nodes, hidden_size] any: the rows of the accepted nodes at the front of each block;
                             the rest of it is not defined
    """
)
class CompactedPath(NamedTuple):
    """The accepted path of each request, brought to the front of its block of `num_draft_tokens` nodes.

    `ndt` is short for `num_draft_tokens`.
    """

    target: Tensor
    source: Tensor
    compacted_predict: Tensor
    compacted_hidden_states: Tensor


@contract(
    """
    num_steps         int, 1 or more: drafting steps
    topk              int, 1 or more: branches of the draft
    num_draft_tokens  int, 1 or more: nodes a tree, the root included
    page_size         int: slots a page, a power of two
    """
)
def alloc_len_per_decode(num_steps: int, topk: int, num_draft_tokens: int, page_size: int) -> int:
    """The positions after a sequence that one step of drafting and verification may touch: A.

    Draft and verification use the same positions one after the other. The draft takes `topk * num_steps` of
    them, or whole pages for each branch when both `page_size` and `topk` are above 1; then the worst case is a
    sequence that ends one slot before the end of a page. Verification takes `num_draft_tokens`.

    Raises ValueError for sizes below 1 and a page size that is no power of two. Source: SGLang's EAGLE worker.
    """
    if validation.enabled():
        _require_page_size(page_size)
    if page_size == 1 or topk == 1:
        return max(num_steps * topk, num_draft_tokens)
    pages_worst = _ceil_div(page_size - 1 + num_steps, page_size)
    return max(topk * pages_worst * page_size, num_draft_tokens)


@contract(
    """
    context_len       int, 1 or more: tokens of the longest request
    num_steps         int, 1 or more: drafting steps
    topk              int, 1 or more: branches of the draft
    num_draft_tokens  int, 1 or more: nodes a tree, the root included
    page_size         int: slots a page, a power of two
    """
)
def row_width(context_len: int, num_steps: int, topk: int, num_draft_tokens: int, page_size: int) -> int:
    """The columns of `req_to_token` for requests of at most `context_len` tokens.

    With pages above 1 a row has room for the reserve of a request of any length: two steps
    (`alloc_len_per_decode`), because the host knows the length of the step before last, rounded up to a page. With page
    size 1 it has room for the tree and `ROW_SPARE` more positions, which two steps may exceed: there the caller must
    bound the reserve by the row.

    Raises ValueError for sizes below 1 and a page size that is no power of two. Source: SGLang's request pool.
    """
    reserve = 2 * alloc_len_per_decode(num_steps, topk, num_draft_tokens, page_size)
    spare = ROW_SPARE + num_draft_tokens
    return context_len + (spare if page_size == 1 else max(spare, reserve + page_size - 1))


@contract(
    """
    prefix_lens       [bs] int64, 0 or more: tokens that have slots
    seq_lens          [bs] int64: tokens that shall have slots, prefix_lens or more
    last_loc          [bs] int64: slot of the last token that has one, at the offset in its page that the length says;
                      -1 if there is none
    free_pages        [num_free_pages] int64: distinct page numbers, at least as many as needed, taken from the front,
                      request after request
    -> out_cache_loc  [num_locs] int64: the new slots, ragged
    page_size         int: slots a page, a power of two
    """
)
def alloc_extend(prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, page_size: int) -> Tensor:
    """Slots for the tokens by which each request grows: first the rest of its last page, then free pages.

    Raises
    ValueError when lengths shrink, when a slot does not fit its length, when a page in use is given as free, and
    when there are too few free pages. Source: SGLang's paged allocator.
    """
    if validation.enabled():
        _check_alloc_extend(prefix_lens, seq_lens, last_loc, free_pages, page_size)
    request, within = ragged_segments(seq_lens - prefix_lens)  # [num_locs], [num_locs]
    position = prefix_lens[request] + within  # [num_locs]
    pages_before = _ceil_div(prefix_lens, page_size)  # [bs]
    pages_new = _ceil_div(seq_lens, page_size) - pages_before  # [bs]
    first_new = pages_new.cumsum(0) - pages_new  # [bs], index into free_pages
    new_page = position // page_size - pages_before[request]  # [num_locs], -1: the page that the prefix has begun
    out_cache_loc = last_loc[request] + 1 + within
    fresh = new_page >= 0
    page = free_pages[(first_new[request] + new_page)[fresh]]
    out_cache_loc[fresh] = page * page_size + position[fresh] % page_size
    return out_cache_loc


@contract(
    """
    seq_lens          [bs] int64: tokens including the new one, 1 or more
    last_loc          [bs] int64: slot of the last token that has one, at the offset in its page that the length says;
                      -1 if there is none
    free_pages        [num_free_pages] int64: distinct page numbers, at least as many as needed, taken from the front,
                      request after request
    -> out_cache_loc  [bs] int64: the new slot of each request
    page_size         int: slots a page, a power of two
    """
)
def alloc_decode(seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, page_size: int) -> Tensor:
    """A slot for one more token of each request: the next one on its last page, or the first of a free page.

    Raises ValueError as `alloc_extend` does. Source: SGLang's paged allocator.
    """
    if validation.enabled():
        _check_alloc_decode(seq_lens, last_loc, free_pages, page_size)
    starts_page = (seq_lens - 1) % page_size == 0  # [bs]
    page = starts_page.cumsum(0) - 1  # [bs], index into free_pages where a page starts
    out_cache_loc = last_loc + 1
    out_cache_loc[starts_page] = free_pages[page[starts_page]] * page_size
    return out_cache_loc


@contract(
    """
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request; 0 for padding
    prefix_lens       [bs] int64, 0 to pool_len: tokens that have slots, 0 for padding
    -> last_loc       [bs] int64: slot of token prefix_lens - 1; -1 if there is none
    """
)
def get_last_loc(req_to_token: Tensor, req_pool_indices: Tensor, prefix_lens: Tensor) -> Tensor:
    """The slot of each request's last token, -1 for a request without tokens.

    Raises ValueError for rows or lengths outside the pool.
    Source: SGLang's allocation for extend and decode.
    """
    slot = req_to_token[req_pool_indices, (prefix_lens - 1).clamp(min=0)].to(torch.int64)  # [bs]
    return torch.where(prefix_lens > 0, slot, -1)


@contract(
    """
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request; 0 for padding
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    seq_lens          [bs] int64: tokens before the draft; the last branch must fit in the row
    -> DraftCacheLocs
    topk              int, 1 or more: branches of the draft
    num_steps         int, 1 or more: drafting steps
    page_size         int: slots a page, a power of two
    """
)
def draft_cache_locs_paged(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int, page_size: int
) -> DraftCacheLocs:
    """The slots that the draft model writes, and the copies that fill the holes before the branches.

    With page size 1 or one branch there is nothing to copy and `out_cache_loc` is what
    `assign_draft_cache_locs_contiguous` returns. Raises ValueError for rows or columns outside the pool and for a
    page size that is no power of two. Source: SGLang's EAGLE draft worker; issue #26972.
    """
    if validation.enabled():
        _check_draft(seq_lens, req_to_token.shape[1], topk, num_steps, page_size)
    start = _branch_starts(seq_lens, topk, num_steps, page_size)  # [bs, topk]
    column = start[:, :, None] + torch.arange(num_steps, device=seq_lens.device)  # [bs, topk, num_steps]
    out_cache_loc = req_to_token[req_pool_indices[:, None, None], column].to(torch.int64).flatten()

    tail = seq_lens % page_size  # [bs]
    request, within = ragged_segments(tail * (topk - 1))  # [num_copies], [num_copies]
    branch = 1 + within // tail[request]  # [num_copies]
    offset = within % tail[request] - tail[request]  # [num_copies], before the end of the sequence: -tail to -1
    row = req_pool_indices[request]  # [num_copies]
    target = req_to_token[row, start[request, branch] + offset].to(torch.int64)
    source = req_to_token[row, seq_lens[request] + offset].to(torch.int64)
    return DraftCacheLocs(out_cache_loc, target, source)


@contract(
    """
    req_pool_indices  [bs] int64, 0 to pool_rows - 1: row of each request; 0 for padding
    req_to_token      [pool_rows, pool_len] int32: KV slot by row and column
    seq_lens          [bs] int64: tokens before the draft; the last branch must fit in the row
    -> DraftKvIndices
    topk              int, 1 or more: branches of the draft
    num_steps         int, 1 or more: drafting steps
    page_size         int: slots a page, a power of two; decides where branches start, the lists are by token
    """
)
def generate_draft_decode_kv_indices(
    req_pool_indices: Tensor, req_to_token: Tensor, seq_lens: Tensor, topk: int, num_steps: int, page_size: int
) -> DraftKvIndices:
    """The slots that each branch attends to in each step of drafting, one list per branch (CSR).

    Holes are not listed: the list of a branch has each of its positions once. Entries of `kv_indices` that are
    not defined are 0. Raises ValueError for rows or columns outside the pool, for a page size that is no power of two,
    and when a list does not fit int32. Source: SGLang's EAGLE attention backends; issue #26972.
    """
    return kv_lists(req_pool_indices, req_to_token, seq_lens, topk, num_steps, page_size, window=2**31)


def kv_lists(
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    seq_lens: Tensor,
    topk: int,
    num_steps: int,
    page_size: int,
    window: int,
) -> DraftKvIndices:
    """The last `window` slots of what each branch has in each step of drafting."""
    if validation.enabled():
        _check_draft(seq_lens, req_to_token.shape[1], topk, num_steps, page_size)
        num_kv = topk * (int(seq_lens.sum()) + seq_lens.shape[0] * num_steps)
        validation.require_scalar("topk * (sum of seq_lens + bs * num_steps)", num_kv, 0, 2**31 - 1)
    bs, device = seq_lens.shape[0], seq_lens.device
    drafted = torch.arange(1, num_steps + 1, device=device)  # [num_steps], draft tokens that a step sees
    totals = seq_lens.repeat_interleave(topk) + drafted[:, None]  # [num_steps, bs * topk]
    lens = totals.clamp(max=window)
    kv_indptr = torch.zeros(num_steps, bs * topk + 1, dtype=torch.int64, device=device)
    kv_indptr[:, 1:] = lens.cumsum(1)

    segment, within = ragged_segments(lens.flatten())  # [entries], [entries] over all steps and branches
    step, z = segment // (bs * topk), segment % (bs * topk)
    request = z // topk
    start = _branch_starts(seq_lens, topk, num_steps, page_size).flatten()  # [bs * topk]
    seq_len = seq_lens[request]
    place = within + (totals - lens)[step, z]  # among all that a branch has
    column = torch.where(place < seq_len, place, start[z] + place - seq_len)
    kv_indices = torch.zeros(num_steps, topk * (int(seq_lens.sum()) + bs * num_steps), dtype=torch.int64, device=device)
    kv_indices[step, kv_indptr[step, z] + within] = req_to_token[req_pool_indices[request], column].to(torch.int64)
    return DraftKvIndices(kv_indptr.to(torch.int32), kv_indices)


@contract(
    """
    accept_index             [bs, accept_width] int32, -1 to num_nodes - 1: the accepted path as node numbers in the
                             batch, ascending, then -1; a padding request has -1 only
    out_cache_loc            [num_nodes] int64: slot of each node, all distinct
    -> accept_out_cache_loc  [num_accept_entries = bs * accept_width] int64: slots in the order of accept_index; defined
                             for as many entries as nodes are accepted
    """
)
def fill_accept_out_cache_loc(accept_index: Tensor, out_cache_loc: Tensor) -> Tensor:
    """The slots of the accepted nodes, one after the other in the order of `accept_index`.

    Entries that are not defined are 0. Raises ValueError for node numbers outside the batch.
    Source: SGLang's EAGLE verification; PR #26866 for trees whose node count is not the width of the path.
    """
    node = accept_index[accept_index >= 0].to(torch.int64)  # [num_accepted]
    accept_out_cache_loc = out_cache_loc.new_zeros(accept_index.numel())
    accept_out_cache_loc[: node.shape[0]] = out_cache_loc[node]
    return accept_out_cache_loc


@contract(
    """
    accept_index      [bs, accept_width] int32: the accepted path as node numbers in the batch, ascending, then -1; a
                      padding request has -1 only
    accept_lens       [bs] int32, 0 to accept_width if accept_width < num_draft_tokens else num_draft_tokens: entries of
                      the path, the root included; 0 for padding
    out_cache_loc     [num_nodes = bs * num_draft_tokens] int64: slot of each node, all distinct, in the order of the
                      row's positions
    predict           [num_nodes] int32: token that follows each node
    hidden_states     [num_nodes, hidden_size] any: a row for each node
    -> CompactedPath
    num_draft_tokens  int, 1 or more: nodes a tree, the root included
    """
)
def compact_accepted_path(
    accept_index: Tensor,
    accept_lens: Tensor,
    out_cache_loc: Tensor,
    predict: Tensor,
    hidden_states: Tensor,
    num_draft_tokens: int,
) -> CompactedPath:
    """What makes an accepted path through a tree look like a chain: its nodes move to the front of the block.

    After `move_kv(buffer, target, source)` the slot of the block's j-th position holds the KV of the j-th
    accepted node, for every j < `accept_lens[b]`, and tokens and hidden states stand in the same order.

    Elements that are not defined keep their value from before. Raises ValueError for lengths above
    `accept_width` or `ndt` and for paths that do not ascend, leave their block or differ from their length.
    Source: SGLang PR #26866.
    """
    if validation.enabled():
        _check_compact(accept_index, accept_lens, num_draft_tokens)
    bs, accept_width = accept_index.shape
    depth = torch.arange(accept_width, device=accept_index.device)  # [accept_width]
    accepted = depth < accept_lens[:, None]  # [bs, accept_width]
    block = torch.arange(bs, device=accept_index.device)[:, None] * num_draft_tokens  # [bs, 1]
    front = (block + depth)[accepted]  # [num_accepted], where a node goes
    node = accept_index[accepted].to(torch.int64)  # [num_accepted], where it comes from

    target = out_cache_loc.new_zeros(bs * accept_width)
    source = out_cache_loc.new_zeros(bs * accept_width)
    target[: node.shape[0]] = out_cache_loc[front]
    source[: node.shape[0]] = out_cache_loc[node]
    compacted_predict, compacted_hidden_states = predict.clone(), hidden_states.clone()
    compacted_predict[front] = predict[node]
    compacted_hidden_states[front] = hidden_states[node]
    return CompactedPath(target, source, compacted_predict, compacted_hidden_states)


@contract(
    """
    buffer  [num_slots, row_width] any, changed in place: a row of KV for each slot; rows that are no target do not
            change
    target  [num_moves] int64, 0 to num_slots - 1: slots to write, distinct; but 0 to 0 may repeat, as padding
    source  [num_moves] int64, 0 to num_slots - 1: slots to read; may overlap the targets in any way
    """
)
def move_kv(buffer: Tensor, target: Tensor, source: Tensor) -> None:
    """Copy rows of a KV buffer to other slots, as if every row were read before any is written.

    A slot may be a target more than once if its source is the same each time, as for padding, which moves slot 0 onto
    itself. Raises ValueError for slots outside the buffer and for a target with two sources.
    Source: SGLang PR #11126.
    """
    if validation.enabled():
        _check_move(target, source)
    buffer[target] = buffer[source]  # indexing copies: all rows are read first


@contract(
    """
    seq_lens          [bs] int64, 0 or more: tokens before the tree
    evict_mask        [num_nodes = bs * num_draft_tokens] bool, changed in place: True for a node whose slot is to be
                      freed; every request keeps one at least
    page_size         int: slots a page, a power of two
    num_draft_tokens  int, 1 or more: nodes a tree, the root included
    """
)
def align_evict_mask_to_page_size(seq_lens: Tensor, evict_mask: Tensor, page_size: int, num_draft_tokens: int) -> None:
    """Do not evict what shares a page with the last token that is kept: memory is freed in whole pages.

    A request that keeps n of its nodes keeps positions up to `seq_len + n - 1`. Nodes whose position lies on
    the page of that position are taken out of the mask.

    Raises ValueError for negative lengths, a request that keeps no node and a page size that is no power of two.
    Source: SGLang's EAGLE verification with pages.
    """
    if validation.enabled():
        _require_page_size(page_size)
        _check_evict(evict_mask, num_draft_tokens)
    mask = evict_mask.view(-1, num_draft_tokens)  # [bs, num_draft_tokens]
    last_kept = seq_lens + (~mask).sum(1) - 1  # [bs], position
    position = seq_lens[:, None] + torch.arange(num_draft_tokens, device=seq_lens.device)  # [bs, num_draft_tokens]
    mask &= position // page_size != (last_kept // page_size)[:, None]


def _ceil_div(value: _IntOrTensor, divisor: int) -> _IntOrTensor:
    return (value + divisor - 1) // divisor


def _branch_starts(seq_lens: Tensor, topk: int, num_steps: int, page_size: int) -> Tensor:
    """The position of the first draft token of each branch, [bs, topk]; see the module's docstring."""
    pages = _ceil_div(seq_lens % page_size + num_steps, page_size)  # [bs]
    return seq_lens[:, None] + torch.arange(topk, device=seq_lens.device) * (pages * page_size)[:, None]


def _require_page_size(page_size: int) -> None:
    if page_size < 1 or page_size & (page_size - 1):
        raise ValueError(f"page_size is {page_size}; allowed: a power of two, 1 included")


def _check_alloc_extend(
    prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, page_size: int
) -> None:
    validation.require_all(seq_lens >= prefix_lens, "seq_lens", seq_lens, "prefix_lens of the request or more")
    _check_free_pages(prefix_lens, seq_lens, last_loc, free_pages, page_size)


def _check_alloc_decode(seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, page_size: int) -> None:
    validation.require_all(seq_lens >= 1, "seq_lens", seq_lens, "1 or more: the new token is counted")
    _check_free_pages(seq_lens - 1, seq_lens, last_loc, free_pages, page_size)


def _check_free_pages(
    prefix_lens: Tensor, seq_lens: Tensor, last_loc: Tensor, free_pages: Tensor, page_size: int
) -> None:
    _require_page_size(page_size)
    placed = (last_loc >= page_size) & ((last_loc + 1) % page_size == prefix_lens % page_size)
    fits = torch.where(prefix_lens == 0, last_loc == -1, placed)
    allowed = "-1 without a prefix, else a slot at offset (prefix_len - 1) % page_size of a page other than 0"
    validation.require_all(fits, "last_loc", last_loc, allowed)
    validation.require_all(free_pages >= 1, "free_pages", free_pages, "1 or more: page 0 is the padding sink")
    validation.require_distinct("free_pages", free_pages)
    in_use = last_loc[prefix_lens > 0] // page_size
    validation.require_all(
        ~torch.isin(free_pages, in_use), "free_pages", free_pages, "pages other than those of last_loc"
    )
    needed = int((_ceil_div(seq_lens, page_size) - _ceil_div(prefix_lens, page_size)).sum())
    validation.require_scalar("num_free_pages (the length of free_pages)", free_pages.shape[0], needed)


def _check_draft(seq_lens: Tensor, pool_len: int, topk: int, num_steps: int, page_size: int) -> None:
    _require_page_size(page_size)
    end = _branch_starts(seq_lens, topk, num_steps, page_size)[:, -1] + num_steps  # [bs], of the last branch
    fits = (seq_lens >= 0) & (end <= pool_len)
    validation.require_all(fits, "seq_lens", seq_lens, f"0 or more, and all branches within the row of {pool_len}")


def _check_compact(accept_index: Tensor, accept_lens: Tensor, num_draft_tokens: int) -> None:
    bs, accept_width = accept_index.shape
    on_path = torch.arange(accept_width, device=accept_index.device) < accept_lens[:, None]  # [bs, accept_width]
    block = torch.arange(bs, device=accept_index.device)[:, None] * num_draft_tokens  # [bs, 1]
    own = (accept_index >= block) & (accept_index < block + num_draft_tokens)
    ascends = torch.ones_like(own)
    ascends[:, 1:] = accept_index[:, 1:] > accept_index[:, :-1]
    valid = torch.where(on_path, own & ascends, accept_index == -1)
    allowed = "ascending nodes of the request's own block in the first accept_lens[b] columns, then -1"
    validation.require_all(valid, "accept_index", accept_index, allowed)


def _check_move(target: Tensor, source: Tensor) -> None:
    to_slot, order = target.sort()
    from_slot = source[order]
    clash = (to_slot[1:] == to_slot[:-1]) & (from_slot[1:] != from_slot[:-1])
    agrees = torch.ones_like(target, dtype=torch.bool)
    agrees[order[1:]] = ~clash
    validation.require_all(agrees, "target", target, "one source for each target")


def _check_evict(evict_mask: Tensor, num_draft_tokens: int) -> None:
    evicted = evict_mask.view(-1, num_draft_tokens).sum(1)  # [bs], nodes
    allowed = f"False for at least one of the {num_draft_tokens} nodes of each request"
    validation.require_all(evicted < num_draft_tokens, "evict_mask, nodes evicted of request ", evicted, allowed)
