"""The distributions of small vocabularies that cases of the sampling family are made of: multiples of 1/64, by kind.

Sums of them are exact in float32 in any order. Some have zeros, or all their weight on one token.
"""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

VOCAB_SIZE_MIN, VOCAB_SIZE_MAX = 3, 12

# Weights in 64ths of the most probable tokens; the last token of a small vocabulary takes what is left.
HALVING = (32, 16, 8, 4, 2, 1, 1)
SKEWED = (20, 16, 12, 8, 8)
TWO = (48, 16)
EVEN_PAIR = (32, 32)
ONE_HOT = (64,)
GAPS = (0, 24, 0, 40)
FLAT: tuple[int, ...] = ()  # the same for all, as far as 64 can be shared out
SHORT = (32, 16, 8, 4, 2, 1)  # a row that does not quite add up to 1

TARGET_ROWS = (HALVING, SKEWED, ONE_HOT, TWO, GAPS, FLAT)
DRAFT_ROWS = (HALVING, FLAT, SKEWED, ONE_HOT, EVEN_PAIR)
POWERS_OF_TWO = (HALVING, EVEN_PAIR, ONE_HOT)  # of which every ratio to another row is exact

KINDS = (HALVING, SKEWED, TWO, EVEN_PAIR, ONE_HOT, GAPS, FLAT, SHORT)

Weights = tuple[int, ...]
Row = tuple[Fraction, ...]


def dist(weights: Sequence[int], turn: int, vocab_size: int) -> Row:
    """The distribution with `weights`, every token moved up by `turn`."""
    if weights:
        row = [*weights, *[0] * vocab_size][:vocab_size]
        if sum(weights) == 64:
            row[-1] += 64 - sum(row)
    else:
        row = [64 // vocab_size + (token < 64 % vocab_size) for token in range(vocab_size)]
    start = -turn % vocab_size
    return tuple(Fraction(weight, 64) for weight in row[start:] + row[:start])


def by_weight(row: Row) -> list[int]:
    """The tokens of `row`, the most probable first."""
    return sorted(range(len(row)), key=lambda token: (-row[token], token))
