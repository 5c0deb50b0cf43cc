"""`specsim.reference.tree` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import torch
from torch import Tensor

from property_tests.naive import masks
from specsim.reference.tree import FULL_MASK, QLEN_ONLY, Tree


def build_tree_naive(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
    tree_mask_mode: int,
) -> Tree:
    """`build_tree`, one node at a time."""
    mask: list[bool] = []
    positions: list[int] = []
    links: list[tuple[list[int], list[int]]] = []
    for b, seq_len in enumerate(verified_seq_len.tolist()):
        flat_ids = selected_index[b].tolist()
        node_of = {flat_id: i for i, flat_id in enumerate(flat_ids, start=1)}
        parent = [-1]
        for flat_id in flat_ids:
            group = flat_id // topk
            parent_id = None if group == 0 else int(parent_list[b, group])
            parent.append(0 if parent_id is None else node_of[parent_id])

        links.append(masks.links_of_naive(parent))
        for i in range(num_draft_tokens):
            path = [i]
            while path[-1] != 0:
                path.append(parent[path[-1]])
            positions.append(seq_len + len(path) - 1)
            if tree_mask_mode == FULL_MASK:
                mask.extend([True] * seq_len)
            mask.extend(j in path for j in range(num_draft_tokens))

    bs, device = selected_index.shape[0], selected_index.device
    numbers = list(range(bs * num_draft_tokens))
    lists = (numbers, [next_token for next_token, _ in links], [next_sibling for _, next_sibling in links])
    return Tree(
        torch.tensor(mask, dtype=torch.bool, device=device),
        torch.tensor(positions, dtype=torch.int64, device=device),
        *(torch.tensor(values, dtype=torch.int64, device=device).view(bs, num_draft_tokens) for values in lists),
    )


def build_tree_packed_naive(
    parent_list: Tensor,
    selected_index: Tensor,
    verified_seq_len: Tensor,
    topk: int,
    num_steps: int,
    num_draft_tokens: int,
) -> Tree:
    """`build_tree_packed`, one node at a time."""
    tree = build_tree_naive(parent_list, selected_index, verified_seq_len, topk, num_steps, num_draft_tokens, QLEN_ONLY)
    mask = tree.tree_mask.view(-1, num_draft_tokens, num_draft_tokens)
    return tree._replace(tree_mask=masks.pack_tree_mask_naive(mask).flatten())
