"""Samplers with random numbers of their own: a right one passes, a wrong one does not, and how often is known."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from typing import Any

import pytest
import torch

from specsim.contracts.drafts import EAGER, SKEWED, TOY
from specsim.contracts.losslessness import chain_proposals, exact_distribution
from specsim.contracts.statistics import (
    chi_square,
    draws_needed,
    emissions_fit,
    fits,
    joint_of_token_and_length,
    lengths,
    marginals,
    survival,
)

P, Q = (torch.tensor([float(weight) for weight in row], dtype=torch.float64) for row in (SKEWED, EAGER))
LAW = exact_distribution(
    "verify_chain_rejection", chain_proposals(*TOY, 2, block=False)
)  # of up to three emitted tokens
TOKEN = dict(enumerate(SKEWED))
DRAWS = 20_000


def inverted(weights: torch.Tensor, coins: torch.Tensor, total: float | None = None) -> torch.Tensor:
    """The token [n] that each uniform draw [n] draws; `total` None takes that of the weights [V]."""
    cdf = weights.cumsum(0)
    scaled = coins * (cdf[-1] if total is None else total)
    return torch.searchsorted(cdf, scaled, right=True).clamp(max=len(weights) - 1)  # [n]


def token_rule(seed: int, draws: int = DRAWS, wrong: str = "") -> Counter[tuple[int, ...]]:
    """Two drafts under the token rule on the toy, with the generator's random numbers."""
    uniform = torch.rand(draws, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    drafts = inverted(Q, uniform[:, :2].contiguous())  # [n, 2]
    coins = uniform[:, 2:4]
    if wrong == "uniform draws of row 0":
        coins = coins[:1].expand_as(coins)
    if wrong == "the first uniform draw twice":
        coins = coins[:, :1].expand_as(coins)
    accepts = coins * Q[drafts] < P[drafts]
    lost = inverted((P - Q).clamp(min=0), uniform[:, 4].contiguous(), 1.0 if wrong == "not normalised" else None)
    bonus = inverted(P, uniform[:, 5].contiguous())
    accepted = accepts.long().cumprod(dim=1).sum(dim=1)  # [n]
    last = torch.where(accepted == 2, bonus, lost)
    rows = torch.cat([torch.where(torch.arange(2) < accepted[:, None], drafts, -1), last[:, None]], dim=1)
    distinct, counts = rows.unique(dim=0, return_counts=True)
    return Counter(
        {tuple(t for t in row if t >= 0): n for row, n in zip(distinct.tolist(), counts.tolist(), strict=True)}
    )


def tokens_of(weights: torch.Tensor, draws: int) -> Any:
    """A sampler of single tokens: how often each was drawn."""

    def draw(seed: int) -> dict[int, int]:
        uniform = torch.rand(draws, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
        return dict(enumerate(inverted(weights, uniform).bincount(minlength=len(weights)).tolist()))

    return draw


# ---- the chi-square distribution


@pytest.mark.parametrize(
    ("statistic", "degrees", "expected"),
    [
        (3.841458820694124, 1, 0.05),
        (5.991464547107979, 2, 0.05),
        (6.634896601021213, 1, 0.01),
        (18.307038053275146, 10, 0.05),
        (23.92812697687947, 1, 1e-6),
        (0.0, 3, 1.0),
    ],
)
def test_the_survival_function_has_the_values_of_the_tables(statistic: float, degrees: int, expected: float) -> None:
    assert survival(statistic, degrees) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("statistic", [0.01, 1.0, 10.0, 50.0, 200.0])
def test_the_survival_function_has_its_closed_forms(statistic: float) -> None:
    half = statistic / 2
    assert survival(statistic, 1) == pytest.approx(math.erfc(math.sqrt(half)), rel=1e-9)
    assert survival(statistic, 2) == pytest.approx(math.exp(-half), rel=1e-9)
    assert survival(statistic, 6) == pytest.approx(math.exp(-half) * (1 + half + half**2 / 2), rel=1e-9)
    poisson = math.fsum(math.exp(-half + k * math.log(half) - math.lgamma(k + 1)) for k in range(50))
    assert survival(statistic, 100) == pytest.approx(poisson, rel=1e-9)


def test_p_values_of_a_correct_sampler_are_uniform() -> None:
    p_values = [chi_square(tokens_of(P, 2000)(seed), TOKEN) for seed in range(1000)]
    tenths = Counter(min(int(10 * p), 9) for p in p_values)
    assert chi_square(tenths, dict.fromkeys(range(10), Fraction(1, 10))) > 0.001
    assert max(abs(sum(p <= i / 100 for p in p_values) / 1000 - i / 100) for i in range(101)) < 0.06


def test_counts_and_distributions_may_be_tensors() -> None:
    counts = torch.tensor([30, 25, 20, 13, 12])
    assert chi_square(counts, P) == pytest.approx(chi_square(dict(enumerate(counts.tolist())), TOKEN))
    statistic = float(((counts - 100 * P) ** 2 / (100 * P)).sum())
    assert chi_square(counts, P) == pytest.approx(survival(statistic, 4))


def test_cells_of_which_few_are_expected_are_pooled() -> None:
    rare = {"a": Fraction(96, 100), **{f"rare {i}": Fraction(1, 100) for i in range(4)}}
    counts = {"a": 190, "rare 0": 10}  # of 200: 192, and four times 2, which makes one cell of 8
    assert chi_square(counts, rare) == pytest.approx(survival(4 / 192 + 4 / 8, 1))
    fewer = {"a": Fraction(1, 2), "b": Fraction(49, 100), "c": Fraction(1, 100)}
    counts = {"a": 40, "b": 60}  # of 100: the pool of c alone is too small, and takes b
    assert chi_square(counts, fewer) == pytest.approx(survival(2 * 100 / 50, 1))
    assert chi_square({"a": 3, "b": 0}, {"a": Fraction(1, 2), "b": Fraction(1, 2)}) == 1.0


def test_an_outcome_that_cannot_occur_has_p_value_zero() -> None:
    assert chi_square({0: 99, 1: 1}, {0: Fraction(1), 1: Fraction(0)}) == 0.0
    assert chi_square({0: 99, 7: 1}, {0: Fraction(1)}) == 0.0
    assert chi_square({0: 99, 7: 0}, {0: Fraction(1)}) == 1.0


# ---- distributions of what is emitted


def test_marginals_and_joints_are_distributions_of_the_emitted_tokens() -> None:
    dist = {(0,): Fraction(1, 4), (1, 0): Fraction(1, 4), (1, 1): Fraction(1, 2)}
    assert marginals(dist, 0) == {0: Fraction(1, 4), 1: Fraction(3, 4)}
    assert marginals(dist, 1) == {None: Fraction(1, 4), 0: Fraction(1, 4), 1: Fraction(1, 2)}
    assert joint_of_token_and_length(dist, 0) == {(0, 0): Fraction(1, 4), (1, 1): Fraction(3, 4)}
    assert lengths(dist) == {0: Fraction(1, 4), 1: Fraction(3, 4)}
    assert marginals(LAW, 0) == TOKEN
    accept = sum(map(min, SKEWED, EAGER))
    assert lengths(LAW) == {0: 1 - accept, 1: accept * (1 - accept), 2: accept**2}


# ---- samplers, right and wrong


def test_a_correct_sampler_passes_whatever_the_seed() -> None:
    for seed in range(0, 100, 2):
        assert emissions_fit(token_rule, LAW, seeds=(seed, seed + 1)).ok
        assert fits(tokens_of(P, DRAWS), TOKEN, seeds=(seed, seed + 1)).ok


@pytest.mark.parametrize("wrong", ["uniform draws of row 0", "the first uniform draw twice", "not normalised"])
@pytest.mark.parametrize("seed", [0, 10, 20])
def test_a_wrong_sampler_fails_and_the_result_says_where(wrong: str, seed: int) -> None:
    result = emissions_fit(lambda seed: token_rule(seed, wrong=wrong), LAW, seeds=(seed, seed + 1))
    assert not result.ok
    assert "the p-value is" in result.why or "its probability is 0" in result.why


def test_the_length_tells_where_the_first_token_does_not() -> None:
    counts = token_rule(0, wrong="the first uniform draw twice")
    first: Counter[int | None] = Counter()
    for tokens, count in counts.items():
        first[tokens[0]] += count
    assert chi_square(first, marginals(LAW, 0)) > 1e-3
    result = emissions_fit(lambda seed: token_rule(seed, wrong="the first uniform draw twice"), LAW)
    assert result.p_values["token 0"] > 1e-3
    assert result.p_values["token 0 and length"] < 1e-12
    assert result.p_values["length"] < 1e-12


def test_one_percent_on_one_token_is_seen_with_the_draws_that_it_needs_and_not_with_few() -> None:
    biased = P + torch.tensor([0.01, -0.01, 0, 0, 0])
    needed = draws_needed(len(P), 0.01)
    for seed in range(0, 20, 2):
        assert not fits(tokens_of(biased, needed), TOKEN, seeds=(seed, seed + 1)).ok
        assert fits(tokens_of(P, needed), TOKEN, seeds=(seed, seed + 1)).ok
        assert fits(tokens_of(biased, needed // 100), TOKEN, seeds=(seed, seed + 1)).ok


def test_a_test_that_fails_is_repeated_once_and_with_the_other_seed() -> None:
    asked = []

    def fails_first(seed: int) -> dict[int, int]:
        asked.append(seed)
        counts: dict[int, int] = tokens_of(P if seed == 9 else Q, 2000)(seed)
        return counts

    assert fits(fails_first, TOKEN, seeds=(8, 9)).ok
    assert asked == [8, 9]
    assert not fits(fails_first, TOKEN, seeds=(7, 8)).ok
    assert asked == [8, 9, 7, 8]
    assert fits(fails_first, TOKEN, seeds=(9, 8)).ok
    assert asked == [8, 9, 7, 8, 9]


def test_what_cannot_happen_and_does_is_named_at_once() -> None:
    asked = []

    def draw(seed: int) -> list[tuple[int, ...]]:
        asked.append(seed)
        return [*token_rule(seed).elements(), (7, 7)]

    result = emissions_fit(draw, LAW)
    assert result == (False, {}, "(7, 7) occurred with seed 0, and its probability is 0")
    assert asked == [0]
    none = {**TOKEN, 9: Fraction(0)}
    assert "9 occurred" in fits(lambda _seed: [0] * 50 + [9], none).why


def test_draws_that_are_needed_grow_with_cells_and_shrink_with_the_effect() -> None:
    assert draws_needed(64, 0.01) == 800_000
    assert draws_needed(4, 0.5) == 80


def test_wrong_arguments_are_refused() -> None:
    half = {0: Fraction(1, 2)}
    for call, message in (
        (lambda: chi_square({0: 1}, half), r"the probabilities of the distribution add up to 1/2; allowed: 1"),
        (
            lambda: chi_square({0: 1}, torch.tensor([0.5])),
            r"the probabilities of the distribution add up to 0.5; allowed: 1",
        ),
        (lambda: chi_square({0: -1}, TOKEN), r"outcome 0 has count -1; allowed: 0 or more"),
        (lambda: chi_square({}, TOKEN), r"there are no draws; allowed: 1 or more"),
        (lambda: survival(-1.0, 1), r"statistic is -1.0; allowed: 0 or more"),
        (lambda: survival(math.nan, 1), r"statistic is nan; allowed: 0 or more"),
        (lambda: survival(1.0, 0), r"degrees is 0; allowed: 1 or more"),
        (lambda: draws_needed(1, 0.1), r"cells is 1; allowed: 2 or more"),
        (lambda: draws_needed(2, 0), r"effect is 0; allowed: above 0, at most 1"),
        (lambda: fits(tokens_of(P, 9), TOKEN, error_rate=0), r"error_rate is 0; allowed: above 0, below 1"),
        (lambda: fits(tokens_of(P, 9), TOKEN, seeds=(3, 3)), r"seeds are \(3, 3\); allowed: two different ones"),
    ):
        with pytest.raises(ValueError, match=message):
            call()
