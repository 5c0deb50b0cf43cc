"""Check implementations on many generated cases, and make one counterexample of whatever is wrong with each.

Cases come from a counter: case `i` of a subject is made from (seed, operation, subject, i) alone. Before them come the
cases of known findings. All subjects are checked before anything is shrunk, in rounds: no subject gets more than the
first round's cases before every subject has got these. A finding says how rare it is; then the failing case that most
users reach and that breaks the worst rule is shrunk, holding both.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from specsim.choices.chooser import RecordingChooser, Tape, replayed, seeded
from specsim.choices.shrinker import Shrinker
from specsim.contracts.contract import Case, Op
from specsim.contracts.provider import Reach, Subject
from specsim.interpreter.lockstep.errors import UnsupportedError
from specsim.tiers.ops.rules import ENDS, KEEPS_RELATIONS, RULES, SURVIVES
from specsim.tiers.ops.run import EndedError, Launcher, LaunchHere, Outcome, run_case
from specsim.verdict import Rule

SHRINK_ATTEMPTS_MAX = 600
DRAWS_PER_CASE_MAX = 10
RELATED_EVERY, RELATED_AT = 32, 16
"""Of so many cases that one is also checked with its related cases, which takes a few runs more."""
FIRST_ROUND = 5
"""Cases that every subject gets before any gets more."""
RUNS_OF_ITS_CASE = 8
"""How often the case of a finding is run until it shows what it did."""
SHRINK_SHARE = 0.25
"""Of the time, kept for shrinking as soon as something failed."""


@dataclass(frozen=True, slots=True)
class KnownCase:
    """The case of a replay file, which is run before cases are generated. `generator` is the file's."""

    name: str
    case: Case
    tape: Tape
    rule: str
    generator: str = ""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that breaks rules, by its tape or, of a known finding, as it is. `ended` says how it ended its process, ""
    for one that came to its end, which has an `outcome`.
    """

    index: int
    tape: Tape
    rule: Rule  # the worst of those it breaks
    reach: Reach
    outcome: Outcome | None
    known: KnownCase | None = None
    ended: str = ""


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shrunk case of a defect, with what it shows. `outcome` is None for a case that ended its process as `ended`
    says; `known` is the case of a replay file, None for a generated one. `missed` counts the runs of this case that did
    not show it, beside the one that did.
    """

    case: Case
    tape: Tape
    outcome: Outcome | None
    rule: Rule
    reach: Reach
    failing: int
    explanation: str
    ended: str = ""
    known: KnownCase | None = None
    missed: int = 0


@dataclass(slots=True)
class SubjectResult:
    """What checking a subject gave. `cases` counts the generated ones that were checked; `why_not` says why it was not
    checked on any, or no further, "" if it was checked on all.
    """

    cases: int = 0
    failures: list[Failure] = field(default_factory=list)
    counterexample: Counterexample | None = None
    cut_short: bool = False
    why_not: str = ""


