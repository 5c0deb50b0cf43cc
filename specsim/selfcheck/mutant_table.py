"""The table of mutants: by which rules each is found, and after how many schedules. `specsim mutants --write` commits
it as a page.

Every hunt runs in a process of its own; what a table says does not depend on how many there are at
a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any

from specsim.deadline import NEVER, Deadline
from specsim.selfcheck.catalogue import Mutant, bug_of
from specsim.selfcheck.hunt import Hunted, InterruptedHuntError, hunt_in_child

SEEDS = 3
SCHEDULES_MAX = 1000
SCHEDULES_OF_SOURCE = 420  # of a mutant of a target's own source
COLUMNS = ("mutant", "found", "rules", "schedules, median", "worst")


def hunt_all(
    mutants: Sequence[Mutant],
    *,
    seeds: int = SEEDS,
    schedules_max: int = SCHEDULES_MAX,
    jobs: int = 1,
    first_seed: int = 0,
    on_done: Callable[[int, int], None] = lambda _done, _of: None,
    stopped: Callable[[], bool] = lambda: False,
    deadline: Deadline = NEVER,
) -> list[Hunted]:
    """Hunt every mutant, `jobs` processes at a time. After `stopped` no hunt begins, and at the `deadline` those that
    run end; the mutants and seeds that were not hunted by then are left out.
    """
    done = count(1)

    def hunt(mutant: Mutant) -> Hunted | None:
        if stopped() or deadline.is_over:
            return None
        try:
            hunts = hunt_in_child(
                mutant, seeds=seeds, first_seed=first_seed, schedules_max=schedules_max, deadline=deadline
            )
        except InterruptedHuntError:
            return None
        on_done(next(done), len(mutants))
        return Hunted(mutant, hunts)

    pool = ThreadPoolExecutor(jobs)
    try:
        return [hunted for hunted in pool.map(hunt, mutants) if hunted is not None]
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def found_by_nobody(hunted: Sequence[Hunted]) -> list[str]:
    """The mutants that no seed found."""
    return [each.mutant.id for each in hunted if not each.found]


def to_json(hunted: Hunted) -> dict[str, Any]:
    """A mutant, and how many seeds found it, after how many schedules."""
    mutant = hunted.mutant
    return {
        "id": mutant.id,
        "entry": bug_of(mutant),
        "title": mutant.title,
        "references": list(mutant.references),
        "line": mutant.line,
        "becomes": mutant.becomes,
        "seeds": len(hunted.hunts),
        "found": hunted.found,
        "rules": hunted.rules,
        "schedules": {"median": hunted.schedules_median, "worst": hunted.schedules_worst},
    }


def row(hunted: Hunted) -> tuple[str, ...]:
    """The cells of a mutant: id, found of seeds, rules, schedules in the median and at worst."""
    return (
        hunted.mutant.id,
        f"{hunted.found}/{len(hunted.hunts)}",
        " ".join(hunted.rules) or "none",
        f"{hunted.schedules_median:g}",
        f"{hunted.schedules_worst}",
    )
