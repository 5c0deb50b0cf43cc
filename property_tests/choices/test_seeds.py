"""A seed is a number or a commit hash, and is read the same way everywhere."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.choices.seeds import parse_seed
from specsim.errors import UsageError


@given(st.integers(0, 2**64 - 1))
def test_every_number_below_two_to_the_64_is_itself(number: int) -> None:
    assert parse_seed(str(number)) == number


@given(st.text("abcdef", min_size=1, max_size=1), st.text("0123456789abcdef", min_size=6, max_size=63))
def test_a_commit_hash_gives_its_low_64_bits_in_either_case(first: str, rest: str) -> None:
    digits = first + rest
    assert parse_seed(digits) == int(digits, 16) % 2**64
    assert parse_seed(digits.upper()) == parse_seed(digits)


def test_digits_alone_are_decimal_unless_they_are_too_large_for_a_seed() -> None:
    assert parse_seed("1234567") == 1234567
    assert parse_seed("007") == 7
    assert parse_seed(str(2**64 - 1)) == 2**64 - 1
    assert parse_seed(str(2**64)) == int(str(2**64), 16) % 2**64
    assert parse_seed("1" * 40) == int("1" * 40, 16) % 2**64


@pytest.mark.parametrize("text", ["", "-1", "1.5", "1e3", "0x10", "abcdef", "xyz1234", "7 ", "٣", "a" * 65, "1_000"])
def test_anything_else_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match="--seed 7") as caught:
        parse_seed(text)
    assert repr(text) in caught.value.problem
