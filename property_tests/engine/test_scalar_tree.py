"""The simulator's trees on plain lists are those of the reference, and what a node reads decides what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.trees import parents_of
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS
from specsim.engine import model
from specsim.engine.scalar_tree import Attention, Tree, build_tree
from specsim.reference.tree import FULL_MASK

if TYPE_CHECKING:
    from specsim.contracts.contract import Case

BUILD = OPS["build_tree"]


@st.composite
def trees(draw: st.DrawFn) -> list[int]:
    """Parents of a tree of up to nine nodes."""
    return [-1, *(draw(st.integers(0, node)) for node in range(draw(st.integers(0, 8))))]


def nodes_of(chain: list[int], tokens: list[int], tree: Tree) -> list[int]:
    attention = Attention(chain)
    return [attention.node(*node) for node in zip(tokens, tree.masks, tree.positions, strict=True)]


@given(case=cases(BUILD))
def test_masks_and_positions_are_those_of_the_reference(case: Case) -> None:
    expected = BUILD.expected(case)
    ndt = case.sizes["num_draft_tokens"]
    rows = iter(expected["tree_mask"].tolist())
    links = zip(expected["retrieve_next_token"].tolist(), expected["retrieve_next_sibling"].tolist(), strict=True)
    for b, ((first, sibling), seq_len) in enumerate(zip(links, case.tensors["verified_seq_len"].tolist(), strict=True)):
        masks, positions = build_tree(parents_of(first, sibling), seq_len)
        assert positions == expected["positions"].tolist()[b * ndt : (b + 1) * ndt]
        for mask in masks:
            if case.sizes["tree_mask_mode"] == FULL_MASK:
                assert [next(rows) for _ in range(seq_len + ndt)] == [bool(mask >> p & 1) for p in range(seq_len + ndt)]
            else:
                assert [next(rows) for _ in range(ndt)] == [bool(mask >> seq_len + n & 1) for n in range(ndt)]


@given(parents=trees(), prompt=st.lists(st.integers(3, 99), min_size=1, max_size=5))
def test_a_node_says_what_its_own_path_says(parents: list[int], prompt: list[int]) -> None:
    chain = model.fingerprints(prompt)
    tokens = [100 + node for node in range(len(parents))]
    fingerprints = nodes_of(chain, tokens, build_tree(parents, len(chain)))
    for node, fingerprint in enumerate(fingerprints):
        path: list[int] = []
        at = node
        while at != -1:
            path.insert(0, tokens[at])
            at = parents[at]
        assert fingerprint == model.fingerprints(prompt + path)[-1]


@given(parents=trees(), prompt=st.lists(st.integers(3, 99), min_size=1, max_size=5), data=st.data())
def test_one_wrong_bit_of_a_mask_or_a_wrong_position_changes_what_a_node_says(
    parents: list[int], prompt: list[int], data: st.DataObject
) -> None:
    chain = model.fingerprints(prompt)
    tokens = [100 + node for node in range(len(parents))]
    tree = build_tree(parents, len(chain))
    right = nodes_of(chain, tokens, tree)
    node = data.draw(st.integers(0, len(parents) - 1))
    bit = data.draw(st.integers(0, len(chain) + node - 1))
    wrong_mask = list(tree.masks)
    wrong_mask[node] ^= 1 << bit
    assert nodes_of(chain, tokens, tree._replace(masks=wrong_mask))[node] != right[node]
    wrong_position = list(tree.positions)
    wrong_position[node] += data.draw(st.sampled_from((-1, 1)))
    assert nodes_of(chain, tokens, tree._replace(positions=wrong_position))[node] != right[node]
