"""The table of mutants: by which rules each is found, after how many schedules and CPU seconds, on how small a
schedule, and what would not be found without a rule. `specsim mutants --write` commits it as a page.

Every hunt runs in a process of its own; what a table says, CPU seconds apart, does not depend on how many there are at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from statistics import median
from threading import Lock
from typing import Any, NamedTuple

from specsim.deadline import NEVER, Deadline
from specsim.selfcheck.catalogue import Mutant, bug_of
from specsim.selfcheck.hunt import (
    EXCEPTION,
    Hunted,
    InterruptedHuntError,
    Smallest,
    hunt_in_child,
    joined,
    smallest_in_child,
)


class Effort(NamedTuple):
    """How long a mutant is hunted: so many seeds, so many schedules of each at most."""

    seeds: int
    schedules: int


SEEDS = 20
SCHEDULES_MAX = 20000
SEEDS_OF_A_CHILD = 5
# What is seen of tokens and of the content of KV alone, without a look at lengths, owners or counters.
CONTENT_ORACLE = ("I05", "I40")


class Efforts(NamedTuple):
    """How long the whole table takes: a mutant, a mutant with rules switched off (whoever is not found so soon
    survives), and the schedules of which the smallest is looked for.
    """

    hunt: Effort = Effort(SEEDS, SCHEDULES_MAX)
    survival: Effort = Effort(2, 1000)
    smallest: int = 300


WHOLE = Efforts()


def efforts_with(seeds: int, schedules: int) -> Efforts:
    """The whole table's efforts with so many seeds, and no more schedules anywhere."""
    return Efforts(
        Effort(seeds, schedules),
        Effort(min(seeds, WHOLE.survival.seeds), min(schedules, WHOLE.survival.schedules)),
        min(schedules, WHOLE.smallest),
    )


@dataclass(frozen=True, slots=True)
class Without:
    """A rule, the mutants that it found, those that no other rule found, and those of them that survive without it."""

    rule: str
    found: list[str]
    alone: list[str]
    survivors: list[str]


@dataclass(frozen=True, slots=True)
class Table:
    """All that is known of a set of mutants. `smallest` is None for a mutant that was not found within its effort;
    `oracle` is the content oracle alone; `blind` are the blind mutants.
    """

    efforts: Efforts
    hunted: list[Hunted]
    smallest: Mapping[str, Smallest | None]
    without: list[Without]
    oracle: list[Hunted]
    blind: list[Hunted]
    cpu_seconds: float


def hunt_all(
    mutants: Sequence[Mutant],
    *,
    seeds: int = SEEDS,
    schedules_max: int = SCHEDULES_MAX,
    jobs: int = 1,
    without: Collection[str] = (),
    only: Collection[str] = (),
    first_seed: int = 0,
    on_done: Callable[[int, int], None] = lambda _done, _of: None,
    stopped: Callable[[], bool] = lambda: False,
    deadline: Deadline = NEVER,
) -> list[Hunted]:
    """Hunt every mutant, `jobs` processes at a time. After `stopped` no hunt begins, and at the `deadline` those that
    run end; the mutants and seeds that were not hunted by then are left out.
    """
    with _Hunters(jobs, on_done, stopped, deadline) as hunters:
        asked = hunters.hunt(
            mutants,
            Effort(seeds, schedules_max),
            without=without,
            only=only,
            first_seed=first_seed,
        )
        return asked()


def build(
    mutants: Sequence[Mutant],
    blind: Sequence[Mutant],
    *,
    jobs: int,
    efforts: Efforts = WHOLE,
    on_done: Callable[[int, int], None] = lambda _done, _of: None,
) -> Table:
    """The whole table, with `jobs` processes at a time. It calls `on_done(done, of)` as children end."""
    with _Hunters(jobs, on_done) as hunters:
        asked = hunters.hunt(mutants, efforts.hunt)
        blind_asked = hunters.hunt(blind, efforts.hunt)
        oracle_asked = hunters.hunt(mutants, efforts.survival, only=CONTENT_ORACLE)
        smallest = {mutant.id: hunters.shrink(mutant, efforts.smallest) for mutant in mutants}
        hunted = asked()
        # A mutant that two rules found is still found when one is off: only those that one rule found are hunted again.
        again = {
            rule: hunters.hunt(
                [each.mutant for each in hunted if each.rules == [rule]], efforts.survival, without=(rule,)
            )
            for rule in sorted({rule for each in hunted for rule in each.rules} - {EXCEPTION})
        }
        without = [
            Without(rule, _ids(e for e in hunted if rule in e.rules), _ids(alone := ask()), seen_by_nobody(alone))
            for rule, ask in again.items()
        ]
        return Table(
            efforts,
            hunted,
            {mutant_id: future.result() for mutant_id, future in smallest.items()},
            without,
            oracle_asked(),
            blind_asked(),
            hunters.cpu_seconds,
        )


