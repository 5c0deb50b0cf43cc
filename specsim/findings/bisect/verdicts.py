"""What is asked of each revision: whether it shows a replay file's finding, breaks a rule, or fails an operation.

An answer is good, bad, or that the revision cannot be judged, with the reason. It is "not judged" rather than good when
something stood in the way of the defect: a function that could not be lifted, a configuration that is refused, a
schedule that ended early because a host function raised.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specsim import replay_file
from specsim.errors import UsageError
from specsim.replay_file import OpReplay, ScheduleReplay, WorkerReplay
from specsim.tiers.accounting.parent import AccountingRequest, replay_schedule
from specsim.tiers.ops.parent import OpsRequest, replay_ops
from specsim.tiers.parent import START_SECONDS_MAX, Ask, ChildEnded
from specsim.tiers.transfer import kept
from specsim.tiers.workers.parent import WorkersRequest, replay_case


class State(enum.StrEnum):
    GOOD = "good"
    BAD = "bad"
    SKIPPED = "not judged"


@dataclass(frozen=True, slots=True)
class Code:
    """A function that was lifted to judge a revision: its name in specsim, FILE:LINE, and a hash of its body."""

    name: str
    where: str
    source_hash: str


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a revision showed. `why` is one sentence; `blamed` names the code that a finding is of, "" for none."""

    state: State
    why: str
    code: tuple[Code, ...] = ()
    blamed: str = ""


@dataclass(frozen=True, slots=True)
class Limits:
    """How a question is asked: where wheels lie, the seed, how many schedules or cases at most, and the seconds after
    which one of them counts as hung.
    """

    cache: Path
    out: Path
    seed: int = 0
    schedules: int = 200
    cases: int = 50
    hang_seconds: float = 20.0

    def accounting(self, target: str, seed: int) -> AccountingRequest:
        return AccountingRequest(target, self.cache, seed, 1, self.hang_seconds, self.hang_seconds, self.out)

    def workers(self, target: str, seed: int) -> WorkersRequest:
        return WorkersRequest(target, self.cache, seed, 1, self.hang_seconds, self.hang_seconds, self.out)

    def ops(self, target: str, seed: int) -> OpsRequest:
        return OpsRequest(target, self.cache, seed, self.cases, self.hang_seconds, self.hang_seconds, "cpu", self.out)


class Question(Protocol):
    """`text` is the question in words: it "breaks ..." or "shows ..."."""

    text: str

    def judge(self, target: str, ask: Ask, hash_seed: str) -> Judgement:
        """Ask it of a TARGET."""
        ...

    def replay(self, target: str, ask: Ask) -> Path:
        """A replay file of what the TARGET, which is bad, shows."""
        ...


def _skipped(why: str) -> Judgement:
    return Judgement(State.SKIPPED, why)


class FileQuestion:
    """Whether a revision shows the finding of a replay file.

    The tape of a schedule must stand everywhere for what it stands for on the first bad revision, which may not be what
    it stood for when the file was written: the simulator may have changed since. With `as_written` it must stand for
    that.
    """

    def __init__(self, file: Path, limits: Limits, *, as_written: bool = False) -> None:
        self._file = file
        self._limits = limits
        self._stored = replay_file.load(file)
        self._scenario: Any = None
        if as_written and isinstance(self._stored, ScheduleReplay):
            self._scenario = self._stored.scenario
        self.text = f"{self._stored.signature} of {file}"

    def judge(self, target: str, ask: Ask, hash_seed: str) -> Judgement:
        stored = self._stored
        try:
            if isinstance(stored, OpReplay):
                ops = self._limits.ops(target, stored.seed)
                return _of_case(stored, target, replay_ops(ops, self._file, hash_seed, ask))
            if isinstance(stored, WorkerReplay):
                workers = self._limits.workers(target, stored.seed)
                return _of_worker(stored, target, replay_case(workers, self._file, hash_seed, ask))
            accounting = self._limits.accounting(target, stored.seed)
            answer = replay_schedule(accounting, self._file, hash_seed, ask)
            judgement = _of_schedule(stored, target, answer, self._scenario)
            if judgement.state is State.BAD:
                self._scenario = self._scenario or answer["scenario"]
            return judgement
        except UsageError as error:
            return _skipped(error.problem.removeprefix(f"{self._file} was made for {stored.target}: "))

    def replay(self, target: str, ask: Ask) -> Path:
        return self._file


