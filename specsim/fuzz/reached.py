"""What the runs of a batch reached, by names, and which of their tapes are kept.

    "pair:..."  a request's state and an event (`specsim.rules.coverage`)
    "mark:..."  an interleaving, a step of a life, an option that is on (`specsim.engine.marks`)
    "rule:..."  a rule that the run gave something to judge, of those that most runs do not
    (`specsim.rules.applicability`)

Marks cost nothing. Pairs and rules are read from the log, which takes some hundredths of a run's time, so that of runs
whose strategy does not learn from them one in `LOGS_EVERY` is read. How many runs reached a pair is then how many of
those.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import replace

from specsim.fuzz.work import KeptTape
from specsim.rules.applicability import rules_applied
from specsim.rules.coverage import pairs
from specsim.tiers.accounting.schedules import Schedule

LOGS_EVERY = 16


def features_of(schedule: Schedule) -> list[str]:
    """The names of everything that a schedule reached, sorted."""
    names = _marks(schedule) + _of_the_log(schedule)
    return sorted(names)


def _marks(schedule: Schedule) -> list[str]:
    return [f"mark:{mark}" for mark in schedule.run.marks]


def _of_the_log(schedule: Schedule) -> list[str]:
    found = ["pair:" + " ".join(map(str, pair)) for pair in pairs(schedule.run)]
    return found + [f"rule:{rule}" for rule in rules_applied(schedule.scenario, schedule.run)]


class Reached:
    """What the runs of a batch reached. `features` are numbers of runs by name; `tapes` those that reached what no run
    of the batch did before, each with the names of that.
    """

    def __init__(self, *, learns: bool) -> None:
        self.features: Counter[str] = Counter()
        self.tapes: list[KeptTape] = []
        self._every = 1 if learns else LOGS_EVERY
        self._runs = 0

    def take(self, schedule: Schedule) -> None:
        """Note what a run reached."""
        names = _marks(schedule)
        if self._runs % self._every == 0:
            names += _of_the_log(schedule)
        self._runs += 1
        new = [name for name in names if name not in self.features]
        self.features.update(names)
        if new and self._every == 1:
            self.tapes.append(KeptTape(schedule.tape, tuple(sorted(new)), len(schedule.run.log)))


def worth_keeping(tapes: Iterable[KeptTape], is_known: Callable[[str], bool]) -> list[KeptTape]:
    """The tapes that reach something that neither is known nor an earlier one of them reaches, each with the names of
    that. One without features is kept: nobody knows what it reaches.
    """
    kept = []
    seen: set[str] = set()
    for tape in tapes:
        new = tuple(name for name in tape.features if name not in seen and not is_known(name))
        if new or not tape.features:
            seen.update(new)
            kept.append(replace(tape, features=new))
    return kept
