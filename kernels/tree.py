"""Building draft trees: mask, positions, links and, if wanted, the nodes' slots, in one launch.

One program a request holds its tree in registers. Who is whose parent takes one comparison of every two nodes, in
strips of 32 columns. Ancestors are sets of bits, 32 nodes a word, which all nodes double together: after round r a node
knows its nearest 2^r ancestors, so a chain of 63 takes six rounds. What bounds it: the launch, and that chain of
rounds; in FULL_MASK the bytes of the mask, whose columns before the tree are shared out over several programs a
request.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.contracts.contract import Role, TensorArg
from specsim.contracts.registry import OPS
from specsim.contracts.tree import FULL_MASK, QLEN_ONLY
from specsim.kernels.launch import ContractCheck, checked_launch, require_size
from specsim.kernels.masks import BLOCK_C, NUM_DRAFT_TOKENS_MAX, Links, store_links
from specsim.reference.masks import packed_bytes

__all__ = ["build_tree", "build_tree_and_cache_locs", "build_tree_packed"]

BLOCK_B = 256
BLOCK_FILL = 1024
FILL_BYTES = 16 * 1024
"""Of the mask before the tree that one program fills; longer ones are shared out."""

PROGRAMS_MAX = 1024
"""Of a launch that shares them out: eight for each multiprocessor of a large GPU write as fast as memory takes it."""

PACKED = 2


class Slots(NamedTuple):
    """The tensors of `SLOTS`: where nodes get their slots from, and where these are written."""

    req_pool_indices: Any
    req_to_token: Any
    out_cache_loc: Any


SLOTS = (
    TensorArg("req_pool_indices", Role.IN, ("bs",), torch.int64, "rows that the requests hold"),
    TensorArg("req_to_token", Role.IN, ("pool_rows", "pool_len"), torch.int32, "page table"),
    TensorArg("out_cache_loc", Role.OUT, ("num_nodes",), torch.int64, "the slot of each node"),
)
_check_tree_and_slots = ContractCheck((*OPS["build_tree"].args, *SLOTS), OPS["build_tree"].sizes, {})


@checked_launch()
def build_tree(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    tree_mask_mode: int,
) -> None:
    """Write mask, positions and links of a batch of trees.

    Shapes, dtypes and encodings: specsim.reference.tree.build_tree.

    An orphan (a selected node whose parent is not selected) is linked from nowhere, so that no walk can reach
    it; it attends to itself and to those of its ancestors that are selected without a gap. Of a `tree_mask` that
    is larger than the batch needs the rest is not written.

    Raises ValueError for more than 256 nodes a tree and for unknown mask modes.
    """
    _require_mode(tree_mask_mode)
    _build(
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask,
        Links(positions, retrieve_index, retrieve_next_token, retrieve_next_sibling),
        None,
        topk,
        num_draft_tokens,
        tree_mask_mode,
    )


@checked_launch()
def build_tree_packed(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
) -> None:
    """`build_tree` with a mask of bits, whole bytes of which are written: its buffer needs no zeroing.

    Shapes, dtypes and layout: specsim.reference.tree.build_tree_packed. Raises ValueError for more than 32 nodes a
    tree.
    """
    width = packed_bytes(num_draft_tokens)
    require_size("tree_mask", "mask_bytes", tree_mask.shape[0], selected_index.shape[0] * num_draft_tokens * width)
    _build(
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask,
        Links(positions, retrieve_index, retrieve_next_token, retrieve_next_sibling),
        None,
        topk,
        num_draft_tokens,
        PACKED,
    )


def build_tree_and_cache_locs(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
    req_pool_indices: Tensor,
    req_to_token: Tensor,
    out_cache_loc: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    tree_mask_mode: int,
) -> None:
    """`build_tree`, and in the same launch the slots of the nodes.

    req_pool_indices  [bs] int64
    req_to_token      [pool_rows, pool_len] int32
    out_cache_loc     [bs * num_draft_tokens] int64, written: what `assign_extend_cache_locs` gives for the columns
                      `[verified_seq_len, verified_seq_len + num_draft_tokens)`; 0 for a column beyond the row

    Raises ValueError as `build_tree` does.
    """
    _check_tree_and_slots(dict(locals()))
    _require_mode(tree_mask_mode)
    _build(
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask,
        Links(positions, retrieve_index, retrieve_next_token, retrieve_next_sibling),
        Slots(req_pool_indices, req_to_token, out_cache_loc),
        topk,
        num_draft_tokens,
        tree_mask_mode,
    )


def _require_mode(mode: int) -> None:
    if mode not in (FULL_MASK, QLEN_ONLY):
        raise ValueError(f"tree_mask_mode is {mode}; allowed: {FULL_MASK} (full) or {QLEN_ONLY} (tree only)")


def _build(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    tree_mask: Tensor,
    links: Links,
    slots: Slots | None,
    topk: int,
    num_draft_tokens: int,
    mode: int,
) -> None:
    if num_draft_tokens > NUM_DRAFT_TOKENS_MAX:
        raise ValueError(f"num_draft_tokens is {num_draft_tokens}; allowed: at most {NUM_DRAFT_TOKENS_MAX}")
    bs = selected_index.shape[0]
    if mode == QLEN_ONLY and tree_mask.shape[0] < bs * num_draft_tokens**2:
        raise ValueError(f"tree_mask has mask_numel {tree_mask.shape[0]}; allowed: {bs * num_draft_tokens**2} or more")
    if bs == 0:
        return
    splits = 1
    if mode == FULL_MASK:
        splits = max(1, min(PROGRAMS_MAX // bs, tree_mask.shape[0] // bs // FILL_BYTES))
    # Without slots the page table's arguments are never used; any tensors of the right dtypes will do.
    slots_or_any = slots or Slots(verified_seq_len, verified_seq_len, verified_seq_len)
    block_n = triton.next_power_of_2(num_draft_tokens)
    _build_tree_kernel[(bs, splits)](
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask.view(torch.uint8),
        *links,
        *slots_or_any,
        tree_mask.shape[0],
        slots_or_any.req_to_token.shape[-1],
        PARENT_WIDTH=parent_list.shape[1],
        TOPK=topk,
        NDT=num_draft_tokens,
        MODE=mode,
        HASSLOTS=slots is not None,
        PACKED_BYTES=packed_bytes(num_draft_tokens) if mode == PACKED else 0,
        ROUNDS=(num_draft_tokens - 1).bit_length(),
        BLOCK_B=BLOCK_B,
        BLOCK_N=block_n,
        BLOCK_C=min(block_n, BLOCK_C),
        BLOCK_FILL=BLOCK_FILL,
        num_warps=4 if block_n <= 32 else 8,
    )


@triton.jit
def _full_mask_before(p_verified_seq_len, i_b, NDT: tl.constexpr, BLOCK_B: tl.constexpr):
    """Elements of the ragged mask that belong to the requests before `i_b`."""
    b_sum = tl.zeros([BLOCK_B], dtype=tl.int64)
    i_first = 0
    while i_first < i_b:
        # [BLOCK_B]
        o_b = i_first + tl.arange(0, BLOCK_B)
        m_b = o_b < i_b
        b_seq_len = tl.load(p_verified_seq_len + o_b, mask=m_b, other=0)
        b_sum += tl.where(m_b, (b_seq_len + NDT) * NDT, 0)
        i_first += BLOCK_B
    return tl.sum(b_sum, axis=0)


@triton.jit
def _fill_true(p_bytes, i_begin, i_end, i_split, num_splits, BLOCK_FILL: tl.constexpr):
    """Bytes `[i_begin, i_end)` become 1: whole words of 8 bytes, shared out, and by the first program what is left."""
    i_address = p_bytes.to(tl.int64) + i_begin
    i_words = tl.minimum(i_begin + (8 - i_address % 8) % 8, i_end)
    num_words = tl.maximum(i_end - i_words, 0) // 8
    p_words = (p_bytes + i_words).to(tl.pointer_type(tl.int64))
    i_first = i_split * BLOCK_FILL
    while i_first < num_words:
        # [BLOCK_FILL]
        o_word = i_first + tl.arange(0, BLOCK_FILL)
        tl.store(p_words + o_word, tl.full([BLOCK_FILL], 0x0101010101010101, tl.int64), mask=o_word < num_words)
        i_first += num_splits * BLOCK_FILL
    if i_split == 0:
        # [8]
        o_byte = tl.arange(0, 8)
        b_true = tl.full([8], 1, tl.uint8)
        tl.store(p_bytes + i_begin + o_byte, b_true, mask=i_begin + o_byte < i_words)
        i_rest = i_words + num_words * 8
        tl.store(p_bytes + i_rest + o_byte, b_true, mask=i_rest + o_byte < i_end)


@triton.jit
def _parents(
    p_parent_list,
    p_selected_index,
    i_b,
    PARENT_WIDTH: tl.constexpr,
    TOPK: tl.constexpr,
    NDT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """The parent node of each node [BLOCK_N]; -1 for the root and for orphans.

    A parent comes before its child, so that walks to the root end whatever the ids are.
    """
    o_n = tl.arange(0, BLOCK_N)
    p_selected = p_selected_index + i_b * (NDT - 1)
    m_selected = (o_n >= 1) & (o_n < NDT)
    b_flat_id = tl.load(p_selected + o_n - 1, mask=m_selected, other=-1)
    b_group = b_flat_id // TOPK
    m_inner = m_selected & (b_group > 0) & (b_group < PARENT_WIDTH)
    b_parent_id = tl.load(p_parent_list + i_b * PARENT_WIDTH + b_group, mask=m_inner, other=-2)
    b_parent = tl.full([BLOCK_N], BLOCK_N, tl.int32)
    for i_first in range(0, NDT, BLOCK_C):
        # [BLOCK_C]
        o_c = i_first + tl.arange(0, BLOCK_C)
        m_c = (o_c >= 1) & (o_c < NDT)
        b_other_id = tl.load(p_selected + o_c - 1, mask=m_c, other=-1)
        # [BLOCK_N, BLOCK_C]
        m_parent = (b_parent_id[:, None] == b_other_id[None, :]) & m_c[None, :] & (o_c[None, :] < o_n[:, None])
        b_parent = tl.minimum(b_parent, tl.min(tl.where(m_parent, o_c[None, :], BLOCK_N), axis=1))
    m_top = m_selected & (b_flat_id >= 0) & (b_group == 0)
    return tl.where(m_top, 0, tl.where(b_parent < BLOCK_N, b_parent, -1))


@triton.jit
def _ancestors(b_parent, ROUNDS: tl.constexpr, BLOCK_N: tl.constexpr, WORDS: tl.constexpr):
    """Each node's set of ancestors and itself, 32 bits in each of WORDS int64 [BLOCK_N, WORDS], and its depth."""
    o_n = tl.arange(0, BLOCK_N)
    o_word = tl.arange(0, WORDS)
    b_own = tl.full([BLOCK_N, WORDS], 1, tl.int64) << (o_n % 32)[:, None]
    b_set = tl.where((o_n // 32)[:, None] == o_word[None, :], b_own, 0)
    b_depth = (b_parent >= 0).to(tl.int32)
    b_up = b_parent
    for _ in tl.static_range(ROUNDS):
        m_up = b_up >= 0
        o_up = tl.maximum(b_up, 0)
        b_theirs = tl.gather(b_set, tl.broadcast_to(o_up[:, None], [BLOCK_N, WORDS]), axis=0)
        b_set = b_set | tl.where(m_up[:, None], b_theirs, 0)
        b_depth += tl.where(m_up, tl.gather(b_depth, o_up, axis=0), 0)
        b_up = tl.where(m_up, tl.gather(b_up, o_up, axis=0), -1)
    return b_set, b_depth


@triton.jit(do_not_specialize=["mask_numel", "pool_len"])
def _build_tree_kernel(
    p_parent_list,
    p_selected_index,
    p_verified_seq_len,
    p_tree_mask,
    p_positions,
    p_retrieve_index,
    p_next_token,
    p_next_sibling,
    p_req_pool_indices,
    p_req_to_token,
    p_out_cache_loc,
    mask_numel,
    pool_len,
    PARENT_WIDTH: tl.constexpr,
    TOPK: tl.constexpr,
    NDT: tl.constexpr,
    MODE: tl.constexpr,
    HASSLOTS: tl.constexpr,
    PACKED_BYTES: tl.constexpr,
    ROUNDS: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
    BLOCK_FILL: tl.constexpr,
):
    """One program a request builds its tree; in FULL_MASK (0) several fill the columns before it."""
    WORDS: tl.constexpr = BLOCK_N // 32 if BLOCK_N > 32 else 1
    i_b = tl.program_id(0).to(tl.int64)
    i_split = tl.program_id(1)
    i_seq_len = tl.load(p_verified_seq_len + i_b)
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < NDT
    i_mask = i_b * (NDT * NDT)
    len_row = i_seq_len * 0 + NDT
    i_tree = i_seq_len * 0
    if MODE == 0:
        i_mask = _full_mask_before(p_verified_seq_len, i_b, NDT, BLOCK_B)
        len_row = i_seq_len + NDT
        i_tree = i_seq_len
        for i_n in range(NDT):
            i_begin = i_mask + i_n * len_row
            i_end = tl.minimum(i_begin + i_seq_len, mask_numel)
            # Each row begins with another program, for most rows are shorter than all programs' blocks together.
            i_share = (i_split + i_n) % tl.num_programs(1)
            _fill_true(p_tree_mask, i_begin, i_end, i_share, tl.num_programs(1), BLOCK_FILL)
    if i_split == 0:
        b_parent = _parents(p_parent_list, p_selected_index, i_b, PARENT_WIDTH, TOPK, NDT, BLOCK_N, BLOCK_C)
        b_set, b_depth = _ancestors(b_parent, ROUNDS, BLOCK_N, WORDS)
        links = Links(p_positions, p_retrieve_index, p_next_token, p_next_sibling)
        store_links(links, i_b, i_seq_len, b_depth, b_parent, NDT, BLOCK_N, BLOCK_C)
        for i_word in tl.static_range(WORDS):
            # [BLOCK_N]: the word of each node's set
            b_word = tl.sum(tl.where((tl.arange(0, WORDS) == i_word)[None, :], b_set, 0), axis=1)
            if MODE == 2:
                # [BLOCK_N, 4]
                o_byte = tl.arange(0, 4)
                b_byte = (b_word[:, None] >> (8 * o_byte)[None, :]) & 0xFF
                o_mask = (i_b * NDT + o_n[:, None]) * PACKED_BYTES + o_byte[None, :]
                m_mask = m_n[:, None] & (o_byte < PACKED_BYTES)[None, :]
                tl.store(p_tree_mask + o_mask, b_byte.to(tl.uint8), mask=m_mask)
            else:
                # [BLOCK_N, 32]
                o_bit = tl.arange(0, 32)
                b_bit = (b_word[:, None] >> o_bit[None, :]) & 1
                o_column = i_word * 32 + o_bit
                o_mask = i_mask + o_n[:, None] * len_row + i_tree + o_column[None, :]
                m_mask = m_n[:, None] & (o_column < NDT)[None, :] & (o_mask < mask_numel)
                tl.store(p_tree_mask + o_mask, b_bit.to(tl.uint8), mask=m_mask)
        if HASSLOTS:
            # [BLOCK_N]
            i_row = tl.load(p_req_pool_indices + i_b)
            o_slot = i_seq_len + o_n
            m_slot = m_n & (o_slot >= 0) & (o_slot < pool_len)
            b_slot = tl.load(p_req_to_token + i_row * pool_len + o_slot, mask=m_slot, other=0).to(tl.int64)
            tl.store(p_out_cache_loc + i_b * NDT + o_n, b_slot, mask=m_n)
