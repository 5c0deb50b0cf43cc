"""Rules of verification as laws: what is emitted of a draft, with which probability, in fractions.

    from specsim.contracts.laws import LAWS, Law, farthest

    assert farthest(LAWS["block verification"]).off == 0
    assert farthest(Law(my_rule, "chain")).off == 0

A law is a generator: of a draft it yields tuples of tokens and the probability of each. It is the rule as it follows
from its paper or from the code that ships it, without uniform draws and without tensors. `farthest` weighs all that a
drafter can draw and says how far what is emitted is off the target model's distribution. Each law has the kind of
drafts that its rule is for:

    chain               two drafts, one after the other, drawn from their distributions
    likeliest tokens    two drafts, one after the other, each the drafter's likeliest token
    siblings            two or three first tokens, or two with one more each, drawn without replacement
    repeated siblings   the same, drawn with replacement
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cache, partial
from typing import NamedTuple

from specsim.contracts.drafts import MODELS, ONE, TOY, Drafted, Row, drawn_drafts
from specsim.contracts.enumeration import (
    Distribution,
    Target,
    Tokens,
    Weights,
    completed,
    expected_length,
    normalised,
    residual,
    target_distribution,
    total_variation,
    without,
)

__all__ = ["LAWS", "LOSSLESS", "LOSSY", "MISTAKES", "Farthest", "Law", "drawn", "farthest", "tokens_a_step"]

Outcomes = Iterator[tuple[Tokens, Fraction]]
NONE = Fraction(0)


def drawn(path: Tokens, weights: Weights, probability: Fraction) -> Outcomes:
    """`path` with one more token, drawn from `weights`: the last of the vocabulary where all are 0."""
    total = sum(weights, NONE)
    if total == 0:
        yield (*path, len(weights) - 1), probability
        return
    for token, weight in enumerate(weights):
        yield (*path, token), probability * weight / total


# ---- rules that are lossless


def rejection(drafted: Drafted, num_steps: int | None = None, *, again: bool = False, renewed: bool = True) -> Outcomes:
    """A draft drawn from q is accepted with min(p / q, 1); its next sibling is compared with what that leaves of p.

    `again`: siblings are drawn with replacement, and q stays; else a token that was drawn leaves q. `renewed`: whether
    a sibling is compared with what is left at all. More than `num_steps` drafts are not accepted.
    """

    def walk(node: int, path: Tokens) -> Outcomes:
        p = left = list(drafted.target[node])
        q = list(drafted.drafter[node]) if node < len(drafted.drafter) else []
        reached = ONE
        for child in drafted.children(node) if len(path) != num_steps else ():
            token = drafted.tokens[child]
            if q[token] == 0:
                continue
            share = reached * min(p[token] / q[token], ONE)
            if share > 0:
                for tokens, probability in walk(child, (*path, token)):
                    yield tokens, share * probability
            reached -= share
            left = normalised(residual(p, q))
            if renewed:
                p, q = left, q if again else normalised(without(q, [token]))
        yield from drawn(path, left, reached)

    return walk(0, ())


def as_if_certain(drafted: Drafted) -> Outcomes:
    """Drafts that were drawn are verified as though each had been certain: of a draft p is accepted, and no more."""
    certain = [tuple(Fraction(other == token) for other in range(len(drafted.target[0]))) for token in drafted.tokens]
    return rejection(replace(drafted, drafter=tuple(certain[1:])))


def block(drafted: Drafted) -> Outcomes:
    """The longest prefix whose uniform draw is below its height, from the whole block down."""
    drafts = drafted.tokens[1:]
    reach = [ONE]
    for p, q, token in zip(drafted.target, drafted.drafter, drafts, strict=False):
        reach.append(min(reach[-1] * p[token] / q[token], ONE) if q[token] else NONE)
    missed = ONE  # the probability that no longer prefix is accepted
    for length in range(len(drafts), -1, -1):
        p = drafted.target[length]
        if length == len(drafts):
            rest, height = list(p), reach[length]
        else:
            rest = residual([reach[length] * weight for weight in p], drafted.drafter[length])
            lost = 1 - reach[length]
            height = sum(rest, NONE) / (sum(rest, NONE) + lost) if 0 < lost < 1 else reach[length]
        if length == 0:
            height = ONE
        yield from drawn(drafts[:length], rest, missed * height)
        missed *= 1 - height


def traversal(drafted: Drafted) -> Outcomes:
    """From the leaves to the root: a leaf is accepted with its whole path, or goes, which changes what is left at its
    parent; a node whose children have all gone is a leaf. Siblings are drawn without replacement.
    """
    p, q = [list(row) for row in drafted.target], [list(row) for row in drafted.drafter]
    families = [drafted.children(node) for node in range(len(drafted.tokens))]
    reach, missed = {0: ONE}, ONE
    while True:
        leaf = 0
        while families[leaf]:
            parent, leaf = leaf, families[leaf][0]
            token = drafted.tokens[leaf]
            reach.setdefault(leaf, min(reach[parent] * p[parent][token] / q[parent][token], ONE))
        yield from drawn(drafted.path(leaf), p[leaf], missed * reach[leaf])
        missed *= 1 - reach[leaf]
        if missed == 0:
            return
        parent = drafted.parents[leaf]
        rest = residual([reach[parent] * weight for weight in p[parent]], q[parent])
        mass, lost = sum(rest, NONE), 1 - reach[parent]
        p[parent], reach[parent] = normalised(rest), mass / (mass + lost)
        q[parent] = normalised(without(q[parent], [drafted.tokens[leaf]]))
        families[parent].remove(leaf)


def target_only(
    drafted: Drafted, num_steps: int | None = None, *, single: Fraction = ONE, acc: Fraction = ONE
) -> Outcomes:
    """One uniform draw a node: below A / acc, where A is what the target gives to a child and those before it, that
    child is accepted; a child of probability `single` or more is, too. Whatever was drafted, if no sibling is there
    twice.
    """

    def walk(node: int, path: Tokens) -> Outcomes:
        p = drafted.target[node]
        gone, mass, rejected = NONE, NONE, []  # `gone` is what the children have had of the uniform draw
        for child in drafted.children(node) if len(path) != num_steps else ():
            token = drafted.tokens[child]
            mass += p[token]
            reach = ONE if p[token] >= single else min(mass / acc, ONE)
            if p[token] > 0 and reach > gone:
                for tokens, probability in walk(child, (*path, token)):
                    yield tokens, (reach - gone) * probability
                gone = reach
            rejected.append(token)
        yield from drawn(path, without(p, rejected), 1 - gone)

    return walk(0, ())


def sample_and_match(drafted: Drafted) -> Outcomes:
    """The target's own token is drawn at each node, and the walk goes on where a child has it."""

    def walk(node: int, path: Tokens) -> Outcomes:
        children = {drafted.tokens[child]: child for child in drafted.children(node)}
        for token, weight in enumerate(drafted.target[node]):
            if token not in children:
                yield (*path, token), weight
            elif weight > 0:
                yield from ((tokens, weight * rest) for tokens, rest in walk(children[token], (*path, token)))

    return walk(0, ())


