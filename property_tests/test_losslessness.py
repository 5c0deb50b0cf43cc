"""Speculative sampling, counted out: the exact law of every rule, and by how much it is off where it should be."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from fractions import Fraction
from functools import cache

import pytest
import torch

from specsim.ops.enumeration import (
    Proposal,
    block_acceptance,
    cdf,
    chain_acceptance,
    completed,
    expected_length,
    normalised,
    output_law,
    residual,
    sibling_acceptance,
    target_law,
    target_only_thresholds,
    total_variation,
    without,
)
from specsim.reference.sampling import (
    verify_chain_block,
    verify_chain_block_loops,
    verify_chain_rejection,
    verify_chain_rejection_loops,
    verify_tree_rejection,
    verify_tree_rejection_loops,
    verify_tree_target_only,
    verify_tree_target_only_loops,
)
from specsim.reference.validation import unchecked

SKEWED = tuple(Fraction(n, 16) for n in (5, 4, 3, 2, 2))  # the toy target
EAGER = tuple(Fraction(n, 16) for n in (8, 4, 2, 1, 1))  # and its drafter
HALF, ONE = Fraction(1, 2), Fraction(1)


def of_prefix(rows):
    """A model: its law after a prefix is one of `rows`, each turned by what came before."""
    rows = [[Fraction(n, 16) for n in row] for row in rows]

    def law(prefix: tuple[int, ...]):
        row = rows[(len(prefix) + sum(prefix)) % len(rows)]
        turn = sum((i + 2) * token for i, token in enumerate(prefix)) % len(row)
        return row[turn:] + row[:turn]

    return law


MODELS = {  # target and drafter, of 3 and of 4 tokens; with zeros, and with rows that leave nothing to chance
    "three tokens": (of_prefix([(9, 5, 2), (4, 4, 8), (1, 12, 3)]), of_prefix([(4, 8, 4), (10, 2, 4), (8, 4, 4)])),
    "zeros": (of_prefix([(9, 7, 0), (0, 16, 0), (8, 0, 8)]), of_prefix([(4, 0, 12), (5, 5, 6), (8, 8, 0)])),
    "four tokens": (of_prefix([(6, 5, 4, 1), (0, 2, 6, 8)]), of_prefix([(4, 8, 2, 2), (7, 3, 3, 3)])),
    "equal": (of_prefix([(9, 5, 2)]), of_prefix([(9, 5, 2)])),
    "certain drafts": (of_prefix([(9, 5, 2), (4, 4, 8)]), of_prefix([(16, 0, 0), (0, 0, 16)])),
}
every_model = pytest.mark.parametrize(("target", "drafter"), MODELS.values(), ids=list(MODELS))


@dataclass(frozen=True)
class Drafted:
    """Drafts, and the laws of both models after each node; node 0 is the root."""

    tokens: tuple[int, ...]
    parents: tuple[int, ...]
    target: tuple[tuple[Fraction, ...], ...]
    drafter: tuple[tuple[Fraction, ...], ...] = ()

    def children(self, node: int) -> list[int]:
        return [child for child, parent in enumerate(self.parents) if parent == node]


def emitted(result) -> list[tuple[int, ...]]:
    """The tokens of each request, the bonus last."""
    predicts = result.predicts.tolist()
    lengths = (result.accept_token_num + 1).tolist()
    return [
        tuple(predicts[number] for number in path[:length])
        for path, length in zip(result.accept_index.tolist(), lengths, strict=True)
    ]


def batch(drafted: Drafted, count: int) -> dict[str, torch.Tensor]:
    """The same tree `count` times."""
    ndt = len(drafted.tokens)
    first, sibling = [-1] * ndt, [-1] * ndt
    for node in range(ndt):
        family = drafted.children(node)
        first[node] = family[0] if family else -1
        for older, younger in itertools.pairwise(family):
            sibling[older] = younger
    rows = {"candidates": list(drafted.tokens), "retrieve_next_token": first, "retrieve_next_sibling": sibling}
    tensors = {name: torch.tensor([row] * count) for name, row in rows.items()}
    return {**tensors, "retrieve_index": torch.arange(count * ndt).view(count, ndt)}


def laws(rows, count: int) -> torch.Tensor:
    return torch.tensor([[float(weight) for weight in row] for row in rows], dtype=torch.float64).expand(count, -1, -1)


def by_target_only(verify=verify_tree_target_only, single: float = 1.0, acc: float = 1.0, num_steps: int = 2):
    """The rule as one that `output_law` can call; the last coin is the final one."""

    def rule(drafted: Drafted, coins: torch.Tensor):
        count = len(coins)
        with unchecked():
            return emitted(
                verify(
                    **batch(drafted, count),
                    uniform_samples=coins[:, :-1],
                    uniform_final=coins[:, -1],
                    target_probs=laws(drafted.target, count),
                    threshold_single=single,
                    threshold_acc=acc,
                    num_steps=num_steps,
                )
            )

    return rule


def by_tree_rejection(verify=verify_tree_rejection, num_steps: int = 2):
    def rule(drafted: Drafted, coins: torch.Tensor):
        count = len(coins)
        with unchecked():
            return emitted(
                verify(
                    **batch(drafted, count),
                    uniform_samples=coins[:, :-1],
                    uniform_final=coins[:, -1],
                    draft_probs=laws(drafted.drafter, count),
                    target_probs=laws(drafted.target, count),
                    num_steps=num_steps,
                )
            )

    return rule


def by_chain(verify):
    def rule(drafted: Drafted, coins: torch.Tensor):
        count = len(coins)
        vocab_size = len(drafted.target[0])
        with unchecked():
            return emitted(
                verify(
                    candidates=torch.tensor([drafted.tokens] * count),
                    draft_probs=laws(drafted.drafter, count) if drafted.drafter else torch.zeros(count, 0, vocab_size),
                    target_probs=laws(drafted.target, count),
                    uniform_samples=coins[:, :-1],
                    uniform_final=coins[:, -1],
                )
            )

    return rule


def prefixes(tokens, parents) -> list[tuple[int, ...]]:
    """The drafted tokens on the way to each node, the root's left out."""
    found: list[tuple[int, ...]] = [()]
    for token, parent in zip(tokens[1:], parents[1:], strict=True):
        found.append((*found[parent], token))
    return found


