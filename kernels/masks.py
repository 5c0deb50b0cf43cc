"""Masks of trees: the tree behind a mask, and masks as bits. What bounds them: a launch each, and the mask's bytes."""
# Triton's decorator has no types and kernels take no annotations but tl.constexpr; host functions are typed.
# mypy: disable-error-code="no-untyped-def, no-untyped-call, untyped-decorator"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from specsim.kernels.launch import checked_launch
from specsim.reference.masks import packed_bytes

__all__ = ["pack_tree_mask", "reconstruct_tree", "unpack_tree_mask"]

NUM_DRAFT_TOKENS_MAX = 256
"""Nodes of a tree whose relations are held in registers, a strip of columns at a time."""

BLOCK_C = 32


class Links(NamedTuple):
    """What describes trees: addresses of positions [num_nodes] int64, and of numbers and links
    [bs, num_draft_tokens] int64, as specsim.reference.tree.build_tree has them.
    """

    positions: Any
    retrieve_index: Any
    next_token: Any
    next_sibling: Any


@checked_launch()
def reconstruct_tree(
    tree_mask: Tensor,
    verified_seq_len: Tensor,
    positions: Tensor,
    retrieve_index: Tensor,
    retrieve_next_token: Tensor,
    retrieve_next_sibling: Tensor,
) -> None:
    """Write positions and links of the tree behind a mask of ancestors.

    Shapes and dtypes: specsim.reference.masks.reconstruct_tree. A mask that is no tree's gives links to later nodes of
    the same tree, so that walks over them end. Raises ValueError for more than 256 nodes.
    """
    bs, ndt = retrieve_index.shape
    if ndt > NUM_DRAFT_TOKENS_MAX:
        raise ValueError(f"num_draft_tokens is {ndt}; allowed: at most {NUM_DRAFT_TOKENS_MAX}")
    if bs == 0:
        return
    block_n = triton.next_power_of_2(ndt)
    _reconstruct_tree_kernel[(bs,)](
        tree_mask.view(torch.uint8),
        verified_seq_len,
        positions,
        retrieve_index,
        retrieve_next_token,
        retrieve_next_sibling,
        NDT=ndt,
        BLOCK_N=block_n,
        BLOCK_C=min(block_n, BLOCK_C),
        num_warps=1 if block_n <= 8 else 4 if block_n <= 64 else 8,
    )


@checked_launch()
def pack_tree_mask(tree_mask: Tensor, packed: Tensor) -> None:
    """Write a bit for each element of the mask, 1, 2 or 4 bytes for each of its rows.

    Shapes, dtypes and layout: specsim.reference.masks.pack_tree_mask. An element other than 0 and 1 counts as 1. Raises
    ValueError for more than 32 nodes.
    """
    bs, ndt, width = packed.shape
    packed_bytes(ndt)  # raises for more than 32 nodes
    if bs == 0:
        return
    block_r = 16
    _pack_tree_mask_kernel[(triton.cdiv(bs * ndt, block_r),)](
        tree_mask.view(torch.uint8),
        packed,
        bs * ndt,
        NDT=ndt,
        WIDTH=width,
        BLOCK_R=block_r,
        BLOCK_BYTES=triton.next_power_of_2(width),
        num_warps=4,
    )


@checked_launch()
def unpack_tree_mask(packed: Tensor, tree_mask: Tensor) -> None:
    """Write the mask that `pack_tree_mask` packed; bits of no node are not read.

    Shapes, dtypes and layout: specsim.reference.masks.unpack_tree_mask. Raises ValueError for more than 32 nodes.
    """
    bs, ndt, width = packed.shape
    packed_bytes(ndt)  # raises for more than 32 nodes
    if bs == 0:
        return
    block_r = 16
    _unpack_tree_mask_kernel[(triton.cdiv(bs * ndt, block_r),)](
        packed,
        tree_mask.view(torch.uint8),
        bs * ndt,
        NDT=ndt,
        WIDTH=width,
        BLOCK_R=block_r,
        BLOCK_N=triton.next_power_of_2(ndt),
        num_warps=4,
    )


@triton.jit
def links_of(b_parent, NDT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr):
    """First child and next sibling of each node [BLOCK_N], -1 where there is none, from the parents; -1 is no parent.

    Other nodes are compared in strips of `BLOCK_C`, so that no tile is wider than that.
    """
    # [BLOCK_N]
    o_n = tl.arange(0, BLOCK_N)
    b_child = tl.full([BLOCK_N], BLOCK_N, tl.int32)
    b_sibling = tl.full([BLOCK_N], BLOCK_N, tl.int32)
    for i_first in range(0, NDT, BLOCK_C):
        # [BLOCK_C]
        o_c = i_first + tl.arange(0, BLOCK_C)
        b_other = tl.gather(b_parent, o_c, axis=0)
        # [BLOCK_N, BLOCK_C]
        m_other = (b_other >= 0) & (o_c < NDT)
        m_child = (b_other[None, :] == o_n[:, None]) & m_other[None, :]
        m_sibling = (b_other[None, :] == b_parent[:, None]) & m_other[None, :] & (o_c[None, :] > o_n[:, None])
        b_child = tl.minimum(b_child, tl.min(tl.where(m_child, o_c[None, :], BLOCK_N), axis=1))
        b_sibling = tl.minimum(b_sibling, tl.min(tl.where(m_sibling, o_c[None, :], BLOCK_N), axis=1))
    return tl.where(b_child < BLOCK_N, b_child, -1), tl.where(b_sibling < BLOCK_N, b_sibling, -1)


