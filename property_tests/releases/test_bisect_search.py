"""The search of `specsim bisect`: the two neighbours between which the verdict changes, however many places cannot be
checked.
"""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.findings.bisect.search import Change, find_change, spread

# The verdicts of a history: "0" as the first place, "1" as the last one, "?" for a place that cannot be checked.
HISTORIES = st.tuples(st.lists(st.sampled_from("0?"), max_size=30), st.lists(st.sampled_from("1?"), max_size=30)).map(
    lambda halves: "0" + "".join(halves[0]) + "".join(halves[1]) + "1"
)
VERDICTS = {"0": False, "1": True, "?": None}


def search(history: str) -> tuple[Change, list[int]]:
    asked: list[int] = []

    def has_changed(place: int) -> bool | None:
        asked.append(place)
        return VERDICTS[history[place]]

    return find_change(len(history), has_changed), asked


def brute_force(history: str) -> Change:
    """Of a history that changes once: its last "0" and its first "1"."""
    return Change(history.rindex("0"), history.index("1"))


@given(HISTORIES)
def test_the_change_is_the_one_that_checking_every_place_finds(history: str) -> None:
    change, _ = search(history)
    assert change == brute_force(history)
    assert all(history[place] == "?" for place in change.skipped)


@given(st.text("01?", max_size=40).map(lambda middle: f"0{middle}1"))
def test_whatever_a_history_is_like_what_is_found_is_a_change(history: str) -> None:
    change, _ = search(history)
    assert history[change.before] == "0"
    assert history[change.after] == "1"
    assert set(history[change.before + 1 : change.after]) <= {"?"}


@given(st.text("01?", max_size=40).map(lambda middle: f"0{middle}1"))
def test_no_place_is_asked_twice_and_the_two_ends_never(history: str) -> None:
    _, asked = search(history)
    assert len(asked) == len(set(asked))
    assert not {0, len(history) - 1} & set(asked)


@given(st.integers(0, 200), st.integers(0, 200))
def test_a_history_without_gaps_takes_the_logarithm_of_its_length(zeros: int, ones: int) -> None:
    _, asked = search("0" * (zeros + 1) + "1" * (ones + 1))
    assert len(asked) <= math.ceil(math.log2(zeros + ones + 1))


@pytest.mark.parametrize("at", [0, 10, 60, 140])
def test_a_run_that_cannot_be_checked_costs_few_steps_unless_the_change_lies_in_it(at: int) -> None:
    history = "0" * 100 + "1" * 100
    history = history[: at + 1] + "?" * 30 + history[at + 31 :]
    _, asked = search(history)
    assert len(asked) <= 16


@given(st.integers(0, 100), st.integers(0, 100))
def test_every_place_between_is_offered_once(before: int, length: int) -> None:
    assert sorted(spread(before, before + length)) == list(range(before + 1, before + length))


@pytest.mark.parametrize("count", [0, 1])
def test_a_search_needs_two_ends(count: int) -> None:
    with pytest.raises(ValueError, match="must be at least 2"):
        find_change(count, lambda _place: True)
