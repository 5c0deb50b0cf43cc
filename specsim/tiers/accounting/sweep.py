"""Counts of many schedules of the default swarm: how many, how long, what they broke, and what they reached.

Schedules are counted in parts, `[start, end)` of one seed each. Sums of parts do not depend on how they were cut or on
who counted them, and the digest is taken over parts of one size in their order: the result of a sweep is the same
whatever number of processes ran it.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

from specsim.engine.accounting_target import AccountingTarget
from specsim.engine.marks import CROSSED, INTERLEAVINGS, LIFE, OPTIONS, note
from specsim.tiers.accounting.schedules import chooser_of, run_schedule

MARKS = (*INTERLEAVINGS, *LIFE, *OPTIONS)  # all that a sweep counts, pairs apart
PART = 500  # schedules
ENOUGH = 1000  # schedules that reach a mark; what is reached less often is listed
EXCEPTION = "exception"  # stands where a rule's id does when the model itself raised


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that broke: in how many schedules, the one of number `first` first."""

    count: int
    first: int


@dataclass(slots=True)
class Counts:
    """What was counted. `lengths` are numbers of schedules by their number of events; `refused` were not run; `digest`
    is of the digests of all schedules.
    """

    schedules: int = 0
    refused: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    marks: Counter[str] = field(default_factory=Counter)
    broken: dict[str, Broken] = field(default_factory=dict)
    digest: str = ""

    @property
    def events(self) -> int:
        return sum(length * count for length, count in self.lengths.items())

    @property
    def events_median(self) -> int:
        """Events of a schedule in the median, the lower one of two; 0 when nothing was run."""
        left = (self.lengths.total() + 1) // 2
        for length in sorted(self.lengths):
            left -= self.lengths[length]
            if left <= 0:
                return length
        return 0


def count(
    target: AccountingTarget, seed: int, start: int, end: int, goes_on: Callable[[], bool] = lambda: True
) -> Counts:
    """Run schedules `[start, end)` of a seed as long as it `goes_on`. What the model raises is counted as broken, and
    the next one is run.
    """
    counts = Counts()
    digest = hashlib.blake2b(digest_size=16)
    for index in range(start, end):
        if not goes_on():
            break
        try:
            schedule = run_schedule(target, chooser_of(seed, index))
        except Exception as error:
            _break(counts, f"accounting:{EXCEPTION}:{type(error).__name__}", index)
            counts.schedules += 1
            digest.update(type(error).__name__.encode())
            continue
        if schedule is None:
            counts.refused += 1
            continue
        counts.schedules += 1
        counts.lengths[len(schedule.run.log)] += 1
        note(counts.marks, schedule.run.marks)
        digest.update(schedule.run.digest.encode())
        for signature in sorted({violation.signature for violation in schedule.run.violations}):
            _break(counts, signature, index)
    counts.digest = digest.hexdigest()
    return counts


def _break(counts: Counts, signature: str, index: int, times: int = 1) -> None:
    known = counts.broken.get(signature, Broken(0, index))
    counts.broken[signature] = Broken(known.count + times, min(known.first, index))


def merged(parts: Mapping[tuple[int, int], Counts]) -> Counts:
    """The sum of parts, by the schedules `[start, end)` that they are of; in whatever order they come."""
    total = Counts()
    digest = hashlib.blake2b(digest_size=16)
    for part in (parts[cut] for cut in sorted(parts)):
        total.schedules += part.schedules
        total.refused += part.refused
        total.lengths.update(part.lengths)
        total.marks.update(part.marks)
        for signature, broken in part.broken.items():
            _break(total, signature, broken.first, broken.count)
        digest.update(part.digest.encode())
    total.digest = digest.hexdigest()
    return total


def ranges(cuts: Iterable[tuple[int, int]]) -> list[list[int]]:
    """The same schedules as few ranges `[start, end)`."""
    found: list[list[int]] = []
    for start, end in sorted(cuts):
        if found and found[-1][1] == start:
            found[-1][1] = end
        else:
            found.append([start, end])
    return found


def to_json(counts: Counts) -> dict[str, Any]:
    """The counts, marks by name; pairs of `CROSSED` beside them; and what was reached less than `ENOUGH` times."""
    singles = {mark: counts.marks[mark] for mark in MARKS}
    singles |= {mark: number for mark, number in sorted(counts.marks.items()) if " & " not in mark}
    pairs = {pair: counts.marks[pair] for pair in crossed(CROSSED)}
    reached = {**singles, **pairs}
    return {
        "schedules": counts.schedules,
        "refused": counts.refused,
        "events": counts.events,
        "events_median": counts.events_median,
        "events_most": max(counts.lengths, default=0),
        "digest": counts.digest,
        "findings": {
            signature: {"schedules": broken.count, "first": broken.first}
            for signature, broken in sorted(counts.broken.items())
        },
        "marks": {mark: _share(number, counts.schedules) for mark, number in singles.items()},
        "pairs": {pair: _share(number, counts.schedules) for pair, number in pairs.items()},
        "rarer_than": ENOUGH,
        "rare": {mark: _share(number, counts.schedules) for mark, number in reached.items() if number < ENOUGH},
    }


def crossed(marks: Sequence[str]) -> list[str]:
    """The pairs of these marks, named as `specsim.engine.marks.note` names them."""
    return [" & ".join(pair) for pair in combinations(sorted(marks), 2)]


def _share(number: int, schedules: int) -> dict[str, float]:
    return {"schedules": number, "share": round(number / max(1, schedules), 7)}