def target_only_proposal(tokens, parents, target, acc: Fraction = ONE) -> Proposal[Drafted]:
    drafted = Drafted(tokens, parents, tuple(tuple(target(prefix)) for prefix in prefixes(tokens, parents)))
    coins, final = [], []
    for node, law in enumerate(drafted.target):
        family = [tokens[child] for child in drafted.children(node)]
        coins.append(target_only_thresholds(law, family, acc))
        final += [*cdf(law), *cdf(without(law, family))]
    return Proposal(ONE, drafted, (*coins, tuple(final)))


def chain_proposals(target, drafter, num_steps: int, block: bool) -> list[Proposal[Drafted]]:
    """Every chain that the drafter can draw."""
    vocab_size = len(target(()))
    proposals = []
    for drafts in itertools.product(range(vocab_size), repeat=num_steps):
        q = tuple(tuple(drafter(drafts[:i])) for i in range(num_steps))
        p = tuple(tuple(target(drafts[:i])) for i in range(num_steps + 1))
        weight = ONE
        for law, token in zip(q, drafts, strict=True):
            weight *= law[token]
        if block:
            heights, rest = block_acceptance(p, q, drafts)
        else:
            heights = [chain_acceptance(p[i], q[i], token) for i, token in enumerate(drafts)]
            rest = [*map(residual, p, q), p[-1]]
        thresholds = (*((height,) for height in heights), tuple(cut for law in rest for cut in cdf(law)))
        proposals.append(Proposal(weight, Drafted((0, *drafts), (-1, *range(num_steps)), p, q), thresholds))
    return proposals


