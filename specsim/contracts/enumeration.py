"""The exact distribution of what a verification rule emits, counted out cell by cell: is speculative sampling lossless?

A rule is a function of its uniform draws, and changes what it emits at finitely many thresholds of each uniform draw
only. The thresholds cut the uniform draws' unit cube into cells; the rule is called once in each cell, and what it
emits there weighs as much as the cell is large, an exact fraction. No seeds and no statistics: a rule is lossless iff
the total variation between its distribution and the target's is 0.

    distribution = output_distribution(verify, proposals)
    assert total_variation(completed(distribution, 3, target), target_distribution(target, 3)) == 0

`verify` can be any rule: a reference, a kernel behind an adapter, a rule of one's own. It gets uniform draws at the
centre of cells, so that rounding cannot change a decision unless a cell is as narrow as the rounding.

Thresholds are the caller's, and too many do no harm. `cdf`, `target_only_thresholds`, `chain_acceptance`,
`block_acceptance` and `sibling_acceptance` give those of the usual rules. A threshold that is missing is noticed, and
refused or looked for, when the decision flips between the corners of a cell; not when it flips twice inside.

What this does not say: anything about uniform draws that are not independent and uniform, and about proposals that are
not drawn as their weights say.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Generic, TypeVar

import torch

Tokens = tuple[int, ...]
Distribution = dict[Tokens, Fraction]
Weights = Sequence[Fraction]
Target = Callable[[Tokens], Weights]
T = TypeVar("T")

CELLS_MAX = 1_000_000
_CENTRE = Fraction(1, 2)
_CORNER = Fraction(1, 1024)  # how far from its edges a cell is probed, as a share of its width
_BRACKET = Fraction(1, 2**18)  # the width to which a missing threshold is found; far above float32's rounding
_BRACKET_POINTS = 64  # tried in one call
FOUND_MAX = 32  # thresholds of a proposal; a rule that needs more compares its uniform draws with one another


@dataclass(frozen=True, slots=True)
class Proposal(Generic[T]):
    """What a drafter may propose.

    `weight`      the probability that it does
    `drafted`     whatever the rule needs to know of it: tokens, links, distributions
    `thresholds`  for each uniform draw the values between 0 and 1 at which a decision can flip, in any order; values
                  outside and repeated ones are of no account
    """

    weight: Fraction
    drafted: T
    thresholds: tuple[tuple[Fraction, ...], ...]


def output_distribution(
    verify: Callable[[T, torch.Tensor], Sequence[Tokens]],
    proposals: Iterable[Proposal[T]],
    *,
    probe_corners: bool = True,
    find_thresholds: bool = False,
) -> Distribution:
    """The exact distribution of the tokens that `verify` emits.

    verify           called with a proposal's `drafted` and uniform draws [n, num_coins] float64, one row for each time
                     that it is to verify the proposal; returns for each row the emitted tokens, of any length
    proposals        all that the drafter may propose; the weights must add up to 1
    probe_corners    also call the rule near the lowest and the highest corner of each cell, to notice missing
                     thresholds; in the same call as the centres
    find_thresholds  look for a threshold that is found missing, and go on with it. It is bracketed to 2**-18 and taken
                     to be the simplest fraction there: the true one if that is a fraction of numbers below 500

    Returns the probability of every emitted tuple; those of probability 0 are left out. Raises ValueError for weights
    that do not add up to 1, for more than a million cells of a proposal, for a rule that returns another number of
    results than rows, and for a missing threshold that is not to be found, or cannot be.
    """
    dist: Distribution = {}
    total = Fraction(0)
    for proposal in proposals:
        total += proposal.weight
        if proposal.weight == 0:
            continue
        for tokens, probability in _cell_law(verify, proposal, probe_corners, find_thresholds):
            dist[tokens] = dist.get(tokens, Fraction(0)) + proposal.weight * probability
    if total != 1:
        raise ValueError(f"the weights of the proposals add up to {total}; allowed: 1")
    return dist


def _cell_law(
    verify: Callable[[T, torch.Tensor], Sequence[Tokens]],
    proposal: Proposal[T],
    probe_corners: bool,
    find_thresholds: bool,
) -> Iterator[tuple[Tokens, Fraction]]:
    thresholds, count = [list(axis) for axis in proposal.thresholds], 0
    shares = (_CENTRE, _CORNER, 1 - _CORNER) if probe_corners else (_CENTRE,)
    while True:
        cells = _cells(thresholds)
        points = [[low + width * share for low, width in cell] for share in shares for cell in cells]
        emitted = _call(verify, proposal, points)
        flipped = next((i for i, tokens in enumerate(emitted) if tokens != emitted[i % len(cells)]), None)
        if flipped is None:
            break
        centre = flipped % len(cells)
        found = (
            _flip_between(verify, proposal, points[centre], points[flipped])
            if find_thresholds and count < FOUND_MAX
            else None
        )
        if found is None or not 0 < found[1] < 1 or found[1] in thresholds[found[0]]:
            spans = ", ".join(f"[{low}, {low + width})" for low, width in cells[centre])
            raise ValueError(
                f"a threshold is missing: the rule emits {emitted[centre]} at the centre and {emitted[flipped]} near a "
                f"corner of the cell {spans} of proposal {proposal.drafted!r}"
            )
        thresholds[found[0]].append(found[1])
        count += 1
    for cell, tokens in zip(cells, emitted, strict=False):
        yield tokens, math.prod((width for _, width in cell), start=Fraction(1))


def _cells(thresholds: Iterable[Iterable[Fraction]]) -> list[tuple[tuple[Fraction, Fraction], ...]]:
    """The unit cube cut at the thresholds: low end and width of each cell along each uniform draw."""
    axes = []
    for axis in thresholds:
        cuts = sorted({Fraction(0), Fraction(1), *(cut for cut in axis if 0 < cut < 1)})
        axes.append([(low, high - low) for low, high in itertools.pairwise(cuts)])
    count = math.prod(map(len, axes))
    if count > CELLS_MAX:
        sizes = " x ".join(str(len(axis)) for axis in axes)
        raise ValueError(f"a proposal has {sizes} = {count} cells; allowed: at most {CELLS_MAX}")
    return list(itertools.product(*axes))


def _call(
    verify: Callable[[T, torch.Tensor], Sequence[Tokens]], proposal: Proposal[T], points: list[list[Fraction]]
) -> list[Tokens]:
    coins = torch.tensor([[float(coin) for coin in point] for point in points], dtype=torch.float64)
    emitted = [tuple(tokens) for tokens in verify(proposal.drafted, coins.view(len(points), -1))]
    if len(emitted) != len(points):
        raise ValueError(f"the rule returned {len(emitted)} results for {len(points)} rows of uniform draws")
    return emitted


def _flip_between(
    verify: Callable[[T, torch.Tensor], Sequence[Tokens]],
    proposal: Proposal[T],
    start: list[Fraction],
    end: list[Fraction],
) -> tuple[int, Fraction]:
    """A uniform draw, and a threshold of it, on the way from `start` to `end`, which emit different tokens."""
    way = [[*end[:i], *start[i:]] for i in range(len(start) + 1)]  # one uniform draw after the other is moved
    emitted = _call(verify, proposal, way)
    axis = next(i for i in range(len(start)) if emitted[i] != emitted[i + 1])
    low, high = sorted((start[axis], end[axis]))
    while high - low > _BRACKET:
        grid = [low + (high - low) * i / _BRACKET_POINTS for i in range(_BRACKET_POINTS + 1)]
        emitted = _call(verify, proposal, [[*end[:axis], coin, *start[axis + 1 :]] for coin in grid])
        flip = next((i for i, tokens in enumerate(emitted[1:-1], start=1) if tokens != emitted[0]), _BRACKET_POINTS)
        low, high = grid[flip - 1], grid[flip]
    return axis, _simplest(low - _BRACKET / 16, high + _BRACKET / 16)


def _simplest(low: Fraction, high: Fraction) -> Fraction:
    """The fraction from `low` to `high`, both included, with the smallest denominator."""
    whole = math.ceil(low)
    if whole <= high:
        return Fraction(whole)
    return whole - 1 + 1 / _simplest(1 / (high - whole + 1), 1 / (low - whole + 1))


def total_variation(p: Distribution, q: Distribution) -> Fraction:
    """Half the sum of the absolute differences: the largest difference in the probability of any event."""
    differences = [abs(p.get(tokens, Fraction(0)) - q.get(tokens, Fraction(0))) for tokens in p.keys() | q.keys()]
    return sum(differences, Fraction(0)) / 2


def target_distribution(target: Target, length: int) -> Distribution:
    """The distribution of the first `length` tokens of decoding token by token.

    `target(prefix)` is the target's distribution after the tokens `prefix`: exact weights, by token, that add up to 1.
    """
    return completed({(): Fraction(1)}, length, target)


def completed(dist: Distribution, length: int, target: Target) -> Distribution:
    """`dist`, with shorter tuples continued by the target's distribution and longer ones cut, to `length` tokens.

    That is what later steps of a lossless engine do; it makes distributions of different accepted lengths comparable.
    """
    result: Distribution = {}
    for tokens, probability in dist.items():
        if len(tokens) >= length:
            continued = {tokens[:length]: probability}
        else:
            longer = {
                (*tokens, token): probability * weight for token, weight in enumerate(target(tokens)) if weight > 0
            }
            continued = completed(longer, length, target)
        for whole, part in continued.items():
            result[whole] = result.get(whole, Fraction(0)) + part
    return result


def expected_length(dist: Distribution) -> Fraction:
    """The expected number of emitted tokens, the bonus token included."""
    return sum((len(tokens) * probability for tokens, probability in dist.items()), Fraction(0))


def cdf(weights: Weights) -> tuple[Fraction, ...]:
    """Where a uniform draw that draws from `weights` by inversion flips: the cumulative shares, if any weight is
    positive.
    """
    total = sum(weights, Fraction(0))
    return tuple(part / total for part in itertools.accumulate(weights)) if total > 0 else ()


def residual(p: Weights, q: Weights) -> list[Fraction]:
    """The positive part of p - q, not normalised."""
    return [max(target - draft, Fraction(0)) for target, draft in zip(p, q, strict=True)]


def normalised(weights: Weights) -> list[Fraction]:
    """`weights` with sum 1; zeros stay as they are."""
    total = sum(weights, Fraction(0))
    return [weight / total for weight in weights] if total > 0 else list(weights)


def without(weights: Weights, tokens: Iterable[int]) -> list[Fraction]:
    """`weights` with those of `tokens` set to 0, not normalised."""
    gone = set(tokens)
    return [Fraction(0) if token in gone else weight for token, weight in enumerate(weights)]


def target_only_thresholds(
    dist: Weights, children: Sequence[int], threshold_acc: Fraction = Fraction(1)
) -> tuple[Fraction, ...]:
    """Where a node's uniform draw flips in target-only sampling, given the tokens of its children in link order."""
    return tuple(mass / threshold_acc for mass in itertools.accumulate(dist[token] for token in children))


