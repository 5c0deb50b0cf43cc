"""Building draft trees: mask, positions and links in one launch; a second one fills the mask in FULL_MASK.

One program a request holds its whole tree in registers as relations between nodes, tiles of [nodes, nodes]:
who is whose parent, ancestor, sibling. What bounds it: the launch, and the dependent chain of `num_steps + 1`
reductions that walks all nodes to the root at once. In FULL_MASK the bytes of the mask: the columns before
the tree are filled at memory speed.
"""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import operation
from specsim.ops.tree import FULL_MASK, QLEN_ONLY

BLOCK_B = 256
NUM_DRAFT_TOKENS_MAX = 256
"""Tiles are held in registers: 64 nodes fit well, 256 spill, more would not compile in reasonable time."""


@operation()
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
    it; it attends to itself and to those of its ancestors that are selected without a gap. A `tree_mask` that
    is larger than the batch needs is filled with True beyond.

    Raises ValueError for more than 256 nodes a tree and for unknown mask modes.
    """
    if num_draft_tokens > NUM_DRAFT_TOKENS_MAX:
        raise ValueError(f"num_draft_tokens is {num_draft_tokens}; allowed: at most {NUM_DRAFT_TOKENS_MAX}")
    if tree_mask_mode not in (FULL_MASK, QLEN_ONLY):
        raise ValueError(f"tree_mask_mode is {tree_mask_mode}; allowed: {FULL_MASK} (full) or {QLEN_ONLY} (tree only)")
    bs = selected_index.shape[0]
    if bs == 0:
        return
    if tree_mask_mode == FULL_MASK:
        tree_mask.fill_(True)
    block_n = triton.next_power_of_2(num_draft_tokens)
    _build_tree_kernel[(bs,)](
        parent_list,
        selected_index,
        verified_seq_len,
        tree_mask.view(torch.uint8),
        positions,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        tree_mask.shape[0],
        PARENT_WIDTH=parent_list.shape[1],
        TOPK=topk,
        NUM_STEPS=num_steps,
        NDT=num_draft_tokens,
        IS_FULL_MASK=tree_mask_mode == FULL_MASK,
        BLOCK_B=BLOCK_B,
        BLOCK_N=block_n,
        num_warps=_num_warps(block_n),
    )


def _num_warps(block_n: int) -> int:
    """Warps for a tile of [block_n, block_n]: what was fastest on an H200. Fewer spill, more wait for each other."""
    return 4 if block_n <= 16 else {32: 8, 64: 16, 128: 16}.get(block_n, 32)


@triton.jit
def _first_column(m_matches, o_column, BLOCK_N: tl.constexpr):
    """The first True column of each row of a [rows, columns] mask, -1 where there is none."""
    b_first = tl.min(tl.where(m_matches, o_column, BLOCK_N), axis=1)
    return tl.where(b_first < BLOCK_N, b_first, -1)


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


@triton.jit(do_not_specialize=["mask_numel"])
def _build_tree_kernel(
    p_parent_list,
    p_selected_index,
    p_verified_seq_len,
    p_tree_mask,
    p_positions,
    p_retrieve_index,
    p_retrieve_next_token,
    p_retrieve_next_sibling,
    mask_numel,
    PARENT_WIDTH: tl.constexpr,
    TOPK: tl.constexpr,
    NUM_STEPS: tl.constexpr,
    NDT: tl.constexpr,
    IS_FULL_MASK: tl.constexpr,
    BLOCK_B: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program a request. Tiles are [row, column] = [node, another node]; -1 is no node."""
    i_b = tl.program_id(0).to(tl.int64)
    i_seq_len = tl.load(p_verified_seq_len + i_b)
    o_n = tl.arange(0, BLOCK_N)
    o_row = o_n[:, None]
    o_column = o_n[None, :]
    m_n = o_n < NDT

    # [BLOCK_N]: flat id of each node, of node 0 and beyond the tree one that matches nothing
    m_selected = (o_n >= 1) & m_n
    b_flat_id = tl.load(p_selected_index + i_b * (NDT - 1) + o_n - 1, mask=m_selected, other=-1)
    b_group = b_flat_id // TOPK
    m_top = m_selected & (b_group == 0)
    m_inner = m_selected & (b_group > 0) & (b_group < PARENT_WIDTH)
    b_parent_id = tl.load(p_parent_list + i_b * PARENT_WIDTH + b_group, mask=m_inner, other=-2)

    # [BLOCK_N]: parent node. A parent comes before its child, so walks to the root end whatever the ids are.
    m_is_parent = (b_parent_id[:, None] == b_flat_id[None, :]) & (o_column < o_row)
    b_parent = tl.where(m_top, 0, _first_column(m_is_parent & m_selected[None, :], o_column, BLOCK_N))

    # [BLOCK_N, BLOCK_N]: all nodes walk to the root together
    m_ancestor = o_row == o_column
    b_current = b_parent
    for _ in tl.static_range(NUM_STEPS):
        m_current = b_current[:, None] == o_column
        m_ancestor = m_ancestor | m_current
        b_current = tl.sum(tl.where(m_current, b_parent[None, :] + 1, 0), axis=1) - 1
    b_depth = tl.sum(m_ancestor.to(tl.int32), axis=1) - 1

    m_same_parent = (b_parent[:, None] == b_parent[None, :]) & (b_parent[None, :] >= 0)
    b_next_token = _first_column(b_parent[None, :] == o_row, o_column, BLOCK_N)
    b_next_sibling = _first_column(m_same_parent & (o_column > o_row), o_column, BLOCK_N)

    o_node = i_b * NDT + o_n
    tl.store(p_positions + o_node, i_seq_len + b_depth, mask=m_n)
    tl.store(p_retrieve_index + o_node, o_node, mask=m_n)
    tl.store(p_retrieve_next_token + o_node, b_next_token.to(tl.int64), mask=m_n)
    tl.store(p_retrieve_next_sibling + o_node, b_next_sibling.to(tl.int64), mask=m_n)

    if IS_FULL_MASK:
        i_request = _full_mask_before(p_verified_seq_len, i_b, NDT, BLOCK_B)
        o_mask = i_request + o_row * (i_seq_len + NDT) + i_seq_len + o_column
    else:
        o_mask = i_b * NDT * NDT + o_row * NDT + o_column
    m_mask = m_n[:, None] & m_n[None, :] & (o_mask < mask_numel)
    tl.store(p_tree_mask + o_mask, m_ancestor.to(tl.uint8), mask=m_mask)
