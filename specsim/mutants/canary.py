"""The canary: a check that must fail. Every mutant is put into the model, and the simulator must find it.

A simulator that has gone blind passes everything; this is what notices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from specsim.mutants.catalogue import CATALOGUE, Mutant
from specsim.mutants.hunt import Hunted, hunt_in_child

SCHEDULES_MAX = 3000


def sing(mutants: Sequence[Mutant] = CATALOGUE, schedules_max: int = SCHEDULES_MAX) -> Iterator[Hunted]:
    """Hunt each mutant with one seed and at most `schedules_max` schedules. One that is not found has `found` 0."""
    for mutant in mutants:
        yield hunt_in_child(mutant, seeds=1, schedules_max=schedules_max)
