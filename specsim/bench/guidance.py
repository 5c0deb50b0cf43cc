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

from specsim.deadline import NEVER, SPENT, Deadline, TimeSpent
from specsim.selfcheck.hunt import Hunted, hunt_in_child
from specsim.selfcheck.mutation import find

NAME = "guidance"
# The ten mutants of docs/mutants.md that take the most CPU time in the median, slowest first.
SLOWEST = ("I10", "C05", "C10", "B02-penalties", "A05-unaligned", "C14", "I04-mask", "E01", "H06", "I04-copy")
STRATEGIES = ("swarm", "coverage")
SEEDS = 20
SCHEDULES_MAX = 2000
_SECONDS, _SCHEDULES = "CPU s", "schedules"


def run(_device: str, rounds: int | None, _full: bool = False, deadline: Deadline = NEVER) -> list[dict[str, Any]]:
    """Hunt with `rounds` seeds. Returns the `benchmarks` entries of the result format, one for each mutant and unit:
    the ratio is to the swarm, and below 1 is sooner. `hunts` are what the median is of, by seed, and `found` how many
    ended with a finding. Raises TimeSpent at the `deadline`.
    """
    entries = []
    for mutant_id in SLOWEST:
        hunt = partial(
            hunt_in_child, find(mutant_id), seeds=rounds or SEEDS, schedules_max=SCHEDULES_MAX, deadline=deadline
        )
        with ThreadPoolExecutor(len(STRATEGIES)) as beside:  # at the same time: what else runs here slows both
            asked = {name: beside.submit(hunt, strategy=name) for name in STRATEGIES}
        if deadline.is_over:
            raise TimeSpent(SPENT)
        both = {name: future.result() for name, future in asked.items()}
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

Guidance does not beat the swarm here. So the swarm stays the default of `specsim check`, the strategy that learns stays
a simple one, and campaigns draw both: each is sooner for some mutants ([by strategy](mutants.md)).

## Why, and what was tried

- What makes these mutants slow is the scenario, not the schedule. Of one that shows a mutant, 15 to 100 % of new
  schedules show it again, more than half for most. Each needs two or three features to meet, which 1 in 100 of drawn
  scenarios have; nothing that the model shows before tells which.
- What there is to reach is soon reached: 300 drawn schedules show nine in ten of the pairs, marks, rules and meetings
  of two of them that 1,500 do.
- Scenarios mixed label by label, with one choice in twelve drawn anew, all that follows drawn, and parents by rarity (a
  feature that n schedules showed is worth 1 / n; the sum over the root of the events, or the mean) was the best of a
  dozen variants: in the same test 840 schedules where the swarm needs 855, but 6.98 CPU seconds where the swarm needs
  5.27: what shows rare things is long, and learning takes half a millisecond of a schedule's six and a half. It is not
  kept: three times the code, and no sooner.
- Parents by rarity alone, more of them, fewer drawn schedules, no mixing, keeping what follows the scenario, choices by
  what their schedules were worth on average, and features switched on more often were each sooner for some mutants by
  up to ten times (C10) and later for others by as much (A05-unaligned). None was sooner in the sum.

`specsim bench guidance --write docs/guidance.md` writes this page.
"""
