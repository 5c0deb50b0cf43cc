"""The tree family: contracts of `build_tree` and its form with a mask of bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsim.choices.chooser import Chooser, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Sizes, operation
from specsim.contracts.draws import Draws
from specsim.reference.masks import PACKED_NODES_MAX, packed_bytes
from specsim.reference.tree import (
    FULL_MASK,
    QLEN_ONLY,
    build_tree,
    build_tree_packed,
)

__all__ = ["FULL_MASK", "OPS", "QLEN_ONLY", "DraftTree", "draft_trees"]

CHEAP = 12  # bits by which candidates of later steps cost less in deep trees


@dataclass(frozen=True, slots=True)
class DraftTree:
    """One request's tree. `parent_list` and `selected_index` are what drafting hands over (see
    specsim.reference.tree); `parents` is what they mean: the parent of each node, -1 for the root.
    """

    parent_list: list[int]
    selected_index: list[int]
    parents: list[int]

    def children(self) -> list[list[int]]:
        """The children of each node in ascending order."""
        families: list[list[int]] = [[] for _ in self.parents]
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                families[parent].append(node)
        return families

    def path(self, node: int) -> list[int]:
        """The nodes from the root to `node`, both included."""
        path = [node]
        while self.parents[path[-1]] >= 0:
            path.append(self.parents[path[-1]])
        return path[::-1]


def _packed(case: Case) -> Case:
    """The same trees, for a mask of bits."""
    sizes = dict(case.sizes)
    del sizes["tree_mask_mode"], sizes["mask_numel"]
    return Case({**sizes, "mask_bytes": sizes["num_nodes"] * packed_bytes(sizes["num_draft_tokens"])}, case.tensors)


def _draw_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_paged_shape(chooser)
    return {**shape, "tree_mask_mode": pick(chooser, (FULL_MASK, QLEN_ONLY), "tree_mask_mode")}


def _draw_packed_shape(chooser: Chooser) -> dict[str, int]:
    shape = batches.draw_paged_shape(chooser)
    num_draft_tokens = min(shape["num_draft_tokens"], PACKED_NODES_MAX)
    return {**shape, "num_draft_tokens": num_draft_tokens, "tree_mask_mode": QLEN_ONLY}


def _make_build_tree_packed(draws: Draws, shape: Sizes) -> Case:
    return _packed(_make_build_tree(draws, shape))


def _make_selections(draws: Draws, shape: Sizes) -> tuple[torch.Tensor, torch.Tensor]:
    """`parent_list` [n, parent_width] and `selected_index` [n, ndt - 1], int64.

    Candidates get costs that rise from parent to child, in steps that differ, and the cheapest are selected: so the
    parent of each selected candidate is selected. In half of the requests later steps cost little, which makes trees
    deep.
    """
    topk, num_steps, ndt = shape["topk"], shape["num_steps"], shape["num_draft_tokens"]
    parents = [torch.arange(-1, topk if num_steps > 1 else 0, device=draws.device).expand(draws.count, -1)]
    costs = draws.labels("cost of a candidate", topk + (num_steps - 1) * topk**2)
    is_deep = draws.below("deep tree", 2)[:, None] == 1
    costs = 1 + torch.cat([costs[:, :topk], torch.where(is_deep, costs >> CHEAP, costs)[:, topk:]], dim=1)
    sums = [costs[:, :topk]]  # of the candidates by step
    expanded = sums[0]  # [n, topk]
    for step in range(1, num_steps):
        first_id = topk + (step - 1) * topk**2
        sums.append(expanded.repeat_interleave(topk, dim=1) + costs[:, first_id : first_id + topk**2])
        if step < num_steps - 1:
            chosen = draws.order(f"expanded after step {step}", topk**2)[:, :topk]  # [n, topk]
            parents.append(first_id + chosen)
            expanded = sums[-1].gather(1, chosen)
    selected = torch.cat(sums, dim=1).argsort(dim=1, stable=True)[:, : ndt - 1].sort(dim=1).values
    return torch.cat(parents, dim=1)[:, : 0 if num_steps == 1 else None].contiguous(), selected


def draft_trees(draws: Draws, shape: Sizes) -> list[DraftTree]:
    """Trees of `num_draft_tokens` nodes, none deeper than `num_steps`, none with more than `topk` children."""
    topk, trees = shape["topk"], []
    for parent_list, selected in zip(*(tensor.tolist() for tensor in _make_selections(draws, shape)), strict=True):
        node_of = {flat_id: node for node, flat_id in enumerate(selected, start=1)}
        parents = [0 if flat_id < topk else node_of[parent_list[flat_id // topk]] for flat_id in selected]
        trees.append(DraftTree(parent_list, selected, [-1, *parents]))
    return trees


def _make_build_tree(draws: Draws, shape: Sizes) -> Case:
    n, ndt = draws.count, shape["num_draft_tokens"]
    parent_list, selected = _make_selections(draws, shape)
    lens = batches.seq_lens(draws, "verified_seq_len", shape["page_size"])
    prefix = int(lens.sum()) if shape["tree_mask_mode"] == FULL_MASK else 0
    sizes = {
        **shape,
        "bs": n,
        "num_selected": ndt - 1,
        "parent_width": parent_list.shape[1],
        "num_nodes": n * ndt,
        "mask_numel": ndt * (prefix + n * ndt),
    }
    return Case(sizes, {"parent_list": parent_list, "selected_index": selected, "verified_seq_len": lens})


OPS: tuple[Op, ...] = (
    operation(build_tree, "tree", Cases(_draw_shape, _make_build_tree)),
    operation(build_tree_packed, "tree", Cases(_draw_packed_shape, _make_build_tree_packed)),
)
