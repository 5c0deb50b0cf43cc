"""What a check says: the verdict, its suites and its findings, and their JSON form.

The JSON is an interface (`docs/verdict.md`): `format` is raised when a field changes its meaning or goes away, and
stays when one is added. A verdict is `fail` when there is a finding that the baseline, if one was given, does not have;
`error` when there is none and nothing could be checked, or the baseline could not be; `incomplete` when something ran
on the baseline and could not be run here; else `pass`. What could not be run is listed with its reason and is never
counted as passed.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any, Literal

import specsim

FORMAT = "specsim.verdict/2"
# The exit codes of every command.
PASS, FINDING, USAGE, NONDETERMINISM, INCOMPLETE, NOT_CHECKED, INTERRUPTED = 0, 1, 2, 3, 4, 125, 130
CODES = {
    "pass": PASS,
    "fail": FINDING,
    "nondeterministic": NONDETERMINISM,
    "incomplete": INCOMPLETE,
    "error": NOT_CHECKED,
}


class Severity(enum.StrEnum):
    """How bad a finding is, worst first."""

    WRONG_RESULT = "wrong-result"
    CRASH = "crash"
    LEAK = "leak"
    UNDEFINED_BEHAVIOUR = "undefined-behaviour"
    METRIC = "metric"
    BY_DESIGN = "by-design"

    @property
    def meaning(self) -> str:
        """Why it matters, a sentence without its full stop."""
        return _MEANINGS[self]


_MEANINGS = {
    Severity.WRONG_RESULT: "users get other tokens than they should, or state is left from which they will",
    Severity.CRASH: "something raises, hangs or ends its process, and whoever waits for it gets nothing",
    Severity.LEAK: "memory is not given back, until a server that runs for long has none left",
    Severity.UNDEFINED_BEHAVIOUR: "the result rests on memory, an order or a size that nothing guarantees, "
    "even where it comes out right today",
    Severity.METRIC: "no token is wrong; what is reported, how good drafts are or how long a request waits is",
    Severity.BY_DESIGN: "the engine documents that it deviates here, and means it",
}


@dataclass(frozen=True, slots=True)
class Rule:
    """What must be true of a target.

    `id`        its permanent number, which findings and replay files name
    `slug`      its name in a word or two
    `sentence`  what is true when nothing is wrong
    """

    id: str
    slug: str
    sentence: str
    severity: Severity

    @property
    def label(self) -> str:
        """For a reader: the name first, and the number to search for."""
        return f"{self.slug} ({self.id})"


REACHES = {
    "default": "users get here without asking",
    "option": "users get here with an option of their own choice",
    "unknown": "nothing says who gets here",
    "guarded": "a guard of the engine keeps users from this configuration",
    "not called": "nothing in this engine runs it",
}
"""The kinds of reach, those that touch most users first. "guarded" is said with the guard's FILE:LINE."""
_REACH = re.compile(r"default|option|unknown|not called|guarded:[^:]+:\d+")