class _Hunters:
    """A pool of threads, each of which waits for a child."""

    def __init__(
        self,
        jobs: int,
        on_done: Callable[[int, int], None],
        stopped: Callable[[], bool] = lambda: False,
        deadline: Deadline = NEVER,
    ) -> None:
        self._stopped = stopped
        self._deadline = deadline
        self._pool = ThreadPoolExecutor(jobs)
        self._on_done = on_done
        self._lock = Lock()
        self._asked = 0
        self._done = 0
        self.cpu_seconds = 0.0

    def __enter__(self) -> _Hunters:
        return self

    def __exit__(self, kind: object, *_error: object) -> None:
        self._pool.shutdown(wait=True, cancel_futures=kind is not None)

    def hunt(
        self,
        mutants: Sequence[Mutant],
        effort: Effort,
        *,
        without: Collection[str] = (),
        only: Collection[str] = (),
        first_seed: int = 0,
    ) -> Callable[[], list[Hunted]]:
        """Begin to hunt these; what is returned waits for them. The seeds of one mutant are cut into several children,
        so that the one that is hardest to find does not keep all waiting.
        """

        def one(mutant: Mutant, first: int) -> Hunted | None:
            if self._stopped() or self._deadline.is_over:
                return None
            try:
                hunted = hunt_in_child(
                    mutant,
                    seeds=min(SEEDS_OF_A_CHILD, effort.seeds - first),
                    first_seed=first_seed + first,
                    schedules_max=effort.schedules,
                    without=without,
                    only=only,
                    deadline=self._deadline,
                )
            except InterruptedHuntError:
                return None
            self._ended(sum(hunt.cpu_seconds for hunt in hunted.hunts))
            return hunted

        firsts = range(0, effort.seeds, SEEDS_OF_A_CHILD)
        futures = [[self._pool.submit(one, mutant, first) for first in firsts] for mutant in mutants]
        self._asked += len(firsts) * len(mutants)

        def hunted() -> list[Hunted]:
            ended = ([part.result() for part in parts] for parts in futures)
            whole = ([part for part in parts if part is not None] for parts in ended)
            return [joined(parts) for parts in whole if parts]

        return hunted

    def shrink(self, mutant: Mutant, schedules: int) -> Future[Smallest | None]:
        def one() -> Smallest | None:
            found = smallest_in_child(mutant, schedules=schedules)
            self._ended(found.cpu_seconds if found else 0.0)
            return found

        self._asked += 1
        return self._pool.submit(one)

    def _ended(self, cpu_seconds: float) -> None:
        with self._lock:
            self.cpu_seconds += cpu_seconds
            self._done += 1
            self._on_done(self._done, self._asked)


def _ids(hunted: Iterable[Hunted]) -> list[str]:
    return [each.mutant.id for each in hunted]


def seen_by_nobody(hunted: Sequence[Hunted]) -> list[str]:
    """The mutants that no seed found."""
    return [each.mutant.id for each in hunted if not each.found]


def to_json(hunted: Hunted) -> dict[str, Any]:
    """A mutant, and how many seeds found it, after how many schedules and CPU seconds."""
    mutant = hunted.mutant
    return {
        "id": mutant.id,
        "entry": bug_of(mutant),
        "title": mutant.title,
        "references": list(mutant.references),
        "module": mutant.module,
        "line": mutant.line,
        "becomes": mutant.becomes,
        "seeds": len(hunted.hunts),
        "found": hunted.found,
        "rules": hunted.rules,
        "schedules": {"median": hunted.schedules_median, "worst": hunted.schedules_worst},
        "cpu_seconds": {"median": hunted.cpu_seconds_median, "worst": hunted.cpu_seconds_worst},
    }


def table_to_json(table: Table) -> dict[str, Any]:
    """The whole table; a mutant's row has its smallest schedule."""
    rows = []
    for hunted in table.hunted:
        smallest = table.smallest[hunted.mutant.id]
        shown = {"requests": smallest.requests, "events": smallest.events} if smallest else None
        rows.append({**to_json(hunted), "smallest": shown})
    return {
        "seeds": table.efforts.hunt.seeds,
        "efforts": {"survival": table.efforts.survival._asdict()},
        "cpu_seconds": round(table.cpu_seconds, 1),
        "mutants": rows,
        "without": {
            each.rule: {"found": each.found, "alone": each.alone, "survivors": each.survivors} for each in table.without
        },
        "content_oracle": {"rules": list(CONTENT_ORACLE), "survivors": seen_by_nobody(table.oracle)},
        "blind": {
            "mutants": [to_json(each) for each in table.blind],
            "found": sum(bool(each.found) for each in table.blind),
        },
    }


def row(hunted: Hunted) -> tuple[str, ...]:
    """The cells of a mutant: id, found of seeds, rules, schedules and CPU seconds in the median and at worst."""
    return (
        hunted.mutant.id,
        f"{hunted.found}/{len(hunted.hunts)}",
        " ".join(hunted.rules) or "none",
        f"{hunted.schedules_median:g}",
        f"{hunted.schedules_worst}",
        f"{hunted.cpu_seconds_median:.3f}",
        f"{hunted.cpu_seconds_worst:.3f}",
    )


COLUMNS = ("mutant", "found", "rules", "schedules, median", "worst", "CPU s, median", "worst")


def spread(smallest: Mapping[str, Smallest | None]) -> tuple[float, int, float, int]:
    """Over all mutants: requests of the smallest schedule in the median and at most, and events."""
    requests = [each.requests for each in smallest.values() if each]
    events = [each.events for each in smallest.values() if each]
    return (median(requests), max(requests), median(events), max(events)) if events else (0, 0, 0, 0)
