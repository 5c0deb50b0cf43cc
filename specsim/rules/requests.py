"""What a request claims while it runs and when it has ended, and what its abort does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

from specsim.verdict import Rule, Severity
from specsim.world.kv import BeyondRow
from specsim.world.rule import Check, Lie, Run, Violation, first_of_each, notes
from specsim.world.scheduler import Launch, RequestState, Seen
from specsim.world.users import Moment


class LengthsInOrder(Check):
    """A running request claims no more positions than it has slots for, and these fit its row."""

    rule = Rule(
        "I01",
        "lengths-in-order",
        "0 <= committed <= allocated <= row width for every request and session that owns a row",
        Severity.WRONG_RESULT,
    )
    defects = (
        Lie(
            "claims more than it has",
            "load",
            lambda load: replace(load, lengths=tuple((rid, 9, 1) for rid, _claimed, _has in load.lengths)),
        ),
        notes("has more than its row", BeyondRow("0", 60, 83, 80)),
    )

    def while_running(self, moment: Moment) -> Iterator[Violation]:
        width = moment.load.row_width
        for rid, claimed, allocated in moment.load.lengths:
            if not 0 <= claimed <= allocated <= width and claimed != -1:
                yield self._disorder(rid, claimed, allocated, width)

    def after(self, run: Run) -> Iterator[Violation]:
        yield from first_of_each(
            self._disorder(found.rid, found.claimed, found.allocated, found.width, note.when)
            for found, note in run.noted(BeyondRow)
        )

    def _disorder(self, rid: str, claimed: int, allocated: int, width: int, when: int = -1) -> Violation:
        actual = f"{claimed} claimed, {allocated} allocated"
        is_last = allocated > width  # what is behind the row is the next one's
        return self.broken("running", rid, f"claimed <= allocated <= {width}", actual, when=when, is_last=is_last)


class FinishedClaim(Check):
    """It may claim every token but its last. A turn of a session may claim that, too: the launch in flight at its end
    writes it, and if there was none, the next turn's read shows it.
    """

    rule = Rule(
        "I64",
        "finished-claim",
        "a finished request claims no position whose KV was not computed",
        Severity.WRONG_RESULT,
    )
    defects = (
        Lie("claims too much", "requests", lambda states: [replace(s, committed=s.committed + 1) for s in states]),
    )

    def at_rest(self, run: Run) -> Iterator[Violation]:
        of_sessions = {turn.rid for turn in run.users.workload.turns if turn.session}
        for state in run.started.requests():
            yield from self.claim(state, self.facts.keeps_last and state.rid in of_sessions)

    def claim(self, state: RequestState, keeps_last: bool) -> Iterator[Violation]:
        if state.reason in ("", "abort"):
            return
        honest = len(state.prompt) + len(state.outputs) - (0 if keeps_last else 1)
        if state.committed > honest:
            yield self.broken("committed", state.rid, f"a claim of {honest} positions", state.committed)


def _with_nine_more_verifications(seen: Seen) -> Seen:
    late = Launch(10_000, "decode", tuple(dict.fromkeys(rid for launch in seen.launches for rid in launch.rids)))
    return replace(seen, launches=[*seen.launches, *[late] * 9])


class RunAfterEnd(Check):
    """Of one that was aborted some verifications may be under way: with EAGLE and overlap three. Whose user was told of
    an end is in no launch from then on.
    """

    rule = Rule(
        "I65",
        "run-after-end",
        "a request that was aborted or has ended is run no more, but for what was under way",
        Severity.WRONG_RESULT,
    )

    defects = (Lie("ignores aborts and ends", "seen", _with_nine_more_verifications),)

    def after(self, run: Run) -> Iterator[Violation]:
        aborted, ended = run.users.aborted, run.users.ended_at
        for launch in run.started.seen.launches:
            for rid in launch.rids:
                if launch.iteration > ended.get(rid, launch.iteration) and rid not in aborted:
                    yield self.broken("end", rid, "no launch behind its end", launch.line, when=launch.iteration)
                    return

    def at_rest(self, run: Run) -> Iterator[Violation]:
        aborted, most = run.users.aborted, self.facts.late
        launched = Counter(
            rid
            for launch in run.started.seen.launches
            for rid in launch.rids
            if launch.kind == "decode" and rid in aborted and launch.iteration > aborted[rid]
        )
        for rid, count in launched.items():
            if count > most:
                yield self.broken("abort", rid, f"{most} more verifications at most", count)