def _of_case(stored: OpReplay, target: str, answer: Mapping[str, Any]) -> Judgement:
    if not answer["judged"]:
        return _skipped(f"{target} does not run the configuration of the case")
    code = _codes(answer.get("code", ()))
    for violation in answer["violations"]:
        if violation["rule"] == stored.rule:
            return Judgement(State.BAD, violation["title"], code, answer["subject"])
    for violation in answer["violations"]:
        if violation["rule"] in ("O7", "O8"):
            return _skipped(violation["actual"])
    return Judgement(State.GOOD, f"{stored.rule} holds", code, answer["subject"])


def _of_worker(stored: WorkerReplay, target: str, answer: Mapping[str, Any]) -> Judgement:
    code = _codes(answer.get("code", ()))
    for broken in answer["broken"]:
        if broken["rule"] == stored.rule:
            return Judgement(State.BAD, broken["what"], code, stored.probe)
    for broken in answer["broken"]:
        if broken["rule"] in ("X1", "X2", "X3"):
            return _skipped(f"{stored.probe} fails before: {broken['actual']}")
    if not answer["same_case"]:
        return _skipped("the tape stands for another case now")
    return Judgement(State.GOOD, f"{stored.rule} holds", code, stored.probe)


def _of_schedule(stored: ScheduleReplay, target: str, answer: Mapping[str, Any], scenario: Any) -> Judgement:
    if not answer["judged"]:
        return _skipped(f"{target} does not run the scenario")
    code = _codes(answer.get("seam", ()))
    for violation in answer["violations"]:
        if replay_file.is_shown(stored, violation):
            why = f"expected {violation['expected']}, seen {violation['actual']}"
            return Judgement(State.BAD, why, code, violation["part"])
    for violation in answer["violations"]:
        if violation["rule"] in ("X1", "X2", "X3"):
            return _skipped(f"{violation['part']} fails before: {violation['actual']}")
    why = f"{stored.rule} holds"
    if scenario is None and answer["scenario"] != stored.scenario:
        why += ", but the tape stands for another configuration or workload now than when it was found"
    elif scenario is not None and answer["scenario"] != scenario:
        return _skipped("the tape stands for another configuration or workload there")
    return Judgement(State.GOOD, why, code, stored.part)


class RuleQuestion:
    """Whether a revision breaks a rule of the simulator in one of the schedules of a seed."""

    def __init__(self, rule: str, limits: Limits) -> None:
        from specsim.rules.table import BY_ID

        if rule not in BY_ID:
            raise UsageError(
                f"--rule {rule!r} is no rule of the simulator",
                f"give one of {', '.join(BY_ID)}; operations are judged with --only ops:NAME",
            )
        self._rule = rule
        self._limits = limits
        self.text = f"{rule}: {BY_ID[rule].sentence}"

    def judge(self, target: str, ask: Ask, hash_seed: str) -> Judgement:
        limits, answer = self._limits, None
        try:
            for message in ask(self._question(target, write=False), limits.hang_seconds, hash_seed):
                answer = message
        except UsageError as error:
            return _skipped(error.problem)
        except ChildEnded as ended:
            return _skipped(f"a schedule {ended.text}")
        if answer is None or answer["event"] != "replayed":
            return _skipped("the process that simulates it gave no answer")
        code, violation = _codes(answer["seam"]), answer["violation"]
        if violation is not None:
            why = f"{violation['signature']} in schedule {violation['schedule']}: {violation['actual']}"
            return Judgement(State.BAD, why, code, violation["part"])
        if answer["failed"] == answer["schedules"]:
            reasons = "; ".join(sorted(answer["refused"])) or "a host function raises in each"
            return _skipped(f"no schedule could be judged ({reasons})")
        return Judgement(State.GOOD, f"no schedule of {answer['schedules']} breaks {self._rule}", code)

    def replay(self, target: str, ask: Ask) -> Path:
        return _written(
            target, ask(self._question(target, write=True), self._limits.hang_seconds, ""), self._limits.out
        )

    def _question(self, target: str, write: bool) -> dict[str, Any]:
        request = self._limits.accounting(target, self._limits.seed)
        fields = {"rule": self._rule, "schedules": self._limits.schedules, "write": write}
        return {**request.question("search"), **fields}


