"""The question about each revision: whether it shows a replay file's finding, breaks a rule, or fails an operation.

An answer is good, bad, or that the revision cannot be checked, with the reason. It is "not checked" rather than good
when something stood in the way of the defect: a function that could not be lifted, a configuration that is refused, a
schedule that ended early because the scheduler raised.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specsim import replay_file
from specsim.errors import UsageError, no_such
from specsim.isolation.conversation import ChildEnded
from specsim.isolation.limits import cores
from specsim.tiers import tier
from specsim.tiers.messages import Replayed, Request, Search, Shrunk
from specsim.tiers.process import Ask
from specsim.tiers.registry import TIERS
from specsim.tiers.replaying import outcome_of, replay, request_of
from specsim.tiers.tier import Code, codes
from specsim.tiers.transfer import kept


class BisectState(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"
    SKIPPED = "not judged"  # as the format specsim.bisect/1 has it

    @property
    def text(self) -> str:
        """For a reader."""
        return "not checked" if self is BisectState.SKIPPED else str(self)


@dataclass(frozen=True, slots=True)
class RevisionVerdict:
    """What a revision showed. `why` is one sentence; `blamed` names the code that a finding is of, "" for none."""

    state: BisectState
    why: str
    code: tuple[Code, ...] = ()
    blamed: str = ""


@dataclass(frozen=True, slots=True)
class AskLimits:
    """How a question is asked: where wheels lie, the seed, how many schedules or cases at most, and the seconds after
    which one of them counts as hung.
    """

    cache: Path
    out: Path
    seed: int = 0
    schedules: int = 200
    cases: int = 50
    hang_seconds: float = 20.0

    def search(self, tier_name: str, target: str, count: int, work: Search) -> Request:
        """The request for a search of a tier."""
        return Request(
            tier=tier_name,
            target=target,
            cache=str(self.cache),
            seed=self.seed,
            count=count,
            seconds=self.hang_seconds,
            hang_seconds=self.hang_seconds,
            at_once=cores(),
            work=work,
        )


class BisectQuestion(Protocol):
    """`text` is the question in words: it "breaks ..." or "shows ..."."""

    text: str

    def check(self, target: str, ask: Ask, hash_seed: str) -> RevisionVerdict:
        """Ask it of a TARGET."""
        ...

    def replay(self, target: str, ask: Ask) -> Path:
        """A replay file of what the TARGET, which is bad, shows."""
        ...


def _skipped(why: str) -> RevisionVerdict:
    return RevisionVerdict(BisectState.SKIPPED, why)


class FileQuestion:
    """Whether a revision shows the finding of a replay file."""

    def __init__(self, file: Path, limits: AskLimits) -> None:
        self._file = file
        self._limits = limits
        self._stored = replay_file.load(file)
        self.text = f"{self._stored.signature} of {file}"

    def check(self, target: str, ask: Ask, hash_seed: str) -> RevisionVerdict:
        stored = self._stored
        cache, hang_seconds = self._limits.cache, self._limits.hang_seconds
        request = request_of(stored, target, cache, hang_seconds, device="cpu", as_found=False)
        try:
            outcome = outcome_of(stored, target, replay(request, self._file, hash_seed, ask))
        except UsageError as error:
            return _skipped(error.problem.removeprefix(f"{self._file} was made for {stored.target}: "))
        if outcome.state is tier.State.SHOWN:
            return RevisionVerdict(BisectState.BAD, outcome.what, outcome.code, outcome.blamed)
        why = f"{tier.label_of(TIERS[stored.tier].rules, stored.rule)} holds"
        if outcome.state is tier.State.NOT_RUN:
            return _skipped(outcome.reason)
        if outcome.before:
            return _skipped(outcome.before)
        return RevisionVerdict(BisectState.GOOD, why, outcome.code, outcome.blamed)

    def replay(self, target: str, ask: Ask) -> Path:
        return self._file


class RuleQuestion:
    """Whether the scheduler of a revision breaks a rule in one of the schedules of a seed."""

    def __init__(self, rule: str, limits: AskLimits) -> None:
        rules = TIERS["scheduler"].rules
        if rule not in rules:
            raise UsageError(
                f"--rule {rule!r} is no rule of a scheduler",
                f"give one of {', '.join(rules)}; operations are checked with --only ops:NAME",
            )
        self._rule = rule
        self._limits = limits
        self.text = f"{rules[rule].label}: {rules[rule].sentence}"

    def check(self, target: str, ask: Ask, hash_seed: str) -> RevisionVerdict:
        answer = _searched(self._request(target), ask, hash_seed, "a schedule")
        if isinstance(answer, RevisionVerdict):
            return answer
        code, violation = codes(answer["code"]), answer["violation"]
        if violation is not None:
            why = f"{violation['signature']} in schedule {violation['schedule']}: {violation['actual']}"
            return RevisionVerdict(BisectState.BAD, why, code, violation["part"])
        if answer["failed"] == answer["schedules"]:
            reasons = "; ".join(sorted(set(answer["refused"].values()))) or "it raises in each"
            return _skipped(f"no schedule could be checked ({reasons})")
        return RevisionVerdict(BisectState.GOOD, f"no schedule of {answer['schedules']} breaks {self._rule}", code)

    def replay(self, target: str, ask: Ask) -> Path:
        return _written(self._request(target, "found"), ask, self._limits.out)

    def _request(self, target: str, write: str = "") -> Request:
        work = Search(what=self._rule, write=write)
        return self._limits.search("scheduler", target, self._limits.schedules, work)


@dataclass(slots=True)
class OpQuestion:
    """Whether an implementation of an operation differs from the reference on one of the cases of a seed.

    The implementations that fail on the first bad revision are those that the others are checked by: where one of them
    cannot be lifted, that others are right says nothing.
    """

    op: str
    limits: AskLimits
    text: str = ""
    followed: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        from specsim.contracts.registry import OPS

        if self.op not in OPS:
            raise no_such("operation", self.op, OPS)
        self.text = f"the operation {self.op} equals the reference"

    def check(self, target: str, ask: Ask, hash_seed: str) -> RevisionVerdict:
        answer = _searched(self._request(target), ask, hash_seed, "a call")
        if isinstance(answer, RevisionVerdict):
            return answer
        checked = {subject["name"]: subject for subject in answer["subjects"] if subject["cases"]}
        code = codes(answer["subjects"])
        failing = [name for name, subject in checked.items() if subject["rule"]]
        if failing:
            self.followed = self.followed or tuple(failing)
            return RevisionVerdict(BisectState.BAD, checked[failing[0]]["title"], code, failing[0])
        missing = [name for name in self.followed if name not in checked]
        if missing or not checked:
            reasons = "; ".join(dict.fromkeys(entry["why"] for entry in answer["not_run"])) or "no case applies"
            return _skipped(f"{', '.join(missing) or self.op} is not run ({reasons})")
        cases = sum(subject["cases"] for subject in checked.values())
        return RevisionVerdict(BisectState.GOOD, f"right on {cases} cases", code, next(iter(self.followed), ""))

    def replay(self, target: str, ask: Ask) -> Path:
        subject = self.check(target, ask, "").blamed
        return _written(self._request(target, subject), ask, self.limits.out)

    def _request(self, target: str, write: str = "") -> Request:
        work = Search(what=self.op, subjects=tuple(self.followed), write=write)
        return self.limits.search("ops", target, self.limits.cases, work)


def _searched(request: Request, ask: Ask, hash_seed: str, what: str) -> dict[str, Any] | RevisionVerdict:
    """The answer to a search, or why there is none; `what` of the target's the child runs."""
    answer = None
    try:
        for message in ask(request, TIERS[request.tier].limit_seconds(request), hash_seed):
            answer = message
    except UsageError as error:
        return _skipped(error.problem)
    except ChildEnded as ended:
        return _skipped(f"{what} {ended.text}")
    return answer.answer if isinstance(answer, Replayed) else _skipped("the process that runs it gave no answer")


def _written(request: Request, ask: Ask, out: Path) -> Path:
    try:
        for message in ask(request, TIERS[request.tier].limit_seconds(request), ""):
            if isinstance(message, Shrunk):
                return kept(message, out)
    except ChildEnded as ended:
        raise UsageError(
            f"the change was found, but making its replay file on {request.target} {ended.text}",
            "run it again with a larger --hang-seconds",
        ) from None
    raise UsageError(f"{request.target} no longer shows the finding", "run the search again")
