"""The seam of rules: what a rule reads of a schedule, and what it says when it does not hold.

A rule is one class of `specsim.rules`: its statement, its check, and defects that it finds. What it reads are records
of what users asked for, what they were told, what the scheduler says of its state, and what the world noted while it
ran. What is expected comes from a user's wish, the setup or the contents of memory, never from the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

import msgspec

from specsim.world.scheduler import Noted

if TYPE_CHECKING:
    from specsim.verdict import Rule
    from specsim.world.scheduler import Answer, Facts, Pools, Setup, StartedScheduler, Turn
    from specsim.world.users import Moment, Users

R = TypeVar("R")


def signature_of(rule: str, part: str) -> str:
    """The signature of a finding: the same on every release. `part` has no line numbers."""
    return f"scheduler:{rule}:{part}"


class Violation(msgspec.Struct, frozen=True, kw_only=True):
    """A rule that a schedule breaks. `part` is what is to blame, "request:penalty" or a function, without line numbers
    and in words that stay as they are: it is the end of the signature. `who` is the request; `where` is FILE:LINE or
    ""; `harmless` says that no token was wrong; `at` are the operations that are to blame, in a schedule that was
    recorded; `slot` of the full pool was read for `position`, -1 for none; `when` is the iteration in which it was
    seen, -1 for at the end; `wait` the one that a race lacks, "STREAM for STREAM". From one that `is_last` on, others'
    rows and slots are written: what comes after it says nothing, and is left out.
    """

    rule: str
    part: str
    who: str
    expected: str
    actual: str
    where: str = ""
    details: tuple[str, ...] = ()
    harmless: bool = False
    at: tuple[int, ...] = ()
    slot: int = -1
    position: int = -1
    when: int = -1
    wait: str = ""
    is_last: bool = False

    @property
    def signature(self) -> str:
        return signature_of(self.rule, self.part)


class Told(NamedTuple):
    """A turn that was sent, its whole prompt, and its answer as far as there is one. With `follows_abort` an earlier
    turn of its session was aborted, which is none of its prompt.
    """

    turn: Turn
    prompt: tuple[int, ...]
    answer: Answer | None
    follows_abort: bool = False

    @property
    def kind(self) -> str:
        return "session" if self.turn.session else "request"


@dataclass
class Run:
    """A schedule that is over: the scheduler as it is then, what users did, and the `error` that ended it, None where
    nothing runs any more.
    """

    started: StartedScheduler
    users: Users
    error: Exception | None = None

    def noted(self, kind: type[R]) -> Iterator[tuple[R, Noted]]:
        """The records of a kind that the world noted while it ran, in their order."""
        return ((note.what, note) for note in self.started.seen.noted if isinstance(note.what, kind))

    @cached_property
    def pools(self) -> Pools:
        """Of the scheduler at rest. An adapter walks the whole prefix cache for them."""
        return self.started.pools()

    @cached_property
    def turns(self) -> list[Told]:
        """What users asked for and were told, turn by turn."""
        answers = {answer.rid: answer for answer in self.started.answers()}
        spoken: dict[str, tuple[int, ...]] = {}  # by session, the tokens of its turns so far
        cut_short: set[str] = set()
        found = []
        for turn in self.users.workload.turns:
            if turn.rid not in self.users.sent_at:
                continue
            prompt = (*spoken.get(turn.session, ()), *turn.prompt)
            answer = answers.get(turn.rid)
            found.append(Told(turn, prompt, answer, turn.session in cut_short))
            if not turn.session or answer is None or not answer.reason:
                continue
            if answer.reason == "abort":
                cut_short.add(turn.session)
            else:
                spoken[turn.session] = (*prompt, *answer.tokens)
        return found

    @cached_property
    def told(self) -> list[Told]:
        """Those of them whose answers are compared: behind an aborted turn of a session an engine may be given another
        prompt than it should (I53), and what it answers says no more.
        """
        return [told for told in self.turns if not told.follows_abort]

    @cached_property
    def answered(self) -> list[tuple[Told, Answer]]:
        """Those of them whose answer has ended."""
        return [(told, told.answer) for told in self.told if told.answer is not None and told.answer.reason]


class Lie(NamedTuple):
    """A defect, as what a scheduler says that has it: `says` makes of what a method or property of a `StartedScheduler`
    returns, an iterator's values as a list, what is returned instead, each time that it is asked. It may raise, too,
    and it may count: each schedule begins with the lie as it was made. A lie shows that the rule finds what it is told
    of, and nothing of whether an engine's adapter tells it.
    """

    name: str
    of: str
    says: Callable[[Any], Any]


def notes(name: str, *records: Any, at: tuple[int, ...] = ()) -> Lie:
    """A defect: the world notes these, too, of these operations."""
    noted = [Noted(record, at=at) for record in records]
    return Lie(name, "seen", lambda seen: replace(seen, noted=[*seen.noted, *noted]))


class Check:
    """A rule: what must hold, and what sees whether it does. One is made for each schedule.

    Its docstring goes behind its sentence on the pages: what that means of a scheduler.

    `rule`     its number, name, sentence and severity
    `defects`  what it finds; the tests see that a scheduler which has one of them breaks this rule and no other
    `spoils`   whether a token is wrong, or will be, where it does not hold: races are not harmless then
    `reads_past`  whether what it remembers is no part of a state that is explored: that stands for the first schedule
                  that led to it
    """

    rule: ClassVar[Rule]
    defects: ClassVar[tuple[Lie, ...]] = ()
    spoils: ClassVar[bool] = False
    reads_past: ClassVar[bool] = False

    def __init__(self, setup: Setup, facts: Facts) -> None:
        self.setup, self.facts = setup, facts

    def while_running(self, moment: Moment) -> Iterable[Violation]:
        """What is wrong at the start of an iteration. Of each part the first is kept."""
        return ()

    def after(self, run: Run) -> Iterable[Violation]:
        """What is wrong with a schedule, however it ended. After an exception the scheduler's state may be anything:
        only what users did, `started.seen` and the error are to be read.
        """
        return ()

    def at_rest(self, run: Run) -> Iterable[Violation]:
        """What is wrong where nothing runs any more; not asked after an exception, nor where it never ended."""
        return ()

    def broken(self, part: str, who: str, expected: object, actual: object, **more: Any) -> Violation:
        return Violation(rule=self.rule.id, part=part, who=who, expected=str(expected), actual=str(actual), **more)

    def from_note(self, note: Noted, part: str, who: str, expected: object, actual: object, **more: Any) -> Violation:
        """What the world noted and is wrong. It is harmless where no token is."""
        return self.broken(part, who, expected, actual, when=note.when, at=note.at, harmless=True, **more)


class Rules:
    """The rules of one schedule. They stand in the order in which one is broken because another is."""

    def __init__(self, checks: Sequence[type[Check]], setup: Setup, facts: Facts) -> None:
        self._checks = [check(setup, facts) for check in checks]
        self._running = [check for check in self._checks if type(check).while_running is not Check.while_running]
        self._seen: dict[tuple[str, str], Violation] = {}

    def at(self, moment: Moment) -> None:
        for check in self._running:
            for violation in check.while_running(moment):
                when = msgspec.structs.replace(violation, when=moment.iteration)
                self._seen.setdefault((violation.rule, violation.part), when)

    @property
    def stateless(self) -> list[Check]:
        """Those that remember nothing of a schedule."""
        return [check for check in self._checks if check not in self._running]

    @property
    def remembered(self) -> list[dict[str, Any]]:
        """What the others remember of it that is part of a state."""
        return [
            {name: value for name, value in vars(check).items() if name not in ("setup", "facts")}
            for check in self._running
            if not check.reads_past
        ]

    def broken_so_far(self, run: Run) -> list[Violation]:
        """Those of a schedule that goes on."""
        return [*self._seen.values(), *(violation for check in self._checks for violation in check.after(run))]

    def broken(self, run: Run) -> list[Violation]:
        """As they came, to the first that is the last; of those of one iteration first what can cause the others. What
        nobody saw while it ran was seen at the end. A race is harmless where no token is wrong.
        """
        found = [*self._seen.values()]
        for check in self._checks:
            found += check.after(run)
            found += check.at_rest(run) if run.error is None else ()
        spoiling = {check.rule.id for check in self._checks if check.spoils}
        is_spoilt = any(violation.rule in spoiling for violation in found)
        end, order = run.users.iterations, [check.rule.id for check in self._checks]
        timed = [
            msgspec.structs.replace(
                violation,
                when=violation.when if violation.when >= 0 else end,
                harmless=violation.harmless and not is_spoilt,
            )
            for violation in found
        ]
        timed.sort(key=lambda violation: (violation.when, order.index(violation.rule)))
        last = next((number for number, violation in enumerate(timed, 1) if violation.is_last), len(timed))
        return timed[:last]


def first_of_each(violations: Iterable[Violation]) -> Iterable[Violation]:
    """Of each part the first: what follows from it says no more."""
    found: dict[str, Violation] = {}
    for violation in violations:
        found.setdefault(violation.part, violation)
    return found.values()
