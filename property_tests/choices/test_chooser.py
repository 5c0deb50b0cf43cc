"""Choices: every tape is valid, zero is the simplest, and a seed or tape chooses the same everywhere."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.choices.chooser import RecordingChooser, between, pick, replayed, sample, seeded

BOUNDS = st.lists(st.integers(1, 1000), max_size=30)
TAPES = st.lists(st.integers(-5, 2000), max_size=40)

GOLDEN_0 = [2, 7, 9, 4, 6, 4, 9, 9]
GOLDEN_7 = [0, 0, 636, 2902713944, 0]


def run(chooser: RecordingChooser, bounds: list[int]) -> list[int]:
    return [chooser.choose(bound, "x") for bound in bounds]


@given(TAPES, BOUNDS)
def test_every_tape_is_valid(tape: list[int], bounds: list[int]) -> None:
    for value, bound in zip(run(replayed(tape), bounds), bounds, strict=True):
        assert 0 <= value < bound


@given(st.integers(1, 1000))
def test_a_value_that_does_not_fit_is_clamped_to_the_nearest_that_does(bound: int) -> None:
    assert replayed([bound]).choose(bound, "x") == bound - 1
    assert replayed([bound + 7]).choose(bound, "x") == bound - 1
    assert replayed([-1]).choose(bound, "x") == 0


@given(TAPES, BOUNDS)
def test_a_tape_that_is_too_short_goes_on_with_zeros(tape: list[int], bounds: list[int]) -> None:
    chosen = run(replayed(tape), [5000] * len(tape) + bounds)
    assert chosen[len(tape) :] == [0] * len(bounds)


@given(st.integers(0, 2**64 - 1), BOUNDS)
def test_a_recorded_tape_replays_the_same_choices(seed: int, bounds: list[int]) -> None:
    first = seeded(seed, "suite", 3)
    chosen = run(first, bounds)
    again = replayed(first.tape)
    assert run(again, bounds) == chosen
    assert again.tape == first.tape


@given(TAPES, BOUNDS)
def test_a_recorded_tape_has_no_zeros_at_its_end_and_is_never_longer_than_the_run(
    tape: list[int], bounds: list[int]
) -> None:
    chooser = replayed(tape)
    chosen = run(chooser, bounds)
    assert not chooser.tape or chooser.tape[-1] != 0
    assert list(chooser.tape) == chosen[: len(chooser.tape)]
    assert not any(chosen[len(chooser.tape) :])


@pytest.mark.parametrize("bound", [0, -1])
def test_a_choice_among_nothing_is_refused_by_name(bound: int) -> None:
    with pytest.raises(ValueError, match=rf"bound={bound}, label='which slot'"):
        replayed([]).choose(bound, "which slot")


def test_a_seed_chooses_these_values_for_ever() -> None:
    assert run(seeded(0), [10] * 8) == GOLDEN_0
    assert run(seeded(7, "suite", "subject", 41), [2, 3, 1000, 1 << 32, 1]) == GOLDEN_7


def test_a_seed_chooses_the_same_in_every_process_whatever_the_hash_seed() -> None:
    program = (
        "from specsim.choices.chooser import seeded\n"
        "chooser = seeded(7, 'suite', 'subject', 41)\n"
        "print([chooser.choose(bound, 'x') for bound in (2, 3, 1000, 1 << 32, 1)])\n"
    )
    for hash_seed in ("0", "1", "4294967295"):
        ended = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": hash_seed},
            check=True,
            capture_output=True,
            text=True,
        )
        assert ended.stdout.strip() == str(GOLDEN_7)


def test_choices_depend_on_the_seed_and_on_each_part_of_the_path() -> None:
    keys: list[tuple[int, tuple[str | int, ...]]] = [
        (0, ()),
        (1, ()),
        (0, ("a",)),
        (0, ("a", 0)),
        (0, ("a", 1)),
        (0, ("b", 1)),
        (0, ("a", "b", 1)),
        (0, ("ab", 1)),
    ]
    assert len({tuple(run(seeded(seed, *path), [1 << 32] * 4)) for seed, path in keys}) == len(keys)


def test_labels_do_not_change_what_is_chosen() -> None:
    one, other = seeded(5), seeded(5)
    assert [one.choose(100, "a") for _ in range(20)] == [other.choose(100, f"b{i}") for i in range(20)]


def test_seeded_choices_reach_every_value_about_equally_often() -> None:
    chooser = seeded(11)
    counts = [0] * 7
    for _ in range(7000):
        counts[chooser.choose(7, "x")] += 1
    assert min(counts) > 850  # 1000 expected, standard deviation 29: the seed is fixed, so this never varies
    assert max(counts) < 1150


@given(st.integers(-50, 50), st.integers(0, 50), st.integers(-1, 200))
def test_between_stays_in_its_closed_range_and_starts_at_its_lower_end(low: int, width: int, value: int) -> None:
    assert between(replayed([value]), low, low + width, "x") == low + min(max(value, 0), width)
    assert between(replayed([]), low, low + width, "x") == low


@given(st.lists(st.integers(), min_size=1, max_size=9), st.integers(0, 20))
def test_pick_returns_an_option_and_by_default_the_first(options: list[int], value: int) -> None:
    assert pick(replayed([value]), options, "x") == options[min(value, len(options) - 1)]
    assert pick(replayed([]), options, "x") == options[0]


@given(st.integers(0, 20).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))), TAPES)
def test_a_sample_is_distinct_and_in_range_and_by_default_counts_up(size: tuple[int, int], tape: list[int]) -> None:
    population, count = size
    drawn = sample(replayed(tape), population, count, "x")
    assert len(set(drawn)) == len(drawn) == count
    assert set(drawn) <= set(range(population))
    assert sample(replayed([]), population, count, "x") == list(range(count))


def test_a_sample_larger_than_its_population_is_refused() -> None:
    with pytest.raises(ValueError, match="bound must be at least 1"):
        sample(replayed([]), 2, 3, "rows")
