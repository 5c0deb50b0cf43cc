"""A bisection: prove the two ends, search between them, prove the two neighbours that were found.

A verdict that counts is asked for twice, in two processes under two hash seeds: both ends, and both sides of the
change. When the two differ, nothing is concluded.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from specsim.errors import NondeterministicError, UsageError
from specsim.findings.bisect.revisions import History, Revision
from specsim.findings.bisect.search import find_change
from specsim.findings.bisect.verdicts import BisectQuestion, BisectState, RevisionVerdict
from specsim.lifting.cache import Cache
from specsim.tiers.process import HASH_SEEDS, Ask


class EndError(UsageError):
    """An end of the search that cannot be checked: exit code 125, where a wrong label is 2."""


@dataclass(frozen=True, slots=True)
class CheckedRevision:
    """One revision that was checked, and in how many seconds."""

    revision: Revision
    verdict: RevisionVerdict
    seconds: float


@dataclass(frozen=True, slots=True)
class FoundChange:
    """The change. `before` and `after` are neighbours but for `skipped`, which could not be checked; `steps` counts the
    verdicts.
    """

    before: CheckedRevision
    after: CheckedRevision
    skipped: tuple[CheckedRevision, ...]
    steps: int

    @property
    def what(self) -> str:
        """What `after` is."""
        return "first bad" if self.after.verdict.state is BisectState.BAD else "first fixed"

    @property
    def good(self) -> CheckedRevision:
        return self.before if self.before.verdict.state is BisectState.GOOD else self.after

    @property
    def bad(self) -> CheckedRevision:
        return self.after if self.good is self.before else self.before


def bisect(
    history: History,
    question: BisectQuestion,
    children: tuple[Ask, Ask],
    cache: Cache,
    on_step: Callable[[CheckedRevision], None],
) -> FoundChange:
    """Search a history, and when a merge is what was found, the branches that it brought. Raises as `Bisection.run`."""
    found = Bisection(history, question, children, cache, on_step).run()
    for branch in history.branches(found.after.revision) if not found.skipped else ():
        try:
            inner = bisect(branch, question, children, cache, on_step)
        except UsageError:  # where the branch left or where it ended, it is not as the search needs it
            continue
        return replace(inner, steps=found.steps + inner.steps)
    return found


class Bisection:
    """One search. `children` are two ways to ask, one for each of `HASH_SEEDS`."""

    def __init__(
        self,
        history: History,
        question: BisectQuestion,
        children: tuple[Ask, Ask],
        cache: Cache,
        on_step: Callable[[CheckedRevision], None],
    ) -> None:
        self._revisions = history.revisions
        self._states = (
            (BisectState.GOOD, BisectState.BAD) if history.good_is_older else (BisectState.BAD, BisectState.GOOD)
        )
        self._question = question
        self._children = children
        self._cache = cache
        self._on_step = on_step
        self._steps: dict[int, CheckedRevision] = {}
        self._twice: set[int] = set()
        self._count = 0

    def run(self) -> FoundChange:
        """Raises UsageError for labels that the verdicts contradict, EndError for an end that cannot be checked, and
        NondeterministicError for a verdict that was not the same twice.
        """
        self._prove_ends()
        change = find_change(len(self._revisions), self._has_changed)
        for place in (change.before, change.after):
            self._confirm(place)
        steps = self._steps
        skipped = tuple(steps[place] for place in change.skipped)
        return FoundChange(steps[change.before], steps[change.after], skipped, self._count)

    def _prove_ends(self) -> None:
        last = len(self._revisions) - 1
        bad_is_first = self._states[0] is BisectState.BAD
        # The bad end first: it shows what the others are asked for.
        ends = [0, last] if bad_is_first else [last, 0]
        for place in ends:
            revision = self._revisions[place]
            revision.open(self._cache)
            verdict = self._check_twice(place)
            if verdict.state is BisectState.SKIPPED:
                label = "--bad" if place == ends[0] else "--good"
                raise EndError(f"{label} {revision.name} cannot be checked: {verdict.why}", "give another end")
        seen = [self._steps[place].verdict for place in ends]
        bad, good = (self._revisions[place].name for place in ends)
        if seen[0].state is BisectState.GOOD and seen[1].state is BisectState.BAD:
            raise UsageError(
                f"--bad {bad} is good ({seen[0].why}) and --good {good} is bad ({seen[1].why})",
                f"swap them: --good {bad} --bad {good}",
            )
        if seen[1].state is BisectState.BAD:
            raise UsageError(
                f"--good {good} is bad, too: {seen[1].why}", "give a revision that does not have the defect"
            )
        if seen[0].state is BisectState.GOOD:
            raise UsageError(f"--bad {bad} is good, too: {seen[0].why}", "give a revision that has the defect")

    def _has_changed(self, place: int) -> bool | None:
        revision = self._revisions[place]
        started = time.monotonic()
        try:
            revision.open(self._cache)
            verdict = self._question.check(revision.target, self._children[0], HASH_SEEDS[0])
        except UsageError as error:
            verdict = RevisionVerdict(BisectState.SKIPPED, error.problem)
        self._take(place, verdict, started, 1)
        return None if verdict.state is BisectState.SKIPPED else verdict.state is self._states[1]

    def _check_twice(self, place: int) -> RevisionVerdict:
        started = time.monotonic()
        target = self._revisions[place].target
        with ThreadPoolExecutor(2) as pool:
            one, two = pool.map(lambda n: self._question.check(target, self._children[n], HASH_SEEDS[n]), (0, 1))
        self._hold_equal(place, one, two)
        self._twice.add(place)
        self._take(place, one, started, 2)
        return one

    def _confirm(self, place: int) -> None:
        if place in self._twice:
            return
        target = self._revisions[place].target
        again = self._question.check(target, self._children[1], HASH_SEEDS[1])
        self._count += 1
        self._twice.add(place)
        self._hold_equal(place, self._steps[place].verdict, again)

    def _hold_equal(self, place: int, one: RevisionVerdict, two: RevisionVerdict) -> None:
        if one.state is not two.state:
            name = self._revisions[place].name
            raise NondeterministicError(f"{name} was {one.state.text} ({one.why}), then {two.state.text} ({two.why})")

    def _take(self, place: int, verdict: RevisionVerdict, started: float, count: int) -> None:
        step = CheckedRevision(self._revisions[place], verdict, time.monotonic() - started)
        self._steps[place] = step
        self._count += count
        self._on_step(step)