def drawn_without_replacement(law, count: int):
    """Ordered tuples of tokens with their probabilities."""
    if count == 0 or not any(law):
        return [((), ONE)]
    return [
        ((token, *rest), weight * probability)
        for token, weight in enumerate(normalised(law))
        if weight > 0
        for rest, probability in drawn_without_replacement(without(law, [token]), count - 1)
    ]


def rejection_proposals(target, drafter, families: tuple[int, ...]) -> list[Proposal[Drafted]]:
    """Every tree whose root has `families[0]` children, and its first children `families[1:]`."""
    trees = [((0,), (-1,), ONE)]
    for node, count in enumerate(families):
        grown = []
        for tokens, parents, weight in trees:
            if node >= len(tokens):
                grown.append((tokens, parents, weight))
                continue
            law = drafter(prefixes(tokens, parents)[node])
            for drawn, probability in drawn_without_replacement(law, count):
                grown.append(((*tokens, *drawn), (*parents, *(node for _ in drawn)), weight * probability))
        trees = grown
    proposals = []
    for tokens, parents, weight in trees:
        where = prefixes(tokens, parents)
        drafted = Drafted(
            tokens, parents, tuple(tuple(target(at)) for at in where), tuple(tuple(drafter(at)) for at in where)
        )
        coins, final = [()] * len(tokens), []
        for node, (p, q) in enumerate(zip(drafted.target, drafted.drafter, strict=True)):
            family = drafted.children(node)
            accepted, left = sibling_acceptance(p, q, [tokens[child] for child in family])
            for child, height in zip(family, accepted, strict=True):
                coins[child] = (height,)
            final += [*cdf(p), *cdf(left)]
        proposals.append(Proposal(weight, drafted, (*coins, tuple(final))))
    return proposals


def off(law, target, length: int) -> Fraction:
    return total_variation(completed(law, length, target), target_law(target, length))


def toy_off(law) -> Fraction:
    """How far the first token of `law` is off the toy target."""
    return off(law, lambda _prefix: SKEWED, 1)


TREES = {  # tokens and parents, distinct among siblings
    "two by two": ((0, 0, 1, 1, 2), (-1, 0, 0, 1, 1)),
    "chain": ((0, 2, 1), (-1, 0, 1)),
    "every token": ((0, 2, 0, 1), (-1, 0, 0, 0)),
    "root alone": ((0,), (-1,)),
    "last child has the children": ((0, 1, 0, 2, 1), (-1, 0, 0, 2, 2)),
}


@every_model
@pytest.mark.parametrize(("tokens", "parents"), TREES.values(), ids=list(TREES))
def test_target_only_sampling_has_the_targets_law_whatever_the_tree(target, drafter, tokens, parents) -> None:
    law = output_law(by_target_only(), [target_only_proposal(tokens, parents, target)])
    assert off(law, target, 3) == 0


@every_model
@pytest.mark.parametrize("verify", [verify_chain_rejection, verify_chain_block])
@pytest.mark.parametrize("num_steps", [0, 1, 2])
def test_both_chain_rules_have_the_targets_law(target, drafter, verify, num_steps: int) -> None:
    proposals = chain_proposals(target, drafter, num_steps, block=verify is verify_chain_block)
    assert off(output_law(by_chain(verify), proposals), target, num_steps + 1) == 0


@every_model
@pytest.mark.parametrize("families", [(1,), (2,), (3,), (1, 2), (2, 1, 1)])
def test_tree_rejection_has_the_targets_law(target, drafter, families) -> None:
    proposals = rejection_proposals(target, drafter, families)
    assert off(output_law(by_tree_rejection(), proposals), target, 3) == 0


def test_the_slow_twins_have_the_targets_law() -> None:
    target, drafter = MODELS["three tokens"]
    tree = [target_only_proposal(*TREES["two by two"], target)]
    assert off(output_law(by_target_only(verify_tree_target_only_loops), tree), target, 3) == 0
    for verify, block in ((verify_chain_rejection_loops, False), (verify_chain_block_loops, True)):
        proposals = chain_proposals(target, drafter, 1, block)
        assert off(output_law(by_chain(verify), proposals), target, 2) == 0
    families = rejection_proposals(target, drafter, (2,))
    assert off(output_law(by_tree_rejection(verify_tree_rejection_loops), families), target, 3) == 0


