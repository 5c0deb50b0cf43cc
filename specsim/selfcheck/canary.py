"""The canary: a check that must fail. Known bugs are put into the reference engine, and schedules must find each.

A simulator that has gone blind passes everything; this is what notices. It is short, for every change: the bugs that
the project began with, and one of every other class. `specsim mutants` hunts them all.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from specsim.selfcheck.catalogue import CATALOGUE, Mutant, bug_of
from specsim.selfcheck.hunt import Hunted, hunt_in_child

SCHEDULES_MAX = 200
# The bugs that the project began with, those of which the reference engine has mutants.
SEED_BUGS = ("A01", "A02", "D01", "D02", "G01")


def sample() -> tuple[Mutant, ...]:
    """The first mutant of each of `SEED_BUGS`, and of every other class."""
    chosen = {bug_of(mutant): mutant for mutant in reversed(CATALOGUE) if bug_of(mutant) in SEED_BUGS}
    others = {mutant.id[0]: mutant for mutant in reversed(CATALOGUE) if mutant.id[0] not in {bug[0] for bug in chosen}}
    return tuple(sorted((*chosen.values(), *others.values()), key=lambda mutant: mutant.id))


def sing(mutants: Sequence[Mutant] | None = None, schedules_max: int = SCHEDULES_MAX) -> Iterator[Hunted]:
    """Hunt mutants, those of `sample` if no others are given, with one seed and at most `schedules_max` schedules each.
    One that is not found has `found` 0.
    """

    def hunt(mutant: Mutant) -> Hunted:
        return Hunted(mutant, hunt_in_child(mutant, seeds=1, schedules_max=schedules_max))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        yield from pool.map(hunt, sample() if mutants is None else mutants)
