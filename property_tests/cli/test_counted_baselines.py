"""A finding that a baseline has, and that is met more often than chance explains, fails the check."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import combinations
from math import comb
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.findings import found
from specsim.errors import UsageError
from specsim.findings import baseline as files
from specsim.findings.chance import ERRORS, by_chance, is_rise
from specsim.findings.comparison import Baseline, Reach, compare, not_checked
from specsim.verdict import NotRun, Suite, Verdict

RACE, TOKEN = "scheduler:S2:race:x", "scheduler:I40:request:another-token"
counts = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(0, n), st.just(n)))


@given(counts, counts)
def test_the_probability_is_that_of_all_deals(here: tuple[int, int], there: tuple[int, int]) -> None:
    (hits, of), (base_hits, base_of) = here, there
    deals = list(combinations(range(of + base_of), hits + base_hits))
    as_many = sum(sum(place < of for place in deal) >= hits for deal in deals)
    assert by_chance(hits, of, base_hits, base_of) == Fraction(as_many, len(deals))


@pytest.mark.parametrize("probability", [Fraction(1, 50), Fraction(1, 10), Fraction(1, 2)])
@pytest.mark.parametrize(("of", "base_of"), [(30, 30), (20, 40)])
def test_an_unchanged_tree_is_found_wanting_no_more_often_than_is_said(
    probability: Fraction, of: int, base_of: int
) -> None:
    def chance(k: int, n: int) -> Fraction:
        return comb(n, k) * probability**k * (1 - probability) ** (n - k)

    wrong = sum(
        chance(k, of) * chance(other, base_of)
        for k in range(of + 1)
        for other in range(base_of + 1)
        if is_rise(k, of, other, base_of, 1)
    )
    assert wrong <= ERRORS


def test_what_is_met_in_all_schedules_and_was_rare_is_a_rise() -> None:
    assert is_rise(40, 100, 3, 100, 26)
    assert not is_rise(9, 100, 3, 100, 1)
    assert not is_rise(5, 100, 0, 0, 1)  # nothing to compare it with


def verdict(schedules: int = 100, **hits: int) -> Verdict:
    names = {"race": RACE, "token": TOKEN}
    findings = [found(names[name], count=count) for name, count in hits.items()]
    return Verdict("t", 0, [Suite("scheduler", schedules=schedules)], findings)


@pytest.mark.parametrize("as_file", [False, True])
def test_a_known_finding_that_is_met_far_more_often_is_new(tmp_path: Path, as_file: bool) -> None:
    there = verdict(race=7, token=3).to_json()
    file = tmp_path / "known.json"
    if as_file:
        files.save(file, there, ())
    else:
        file.write_text(json.dumps(there))
    base = files.load(file)
    assert (base.hits, base.schedules) == ({RACE: 7, TOKEN: 3}, {"scheduler": 100})
    here = verdict(race=9, token=40)
    here.baseline = compare(here, base)
    assert (here.baseline.known, here.baseline.risen, here.baseline.new) == ((RACE,), (TOKEN,), ())
    assert [one.signature for one in here.new] == [TOKEN]
    assert here.exit_code == 1


def test_a_baseline_that_does_not_count_is_compared_by_signatures() -> None:
    here = verdict(race=90)
    here.baseline = compare(here, Baseline("b", frozenset({RACE}), Reach(frozenset({"scheduler"}))))
    assert (here.baseline.known, here.baseline.risen) == ((RACE,), ())


IN_RUST, IN_PYTHON = "radix tree in Rust", "radix tree in Python"


@pytest.mark.parametrize("trees_there", [[IN_PYTHON], [IN_PYTHON, IN_RUST]])
def test_a_finding_of_one_radix_tree_is_new_only_beside_a_baseline_that_ran_it(trees_there: list[str]) -> None:
    there, here = (verdict(token=3), verdict(token=3))
    there.suites[0].trees = trees_there
    there.suites[0].not_run = [NotRun(IN_RUST, "it is not built")] if IN_RUST not in trees_there else []
    here.suites[0].trees = [IN_PYTHON, IN_RUST]
    here.findings.append(found(RACE, count=2, tree=IN_RUST))
    base = Baseline.of_verdict("b", there.to_json())
    here.baseline = compare(here, base)
    could_show = IN_RUST in trees_there
    assert here.baseline.new == (RACE,) * could_show
    assert here.baseline.not_compared == (RACE,) * (not could_show)
    obstacles = [(one.what, one.why) for one in not_checked(here, base.reach)]
    assert obstacles == [(RACE, "not run on b: it is not built")] * (not could_show)


def test_a_baseline_on_another_radix_tree_is_no_obstacle() -> None:
    """A release has one in Rust, and a checkout of it only where it was built."""
    there, here = (verdict(token=3), verdict(token=3))
    there.suites[0].trees, here.suites[0].trees = [IN_PYTHON, IN_RUST], [IN_PYTHON]
    base = Baseline.of_verdict("b", there.to_json())
    here.baseline = compare(here, base)
    assert not_checked(here, base.reach) == ()


@pytest.mark.parametrize("wrong", [{"schedules": {"scheduler": -1}}, {"schedules": 3.5}, {"schedules": ["x"]}])
def test_counts_that_are_none_are_refused(tmp_path: Path, wrong: dict[str, object]) -> None:
    file = tmp_path / "known.json"
    files.save(file, verdict(race=7).to_json(), ())
    file.write_text(json.dumps({**json.loads(file.read_text()), **wrong}))
    with pytest.raises(UsageError, match="schedules and hits are no counts"):
        files.load(file)