def test_a_tree_deeper_than_the_steps_is_cut_without_changing_the_law() -> None:
    target, drafter = MODELS["four tokens"]
    tree = [target_only_proposal((0, 1, 0, 2), (-1, 0, 1, 1), target)]
    assert off(output_law(by_target_only(num_steps=1), tree), target, 3) == 0
    assert off(output_law(by_target_only(num_steps=0), tree), target, 3) == 0
    proposals = rejection_proposals(target, drafter, (1, 2))
    assert off(output_law(by_tree_rejection(num_steps=1), proposals), target, 3) == 0


def test_the_toy_is_lossless_under_every_rule() -> None:
    siblings = [target_only_proposal((0, 0, 1), (-1, 0, 0), lambda _prefix: SKEWED)]
    assert toy_off(output_law(by_target_only(), siblings)) == 0
    for verify, block in ((verify_chain_rejection, False), (verify_chain_block, True)):
        proposals = chain_proposals(lambda _prefix: SKEWED, lambda _prefix: EAGER, 1, block)
        assert toy_off(output_law(by_chain(verify), proposals)) == 0
    families = rejection_proposals(lambda _prefix: SKEWED, lambda _prefix: EAGER, (2,))
    assert toy_off(output_law(by_tree_rejection(), families)) == 0


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
def test_target_only_sampling_is_off_by_its_closed_forms(siblings, single, acc, expected: Fraction) -> None:
    proposal = target_only_proposal((0, *siblings), (-1, *(0 for _ in siblings)), lambda _prefix: SKEWED, acc)
    rule = by_target_only(single=float(single), acc=float(acc))
    assert toy_off(output_law(rule, [proposal])) == expected


def test_threshold_acc_shares_out_the_coin_by_the_closed_form() -> None:
    acc, siblings = Fraction(3, 4), (1, 0, 2, 3)
    law = output_law(
        by_target_only(acc=float(acc), num_steps=1),
        [target_only_proposal((0, *siblings), (-1, 0, 0, 0, 0), lambda _prefix: SKEWED, acc)],
    )
    accepted: dict[int, Fraction] = {}
    for tokens, probability in law.items():
        if len(tokens) == 2:
            accepted[tokens[0]] = accepted.get(tokens[0], Fraction(0)) + probability
    shares = [min(mass / acc, ONE) for mass in itertools.accumulate((SKEWED[token] for token in siblings), initial=0)]
    expected = {token: high - low for token, (low, high) in zip(siblings, itertools.pairwise(shares), strict=True)}
    assert accepted == {token: share for token, share in expected.items() if share}


def argmax_proposal(block: bool) -> Proposal[Drafted]:
    chains = chain_proposals(lambda _prefix: SKEWED, lambda _prefix: EAGER, 1, block)
    return Proposal(ONE, chains[0].drafted, chains[0].thresholds)  # token 0, always, with the softmax law beside it


@pytest.mark.parametrize(("verify", "block"), [(verify_chain_rejection, False), (verify_chain_block, True)])
def test_an_argmax_passed_off_as_a_draw_is_off_by_five_sixteenths(verify, block: bool) -> None:
    assert toy_off(output_law(by_chain(verify), [argmax_proposal(block)])) == Fraction(5, 16)


def without_residual_update(drafted: Drafted, coins: torch.Tensor):
    """The rule that holds every sibling against the same two laws."""
    p, q = drafted.target[0], drafted.drafter[0]
    left = torch.tensor([float(weight) for weight in residual(p, q)]).cumsum(0)
    results = []
    for row in coins.tolist():
        taken = [t for t, coin in zip(drafted.tokens[1:], row[1:-1], strict=True) if coin * float(q[t]) < float(p[t])]
        results.append((taken[0] if taken else int((left > row[-1] * left[-1]).int().argmax()),))
    return results


