"""The search: the two neighbours between which a verdict changes, when some places cannot be checked.

Pure: places are numbers, and checking one is a function. The first and the last place are known to differ. Which of
the two is good is not said, so the same search finds the first bad place and the first fixed one. When a place cannot
be checked, the next one tried lies a quarter of the way, then three quarters, an eighth, and so on: a run of places
that cannot be checked costs few steps, unless the change lies in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Change:
    """Where the verdict changes: place `before` has the verdict of the first place and `after` that of the last one.
    Every place between them was checked, and could not be.
    """

    before: int
    after: int

    @property
    def skipped(self) -> range:
        """The places of which any but the last, or `after`, may be the change."""
        return range(self.before + 1, self.after)


def find_change(count: int, has_changed: Callable[[int], bool | None]) -> Change:
    """Search `count` places, at least two. `has_changed(place)` says whether a place has the verdict of the last one,
    None when it cannot be checked; it is asked of no place twice, and never of the first and the last.
    """
    if count < 2:
        raise ValueError(f"count={count}, must be at least 2: a first and a last place that differ")
    before, after = 0, count - 1
    skipped: set[int] = set()
    while True:
        place = next((place for place in spread(before, after) if place not in skipped), None)
        if place is None:
            return Change(before, after)
        changed = has_changed(place)
        if changed is None:
            skipped.add(place)
        elif changed:
            after = place
        else:
            before = place


def spread(before: int, after: int) -> Iterator[int]:
    """Every place between the two, once: the middle, then what halves the largest gaps."""
    gaps = [(before, after)]
    while gaps:
        smaller = []
        for low, high in gaps:
            if high - low > 1:
                middle = (low + high) // 2
                yield middle
                smaller += [(low, middle), (middle, high)]
        gaps = smaller