@dataclass(slots=True)
class OpQuestion:
    """Whether an implementation of an operation differs from the reference on one of the cases of a seed.

    The implementations that fail on the first bad revision are those that the others are judged by: where one of them
    cannot be lifted, that others are right says nothing.
    """

    op: str
    limits: Limits
    text: str = ""
    followed: tuple[str, ...] = field(default=())

    def __post_init__(self) -> None:
        from specsim.contracts.registry import OPS

        if self.op not in OPS:
            raise UsageError(f"--only ops:{self.op}: there is no such operation", f"there are {', '.join(OPS)}")
        self.text = f"the operation {self.op} equals the reference"

    def judge(self, target: str, ask: Ask, hash_seed: str) -> Judgement:
        answer = None
        try:
            for message in ask(self._question(target, ""), self.limits.hang_seconds + START_SECONDS_MAX, hash_seed):
                answer = message
        except UsageError as error:
            return _skipped(error.problem)
        except ChildEnded as ended:
            return _skipped(f"a call {ended.text}")
        if answer is None or answer["event"] != "replayed":
            return _skipped("the process that runs it gave no answer")
        judged = {subject["name"]: subject for subject in answer["subjects"] if subject["cases"]}
        code = _codes(answer["subjects"])
        failing = [name for name, subject in judged.items() if subject["rule"]]
        if failing:
            self.followed = self.followed or tuple(failing)
            return Judgement(State.BAD, judged[failing[0]]["title"], code, failing[0])
        missing = [name for name in self.followed if name not in judged]
        if missing or not judged:
            reasons = "; ".join(dict.fromkeys(entry["why"] for entry in answer["not_run"])) or "no case applies"
            return _skipped(f"{', '.join(missing) or self.op} is not run ({reasons})")
        cases = sum(subject["cases"] for subject in judged.values())
        return Judgement(State.GOOD, f"right on {cases} cases", code, next(iter(self.followed), ""))

    def replay(self, target: str, ask: Ask) -> Path:
        subject = self.judge(target, ask, "").blamed
        messages = ask(self._question(target, subject), self.limits.hang_seconds + START_SECONDS_MAX, "")
        return _written(target, messages, self.limits.out)

    def _question(self, target: str, write: str) -> dict[str, Any]:
        request = self.limits.ops(target, self.limits.seed).to_json()
        return {**request, "mode": "ops.search", "op": self.op, "subjects": list(self.followed), "write": write}


def _codes(entries: Iterable[Mapping[str, Any]]) -> tuple[Code, ...]:
    return tuple(Code(e["name"], e["where"], e["source_hash"]) for e in entries if e["where"])


def _written(target: str, messages: Iterable[Mapping[str, Any]], out: Path) -> Path:
    try:
        for message in messages:
            if message["event"] == "done alone":
                return Path(kept(message, out)["replay"])
    except ChildEnded as ended:
        raise UsageError(
            f"the change was found, but making its replay file on {target} {ended.text}",
            "run it again with a larger --hang-seconds",
        ) from None
    raise UsageError(f"{target} no longer shows the finding", "run the search again")
