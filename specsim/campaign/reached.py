"""What the runs of a batch reached, by names: "mark:..." of the engine's marks, "pair:..." of a state and an event,
"rule:..." of the rules that broke.

Marks cost nothing. Pairs are read from the log, which takes some hundredths of a run's time, so that of runs whose
strategy does not learn from them one in `PAIRS_EVERY` is read. How many runs reached a pair is then how many of those.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from collections import Counter

from specsim.campaign.work import KeptTape
from specsim.check.coverage import pairs
from specsim.check.suite import Schedule

PAIRS_EVERY = 16


class Reached:
    """`features` are numbers of runs by their name; `tapes` those that reached something that no run before did."""

    def __init__(self, *, learns: bool) -> None:
        self.features: Counter[str] = Counter()
        self.tapes: list[KeptTape] = []
        self._every = 1 if learns else PAIRS_EVERY
        self._runs = 0

    def take(self, schedule: Schedule) -> None:
        """Note what a run reached."""
        run = schedule.run
        names = [f"mark:{mark}" for mark in run.marks]
        names += sorted({f"rule:{violation.rule.id}" for violation in run.violations})
        if self._runs % self._every == 0:
            names += ["pair:" + " ".join(map(str, pair)) for pair in pairs(run)]
        self._runs += 1
        new = [name for name in names if name not in self.features]
        self.features.update(names)
        if new and self._every == 1:
            self.tapes.append(KeptTape(schedule.tape, tuple(sorted(new)), len(run.log)))