def chain_acceptance(p: Weights, q: Weights, token: int) -> Fraction:
    """The uniform draw below which the token rule accepts `token`, drawn from q, for the target distribution p; 0 if
    q(token) is 0.
    """
    return min(p[token] / q[token], Fraction(1)) if q[token] > 0 else Fraction(0)


def sibling_acceptance(p: Weights, q: Weights, tokens: Sequence[int]) -> tuple[list[Fraction], list[Fraction]]:
    """Siblings with `tokens`, drawn from q one after the other without replacement, for the target distribution p.

    Returns for each sibling the uniform draw below which it is accepted, once those before it are rejected, and what is
    left of p when all are.
    """
    left, proposal = list(p), list(q)
    acceptance = []
    for token in tokens:
        acceptance.append(chain_acceptance(left, proposal, token))
        if proposal[token] > 0:
            left, proposal = normalised(residual(left, proposal)), normalised(without(proposal, [token]))
    return acceptance, left


def block_acceptance(
    target: Sequence[Weights], draft: Sequence[Weights], tokens: Sequence[int]
) -> tuple[list[Fraction], list[list[Fraction]]]:
    """Block verification of `tokens` x_1..x_S, drawn from the S distributions `draft`, for the S + 1 distributions
    `target`.

    Returns h_1..h_S, the uniform draws below which a prefix is accepted, and the S + 1 distributions from which the
    next token is drawn after 0..S accepted drafts, not normalised.
    """
    reach = [Fraction(1)]
    for p, q, token in zip(target, draft, tokens, strict=False):
        reach.append(min(reach[-1] * p[token] / q[token], Fraction(1)) if q[token] > 0 else Fraction(0))
    rest = [
        residual([r * weight for weight in p], q) for r, p, q in zip(reach, target, draft, strict=False)
    ]  # after 0..S-1 drafts
    heights = []
    for r, left in zip(reach[1:], rest[1:], strict=False):
        mass = sum(left, Fraction(0))
        heights.append(mass / (mass + 1 - r) if 0 < r < 1 else r)
    if tokens:
        heights.append(reach[-1])
    return heights, [*rest, list(target[len(tokens)])]
