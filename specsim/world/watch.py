"""What must be true of a scheduler while it runs, at the start of each of its iterations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specsim.engine.rules.schedulers import ADMISSION
from specsim.world import rules
from specsim.world.rules import Violation

if TYPE_CHECKING:
    from specsim.world.scheduler import Facts, Load, Setup


class Watch:
    """Looks at the lengths of running requests, and at whether a request waits for nothing."""

    def __init__(self, setup: Setup, facts: Facts) -> None:
        self.violations: list[Violation] = []
        # Each running request may be some steps ahead, and each page begun.
        self._margin = setup.rows * (facts.ahead * setup.draft_tokens + setup.page_size)
        self._patience = facts.patience
        self._waiting: set[str] = set()
        self._ended = 0
        self._armed = False
        self._quiet = 0
        self._iteration = -1

    def at(self, ended: int, load: Load, paused: bool) -> None:
        """`ended` requests that ran have had their last answer. One that is aborted while it waits leaves no batch."""
        self._iteration += 1
        self._lengths(load)
        self._admission(ended, load, paused)

    def _lengths(self, load: Load) -> None:
        for rid, claimed, allocated in load.lengths:
            if not 0 <= claimed <= allocated <= load.row_width and claimed != -1:
                actual = f"{claimed} claimed, {allocated} allocated"
                self._broken(rules.LENGTHS.id, "running", rid, f"claimed <= allocated <= {load.row_width}", actual)

    def _admission(self, ended: int, load: Load, paused: bool) -> None:
        """A batch that was full is so no more when one of its requests has ended. From then on whoever fits beside all
        that run, should all answers come to their longest, is taken, one after the other.
        """
        waiting = {rid for rid, _length in load.waiting}
        admitted = bool(self._waiting - waiting)
        self._armed = ended > self._ended or (self._armed and not admitted)
        self._waiting, self._ended = waiting, ended
        need = max((length for _rid, length in load.waiting), default=0) + load.running + self._margin
        fits = bool(waiting) and load.free_rows > 0 and need <= load.free
        if not (self._armed and fits) or paused or load.chunked:
            self._quiet = 0
            return
        self._quiet += 1
        if self._quiet == self._patience:
            rid = load.waiting[0][0]
            actual = f"it waits for {self._patience} iterations beside {load.free} free slots and {load.free_rows} rows"
            self._broken(ADMISSION.id, "waiting", rid, "a request that fits is admitted", actual)

    def _broken(self, rule: str, part: str, who: str, expected: str, actual: str) -> None:
        if not any((seen.rule, seen.part) == (rule, part) for seen in self.violations):
            self.violations.append(
                Violation(rule=rule, part=part, who=who, expected=expected, actual=actual, when=self._iteration)
            )
