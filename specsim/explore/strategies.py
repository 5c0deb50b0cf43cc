"""Strategies: which tape is run next.

`swarm`     every choice from a seeded generator
`pct`       probabilistic concurrency testing: agents have priorities, which change at a few drawn moments
`delays`    the dullest schedule, but for a few decisions that are drawn
`coverage`  scenarios of schedules that showed rare things are kept, changed and mixed
`portfolio` all of them, each with the same share of the work

A schedule is made from (seed, strategy, index) and what was learnt from the schedules before it; what is learnt
depends on tapes and what they showed alone, never on a clock: the same seed gives the same schedules.

Some decisions are *contests*: an agent goes now, or the host goes on without it. PCT and delay bounding speak of
those; the other choices (the scenario, trees, acceptance) are drawn as the swarm draws them.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import dataclass
from itertools import chain, repeat
from typing import NamedTuple, Protocol

from specsim.explore.chooser import RecordingChooser, Tape, stream

Source = Callable[[int, str], int]
HOST = "host"
FIRST_GUESS = 32  # contests of a schedule, before one was seen
PATIENCE = 8  # refusals without progress after which an agent goes whatever its priority: the host spins
KEPT_MAX = 64  # schedules that have descendants
RIVALS = 6  # of which one is a parent, or gives way
DRAWN_FIRST = 32  # schedules, before what they showed says what is rare
DRAWN_AFRESH = 3  # one in so many schedules after them
DRAWN_ANEW = 12  # one in so many choices of a scenario
ONE = 1 << 20  # the worth of a feature that one schedule showed


class Contest(NamedTuple):
    """A choice between an agent and the host: the value that lets the agent go now, and the one that does not."""

    agent: str
    goes: int
    waits: int


class Strategy(Protocol):
    """Gives choosers, and is told what came of each before the next is asked for."""

    name: str

    def chooser(self, index: int) -> RecordingChooser:
        """The chooser of schedule `index`."""
        ...

    def learn(self, tape: Tape, features: Collection[Hashable], cost: int) -> None:
        """What the schedule consumed, what it showed, and how much work it was (its events)."""
        ...


class Swarm:
    """Every choice is drawn: the default."""

    name = "swarm"

    def __init__(self, seed: int, _contests: Mapping[str, Contest]) -> None:
        self._seed = seed

    def chooser(self, index: int) -> RecordingChooser:
        return RecordingChooser(stream(self._seed, "schedules", index))

    def learn(self, tape: Tape, features: Collection[Hashable], cost: int) -> None:
        pass


class Pct:
    """Priorities, and `depth - 1` moments at which the agent that would go next falls below all others.

    With n agents and k contests a schedule, a defect that needs `depth` ordering constraints is hit with a probability
    of at least 1 / (n * k ** (depth - 1)), by every schedule anew, given the other choices that it needs. n counts the
    host. k is the most that an earlier schedule had. An agent that was refused `PATIENCE` times with nothing but
    contests in between goes: a host that spins is taken to yield.

    Source: Burckhardt, Kothari, Musuvathi, Nagarakatte, "A Randomized Scheduler with Probabilistic Guarantees of
    Finding Bugs", ASPLOS 2010, section 3.
    """

    name = "pct"

    def __init__(self, seed: int, contests: Mapping[str, Contest], depth: int = 3) -> None:
        self._seed = seed
        self._contests = contests
        self._agents = [HOST, *sorted({contest.agent for contest in contests.values()})]
        self._depth = depth
        self._most = FIRST_GUESS
        self._seen = 0

    @property
    def bound(self) -> float:
        """The probability with which a schedule hits a defect of this depth, at least."""
        return 1 / float(len(self._agents) * self._most ** (self._depth - 1))

    def chooser(self, index: int) -> RecordingChooser:
        draw = stream(self._seed, self.name, index)
        order = self._agents[:]
        priority = {order.pop(draw(len(order), "priority")): self._depth + place for place in range(len(order))}
        moments = {draw(self._most, "moment"): low for low in range(1, self._depth)}
        self._seen = 0
        contests = self._contests
        refused: Counter[str] = Counter()

        def source(bound: int, label: str) -> int:
            contest = contests.get(label)
            if contest is None:
                refused.clear()
                return draw(bound, label)
            low = moments.get(self._seen)
            self._seen += 1
            goes = priority[contest.agent] > priority[HOST]
            if low is not None:
                priority[contest.agent if goes else HOST] = low
                goes = priority[contest.agent] > priority[HOST]
            if not goes:
                refused[label] += 1
                if refused[label] < PATIENCE:
                    return contest.waits
            del refused[label]
            return contest.goes

        return RecordingChooser(source)

    def learn(self, tape: Tape, features: Collection[Hashable], cost: int) -> None:
        self._most = max(self._most, self._seen)


class DelayBounded:
    """The dullest schedule (choice 0 of every contest) but for at most `delays` contests, which go the other way.

    Of k contests, every schedule within that bound is drawn with a probability of at least
    1 / ((delays + 1) * k ** delays), given its other choices: there are at most k ** delays of them, in place of 2 ** k
    schedules. k is the most that an earlier schedule had.

    Source: Emmi, Qadeer, Rakamaric, "Delay-Bounded Scheduling", POPL 2011, section 3.
    """

    name = "delays"

    def __init__(self, seed: int, contests: Mapping[str, Contest], delays: int = 3) -> None:
        self._seed = seed
        self._contests = contests
        self._delays = delays
        self._most = FIRST_GUESS
        self._seen = 0

    def chooser(self, index: int) -> RecordingChooser:
        draw = stream(self._seed, self.name, index)
        moments = {draw(self._most, "moment") for _ in range(draw(self._delays + 1, "delays"))}
        self._seen = 0
        contests = self._contests

        def source(bound: int, label: str) -> int:
            contest = contests.get(label)
            if contest is None:
                return draw(bound, label)
            self._seen += 1
            return contest.goes + contest.waits if self._seen - 1 in moments else 0

        return RecordingChooser(source)

    def learn(self, tape: Tape, features: Collection[Hashable], cost: int) -> None:
        self._most = max(self._most, self._seen)


@dataclass(slots=True)
class _Kept:
    """The scenario of a schedule, as the values of each label in order; what the schedule showed, and its work; and
    what that was worth, in two ways, when it was last weighed.
    """

    scenario: dict[str, list[int]]
    features: tuple[Hashable, ...]
    cost: int
    worth: tuple[int, int] = (0, 0)


class CoverageGuided:
    """The first schedules are the swarm's, and so is a third of those after them. The others have the scenario of a
    kept one, or of two of them mixed label by label, with some choices drawn anew; what comes after it is drawn.

    A schedule is kept for what it showed, and gives way to one that showed rarer things. A feature that n schedules
    showed is worth 1 / n; a schedule, by turns, the mean of its features, and their sum over the root of its work: the
    first favours what is rare altogether, the second what shows many rare things at once.

    Source: energy by rarity is that of Boehme, Pham, Roychoudhury, "Coverage-based Greybox Fuzzing as Markov Chain",
    CCS 2016; to mix by labels in place of positions is this project's.
    """

    name = "coverage"

    def __init__(self, seed: int, contests: Mapping[str, Contest]) -> None:
        self._seed = seed
        self._contests = contests
        self._given: deque[Tape] = deque()
        self._kept: list[_Kept] = []
        self._shown: Counter[Hashable] = Counter()
        self._labels: list[str] = []
        self._turn = 0

    def start(self, tapes: Collection[Tape]) -> None:
        """Run these tapes as they are, before anything else."""
        self._given.extend(tapes)

    def chooser(self, index: int) -> RecordingChooser:
        if self._given:
            tape = iter(self._given.popleft())
            return self.noted(lambda _bound, _label: next(tape, 0), follows=True)
        draw = stream(self._seed, self.name, index)
        if len(self._kept) < DRAWN_FIRST or not draw(DRAWN_AFRESH, "afresh"):
            return self.noted(stream(self._seed, "schedules", index))  # the swarm's of that number
        one = self._parent(draw)
        other = self._parent(draw) if draw(2, "mixed") else one
        return self.noted(_child(draw, one, other), draw, follows=True)

    def noted(self, source: Source, then: Source | None = None, *, follows: bool = False) -> RecordingChooser:
        """A chooser whose labels are noted up to the first contest, for what `learn` is told next. The choices are
        those of `source`, from that contest on those of `then`, if there is one.
        """
        labels: list[str] = []
        self._labels = labels
        contests = self._contests
        after = then or source

        def noting(bound: int, label: str) -> int:
            if label in contests:
                chooser.go_on(after)
                return after(bound, label)
            labels.append(label)
            return source(bound, label)

        chooser = RecordingChooser(noting, follows=follows)
        return chooser

    def _parent(self, draw: Source) -> dict[str, list[int]]:
        rivals = [self._kept[draw(len(self._kept), "rival")] for _ in range(RIVALS)]
        way = draw(2, "worth")
        return max(rivals, key=lambda kept: kept.worth[way]).scenario

    def learn(self, tape: Tape, features: Collection[Hashable], cost: int) -> None:
        self._shown.update(features)
        scenario: dict[str, list[int]] = {}
        for label, value in zip(self._labels, chain(tape, repeat(0)), strict=False):
            scenario.setdefault(label, []).append(value)
        kept = _Kept(scenario, tuple(features), cost)
        self._weigh(kept)
        if len(self._kept) < KEPT_MAX:
            self._kept.append(kept)
            return
        self._turn = (self._turn + 1) % KEPT_MAX
        self._weigh(self._kept[self._turn])
        rivals = [(self._turn + place) % KEPT_MAX for place in range(RIVALS)]
        way = self._turn % 2
        self._kept[min(rivals, key=lambda place: self._kept[place].worth[way])] = kept

    def _weigh(self, kept: _Kept) -> None:
        """In whole numbers: a sum of them does not depend on its order."""
        shown = self._shown
        total = sum([ONE // shown[feature] for feature in kept.features])
        kept.worth = total // max(1, len(kept.features)), total * total // max(1, kept.cost)


def _child(draw: Source, one: dict[str, list[int]], other: dict[str, list[int]]) -> Source:
    """Choices of a scenario that is a child of two."""
    used: Counter[str] = Counter()

    def source(bound: int, label: str) -> int:
        at = used[label]
        used[label] = at + 1
        if not draw(DRAWN_ANEW, "anew"):
            return draw(bound, label)
        values = (one if one is other or draw(2, "of whom") else other).get(label, ())
        return values[at] if at < len(values) else draw(bound, label)

    return source


class Portfolio:
    """The strategy that has had the least work goes next. All of them learn from every schedule's features."""

    name = "portfolio"

    def __init__(self, seed: int, contests: Mapping[str, Contest]) -> None:
        self._guided = CoverageGuided(seed, contests)
        drawn: list[Strategy] = [make(seed, contests) for make in (Swarm, Pct, DelayBounded)]
        self._strategies = [*drawn, self._guided]
        self._work = [0] * len(self._strategies)
        self._turn = 0

    def start(self, tapes: Collection[Tape]) -> None:
        """Run these tapes as they are, when it is the turn of `coverage`."""
        self._guided.start(tapes)

    def chooser(self, index: int) -> RecordingChooser:
        self._turn = self._work.index(min(self._work))
        chooser = self._strategies[self._turn].chooser(index)
        if self._strategies[self._turn] is self._guided:
            return chooser
        return self._guided.noted(chooser.choose)

    def learn(self, tape: Tape, features: Collection[Hashable], cost: int) -> None:
        self._work[self._turn] += cost
        self._strategies[self._turn].learn(tape, features, cost)
        if self._strategies[self._turn] is not self._guided:
            self._guided.learn(tape, features, cost)


STRATEGIES: dict[str, Callable[[int, Mapping[str, Contest]], Strategy]] = {
    "swarm": Swarm,
    "pct": Pct,
    "delays": DelayBounded,
    "coverage": CoverageGuided,
    "portfolio": Portfolio,
}


class ExtensionError(Exception):
    """A strategy or chooser that is not ours raised, or did not give a number."""


def guarded(strategy: Strategy, index: int) -> RecordingChooser:
    """The strategy's chooser of schedule `index`; ExtensionError for whatever it raises."""
    try:
        choose = strategy.chooser(index).choose
    except Exception as error:
        raise ExtensionError(f"chooser({index}) raised {type(error).__name__}: {error}") from error

    def source(bound: int, label: str) -> int:
        try:
            value = choose(bound, label)
        except Exception as error:
            raise ExtensionError(f"choose({bound}, {label!r}) raised {type(error).__name__}: {error}") from error
        if type(value) is not int:
            raise ExtensionError(f"choose({bound}, {label!r}) gave {value!r}, which is no int")
        return value

    return RecordingChooser(source)
