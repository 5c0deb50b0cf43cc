"""How long requests wait, and what their users are told of it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from specsim.verdict import Rule, Severity
from specsim.world.rule import Check, Lie, Run, Violation
from specsim.world.scheduler import Answer, Facts, Load, Setup
from specsim.world.users import Moment


class Admission(Check):
    """A batch that was full is so no more when one of its requests has ended. From then on whoever fits beside all that
    run, should all answers come to their longest, is admitted within some iterations, one after the other.
    """

    rule = Rule("S9", "admission", "a request that fits is admitted", Severity.METRIC)
    defects = (Lie("admits nobody", "load", lambda load: replace(load, waiting=(("waits", 1),))),)

    def __init__(self, setup: Setup, facts: Facts) -> None:
        super().__init__(setup, facts)
        # Each running request may be some steps ahead, and each page begun.
        self._margin = setup.rows * (facts.ahead * setup.draft_tokens + setup.page_size)
        self._waiting: set[str] = set()
        self._left = 0
        self._is_armed = False
        self._quiet = 0

    def while_running(self, moment: Moment) -> Iterator[Violation]:
        load = moment.load
        waiting = {rid for rid, _length in load.waiting}
        is_admitted = bool(self._waiting - waiting)
        self._is_armed = moment.left > self._left or (self._is_armed and not is_admitted)
        self._waiting, self._left = waiting, moment.left
        if not (self._is_armed and self._fits(load)) or moment.is_paused or load.chunked:
            self._quiet = 0
            return
        self._quiet += 1
        patience = self.facts.patience
        if self._quiet == patience:
            actual = f"it waits for {patience} iterations beside {load.free} free slots and {load.free_rows} rows"
            yield self.broken("waiting", load.waiting[0][0], self.rule.sentence, actual)

    def _fits(self, load: Load) -> bool:
        need = max((length for _rid, length in load.waiting), default=0) + load.running + self._margin
        return bool(load.waiting) and load.free_rows > 0 and need <= load.free


def _less_and_less(answer: Answer) -> Answer:
    parts = tuple(part._replace(waited=1.0 / number) for number, part in enumerate(answer.parts, 1))
    return replace(answer, parts=parts)


class QueueTime(Check):
    """With each part of an answer its user is told how long the request has waited. One that was retracted waits again,
    and so for longer.
    """

    rule = Rule("S10", "queue-time", "a request's time in the queue never goes backwards", Severity.METRIC)
    defects = (Lie("waits less and less", "answers", lambda answers: [_less_and_less(one) for one in answers]),)

    def at_rest(self, run: Run) -> Iterator[Violation]:
        for _told, answer in run.answered:
            waited = 0.0
            for part in answer.parts:
                if part.waited is not None and part.waited < waited:
                    expected, actual = f"{waited:.6f} seconds at least", f"{part.waited:.6f}"
                    yield self.broken("answer", answer.rid, expected, actual)
                    break
                waited = part.waited or waited
