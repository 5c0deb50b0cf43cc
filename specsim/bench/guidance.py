"""What guidance is worth: schedules and CPU time until the slowest mutants are found, by the swarm and by `coverage`,
side by side in one run.

CPU time is that of the process that hunts, so other work on the machine changes it little; no hunt has more than
`SCHEDULES_MAX` schedules, and one that found nothing counts with all of them. It takes ten minutes of one core.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from statistics import mean, median
from typing import Any, NamedTuple

from specsim.mutants.hunt import Hunted, hunt_in_child
from specsim.mutants.load import find

NAME = "guidance"
# The ten mutants of docs/mutants.md that take the most CPU time in the median, slowest first.
SLOWEST = ("I10", "C05", "C10", "B02-penalties", "A05-unaligned", "C14", "I04-mask", "E01", "H06", "I04-copy")
STRATEGIES = ("swarm", "coverage")
SEEDS = 20
SCHEDULES_MAX = 2000
_SECONDS, _SCHEDULES = "CPU s", "schedules"


def run(_device: str, rounds: int | None, _full: bool = False) -> list[dict[str, Any]]:
    """Hunt with `rounds` seeds. Returns the `benchmarks` entries of the result format, one for each mutant and unit:
    the ratio is to the swarm, and below 1 is sooner. `hunts` are what the median is of, by seed, and `found` how many
    ended with a finding.
    """
    entries = []
    for mutant_id in SLOWEST:
        hunt = partial(hunt_in_child, find(mutant_id), seeds=rounds or SEEDS, schedules_max=SCHEDULES_MAX)
        with ThreadPoolExecutor(len(STRATEGIES)) as beside:  # at the same time: what else runs here slows both
            both = dict(
                zip(STRATEGIES, beside.map(lambda name, hunt=hunt: hunt(strategy=name), STRATEGIES), strict=True)
            )
        entries += [entry(mutant_id, _SECONDS, both), entry(mutant_id, _SCHEDULES, both)]
    return entries


def entry(mutant_id: str, unit: str, both: dict[str, Hunted]) -> dict[str, Any]:
    """One entry of the result format."""
    values = {
        name: [hunt.cpu_seconds if unit == _SECONDS else hunt.schedules for hunt in hunted.hunts]
        for name, hunted in both.items()
    }
    peers = [
        {
            "name": name,
            "timing": "cpu",
            "median": median(values[name]),
            "ratio": median(values[name]) / median(values["swarm"]),
            "not_run": None,
            "hunts": values[name],
            "found": hunted.found,
        }
        for name, hunted in both.items()
    ]
    return {"name": NAME, "unit": unit, "shape": {"mutant": mutant_id}, "peers": peers}


class _Row(NamedTuple):
    """A mutant's hunts by one strategy."""

    seconds: list[float]
    schedules: list[float]
    found: int

    def __str__(self) -> str:
        missed = len(self.seconds) - self.found
        not_found = f", {missed} not found" if missed else ""
        return f"{median(self.seconds):.2f} / {mean(self.seconds):.2f}{not_found} | {median(self.schedules):g}"


def page(entries: Sequence[dict[str, Any]]) -> str:
    """docs/guidance.md, of what `run` gave."""
    by = {(each["shape"]["mutant"], each["unit"]): each["peers"] for each in entries}
    mutants = list(dict.fromkeys(mutant for mutant, _ in by))
    rows = [
        [
            _Row(seconds["hunts"], schedules["hunts"], seconds["found"])
            for seconds, schedules in zip(by[mutant, _SECONDS], by[mutant, _SCHEDULES], strict=True)
        ]
        for mutant in mutants
    ]
    drawn, guided = (sum(median(row[number].seconds) for row in rows) for number in (0, 1))
    drawn_mean, guided_mean = (sum(mean(row[number].seconds) for row in rows) for number in (0, 1))
    drawn_count, guided_count = (sum(median(row[number].schedules) for row in rows) for number in (0, 1))
    medians = sum(median(two.seconds) < median(one.seconds) for one, two in rows)
    pairs = [pair for one, two in rows for pair in zip(one.seconds, two.seconds, strict=True)]
    lines = [
        "# What guidance is worth",
        "",
        f"The ten slowest mutants of [the table](mutants.md), hunted by the swarm and by `coverage`, with"
        f" {len(rows[0][0].seconds)} seeds",
        "each, in one run. CPU time is that of the process that hunts.",
        "",
        f"Sums of medians: the swarm {drawn:.2f} CPU seconds and {drawn_count:g} schedules, `coverage` {guided:.2f} and"
        f" {guided_count:g}",
        f"({guided / drawn:.2f} times the CPU time). `coverage` is sooner in the median of {medians} of {len(rows)}"
        f" mutants, and in {sum(two < one for one, two in pairs)} of {len(pairs)} hunts.",
        "",
        "| mutant | swarm: CPU s, median / mean | schedules | coverage: CPU s, median / mean | schedules | times |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for mutant, (one, two) in zip(mutants, rows, strict=True):
        lines.append(f"| {mutant} | {one} | {two} | {median(two.seconds) / median(one.seconds):.2f} |")
    cells = f"{drawn:.2f} / {drawn_mean:.2f} | {drawn_count:g} | {guided:.2f} / {guided_mean:.2f} | {guided_count:g}"
    lines.append(f"| sum | {cells} | {guided / drawn:.2f} |")
    return "\n".join([*lines, "", _TEXT])


_TEXT = """\
The median of 20 hunts is itself off by a quarter or so, whatever is measured: a single row says little, the sum more.

The first schedules of `coverage`, and a third of the others, are the swarm's. The rest have the scenario of a kept
schedule, or of two of them mixed label by label, with some choices drawn anew. Kept is what showed rare things: pairs
of a state and an event, marks, rules that were asked (`specsim/check/applied.py`), and which two of those met.

What shaped it, on these mutants:

- A scenario that shows one of them once shows it again in 15 to 100 % of schedules that are drawn for it, half or more
  for most. So scenarios are kept, and what comes after them is drawn; keeping that too found less.
- Changing a tape at places and cutting two of them at one position, as `coverage` did before, hit these mutants about
  half as often as the swarm: a choice more or less shifts the meaning of all that follow. Labels keep it.
- Long schedules show more, so what is worth most tends to be long: worth is set against the work, or averaged.
- What the first few schedules showed is all rare: descendants of those alone found less than drawn ones.
- Learning takes half a millisecond of a schedule's six and a half. Weighing all that is kept at every schedule took
  more than it gave.

The swarm stays the default of `specsim check`: its runs do not depend on one another, and any of them is made again
alone. Campaigns draw both.

`specsim bench guidance --write docs/guidance.md` writes this page.
"""