def test_siblings_without_residual_update_are_off_by_their_closed_forms() -> None:
    fixed_laws = []
    for proposal in rejection_proposals(lambda _prefix: SKEWED, lambda _prefix: EAGER, (2,)):
        tokens = proposal.drafted.tokens[1:]
        coins = [(chain_acceptance(SKEWED, EAGER, token),) for token in tokens]
        thresholds = ((), *coins, cdf(residual(SKEWED, EAGER)))
        fixed_laws.append(Proposal(proposal.weight, proposal.drafted, thresholds))
    assert toy_off(output_law(without_residual_update, fixed_laws)) == Fraction(3, 32)
    top_two = next(proposal for proposal in fixed_laws if proposal.drafted.tokens == (0, 0, 1))
    always = Proposal(ONE, top_two.drafted, top_two.thresholds)
    assert toy_off(output_law(without_residual_update, [always])) == Fraction(7, 16)


@cache
def lengths(name: str, num_steps: int) -> tuple[Fraction, Fraction]:
    target, drafter = MODELS[name]
    chain = output_law(by_chain(verify_chain_rejection), chain_proposals(target, drafter, num_steps, block=False))
    block = output_law(by_chain(verify_chain_block), chain_proposals(target, drafter, num_steps, block=True))
    return expected_length(chain), expected_length(block)


@pytest.mark.parametrize("name", MODELS)
def test_block_verification_emits_no_less_than_the_token_rule(name: str) -> None:
    chain, block = lengths(name, 2)
    assert block >= chain


def test_block_verification_emits_more_where_ratios_make_up_for_each_other() -> None:
    chain, block = lengths("three tokens", 2)
    assert block > chain


def test_the_token_rule_accepts_the_overlap_of_both_laws() -> None:
    overlap = sum(map(min, SKEWED, EAGER))
    law = output_law(
        by_chain(verify_chain_rejection),
        chain_proposals(lambda _prefix: SKEWED, lambda _prefix: EAGER, 1, block=False),
    )
    assert expected_length(law) == 1 + overlap


def test_a_missing_threshold_is_refused() -> None:
    proposal = target_only_proposal((0, 0, 1), (-1, 0, 0), lambda _prefix: SKEWED)
    blind = Proposal(ONE, proposal.drafted, ((), *proposal.thresholds[1:]))
    with pytest.raises(ValueError, match=r"a threshold is missing: the rule emits"):
        output_law(by_target_only(), [blind])


def test_weights_that_are_no_law_and_results_that_are_too_few_are_refused() -> None:
    half = Proposal(HALF, 0, ((HALF,),))
    with pytest.raises(ValueError, match=r"the weights of the proposals add up to 1/2; allowed: 1"):
        output_law(lambda _drafted, coins: [(0,)] * len(coins), [half])
    with pytest.raises(ValueError, match=r"the rule returned 1 results for 2 rows of coins"):
        output_law(lambda _drafted, _coins: [(0,)], [half, half])
    many = tuple(Fraction(n, 1001) for n in range(1001))
    with pytest.raises(ValueError, match=r"a proposal has 1001 x 1001 = 1002001 cells; allowed: at most 1000000"):
        output_law(lambda _drafted, _coins: [], [Proposal(ONE, 0, (many, many))])


def test_a_rule_of_ones_own_is_checked_with_its_own_thresholds() -> None:
    def biased(law, coins: torch.Tensor):
        return [(0,) if coin < float(law[0]) + 0.125 else (1,) for coin in coins[:, 0].tolist()]

    law = (Fraction(3, 8), Fraction(5, 8))
    own = output_law(biased, [Proposal(ONE, law, ((HALF,),))])
    assert own == {(0,): HALF, (1,): HALF}
    assert total_variation(own, target_law(lambda _prefix: law, 1)) == Fraction(1, 8)


def test_target_laws_are_laws_and_completing_keeps_what_was_emitted() -> None:
    target, _ = MODELS["four tokens"]
    whole = target_law(target, 3)
    assert sum(whole.values()) == 1
    assert completed(target_law(target, 1), 3, target) == whole
    assert completed(whole, 2, target) == target_law(target, 2)
    assert target_law(target, 0) == {(): ONE}