@triton.jit
def store_links(
    links, i_b, i_seq_len, b_depth, b_parent, NDT: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_C: tl.constexpr
):
    """Store positions, numbers and links of one tree in `Links`, from depths and parents [BLOCK_N]."""
    b_child, b_sibling = links_of(b_parent, NDT, BLOCK_N, BLOCK_C)
    o_n = tl.arange(0, BLOCK_N)
    m_n = o_n < NDT
    o_node = i_b * NDT + o_n
    tl.store(links.positions + o_node, i_seq_len + b_depth, mask=m_n)
    tl.store(links.retrieve_index + o_node, o_node, mask=m_n)
    tl.store(links.next_token + o_node, b_child.to(tl.int64), mask=m_n)
    tl.store(links.next_sibling + o_node, b_sibling.to(tl.int64), mask=m_n)


@triton.jit
def _reconstruct_tree_kernel(
    p_tree_mask,
    p_verified_seq_len,
    p_positions,
    p_retrieve_index,
    p_next_token,
    p_next_sibling,
    NDT: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_C: tl.constexpr,
):
    """One program a request."""
    i_b = tl.program_id(0).to(tl.int64)
    # [BLOCK_N]
    o_n = tl.arange(0, BLOCK_N)
    b_depth = tl.zeros([BLOCK_N], dtype=tl.int32)
    b_parent = tl.full([BLOCK_N], -1, tl.int32)
    for i_first in range(0, NDT, BLOCK_C):
        # [BLOCK_N, BLOCK_C]: earlier nodes that the row attends to
        o_c = i_first + tl.arange(0, BLOCK_C)
        m_earlier = (o_n < NDT)[:, None] & (o_c[None, :] < o_n[:, None])
        o_mask = (i_b * NDT + o_n[:, None]) * NDT + o_c[None, :]
        m_ancestor = tl.load(p_tree_mask + o_mask, mask=m_earlier, other=0) != 0
        b_depth += tl.sum(m_ancestor.to(tl.int32), axis=1)
        b_parent = tl.maximum(b_parent, tl.max(tl.where(m_ancestor, o_c[None, :], -1), axis=1))
    i_seq_len = tl.load(p_verified_seq_len + i_b)
    links = Links(p_positions, p_retrieve_index, p_next_token, p_next_sibling)
    store_links(links, i_b, i_seq_len, b_depth, b_parent, NDT, BLOCK_N, BLOCK_C)


@triton.jit(do_not_specialize=["num_rows"])
def _pack_tree_mask_kernel(
    p_tree_mask,
    p_packed,
    num_rows,
    NDT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_BYTES: tl.constexpr,
):
    """One program a block of rows."""
    # [BLOCK_R, BLOCK_BYTES, 8]
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    o_byte = tl.arange(0, BLOCK_BYTES)
    o_bit = tl.arange(0, 8)
    o_n = o_byte[:, None] * 8 + o_bit[None, :]
    m_n = (o_r < num_rows)[:, None, None] & (o_n < NDT)[None, :, :]
    b_mask = tl.load(p_tree_mask + o_r[:, None, None] * NDT + o_n[None, :, :], mask=m_n, other=0)
    b_bits = tl.where(b_mask != 0, 1 << o_bit[None, None, :], 0)
    # [BLOCK_R, BLOCK_BYTES]
    b_packed = tl.sum(b_bits, axis=2).to(tl.uint8)
    m_packed = (o_r < num_rows)[:, None] & (o_byte < WIDTH)[None, :]
    tl.store(p_packed + o_r[:, None] * WIDTH + o_byte[None, :], b_packed, mask=m_packed)


@triton.jit(do_not_specialize=["num_rows"])
def _unpack_tree_mask_kernel(
    p_packed,
    p_tree_mask,
    num_rows,
    NDT: tl.constexpr,
    WIDTH: tl.constexpr,
    BLOCK_R: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """One program a block of rows."""
    # [BLOCK_R, BLOCK_N]
    o_r = tl.program_id(0).to(tl.int64) * BLOCK_R + tl.arange(0, BLOCK_R)
    o_n = tl.arange(0, BLOCK_N)
    m_n = (o_r < num_rows)[:, None] & (o_n < NDT)[None, :]
    b_byte = tl.load(p_packed + o_r[:, None] * WIDTH + (o_n // 8)[None, :], mask=m_n, other=0)
    b_bit = (b_byte.to(tl.int32) >> (o_n % 8)[None, :]) & 1
    tl.store(p_tree_mask + o_r[:, None] * NDT + o_n[None, :], b_bit.to(tl.uint8), mask=m_n)


@triton.jit
def store_slots(
    p_req_pool_indices,
    p_req_to_token,
    p_out_cache_loc,
    i_b,
    i_seq_len,
    pool_len,
    NDT: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """The slots of a tree's nodes, which follow the sequence in its row; 0 for a column beyond the row."""
    # [BLOCK_N]
    o_n = tl.arange(0, BLOCK_N)
    i_row = tl.load(p_req_pool_indices + i_b)
    o_slot = i_seq_len + o_n
    m_slot = (o_n < NDT) & (o_slot >= 0) & (o_slot < pool_len)
    b_slot = tl.load(p_req_to_token + i_row * pool_len + o_slot, mask=m_slot, other=0).to(tl.int64)
    tl.store(p_out_cache_loc + i_b * NDT + o_n, b_slot, mask=o_n < NDT)
