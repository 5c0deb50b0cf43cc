"""Links and masks: a tree as its parents, as links between siblings, as a mask, and as a mask of bits.

Parents come before children, and siblings are linked in ascending order, so each of these says the same as the others.
In a mask, a row is a node and says which nodes it attends to: itself and its ancestors.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import validation
from specsim.reference.argument_tables import contract, fields

__all__ = ["TreeLinks", "pack_tree_mask", "reconstruct_tree", "unpack_tree_mask"]

PACKED_NODES_MAX = 32
"""Nodes of the largest tree whose mask rows are packed into bits."""


@fields(
    """
    positions              [num_nodes = bs * num_draft_tokens] int64: verified_seq_len plus depth of the node
    retrieve_index         [bs, num_draft_tokens] int64: b * num_draft_tokens + i for node i
    retrieve_next_token    [bs, num_draft_tokens] int64: first child, -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64: next node with the same parent in ascending order, -1 if there
                           is none
    """
)
class TreeLinks(NamedTuple):
    """A tree but for its mask; see `tree.Tree`."""

    positions: Tensor
    retrieve_index: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor


def links_of(parent: Tensor) -> tuple[Tensor, Tensor]:
    """`retrieve_next_token` and `retrieve_next_sibling`, see `TreeLinks`, of trees given by their parents.

    parent  [bs, ndt] int64: the parent of each node, an earlier one; -1 for the root
    """
    node = torch.arange(parent.shape[1], device=parent.device)  # [ndt]
    is_child = parent[:, None, :] == node[:, None]  # [bs, ndt, ndt]: column is a child of row
    is_sibling = (parent[:, None, :] == parent[:, :, None]) & (node > node[:, None])  # [bs, ndt, ndt]: a later one
    return first_column(is_child), first_column(is_sibling)


def first_column(matches: Tensor) -> Tensor:
    """The first True column of each row of a [..., rows, columns] mask, -1 where there is none."""
    return torch.where(matches.any(dim=-1), matches.to(torch.uint8).argmax(dim=-1), -1)


@contract(
    """
    tree_mask         [bs, num_draft_tokens >= 1, num_draft_tokens] bool: True where the column's node is the row's node
                      or one of its ancestors; node 0 is the root
    verified_seq_len  [bs] int64, 0 or more: tokens before the root, which is the position of the root
    -> TreeLinks
    """
)
def reconstruct_tree(tree_mask: Tensor, verified_seq_len: Tensor) -> TreeLinks:
    """The tree behind a mask of ancestors; the inverse of `tree.build_tree` with QLEN_ONLY.

    Parents come before children, so the parent is the last ancestor, and the depth is the number of ancestors. Raises
    ValueError for a mask that is not a tree's: a row must be its parent's row and the node itself, the root's row the
    root alone. Source: EAGLE-2 (arXiv 2406.16858), section 4.2, whose mask it reads backwards.
    """
    if validation.enabled():
        _check_tree(tree_mask)
    bs, ndt, _ = tree_mask.shape
    node = torch.arange(ndt, device=tree_mask.device)  # [ndt]
    is_ancestor = tree_mask & (node < node[:, None])  # [bs, ndt, ndt], without the node itself
    depth = is_ancestor.sum(dim=-1)  # [bs, ndt]
    parent = torch.where(is_ancestor, node, -1).amax(dim=-1)  # [bs, ndt], -1 for the root
    return TreeLinks(
        (verified_seq_len[:, None] + depth).flatten(),
        torch.arange(bs * ndt, device=tree_mask.device).view(bs, ndt),
        *links_of(parent),
    )


@contract(
    """
    tree_mask  [bs, num_draft_tokens >= 1, num_draft_tokens] bool: True where the row's node attends to the column's; at
               most 32 nodes
    -> packed  [bs, num_draft_tokens, packed_bytes = 1 if num_draft_tokens <= 8 else 2 if num_draft_tokens <= 16 else 4]
               uint8: column j is bit j % 8, the lowest first, of byte j // 8; bits of no node are 0
    """
)
def pack_tree_mask(tree_mask: Tensor) -> Tensor:
    """A bit for each element of the mask, a few bytes for each of its rows.

    Raises ValueError for more than 32 nodes.
    Source: EAGLE-2 (arXiv 2406.16858), section 4.2, for the mask; the layout is that of attention kernels that take it
    as bits.
    """
    bs, ndt, _ = tree_mask.shape
    width = packed_bytes(ndt)
    bits = torch.zeros(bs, ndt, width * 8, dtype=torch.int64, device=tree_mask.device)
    bits[:, :, :ndt] = tree_mask
    weight = 1 << torch.arange(8, device=tree_mask.device)  # [8]
    return (bits.view(bs, ndt, width, 8) * weight).sum(dim=-1).to(torch.uint8)


@contract(
    """
    packed        [bs, num_draft_tokens, packed_bytes = 1 if num_draft_tokens <= 8 else 2 if num_draft_tokens <= 16 else
                  4] uint8: column j is bit j % 8, the lowest first, of byte j // 8; bits of no node are 0
    -> tree_mask  [bs, num_draft_tokens, num_draft_tokens] bool: True where the row's node attends to the column's; at
                  most 32 nodes
    """
)
def unpack_tree_mask(packed: Tensor) -> Tensor:
    """The mask that `pack_tree_mask` packed.

    Raises ValueError for more than 32 nodes, for a number of bytes that is not that of
    `ndt` nodes, and for a bit that belongs to no node.
    Source: EAGLE-2 (arXiv 2406.16858), section 4.2, for the mask.
    """
    if validation.enabled():
        _check_packed(packed)
    ndt = packed.shape[1]
    shift = torch.arange(8, device=packed.device, dtype=torch.uint8)  # [8]
    bits = (packed[:, :, :, None] >> shift) & 1  # [bs, ndt, packed_bytes, 8]
    return bits.flatten(2)[:, :, :ndt].to(torch.bool)


def packed_bytes(num_draft_tokens: int) -> int:
    """Bytes of a packed mask's row. Raises ValueError for more than 32 nodes."""
    if num_draft_tokens > PACKED_NODES_MAX:
        raise ValueError(f"num_draft_tokens is {num_draft_tokens}; allowed: 1 to {PACKED_NODES_MAX} in a packed mask")
    if num_draft_tokens <= 8:
        return 1
    return 2 if num_draft_tokens <= 16 else 4


def _check_tree(tree_mask: Tensor) -> None:
    bs, ndt, _ = tree_mask.shape
    node = torch.arange(ndt, device=tree_mask.device)
    itself = (node == node[:, None]).expand(bs, ndt, ndt)  # [bs, ndt, ndt]
    last_ancestor = torch.where(tree_mask & (node < node[:, None]), node, -1).amax(dim=-1)  # [bs, ndt]
    row_of_parent = tree_mask.gather(1, last_ancestor.clamp(min=0)[:, :, None].expand(bs, ndt, ndt))
    of_a_tree = torch.where(node[:, None] == 0, itself, row_of_parent | itself)
    validation.require_all(
        tree_mask == of_a_tree,
        "tree_mask",
        tree_mask,
        "rows of a tree: the root, the parent's ancestors, the parent, the node itself",
    )


def _check_packed(packed: Tensor) -> None:
    _, ndt, width = packed.shape
    packed_bytes(ndt)
    used = (ndt - 8 * torch.arange(width, device=packed.device)).clamp(min=0, max=8)  # [width]: bits of nodes
    validation.require_all(packed < (1 << used), "packed", packed, f"bits 0 to {ndt - 1}, of the nodes, alone")
