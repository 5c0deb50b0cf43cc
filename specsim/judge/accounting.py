"""The accounting tier in the parent: simulate a target's accounting, and survive whatever its functions do."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.judge.parent import Ask, ChildEnded, Message, ask, ended_early, no_answer, shrunk
from specsim.verdict import Finding, NotRun, Suite, finding_from_json

HASH_SEEDS = ("0", "1")


class NondeterministicError(Exception):
    """Two runs of one schedule differ: nothing that the target shows can be trusted."""


@dataclass(frozen=True, slots=True)
class AccountingRequest:
    """What to simulate. `seconds` is the time budget, `hang_seconds` the limit of one schedule; `strategy` is one of
    `specsim.explore.strategies`; `kernels` names the provider whose kernels the model uses, "" for none. What is found
    is made smaller for `shrink_seconds` after the budget at most, and the signatures `known` not at all.
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
    shrink_seconds: float = math.inf
    known: tuple[str, ...] = ()

    def question(self, mode: str, **fields: Any) -> dict[str, Any]:
        return {
            "mode": f"accounting.{mode}",
            "target": self.target,
            "cache": str(self.cache),
            "seed": self.seed,
            "schedules": self.schedules,
            "seconds": self.seconds,
            "out": str(self.out),
            "mutant": self.mutant,
            "kernels": self.kernels,
            "strategy": self.strategy,
            "shrink_seconds": self.shrink_seconds,
            "known": list(self.known),
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
    index = -1
    features: list[str] | None = None
    findings: list[Finding] = []
    try:
        for message in ask(request.question("check"), request.hang_seconds):
            if message["event"] == "schedule":
                index = message["index"]
                features = message.get("features", features)
                progress("schedules" if index >= 0 else "shrinking", max(0, index))
                if "events" in message:
                    on_counts({**message, "tier": suite.name})
            elif message["event"] == "end":
                if message["nondeterministic"]:
                    raise NondeterministicError(message["nondeterministic"])
                suite.schedules, suite.events = message["schedules"], message["events"]
                suite.seam = message["seam"]
                suite.not_run = [NotRun(**entry) for entry in message["not_run"]]
                findings = [finding_from_json(finding) for finding in message["findings"]]
    except ChildEnded as ended:
        if index < 0:
            raise ended_early(request.target, ended) from None
        suite.schedules = index + 1
        suite.not_run.append(NotRun(f"schedules after {index}", f"schedule {index} {ended.text}"))
        rule = "X2" if ended.hung else "X3"
        question = request.question("failure", index=index, rule=rule, text=ended.text, features=features)
        try:
            for message in ask(question, request.hang_seconds):
                if message["event"] == "done alone":
                    findings = [finding_from_json(message["finding"])]
        except ChildEnded as again:  # in a schedule before it, which had ended
            raise ended_early(request.target, again) from None
    suite.seconds = time.monotonic() - started
    return suite, findings


def replay_schedule(
    request: AccountingRequest, replay: Path, hash_seed: str = "", ask: Ask = ask, record: bool = False
) -> Message:
    """Run a replay file's schedule; the child's "replayed" message, or what ended the child as `violations` of it. With
    `record` it has a `recording` of the engine's states (`specsim.judge.recording`).
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
    return shrunk(
        request.question("shrink", replay=str(replay), attempts=attempts, shrink_seconds=seconds), request.hang_seconds
    )
