"""The tree family: contract of `build_tree`, and how trees are drawn from choices.

Other families draw their shapes (`draw_shape`) and trees (`draw_tree`) here too, so that all of them reach
the same corners: more and fewer nodes than the accepted path is wide, single chains, full-depth paths, bushy
trees.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from math import gcd

import torch

from specsim.choices.chooser import Chooser, between, pick
from specsim.contracts import bulk, counter_rng
from specsim.contracts.contract import Bulk, Case, Op, Role, ScalarArg, Sizes, TensorArg
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

__all__ = [
    "FULL_MASK",
    "OPS",
    "QLEN_ONLY",
    "DraftTree",
    "Shape",
    "draw_batch_shape",
    "draw_paged_shape",
    "draw_seq_lens",
    "draw_shape",
    "draw_tree",
]

BS_MAX = 5
TOPK_MAX = 8
NUM_STEPS_MAX = 6
NUM_DRAFT_TOKENS_MAX = 64
PAGE_SIZES = (1, 4, 16, 64)


@dataclass(frozen=True, slots=True)
class Shape:
    """How many requests a batch has and how large their trees may be."""

    bs: int
    topk: int
    num_steps: int
    num_draft_tokens: int

    @property
    def accept_width(self) -> int:
        """Entries of an accepted path: the root and a draft for each step."""
        return self.num_steps + 1

    @property
    def num_nodes(self) -> int:
        return self.bs * self.num_draft_tokens

    def sizes(self) -> dict[str, int]:
        """The sizes that every operation's cases name."""
        return {
            "bs": self.bs,
            "topk": self.topk,
            "num_steps": self.num_steps,
            "num_draft_tokens": self.num_draft_tokens,
        }


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


def draw_shape(chooser: Chooser) -> Shape:
    """A batch's shape. topk 1 gives chains, whose node count is forced to the width of the accepted path;
    wider trees get fewer, as many, or more nodes than that.
    """
    bs = between(chooser, 1, BS_MAX, "bs")
    topk = between(chooser, 1, TOPK_MAX, "topk")
    num_steps = between(chooser, 1, NUM_STEPS_MAX, "num_steps")
    width = num_steps + 1
    if topk == 1:
        return Shape(bs, topk, num_steps, width)
    most = min(NUM_DRAFT_TOKENS_MAX, 1 + topk + (num_steps - 1) * topk**2)
    kind = pick(chooser, ("width", "fewer", "one more", "more", "most"), "num_draft_tokens against accept_width")
    if kind == "fewer":
        num_draft_tokens = between(chooser, 2, max(2, width - 1), "num_draft_tokens")
    elif kind == "more":
        num_draft_tokens = between(chooser, width + 1, most, "num_draft_tokens")
    else:
        num_draft_tokens = {"width": width, "one more": width + 1, "most": most}[kind]
    return Shape(bs, topk, num_steps, num_draft_tokens)


def draw_batch_shape(chooser: Chooser) -> dict[str, int]:
    """The sizes that all requests of a bulk generator's batch share: a shape without its number of requests."""
    return {name: size for name, size in draw_shape(chooser).sizes().items() if name != "bs"}


def draw_paged_shape(chooser: Chooser) -> dict[str, int]:
    """The same, and a page size."""
    return {**draw_batch_shape(chooser), "page_size": pick(chooser, PAGE_SIZES, "page_size")}


def draw_seq_lens(chooser: Chooser, bs: int, page_size: int) -> list[int]:
    """Sequence lengths at, one before and one after the start of a page, among them 0 and 1."""
    return [
        max(
            0,
            between(chooser, 0, 2, "full pages") * page_size + pick(chooser, (0, 1, -1), "beside the page boundary"),
        )
        for _ in range(bs)
    ]


