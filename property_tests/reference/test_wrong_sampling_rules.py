"""Wrong ways to verify, each one line away from the right one, and by how much each is off: exactly.

A wrong rule is the reference, or its naive implementation, with one line replaced. On the toy, target
p = (5, 4, 3, 2, 2)/16 and drafter q = (8, 4, 2, 1, 1)/16 after every prefix, each has a closed form. There only token 0
can be rejected: the token rule accepts it with 5/8, and what a rejection leaves of p is a third for each of the tokens
2, 3 and 4.

Not every wrong rule emits wrongly: some change nothing but a uniform draw's meaning, or how much is accepted. They are
held here too, with what kills them instead.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from property_tests import naive
from specsim.choices.chooser import seeded
from specsim.contracts.drafts import EAGER, SKEWED, TOY, Drafted
from specsim.contracts.enumeration import (
    Proposal,
    expected_length,
    output_distribution,
    total_variation,
)
from specsim.contracts.losslessness import (
    chain_proposals,
    distance,
    exact_distribution,
    off,
    rejection_proposals,
    rule_of,
    target_only_proposal,
    trials,
)
from specsim.contracts.sampling import OPS

F = Fraction
BY_NAME = {op.name: op for op in OPS}
P, Q = SKEWED, EAGER
ACCEPT = P[0] / Q[0]  # 5/8: how much of a drafted token 0 the token rule accepts
LOST = 1 - sum(map(min, P, Q))  # 3/16: the probability that a draft is rejected, Q[0] * (1 - ACCEPT)
SIBLINGS = ((0, 0, 1), (-1, 0, 0))
TWICE = ((0, 0, 0), (-1, 0, 1))  # token 0, and token 0 after it


def reversed_links(first_child: list[int], next_sibling: list[int]) -> tuple[list[int], list[int]]:
    """The links of the same tree with the last sibling first."""
    last = {older: younger for older, younger in enumerate(next_sibling) if younger >= 0}
    first = list(first_child)
    for node in range(len(first)):
        while first[node] in last:
            first[node] = last[first[node]]
    before = {younger: older for older, younger in last.items()}
    return first, [before.get(node, -1) for node in range(len(first))]


def right(function: str) -> Any:
    """The rule of that name: the reference, or its naive implementation."""
    op = BY_NAME[function.removesuffix("_naive")]
    return naive.NAIVE[op.name] if function.endswith("_naive") else op.reference


@cache
def patched(function: str, line: str, becomes: str, rule: str = "") -> Any:
    """`rule`, or `function` if it is empty, of a copy of the reference with one line of `function` replaced.

    `line` is all or part of a line that is in the function exactly once.
    """
    path = Path(inspect.getfile(inspect.unwrap(right(rule or function))))
    source = path.read_text(encoding="utf-8")
    start = source.index(f"\ndef {function}(")
    end = source.find("\n\n\n", start)
    body = source[start:end]
    if body.count(line) != 1:
        raise ValueError(f"{line!r} is in {function} {body.count(line)} times; allowed: once")
    module = types.ModuleType("specsim.reference.wrong_sampling")
    vars(module)["reversed_links"] = reversed_links
    changed = source[:start] + body.replace(line, becomes) + source[end:]
    exec(compile(changed, str(path), "exec"), vars(module))
    return vars(module)[rule or function]


def rule_changed_by(patch: Any) -> str:
    """The rule that the arguments of `patched` change."""
    return str(patch[3] if len(patch) > 3 else patch[0])


def distribution_of(verify: Callable[..., Any], proposals: Any) -> Any:
    """The distribution of a changed rule; where it flips, and the right one does not, is searched."""
    name = verify.__name__.removesuffix("_naive")
    return output_distribution(rule_of(name, verify, dtype=torch.float64), proposals, find_thresholds=True)


def toy_off(verify: Callable[..., Any], proposals: Any, length: int) -> Fraction:
    return off(distribution_of(verify, proposals), TOY[0], length)


def toy_tree(tree: Any) -> list[Proposal[Drafted]]:
    tokens, parents = tree
    return [target_only_proposal(tokens, parents, TOY[0])]


def toy_chains(num_steps: int) -> list[Proposal[Drafted]]:
    return chain_proposals(*TOY, num_steps, block=False)


# Function, line, what it becomes; what is proposed, tokens compared, and how far off they are.
TARGET_ONLY, NAIVE, TREE = "verify_tree_target_only", "verify_tree_target_only_naive", "verify_tree_rejection"
CHAIN, BLOCK = "verify_chain_rejection", "verify_chain_block"
LINKS = "retrieve_next_token[b].tolist(), retrieve_next_sibling[b].tolist()"
REVERSED = f"reversed_links({LINKS})"
M0 = Q[0] * sum(q / (1 - q) for q in Q[1:])  # 32/105: how often token 0 is the second of two drawn siblings

WRONG: dict[str, tuple[Any, Any, int, Fraction | int]] = {
    "the cumulated mass is not reset after acceptance": (
        (NAIVE, "node, mass = path[-1], 0.0", "node, mass = path[-1], 0.0 if len(path) == 1 else mass"),
        lambda: toy_tree(TWICE),
        2,
        P[0] * P[0],  # after one token 0 the next is accepted with 2 P[0] instead of P[0]
    ),
    "the parent's uniform draw again": (
        (TARGET_ONLY, "coin = uniform_samples[request, node]", "coin = uniform_samples[request, 0]"),
        lambda: toy_tree(TWICE),
        2,
        P[0] * (1 - P[0]),  # a uniform draw that accepted token 0 accepts the next one for certain
    ),
    "one uniform draw for all siblings": (
        (TREE, "uniform_samples[request, child] * q < p", "uniform_samples[request, node] * q < p"),
        lambda: rejection_proposals(*TOY, (3,)),
        1,
        # Tokens 0, 1, 2 are drawn with 1/2 * 1/2 * 1/2 and the first two rejected with 1 - 5/8: token 2 is due with
        # (1/6) / (1/2) = 1/3, and a uniform draw above 5/8 never accepts it.
        F(1, 8) * (1 - ACCEPT) * F(1, 3),
    ),
    "the first uniform draw for every draft": (
        (CHAIN, "(uniform_samples * q < p)", "(uniform_samples[:, :1] * q < p)"),
        lambda: toy_chains(2),
        2,
        Q[0] * Q[0] * ACCEPT * (1 - ACCEPT),  # the second of two tokens 0 is never rejected once the first is accepted
    ),
    "the uniform draw of the draft again for the token after it": (
        (CHAIN, "dists, uniform_final)", "dists, uniform_samples[:, 0])"),
        lambda: toy_chains(1),
        1,
        Q[0] * (F(1, 3) - F(1, 8)),  # a uniform draw above 5/8 draws token 4 from thirds with 1/3 instead of 3/8 * 1/3
    ),
    "siblings are not taken out of the distribution": (
        (TARGET_ONLY, "dist[request[rejected], token[rejected]] = 0", "pass"),
        lambda: toy_tree(SIBLINGS),
        1,
        (P[0] + P[1]) * (1 - P[0] - P[1]),  # both get their share of what their rejection leaves, once more
    ),
    "the draft distribution is not subtracted, chain": (
        (CHAIN, "(target_probs[:, :num_steps] - draft_probs).clamp(min=0)", "target_probs[:, :num_steps]"),
        lambda: toy_chains(1),
        1,
        LOST * (P[0] + P[1]),  # a rejection draws tokens 0 and 1, of which nothing is left
    ),
    "the draft distribution is not subtracted, block": (
        ("chain_blocks", "(scaled - draft_probs).clamp(min=0)", "scaled", BLOCK),
        lambda: toy_chains(1),
        1,
        LOST * (P[0] + P[1]),  # as in a chain
    ),
    "the draft distribution is not subtracted, tree": (
        (TREE, "_normalised((dist - proposal).clamp(min=0))", "dist"),
        lambda: rejection_proposals(*TOY, (1,)),
        1,
        LOST * (P[0] + P[1]),  # as in a chain
    ),
    "siblings are compared with the same two distributions": (
        (
            TREE,
            "p, q = dist[request, token], proposal[request, token]",
            "p, q = target_probs[request, node, token], draft_probs[request, node, token]",
        ),
        lambda: rejection_proposals(*TOY, (2,)),
        1,
        Q[0] * (1 - ACCEPT) * F(1, 2),  # 3/32: token 1 after a rejected 0, of which nothing is left, is accepted
    ),
    "a rejected sibling stays in the draft distribution": (
        (TREE, "_normalised(proposal.scatter(1, token[:, None], 0))", "proposal"),
        lambda: rejection_proposals(*TOY, (2,)),
        1,
        # After 0 and 1 the residual is (1/3 - q) instead of (1/3 - 2q): (10, 13, 13)/36 instead of (6, 15, 15)/36.
        Q[0] * (1 - ACCEPT) * F(1, 2) * F(4, 36),
    ),
    "draws pass for certain when accepted, not in the residual": (
        (CHAIN, "(uniform_samples * q < p)", "(uniform_samples < p)"),
        lambda: toy_chains(1),
        1,
        P[0] * (1 - Q[0]) + P[1] * (1 - Q[1]),  # tokens 0 and 1 come with q p alone, the residual has none of them
    ),
    "draws pass for certain in the residual, not when accepted": (
        (
            CHAIN,
            "(target_probs[:, :num_steps] - draft_probs).clamp(min=0)",
            "target_probs[:, :num_steps].scatter(2, drafted, 0)",
        ),
        lambda: toy_chains(1),
        1,
        LOST * P[1] / (1 - P[0]),  # a rejected 0 is followed by token 1, of which nothing is left
    ),
    "the residual of a block is that of the unscaled distribution": (
        (
            "chain_blocks",
            "scaled = reach[:, :num_steps, None] * target_probs[:, :num_steps]",
            "scaled = target_probs[:, :-1]",
            BLOCK,
        ),
        lambda: chain_proposals(*TOY, 2, block=True),
        2,
        # After token 0, r = 5/8, the block fails with 13/32; the prefix is then accepted with R / (R + 3/8), where R
        # is 1/32 and becomes 3/16. What is off is the prefix' (1/3 - 1/13) too much.
        Q[0] * F(13, 32) * (F(1, 3) - F(1, 13)),
    ),
    "the uniform draw is 0, chain": (
        (CHAIN, "(uniform_samples * q < p)", "(0 * q < p)"),
        lambda: toy_chains(1),
        1,
        LOST,  # every draft is accepted: the total variation between p and q
    ),
    "the uniform draw is 0, tree": (
        (TARGET_ONLY, "coin = uniform_samples[request, node]", "coin = torch.zeros_like(uniform_final)"),
        lambda: toy_tree(SIBLINGS),
        1,
        1 - P[0],  # the first child is accepted for certain
    ),
    "the final uniform draw is 0": (
        (CHAIN, "dists, uniform_final)", "dists, 0 * uniform_final)"),
        lambda: toy_chains(1),
        1,
        LOST * F(2, 3),  # a rejection draws token 2, which is due a third
    ),
    "siblings in reversed order, compared with draft distributions": (
        (
            "verify_tree_rejection_naive",
            LINKS,
            REVERSED,
        ),
        lambda: rejection_proposals(*TOY, (2,)),
        1,
        P[0] - ACCEPT * M0,  # 41/336: token 0 is emitted when it is the second one drawn, is tried first and accepted
    ),
}
every_wrong_rule = pytest.mark.parametrize(("patch", "propose", "length", "expected"), WRONG.values(), ids=list(WRONG))


@every_wrong_rule
def test_a_wrong_rule_is_off_by_its_closed_form(patch: Any, propose: Any, length: int, expected: Fraction) -> None:
    assert expected > 0
    assert toy_off(patched(*patch), propose(), length) == expected
    assert toy_off(right(rule_changed_by(patch)), propose(), length) == 0


@pytest.mark.parametrize("name", [name for name in WRONG if name != "one uniform draw for all siblings"])
def test_distance_kills_a_wrong_rule_in_its_quick_scope(name: str) -> None:
    patch, *_ = WRONG[name]
    assert distance(rule_changed_by(patch).removesuffix("_naive"), patched(*patch), quick=True) > 0


def test_one_uniform_draw_for_all_siblings_takes_three_siblings_of_four_tokens_to_kill() -> None:
    wrong = patched(*WRONG["one uniform draw for all siblings"][0])
    assert distance(TREE, wrong, quick=True) == 0
    trial = dict(trials(TREE))["four tokens, three children"]
    assert off(distribution_of(wrong, trial.proposals), trial.target, trial.length) == F(1, 96)


def test_siblings_without_residual_update_are_off_by_seven_sixteenths_when_they_are_the_top_two() -> None:
    patch, propose, _, _ = WRONG["siblings are compared with the same two distributions"]
    top = next(proposal for proposal in propose() if proposal.drafted.tokens == (0, 0, 1))
    always = [Proposal(F(1), top.drafted, top.thresholds)]
    assert toy_off(patched(*patch), always, 1) == (ACCEPT - P[0]) + (1 - ACCEPT - P[1]) == F(7, 16)


# ---- wrong, and lossless all the same; what kills them instead


def emits(verify: Callable[..., Any], proposal: Proposal[Drafted], *coins: float) -> Any:
    """What one request emits, given its uniform draws, the final one last."""
    rule = rule_of(verify.__name__.removesuffix("_naive"), verify)
    return rule(proposal.drafted, torch.tensor([coins]))[0]


EQUAL_COINS = {  # patch, what is proposed on the toy, and uniform draws of which one lies on a threshold
    TARGET_ONLY: (
        (TARGET_ONLY, "coin < mass / acc", "coin <= mass / acc"),
        target_only_proposal(*SIBLINGS, TOY[0]),
        (P[0], 0, 0, 0),
    ),
    CHAIN: ((CHAIN, "uniform_samples * q < p", "uniform_samples * q <= p"), toy_chains(1)[0], (ACCEPT, 0)),
    BLOCK: ((BLOCK, "uniform_samples < height", "uniform_samples <= height"), toy_chains(1)[0], (ACCEPT, 0)),
    TREE: (
        (TREE, "[request, child] * q < p", "[request, child] * q <= p"),
        rejection_proposals(*TOY, (1,))[0],
        (0, ACCEPT, 0),
    ),
    "the final token": (
        ("_invert_cdf", "cdf > coin", "cdf >= coin", CHAIN),
        toy_chains(0)[0],
        (P[0],),
    ),
}


@pytest.mark.parametrize(("patch", "proposal", "coins"), EQUAL_COINS.values(), ids=list(EQUAL_COINS))
def test_less_or_equal_differs_on_a_threshold_alone(patch: Any, proposal: Any, coins: Any) -> None:
    """A threshold has no width, so the distribution is the same: only a uniform draw exactly there tells."""
    name = rule_changed_by(patch)
    wrong = patched(*patch)
    assert distance(name, wrong, quick=True) == 0
    at = [float(coin) for coin in coins]
    assert emits(wrong, proposal, *at) != emits(right(name), proposal, *at)
    beside = [coin + 2.0**-20 if coin else 0.0 for coin in at]
    assert emits(wrong, proposal, *beside) == emits(right(name), proposal, *beside)


NEVER_0 = (F(0), F(1, 2), F(1, 4), F(1, 8), F(1, 8))  # a target that never says token 0
ZERO_COINS = {
    TARGET_ONLY: (
        (
            TARGET_ONLY,
            "accepts = (prob > 0) & ((coin < mass / acc) | (prob >= single))",
            "accepts = (coin <= mass / acc) | (prob >= single)",
        ),
        target_only_proposal(*SIBLINGS, lambda _prefix: NEVER_0),
        4,
    ),
    CHAIN: (EQUAL_COINS[CHAIN][0], chain_proposals(lambda _prefix: NEVER_0, TOY[1], 1, block=False)[0], 2),
    BLOCK: (EQUAL_COINS[BLOCK][0], chain_proposals(lambda _prefix: NEVER_0, TOY[1], 1, block=True)[0], 2),
    TREE: (EQUAL_COINS[TREE][0], rejection_proposals(lambda _prefix: NEVER_0, TOY[1], (1,))[0], 3),
}


@pytest.mark.parametrize(("patch", "proposal", "num_coins"), ZERO_COINS.values(), ids=list(ZERO_COINS))
def test_less_or_equal_accepts_at_uniform_draw_zero_what_the_target_never_says(
    patch: Any, proposal: Any, num_coins: int
) -> None:
    assert distance(patch[0], patched(*patch), quick=True) == 0
    coins = [0.0] * num_coins
    assert emits(patched(*patch), proposal, *coins)[0] == 0
    assert emits(right(patch[0]), proposal, *coins)[0] != 0


def test_reversed_siblings_share_out_the_uniform_draw_in_another_order_and_by_the_same_distribution() -> None:
    """A child gets p(c) of its parent's uniform draw wherever its share lies; uniform draws tell, the distribution
    cannot.
    """
    wrong = patched(NAIVE, LINKS, REVERSED)
    assert distance(TARGET_ONLY, wrong) == 0
    (siblings,) = toy_tree(SIBLINGS)
    assert emits(wrong, siblings, 0.0, 0.0, 0.0, 0.0)[0] == 1
    assert emits(right(TARGET_ONLY), siblings, 0.0, 0.0, 0.0, 0.0)[0] == 0


def test_draws_that_pass_for_certain_throughout_lose_acceptance_and_nothing_else() -> None:
    """Accepted with p(x), else drawn from p without x: lossless for any x. How much is accepted tells."""
    line = "q = draft_probs.gather(2, drafted)[:, :, 0]"
    certain = "draft_probs = torch.zeros_like(draft_probs).scatter(2, drafted, 1); " + line
    wrong = patched(CHAIN, line, certain)
    assert distance(CHAIN, wrong, quick=True) == 0
    assert expected_length(distribution_of(wrong, toy_chains(1))) == 1 + sum(q * p for q, p in zip(Q, P, strict=True))
    assert expected_length(exact_distribution(CHAIN, toy_chains(1))) == 1 + sum(map(min, Q, P))


def test_uniform_draws_in_the_wrong_column_tell_by_what_they_accept() -> None:
    """Uniform draws that change places are independent and uniform as before: the distribution cannot tell."""
    wrong = patched(CHAIN, "uniform_samples * q < p", "uniform_samples.roll(1, dims=1) * q < p")
    assert distance(CHAIN, wrong) == 0
    twice = toy_chains(2)[0]
    assert len(emits(wrong, twice, 0.75, 0.25, 0.0)) == 2
    assert len(emits(right(CHAIN), twice, 0.75, 0.25, 0.0)) == 1


def in_pairs(verify: Callable[..., Any]) -> Any:
    """Two requests in a batch, with uniform draws of their own, as one rule that emits the first token of both."""

    def rule(drafts: tuple[int, int], coins: torch.Tensor) -> Any:
        bs = 2 * len(coins)
        rows = coins.reshape(bs, 2)
        result = verify(
            candidates=torch.tensor([[0, draft] for draft in drafts]).repeat(len(coins), 1),
            draft_probs=torch.tensor([[float(q) for q in Q]], dtype=torch.float64).repeat(bs, 1, 1),
            target_probs=torch.tensor([[float(p) for p in P]] * 2, dtype=torch.float64).repeat(bs, 1, 1),
            uniform_samples=rows[:, :1],
            uniform_final=rows[:, 1],
        )
        return result.predicts.view(len(coins), 2, 2)[:, :, 0].tolist()

    return rule


def test_the_uniform_draws_of_another_row_tell_by_both_requests_together() -> None:
    """Each request alone has its distribution. Two that drafted token 0 accept it together: 5/8 instead of 25/64."""
    chains = toy_chains(1)
    residual_only = (F(1, 3), F(2, 3))
    pairs = [
        Proposal(
            a.weight * b.weight,
            (a.drafted.tokens[1], b.drafted.tokens[1]),
            (a.thresholds[0], residual_only, b.thresholds[0], residual_only),
        )
        for a in chains
        for b in chains
    ]
    product: dict[tuple[int, ...], Fraction] = {(s, t): P[s] * P[t] for s in range(5) for t in range(5)}
    assert output_distribution(in_pairs(right(CHAIN)), pairs) == product
    rows = "uniform_samples[torch.arange(len(p)) // 2 * 2]"  # the odd rows read the even ones'
    dist = output_distribution(
        in_pairs(patched(CHAIN, "uniform_samples * q < p", f"{rows} * q < p")), pairs, find_thresholds=True
    )
    for which in (0, 1):
        alone: dict[int, Fraction] = {}
        for tokens, probability in dist.items():
            alone[tokens[which]] = alone.get(tokens[which], F(0)) + probability
        assert alone == dict(enumerate(P))
    assert total_variation(dist, product) == 2 * Q[0] ** 2 * ACCEPT * (1 - ACCEPT) == F(15, 128)


@pytest.mark.parametrize("last_digits", [2**-22, -(2**-22)])
def test_no_case_of_a_block_hangs_on_the_last_digits_of_a_division(last_digits: float) -> None:
    """A GPU divides by anything but a power of two with an error of up to two of them, unless it is told not to."""
    divisor = "(mass + 1 - inner)"
    error = f"(1 + {last_digits} * (torch.frexp{divisor}.mantissa != 0.5))"
    op, verify = BY_NAME[BLOCK], patched("chain_blocks", f"mass / {divisor}", f"mass / {divisor} * {error}", BLOCK)
    for index in range(12):
        shape = op.cases.draw_shape(seeded(0, "division", index))
        case = op.cases.make(torch.arange(4000), shape)
        expected = op.expected(case)
        results = verify(**case.tensors)._asdict()
        assert not any(bool(wrong.any()) for wrong in op.wrong(case, expected, results).values()), shape


def test_a_patch_that_does_not_fit_once_is_refused() -> None:
    with pytest.raises(ValueError, match=r"'token' is in verify_chain_rejection \d+ times; allowed: once"):
        patched(CHAIN, "token", "x")
    with pytest.raises(ValueError, match=r"'no such line' is in verify_chain_block 0 times; allowed: once"):
        patched(BLOCK, "no such line", "x")
