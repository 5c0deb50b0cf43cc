"""Making a tape smaller while it still shows the same thing.

A tape is better when it is shorter, and among those of one length when it is lexicographically smaller (*shortlex*, the
order that Hypothesis uses, for the same reasons: it is total, it is well-founded, and a generator whose choice 0 is
the simplest one then shrinks towards simple cases without knowing it). The passes are deterministic; the same tape and
predicate always end in the same result.

A caller may give an order of its own, of which shortlex should be the last part: fewer requests, then fewer events.
What is smaller by it may have a longer tape, so then choices are also raised.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from specsim.choices.chooser import Item, Tape


def shortlex(tape: Tape) -> tuple[int, Tape]:
    """The sort key of a tape: shorter first, then lexicographic."""
    return (len(tape), tape)


class Shrinker:
    """Shrinks `tape`. `attempt(tape)` runs the case and returns the tape that it really consumed (normalised) when the
    case still shows the finding, else None. At most `attempts_max` calls of `attempt` are made. `size` orders tapes
    that showed the finding; it is called with `tape` and with what `attempt` returned, and with nothing else. So is
    `items`, which says what a tape makes many of: with it whole things go first, and runs of choices last.
    """

    def __init__(
        self,
        tape: Tape,
        attempt: Callable[[Tape], Tape | None],
        attempts_max: int = 2000,
        size: Callable[[Tape], Any] = shortlex,
        items: Callable[[Tape], Sequence[Item]] | None = None,
    ) -> None:
        self.best = tape
        self.attempts = 0
        self._attempt = attempt
        self._attempts_max = attempts_max
        self._size = size
        self._items = items
        self._seen: set[Tape] = {tape}

    def run(self) -> Tape:
        """Run all passes until none of them improves the tape; returns the best tape."""
        passes = [self._zero_blocks, self._delete_blocks, self._lower_values, self._lower_and_delete]
        if self._items is not None:
            runs_last = [self._zero_blocks, self._lower_values, self._lower_and_delete, self._delete_blocks]
            passes = [self._drop_items, *runs_last]
        if self._size is not shortlex:
            passes.append(self._raise_values)
        improved = True
        while improved and self.attempts < self._attempts_max:
            improved = False
            for shrink_pass in passes:
                improved |= shrink_pass()
        return self.best

    def _try(self, candidate: Tape, longer: bool = False) -> bool:
        while candidate and candidate[-1] == 0:
            candidate = candidate[:-1]
        if self.attempts >= self._attempts_max or candidate in self._seen:
            return False
        if not longer and shortlex(candidate) >= shortlex(self.best):
            return False
        self._seen.add(candidate)
        self.attempts += 1
        consumed = self._attempt(candidate)
        if consumed is None or self._size(consumed) >= self._size(self.best):
            return False
        self._seen.add(consumed)
        self.best = consumed
        return True

    def _drop_items(self) -> bool:
        """Half of the things of one kind, then quarters, down to single ones, the last ones first."""
        assert self._items is not None
        improved = False
        kinds = len({item.counted for item in self._items(self.best)})
        for kind in range(kinds):
            size = len(self._of_kind(kind))
            while size:
                end = len(self._of_kind(kind))
                while end > 0:
                    items = self._of_kind(kind)
                    improved |= self._try(self._without(items[max(0, end - size) : end]))
                    end -= size
                size //= 2
        return improved

    def _of_kind(self, kind: int) -> list[Item]:
        assert self._items is not None
        items = self._items(self.best)
        counts = sorted({item.counted for item in items})
        return [item for item in items if item.counted == counts[kind]] if kind < len(counts) else []

    def _without(self, items: Sequence[Item]) -> Tape:
        """The best tape without some things of one kind, or without all but the least of them that may be."""
        tape = [*self.best, *[0] * (max(item.end for item in items) - len(self.best))] if items else [*self.best]
        for item in sorted(items, reverse=True)[: tape[items[0].counted] if items else 0]:
            del tape[item.start : item.end]
            tape[item.counted] -= 1
        return tuple(tape)

    def _zero_blocks(self) -> bool:
        improved = False
        size = len(self.best)
        while size:
            start = 0
            while start < len(self.best):
                end = start + size
                if any(self.best[start:end]):
                    zeros = (0,) * len(self.best[start:end])
                    improved |= self._try(self.best[:start] + zeros + self.best[end:])
                start += size
            size //= 2
        return improved

    def _delete_blocks(self) -> bool:
        improved = False
        for size in (32, 16, 8, 4, 3, 2, 1):
            start = len(self.best) - size
            while start >= 0:
                if self._try(self.best[:start] + self.best[start + size :]):
                    improved = True
                    start = min(start, len(self.best)) - size
                else:
                    start -= 1
        return improved

    def _lower_values(self) -> bool:
        improved = False
        index = 0
        while index < len(self.best):
            high = self.best[index]
            low = 0  # binary search for the smallest value at this index that still shows the finding
            while low < high:
                middle = (low + high) // 2
                if self._try((*self.best[:index], middle, *self.best[index + 1 :])):
                    improved = True
                    if index >= len(self.best):
                        break
                    high = min(middle, self.best[index])
                else:
                    low = middle + 1
            index += 1
        return improved

    def _lower_and_delete(self) -> bool:
        """A smaller count leaves its items behind: lower one value and drop what follows it in the same move."""
        improved = False
        index = 0
        while index < len(self.best):
            if self.best[index]:
                for size in (1, 2, 3, 4, 6, 8):
                    lowered = (*self.best[:index], self.best[index] - 1, *self.best[index + 1 + size :])
                    if self._try(lowered):
                        improved = True
                        break
            index += 1
        return improved

    def _raise_values(self) -> bool:
        """A choice that is less simple may end the run sooner."""
        improved = False
        index = 0
        while index < len(self.best):
            raised = (*self.best[:index], self.best[index] + 1, *self.best[index + 1 :])
            if not self._try(raised, longer=True):
                index += 1
            else:
                improved = True
        return improved
