"""Users that decide at the start of each iteration, by its chooser, what they do in it: an exploration goes through all
that they may do. What they did is a workload like any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from specsim.choices.chooser import RecordingChooser, replayed
from specsim.world.scheduler import Pause
from specsim.world.users import ITERATIONS_MAX, Users
from specsim.world.workload import Workload

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specsim.choices.chooser import Chooser
    from specsim.choices.exhaustive import Scripted
    from specsim.world.scheduler import Setup, StartedScheduler, Turn
    from specsim.world.users import Moment

LATER = ITERATIONS_MAX + 2
"""When a request comes of which nobody has decided yet that it comes."""
ENUMERATED = frozenset({"retract", "arrives later", "abort", "accept"})
"""Labels of what an exploration goes through: what users decide, and how many drafts are right. All else, such as how
far a device is behind, is the simplest.
"""


def enumerating(script: Scripted) -> RecordingChooser:
    """A chooser of what an exploration goes through, by a script."""
    return RecordingChooser(lambda bound, label: script.choose(bound if label in ENUMERATED else 1, label))


@dataclass(frozen=True, slots=True)
class Bounds:
    """How often users of a schedule may have a request come an iteration later than it could, abort one, and have all
    that run give back what they have: a pause of one iteration. Without a bound on delays there is no end of schedules.
    """

    delays: int = 0
    aborts: int = 0
    retractions: int = 0


class ChosenUsers(Users):
    """Requests come in their order, a later turn of a session after the end of the one before. `workload` is what users
    have done so far. They choose by `chooser`, which may be replaced at any time.
    """

    def __init__(
        self,
        started: StartedScheduler,
        turns: Sequence[Turn],
        bounds: Bounds,
        setup: Setup,
        watch: Callable[[Moment], None],
        chooser: Chooser | None = None,
    ) -> None:
        super().__init__(started, Workload(tuple(replace(turn, at=LATER) for turn in turns)), setup, watch)
        self.chooser: Chooser = chooser or replayed(())
        self.delays, self.aborts, self.retractions = bounds.delays, bounds.aborts, bounds.retractions

    @property
    def is_over(self) -> bool:
        """Whether nothing is left to be done, by users or the scheduler."""
        return not (self._to_send or self._open) and self._resumes_at < 0 and self.started.is_idle

    @property
    def left(self) -> tuple[Any, ...]:
        """What decides what they may still do, and what they are to be told: plain data."""
        to_send = [turn.rid for turn in self._to_send]
        is_paused = self._resumes_at >= 0
        budgets = (self.delays, self.aborts, self.retractions)
        return (budgets, to_send, sorted(self.aborted), sorted(self.refusable), list(self._open), is_paused)

    def _decide(self, iteration: int) -> None:
        choose = self.chooser.choose
        is_running = self._resumes_at < 0 and bool(self.started.load().lengths)
        if self.retractions and is_running and choose(2, "retract"):
            self.retractions -= 1
            pause = Pause(iteration, 1, retracts=True)
            self._to_pause.append(pause)
            self.workload = replace(self.workload, pauses=(*self.workload.pauses, pause))
        is_held_back = not self.started.facts.hears and (bool(self._to_pause) or self._resumes_at > iteration)
        for turn in () if is_held_back else tuple(self._to_send):
            before = self._before(turn)
            if before is not None and before.rid not in self.ended_at:
                continue
            if self.delays and choose(2, "arrives later"):
                self.delays -= 1
                break
            self._replace(turn, at=iteration - (self.ended_at[before.rid] if before is not None else 0))
        for turn in self.workload.turns:
            is_here = turn.rid in self.sent_at or turn.at != LATER
            is_open = is_here and turn.rid not in self.ended_at and turn.rid not in self.aborted
            if self.aborts and is_open and choose(2, "abort"):
                self.aborts -= 1
                self._replace(turn, abort=iteration - self.sent_at.get(turn.rid, iteration))

    def _replace(self, turn: Turn, **changes: Any) -> None:
        changed = replace(turn, **changes)
        self.workload = replace(self.workload, turns=tuple(changed if t is turn else t for t in self.workload.turns))
        self._to_send = [changed if t is turn else t for t in self._to_send]
