"""The simulator's verification on plain lists is that of the reference."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.trees import parents_of
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS
from specsim.engine.scalar_verify import fill_bonus_tokens, links, verify_tree_greedy
from specsim.reference import fill_bonus_tokens as reference_fill_bonus_tokens

if TYPE_CHECKING:
    from specsim.contracts.contract import Case

VERIFY = OPS["verify_tree_greedy"]


def trees_of(case: Case) -> list[list[int]]:
    pairs = zip(case.tensors["retrieve_next_token"], case.tensors["retrieve_next_sibling"], strict=True)
    return [parents_of(first.tolist(), sibling.tolist()) for first, sibling in pairs]


def verified(case: Case) -> tuple[list[int], list[int], list[int]]:
    """What the scalar implementation makes of a case of the operation."""
    tokens, target = case.tensors["candidates"].tolist(), case.tensors["target_predict"].tolist()
    return verify_tree_greedy(tokens, trees_of(case), target, case.sizes["accept_width"] - 1)


@given(case=cases(VERIFY))
def test_the_links_of_a_tree_are_those_of_the_operation(case: Case) -> None:
    for b, tree in enumerate(trees_of(case)):
        next_token, next_sibling = links(tree)
        assert next_token == case.tensors["retrieve_next_token"][b].tolist()
        assert next_sibling == case.tensors["retrieve_next_sibling"][b].tolist()


@given(case=cases(VERIFY))
def test_the_walk_is_that_of_the_reference(case: Case) -> None:
    expected = VERIFY.expected(case)
    predicts, accept_index, accept_lens = verified(case)
    assert accept_index == expected["accept_index"].flatten().tolist()
    # The simulator counts the bonus, the operation the drafts alone.
    assert accept_lens == (expected["accept_token_num"] + 1).tolist()
    defined = VERIFY.defined(case, expected)["predicts"]
    assert torch.equal(torch.tensor(predicts, dtype=torch.int32)[defined], expected["predicts"][defined])


@given(case=cases(VERIFY))
def test_the_bonus_is_that_of_the_reference(case: Case) -> None:
    predicts, accept_index, accept_lens = verified(case)
    width = case.sizes["accept_width"]
    accept_tokens = [predicts[node] if node >= 0 else -1 for node in accept_index]
    expected = reference_fill_bonus_tokens(
        torch.tensor(predicts, dtype=torch.int32),
        torch.tensor(accept_index, dtype=torch.int32).view(-1, width),
        torch.tensor(accept_lens, dtype=torch.int32),
    )
    assert fill_bonus_tokens(accept_tokens, accept_lens, width) == expected.tolist()


@given(case=cases(VERIFY), more=st.integers(1, 4))
def test_a_wider_stride_reads_other_tokens_or_none(case: Case, more: int) -> None:
    _, accept_index, accept_lens = verified(case)
    width = case.sizes["accept_width"]
    tokens = list(range(len(accept_index)))
    bonus = fill_bonus_tokens(tokens, accept_lens, width + more)
    right = fill_bonus_tokens(tokens, accept_lens, width)
    assert bonus[0] == right[0]
    assert all(wrong != token for wrong, token in zip(bonus[1:], right[1:], strict=True))


@pytest.mark.parametrize(
    ("parents", "next_token", "next_sibling"),
    [
        ([-1], [-1], [-1]),
        ([-1, 0, 1, 2], [1, 2, 3, -1], [-1, -1, -1, -1]),
        ([-1, 0, 0, 0], [1, -1, -1, -1], [-1, 2, 3, -1]),
        ([-1, 0, 0, 1, 2, 1], [1, 3, 4, -1, -1, -1], [-1, 2, -1, 5, -1, -1]),
    ],
)
def test_links_of_small_trees(parents: list[int], next_token: list[int], next_sibling: list[int]) -> None:
    assert links(parents) == (next_token, next_sibling)
