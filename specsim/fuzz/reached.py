"""What the runs of a batch reached, by names.

    "pair:..."  a request's state and an event (`specsim.engine.rules.coverage`)
    "mark:..."  an interleaving, a step of a life, an option that is on (`specsim.engine.marks`)
    "rule:..."  a rule that applied to the run, of those that do not apply to most (`Check.applies`)

Marks cost nothing. Pairs and rules are read from the log, which takes some hundredths of a run's time: the log of one
run in `LOGS_EVERY` is read, and pairs and rules are counted over those.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from collections import Counter

from specsim.engine.rules.coverage import pairs, rules_applied
from specsim.tiers.accounting.schedules import RanSchedule

LOGS_EVERY = 16


def features_of(schedule: RanSchedule) -> list[str]:
    """The names of everything that a schedule reached, sorted."""
    names = _marks(schedule) + _of_the_log(schedule)
    return sorted(names)


def _marks(schedule: RanSchedule) -> list[str]:
    return [f"mark:{mark}" for mark in schedule.run.marks]


def _of_the_log(schedule: RanSchedule) -> list[str]:
    found = ["pair:" + " ".join(map(str, pair)) for pair in pairs(schedule.run)]
    return found + [f"rule:{rule}" for rule in rules_applied(schedule.scenario, schedule.run)]


class Reached:
    """What the runs of a batch reached: `features` are numbers of runs by name."""

    def __init__(self) -> None:
        self.features: Counter[str] = Counter()
        self._runs = 0

    def take(self, schedule: RanSchedule) -> None:
        """Count what a run reached."""
        self.features.update(_marks(schedule))
        if self._runs % LOGS_EVERY == 0:
            self.features.update(_of_the_log(schedule))
        self._runs += 1