def draw_tree(chooser: Chooser, shape: Shape) -> DraftTree:
    """A tree of `shape.num_draft_tokens` nodes whose selection holds every node's parent, by construction.

    First the candidates that each step expands, then one path from the root, often of full depth, then one
    candidate after the other whose parent is already selected.
    """
    topk, num_steps, count = shape.topk, shape.num_steps, shape.num_draft_tokens - 1
    parent_list = _draw_parent_list(chooser, topk, num_steps)
    children: dict[int, list[int]] = {}  # by flat id; group g holds the children of parent_list[g]
    for group, parent_id in enumerate(parent_list[1:], start=1):
        children[parent_id] = list(range(group * topk, (group + 1) * topk))

    selected = set(_draw_path(chooser, parent_list, topk, min(num_steps, count)))
    frontier = [flat_id for flat_id in range(topk) if flat_id not in selected]
    for parent_id in sorted(selected):
        frontier += [flat_id for flat_id in children.get(parent_id, ()) if flat_id not in selected]
    while len(selected) < count:
        flat_id = frontier.pop(chooser.choose(len(frontier), "next candidate"))
        selected.add(flat_id)
        frontier += children.get(flat_id, ())

    selected_index = sorted(selected)
    node_of = {flat_id: node for node, flat_id in enumerate(selected_index, start=1)}
    parents = [-1] + [0 if flat_id < topk else node_of[parent_list[flat_id // topk]] for flat_id in selected_index]
    return DraftTree(parent_list if num_steps > 1 else [], selected_index, parents)


def _draw_parent_list(chooser: Chooser, topk: int, num_steps: int) -> list[int]:
    """The flat id behind every group of siblings. Which candidates a step expands, and in which order, takes
    two choices.
    """
    parent_list = [-1]
    if num_steps > 1:
        parent_list += range(topk)
    candidates = topk**2
    for step in range(1, num_steps - 1):
        first_id = topk + (step - 1) * candidates
        offset = chooser.choose(candidates, "first candidate expanded")
        stride = pick(chooser, _coprimes(candidates), "stride of the candidates expanded")
        parent_list += [first_id + (offset + k * stride) % candidates for k in range(topk)]
    return parent_list


@cache
def _coprimes(modulus: int) -> tuple[int, ...]:
    """Strides that visit every residue before they come back."""
    return tuple(stride for stride in range(1, modulus + 1) if gcd(stride, modulus) == 1)


def shuffled(chooser: Chooser, count: int, label: str) -> list[int]:
    """The numbers of `range(count)` in an order that takes two choices; all-zero choices give 0, 1, 2, ..."""
    stride, offset = pick(chooser, _coprimes(count), f"stride of {label}"), chooser.choose(count, f"first {label}")
    return [(offset + k * stride) % count for k in range(count)]


def _draw_path(chooser: Chooser, parent_list: list[int], topk: int, depth_max: int) -> list[int]:
    """The flat ids of a path from a child of the root to a candidate of a chosen depth."""
    depth = pick(chooser, (depth_max, depth_max, *range(depth_max)), "depth of the first path")
    if depth == 0:
        return []
    if depth == 1:
        return [chooser.choose(topk, "end of the first path")]
    flat_id = topk + (depth - 2) * topk**2 + chooser.choose(topk**2, "end of the first path")
    path = [flat_id]
    while flat_id >= topk:
        flat_id = parent_list[flat_id // topk]
        path.append(flat_id)
    return path


def _generate_build_tree(chooser: Chooser) -> Case:
    return _tree_case(chooser, draw_shape(chooser), pick(chooser, (FULL_MASK, QLEN_ONLY), "tree_mask_mode"))


def _generate_build_tree_packed(chooser: Chooser) -> Case:
    shape = draw_shape(chooser)
    return _packed(_tree_case(chooser, replace(shape, num_draft_tokens=_packable(shape.num_draft_tokens)), QLEN_ONLY))


def _packable(num_draft_tokens: int) -> int:
    return min(num_draft_tokens, PACKED_NODES_MAX)


def _packed(case: Case) -> Case:
    """The same trees, for a mask of bits."""
    sizes = dict(case.sizes)
    del sizes["tree_mask_mode"], sizes["mask_numel"]
    return Case({**sizes, "mask_bytes": sizes["num_nodes"] * packed_bytes(sizes["num_draft_tokens"])}, case.tensors)


def _tree_case(chooser: Chooser, shape: Shape, tree_mask_mode: int) -> Case:
    page_size = pick(chooser, PAGE_SIZES, "page_size")
    seq_lens = draw_seq_lens(chooser, shape.bs, page_size)
    trees = [draw_tree(chooser, shape) for _ in range(shape.bs)]
    ndt = shape.num_draft_tokens
    prefix = sum(seq_lens) if tree_mask_mode == FULL_MASK else 0
    parent_width = len(trees[0].parent_list)
    sizes = {
        **shape.sizes(),
        "tree_mask_mode": tree_mask_mode,
        "page_size": page_size,
        "num_selected": ndt - 1,
        "parent_width": parent_width,
        "num_nodes": shape.num_nodes,
        "mask_numel": ndt * (prefix + shape.num_nodes),
    }
    tensors = {
        "parent_list": torch.tensor([tree.parent_list for tree in trees], dtype=torch.int64),
        "selected_index": torch.tensor([tree.selected_index for tree in trees], dtype=torch.int64),
        "verified_seq_len": torch.tensor(seq_lens, dtype=torch.int64),
    }
    return Case(sizes, tensors)


def _draw_build_tree_shape(chooser: Chooser) -> dict[str, int]:
    return {**draw_paged_shape(chooser), "tree_mask_mode": pick(chooser, (FULL_MASK, QLEN_ONLY), "tree_mask_mode")}


def _draw_packed_shape(chooser: Chooser) -> dict[str, int]:
    shape = _draw_build_tree_shape(chooser)
    return {**shape, "num_draft_tokens": _packable(shape["num_draft_tokens"]), "tree_mask_mode": QLEN_ONLY}


def _make_build_tree_packed(ids: torch.Tensor, shape: Sizes) -> Case:
    return _packed(_make_build_tree(ids, shape))


def _make_build_tree(ids: torch.Tensor, shape: Sizes) -> Case:
    """Candidates get scores that fall from parent to child, in steps that differ, and the best are selected: so the
    parent of each selected candidate is selected.
    """
    topk, num_steps, ndt = shape["topk"], shape["num_steps"], shape["num_draft_tokens"]
    n, device = ids.shape[0], ids.device
    parents = [torch.arange(-1, topk if num_steps > 1 else 0, device=device).expand(n, -1)]
    costs = counter_rng.below(ids, "cost of a candidate", 2**20, topk + (num_steps - 1) * topk**2) + 1
    scores = [costs[:, :topk]]  # of the candidates by step; less is better
    expanded = scores[0]  # [n, topk]
    for step in range(1, num_steps):
        first_id = topk + (step - 1) * topk**2
        scores.append(expanded.repeat_interleave(topk, dim=1) + costs[:, first_id : first_id + topk**2])
        if step < num_steps - 1:
            chosen = counter_rng.words(ids, f"expanded after step {step}", topk**2).argsort(dim=1)[
                :, :topk
            ]  # [n, topk]
            parents.append(first_id + chosen)
            expanded = scores[-1].gather(1, chosen)
    selected = torch.cat(scores, dim=1).argsort(dim=1, stable=True)[:, : ndt - 1].sort(dim=1).values
    lens = bulk.seq_lens(ids, "verified_seq_len", shape["page_size"])
    prefix = int(lens.sum()) if shape["tree_mask_mode"] == FULL_MASK else 0
    parent_list = torch.cat(parents, dim=1)[:, : 0 if num_steps == 1 else None].contiguous()
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
        generate=_generate_build_tree,
        bulk=Bulk(_draw_build_tree_shape, _make_build_tree),
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
        generate=_generate_build_tree_packed,
        bulk=Bulk(_draw_packed_shape, _make_build_tree_packed),
        source="EAGLE-2 (arXiv 2406.16858), sections 4.1 and 4.2",
    ),
)
