"""Whether a finding is met more often than on a baseline, by more than chance.

Schedules are drawn alike on both, each by itself, so that of n and m schedules the numbers that show a finding have one
probability if nothing was changed. The test is Fisher's, exact and one-sided: how often k hits or more fall among the n
when k + l hits are dealt to n + m schedules. A tree that is its own baseline is found wanting by one check in
1 / ERRORS, however many findings it has.
"""

from __future__ import annotations

from fractions import Fraction
from math import comb

ERRORS = Fraction(1, 1000)
"""Of the checks of an unchanged tree, those in which a finding is called more frequent. Each of its findings has an
equal part of it.
"""


def by_chance(hits: int, of: int, base_hits: int, base_of: int) -> Fraction:
    """The probability that at least `hits` of `of` schedules show what `base_hits` of `base_of` others showed, when all
    are drawn alike. 1 where there is nothing to compare.
    """
    total, marked = of + base_of, hits + base_hits
    if not of or not base_of:
        return Fraction(1)
    ways = sum(comb(marked, k) * comb(total - marked, of - k) for k in range(hits, min(marked, of) + 1))
    return Fraction(ways, comb(total, of))


def is_rise(hits: int, of: int, base_hits: int, base_of: int, findings: int) -> bool:
    """Whether a finding is met more often than chance explains, one of so many `findings` that are compared."""
    return by_chance(hits, of, base_hits, base_of) < ERRORS / max(findings, 1)
