"""`specsim.reference.masks` once more, one request, node or token at a time: lists, dicts and for loops.

Tests require that both agree. Arguments are not checked here.
"""

from __future__ import annotations

import itertools

import torch
from torch import Tensor

from specsim.reference.masks import TreeLinks, packed_bytes


def links_of_naive(parent: list[int]) -> tuple[list[int], list[int]]:
    """`links_of` one tree, as lists."""
    children: dict[int, list[int]] = {node: [] for node in range(-1, len(parent))}
    for node, its_parent in enumerate(parent):
        children[its_parent].append(node)
    next_token = [children[node][0] if children[node] else -1 for node in range(len(parent))]
    next_sibling = [-1] * len(parent)
    for family in children.values():
        for older, younger in itertools.pairwise(family):
            next_sibling[older] = younger
    return next_token, next_sibling


def reconstruct_tree_naive(tree_mask: Tensor, verified_seq_len: Tensor) -> TreeLinks:
    """`reconstruct_tree`, one node at a time."""
    bs, ndt, _ = tree_mask.shape
    positions: list[int] = []
    links: list[tuple[list[int], list[int]]] = []
    for b, rows in enumerate(tree_mask.tolist()):
        ancestors = [[j for j in range(i) if row[j]] for i, row in enumerate(rows)]
        positions += [int(verified_seq_len[b]) + len(path) for path in ancestors]
        links.append(links_of_naive([path[-1] if path else -1 for path in ancestors]))
    shape = (bs, ndt)
    numbers = list(range(bs * ndt))
    lists = (numbers, [next_token for next_token, _ in links], [next_sibling for _, next_sibling in links])
    tensors = [torch.tensor(values, dtype=torch.int64, device=tree_mask.device) for values in (positions, *lists)]
    return TreeLinks(tensors[0], *(tensor.view(shape) for tensor in tensors[1:]))


def pack_tree_mask_naive(tree_mask: Tensor) -> Tensor:
    """`pack_tree_mask`, one row at a time."""
    bs, ndt, _ = tree_mask.shape
    width = packed_bytes(ndt)
    packed: list[int] = []
    for row in tree_mask.reshape(-1, ndt).tolist():
        number = sum(1 << j for j, cell in enumerate(row) if cell)
        packed.extend(number.to_bytes(width, "little"))
    return torch.tensor(packed, dtype=torch.uint8, device=tree_mask.device).view(bs, ndt, width)


def unpack_tree_mask_naive(packed: Tensor) -> Tensor:
    """`unpack_tree_mask`, one row at a time."""
    bs, ndt, width = packed.shape
    mask: list[bool] = []
    for row in packed.reshape(-1, width).tolist():
        number = int.from_bytes(bytes(row), "little")
        mask.extend(number >> j & 1 == 1 for j in range(ndt))
    return torch.tensor(mask, dtype=torch.bool, device=packed.device).view(bs, ndt, ndt)
