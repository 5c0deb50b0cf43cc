"""From the candidates that drafting kept to a tree that the target model can verify in one pass.

Drafting (EAGLE-2, section 4.1 "Expansion Phase") runs `num_steps` steps. Step 0 gives the `topk` best
successors of the root. Every later step expands `topk` of the candidates of the step before it, and each of
those gives `topk` successors, so `topk * topk` new candidates. Candidates are numbered in that order, their
*flat id*:

    step 0         0 .. topk-1
    step i >= 1    topk + (i-1) * topk² + j,   j = 0 .. topk²-1

where `j // topk` says which of the expanded candidates is the parent.

Hence `flat_id // topk` numbers groups of siblings: group 0 is the root's, and `parent_list[group]` is the
flat id of the parent of every other group:

    parent_list = [-1,  0 .. topk-1,  flat ids expanded after step 1,  flat ids expanded after step 2,  ...]

Of all candidates the best `num_draft_tokens - 1` are kept (section 4.2 "Reranking Phase"); `selected_index`
holds their flat ids in ascending order. Node 0 is the root and node i the candidate `selected_index[i-1]`. A
parent's flat id is lower than its children's, so parents come before children.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from specsim.reference import masks, validation
from specsim.reference.argument_tables import contract, fields

__all__ = ["FULL_MASK", "QLEN_ONLY", "Tree", "build_tree", "build_tree_packed"]

FULL_MASK = 0
"""Mask rows span sequence and tree: [num_draft_tokens, seq_len + num_draft_tokens] a request, ragged."""

QLEN_ONLY = 1
"""Mask rows span the tree alone: [num_draft_tokens, num_draft_tokens] a request."""


@fields(
    """
    tree_mask              [mask_numel] bool, prefilled with True: num_draft_tokens rows a request, ragged: in FULL_MASK
                           of seq_len + num_draft_tokens columns, in QLEN_ONLY of num_draft_tokens; True at the sequence
                           before the tree, the node itself and its ancestors
    positions              [num_nodes = bs * num_draft_tokens] int64: verified_seq_len plus depth of the node
    retrieve_index         [bs, num_draft_tokens] int64, prefilled with -1: b * num_draft_tokens + i for node i
    retrieve_next_token    [bs, num_draft_tokens] int64, prefilled with -1: first child, -1 if there is none
    retrieve_next_sibling  [bs, num_draft_tokens] int64, prefilled with -1: next node with the same parent in ascending
                           order, -1 if there is none
    """
)
class Tree(NamedTuple):
    """What verification needs to know of a batch of trees.

    `ndt` is short for `num_draft_tokens`.
    """

    tree_mask: Tensor
    positions: Tensor
    retrieve_index: Tensor
    retrieve_next_token: Tensor
    retrieve_next_sibling: Tensor


@contract(
    """
    parent_list       [bs, parent_width = topk * (num_steps - 1) + 1 if num_steps > 1 else 0] int64: flat id of the
                      parent of each group of topk siblings: -1, then 0..topk-1, then the candidates that each later
                      step expanded; no columns when num_steps is 1
    selected_index    [bs, num_selected = num_draft_tokens - 1] int64, 0 to topk + (num_steps - 1) * topk**2 - 1: flat
                      ids of the candidates that became nodes 1, 2, ..., ascending, each with its parent
    verified_seq_len  [bs] int64, 0 or more: tokens before the root, which is the position of the root
    -> Tree
    topk              int, 1 or more: candidates expanded a step, and successors of each
    num_steps         int, 1 or more: drafting steps; no node is deeper
    num_draft_tokens  int, 2 or more: nodes a tree, the root included
    tree_mask_mode    int, 0 to 1: FULL_MASK or QLEN_ONLY
    """
)
def build_tree(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    tree_mask_mode: int,
) -> Tree:
    """Build the trees of a batch: mask, positions and links.

    The module's docstring explains the two encodings that come in.

    Raises ValueError for flat ids that do not exist, and for an orphan: a selected node whose parent is not
    selected. Source: EAGLE-2 (arXiv 2406.16858), sections 4.1 and 4.2; orphans: SGLang PR #36201 and issue #7477.
    """
    if validation.enabled():
        _check(parent_list, selected_index, topk, num_steps)
    bs, device = selected_index.shape[0], selected_index.device
    parent = _parents(parent_list, selected_index, topk, num_steps)  # [bs, ndt], -1 for the root
    is_ancestor = _ancestors_or_self(parent, num_steps)  # [bs, ndt, ndt]
    depth = is_ancestor.sum(dim=-1) - 1  # [bs, ndt]

    return Tree(
        _full_mask(is_ancestor, verified_seq_len) if tree_mask_mode == FULL_MASK else is_ancestor.flatten(),
        (verified_seq_len[:, None] + depth).flatten(),
        torch.arange(bs * num_draft_tokens, device=device).view(bs, num_draft_tokens),
        *masks.links_of(parent),
    )


@contract(
    """
    parent_list       [bs, parent_width = topk * (num_steps - 1) + 1 if num_steps > 1 else 0] int64: flat id of the
                      parent of each group of topk siblings: -1, then 0..topk-1, then the candidates that each later
                      step expanded; no columns when num_steps is 1
    selected_index    [bs, num_selected = num_draft_tokens - 1] int64, 0 to topk + (num_steps - 1) * topk**2 - 1: flat
                      ids of the candidates that became nodes 1, 2, ..., ascending, each with its parent
    verified_seq_len  [bs] int64, 0 or more: tokens before the root, which is the position of the root
    -> Tree
    -> tree_mask      [mask_bytes] uint8, prefilled with 0: 1, 2 or 4 bytes a node for at most 8, 16 or 32 nodes: bit j,
                      the lowest of the first byte first, is set if the node is j or below it; bits of no node are 0
    topk              int, 1 or more: candidates expanded a step, and successors of each
    num_steps         int, 1 or more: drafting steps; no node is deeper
    num_draft_tokens  int, 2 or more: nodes a tree, the root included
    """
)
def build_tree_packed(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
) -> Tree:
    """`build_tree` whose mask has a bit for each of the tree's nodes, as `masks.pack_tree_mask` lays them out.

    The arguments are those of `build_tree`; `tree_mask` is [bs * num_draft_tokens * packed_bytes] uint8, with 1, 2 or 4
    bytes a row for at most 8, 16 or 32 nodes. Bits of no node are 0, which an implementation that ORs bits into the
    buffer can only give if its caller has zeroed it. Raises ValueError as `build_tree` does, and for more than 32
    nodes.
    Source: EAGLE-2 (arXiv 2406.16858), sections 4.1 and 4.2.
    """
    tree = build_tree(parent_list, selected_index, verified_seq_len, topk, num_steps, num_draft_tokens, QLEN_ONLY)
    mask = tree.tree_mask.view(-1, num_draft_tokens, num_draft_tokens)
    return tree._replace(tree_mask=masks.pack_tree_mask(mask).flatten())


def _parents(parent_list: Tensor, selected_index: Tensor, topk: int, num_steps: int) -> Tensor:
    """The parent node of every node, [bs, ndt]; -1 for the root."""
    root = selected_index.new_full((selected_index.shape[0], 1), -1)
    if num_steps == 1:  # there is one group of siblings, the root's, and `parent_list` is empty
        return torch.cat([root, torch.zeros_like(selected_index)], dim=1)
    group = selected_index // topk  # [bs, ndt-1]
    parent_id = parent_list.gather(1, group)  # [bs, ndt-1]
    is_parent = parent_id[:, :, None] == selected_index[:, None, :]  # [bs, ndt-1, ndt-1]: column is the parent of row
    selected_parent = masks.first_column(is_parent)  # [bs, ndt-1], -1 if not selected
    if validation.enabled():
        orphans = ((group > 0) & (selected_parent < 0)).nonzero()
        if orphans.shape[0]:
            b, i = orphans[0].tolist()
            raise _orphan(b, i + 1, int(selected_index[b, i]), int(parent_id[b, i]))
    return torch.cat([root, torch.where(group == 0, 0, selected_parent + 1)], dim=1)


def _ancestors_or_self(parent: Tensor, num_steps: int) -> Tensor:
    """[bs, ndt, ndt] bool: whether the column's node is the row's node or one of its ancestors."""
    node = torch.arange(parent.shape[1], device=parent.device)  # [ndt]
    current = node.expand_as(parent)  # [bs, ndt]: where the walk from each node to the root stands, -1 beyond the root
    is_ancestor = torch.zeros(*parent.shape, parent.shape[1], dtype=torch.bool, device=parent.device)
    for _ in range(num_steps + 1):  # the deepest node has `num_steps` ancestors
        is_ancestor |= node == current[:, :, None]
        current = torch.where(current < 0, -1, parent.gather(1, current.clamp(min=0)))
    return is_ancestor


def _full_mask(is_ancestor: Tensor, verified_seq_len: Tensor) -> Tensor:
    """The ragged mask whose rows begin with the sequence before the tree, which every node attends to."""
    ndt = is_ancestor.shape[1]
    node = torch.arange(ndt, device=is_ancestor.device)  # [ndt]
    row_len = verified_seq_len + ndt  # [bs]
    request_start = (row_len * ndt).cumsum(0) - row_len * ndt  # [bs]
    row_start = request_start[:, None] + node * row_len[:, None]  # [bs, ndt]
    tree_start = row_start + verified_seq_len[:, None]  # [bs, ndt]
    mask = torch.ones(int((row_len * ndt).sum()), dtype=torch.bool, device=is_ancestor.device)
    mask[tree_start[:, :, None] + node] = is_ancestor
    return mask


def _orphan(b: int, node: int, flat_id: int, parent_id: int) -> ValueError:
    return ValueError(
        f"selected_index[{b}, {node - 1}] is {flat_id}: node {node} of request {b} is an orphan, its parent "
        f"{parent_id} is not selected; allowed: selections that hold the parent of each of their candidates"
    )


def _check(parent_list: Tensor, selected_index: Tensor, topk: int, num_steps: int) -> None:
    ascends = selected_index[:, 1:] > selected_index[:, :-1]
    validation.require_all(ascends, "selected_index[:, 1:]", selected_index[:, 1:], "more than the flat id before it")
    if num_steps > 1:
        step_0 = torch.arange(-1, topk, device=parent_list.device).expand(parent_list.shape[0], -1)
        head = parent_list[:, : topk + 1]
        validation.require_all(
            head == step_0, "parent_list", head, f"-1, 0 .. {topk - 1} in the first {topk + 1} columns"
        )
        group = torch.arange(topk + 1, parent_list.shape[1], device=parent_list.device)
        first_id = topk + torch.div(group - 1 - topk, topk, rounding_mode="floor") * topk**2  # of the step expanded
        later = parent_list[:, topk + 1 :]
        of_step = (later >= first_id) & (later < first_id + topk**2)
        validation.require_all(of_step, f"parent_list[:, {topk + 1}:]", later, "flat ids of the step that was expanded")