@dataclass(frozen=True, slots=True)
class Finding:
    """One defect, however many cases or schedules hit it.

    `rule`       id of the rule that broke, and its `sentence`
    `title`      one sentence
    `signature`  the same for the same defect, in every run and on every release that has it
    `reach`      "default", "option", "guarded:FILE:LINE" (the guard that keeps users from it), "not called" or
                 "unknown"
    `where`      FILE:LINE of the code that is wrong
    `replay`     path of the replay file, "" if none was written
    `count`      how many of the cases or schedules hit it
    `details`    lines for a reader: sizes, arguments, events that matter
    `triage`     what is known of it publicly, one line; "" where nobody looked
    `changed`    "FUNCTION FILE:LINE" of what the target has otherwise than the revision that is its baseline, and the
                 case runs; the first changed line of each
    `op`, `provider`  of the ops tier: the operation, and the target whose implementation it is
    `blame`      of the ops tier: "kernel", wrong as documented, or "caller", which calls a right one wrongly
    `arguments`  of the ops tier: a line for each argument of the smallest case, small tensors whole
    `fixture`    the replay file of a known finding that shows this one here, "" for none
    `follows`    the signature that came before this one in every schedule that showed it, or is of the same missing
                 wait; "" for a finding
    `wait`       the wait that a race lacks, "STREAM for STREAM"; "" for what is no race
    `tree`       the radix tree alone on which it is shown, of a target that has several; "" else
    """

    rule: str
    sentence: str
    title: str
    signature: str
    tier: str
    severity: Severity
    reach: str
    where: str
    expected: str
    actual: str
    replay: str
    count: int
    details: tuple[str, ...] = ()
    triage: str = ""
    changed: tuple[str, ...] = ()
    op: str = ""
    provider: str = ""
    blame: str = ""
    arguments: tuple[str, ...] = ()
    follows: str = ""
    fixture: str = ""
    wait: str = ""
    tree: str = ""

    def __post_init__(self) -> None:
        if not _REACH.fullmatch(self.reach):
            raise ValueError(f"reach={self.reach!r} must be default, option, unknown, not called or guarded:FILE:LINE")

    @property
    def place(self) -> str:
        """FILE:LINE to look at first: what this change touched, else what is wrong; "" where neither is known."""
        return self.changed[0].rpartition(" ")[2] if self.changed else self.where

    @property
    def order_key(self) -> tuple[bool, int, int, str]:
        """By which findings are sorted, the most important first: those that run what a change touched, then by reach,
        then severity, then signature.
        """
        reach, severity = list(REACHES).index(self.reach.partition(":")[0]), list(Severity).index(self.severity)
        return not self.changed, reach, severity, self.signature


def matches(pattern: str, rule: str, signature: str) -> bool:
    """Whether a pattern of --select or --ignore, the number of a rule or a glob of signatures, is of such a finding."""
    return pattern == rule or fnmatchcase(signature, pattern)


def with_severity_of_symptoms(findings: Sequence[Finding]) -> list[Finding]:
    """Findings, each as severe as what comes after it in most of the schedules that show it."""
    severities = list(Severity)

    def severity(one: Finding) -> Severity:
        after = [other for other in findings if other.follows == one.signature and 2 * other.count > one.count]
        return min((one.severity, *(other.severity for other in after)), key=severities.index)

    return [replace(one, severity=severity(one)) for one in findings]


def of_one_wait(findings: Sequence[Finding], known: Collection[str]) -> dict[str, str]:
    """By signature of a race the one of the same missing wait that stands for it, the most severe and most frequent of
    them. What is `known`, or has a replay file of its own, stands for itself alone.
    """
    races: dict[str, list[Finding]] = {}
    for one in findings:
        if one.wait and not one.fixture and one.signature not in known:
            races.setdefault(one.wait, []).append(one)
    severities = list(Severity)
    stands: dict[str, str] = {}
    for same in races.values():
        first, *others = sorted(same, key=lambda one: (severities.index(one.severity), -one.count, one.signature))
        stands |= dict.fromkeys((one.signature for one in others), first.signature)
    return stands


def finding_from_json(data: Mapping[str, Any]) -> Finding:
    """The finding of its JSON form."""
    changed = {"severity": Severity(data["severity"]), "details": tuple(data["details"])}
    changed |= {name: tuple(data.get(name, ())) for name in ("arguments", "changed")}
    return Finding(**{**data, **changed})


@dataclass(frozen=True, slots=True)
class NotRun:
    """Something that was not checked, and why."""

    what: str
    why: str


NO_OPERATION = "specsim has no operation of this name"
OTHER_CALL = "it cannot be called as its contract says: "
"""How the reason begins where whoever provides a function names or defines it wrongly."""


