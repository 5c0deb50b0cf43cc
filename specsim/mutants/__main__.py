"""A table of the mutants: in which rules each is found first, and after how many schedules and CPU seconds.

python -m specsim.mutants [SEEDS [SCHEDULES_MAX [STRATEGY ...]]]

With strategies, or `all` of them, a table of the CPU time to the first finding, a column for each.
"""

from __future__ import annotations

import sys
from statistics import geometric_mean

from specsim.explore.strategies import STRATEGIES
from specsim.mutants.catalogue import CATALOGUE
from specsim.mutants.hunt import hunt_in_child

SEEDS = 20
SCHEDULES_MAX = 5000


def compare(seeds: int, schedules_max: int, strategies: list[str]) -> int:
    """Print for each mutant and strategy the median CPU ms to the first finding, and how many seeds found it."""
    print(f"{'mutant':14}" + "".join(f"  {name:>16}" for name in strategies))
    missed = 0
    medians: dict[str, list[float]] = {name: [] for name in strategies}
    for mutant in CATALOGUE:
        cells = []
        for name in strategies:
            hunted = hunt_in_child(mutant, seeds=seeds, schedules_max=schedules_max, strategy=name)
            missed += hunted.found < seeds
            medians[name].append(1000 * hunted.cpu_seconds_median)
            cells.append(f"{hunted.schedules_median:g} {medians[name][-1]:.0f} ms {hunted.found}/{seeds}")
        print(f"{mutant.id:14}" + "".join(f"  {cell:>16}" for cell in cells), flush=True)
    print(f"{'geometric mean':14}" + "".join(f"  {f'{geometric_mean(medians[n]):.1f} ms':>16}" for n in strategies))
    print(f"Medians over {seeds} seeds: schedules, CPU time, seeds that found it in {schedules_max} schedules.")
    return 1 if missed else 0


def main(arguments: list[str]) -> int:
    seeds = int(arguments[0]) if arguments else SEEDS
    schedules_max = int(arguments[1]) if len(arguments) > 1 else SCHEDULES_MAX
    if len(arguments) > 2:
        return compare(seeds, schedules_max, list(STRATEGIES) if arguments[2:] == ["all"] else arguments[2:])
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