@dataclass(frozen=True, slots=True)
class SuiteLimits:
    """How much is done. `cases` of each subject, divided by its cost, but never below `first_round`; `attempts` at a
    smaller case of each finding, divided alike; `deadline` of time.monotonic. `stopped` ends everything as the deadline
    does. What `shrinks` refuses stays as large as it is.
    """

    cases: int
    attempts: int = SHRINK_ATTEMPTS_MAX
    deadline: float = math.inf
    first_round: int = FIRST_ROUND
    stopped: Callable[[], bool] = lambda: False
    shrinks: Callable[[Subject], bool] = lambda _subject: True

    def cases_of(self, subject: Subject) -> int:
        return max(min(self.first_round, self.cases), self.cases // subject.cost)

    def is_over(self) -> bool:
        return time.monotonic() > self.deadline or self.stopped()


def chooser_of(seed: int, subject: Subject, index: int) -> RecordingChooser:
    """The choices of case `index`."""
    return seeded(seed, subject.op, subject.name, index)


class SubjectCheck:
    """The checking of one subject, which can be left and gone on with."""

    def __init__(self, op: Op, subject: Subject, seed: int, limits: SuiteLimits, launcher: Launcher) -> None:
        self.op = op
        self.subject = subject
        self.result = SubjectResult()
        self._seed = seed
        self._limits = limits
        self._launcher = launcher
        self._next = 0
        self._seconds = 0.0  # that its generated cases took
        self._wanted = limits.cases_of(subject)

    @property
    def is_done(self) -> bool:
        """Whether every case that it is to get was run."""
        result = self.result
        return bool(result.why_not) or result.cases >= self._wanted or self._next >= self._wanted * DRAWS_PER_CASE_MAX

    @property
    def seconds_left(self) -> float:
        """How long the cases that are left will take, at what a case took so far."""
        cases = self.result.cases
        return 0.0 if self.is_done else self._seconds / cases * (self._wanted - cases) if cases else math.inf

    def run_known(self, known: Sequence[KnownCase]) -> None:
        """Run the cases of known findings."""
        for each in known:
            if self.result.why_not or self._limits.is_over():
                return
            try:
                self._check(each.case, each.tape, related=each.rule == KEEPS_RELATIONS.id, known=each)
            except EndedError as ended:
                self._ended(ended, each.case, each.tape, known=each)

    def advance(self, cases: int, until: float, on_case: Callable[[int], None]) -> None:
        """Check it on `cases` cases in all, until `until` (of time.monotonic). Cases that it does not accept are passed
        over. The first case is run however late it is.
        """
        started = time.monotonic()
        try:
            self._advance(cases, until, on_case)
        finally:
            self._seconds += time.monotonic() - started

    def _advance(self, cases: int, until: float, on_case: Callable[[int], None]) -> None:
        while not self.is_done and self.result.cases < cases:
            if self._next and (time.monotonic() > until or self._limits.stopped()):
                self.result.cut_short = True
                return
            index, self._next = self._next, self._next + 1
            on_case(index)
            chooser = chooser_of(self._seed, self.subject, index)
            case = self.op.generate(chooser)
            try:
                self.result.cases += self._check(case, chooser.tape, related=index % RELATED_EVERY == RELATED_AT)
            except EndedError as ended:
                self.result.cases += 1
                self._ended(ended, case, chooser.tape)
        self.result.cut_short = False

    def _check(self, case: Case, tape: Tape, *, related: bool, known: KnownCase | None = None) -> bool:
        """Check it on a case, if it accepts that; whether it did."""
        if not self.subject.accepts(case.sizes):
            return False
        try:
            outcome = run_case(self.op, self.subject, case, related=related, launcher=self._launcher)
        except UnsupportedError as error:
            self.result.why_not = error.problem
            return False
        if outcome.violations:
            reach = self.subject.reach(case.sizes)
            self.result.failures.append(Failure(self._next - 1, tape, worst(outcome), reach, outcome, known))
        return outcome.checked

    def _ended(self, ended: EndedError, case: Case, tape: Tape, known: KnownCase | None = None) -> None:
        """Note a case that ended its process: the subject is checked no further."""
        rule = ENDS if ended.hung else SURVIVES
        try:
            reach = self.subject.reach(case.sizes)
        except EndedError:
            reach = "unknown"
        self.result.failures.append(Failure(self._next - 1, tape, rule, reach, None, known, ended.text))
        self.result.why_not = f"a case {ended.text}"

    def shrink(self, attempts: int, on_case: Callable[[int], None], goes_on: Callable[[], bool]) -> None:
        """Make the counterexample of what failed, shrunk with so many attempts and as long as it `goes_on`."""
        chosen = worst_of(self.result.failures)
        count = sum(failure.known is None for failure in self.result.failures)
        ended, rule = chosen.ended, chosen.rule
        if not ended:
            attempts = 0 if chosen.known else attempts // self.subject.cost
            try:
                self.result.counterexample = shrink(
                    self.op, self.subject, chosen, on_case, attempts, count, goes_on, self._launcher
                )
                return
            except EndedError as error:  # which the case did not do before
                ended, rule = error.text, ENDS if error.hung else SURVIVES
        case = chosen.known.case if chosen.known else self.op.generate(replayed(chosen.tape))
        self.result.counterexample = Counterexample(
            case, chosen.tape, None, rule, chosen.reach, count, "", ended, chosen.known
        )


def check_all(
    ops: Mapping[str, Op],
    subjects: Sequence[Subject],
    *,
    seed: int,
    limits: SuiteLimits,
    launcher: Launcher,
    on_case: Callable[[Subject, int], None],
    known: Callable[[Op, Subject], Sequence[KnownCase]] = lambda _op, _subject: (),
    first: Sequence[str] = (),
) -> Iterator[tuple[Subject, SubjectResult]]:
    """Check every subject, then shrink what failed in the time that is left; results come in the order of `subjects`.

    With a deadline each gets an equal part of the time, and what some do not need goes to the others; after the first
    round those come first that need the least.

    A caller whose kernel is wrong is not checked. `on_case(subject, index)` is called before each case, with -1 while
    shrinking. Subjects that `first` names come first in each round: those that an earlier run had no time for.
    """
    checks = [SubjectCheck(ops[subject.op], subject, seed, limits, launcher) for subject in subjects]
    in_turn = sorted(checks, key=lambda check: check.subject.name not in first)
    failed: set[str] = set()

    def going(goal: int) -> list[SubjectCheck]:
        found = [j for j in in_turn if not j.is_done and j.subject.needs not in failed]
        if limits.deadline < math.inf and goal > limits.first_round:
            found.sort(key=lambda check: check.seconds_left)
        return found

    for check in in_turn:
        if check.subject.needs not in failed:
            check.run_known(known(check.op, check.subject))
        if check.result.failures:
            failed.add(check.subject.name)
    started = time.monotonic()
    for goal in _goals(limits):
        for check in (turn := going(goal)):
            now = time.monotonic()
            # What is kept for shrinking is kept as soon as there is something to shrink.
            kept = (limits.deadline - started) * SHRINK_SHARE if any(map(limits.shrinks, _failing(checks))) else 0.0
            end = limits.deadline - kept if limits.deadline < math.inf else math.inf
            if check.subject.needs in failed or limits.stopped() or (now > end and goal > limits.first_round):
                check.result.cut_short = not check.is_done
                continue
            if goal <= limits.first_round:
                if now > limits.deadline:
                    check.result.cut_short = True
                    continue
                until = limits.deadline
            else:
                until = now + _equal_part(end - now, [j.seconds_left for j in turn])
            check.advance(goal, until, partial(on_case, check.subject))
            if check.result.failures:
                failed.add(check.subject.name)
    wrong = [j for j in checks if j.result.failures and j.subject.needs not in failed]
    for position, check in enumerate(wrong):
        wanted = [j for j in wrong[position:] if limits.shrinks(j.subject)]
        now = time.monotonic()
        ends = now + (limits.deadline - now) / max(1, len(wanted))

        def goes_on(subject: Subject = check.subject, ends: float = ends) -> bool:
            return limits.shrinks(subject) and not limits.stopped() and time.monotonic() < ends

        attempts = limits.attempts if goes_on() else 0
        check.shrink(attempts, partial(on_case, check.subject), goes_on)
    for check in checks:
        if check.subject.needs in failed:
            check.result = SubjectResult(why_not=f"it calls {check.subject.op}, which is itself wrong")
        yield check.subject, check.result


def _equal_part(seconds: float, needs: Sequence[float]) -> float:
    """What each may take of `seconds`, where none takes more than it needs: infinite where there is enough for all."""
    for count, need in zip(range(len(needs), 0, -1), sorted(needs), strict=True):
        if need * count >= seconds:
            return seconds / count
        seconds -= need
    return math.inf


def _goals(limits: SuiteLimits) -> Iterator[int]:
    """How many cases each subject has after each round."""
    goal = min(limits.first_round, limits.cases)
    while goal < limits.cases:
        yield goal
        goal *= 2
    yield limits.cases


def _failing(checks: Sequence[SubjectCheck]) -> Iterator[Subject]:
    return (check.subject for check in checks if check.result.failures)


def check_subject(
    op: Op,
    subject: Subject,
    *,
    seed: int,
    limits: SuiteLimits,
    launcher: Launcher | None = None,
    on_case: Callable[[int], None] = lambda _index: None,
) -> SubjectResult:
    """Check one subject, whatever it needs; it runs in this process, on the CPU, when there is no `launcher`."""
    ((_subject, result),) = check_all(
        {op.name: op},
        [subject],
        seed=seed,
        limits=limits,
        launcher=launcher or LaunchHere(),
        on_case=lambda _subject, index: on_case(index),
    )
    return result


def worst(outcome: Outcome) -> Rule:
    """The worst rule that it breaks."""
    return next(rule for rule in RULES if outcome.of(rule))


def _reach_rank(reach: Reach) -> int:
    return ["default", "option", "unknown", "guarded", "not called"].index(reach.split(":")[0])


def worst_of(failures: list[Failure]) -> Failure:
    """The failing case that most users reach and that breaks the worst rule; of those a known one, then the shortest
    tape.
    """
    return min(
        failures,
        key=lambda f: (_reach_rank(f.reach), RULES.index(f.rule), f.known is None, len(f.tape), f.tape),
    )


def shrink(
    op: Op,
    subject: Subject,
    chosen: Failure,
    on_case: Callable[[int], None],
    attempts_max: int,
    failing: int,
    goes_on: Callable[[], bool] = lambda: True,
    launcher: Launcher | None = None,
) -> Counterexample:
    """The smallest case that breaks the same rule for the same users; of a known finding its own. `goes_on` is
    evaluated before each attempt: no keeps what there is. An attempt that ends its process is the last one. Where the
    smallest case does not show it again, the counterexample is `chosen` with what that showed.
    """
    launcher = launcher or LaunchHere()
    related = chosen.rule is KEEPS_RELATIONS
    ended = False

    def attempt(tape: Tape) -> Tape | None:
        nonlocal ended
        if ended or not goes_on():
            return None
        on_case(-1)
        chooser = replayed(tape)
        case = op.generate(chooser)
        try:
            if not subject.accepts(case.sizes) or subject.reach(case.sizes) != chosen.reach:
                return None
            outcome = run_case(op, subject, case, related=related, launcher=launcher)
        except EndedError:
            ended = True
            return None
        except UnsupportedError:
            return None
        return chooser.tape if outcome.of(chosen.rule) else None

    tape = Shrinker(chosen.tape, attempt, attempts_max).run() if attempts_max else chosen.tape
    case = chosen.known.case if chosen.known else op.generate(replayed(tape))
    for missed in range(RUNS_OF_ITS_CASE):
        on_case(-1)
        outcome = run_case(op, subject, case, related=related, launcher=launcher)
        if outcome.of(chosen.rule):
            return Counterexample(
                case, tape, outcome, chosen.rule, chosen.reach, failing, subject.explain(), "", chosen.known, missed
            )
    first = chosen.known.case if chosen.known else op.generate(replayed(chosen.tape))
    return Counterexample(
        first,
        chosen.tape,
        chosen.outcome,
        chosen.rule,
        chosen.reach,
        failing,
        subject.explain(),
        known=chosen.known,
        missed=RUNS_OF_ITS_CASE,
    )