@dataclass(frozen=True, slots=True)
class CheckedSubject:
    """One implementation that was checked: the operation, the implementation's name, FILE:LINE of its code, and on how
    many cases; in bulk also in how many launches, the most cases of one, and the seconds that it took.
    """

    op: str
    subject: str
    where: str
    cases: int
    launches: int = 0
    packed: int = 0
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Covered:
    """How much of a file schedules ran: the statements of its functions, how many of them were run, and the first and
    last lines of those in a row that were not.
    """

    statements: int
    run: int
    not_run: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class Suite:
    """What ran under one name. `cases` are inputs of operations, `events` the iterations of `schedules`; `setups`
    names those of a scheduler that schedules ran on. `nondeterministic` is what did not run the same twice, and how two
    runs differ: a finding that only the first of them showed is none. `ran_lines` has the lines of a change that
    schedules ran, by FILE:LINE, and how many of them did; `coverage`, by file, how much of the target they ran;
    `trees` those of its radix trees on which they ran, where it has more than one.
    """

    name: str
    cases: int = 0
    schedules: int = 0
    events: int = 0
    seconds: float = 0.0
    judged: list[CheckedSubject] = field(default_factory=list)
    not_run: list[NotRun] = field(default_factory=list)
    setups: list[str] = field(default_factory=list)
    nondeterministic: list[NotRun] = field(default_factory=list)
    ran_lines: dict[str, int] = field(default_factory=dict)
    coverage: dict[str, Covered] = field(default_factory=dict)
    trees: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class Changed:
    """The lines of functions that a checkout has otherwise than its base, FILE:LINE each, and those of them that no
    schedule ran; `schedules` is the most that ran one of them.
    """

    lines: tuple[str, ...]
    not_run: tuple[str, ...]
    schedules: int


@dataclass(frozen=True, slots=True)
class Compared:
    """Findings compared with a baseline, by signature, each list sorted.

    `name`        the file or target that is the baseline
    `new`         found here, not in the baseline
    `known`       found here and in the baseline
    `gone`        in the baseline; what could show it was run here and did not
    `not_judged`  in the baseline, and not checked here
    `not_compared`  found here, by what the baseline could not run or did not get to
    `risen`       found here and in the baseline, and here more often than chance explains
    `tiers_here`, `tiers_there`  the tiers that ran here and on the baseline
    """

    name: str
    new: tuple[str, ...]
    known: tuple[str, ...]
    gone: tuple[str, ...]
    not_judged: tuple[str, ...]
    not_compared: tuple[str, ...] = ()
    tiers_here: tuple[str, ...] = ()
    tiers_there: tuple[str, ...] = ()
    risen: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class FailOn:
    """Which findings fail a check: those of at least this `reach` and at least this `severity`."""

    reach: str = "guarded"
    severity: Severity = Severity.METRIC

    def fails(self, finding: Finding) -> bool:
        _, reach, severity, _ = finding.order_key
        return reach <= list(REACHES).index(self.reach) and severity <= list(Severity).index(self.severity)

    @property
    def text(self) -> str:
        return f"{self.reach.replace(' ', '-')}/{self.severity}"


FAILS_BY_DEFAULT = FailOn()
"""What is by design or not called does not fail a check."""


