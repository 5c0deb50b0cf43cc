"""Verification at a temperature: what each rule accepts, at and beside its thresholds, and where nothing is left."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch

from property_tests.naive.sampling import (
    verify_chain_block_naive,
    verify_chain_rejection_naive,
    verify_tree_rejection_naive,
    verify_tree_target_only_naive,
)
from specsim.choices.chooser import replayed, seeded
from specsim.contracts.contract import Case, Op, differing
from specsim.contracts.sampling import OPS, WIDE_VOCAB_SIZES
from specsim.reference.sampling import (
    verify_chain_block,
    verify_chain_rejection,
    verify_tree_rejection,
    verify_tree_target_only,
)

BY_NAME = {op.name: op for op in OPS}
TREE_OPS = [op for op in OPS if "tree" in op.name]
every_op = pytest.mark.parametrize("op", OPS, ids=list(BY_NAME))
target_only = pytest.mark.parametrize("verify", [verify_tree_target_only, verify_tree_target_only_naive])
chain = pytest.mark.parametrize("verify", [verify_chain_rejection, verify_chain_rejection_naive])
block = pytest.mark.parametrize("verify", [verify_chain_block, verify_chain_block_naive])
both_chains = pytest.mark.parametrize(
    "verify",
    [verify_chain_rejection, verify_chain_rejection_naive, verify_chain_block, verify_chain_block_naive],
)
tree_rejection = pytest.mark.parametrize("verify", [verify_tree_rejection, verify_tree_rejection_naive])

TOP = 1 - 2.0**-24  # the largest float32 below 1
BELOW_QUARTER = 0.25 - 2.0**-26


@cache
def seeded_cases(name: str) -> list[Case]:
    return [BY_NAME[name].generate(seeded(0, name, index)) for index in range(200)]


def of_numbers(name: str) -> list[Case]:
    """Those without rows of NaN."""
    return [case for case in seeded_cases(name) if not case.sizes["has_nan"]]


def emitted(op: Op, case: Case) -> list[list[int]]:
    """The tokens that each request emits, the bonus last."""
    return tokens_of(op.expected(case))


def tokens_of(result: Any) -> list[list[int]]:
    if not isinstance(result, dict):
        result = result._asdict()
    paths = [path[: n + 1] for path, n in zip(result["accept_index"], result["accept_token_num"], strict=True)]
    return [result["predicts"][path.long()].tolist() for path in paths]


def requests(case: Case, which: list[int]) -> Case:
    """Some of the requests, in the given order, with their nodes numbered anew."""
    chosen = case.clone()
    for name, tensor in case.tensors.items():
        if not name.startswith("threshold"):
            chosen.tensors[name] = tensor[which]
    ndt = case.sizes["num_draft_tokens"]
    if "retrieve_index" in chosen.tensors:
        chosen.tensors["retrieve_index"] = torch.arange(len(which) * ndt).view(len(which), ndt)
    chosen.sizes.update({"bs": len(which), "num_nodes": len(which) * ndt})
    return chosen


# ---- properties of every rule


@every_op
@pytest.mark.slow(runs_one_in=2)
def test_single_and_double_precision_decide_alike(op: Op) -> None:
    for case in seeded_cases(op.name)[:80]:
        wide = case.clone()
        for name, tensor in case.tensors.items():
            if tensor.is_floating_point():
                wide.tensors[name] = tensor.double()
        assert emitted(op, wide) == emitted(op, case)


@every_op
@pytest.mark.slow(runs_one_in=2)
def test_the_token_after_the_path_has_a_positive_probability(op: Op) -> None:
    for case in of_numbers(op.name):
        ndt = case.sizes["num_draft_tokens"]
        path, accepted = op.expected(case)["accept_index"], op.expected(case)["accept_token_num"]
        for b, tokens in enumerate(emitted(op, case)):
            last = int(path[b, int(accepted[b])]) % ndt
            row = case.tensors["target_probs"][b, last]
            rejected = case.tensors["candidates"][b].tolist()
            left_over = (
                row.sum() < 1
                and tokens[-1] == len(row) - 1
                and all(t in rejected for t in row.nonzero()[:, 0].tolist())
            )
            assert row[tokens[-1]] > 0 or left_over


@every_op
def test_a_request_emits_the_same_in_any_batch_and_order(op: Op) -> None:
    for case in seeded_cases(op.name)[:60]:
        own = emitted(op, case)
        backwards = list(range(case.sizes["bs"]))[::-1]
        assert emitted(op, requests(case, backwards)) == own[::-1]
        assert own == [emitted(op, requests(case, [b]))[0] for b in range(case.sizes["bs"])]


@every_op
def test_tokens_of_probability_zero_behind_the_vocabulary_change_nothing(op: Op) -> None:
    for case in seeded_cases(op.name)[:60]:
        wider = case.clone()
        wider.sizes["vocab_size"] += 3
        for name in ("target_probs", "draft_probs"):
            if name in case.tensors:
                wider.tensors[name] = torch.nn.functional.pad(case.tensors[name], (0, 3))
        for before, after in zip(emitted(op, case), emitted(op, wider), strict=True):
            nothing_is_left = after[-1] == wider.sizes["vocab_size"] - 1  # the last token then, whichever it is
            assert after[:-1] == before[:-1]
            assert nothing_is_left or after == before


@every_op
def test_relabelling_the_tokens_relabels_the_accepted_drafts(op: Op) -> None:
    for case in seeded_cases(op.name)[:60]:
        turned = case.clone()
        vocab_size = case.sizes["vocab_size"]
        tokens = case.tensors["candidates"]
        turned.tensors["candidates"] = torch.where(tokens < 0, tokens, (tokens + 1) % vocab_size)
        for name in ("target_probs", "draft_probs"):
            if name in case.tensors:
                turned.tensors[name] = case.tensors[name].roll(1, dims=-1).contiguous()
        drafts, turned_drafts = (([*path[:-1]] for path in emitted(op, each)) for each in (case, turned))
        assert list(turned_drafts) == [[(token + 1) % vocab_size for token in path] for path in drafts]


@every_op
def test_paths_start_at_the_root_and_end_in_padding(op: Op) -> None:
    for case in seeded_cases(op.name)[:60]:
        result = op.expected(case)
        padding = torch.arange(case.sizes["accept_width"]) > result["accept_token_num"][:, None]
        assert torch.equal(result["accept_index"] == -1, padding)
        ndt = case.sizes["num_draft_tokens"]
        assert result["accept_index"][:, 0].tolist() == [b * ndt for b in range(case.sizes["bs"])]
        is_any = op.tokens(case, result).get("predicts", torch.zeros(1, dtype=torch.bool))
        told = op.defined(case, result)["predicts"].sum() + is_any.sum()
        assert int(told) == int((result["accept_token_num"] + 1).sum())
        assert bool(is_any.any()) <= bool(case.sizes["has_nan"])


@pytest.mark.parametrize("op", TREE_OPS, ids=lambda op: op.name)
def test_predicts_goes_by_the_nodes_number_and_distributions_and_uniform_draws_by_the_node(op: Op) -> None:
    for case in seeded_cases(op.name)[:60]:
        renumbered = case.clone()
        renumbered.tensors["retrieve_index"] = case.tensors["retrieve_index"].flip(1)
        assert emitted(op, renumbered) == emitted(op, case)


@pytest.mark.parametrize("op", TREE_OPS, ids=lambda op: op.name)
def test_fewer_steps_cut_the_path_and_draw_from_the_whole_distribution(op: Op) -> None:
    for case in seeded_cases(op.name)[:60]:
        whole = emitted(op, case)
        cut = case.clone()
        cut.sizes.update({"num_steps": 1, "accept_width": 2})
        for short, tokens in zip(emitted(op, cut), whole, strict=True):
            assert len(short) == min(len(tokens), 2)
            assert short[:1] == tokens[:1]
            assert len(tokens) > 1 or short == tokens


# ---- the generators


@every_op
def test_cases_reach_every_accept_length_and_uniform_draws_at_the_ends(op: Op) -> None:
    lengths: dict[int, Counter[int]] = {steps: Counter() for steps in range(1, 7)}
    coins: Counter[float] = Counter()
    for case in seeded_cases(op.name):
        lengths[case.sizes["num_steps"]].update(op.expected(case)["accept_token_num"].tolist())
        flat = [*case.tensors["uniform_samples"].flatten().tolist(), *case.tensors["uniform_final"].tolist()]
        assert all(0 <= coin < 1 for coin in flat)
        coins.update(flat)
    for steps, seen in lengths.items():
        assert all(seen[length] for length in range(steps)), (steps, seen)
    assert sum(seen[steps] for steps, seen in lengths.items()) >= 50
    assert coins[0.0] >= 100
    assert coins[TOP] >= 100


@every_op
def test_distributions_are_sixty_fourths_with_zeros_and_certainties_among_them(op: Op) -> None:
    zeros = certain = 0
    for case in of_numbers(op.name):
        dists = case.tensors["target_probs"]
        assert torch.equal(dists * 64, (dists * 64).round())
        assert bool((dists.sum(dim=2) <= 1).all())
        zeros += bool((dists == 0).any())
        certain += bool((dists == 1).any())
        assert case.sizes["vocab_size"] in (*range(3, 13), *WIDE_VOCAB_SIZES)
    assert min(zeros, certain) >= 50


@every_op
def test_no_choices_give_the_simplest_case_and_a_tape_gives_its_case_again(op: Op) -> None:
    simplest = op.generate(replayed(()))
    assert simplest.sizes["bs"] == simplest.sizes["topk"] == simplest.sizes["num_steps"] == 1
    assert simplest.sizes["vocab_size"] == 3
    assert op.expected(simplest)["accept_token_num"].tolist() in ([0], [1])
    for index in range(30):
        chooser = seeded(1, op.name, index)
        case = op.generate(chooser)
        again = op.generate(replayed(chooser.tape))
        assert not any(differing(case.tensors[name], again.tensors[name]).any() for name in case.tensors)
        assert len(chooser.tape) <= 400


@pytest.mark.parametrize("op", [op for op in OPS if op.name != "verify_chain_block"], ids=lambda op: op.name)
def test_nothing_is_accepted_behind_a_row_of_nan_and_the_next_token_may_be_any(op: Op) -> None:
    """Of paths that end there now, and are what they were up to there."""
    ended = 0
    for case in of_numbers(op.name)[:60]:
        whole = op.expected(case)
        node = case.sizes["num_steps"] and 1
        unknown = case.clone()
        unknown.tensors["target_probs"][:, node] = torch.nan
        result = op.expected(unknown)
        is_any = op.tokens(unknown, result)["predicts"].view(case.tensors["candidates"].shape)
        numbers = case.tensors.get("retrieve_index", torch.arange(is_any.numel()).view(is_any.shape))
        for b, path in enumerate(result["accept_index"].tolist()):
            number = int(numbers[b, node])
            before = whole["accept_index"][b].tolist()
            if number in path:
                at = path.index(number)
                assert path == [*before[: at + 1], *[-1] * (len(path) - at - 1)]
                ended += 1
            else:
                assert path == before
            assert int(is_any[b].sum()) == (number in path)
    assert ended > 20


# ---- target-only sampling, on the tree 0 -> (1, 2), 1 -> 3


def target_only_case(**change: Any) -> Any:
    values = {
        "candidates": torch.tensor([[0, 0, 1, 2]]),
        "retrieve_index": torch.arange(4)[None],
        "retrieve_next_token": torch.tensor([[1, 3, -1, -1]]),
        "retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1]]),
        "uniform_samples": torch.tensor([[0.0, 0.0, 0.0, 0.0]]),
        "uniform_final": torch.tensor([0.0]),
        "target_probs": torch.tensor([[[0.25, 0.25, 0.5], [0.0, 0.25, 0.75], [0.5, 0.5, 0.0], [0.0, 1.0, 0.0]]]),
        "threshold_single": 1.0,
        "threshold_acc": 1.0,
        "num_steps": 2,
    }
    return values | change


@target_only
@pytest.mark.parametrize(
    ("coin", "path"),
    [(0.0, [0, 1, 3]), (BELOW_QUARTER, [0, 1, 3]), (0.25, [0, 2, -1]), (0.5 - 2**-25, [0, 2, -1]), (0.5, [0, -1, -1])],
)
def test_a_uniform_draw_on_a_threshold_belongs_to_the_next_sibling(
    verify: Callable[..., Any], coin: float, path: list[int]
) -> None:
    coins = torch.tensor([[coin, 0.0, 0.0, 0.0]])
    assert verify(**target_only_case(uniform_samples=coins)).accept_index.tolist() == [path]


@target_only
def test_the_uniform_draw_of_the_accepted_node_decides_next(verify: Callable[..., Any]) -> None:
    for own, length in ((0.5, 2), (0.75, 1)):
        coins = torch.tensor([[0.0, own, 0.9, 0.9]])
        assert verify(**target_only_case(uniform_samples=coins)).accept_token_num.tolist() == [length]


@target_only
@pytest.mark.parametrize("single", [1.0, 0.0])
@pytest.mark.parametrize("acc", [1.0, 0.0])
def test_a_child_of_probability_zero_is_never_accepted(verify: Callable[..., Any], single: float, acc: float) -> None:
    dists = torch.tensor([[[0.0, 0.0, 1.0]] * 4])
    for coin in (0.0, TOP):
        case = target_only_case(
            target_probs=dists,
            uniform_samples=torch.full((1, 4), coin),
            threshold_single=torch.tensor([single]),
            threshold_acc=torch.tensor([acc]),
        )
        result = verify(**case)
        assert result.accept_token_num.tolist() == [0]
        assert tokens_of(result) == [[2]]


@target_only
def test_rejected_siblings_are_taken_out_of_the_distribution(verify: Callable[..., Any]) -> None:
    case = target_only_case(uniform_samples=torch.full((1, 4), TOP))
    for final in (0.0, 0.5, TOP, 1.0):
        assert tokens_of(verify(**case | {"uniform_final": torch.tensor([final])})) == [[2]]


@target_only
@pytest.mark.parametrize(("final", "token"), [(0.0, 0), (BELOW_QUARTER, 0), (0.25, 1), (0.5, 2), (TOP, 2)])
def test_a_full_path_draws_from_the_whole_distribution(verify: Callable[..., Any], final: float, token: int) -> None:
    dists = torch.tensor([[[0.25, 0.25, 0.5]] * 4])
    case = target_only_case(target_probs=dists, num_steps=1, uniform_final=torch.tensor([final]))
    assert tokens_of(verify(**case)) == [[0, token]]


@target_only
def test_siblings_with_one_token_count_twice(verify: Callable[..., Any]) -> None:
    case = target_only_case(candidates=torch.tensor([[0, 0, 0, 2]]), uniform_samples=torch.tensor([[0.4, 0, 0, 0]]))
    assert verify(**case).accept_index.tolist() == [[0, 2, -1]]


@target_only
def test_thresholds_prefer_drafts(verify: Callable[..., Any]) -> None:
    coins = torch.tensor([[0.6, TOP, 0.0, 0.0]])
    first, second, none = [0, 1], [0, 2], [0, -1]
    for single, acc, path in ((1, 1, none), (0.25, 1, first), (0.25 + 2**-25, 1, none), (1, 0.75, second)):
        case = target_only_case(uniform_samples=coins, threshold_single=single, threshold_acc=acc, num_steps=1)
        assert verify(**case).accept_index.tolist() == [path]


@target_only
def test_threshold_acc_has_a_floor(verify: Callable[..., Any]) -> None:
    tiny = 2.0**-31  # about half the floor, so that it accepts uniform draws below a half and not all
    dists = torch.tensor([[[tiny, 0.0, 1.0]] * 4], dtype=torch.float64)
    for coin, accepted in ((0.46, 1), (0.47, 0)):
        case = target_only_case(
            target_probs=dists,
            uniform_samples=torch.tensor([[coin, TOP, TOP, TOP]], dtype=torch.float64),
            uniform_final=torch.zeros(1, dtype=torch.float64),
            threshold_acc=0.0,
            num_steps=1,
        )
        assert verify(**case).accept_token_num.tolist() == [accepted]


@target_only
def test_an_empty_residual_gives_the_last_token_of_the_vocabulary(verify: Callable[..., Any]) -> None:
    short = torch.tensor([[[0.25, 0.5, 0.0]] * 4])  # a row that adds up to 3/4
    case = target_only_case(target_probs=short, uniform_samples=torch.full((1, 4), 0.75))
    for final in (0.0, TOP):
        assert tokens_of(verify(**case | {"uniform_final": torch.tensor([final])})) == [[2]]


@target_only
def test_a_final_uniform_draw_of_one_gives_the_last_token_with_a_positive_weight(verify: Callable[..., Any]) -> None:
    dists = torch.tensor([[[0.5, 0.5, 0.0]] * 4])
    case = target_only_case(target_probs=dists, num_steps=0, uniform_final=torch.tensor([1.0]))
    assert tokens_of(verify(**case)) == [[1]]


@target_only
def test_a_root_alone_draws_from_its_distribution(verify: Callable[..., Any]) -> None:
    alone = torch.tensor([[-1]])
    case = target_only_case(
        candidates=torch.tensor([[0]]),
        retrieve_index=torch.tensor([[0]]),
        retrieve_next_token=alone,
        retrieve_next_sibling=alone,
        uniform_samples=torch.zeros(1, 1),
        uniform_final=torch.tensor([0.5]),
        target_probs=torch.tensor([[[0.25, 0.25, 0.5]]]),
    )
    result = verify(**case)
    assert result.accept_index.tolist() == [[0, -1, -1]]
    assert tokens_of(result) == [[2]]


# ---- the chain rules


def chain_case(**change: Any) -> Any:
    values = {
        "candidates": torch.tensor([[0, 0, 1]]),
        "draft_probs": torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25]]]),
        "target_probs": torch.tensor([[[0.125, 0.25, 0.625], [0.0, 0.25, 0.75], [0.5, 0.5, 0.0]]]),
        "uniform_samples": torch.tensor([[0.0, 0.0]]),
        "uniform_final": torch.tensor([0.0]),
    }
    return values | change


@chain
@pytest.mark.parametrize(
    ("coins", "tokens"),
    [
        ([0.0, 0.0], [0, 1, 0]),
        ([BELOW_QUARTER, 0.5 - 2**-25], [0, 1, 0]),
        ([0.25, 0.0], [2]),
        ([0.0, 0.5], [0, 2]),
        ([TOP, TOP], [2]),
    ],
)
def test_a_draft_is_accepted_below_the_ratio_and_not_at_it(
    verify: Callable[..., Any], coins: list[float], tokens: list[int]
) -> None:
    assert tokens_of(verify(**chain_case(uniform_samples=torch.tensor([coins])))) == [tokens]


@both_chains
def test_a_draft_of_probability_zero_is_rejected_whichever_model_gives_it(verify: Callable[..., Any]) -> None:
    dists = chain_case()
    no_target = dists["target_probs"].clone()
    no_target[0, 0] = torch.tensor([0.0, 0.5, 0.5])
    no_draft = dists["draft_probs"].clone()
    no_draft[0, 0] = torch.tensor([0.0, 0.5, 0.5])
    for change in ({"target_probs": no_target}, {"draft_probs": no_draft}):
        assert verify(**dists | change).accept_token_num.tolist() == [0]


@both_chains
@pytest.mark.parametrize("place", [1, 2])
def test_a_placeholder_is_rejected_at_any_uniform_draw(verify: Callable[..., Any], place: int) -> None:
    last = torch.tensor([0.0, 0.0, 1.0])  # what an index of -1 would read is a certain token
    candidates = torch.tensor([[2, 2, 2]])
    candidates[0, place] = -1
    for uniform in (0.0, TOP):
        result = verify(
            candidates=candidates,
            draft_probs=torch.stack([last, last])[None] / 2,
            target_probs=torch.stack([last, last, last])[None],
            uniform_samples=torch.full((1, 2), uniform),
            uniform_final=torch.tensor([0.0]),
        )
        assert tokens_of(result) == [[2] * place]


@both_chains
def test_where_nothing_was_drawn_a_placeholder_leaves_the_targets_distribution(verify: Callable[..., Any]) -> None:
    for final, token in ((0.124, 0), (0.125, 1), (0.375, 2)):
        case = chain_case(candidates=torch.tensor([[0, -1, -1]]), draft_probs=torch.zeros(1, 2, 3))
        assert tokens_of(verify(**case | {"uniform_final": torch.tensor([final])})) == [[token]]


@both_chains
@pytest.mark.parametrize("excess", [2.0**-23, 5e-4])
@pytest.mark.parametrize("num_steps", [1, 2])
def test_a_certain_draft_whose_probability_rounds_to_more_than_one_is_accepted(
    verify: Callable[..., Any], excess: float, num_steps: int
) -> None:
    certain = torch.tensor([[1.0, 0.0, 0.0]])
    result = verify(
        candidates=torch.zeros(1, num_steps + 1, dtype=torch.int64),
        draft_probs=(certain * (1 + excess)).repeat(1, num_steps, 1),
        target_probs=certain.repeat(1, num_steps + 1, 1),
        uniform_samples=torch.full((1, num_steps), TOP),
        uniform_final=torch.tensor([TOP]),
    )
    assert tokens_of(result) == [[0] * (num_steps + 1)]


@both_chains
def test_equal_distributions_accept_every_draft_at_any_uniform_draw_below_one(verify: Callable[..., Any]) -> None:
    rows = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]])
    case = chain_case(draft_probs=rows[:, :2], target_probs=rows, uniform_samples=torch.full((1, 2), TOP))
    assert tokens_of(verify(**case)) == [[0, 1, 2]]


@chain
def test_an_empty_residual_of_a_chain_gives_the_last_token_of_the_vocabulary(verify: Callable[..., Any]) -> None:
    rows = torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 0.0, 1.0]]])
    case = chain_case(draft_probs=rows[:, :2], target_probs=rows, uniform_samples=torch.ones(1, 2))
    assert tokens_of(verify(**case)) == [[2]]


@both_chains
def test_a_chain_without_drafts_draws_from_the_first_distribution(verify: Callable[..., Any]) -> None:
    case = chain_case(
        candidates=torch.tensor([[0], [1]]),
        draft_probs=torch.zeros(2, 0, 3),
        target_probs=torch.tensor([[[0.25, 0.25, 0.5]], [[0.25, 0.25, 0.5]]]),
        uniform_samples=torch.zeros(2, 0),
        uniform_final=torch.tensor([0.25, 0.5]),
    )
    result = verify(**case)
    assert result.accept_index.tolist() == [[0], [1]]
    assert result.accept_token_num.tolist() == [0, 0]
    assert result.predicts.tolist() == [1, 2]


@block
def test_a_block_is_accepted_past_a_draft_that_fails_its_own_uniform_draw(verify: Callable[..., Any]) -> None:
    # r_1 = 1/4, R_1 = (3/4 / 4 - 1/4)+ + ... = 0, so h_1 = 0; r_2 = 1/4 * (1/4) / (1/2) = 1/8 = h_2
    for second, tokens in ((0.125 - 2**-27, [0, 1, 0]), (0.125, [2])):
        case = chain_case(uniform_samples=torch.tensor([[0.0, second]]))
        assert tokens_of(verify(**case)) == [tokens]
        case = chain_case(uniform_samples=torch.tensor([[TOP, second]]))
        assert tokens_of(verify(**case)) == [tokens]


@block
def test_a_blocks_residual_is_that_of_the_scaled_distribution(verify: Callable[..., Any]) -> None:
    # r_1 = 1/2; r_1 p_2 - q_2 is positive at token 2 alone: 3/8 - 1/4 = 1/8, so h_1 = (1/8) / (1/8 + 1/2) = 1/5
    dists = chain_case()["target_probs"].clone()
    dists[0, 0] = torch.tensor([0.25, 0.25, 0.5])
    for first, tokens in ((0.19, [0, 2]), (0.21, [2])):
        case = chain_case(target_probs=dists, uniform_samples=torch.tensor([[first, TOP]]))
        assert tokens_of(verify(**case)) == [tokens]


# ---- rejection over trees, on the tree 0 -> (1, 2), 1 -> 3


def rejection_case(**change: Any) -> Any:
    values = {
        "candidates": torch.tensor([[0, 0, 1, 2]]),
        "retrieve_index": torch.arange(4)[None],
        "retrieve_next_token": torch.tensor([[1, 3, -1, -1]]),
        "retrieve_next_sibling": torch.tensor([[-1, 2, -1, -1]]),
        "uniform_samples": torch.tensor([[TOP, 0.0, 0.0, 0.0]]),
        "uniform_final": torch.tensor([0.0]),
        "draft_probs": torch.tensor([[[0.5, 0.25, 0.25], [0.25, 0.25, 0.5], [0.0] * 3, [0.0] * 3]]),
        "target_probs": torch.tensor(
            [[[0.125, 0.3125, 0.5625], [0.5, 0.25, 0.25], [0.25, 0.5, 0.25], [0.0, 1.0, 0.0]]]
        ),
        "num_steps": 2,
    }
    return values | change


@tree_rejection
def test_every_child_has_its_own_uniform_draw_and_the_roots_is_not_read(verify: Callable[..., Any]) -> None:
    for coins, path in (
        ([TOP, BELOW_QUARTER, 0.0, 0.5 - 2**-25], [0, 1, 3]),
        ([TOP, BELOW_QUARTER, 0.0, 0.5], [0, 1, -1]),
        ([TOP, 0.25, 0.0, 0.0], [0, 2, -1]),
    ):
        assert verify(**rejection_case(uniform_samples=torch.tensor([coins]))).accept_index.tolist() == [path]


@tree_rejection
def test_a_rejected_sibling_changes_both_distributions_for_the_next(verify: Callable[..., Any]) -> None:
    # p - q leaves (0, 1/16, 5/16), that is (0, 1/6, 5/6); q without token 0 is (0, 1/2, 1/2): accept below 1/3
    for second, tokens in ((0.33, [1, 0]), (0.34, [2])):
        case = rejection_case(uniform_samples=torch.tensor([[0.0, 0.25, second, 0.0]]))
        assert tokens_of(verify(**case)) == [tokens]


@tree_rejection
def test_a_child_that_cannot_have_been_drawn_is_passed_over(verify: Callable[..., Any]) -> None:
    twice = rejection_case(candidates=torch.tensor([[0, 0, 0, 2]]), uniform_samples=torch.tensor([[0, 0.25, 0.0, 0]]))
    once = twice | {"retrieve_next_sibling": torch.full((1, 4), -1)}
    for final in (0.0, 0.1, 0.2, TOP):
        coin = {"uniform_final": torch.tensor([final])}
        assert verify(**twice | coin).accept_token_num.tolist() == [0]
        assert tokens_of(verify(**twice | coin)) == tokens_of(verify(**once | coin))


@tree_rejection
def test_a_placeholder_among_the_children_is_passed_over(verify: Callable[..., Any]) -> None:
    without = rejection_case(retrieve_next_token=torch.tensor([[2, -1, -1, -1]]))
    for second, final in ((0.0, 0.0), (TOP, 0.0), (TOP, 0.2), (TOP, TOP)):
        coins = {"uniform_samples": torch.tensor([[0.0, 0.0, second, 0.0]]), "uniform_final": torch.tensor([final])}
        placeholder = rejection_case(candidates=torch.tensor([[0, -1, 1, 2]]))
        assert verify(**placeholder | coins).accept_index.tolist() == verify(**without | coins).accept_index.tolist()
        assert tokens_of(verify(**placeholder | coins)) == tokens_of(verify(**without | coins))


@tree_rejection
def test_where_nothing_is_left_no_sibling_is_accepted(verify: Callable[..., Any]) -> None:
    rows = rejection_case()["draft_probs"]
    case = rejection_case(target_probs=rows, uniform_samples=torch.tensor([[0.0, 1.0, 0.0, 0.0]]))
    assert tokens_of(verify(**case)) == [[2]]


@tree_rejection
@pytest.mark.parametrize("excess", [2.0**-23, 5e-4])
def test_a_certain_child_whose_probability_rounds_to_more_than_one_is_accepted(
    verify: Callable[..., Any], excess: float
) -> None:
    certain = torch.tensor([[[1.0, 0.0, 0.0]] * 4])
    rows = {"draft_probs": certain * (1 + excess), "target_probs": certain}
    case = rejection_case(candidates=torch.zeros(1, 4, dtype=torch.int64), uniform_samples=torch.full((1, 4), TOP))
    assert tokens_of(verify(**case | rows)) == [[0, 0, 0]]


@tree_rejection
def test_a_child_that_the_target_excludes_is_never_accepted(verify: Callable[..., Any]) -> None:
    dists = torch.tensor([[[0.0, 0.0, 1.0]] * 4])
    case = rejection_case(target_probs=dists, uniform_samples=torch.zeros(1, 4))
    assert tokens_of(verify(**case)) == [[2]]


@tree_rejection
def test_no_steps_draw_from_the_roots_distribution(verify: Callable[..., Any]) -> None:
    result = verify(**rejection_case(num_steps=0, uniform_final=torch.tensor([0.125])))
    assert result.accept_index.tolist() == [[0]]
    assert tokens_of(result) == [[1]]


# ---- arguments


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_steps": -1}, r"num_steps is -1; allowed: 0 or more"),
        ({"candidates": torch.tensor([[0, 0, 3, 2]])}, r"candidates\[0, 2\] is 3; allowed: 0 to 2"),
        ({"threshold_single": 1.5}, r"threshold_single is 1.5; allowed: 0 to 1"),
        ({"threshold_acc": float("nan")}, r"threshold_acc is nan; allowed: 0 to 1"),
        ({"threshold_acc": torch.ones(2)}, r"threshold_acc has shape \[2\]; allowed: a number or \[1\]"),
        ({"uniform_final": torch.tensor([-0.5])}, r"uniform_final\[0\] is -0.5; allowed: 0 to 1"),
        (
            {"uniform_samples": torch.zeros(1, 3)},
            r"uniform_samples has shape \[1, 3\]; allowed: \[bs=1, num_draft_t",
        ),
        ({"uniform_final": torch.zeros(1, dtype=torch.float64)}, r"uniform_final has dtype torch.float64; allowed"),
        ({"target_probs": torch.full((1, 4, 3), 2.0)}, r"target_probs\[0, 0, 0\] is 2.0; allowed: 0 to 1 or NaN"),
        ({"target_probs": torch.zeros(1, 4, 3, dtype=torch.float16)}, r"target_probs has dtype torch.float16; allowed"),
        ({"target_probs": torch.zeros(1, 4, 0)}, r"vocab_size \(the width of target_probs\) is 0; allowed: 1"),
        ({"retrieve_index": torch.arange(1, 5)[None]}, r"retrieve_index\[0, 3\] is 4; allowed: b \* ndt to"),
        ({"retrieve_next_token": torch.tensor([[4, 3, -1, -1]])}, r"retrieve_next_token\[0, 0\] is 4; allowed: -1"),
        ({"retrieve_next_sibling": torch.tensor([[-1, 2, 1, -1]])}, r"retrieve_next_sibling\[0, 2\] is 1; allowed"),
    ],
)
def test_wrong_trees_and_distributions_are_refused_with_the_value_and_what_is_allowed(
    change: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        verify_tree_target_only(**target_only_case(**change))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"draft_probs": torch.zeros(1, 3, 3)},
            r"draft_probs has shape \[1, 3, 3\]; allowed: \[bs=1, num_steps=2",
        ),
        ({"target_probs": torch.zeros(1, 2, 3)}, r"target_probs has shape \[1, 2, 3\]; allowed: \[bs=1, num_draft_tok"),
        ({"candidates": torch.zeros(1, 0, dtype=torch.int64)}, r"the width of candidates\) is 0; allowed: 1 or more"),
        ({"candidates": torch.tensor([[0, 0, -2]])}, r"candidates\[0, 2\] is -2; allowed: -1 to 2"),
        (
            {"draft_probs": torch.full((1, 2, 3), 2.0)},
            r"draft_probs\[0, 0, 0\] is 2.0; allowed: 0 to 1, and what rounding adds",
        ),
    ],
)
@pytest.mark.parametrize("verify", [verify_chain_rejection, verify_chain_block])
def test_wrong_chains_are_refused_with_the_value_and_what_is_allowed(
    verify: Callable[..., Any], change: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        verify(**chain_case(**change))


def test_draft_distributions_of_trees_have_a_row_for_every_node() -> None:
    with pytest.raises(ValueError, match=r"draft_probs has shape \[1, 3, 3\]; allowed: \[bs=1, num_draft_tokens=4"):
        verify_tree_rejection(**rejection_case(draft_probs=torch.zeros(1, 3, 3)))
