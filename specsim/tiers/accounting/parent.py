"""The accounting tier in the parent: simulate a target's accounting, and survive whatever its functions do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.errors import UsageError
from specsim.rules.table import BY_ID
from specsim.tiers.parent import Ask, ChildEnded, Message, ask, ended_early, no_answer, shrunk
from specsim.tiers.transfer import kept, process_finding, received
from specsim.verdict import Finding, NotRun, Suite

HASH_SEEDS = ("0", "1")


class NondeterministicError(Exception):
    """Two runs of one schedule differ: nothing that the target shows can be trusted."""


@dataclass(frozen=True, slots=True)
class AccountingRequest:
    """What to simulate. `schedules` at most, and `attempts` at a smaller schedule of each finding, for `seconds` at
    most; `hang_seconds` is the limit of one schedule; `strategy` is one of `specsim.choices.search_strategies`;
    `kernels` names the provider whose kernels the model uses, "" for none. Without `shrinks` what is found stays as
    large as it is, and so do the signatures `known`. The schedules of the replay files in the folder `fixtures` are run
    first, "" for none.
    """

    target: str
    cache: Path
    seed: int
    schedules: int
    seconds: float
    hang_seconds: float
    out: Path
    mutant: str = ""
    kernels: str = ""
    strategy: str = "swarm"
    shrinks: bool = True
    known: tuple[str, ...] = ()
    attempts: int | None = None
    fixtures: str = ""

    def question(self, mode: str, **fields: Any) -> dict[str, Any]:
        return {
            "mode": f"accounting.{mode}",
            "target": self.target,
            "cache": str(self.cache),
            "seed": self.seed,
            "schedules": self.schedules,
            "seconds": self.seconds,
            "mutant": self.mutant,
            "kernels": self.kernels,
            "strategy": self.strategy,
            "shrinks": self.shrinks,
            "known": list(self.known),
            "attempts": self.attempts,
            "fixtures": self.fixtures,
            **fields,
        }


def run_accounting_suite(
    request: AccountingRequest,
    progress: Callable[[str, int], None],
    on_counts: Callable[[Message], None] = lambda _counts: None,
) -> tuple[Suite, list[Finding]]:
    """Simulate the target. Raises NondeterministicError when two runs of a schedule differ. `on_counts` is told what
    was counted so far: `schedules`, `events`, `findings`, `marks` and `marks_of`.
    """
    suite = Suite("accounting")
    started = time.monotonic()
    index, shrinking, of_known = -1, False, ""
    features: list[str] | None = None
    findings: dict[str, Finding] = {}
    try:
        for message in ask(request.question("check"), request.hang_seconds):
            if message["event"] == "schedule":
                shrinking, of_known = message["index"] < 0, message.get("known", "")
                index = index if shrinking else message["index"]
                features = message.get("features", features)
                progress("shrinking" if shrinking else "schedules", max(0, index))
                if "events" in message:
                    suite.schedules, suite.events = message["schedules"], message["events"]
                    on_counts({**message, "tier": suite.name})
            elif message["event"] == "found":
                found = received(message, request.out)
                findings[found.signature] = found
            elif message["event"] == "end":
                if message["nondeterministic"]:
                    raise NondeterministicError(message["nondeterministic"])
                suite.schedules, suite.events = message["schedules"], message["events"]
                suite.seam = message["seam"]
                suite.not_run = [NotRun(**entry) for entry in message["not_run"]]
    except ChildEnded as ended:
        if index < 0:
            raise ended_early(request.target, ended) from None
        if shrinking:  # which the findings as they were hit do not need
            suite.not_run.append(NotRun("shrinking of what was found", f"a smaller schedule {ended.text}"))
        else:
            what = f"the schedule of {of_known}" if of_known else f"schedule {index}"
            suite.schedules = max(suite.schedules, 1 if of_known else index + 1)
            suite.not_run.append(NotRun(f"schedules after {of_known or index}", f"{what} {ended.text}"))
            died = _of_process(request, ended, index, of_known, features)
            findings[died.signature] = died
    suite.seconds = time.monotonic() - started
    return suite, list(findings.values())


def _of_process(
    request: AccountingRequest, ended: ChildEnded, index: int, of_known: str, features: list[str] | None
) -> Finding:
    """The finding of a schedule that ended its process; without a replay file when the process that should write it
    ends too.
    """
    rule = BY_ID["X2" if ended.hung else "X3"]
    how = {"rule": rule.id, "text": ended.text, "features": features}
    question = request.question("failure", index=index, of_known=of_known, **how)
    try:
        for message in ask(question, request.hang_seconds):
            if message["event"] == "done alone":
                return received(message["found"], request.out)
        why = "gave no answer"
    except ChildEnded as again:
        why = again.text
    except UsageError as error:
        why = error.problem
    signature = f"accounting:{rule.id}:process"
    return process_finding("accounting", rule, f"a schedule {ended.text}", signature, f"schedule {index}", why)


def replay_schedule(
    request: AccountingRequest, replay: Path, hash_seed: str = "", ask: Ask = ask, record: bool = False
) -> Message:
    """Run a replay file's schedule; the child's "replayed" message, or what ended the child as `violations` of it. With
    `record` it has a `recording` of the engine's states (`specsim.tiers.accounting.recording`).
    """
    started = False
    question = request.question("replay", replay=str(replay), record=record)
    try:
        for message in ask(question, request.hang_seconds, hash_seed):
            started = started or message["event"] == "schedule"
            if message["event"] == "replayed":
                return message
    except ChildEnded as ended:
        if not started:
            raise ended_early(request.target, ended) from None
        violation = {
            "rule": "X2" if ended.hung else "X3",
            "sentence": "",
            "signature": "",
            "part": "process",
            "who": "",
            "expected": "",
            "actual": ended.text,
            "event": 0,
            "where": "",
        }
        return {
            "judged": True,
            "same_source": True,
            "same_model": True,
            "digest": "",
            "scenario": {},
            "events": [],
            "violations": [violation],
        }
    raise no_answer(request.target)


def replay_schedule_twice(request: AccountingRequest, replay: Path) -> Message:
    """Run a replay file's schedule in two processes under two hash seeds. Raises NondeterministicError with the first
    event that differs.
    """
    one, two = (replay_schedule(request, replay, hash_seed) for hash_seed in HASH_SEEDS)
    for was, now in zip(one.get("events", ()), two.get("events", ()), strict=False):
        if was != now:
            raise NondeterministicError(f"event {was['number']} was {_flat(was)!r}, then {_flat(now)!r}")
    for name in ("events", "violations"):
        if one.get(name) != two.get(name):
            raise NondeterministicError(f"{len(one.get(name, ()))} {name}, then {len(two.get(name, ()))}")
    if one.get("digest") != two.get("digest"):
        raise NondeterministicError(f"the digest was {one.get('digest')}, then {two.get('digest')}")
    return two


def _flat(event: dict[str, Any]) -> str:
    return " ".join(str(event[name]) for name in ("agent", "event", "who", "details") if event[name])


def shrink_schedule(request: AccountingRequest, replay: Path, attempts: int, seconds: float = math.inf) -> Message:
    """Make a replay file's schedule smaller, for `seconds` at most; the message names the new
    file and the sizes before and after.
    """
    question = request.question("shrink", replay=str(replay), shrink_seconds=seconds)
    return kept(shrunk({**question, "attempts": attempts}, request.hang_seconds), request.out)