def k_sequential(drafted: Drafted) -> Outcomes:
    """Of k siblings drawn from q each is accepted with min(p / (rho q), 1), with the smallest rho, in 64ths, that takes
    no more of a token than p has: SpecTr.
    """

    def walk(node: int, path: Tokens) -> Outcomes:
        p, q, family = drafted.target[node], drafted.drafter[node], drafted.children(node)
        share, taken, reached = _shares(p, q, len(family)) if family else ([], NONE, ONE)
        for child in family:
            token = drafted.tokens[child]
            accepted = reached * share[token] / q[token]
            for tokens, probability in walk(child, (*path, token)) if accepted else ():
                yield tokens, accepted * probability
            reached -= accepted
        yield from drawn(path, residual(p, [taken * weight for weight in share]) if family else p, reached)

    return walk(0, ())


@cache
def _shares(p: Row, q: Row, count: int) -> tuple[list[Fraction], Fraction, Fraction]:
    """min(p / rho, q) of each token, how often it is accepted in all for each time that the first draft is, and 1."""
    for rho in map(Fraction, itertools.count(64)):
        share = [min(weight * 64 / rho, draft) for weight, draft in zip(p, q, strict=True)]
        first = sum(share, NONE)
        ever = 1 - (1 - first) ** count
        if ever <= first * rho / 64:
            return share, ever / first if first else NONE, ONE
    raise AssertionError("rho = count always does")


