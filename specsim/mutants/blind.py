"""Further mutants, written by someone who has read neither the rules nor what checks them, after these were frozen.

They are scored apart: the rules and the mutants of the catalogue were written side by side, these tell how much of that
carries over. One that is not found is a result, and never makes a test or a command fail.

Whoever adds one reads `specsim/sim` and `specsim/memory`, and nothing of `specsim/check`. Ids are Z01, Z02 and so on;
`references` may be empty; everything else is as `specsim.mutants.mutant` says. None is changed after its first hunt.
"""

from __future__ import annotations

from specsim.mutants.mutant import Mutant

BLIND: tuple[Mutant, ...] = ()
