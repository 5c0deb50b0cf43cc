"""Judge one implementation on many generated cases, and make one finding of whatever is wrong with it.

Cases come from a counter: case `i` of a subject is made from (seed, operation, subject, i) alone. All cases are run,
so that a finding says how rare it is; then the failing case that most users reach and that breaks the worst rule is
shrunk, holding both.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from specsim.diff.rules import KEEPS_RELATIONS, RULES
from specsim.diff.run import Outcome, run_case
from specsim.explore.chooser import RecordingChooser, Tape, replayed, seeded
from specsim.explore.shrink import Shrinker
from specsim.ops.contract import Case, Op
from specsim.ops.provider import Reach, Subject
from specsim.verdict import Rule

SHRINK_ATTEMPTS_MAX = 600
DRAWS_PER_CASE_MAX = 10
RELATED_EVERY, RELATED_AT = 32, 16
"""Of so many cases that one is also judged with its related cases, which takes a few runs more."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A case that breaks rules, by its tape."""

    index: int
    tape: Tape
    rule: Rule  # the worst of those it breaks
    reach: Reach


@dataclass(frozen=True, slots=True)
class Counterexample:
    """The shrunk case of a defect, with what it shows."""

    case: Case
    tape: Tape
    outcome: Outcome
    rule: Rule
    reach: Reach
    failing: int
    explanation: str


@dataclass(slots=True)
class SubjectResult:
    """What judging a subject gave. `cases` counts those that were judged."""

    cases: int = 0
    failures: list[Failure] = field(default_factory=list)
    counterexample: Counterexample | None = None
    cut_short: bool = False


def chooser_of(seed: int, subject: Subject, index: int) -> RecordingChooser:
    """The choices of case `index`."""
    return seeded(seed, subject.op, subject.name, index)


def judge(
    op: Op,
    subject: Subject,
    *,
    seed: int,
    cases: int,
    device: Any,
    deadline: float,
    on_case: Callable[[int], None],
    shrinking: bool = True,
    stopped: Callable[[], bool] = lambda: False,
    shrinks: Callable[[], bool] = lambda: True,
) -> SubjectResult:
    """Run `cases` cases that the subject accepts, until `deadline` (of time.monotonic), then shrink what failed unless
    told not to.

    A subject whose cases cost more is judged on fewer: `cases` divided by its cost, and so are the attempts at a
    smaller case. Cases that it does not accept are
    passed over, up to `DRAWS_PER_CASE_MAX` for each one wanted. `on_case(index)` is called before each case, with -1
    while shrinking. `stopped` ends the cases as the deadline does; what `shrinks` refuses stays as large as it is.
    """
    result = SubjectResult()
    cases = max(1, cases // subject.cost)
    for index in range(cases * DRAWS_PER_CASE_MAX):
        if result.cases == cases:
            break
        if index and (time.monotonic() > deadline or stopped()):
            result.cut_short = True
            break
        on_case(index)
        chooser = chooser_of(seed, subject, index)
        case = op.generate(chooser)
        if not subject.accepts(case.sizes):
            continue
        outcome = run_case(op, subject, case, device, related=index % RELATED_EVERY == RELATED_AT)
        if not outcome.judged:
            continue
        result.cases += 1
        if outcome.violations:
            result.failures.append(Failure(index, chooser.tape, worst(outcome), subject.reach(case.sizes)))
    if result.failures and shrinking:
        attempts = SHRINK_ATTEMPTS_MAX // subject.cost if shrinks() else 0
        result.counterexample = shrink(
            op, subject, worst_of(result.failures), device, on_case, attempts, len(result.failures), shrinks
        )
    return result


def worst(outcome: Outcome) -> Rule:
    """The worst rule that it breaks."""
    return next(rule for rule in RULES if outcome.of(rule))


def _reach_rank(reach: Reach) -> int:
    return ["default", "option", "unknown", "guarded", "not called"].index(reach.split(":")[0])


def worst_of(failures: list[Failure]) -> Failure:
    """The failing case that most users reach and that breaks the worst rule; of those the shortest tape."""
    return min(failures, key=lambda f: (_reach_rank(f.reach), RULES.index(f.rule), len(f.tape), f.tape))


def shrink(
    op: Op,
    subject: Subject,
    chosen: Failure,
    device: Any,
    on_case: Callable[[int], None],
    attempts_max: int,
    failing: int,
    goes_on: Callable[[], bool] = lambda: True,
) -> Counterexample:
    """The smallest case that breaks the same rule for the same users. `goes_on` is asked before each attempt: no keeps
    what there is.
    """
    related = chosen.rule is KEEPS_RELATIONS

    def attempt(tape: Tape) -> Tape | None:
        if not goes_on():
            return None
        on_case(-1)
        chooser = replayed(tape)
        case = op.generate(chooser)
        if not subject.accepts(case.sizes) or subject.reach(case.sizes) != chosen.reach:
            return None
        return chooser.tape if run_case(op, subject, case, device, related=related).of(chosen.rule) else None

    tape = Shrinker(chosen.tape, attempt, attempts_max).run()
    on_case(-1)
    case = op.generate(replayed(tape))
    outcome = run_case(op, subject, case, device, related=related)
    return Counterexample(case, tape, outcome, chosen.rule, chosen.reach, failing, subject.explain())