@dataclass(slots=True)
class Verdict:
    """The result of checking one target, in `seconds` of wall time. `baseline` is None when it was compared with none;
    `interrupted` says that it was ended from the keyboard. Its JSON has times only if it is `timed`: a check that ends
    by counts alone gives the same bytes each time. `ignored` are the signatures of findings that whoever asked did not
    select, or ignores; they are in none of `findings`. `fail_on` says which of these fail the check. `not_checked` is
    what makes it incomplete beside its baseline, and `not_compared` says why there is none though one was asked for.
    `version` is the release that a checkout is, or comes after, "unknown" where nothing says; "" for other targets.
    `symptoms` came after a finding wherever they came, and may be no more than what follows from it.
    """

    target: str
    seed: int
    suites: list[Suite] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    baseline: Compared | None = None
    interrupted: bool = False
    seconds: float = 0.0
    timed: bool = True
    ignored: tuple[str, ...] = ()
    fail_on: FailOn = FAILS_BY_DEFAULT
    not_checked: tuple[NotRun, ...] = ()
    not_compared: str = ""
    changed: Changed | None = None
    symptoms: list[Finding] = field(default_factory=list)
    version: str = ""

    @property
    def new(self) -> list[Finding]:
        """The findings that the baseline does not have; all of them when there is none."""
        old = (*self.baseline.known, *self.baseline.not_compared) if self.baseline else ()
        return [finding for finding in self.findings if finding.signature not in old]

    def symptoms_of(self, finding: Finding) -> list[Finding]:
        """What only came after a finding, the most frequent first."""
        found = [symptom for symptom in self.symptoms if symptom.follows == finding.signature]
        return sorted(found, key=lambda symptom: (-symptom.count, symptom.signature))

    @property
    def nondeterministic(self) -> list[NotRun]:
        """What did not run the same twice, of every suite."""
        return [entry for suite in self.suites for entry in suite.nondeterministic]

    @property
    def verdict(self) -> Literal["pass", "fail", "incomplete", "nondeterministic", "error"]:
        if self.not_compared:
            return "error"
        if any(map(self.fail_on.fails, self.new)):
            return "fail"
        if self.not_checked:
            return "incomplete"
        if self.nondeterministic:
            return "nondeterministic"
        return "pass" if any(suite.cases or suite.schedules for suite in self.suites) else "error"

    @property
    def exit_code(self) -> int:
        code = CODES[self.verdict]
        return INTERRUPTED if self.interrupted and code != FINDING else code

    def to_json(self) -> dict[str, Any]:
        compared = self.baseline
        return {
            **self._checked(),
            **({"baseline": {n: _plain(getattr(compared, n)) for n in Compared.__slots__}} if compared else {}),
            **({"not_checked": [asdict(entry) for entry in self.not_checked]} if self.not_checked else {}),
            **({"not_compared": self.not_compared} if self.not_compared else {}),
            **({"changed": {n: _plain(getattr(self.changed, n)) for n in Changed.__slots__}} if self.changed else {}),
            **({"interrupted": True} if self.interrupted else {}),
            **({"ignored": list(self.ignored)} if self.ignored else {}),
            **({"fail_on": self.fail_on.text} if self.fail_on != FAILS_BY_DEFAULT else {}),
            **({"times": self._times()} if self.timed else {}),
        }

    def _times(self) -> dict[str, Any]:
        """Seconds of wall time: of the check, and of each suite, which run beside one another."""
        return {
            "seconds": round(self.seconds, 3),
            "suites": {suite.name: round(suite.seconds, 3) for suite in self.suites},
        }

    def _checked(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "specsim": specsim.__version__,
            "target": self.target,
            **({"version": self.version} if self.version else {}),
            "seed": self.seed,
            "verdict": self.verdict,
            "suites": [_untimed(suite) for suite in self.suites],
            "findings": [
                {
                    **asdict(finding),
                    "details": list(finding.details),
                    "arguments": list(finding.arguments),
                    "changed": list(finding.changed),
                }
                for finding in self.findings
            ],
            **({"symptoms": [_plain_symptom(symptom) for symptom in self.symptoms]} if self.symptoms else {}),
        }


def _plain_symptom(symptom: Finding) -> dict[str, Any]:
    return {name: getattr(symptom, name) for name in ("signature", "rule", "title", "where", "count", "follows")}


def _untimed(suite: Suite) -> dict[str, Any]:
    data = asdict(suite)
    for timed in (data, *data["judged"]):
        del timed["seconds"]
    for covered in data["coverage"].values():
        covered["not_run"] = [list(lines) for lines in covered["not_run"]]
    return data


def _plain(value: str | int | tuple[str, ...]) -> str | int | list[str]:
    return list(value) if isinstance(value, tuple) else value
