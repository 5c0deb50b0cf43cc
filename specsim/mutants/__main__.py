"""A table of the mutants: in which rules each is found first, and after how many schedules and CPU seconds.

python -m specsim.mutants [SEEDS [SCHEDULES_MAX]]
"""

from __future__ import annotations

import sys

from specsim.mutants.catalogue import CATALOGUE
from specsim.mutants.hunt import hunt_in_child

SEEDS = 20
SCHEDULES_MAX = 5000


def main(arguments: list[str]) -> int:
    seeds = int(arguments[0]) if arguments else SEEDS
    schedules_max = int(arguments[1]) if len(arguments) > 1 else SCHEDULES_MAX
    print(f"{'mutant':14}  found  schedules  CPU ms  rules")
    missed = 0
    for mutant in CATALOGUE:
        hunted = hunt_in_child(mutant, seeds=seeds, schedules_max=schedules_max)
        missed += hunted.found < seeds
        print(
            f"{mutant.id:14}  {hunted.found:>2}/{seeds:<2}  {hunted.schedules_median:>9g}"
            f"  {1000 * hunted.cpu_seconds_median:>6.1f}  {' '.join(hunted.rules)}",
            flush=True,
        )
    print(f"Medians over {seeds} seeds, at most {schedules_max} schedules each.")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
