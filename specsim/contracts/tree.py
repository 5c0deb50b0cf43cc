"""The tree family: contracts of `build_tree` and its form with a mask of bits."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from specsim.choices.chooser import Chooser, pick
from specsim.contracts import batches
from specsim.contracts.contract import Case, Cases, Op, Role, ScalarArg, Sizes, TensorArg
from specsim.contracts.draws import Draws
from specsim.contracts.naive.tree import (
    build_tree_loops,
    build_tree_packed_loops,
)
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


_LINKS = ("bs", "num_draft_tokens")

_INPUTS = (
    TensorArg(
        "parent_list",
        Role.IN,
        ("bs", "parent_width"),
        torch.int64,
        "flat id of the parent of each group of topk siblings: -1, then 0..topk-1, then the "
        "candidates that each later step expanded; no columns when num_steps is 1",
    ),
    TensorArg(
        "selected_index",
        Role.IN,
        ("bs", "num_selected"),
        torch.int64,
        "flat ids of the candidates that became nodes 1, 2, ..., ascending, each with its parent",
    ),
    TensorArg("verified_seq_len", Role.IN, ("bs",), torch.int64, "tokens before the root"),
)
_NODE_OUTPUTS = (
    TensorArg("positions", Role.OUT, ("num_nodes",), torch.int64, "verified_seq_len plus depth of the node"),
    TensorArg("retrieve_index", Role.OUT, _LINKS, torch.int64, "b * num_draft_tokens + i for node i", prefill=-1),
    TensorArg("retrieve_next_token", Role.OUT, _LINKS, torch.int64, "first child, -1 if there is none", prefill=-1),
    TensorArg(
        "retrieve_next_sibling",
        Role.OUT,
        _LINKS,
        torch.int64,
        "next node with the same parent in ascending order, -1 if there is none",
        prefill=-1,
    ),
)
_SIZES = (
    ScalarArg("topk", "candidates expanded a step, and successors of each"),
    ScalarArg("num_steps", "drafting steps; no node is deeper"),
    ScalarArg("num_draft_tokens", "nodes a tree, the root included"),
)

OPS: tuple[Op, ...] = (
    Op(
        name="build_tree",
        family="tree",
        summary="mask, positions and links of the draft trees",
        args=(
            *_INPUTS,
            TensorArg(
                "tree_mask",
                Role.OUT,
                ("mask_numel",),
                torch.bool,
                "per request num_draft_tokens rows, ragged: in FULL_MASK of seq_len + num_draft_tokens "
                "columns, in QLEN_ONLY of num_draft_tokens; True at the sequence before the tree, the node "
                "itself and its ancestors",
                prefill=True,
            ),
            *_NODE_OUTPUTS,
            *_SIZES,
            ScalarArg("tree_mask_mode", f"{FULL_MASK}: FULL_MASK, {QLEN_ONLY}: QLEN_ONLY"),
        ),
        reference=build_tree,
        loops=build_tree_loops,
        cases=Cases(_draw_shape, _make_build_tree),
        source="EAGLE-2 (arXiv 2406.16858), sections 4.1 and 4.2; orphans: SGLang PR #36201 and issue #7477",
    ),
    Op(
        name="build_tree_packed",
        family="tree",
        summary="build_tree with a mask of bits",
        args=(
            *_INPUTS,
            TensorArg(
                "tree_mask",
                Role.OUT,
                ("mask_bytes",),
                torch.uint8,
                "1, 2 or 4 bytes a node for at most 8, 16 or 32 nodes: bit j, the lowest of the first byte first, is "
                "set if the node is j or below it; bits of no node are 0",
                prefill=0,
            ),
            *_NODE_OUTPUTS,
            *_SIZES,
        ),
        reference=build_tree_packed,
        loops=build_tree_packed_loops,
        cases=Cases(_draw_packed_shape, _make_build_tree_packed),
        source="EAGLE-2 (arXiv 2406.16858), sections 4.1 and 4.2",
    ),
)
