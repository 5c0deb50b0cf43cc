"""The mutants: each a line of the model, what it becomes, and the report of the bug that it re-creates.

A mutant re-creates the effect of a bug in the model's own convention, which is seldom the line that was wrong in an
engine. Ids follow the catalogue of bugs that the project started from; a word behind one tells apart two halves or
variants of a bug. References are "repository#number" of issues and pull requests.
"""

from __future__ import annotations

from specsim.selfcheck import device_mutants, host_mutants, stream_mutants
from specsim.selfcheck.mutant import Mutant

__all__ = ["CATALOGUE", "Mutant"]

CATALOGUE: tuple[Mutant, ...] = tuple(
    sorted(host_mutants.MUTANTS + stream_mutants.MUTANTS + device_mutants.MUTANTS, key=lambda mutant: mutant.id)
)
