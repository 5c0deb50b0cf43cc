"""Draft trees: one root, parents before children, links that reach every node once, a mask of ancestors."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given

from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS
from specsim.reference import (
    FULL_MASK,
    QLEN_ONLY,
    build_tree,
)

if TYPE_CHECKING:
    from specsim.contracts.contract import Case, Tensors

OP = OPS["build_tree"]


def parents(tree: Tensors, b: int) -> list[int]:
    """The parent of each node of request b as the links say, -1 for a node that no link reaches."""
    first, sibling = tree["retrieve_next_token"][b].tolist(), tree["retrieve_next_sibling"][b].tolist()
    found = [-1] * len(first)
    for parent, first_child in enumerate(first):
        child = first_child
        while child != -1:
            assert found[child] == -1, "a node has one parent"
            found[child] = parent
            child = sibling[child]
    return found


def masks(case: Case, tree: Tensors) -> list[torch.Tensor]:
    """The mask of each request, [ndt, columns]."""
    ndt = case.sizes["num_draft_tokens"]
    full = case.sizes["tree_mask_mode"] == FULL_MASK
    columns = [seq_len * full + ndt for seq_len in case.tensors["verified_seq_len"].tolist()]
    blocks = tree["tree_mask"].split([ndt * width for width in columns])
    return [block.view(ndt, width) for block, width in zip(blocks, columns, strict=True)]


def requests(case: Case, which: list[int]) -> Case:
    """The trees of some of the requests, in the given order."""
    chosen = case.clone()
    for name, tensor in case.tensors.items():
        chosen.tensors[name] = tensor[which]
    ndt = case.sizes["num_draft_tokens"]
    prefix = int(chosen.tensors["verified_seq_len"].sum()) * (case.sizes["tree_mask_mode"] == FULL_MASK)
    nodes = len(which) * ndt
    chosen.sizes.update({"bs": len(which), "num_nodes": nodes, "mask_numel": ndt * (prefix + nodes)})
    return chosen


@given(case=cases(OP))
def test_every_node_but_the_root_has_a_parent_before_it(case: Case) -> None:
    tree = OP.expected(case)
    for b in range(case.sizes["bs"]):
        found = parents(tree, b)
        assert found[0] == -1
        assert all(0 <= parent < node for node, parent in enumerate(found[1:], start=1))


@given(case=cases(OP))
def test_siblings_are_linked_in_ascending_order(case: Case) -> None:
    sibling = OP.expected(case)["retrieve_next_sibling"]
    node = torch.arange(case.sizes["num_draft_tokens"])
    assert bool(((sibling == -1) | (sibling > node)).all())
    assert bool((sibling[:, 0] == -1).all())


@given(case=cases(OP))
def test_no_node_has_more_than_topk_children_or_is_deeper_than_the_steps(case: Case) -> None:
    tree = OP.expected(case)
    depth = tree["positions"].view(case.sizes["bs"], -1) - case.tensors["verified_seq_len"][:, None]
    assert int(depth.max()) <= case.sizes["num_steps"]
    for b in range(case.sizes["bs"]):
        found = parents(tree, b)
        assert max(found.count(parent) for parent in found[1:]) <= case.sizes["topk"]


@given(case=cases(OP))
def test_a_node_attends_to_itself_its_ancestors_and_the_whole_prefix(case: Case) -> None:
    tree = OP.expected(case)
    ndt = case.sizes["num_draft_tokens"]
    for b, mask in enumerate(masks(case, tree)):
        found = parents(tree, b)
        prefix, block = mask[:, :-ndt], mask[:, -ndt:]
        assert bool(prefix.all())
        for node in range(ndt):
            path = [node]
            while found[path[-1]] >= 0:
                path.append(found[path[-1]])
            assert block[node].nonzero().flatten().tolist() == path[::-1]


@given(case=cases(OP))
def test_a_position_is_the_sequence_length_plus_the_ancestors(case: Case) -> None:
    tree = OP.expected(case)
    ndt = case.sizes["num_draft_tokens"]
    positions = tree["positions"].view(-1, ndt)
    for b, mask in enumerate(masks(case, tree)):
        ancestors = mask[:, -ndt:].sum(dim=1) - 1
        assert torch.equal(positions[b], case.tensors["verified_seq_len"][b] + ancestors)


@given(case=cases(OP))
def test_nodes_are_numbered_through_the_batch(case: Case) -> None:
    assert OP.expected(case)["retrieve_index"].flatten().tolist() == list(range(case.sizes["num_nodes"]))


@given(case=cases(OP))
def test_both_mask_modes_hold_the_same_tree(case: Case) -> None:
    ndt = case.sizes["num_draft_tokens"]
    arguments: dict[str, Any] = {**case.tensors}
    arguments |= {name: case.sizes[name] for name in ("topk", "num_steps", "num_draft_tokens")}
    full = build_tree(**arguments, tree_mask_mode=FULL_MASK)
    alone = build_tree(**arguments, tree_mask_mode=QLEN_ONLY)
    widths = (case.tensors["verified_seq_len"] + ndt) * ndt
    blocks = [mask.view(ndt, -1)[:, -ndt:].flatten() for mask in full.tree_mask.split(widths.tolist())]
    assert torch.equal(torch.cat(blocks), alone.tree_mask)
    assert all(torch.equal(a, b) for a, b in zip(full[1:], alone[1:], strict=True))


@given(case=cases(OP))
def test_permuting_the_requests_permutes_their_trees(case: Case) -> None:
    backwards = list(range(case.sizes["bs"]))[::-1]
    tree, permuted = OP.expected(case), OP.expected(requests(case, backwards))
    own = masks(case, tree)
    assert torch.equal(permuted["tree_mask"], torch.cat([own[b].flatten() for b in backwards]))
    assert torch.equal(
        permuted["positions"].view(case.sizes["bs"], -1),
        tree["positions"].view(case.sizes["bs"], -1)[backwards],
    )
    for name in ("retrieve_next_token", "retrieve_next_sibling"):
        assert torch.equal(permuted[name], tree[name][backwards])


@given(case=cases(OP))
def test_a_request_gets_the_same_tree_in_any_batch(case: Case) -> None:
    alone = [OP.expected(requests(case, [b])) for b in range(case.sizes["bs"])]
    for name, together in OP.expected(case).items():
        if name != "retrieve_index":
            assert torch.equal(together, torch.cat([tree[name] for tree in alone])), name


PARENT_LIST = torch.tensor([[-1, 0, 1, 2, 5]])  # topk 2, 3 steps: of candidates 2..5, 2 and 5 were expanded
VALID: dict[str, Any] = {
    "parent_list": PARENT_LIST,
    "selected_index": torch.tensor([[0, 1, 2, 6]]),
    "verified_seq_len": torch.tensor([10]),
    "topk": 2,
    "num_steps": 3,
    "num_draft_tokens": 5,
    "tree_mask_mode": QLEN_ONLY,
}


def test_a_small_tree_is_what_one_draws_by_hand() -> None:
    tree = build_tree(**VALID)  # 0 -> (1, 2), 1 -> 3, 3 -> 4
    assert tree.retrieve_next_token.tolist() == [[1, 3, -1, 4, -1]]
    assert tree.retrieve_next_sibling.tolist() == [[-1, 2, -1, -1, -1]]
    assert tree.positions.tolist() == [10, 11, 11, 12, 13]
    rows = ["x....", "xx...", "x.x..", "xx.x.", "xx.xx"]
    assert ["".join("x" if cell else "." for cell in row) for row in tree.tree_mask.view(5, 5).tolist()] == rows


def test_an_orphan_is_refused_by_request_and_node() -> None:
    orphan = VALID | {"selected_index": torch.tensor([[0, 1, 2, 8]])}  # 8 is a child of 5
    message = r"selected_index\[0, 3\] is 8: node 4 of request 0 is an orphan, its parent 5 is not selected"
    with pytest.raises(ValueError, match=message):
        build_tree(**orphan)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"topk": 0}, r"topk is 0; allowed: 1 or more"),
        ({"num_steps": 0}, r"num_steps is 0; allowed: 1 or more"),
        ({"num_draft_tokens": 1}, r"num_draft_tokens is 1; allowed: 2 or more"),
        ({"tree_mask_mode": 2}, r"tree_mask_mode is 2; allowed: 0 to 1"),
        ({"num_draft_tokens": 6}, r"selected_index has shape \[1, 4\]; allowed: \[bs=1, num_selected=5\]"),
        ({"num_steps": 2}, r"parent_list has shape \[1, 5\]; allowed: \[bs=1, parent_width=3\]"),
        ({"parent_list": PARENT_LIST.int()}, r"parent_list has dtype torch.int32; allowed: torch.int64"),
        ({"verified_seq_len": torch.tensor([-1])}, r"verified_seq_len\[0\] is -1; allowed: 0 or more"),
        ({"selected_index": torch.tensor([[0, 1, 2, 10]])}, r"selected_index\[0, 3\] is 10; allowed: 0 to 9"),
        ({"selected_index": torch.tensor([[1, 0, 2, 6]])}, r"is 0; allowed: more than the flat id before it"),
        ({"parent_list": torch.tensor([[-1, 1, 0, 2, 5]])}, r"parent_list\[0, 1\] is 1; allowed: -1, 0 .. 1"),
        ({"parent_list": torch.tensor([[-1, 0, 1, 2, 6]])}, r"\[0, 1\] is 6; allowed: flat ids of the step"),
    ],
)
def test_wrong_arguments_are_refused_with_argument_value_and_what_is_allowed(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build_tree(**(VALID | change))


def test_one_step_never_reads_the_parent_list() -> None:
    one_step = {"topk": 3, "num_steps": 1, "num_draft_tokens": 3, "tree_mask_mode": QLEN_ONLY}
    tree = build_tree(torch.empty(1, 0, dtype=torch.int64), torch.tensor([[0, 2]]), torch.tensor([0]), **one_step)
    assert tree.retrieve_next_token.tolist() == [[1, -1, -1]]
    assert tree.retrieve_next_sibling.tolist() == [[-1, 2, -1]]