# ---- rules that are not, by what they are for


def typical(drafted: Drafted, epsilon: Fraction = Fraction(9, 100), delta: Fraction = Fraction(3, 10)) -> Outcomes:
    """A draft is accepted where the target gives it more than epsilon, or more than delta * exp(-entropy)."""
    drafts = drafted.tokens[1:]
    length = 0
    for p, token in zip(drafted.target, drafts, strict=False):
        if p[token] <= min(float(epsilon), float(delta) * math.exp(-entropy(p))):
            break
        length += 1
    return drawn(drafts[:length], drafted.target[length], ONE)


def deferred(drafted: Drafted, threshold: Fraction = Fraction(3, 10), window: int = 1) -> Outcomes:
    """The chain's rejection, which is put off where the target's entropy is `threshold` or more and the next `window`
    drafts are accepted: FLy.
    """
    drafts = drafted.tokens[1:]
    rows = list(zip(drafted.target, drafted.drafter, drafts, strict=False))
    odds = [min(p[token] / q[token], ONE) for p, q, token in rows]
    for accepts in itertools.product([True, False], repeat=len(drafts)):
        factors = [odd if accept else 1 - odd for odd, accept in zip(odds, accepts, strict=True)]
        length = 0
        for p, _q, token in rows:
            ahead = accepts[length + 1 : length + 1 + window]
            unsure = p[token] > 0 and entropy(p) >= threshold
            if not (accepts[length] or (unsure and len(ahead) == window and all(ahead))):
                break
            length += 1
        yield from drawn(drafts[:length], left(drafted, length), math.prod(factors, start=ONE))


def synthetic(drafted: Drafted, rate: Fraction = Fraction(3, 4)) -> Outcomes:
    """A draft is accepted at a rate that is set beforehand."""
    drafts = drafted.tokens[1:]
    reached = ONE
    for length in range(len(drafts)):
        yield from drawn(drafts[:length], left(drafted, length), reached * (1 - rate))
        reached *= rate
    yield from drawn(drafts, drafted.target[len(drafts)], reached)


def left(drafted: Drafted, length: int) -> Weights:
    """From what the token after `length` accepted drafts is drawn."""
    p = drafted.target[length]
    return residual(p, drafted.drafter[length]) if length < len(drafted.tokens) - 1 else p


def entropy(weights: Weights) -> float:
    """In nats, float64."""
    return -sum(float(weight) * math.log(weight) for weight in weights if weight > 0)


# ---- mistakes


def drawn_anew(drafted: Drafted) -> Outcomes:
    """After a rejection the token is drawn from p, not from what is left of it."""
    drafts, reached = drafted.tokens[1:], ONE
    for length, (p, q, token) in enumerate(zip(drafted.target, drafted.drafter, drafts, strict=False)):
        odd = min(p[token] / q[token], ONE)
        yield from drawn(drafts[:length], p, reached * (1 - odd))
        reached *= odd
    yield from drawn(drafts, drafted.target[len(drafts)], reached)


# ---- the distance


@dataclass(frozen=True, slots=True)
class Law:
    """A rule, of which kind the drafts are that it is for, and who published it."""

    outcomes: Callable[[Drafted], Outcomes]
    drafts: str
    source: str = ""


