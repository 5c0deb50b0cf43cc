"""Strategies: which tape is run next.

`swarm`   every choice from a seeded generator
`pct`     probabilistic concurrency testing: agents have priorities, which change at a few drawn moments
`delays`  the simplest schedule, but for a few decisions that are drawn

A schedule is made from (seed, strategy, index) and what was learnt from the schedules before it, never from a clock:
the same seed gives the same schedules.

Strategies guided by coverage found bugs later than the swarm (docs/guidance.md).

Some decisions are *contests*: an agent goes now, or the host goes on without it. PCT and delay bounding speak of
those; the other choices (the scenario, trees, acceptance) are drawn as the swarm draws them.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Mapping
from typing import NamedTuple, Protocol

from specsim.choices.chooser import RecordingChooser, Tape, stream

Source = Callable[[int, str], int]
HOST = "host"
FIRST_GUESS = 32  # contests of a schedule, before one was seen
PATIENCE = 8  # refusals without progress after which an agent goes whatever its priority: the host spins


class Contest(NamedTuple):
    """A choice between an agent and the host: the value that lets the agent go now, and the one that does not."""

    agent: str
    goes: int
    waits: int


class Strategy(Protocol):
    """Gives choosers, and learns what came of each before it gives the next."""

    name: str

    def chooser(self, index: int) -> RecordingChooser:
        """The chooser of schedule `index`."""
        ...

    def learn(self, tape: Tape, features: Collection[Hashable], cost: int) -> None:
        """What the schedule consumed, nothing (`features` are empty), and how much work it was (its events)."""
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
    """The simplest schedule (choice 0 of every contest) but for at most `delays` contests, which go the other way.

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


STRATEGIES: dict[str, Callable[[int, Mapping[str, Contest]], Strategy]] = {
    "swarm": Swarm,
    "pct": Pct,
    "delays": DelayBounded,
}
