"""Speculative sampling, counted out: the exact distribution of every rule, and by how much it is off where it should
be.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from typing import Any

import pytest
import torch

from property_tests.naive import NAIVE
from specsim.contracts.contract import WrongResultError
from specsim.contracts.drafts import EAGER, FAMILIES, MODELS, SKEWED, TOY, TREES, Drafted
from specsim.contracts.enumeration import (
    Proposal,
    completed,
    expected_length,
    output_distribution,
    target_distribution,
    total_variation,
)
from specsim.contracts.losslessness import (
    NAMES,
    chain_proposals,
    distance,
    distances,
    exact_distribution,
    off,
    rejection_proposals,
    rule_of,
    target_only_proposal,
    trials,
)
from specsim.contracts.sampling import OPS
from specsim.reference.sampling import (
    verify_chain_block,
    verify_chain_rejection,
    verify_tree_target_only,
)

HALF, ONE = Fraction(1, 2), Fraction(1)
BY_NAME = {op.name: op for op in OPS}
CHAINS = ("verify_chain_rejection", "verify_chain_block")
every_name = pytest.mark.parametrize("name", NAMES)
every_model = pytest.mark.parametrize(("target", "drafter"), MODELS.values(), ids=list(MODELS))


def distribution_of(name: str, proposals: Any, **options: Any) -> Any:
    """The distribution of a rule by two witnesses: counted out of the reference in double precision, and derived
    exactly.
    """
    counted = output_distribution(rule_of(name, BY_NAME[name].reference, dtype=torch.float64, **options), proposals)
    assert counted == exact_distribution(name, proposals, **options)
    return counted


def chains(name: str, target: Any, drafter: Any, num_steps: int) -> list[Proposal[Drafted]]:
    return chain_proposals(target, drafter, num_steps, block=name == "verify_chain_block")


def toy_off(dist: Any) -> Fraction:
    """How far the first token of `dist` is off the toy target."""
    return off(dist, TOY[0], 1)


# ---- what is promised of the rules


@every_model
@pytest.mark.parametrize(("tokens", "parents"), [*TREES.values(), ((0,), (-1,))], ids=[*TREES, "root alone"])
def test_target_only_sampling_has_the_targets_distribution_whatever_the_tree(
    target: Any, drafter: Any, tokens: Any, parents: Any
) -> None:
    assert (
        off(distribution_of("verify_tree_target_only", [target_only_proposal(tokens, parents, target)]), target, 3) == 0
    )


@every_model
@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_both_chain_rules_have_the_targets_distribution(target: Any, drafter: Any, name: str, num_steps: int) -> None:
    assert off(distribution_of(name, chains(name, target, drafter, num_steps)), target, num_steps + 1) == 0


@every_model
@pytest.mark.parametrize("families", FAMILIES.values(), ids=list(FAMILIES))
@pytest.mark.parametrize("replacement", [False, True], ids=["without replacement", "with replacement"])
def test_tree_rejection_has_the_targets_distribution(
    target: Any, drafter: Any, families: Any, replacement: bool
) -> None:
    """Drawn with replacement, a token that comes again is passed over, and one that does not is drawn as without."""
    proposals = rejection_proposals(target, drafter, families, replacement=replacement)
    assert off(distribution_of("verify_tree_rejection", proposals), target, 3) == 0


def test_a_tree_deeper_than_the_steps_is_cut_without_changing_the_distribution() -> None:
    target, drafter = MODELS["four tokens"]
    tree = [target_only_proposal((0, 1, 0, 2), (-1, 0, 1, 1), target)]
    assert off(distribution_of("verify_tree_target_only", tree, num_steps=1), target, 3) == 0
    assert off(distribution_of("verify_tree_target_only", tree, num_steps=0), target, 3) == 0
    families = rejection_proposals(target, drafter, (1, 2))
    assert off(distribution_of("verify_tree_rejection", families, num_steps=1), target, 3) == 0


def test_a_certain_draft_that_the_target_never_says_is_lost_to_nobody() -> None:
    never, certain = (Fraction(0), HALF, HALF), (ONE, Fraction(0), Fraction(0))
    for name in CHAINS:
        dist = distribution_of(name, chains(name, lambda _prefix: never, lambda _prefix: certain, 2))
        assert dist == {(1,): HALF, (2,): HALF}


@pytest.mark.parametrize(
    ("siblings", "single", "acc", "expected"),
    [
        ((0, 1), ONE, ONE, Fraction(0)),
        ((0, 0), ONE, ONE, Fraction(5, 16)),
        ((0, 1), ONE, Fraction(3, 4), Fraction(3, 16)),
        ((0, 1), Fraction(1, 4), ONE, Fraction(11, 16)),
    ],
    ids=["distinct siblings", "a sibling twice", "threshold_acc 3/4", "threshold_single 1/4"],
)
def test_target_only_sampling_is_off_by_its_closed_forms(
    siblings: Any, single: Any, acc: Any, expected: Fraction
) -> None:
    proposal = target_only_proposal((0, *siblings), (-1, *(0 for _ in siblings)), TOY[0], acc)
    dist = distribution_of("verify_tree_target_only", [proposal], threshold_single=single, threshold_acc=acc)
    assert toy_off(dist) == expected


def test_threshold_acc_shares_out_the_uniform_draw_by_the_closed_form() -> None:
    acc, siblings = Fraction(3, 4), (1, 0, 2, 3)
    tree = [target_only_proposal((0, *siblings), (-1, 0, 0, 0, 0), TOY[0], acc)]
    accepted: dict[int, Fraction] = {}
    for tokens, probability in distribution_of("verify_tree_target_only", tree, threshold_acc=acc, num_steps=1).items():
        if len(tokens) == 2:
            accepted[tokens[0]] = accepted.get(tokens[0], Fraction(0)) + probability
    masses = itertools.accumulate((SKEWED[token] for token in siblings), initial=Fraction(0))
    shares = [min(mass / acc, ONE) for mass in masses]
    expected = {token: high - low for token, (low, high) in zip(siblings, itertools.pairwise(shares), strict=True)}
    assert accepted == {token: share for token, share in expected.items() if share}


@pytest.mark.parametrize("name", CHAINS)
def test_an_argmax_passed_off_as_a_draw_is_off_by_five_sixteenths(name: str) -> None:
    top = chains(name, *TOY, 1)[0]  # token 0, always, with the softmax distribution beside it
    assert toy_off(distribution_of(name, [Proposal(ONE, top.drafted, top.thresholds)])) == Fraction(5, 16)


@cache
def lengths(model: str, num_steps: int) -> list[Fraction]:
    return [expected_length(distribution_of(name, chains(name, *MODELS[model], num_steps))) for name in CHAINS]


@pytest.mark.parametrize("model", MODELS)
def test_block_verification_emits_no_less_than_the_token_rule(model: str) -> None:
    chain, block = lengths(model, 2)
    assert block >= chain


def test_block_verification_emits_more_where_ratios_make_up_for_each_other() -> None:
    chain, block = lengths("three tokens", 2)
    assert block > chain


def test_the_token_rule_accepts_the_overlap_of_both_distributions() -> None:
    dist = distribution_of("verify_chain_rejection", chains("verify_chain_rejection", *TOY, 1))
    assert expected_length(dist) == 1 + sum(map(min, SKEWED, EAGER))


# ---- what is promised to those who hold their own implementation against it


@every_name
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.slow(runs_one_in=2)
def test_reference_and_naive_implementation_are_at_distance_zero(name: str, dtype: torch.dtype) -> None:
    assert distance(name, BY_NAME[name].reference, dtype=dtype) == 0
    assert distance(name, NAIVE[name], dtype=dtype, quick=True) == 0


@every_name
def test_both_witnesses_agree_on_every_trial(name: str) -> None:
    for where, trial in trials(name):
        assert distribution_of(name, trial.proposals), where
        assert off(exact_distribution(name, trial.proposals), trial.target, trial.length) == 0, where


@every_name
def test_quick_is_a_part_of_the_whole_and_asks_for_few_requests(name: str) -> None:
    asked = []

    def counted(**arguments: Any) -> Any:
        asked.append(len(arguments["candidates"]))
        return BY_NAME[name].reference(**arguments)

    quick = distances(name, counted, quick=True)
    assert quick.keys() < dict(trials(name)).keys()
    assert len(asked) <= 16
    assert sum(asked) <= 350


def test_an_implementation_that_writes_in_place_gets_prefilled_outputs() -> None:
    seen = []

    def in_place(candidates: Any, draft_probs: Any, target_probs: Any, uniform_samples: Any, uniform_final: Any,
                 predicts: Any, accept_index: Any,
                 accept_token_num: Any) -> Any:  # fmt: skip
        seen.append(bool((accept_index == -1).all()) and bool((predicts < 0).all()))
        assert draft_probs.dtype == uniform_final.dtype == torch.float32
        assert all(tensor.is_contiguous() for tensor in (candidates, draft_probs, uniform_samples, uniform_final))
        results = verify_chain_rejection(candidates, draft_probs, target_probs, uniform_samples, uniform_final)
        for out, result in zip((predicts, accept_index, accept_token_num), results, strict=True):
            out.copy_(result)

    assert distance("verify_chain_rejection", in_place, quick=True) == 0
    assert all(seen)


def test_a_lossless_rule_of_another_shape_is_at_distance_zero() -> None:
    """The token rule is no block verification, and flips elsewhere; the distribution is the same, and that is what
    counts.
    """
    assert distance("verify_chain_block", verify_chain_rejection, quick=True) == 0
    assert distance("verify_chain_rejection", verify_chain_block, quick=True) == 0


def test_distances_say_where_an_implementation_is_off() -> None:
    def never_accepts(**arguments: Any) -> Any:
        return verify_chain_rejection(**{**arguments, "uniform_samples": torch.ones_like(arguments["uniform_samples"])})

    found = distances("verify_chain_rejection", never_accepts)
    assert found["certain drafts, 1 draft"] == Fraction(9, 16)  # the draft, which the residual cannot say
    assert found["equal, 1 draft"] > 0  # nothing is left of the distribution: the last token of the vocabulary
    assert distance("verify_chain_rejection", never_accepts) == max(found.values())


def test_results_that_are_none_are_refused() -> None:
    def broken(change: Any) -> Any:
        def verify(**arguments: Any) -> Any:
            result = verify_chain_rejection(**arguments)
            return change(result)

        return verify

    for change, message in (
        (
            lambda r: r._replace(accept_token_num=r.accept_token_num + 7),
            r"accept_token_num\[0\] is \d; allowed: 0 to 2",
        ),
        (lambda r: r._replace(accept_index=r.accept_index - 1), r"accept_index\[0, 0\] is -1; allowed: 0 to"),
        (lambda r: r._replace(predicts=r.predicts + 9), r"predicts\[0\] is \d+; allowed: 0 to 2"),
    ):
        with pytest.raises(WrongResultError, match=message):
            distance("verify_chain_rejection", broken(change), quick=True)


@pytest.mark.parametrize("call", [lambda name: distance(name, print), lambda name: exact_distribution(name, [])])
def test_an_unknown_name_is_refused_with_the_four_that_there_are(call: Callable[..., Any]) -> None:
    with pytest.raises(ValueError, match=r"there is no sampling operation 'verify'; allowed: .*") as caught:
        call("verify")
    assert all(name in str(caught.value) for name in NAMES)


# ---- what is promised of counting out


def blind_to_coin(which: int) -> Proposal[Drafted]:
    """The toy with two children of the root, and no thresholds for one uniform draw."""
    proposal = target_only_proposal((0, 0, 1), (-1, 0, 0), TOY[0])
    thresholds = tuple(() if i == which else cuts for i, cuts in enumerate(proposal.thresholds))
    return Proposal(ONE, proposal.drafted, thresholds)


def test_a_missing_threshold_is_refused_or_found() -> None:
    rule = rule_of("verify_tree_target_only", verify_tree_target_only)
    for which in (0, 3):
        with pytest.raises(ValueError, match=r"a threshold is missing: the rule emits"):
            output_distribution(rule, [blind_to_coin(which)])
        whole = exact_distribution("verify_tree_target_only", [blind_to_coin(which)])
        assert output_distribution(rule, [blind_to_coin(which)], find_thresholds=True) == whole


@pytest.mark.parametrize("threshold", [Fraction(1, 3), Fraction(5, 11), Fraction(1, 2), Fraction(199, 401)], ids=str)
def test_a_threshold_is_found_as_the_fraction_that_it_is(threshold: Fraction) -> None:
    def rule(_drafted: Any, coins: torch.Tensor) -> Any:
        return [(int(coin < float(threshold)),) for coin in coins[:, 0].tolist()]

    dist = output_distribution(rule, [Proposal(ONE, None, ((),))], find_thresholds=True)
    assert dist == {(1,): threshold, (0,): 1 - threshold}


def test_a_decision_that_no_box_of_uniform_draws_bounds_is_refused() -> None:
    def diagonal(_drafted: Any, coins: torch.Tensor) -> Any:
        return [(int(a + b < 1),) for a, b in coins.tolist()]

    with pytest.raises(ValueError, match=r"a threshold is missing"):
        output_distribution(diagonal, [Proposal(ONE, None, ((), ()))], find_thresholds=True)


def test_weights_that_are_no_distribution_and_results_that_are_too_few_are_refused() -> None:
    half = Proposal(HALF, 0, ((HALF,),))
    with pytest.raises(ValueError, match=r"the weights of the proposals add up to 1/2; allowed: 1"):
        output_distribution(lambda _drafted, coins: [(0,)] * len(coins), [half])
    with pytest.raises(ValueError, match=r"the rule returned 1 results for 6 rows of uniform draws"):
        output_distribution(lambda _drafted, _coins: [(0,)], [half, half])
    many = tuple(Fraction(n, 1001) for n in range(1001))
    with pytest.raises(ValueError, match=r"a proposal has 1001 x 1001 = 1002001 cells; allowed: at most 1000000"):
        output_distribution(lambda _drafted, _coins: [], [Proposal(ONE, 0, (many, many))])


def test_a_rule_of_ones_own_is_checked_with_its_own_thresholds() -> None:
    def biased(dist: Any, coins: torch.Tensor) -> Any:
        return [(0,) if coin < float(dist[0]) + 0.125 else (1,) for coin in coins[:, 0].tolist()]

    dist = (Fraction(3, 8), Fraction(5, 8))
    own = output_distribution(biased, [Proposal(ONE, dist, ((HALF,),))])
    assert own == {(0,): HALF, (1,): HALF}
    assert total_variation(own, target_distribution(lambda _prefix: dist, 1)) == Fraction(1, 8)


def test_target_distributions_are_distributions_and_completing_keeps_what_was_emitted() -> None:
    target, _ = MODELS["four tokens"]
    whole = target_distribution(target, 3)
    assert sum(whole.values()) == 1
    assert completed(target_distribution(target, 1), 3, target) == whole
    assert completed(whole, 2, target) == target_distribution(target, 2)
    assert target_distribution(target, 0) == {(): ONE}
