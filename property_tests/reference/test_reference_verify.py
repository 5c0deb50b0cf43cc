"""Greedy verification: it emits what decoding token by token would have emitted."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from property_tests.naive import NAIVE
from property_tests.naive.verify import (
    verify_tree_greedy_naive,
)
from property_tests.support.sibling_order import descending
from specsim.contracts.hypothesis_cases import cases
from specsim.contracts.registry import OPS
from specsim.reference import (
    fill_bonus_tokens,
    verify_tree_greedy,
)

if TYPE_CHECKING:
    from specsim.contracts.contract import Case

OP = OPS["verify_tree_greedy"]
BONUS = OPS["fill_bonus_tokens"]


def requests(case: Case, which: list[int]) -> Case:
    """The verification of some of the requests, in the given order, with their nodes numbered anew."""
    chosen = case.clone()
    for name, tensor in case.tensors.items():
        chosen.tensors[name] = tensor[which]
    ndt = case.sizes["num_draft_tokens"]
    chosen.tensors["retrieve_index"] = torch.arange(len(which) * ndt).view(len(which), ndt)
    chosen.sizes.update({"bs": len(which), "num_nodes": len(which) * ndt})
    return chosen


def emitted(case: Case) -> list[list[int]]:
    """The tokens that each request emits, the bonus last."""
    result = OP.expected(case)
    paths = [path[: n + 1] for path, n in zip(result["accept_index"], result["accept_token_num"], strict=True)]
    return [result["predicts"][path.long()].tolist() for path in paths]


@given(case=cases(OP))
def test_the_emitted_tokens_are_those_of_decoding_token_by_token(case: Case) -> None:
    ndt = case.sizes["num_draft_tokens"]
    for b, tokens in enumerate(emitted(case)):
        target = case.tensors["target_predict"][b].tolist()
        drafted = case.tensors["candidates"][b].tolist()
        path = (OP.expected(case)["accept_index"][b][: len(tokens)] % ndt).tolist()
        assert tokens == [target[node] for node in path]
        assert tokens[:-1] == [drafted[node] for node in path[1:]]


@given(case=cases(OP))
def test_the_walk_stops_only_where_no_child_has_the_predicted_token(case: Case) -> None:
    result, ndt = OP.expected(case), case.sizes["num_draft_tokens"]
    for b in range(case.sizes["bs"]):
        accepted = int(result["accept_token_num"][b])
        last = int(result["accept_index"][b, accepted]) % ndt
        child = int(case.tensors["retrieve_next_token"][b, last])
        while child != -1:
            assert case.tensors["candidates"][b, child] != case.tensors["target_predict"][b, last]
            child = int(case.tensors["retrieve_next_sibling"][b, child])


@given(case=cases(OP))
def test_accepted_paths_start_at_the_root_and_end_in_padding(case: Case) -> None:
    result, ndt = OP.expected(case), case.sizes["num_draft_tokens"]
    column = torch.arange(case.sizes["accept_width"])
    padding = column > result["accept_token_num"][:, None]
    assert torch.equal(result["accept_index"] == -1, padding)
    assert result["accept_index"][:, 0].tolist() == [b * ndt for b in range(case.sizes["bs"])]


@given(case=cases(OP))
def test_the_bonus_is_the_last_emitted_token(case: Case) -> None:
    result = OP.expected(case)
    bonus = fill_bonus_tokens(result["predicts"], result["accept_index"], result["accept_token_num"] + 1)
    assert bonus.tolist() == [tokens[-1] for tokens in emitted(case)]


@given(case=cases(OP))
def test_permuting_the_requests_permutes_what_they_emit(case: Case) -> None:
    backwards = list(range(case.sizes["bs"]))[::-1]
    own = emitted(case)
    assert emitted(requests(case, backwards)) == [own[b] for b in backwards]


@given(case=cases(OP))
def test_a_request_emits_the_same_in_any_batch(case: Case) -> None:
    assert emitted(case) == [emitted(requests(case, [b]))[0] for b in range(case.sizes["bs"])]


@given(case=cases(OP), steps=st.integers(0, 5))
def test_a_tree_that_is_deeper_than_the_steps_is_cut_with_the_right_bonus(case: Case, steps: int) -> None:
    whole = emitted(case)
    cut = case.clone()
    cut.sizes.update({"num_steps": steps, "accept_width": steps + 1})
    assert emitted(cut) == [tokens[: steps + 1] for tokens in whole]


@given(case=cases(OP), data=st.data())
def test_target_tokens_and_predicts_go_by_the_nodes_number(case: Case, data: st.DataObject) -> None:
    ndt = case.sizes["num_draft_tokens"]
    order = torch.tensor(data.draw(st.permutations(range(ndt))))
    renumbered = case.clone()
    renumbered.tensors["retrieve_index"] = torch.arange(case.sizes["bs"])[:, None] * ndt + order
    renumbered.tensors["target_predict"][:, order] = case.tensors["target_predict"]
    assert emitted(renumbered) == emitted(case)
    naive = OP.call(NAIVE[OP.name], renumbered.sizes, dict(renumbered.tensors))
    for name, tensor in OP.expected(renumbered).items():
        assert torch.equal(tensor, naive[name])


@given(case=cases(BONUS))
def test_the_row_stride_of_a_path_is_its_own_width(case: Case) -> None:
    width, ndt = case.sizes["accept_width"], case.sizes["num_draft_tokens"]
    accept_lens, paths = case.tensors["accept_lens"].tolist(), case.tensors["accept_index"].flatten().tolist()
    nodes = [paths[b * width + accept_len - 1] for b, accept_len in enumerate(accept_lens)]
    assert [node // ndt for node in nodes] == list(range(case.sizes["bs"]))
    bonus = BONUS.expected(case)["bonus_tokens"]
    assert torch.equal(bonus, case.tensors["predict"][nodes])


@given(case=cases(BONUS))
def test_padding_is_never_used_as_an_index(case: Case) -> None:
    padded = case.clone()
    column = torch.arange(case.sizes["accept_width"])
    padded.tensors["accept_index"][column >= case.tensors["accept_lens"][:, None]] = 2**31 - 1
    assert torch.equal(BONUS.expected(padded)["bonus_tokens"], BONUS.expected(case)["bonus_tokens"])


VALID = {  # two requests of the tree 0 -> (1, 2), 1 -> 3, whose siblings 1 and 2 hold the same token
    "candidates": torch.tensor([[10, 11, 11, 13], [20, 21, 22, 23]]),
    "retrieve_index": torch.arange(8).view(2, 4),
    "retrieve_next_token": torch.tensor([[1, 3, -1, -1], [1, 3, -1, -1]]),
    "retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1], [-1, 2, -1, -1]]),
    "target_predict": torch.tensor([[11, 13, 90, 91], [22, 92, 93, 94]]),
    "num_steps": 2,
}


@pytest.mark.parametrize("verify", [verify_tree_greedy, verify_tree_greedy_naive])
def test_of_equal_siblings_the_first_is_taken(verify: Callable[..., Any]) -> None:
    result = verify(**VALID)
    assert result.accept_index.tolist() == [[0, 1, 3], [4, 6, -1]]
    assert result.accept_token_num.tolist() == [2, 1]
    assert result.predicts.tolist() == [11, 13, 0, 91, 22, 0, 93, 0]


@pytest.mark.parametrize("verify", [verify_tree_greedy, verify_tree_greedy_naive])
def test_a_sibling_can_be_an_earlier_node(verify: Callable[..., Any]) -> None:
    result = verify(  # the tree 0 -> (4, 1), 1 -> 2 -> 3, 4 -> 5, as SGLang's own tests have one
        candidates=torch.tensor([[10, 11, 12, 13, 14, 15]]),
        retrieve_index=torch.arange(6)[None],
        retrieve_next_token=torch.tensor([[4, 2, 3, -1, 5, -1]]),
        retrieve_next_sibling=torch.tensor([[-1, -1, -1, -1, 1, -1]]),
        target_predict=torch.tensor([[11, 12, 13, 90, 91, 92]]),
        num_steps=3,
    )
    assert result.accept_index.tolist() == [[0, 1, 2, 3]]
    assert result.predicts.tolist() == [11, 12, 13, 90, 0, 0]


@given(case=cases(OP))
def test_siblings_in_descending_order_are_walked_as_they_are_linked(case: Case) -> None:
    other_way = descending(case)
    naive = OP.call(NAIVE[OP.name], other_way.sizes, dict(other_way.tensors))
    for name, tensor in OP.expected(other_way).items():
        assert torch.equal(tensor, naive[name])
    tokens = case.tensors["candidates"]
    if all(len(row.unique()) == len(row) for row in tokens):  # of equal siblings, the first in the order of links
        assert emitted(other_way) == emitted(case)


@pytest.mark.parametrize("verify", [verify_tree_greedy, verify_tree_greedy_naive])
def test_without_steps_the_roots_bonus_token_is_all_that_is_emitted(verify: Callable[..., Any]) -> None:
    result = verify(**VALID | {"num_steps": 0})
    assert result.accept_index.tolist() == [[0], [4]]
    assert result.accept_token_num.tolist() == [0, 0]
    assert result.predicts.tolist() == [11, 0, 0, 0, 22, 0, 0, 0]


@pytest.mark.parametrize("num_steps", [0, 2])
@pytest.mark.parametrize("verify", [verify_tree_greedy, verify_tree_greedy_naive])
def test_a_root_alone_emits_its_bonus_token(verify: Callable[..., Any], num_steps: int) -> None:
    no_link = torch.tensor([[-1], [-1]])
    roots = (torch.tensor([[10], [20]]), torch.tensor([[0], [1]]), no_link, no_link)
    result = verify(*roots, torch.tensor([[11], [22]]), num_steps)
    assert result.accept_index.tolist() == [[0] + [-1] * num_steps, [1] + [-1] * num_steps]
    assert result.predicts.tolist() == [11, 22]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_steps": -1}, r"num_steps is -1; allowed: 0 or more"),
        (
            {"candidates": torch.zeros(2, 3, dtype=torch.int64)},
            r"retrieve_index has shape \[2, 4\]; allowed: \[bs=2, num_draft_tokens=3\]",
        ),
        ({"candidates": torch.zeros(2, 4)}, r"candidates has dtype torch.float32; allowed: torch.int64"),
        (
            {"retrieve_index": torch.arange(1, 9).view(2, 4)},
            r"retrieve_index\[0, 3\] is 4; allowed: b \* ndt to",
        ),
        (
            {"retrieve_next_token": torch.tensor([[4, 3, -1, -1]] * 2)},
            r"retrieve_next_token\[0, 0\] is 4; allowed: -1, or a later",
        ),
        (
            {"retrieve_next_sibling": torch.tensor([[-1, 2, 1, -1]] * 2)},
            r"retrieve_next_sibling\[0, 2\] is 1; allowed: -1, or .* do not lead to a cycle",
        ),
        (  # 1 -> its child 3 -> its sibling 1
            {"retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1], [-1, 2, -1, 1]])},
            r"retrieve_next_sibling\[1, 3\] is 1; allowed: -1, or .* do not lead to a cycle",
        ),
        (
            {"retrieve_next_sibling": torch.tensor([[-1, 1, -1, -1]] * 2)},
            r"retrieve_next_sibling\[0, 1\] is 1; allowed: -1, or .* do not lead to a cycle",
        ),
        (
            {"retrieve_next_sibling": torch.tensor([[-1, 2, -1, 0]] * 2)},
            r"retrieve_next_sibling\[0, 3\] is 0; allowed: -1, or another node of the row, 1 to 3",
        ),
        (
            {"target_predict": torch.full((2, 4), -1)},
            r"target_predict\[0, 0\] is -1; allowed: 0 to 2147483647",
        ),
    ],
)
def test_wrong_trees_are_refused_with_argument_value_and_what_is_allowed(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        verify_tree_greedy(**(VALID | change))


@pytest.mark.parametrize(
    ("accept_index", "accept_lens", "message"),
    [
        ([[0, 1], [4, -1]], [0, 1], r"accept_lens\[0\] is 0; allowed: 1 to 2"),
        ([[0, 1], [4, -1]], [1, 3], r"accept_lens\[1\] is 3; allowed: 1 to 2"),
        (
            [[0, 1], [4, -1]],
            [2, 2],
            r"accept_index\[1, 1\] is -1; allowed: 0 to 7 in the first accept_lens\[b\] columns",
        ),
        ([[0, 8], [4, -1]], [2, 1], r"accept_index\[0, 1\] is 8; allowed: 0 to 7"),
    ],
)
def test_wrong_paths_are_refused_with_argument_value_and_what_is_allowed(
    accept_index: Any, accept_lens: Any, message: str
) -> None:
    int32: dict[str, Any] = {"dtype": torch.int32}
    with pytest.raises(ValueError, match=message):
        fill_bonus_tokens(
            torch.zeros(8, **int32), torch.tensor(accept_index, **int32), torch.tensor(accept_lens, **int32)
        )
