"""What guidance is worth: schedules and CPU time until the slowest mutants are found, by the swarm and by the
strategies that learn from coverage, side by side in one run.

CPU time is that of the process that hunts, so other work on the machine changes it little; no hunt has more than
`SCHEDULES_MAX` schedules, and one that found nothing counts with all of them. `python -m specsim.bench.guidance FILE`
writes the page docs/guidance.md; it takes ten minutes of one core.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from specsim.errors import UsageError
from specsim.mutants.hunt import Hunted, hunt_in_child
from specsim.mutants.load import find

NAME = "guidance"
# The ten mutants of docs/mutants.md that take the most CPU time in the median, slowest first.
SLOWEST = ("I10", "C05", "C10", "B02-penalties", "A05-unaligned", "C14", "I04-mask", "E01", "H06", "I04-copy")
STRATEGIES = ("swarm", "coverage")
SEEDS = 20
SCHEDULES_MAX = 2000


def hunts(seeds: int, first_seed: int = 0) -> dict[str, list[Hunted]]:
    """By strategy, the hunt of each mutant in `SLOWEST`."""
    found: dict[str, list[Hunted]] = {name: [] for name in STRATEGIES}
    for mutant_id in SLOWEST:
        for name in STRATEGIES:
            hunted = hunt_in_child(
                find(mutant_id), seeds=seeds, schedules_max=SCHEDULES_MAX, first_seed=first_seed, strategy=name
            )
            found[name].append(hunted)
    return found


def run(_device: str, rounds: int | None, _full: bool = False) -> list[dict[str, Any]]:
    """Hunt with `rounds` seeds. Returns the `benchmarks` entries of the result format, one for each mutant and unit:
    the ratio is to the swarm, and below 1 is sooner.
    """
    found = hunts(rounds or SEEDS)
    entries = []
    for number, mutant_id in enumerate(SLOWEST):
        for unit, of in (("CPU ms", _cpu_ms), ("schedules", _schedules)):
            medians = {name: of(found[name][number]) for name in STRATEGIES}
            peers = [
                {"name": name, "timing": "cpu", "median": value, "ratio": value / medians["swarm"], "not_run": None}
                for name, value in medians.items()
            ]
            entries.append({"name": NAME, "unit": unit, "shape": {"mutant": mutant_id}, "peers": peers})
    return entries


def page(found: dict[str, list[Hunted]]) -> str:
    """docs/guidance.md."""
    seeds = len(found["swarm"][0].hunts)
    totals = {name: sum(map(_cpu_ms, of)) / 1000 for name, of in found.items()}
    sooner = sum(
        _cpu_ms(guided) < _cpu_ms(drawn) for drawn, guided in zip(found["swarm"], found["coverage"], strict=True)
    )
    lines = [
        "# What guidance is worth",
        "",
        f"The ten slowest mutants of [the table](mutants.md), hunted by the swarm and by `coverage`, {seeds} seeds each,",
        "in one run. CPU time is that of the hunting process; cells are the median and the mean of all seeds.",
        "",
        f"In total (sums of medians) `coverage` takes {totals['coverage']:.2f} CPU seconds, the swarm"
        f" {totals['swarm']:.2f}; it is sooner",
        f"in {sooner} of {len(SLOWEST)}.",
        "",
        f"| mutant | {' | '.join(f'{name}: CPU s, median / mean' for name in found)} "
        f"| {' | '.join(f'{name}: schedules' for name in found)} | CPU time, coverage : swarm |",
        f"| --- |{' --- |' * (2 * len(found) + 1)}",
    ]
    for number, mutant_id in enumerate(SLOWEST):
        of = [hunted[number] for hunted in found.values()]
        ratio = _cpu_ms(found["coverage"][number]) / _cpu_ms(found["swarm"][number])
        lines.append(
            f"| {mutant_id} | {' | '.join(map(_seconds, of))} | {' | '.join(map(_counts, of))} | {ratio:.2f} |"
        )
    cells = [f"{sum(map(_cpu_ms, of)) / 1000:.2f} / {sum(map(_mean, of)):.2f}" for of in found.values()]
    counts = [f"{sum(map(_schedules, of)):g} / {sum(map(_mean_schedules, of)):.0f}" for of in found.values()]
    lines.append(f"| sum | {' | '.join(cells)} | {' | '.join(counts)} | {totals['coverage'] / totals['swarm']:.2f} |")
    return "\n".join([*lines, "", _TEXT])


_TEXT = """\
"""


def _cpu_ms(hunted: Hunted) -> float:
    return 1000 * hunted.cpu_seconds_median


def _schedules(hunted: Hunted) -> float:
    return hunted.schedules_median


def _mean(hunted: Hunted) -> float:
    return sum(hunt.cpu_seconds for hunt in hunted.hunts) / len(hunted.hunts)


def _mean_schedules(hunted: Hunted) -> float:
    return sum(hunt.schedules for hunt in hunted.hunts) / len(hunted.hunts)


def _seconds(hunted: Hunted) -> str:
    missed = len(hunted.hunts) - hunted.found
    return f"{hunted.cpu_seconds_median:.2f} / {_mean(hunted):.2f}" + (f", {missed} not found" if missed else "")


def _counts(hunted: Hunted) -> str:
    return f"{hunted.schedules_median:g} / {_mean_schedules(hunted):.0f}"


def main(arguments: list[str]) -> int:
    if len(arguments) != 1:
        raise UsageError("no file to write", "give one: python -m specsim.bench.guidance docs/guidance.md")
    Path(arguments[0]).write_text(page(hunts(SEEDS)), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