LOSSLESS: dict[str, Law] = {
    "rejection": Law(rejection, "chain", "Leviathan (2211.17192), Chen (2302.01318)"),
    "rejection of certain drafts": Law(rejection, "likeliest tokens"),
    "rejection of drawn drafts as though certain": Law(as_if_certain, "chain"),
    "block verification": Law(block, "chain", "Sun (2403.10444)"),
    "sample and match": Law(sample_and_match, "siblings"),
    "target-only": Law(target_only, "siblings"),
    "recursive rejection with replacement": Law(
        partial(rejection, again=True), "repeated siblings", "SpecInfer (2305.09781)"
    ),
    "recursive rejection without replacement": Law(rejection, "siblings", "Sequoia (2402.12374)"),
    "the same, of drafts with replacement": Law(rejection, "repeated siblings"),
    "k-sequential selection": Law(k_sequential, "repeated siblings", "SpecTr (2310.15141)"),
    "traversal verification": Law(traversal, "siblings", "Weng (2505.12398)"),
}
LOSSY: dict[str, Law] = {
    "target-only, threshold_acc 3/4": Law(partial(target_only, acc=Fraction(3, 4)), "siblings"),
    "target-only, threshold_single 1/2": Law(partial(target_only, single=Fraction(1, 2)), "siblings"),
    "typical acceptance, 0.09 and 0.3": Law(typical, "chain", "Medusa (2401.10774)"),
    "rejections put off, entropy 0.3, window 1": Law(deferred, "chain", "FLy"),
    "acceptance at a rate of 3/4": Law(synthetic, "chain"),
}
MISTAKES: dict[str, Law] = {
    "after a rejection, a token of p and not of what is left": Law(drawn_anew, "chain"),
    "each sibling compared with the same p and q": Law(partial(rejection, renewed=False), "siblings"),
    "siblings drawn without replacement, rejected as with": Law(partial(rejection, again=True), "siblings"),
    "target-only where a sibling is there twice": Law(target_only, "repeated siblings"),
}
LAWS: dict[str, Law] = {**LOSSLESS, **LOSSY, **MISTAKES}
SHAPES: dict[str, tuple[Tokens, ...]] = {  # how many children the root and the nodes after it have
    "chain": ((1,), (1, 1)),
    "likeliest tokens": ((1,), (1, 1)),
    "siblings": ((2,), (3,), (2, 1, 1)),
    "repeated siblings": ((2,), (3,), (2, 1, 1)),
}
LENGTH = 3  # tokens that are compared: what two accepted drafts and a bonus token are


class Farthest(NamedTuple):
    """How far a law is off, at most, and with which model and how many children of each node."""

    off: Fraction
    model: str
    shape: Tokens


def farthest(law: Law) -> Farthest:
    """The largest total variation between what a law emits and the target's distribution of three tokens, over the
    built-in models and the drafts of its kind: 0 iff it is lossless on all of them.

    Raises ValueError for an unknown kind of drafts, and for probabilities that do not add up to 1.
    """
    if law.drafts not in SHAPES:
        raise ValueError(f"there are no drafts {law.drafts!r}; allowed: {', '.join(SHAPES)}")
    found = []
    for name, models in {**MODELS, "toy": TOY}.items():
        exact = target_distribution(models[0], LENGTH)
        for shape in SHAPES[law.drafts]:
            emitted = completed(_distribution(law, models, shape), LENGTH, models[0])
            found.append(Farthest(total_variation(emitted, exact), name, shape))
    return max(found, key=lambda each: each.off)


def tokens_a_step(law: Law) -> Fraction:
    """The expected number of tokens that a step emits, of the first model and the last shape of its drafts."""
    return expected_length(_distribution(law, MODELS["three tokens"], SHAPES[law.drafts][-1]))


def _distribution(law: Law, models: tuple[Target, Target], shape: Tokens) -> Distribution:
    target, drafter = models
    if law.drafts == "likeliest tokens":
        drafter = _likeliest(drafter)
    dist: Distribution = {}
    again = law.drafts == "repeated siblings"
    for weight, drafted in drawn_drafts(target, drafter, shape, replacement=again):
        total = NONE
        for tokens, probability in law.outcomes(drafted):
            total += probability
            if weight * probability:
                dist[tokens] = dist.get(tokens, NONE) + weight * probability
        if total != 1:
            raise ValueError(f"what is emitted of {drafted!r} has the probabilities {total} in all; allowed: 1")
    return dist


def _likeliest(drafter: Target) -> Target:
    def dist(prefix: Tokens) -> Row:
        row = list(drafter(prefix))
        return tuple(Fraction(token == row.index(max(row))) for token in range(len(row)))

    return dist
