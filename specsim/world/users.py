"""Sends the messages of a workload to a scheduler, each at its iteration, and sees when all is over."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from specsim.world.scheduler import ABORT

if TYPE_CHECKING:
    from specsim.world.scheduler import Load, Pause, Setup, StartedScheduler, Turn
    from specsim.world.workload import Workload

ITERATIONS_MAX = 1500
"""Far more than what a scheduler takes that goes on; a schedule that is not over then never ends."""


LATENCY = 2
"""Iterations in which what users send may still be on its way, or in a batch that was made before it."""


class Moment(NamedTuple):
    """The start of an iteration. `left` requests that ran have had their last answer by then: one that is aborted while
    it waits leaves no batch. `is_paused` says whether users have paused the scheduler, or let it go on just now, and
    `is_reset` whether they had its prefix cache reset.
    """

    iteration: int
    load: Load
    left: int
    is_paused: bool = False
    is_reset: bool = False

    @property
    def is_disturbed(self) -> bool:
        """Whether those that run may lose what they have."""
        return self.is_paused or self.is_reset


class PauseSpan(NamedTuple):
    """A pause, and the iterations in which it was asked for and ended, -1 for not yet."""

    pause: Pause
    start: int
    end: int = -1


class NeverEndsError(Exception):
    """A schedule that goes on without an end. `part` says what never ends, "request:running", and `who` is a request of
    it, "" for none.
    """

    def __init__(self, part: str, who: str, text: str) -> None:
        super().__init__(text)
        self.part, self.who = part, who


class Users:
    """Sends the messages of a workload, each at its iteration; a later turn of a session waits for the one before.
    `watch` is told of the start of each.
    """

    def __init__(
        self, started: StartedScheduler, workload: Workload, setup: Setup, watch: Callable[[Moment], None]
    ) -> None:
        self.started = started
        self.workload = workload
        self.iterations = 0
        self.aborted: dict[str, int] = {}
        """By request the iteration at which its abort was sent."""
        self.sent_at: dict[str, int] = {}
        self._to_send = list(workload.turns)
        self._open: list[str] = []
        self.ended_at: dict[str, int] = {}
        self._told: dict[str, list[int]] = {}
        """By request how many tokens its user has at the start of each iteration."""
        self.refusable: set[str] = set()
        """Turns that are to be refused, whose session may have timed out before them, or that come while the scheduler
        refuses them.
        """
        self._timed_out: set[str] = set()
        self._left = 0
        """Requests that have ended and had run, so that the batch has lost them."""
        self._idle = 0
        self._has_waited = False
        self.paused: list[PauseSpan] = []
        """The last one may go on."""
        self._to_pause = list(workload.pauses)
        self._resumes_at = -1
        """The iteration in which the scheduler is to go on again, -1 where it is not paused."""
        self.setup = setup
        self._watch = watch

    def at(self, iteration: int) -> Sequence[Any] | None:
        """The messages that arrive at an iteration, None when all is over."""
        self.iterations = iteration
        ended = self._ended(iteration)
        is_reset = any(0 < iteration - at <= LATENCY for at in self.workload.flushes)
        self._watch(Moment(iteration, self.started.load(), self._left, self._resumes_at >= iteration, is_reset))
        self._decide(iteration)
        if iteration in self.workload.leaps:
            self._leap()
        messages = self._pauses(iteration)
        paused = self._resumes_at >= 0
        holds_back = paused and not self.started.facts.hears
        for turn in [turn for turn in self._to_send if not holds_back and self._is_due(turn, iteration, ended)]:
            self._to_send.remove(turn)
            messages += self._sent(turn, iteration)
        for turn in self.workload.turns:
            if turn.abort >= 0 and self.sent_at.get(turn.rid, iteration + 1) + turn.abort == iteration:
                self.aborted.setdefault(turn.rid, iteration)
                messages.append(self.started.abort(turn.rid))
        if iteration in self.workload.abort_all:
            self._abort_all(iteration)
            messages.append(self.started.abort_all())
        messages += [self.started.flush() for at in self.workload.flushes if at == iteration]
        messages += self._closed(iteration, ended)
        is_idle = not messages and not self._to_send and not paused and self.started.is_idle
        self._idle = self._idle + 1 if is_idle else 0
        if self._idle > 2:
            if self._has_waited or not any(turn.session for turn in self.workload.turns):
                return None
            # A session that was closed while a turn ran is given back when the engine next looks for such.
            self._has_waited = True
            self._leap()
            self._idle = 0
        if iteration > ITERATIONS_MAX:
            raise self._never_ends(iteration, ended)
        return messages

    def _never_ends(self, iteration: int, ended: Collection[str]) -> NeverEndsError:
        """Who runs may be why others wait."""
        load = self.started.load()
        states = {rid: "waiting" for rid, _length in load.waiting} | {rid: "running" for rid, *_ in load.lengths}
        left = [rid for rid in self.sent_at if rid not in ended]
        who = next((rid for rid in left if states.get(rid) == "running"), left[0] if left else "")
        if self._resumes_at >= 0:
            return NeverEndsError("pause", who, f"the scheduler is not paused after {iteration} iterations")
        if not left:
            part, what = ("turn", "a turn was not sent") if self._to_send else ("idle", "the scheduler is not idle")
            return NeverEndsError(part, who, f"{what} after {iteration} iterations, and all requests have ended")
        kind = "session" if any(turn.session for turn in self.workload.turns if turn.rid == who) else "request"
        part, state = (f"{kind}:{states[who]}", states[who]) if who in states else (kind, "neither running nor waiting")
        return NeverEndsError(part, who, f"{who} is {state} after {iteration} iterations")

    def _decide(self, iteration: int) -> None:
        """For users that decide as they go: what they do in this iteration."""

    def _leap(self) -> None:
        self.started.leap(self.started.facts.leap)
        self._timed_out |= {turn.session for turn in self.workload.turns if turn.timeout and turn.session in self._open}

    def _pauses(self, iteration: int) -> list[Any]:
        """Messages that pause the scheduler, and that let it go on."""
        if self._resumes_at < 0:
            if not (self._to_pause and self._to_pause[0].at <= iteration):
                return []
            pause = self._to_pause.pop(0)
            self._resumes_at = iteration + pause.iterations
            self.paused.append(PauseSpan(pause, iteration))
            if pause.mode == ABORT:
                self._abort_all(iteration)
            return [self.started.pause(pause)]
        if not self.started.has_paused:
            self._resumes_at += 1
        if iteration < self._resumes_at:
            return []
        self._resumes_at = -1
        self.paused[-1] = self.paused[-1]._replace(end=iteration)
        return [self.started.resume()]

    def _abort_all(self, iteration: int) -> None:
        for rid in self.sent_at:
            self.aborted.setdefault(rid, iteration)

    def _ended(self, iteration: int) -> dict[str, int]:
        for answer in self.started.answers():
            told = self._told.setdefault(answer.rid, [0] * iteration)
            told.append(len(answer.tokens))
            if answer.reason and answer.rid not in self.ended_at:
                self.ended_at[answer.rid] = iteration
                self._left += bool(answer.tokens)
        return self.ended_at

    def told_by(self, rid: str, token: int) -> int:
        """The iteration in which a user was sent the token of that number."""
        return bisect_right(self._told.get(rid, ()), token) - 1

    def _is_due(self, turn: Turn, iteration: int, ended: dict[str, int]) -> bool:
        before = self._before(turn)
        if before is None:
            return turn.at <= iteration
        return before.rid in ended and ended[before.rid] + turn.at <= iteration

    def _before(self, turn: Turn) -> Turn | None:
        """The turn of its session before this one."""
        if not turn.session:
            return None
        turns = [other for other in self.workload.turns if other.session == turn.session]
        place = turns.index(turn)
        return turns[place - 1] if place else None

    def _sent(self, turn: Turn, iteration: int) -> list[Any]:
        messages = []
        if turn.session and turn.session not in self._open:
            self._open.append(turn.session)
            messages.append(self.started.open_session(turn.session, turn.timeout))
        elif turn.session in self._timed_out:
            self.refusable.add(turn.rid)
        if turn.refused or (self._resumes_at >= 0 and self.paused[-1].pause.refuses):
            self.refusable.add(turn.rid)
        self.sent_at[turn.rid] = iteration
        messages.append(self.started.generate(turn))
        return messages

    def _closed(self, iteration: int, ended: dict[str, int]) -> list[Any]:
        """Messages that close the sessions whose turns are over, or that are closed while one runs."""
        over = []
        for name in self._open:
            turns = [turn for turn in self.workload.turns if turn.session == name]
            early = [turn for turn in turns if turn.close >= 0 and turn.rid in self.sent_at]
            if any(self.sent_at[turn.rid] + turn.close <= iteration for turn in early):
                self._to_send = [turn for turn in self._to_send if turn.session != name]
                over.append(name)
            elif all(turn.rid in ended for turn in turns):
                over.append(name)
        for name in over:
            self._open.remove(name)
        return [self.started.close_session(name) for name in over]
