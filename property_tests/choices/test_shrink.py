"""Shrinking: the result still shows the finding, is never worse, and is the same every time."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.choices.chooser import Chooser, Item, RecordingChooser, Tape, between, each, replayed, seeded
from specsim.choices.shrinker import Shrinker, shortlex

if TYPE_CHECKING:
    from collections.abc import Callable

TAPES = st.lists(st.integers(0, 50), max_size=25).map(tuple)


def attempt_of(case: Callable[[Chooser], bool]) -> Callable[[Tape], Tape | None]:
    """Runs a generator of cases on a tape; returns what it consumed when the case shows the finding."""

    def attempt(tape: Tape) -> Tape | None:
        chooser = replayed(tape)
        return chooser.tape if case(chooser) else None

    return attempt


def items(chooser: Chooser) -> list[int]:
    """A count and so many items: what a lower count leaves behind must be dropped in the same move."""
    return [chooser.choose(100, "item") for _ in range(chooser.choose(30, "count"))]


def has_a_large_item(chooser: Chooser) -> bool:
    return any(item >= 17 for item in items(chooser))


def has_two_items_that_add_up(chooser: Chooser) -> bool:
    drawn = items(chooser)
    return any(a + b >= 60 for index, a in enumerate(drawn) for b in drawn[:index])


def is_unsorted(chooser: Chooser) -> bool:
    drawn = items(chooser)
    return drawn != sorted(drawn)


def is_long(chooser: Chooser) -> bool:
    return len(items(chooser)) >= 5


START: Tape = (12, 3, 88, 41, 7, 99, 23, 5, 64, 70, 2, 31, 17)


@pytest.mark.parametrize(
    ("case", "smallest"),
    [
        (has_a_large_item, (1, 17)),
        (is_unsorted, (2, 1)),
        (is_long, (5,)),
        (lambda _chooser: True, ()),
    ],
)
def test_known_smallest_cases_are_reached(case: Callable[[Chooser], bool], smallest: Tape) -> None:
    assert Shrinker(START, attempt_of(case)).run() == smallest


def test_two_values_that_hang_together_still_shrink_to_the_fewest_choices() -> None:
    assert Shrinker(START, attempt_of(has_two_items_that_add_up)).run() == (2, 60)


@given(TAPES, st.sets(TAPES, max_size=5), st.integers(1, 60))
def test_the_result_shows_the_finding_and_is_never_worse(start: Tape, others: set[Tape], limit: int) -> None:
    calls: list[Tape] = []

    def shows(tape: Tape) -> bool:
        return tape == start or tape in others or sum(tape) >= limit

    def attempt(tape: Tape) -> Tape | None:
        calls.append(tape)
        return tape if shows(tape) else None

    best = Shrinker(start, attempt).run()
    assert shows(best)
    assert shortlex(best) <= shortlex(start)
    assert len(calls) == len(set(calls)), "no tape is tried twice"


@given(TAPES)
def test_a_finding_that_nothing_else_shows_stays_as_it_is(start: Tape) -> None:
    assert Shrinker(start, lambda _tape: None).run() == start


@given(TAPES, st.integers(0, 40))
def test_no_more_attempts_are_made_than_allowed(start: Tape, attempts_max: int) -> None:
    calls = 0

    def attempt(tape: Tape) -> Tape | None:
        nonlocal calls
        calls += 1
        return tape if sum(tape) % 3 == sum(start) % 3 else None

    shrinker = Shrinker(start, attempt, attempts_max)
    shrinker.run()
    assert calls == shrinker.attempts
    assert calls <= attempts_max


@given(TAPES)
def test_what_was_consumed_counts_and_not_what_was_tried(start: Tape) -> None:
    """A case that reads two choices consumes two, however long the tape that it was given."""
    chooser = replayed(start)
    first = (chooser.choose(50, "a"), chooser.choose(50, "b"))

    def reads_two(tape: Chooser) -> bool:
        return (tape.choose(50, "a") > 3) == (first[0] > 3) and tape.choose(50, "b") >= 0

    best = Shrinker(start, attempt_of(reads_two)).run()
    assert best == ((4,) if first[0] > 3 else ())


@given(TAPES)
def test_shrinking_is_deterministic(start: Tape) -> None:
    def trace() -> tuple[Tape, list[Tape]]:
        calls: list[Tape] = []

        def attempt(tape: Tape) -> Tape | None:
            calls.append(tape)
            return tape if len(set(tape)) >= len(set(start)) // 2 else None

        return Shrinker(start, attempt).run(), calls

    assert trace() == trace()


def test_shorter_is_smaller_before_lexicographic_is() -> None:
    tapes: list[Tape] = [(9, 9), (1,), (0, 1, 0), (), (0, 9), (2,), (0, 0, 9)]
    assert sorted(tapes, key=shortlex) == [(), (1,), (2,), (0, 9), (9, 9), (0, 0, 9), (0, 1, 0)]


# Tapes whose structure is known


def boxes(chooser: Chooser) -> list[list[int]]:
    """Up to 12 boxes of up to 9 numbers each; more is drawn between the count and the boxes, and behind them."""
    numbers = each(chooser, 1, 12, "boxes")
    chooser.choose(3, "between")
    drawn = [[chooser.choose(50, "number") for _ in range(between(chooser, 1, 9, "size"))] for _ in numbers]
    for _ in range(20):
        chooser.choose(4, "behind")
    return drawn


def has_two_odd_boxes(chooser: Chooser) -> bool:
    return sum(any(number % 2 and number > 20 for number in box) for box in boxes(chooser)) >= 2


def test_each_thing_is_noted_with_its_choices() -> None:
    chooser = seeded(0, "boxes")
    drawn = boxes(chooser)
    assert len(chooser.items) == len(drawn) > 1
    assert [item.counted for item in chooser.items] == [0] * len(drawn)
    assert chooser.items[0].start == 2
    for item, box in zip(chooser.items, drawn, strict=True):
        assert list(chooser.tape[item.start + 1 : item.end]) == box


def _shrunk(start: RecordingChooser, attempts: int) -> tuple[int, Tape]:
    known: dict[Tape, list[Item]] = {start.tape: start.items}

    def attempt(tape: Tape) -> Tape | None:
        chooser = replayed(tape)
        if not has_two_odd_boxes(chooser):
            return None
        known[chooser.tape] = chooser.items
        return chooser.tape

    best = Shrinker(start.tape, attempt, attempts, items=known.__getitem__).run()
    return len(boxes(replayed(best))), best


def drawn_from(seed: int) -> RecordingChooser:
    chooser = seeded(seed, "shrink boxes")
    boxes(chooser)
    return chooser


@pytest.mark.parametrize("seed", [seed for seed in range(12) if has_two_odd_boxes(seeded(seed, "shrink boxes"))])
def test_with_few_attempts_only_the_things_that_matter_are_left(seed: int) -> None:
    count, best = _shrunk(drawn_from(seed), 60)
    assert count == 2
    assert has_two_odd_boxes(replayed(best))
    assert _shrunk(drawn_from(seed), 60) == (count, best)
