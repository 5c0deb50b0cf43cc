"""Many cases of one probe: what they broke, one smallest case for each rule."""

from __future__ import annotations

import hashlib
import json
import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from specsim.choices.chooser import Chooser, RecordingChooser, Tape, replayed, seeded
from specsim.choices.shrinker import Shrinker, shortlex
from specsim.engine.rules.failures import HOST_EXCEPTION
from specsim.engines.probe import Broken, Probe, Shown
from specsim.errors import described

SHRINK_ATTEMPTS_MAX = 400

# What a function raises that uses a part of its release for which there is no stub: nothing is found against it.
_NOT_OURS = (AttributeError, NameError, TypeError, KeyError)


class NoStubError(Exception):
    """The function needs what the stubs do not have: it is not run."""


@dataclass(slots=True)
class ProbeFinding:
    """The smallest case found that breaks a rule, and how many generated ones did. `known` names the replay file whose
    case it is, "" for a generated one.
    """

    rule: str
    tape: Tape
    shown: Shown
    broken: Broken
    count: int
    known: str = ""


@dataclass(frozen=True, slots=True)
class KnownCase:
    """The case of a replay file, which is run before cases are generated, and the rule that it is known to break."""

    name: str
    tape: Tape
    rule: str


@dataclass(slots=True)
class ProbeResult:
    """What a probe showed. `hits` are the tapes of the generated cases that break a rule, `known` the known case that
    does. `why_not` says why it is not run, "" when it is.
    """

    cases: int = 0
    hits: dict[str, list[Tape]] = field(default_factory=dict)
    known: dict[str, KnownCase] = field(default_factory=dict)
    findings: list[ProbeFinding] = field(default_factory=list)
    why_not: str = ""


def run_probe(probe: Probe, chooser: Chooser) -> Shown:
    """One case. Raises NoStubError where the probe does not know its source; what else is raised breaks X1."""
    try:
        return probe.run(chooser)
    except _NOT_OURS as error:
        raise NoStubError(described(error)) from error
    except Exception as error:
        if type(error).__name__ == "UnknownNameError":
            raise NoStubError(str(error)) from error
        text = described(error)
        return Shown({}, {"raised": text}, (Broken(HOST_EXCEPTION.id, text, "no exception", text),))


def digest_of(shown: Shown) -> str:
    """Of the case and all that was recorded: equal when it is reproduced bit for bit."""
    text = json.dumps(plain(shown), sort_keys=True)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def plain(shown: Shown) -> dict[str, Any]:
    """A case as JSON takes it."""
    broken = [[b.rule, b.what, b.expected, b.actual] for b in shown.broken]
    return {"case": shown.case, "seen": shown.seen, "broken": broken}


def chooser_of(seed: int, probe: str, index: int) -> RecordingChooser:
    return seeded(seed, "workers", probe, index)


def run_cases(
    probe: Probe,
    *,
    seed: int,
    cases: int,
    deadline: float = math.inf,
    on_case: Callable[[int], None] = lambda _index: None,
    stopped: Callable[[], bool] = lambda: False,
    known: Iterable[KnownCase] = (),
) -> ProbeResult:
    """Run the known cases, then up to `cases` generated ones until `deadline` (of time.monotonic). `on_case(index)` is
    called before each generated case. `stopped` ends the cases as the deadline does.
    """
    result = ProbeResult()
    try:
        for each in known:
            broken_by = {broken.rule for broken in run_probe(probe, replayed(each.tape)).broken}
            for rule in sorted(broken_by):
                if rule == each.rule:
                    result.known.setdefault(rule, each)
        for index in range(cases):
            if index and (time.monotonic() > deadline or stopped()):
                break
            on_case(index)
            chooser = chooser_of(seed, probe.name, index)
            shown = run_probe(probe, chooser)
            result.cases += 1
            for rule in {broken.rule: None for broken in shown.broken}:
                result.hits.setdefault(rule, []).append(chooser.tape)
    except NoStubError as error:
        return ProbeResult(why_not=str(error))
    return result


def shrink_cases(
    probe: Probe,
    result: ProbeResult,
    *,
    attempts: int = SHRINK_ATTEMPTS_MAX,
    on_attempt: Callable[[], None] = lambda: None,
    shrinks: Callable[[str], bool] = lambda _rule: True,
) -> None:
    """Make the findings of what was hit. The case of a rule that `shrinks` refuses stays as large as it is, and so does
    a known one.
    """
    for rule in sorted({*result.hits, *result.known}):
        known, hits = result.known.get(rule), result.hits.get(rule, [])
        start = known.tape if known else min(hits, key=shortlex)
        goes_on = partial(shrinks, rule) if not known else lambda: False
        tape, shown = smallest(probe, rule, start, on_attempt, attempts, goes_on)
        broken = next(b for b in shown.broken if b.rule == rule)
        result.findings.append(ProbeFinding(rule, tape, shown, broken, len(hits), known.name if known else ""))


def check_probe(probe: Probe, *, seed: int, cases: int) -> ProbeResult:
    """Run so many cases, and shrink what was found."""
    result = run_cases(probe, seed=seed, cases=cases)
    shrink_cases(probe, result)
    return result


def smallest(
    probe: Probe,
    rule: str,
    tape: Tape,
    on_attempt: Callable[[], None],
    attempts_max: int = SHRINK_ATTEMPTS_MAX,
    goes_on: Callable[[], bool] = lambda: True,
) -> tuple[Tape, Shown]:
    """The smallest case found from `tape` on that still breaks the rule. `goes_on` is asked before each attempt."""

    def attempt(candidate: Tape) -> Tape | None:
        if not goes_on():
            return None
        on_attempt()
        chooser = replayed(candidate)
        shown = run_probe(probe, chooser)
        return chooser.tape if any(broken.rule == rule for broken in shown.broken) else None

    best = Shrinker(tape, attempt, attempts_max).run()
    return best, run_probe(probe, replayed(best))
