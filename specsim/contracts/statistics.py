"""Does a sampler with random numbers of its own have the distribution that it should? Chi-square tests that know when
to stop.

What takes its uniform draws as an argument is compared with an exact distribution (`specsim.contracts.losslessness`). A
kernel that draws its own is run often and its outcomes are counted:

    distribution = exact_distribution("verify_chain_rejection", proposals)
    assert emissions_fit(draw, distribution).ok

`draw(seed)` returns what was emitted, as often as `draws_needed` says. A marginal cannot see a token that comes at the
wrong time, and the length cannot see a wrong token: `emissions_fit` tests every position by itself, each together with
the accepted length, and the length.

A test that fails is run once more with a fresh seed, and has failed when it does again. With `error_rate` 1e-6 a
correct sampler fails once in 1e12 runs. What cannot happen and does fails at once. What passes is as correct as the
number of draws can tell: an effect smaller than that of `draws_needed` is not seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from fractions import Fraction
from typing import Any, NamedTuple, TypeVar

import torch

from specsim.contracts.enumeration import Distribution, Tokens

Outcome = TypeVar("Outcome", bound=Hashable)

EXPECTED_MIN = 5  # a cell of which fewer are expected is pooled: the statistic is no chi-square there
SEEDS = (0, 1)


class Fit(NamedTuple):
    """Whether draws fit a distribution.

    `ok`        they do
    `p_values`  of the tests that were made, by name, in order; the last draw's alone when it was drawn twice
    `why`       what does not fit, a sentence; empty if all does
    """

    ok: bool
    p_values: dict[str, float]
    why: str


def survival(statistic: float, degrees: int) -> float:
    """The probability that a chi-square variable of `degrees` degrees of freedom exceeds `statistic`.

    Raises ValueError for a negative statistic or fewer than one degree.
    """
    if not statistic >= 0:
        raise ValueError(f"statistic is {statistic}; allowed: 0 or more")
    if degrees < 1:
        raise ValueError(f"degrees is {degrees}; allowed: 1 or more")
    half = torch.tensor([degrees / 2, statistic / 2], dtype=torch.float64)
    return float(torch.special.gammaincc(half[0], half[1]))


def draws_needed(cells: int, effect: float) -> int:
    """How many draws show a total variation of `effect` over `cells` cells: 10 sqrt(cells) / effect**2.

    The statistic's mean is then off by 40 sqrt(cells) at least, 28 of its standard deviations.
    Raises ValueError for fewer than two cells or an effect that is not above 0 and at most 1.
    """
    if cells < 2:
        raise ValueError(f"cells is {cells}; allowed: 2 or more")
    if not 0 < effect <= 1:
        raise ValueError(f"effect is {effect}; allowed: above 0, at most 1")
    return math.ceil(10 * math.sqrt(cells) / effect**2)


def chi_square(counts: Mapping[Outcome, int] | torch.Tensor, dist: Mapping[Outcome, Fraction] | torch.Tensor) -> float:
    """The p-value of Pearson's test that `counts` are independent draws from `dist`.

    counts  how often each outcome occurred; or [n] integers, of the outcomes 0 to n - 1
    dist    the probability of each outcome, fractions that add up to 1; or [n] float, up to 1e-6 of rounding

    Cells of which fewer than 5 are expected are pooled in one, and that one with the next smallest if it needs it.
    1 when all is one cell: nothing can be said. 0 when an outcome occurred that the distribution does not have.
    Raises ValueError for a distribution that does not add up to 1, negative counts, and no draws at all.
    Source: Pearson (1900); Cochran (1954) for the least expected count.
    """
    expected, observed = _by_outcome(dist), _by_outcome(counts)
    total = sum(expected.values())
    exact = isinstance(total, Fraction | int)
    if (exact and total != 1) or abs(total - 1) > 1e-6:
        raise ValueError(f"the probabilities of the distribution add up to {total}; allowed: 1")
    for outcome, count in observed.items():
        if count < 0:
            raise ValueError(f"outcome {outcome!r} has count {count}; allowed: 0 or more")
    draws = sum(observed.values())
    if draws == 0:
        raise ValueError("there are no draws; allowed: 1 or more")
    if impossible(observed, expected) is not None:
        return 0.0
    cells = [(float(p * draws), int(observed.get(outcome, 0))) for outcome, p in expected.items() if p > 0]
    return _pearson(_pooled(cells))


def _by_outcome(table: Mapping[Any, Any] | torch.Tensor) -> Mapping[Any, Any]:
    return dict(enumerate(table.tolist())) if isinstance(table, torch.Tensor) else table


def impossible(counts: Mapping[Outcome, int], dist: Mapping[Outcome, Any]) -> Outcome | None:
    """An outcome that occurred and has probability 0, or is not in the distribution; None if there is none."""
    return next((outcome for outcome, count in counts.items() if count > 0 and not dist.get(outcome, 0) > 0), None)


def _pooled(cells: Iterable[tuple[float, int]]) -> list[tuple[float, int]]:
    """Expected and observed numbers, with the small cells as one."""
    ordered = sorted(cells)
    while len(ordered) > 1 and ordered[0][0] < EXPECTED_MIN:
        small = max(2, sum(expected < EXPECTED_MIN for expected, _ in ordered))
        pool = (math.fsum(expected for expected, _ in ordered[:small]), sum(count for _, count in ordered[:small]))
        ordered = sorted([pool, *ordered[small:]])
    return ordered


def _pearson(cells: Sequence[tuple[float, int]]) -> float:
    if len(cells) < 2:
        return 1.0
    return survival(math.fsum((count - expected) ** 2 / expected for expected, count in cells), len(cells) - 1)


# ---- what to look at in emitted tokens


def marginals(dist: Distribution, i: int) -> dict[int | None, Fraction]:
    """The distribution of the i-th emitted token, from 0; None where fewer are emitted."""
    return _image(dist, _token_at(i))


def joint_of_token_and_length(dist: Distribution, i: int) -> dict[tuple[int | None, int], Fraction]:
    """The distribution of the i-th emitted token, from 0, None where fewer are emitted, and the number of accepted
    drafts.

    The number of accepted drafts is that of emitted tokens without the bonus. A uniform draw from the wrong place shows
    here: it makes the length depend on the token in another way, while each by itself can stay as it is.
    """
    return _image(dist, _token_at_and_length(i))


def lengths(dist: Distribution) -> dict[int, Fraction]:
    """The distribution of the number of accepted drafts."""
    return _image(dist, _length)


def _length(tokens: Tokens) -> int:
    return len(tokens) - 1


def _token_at(i: int) -> Callable[[Tokens], int | None]:
    return lambda tokens: tokens[i] if i < len(tokens) else None


def _token_at_and_length(i: int) -> Callable[[Tokens], tuple[int | None, int]]:
    return lambda tokens: (_token_at(i)(tokens), _length(tokens))


Number = TypeVar("Number", Fraction, int)


def _image(table: Mapping[Tokens, Number], view: Callable[[Tokens], Outcome]) -> dict[Outcome, Number]:
    """Probabilities, or counts, of what `view` makes of the tokens."""
    image: dict[Outcome, Number] = {}
    for tokens, share in table.items():
        seen = view(tokens)
        image[seen] = image[seen] + share if seen in image else share
    return image


# ---- does it fit?


def fits(
    draw: Callable[[int], Iterable[Outcome] | Mapping[Outcome, int]],
    dist: Mapping[Outcome, Fraction],
    *,
    error_rate: float = 1e-6,
    seeds: tuple[int, int] = SEEDS,
) -> Fit:
    """Whether a sampler draws from `dist`.

    draw        called with a seed; returns independent outcomes, or how often each occurred. What it draws with one
                seed must not depend on what it drew with another
    dist        the probability of each outcome, fractions that add up to 1
    error_rate  the p-value below which the draws are repeated, once, with the second seed; a correct sampler fails with
                probability error_rate**2

    An outcome that has probability 0 fails at once and is named.
    Raises ValueError for an error rate that is not between 0 and 1, equal seeds, and as `chi_square` does.
    """
    return _fits(draw, {"all": (lambda outcome: outcome, dist)}, dist, error_rate, seeds)


def emissions_fit(
    draw: Callable[[int], Iterable[Tokens] | Mapping[Tokens, int]],
    dist: Distribution,
    *,
    error_rate: float = 1e-6,
    seeds: tuple[int, int] = SEEDS,
) -> Fit:
    """Whether a rule emits with `dist`: by position, by position and accepted length, by length, and as a whole.

    As `fits`, of emitted tuples with the bonus last. `error_rate` is that of all tests together: each gets its share.
    """
    views: dict[str, tuple[Callable[[Tokens], Any], Mapping[Any, Fraction]]] = {
        "length": (_length, lengths(dist)),
        "tokens": (lambda tokens: tokens, dist),
    }
    for i in range(max(map(len, dist), default=0)):
        views[f"token {i}"] = (_token_at(i), marginals(dist, i))
        views[f"token {i} and length"] = (_token_at_and_length(i), joint_of_token_and_length(dist, i))
    return _fits(draw, views, dist, error_rate, seeds)


def _fits(
    draw: Callable[[int], Iterable[Outcome] | Mapping[Outcome, int]],
    views: Mapping[str, tuple[Callable[[Outcome], Any], Mapping[Any, Fraction]]],
    dist: Mapping[Outcome, Fraction],
    error_rate: float,
    seeds: tuple[int, int],
) -> Fit:
    if not 0 < error_rate < 1:
        raise ValueError(f"error_rate is {error_rate}; allowed: above 0, below 1")
    if seeds[0] == seeds[1]:
        raise ValueError(f"seeds are {seeds}; allowed: two different ones")
    failed: list[str] = []
    p_values: dict[str, float] = {}
    for seed in seeds:
        drawn = draw(seed)
        counts = drawn if isinstance(drawn, Mapping) else Counter(drawn)
        alien = impossible(counts, dist)
        if alien is not None:
            return Fit(False, {}, f"{alien!r} occurred with seed {seed}, and its probability is 0")
        p_values = {}
        for name, (view, expected) in views.items():
            seen: Counter[Any] = Counter()
            for outcome, count in counts.items():
                seen[view(outcome)] += count
            p_values[name] = chi_square(seen, expected)
        failed = [name for name, p_value in p_values.items() if p_value < error_rate / len(views)]
        if not failed:
            return Fit(True, p_values, "")
    worst = min(failed, key=lambda name: p_values[name])
    return Fit(
        False,
        p_values,
        f"{worst}: the p-value is {p_values[worst]:.1e} with seed {seeds[1]}, after a failure with seed {seeds[0]}; "
        f"allowed: {error_rate / len(views):.1e} or more",
    )
