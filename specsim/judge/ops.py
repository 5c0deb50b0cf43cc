"""The ops tier in the parent: judge every implementation that a target has, and survive whatever it does.

A call that hangs or a child that dies is a finding for that one implementation, and a new child goes on with the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.judge.accounting import HASH_SEEDS, NondeterministicError
from specsim.judge.parent import Ask, ChildEnded, Message, ask, ended_early, no_answer, shrunk
from specsim.verdict import Finding, Judged, NotRun, Suite, finding_from_json


@dataclass(frozen=True, slots=True)
class OpsRequest:
    """What to run. `seconds` is the time budget, `hang_seconds` the limit of one call, `operation` the one that is
    judged, "" for all; without `shrinks` what is found stays as large as it is, and so do the signatures `known`.
    """

    target: str
    cache: Path
    seed: int
    cases: int
    seconds: float
    hang_seconds: float
    device: str
    out: Path
    operation: str = ""
    shrinks: bool = True
    known: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "cache": str(self.cache),
            "seed": self.seed,
            "cases": self.cases,
            "seconds": self.seconds,
            "device": self.device,
            "out": str(self.out),
            "operation": self.operation,
            "shrinks": self.shrinks,
            "known": list(self.known),
        }


def run_ops_suite(request: OpsRequest, progress: Callable[[str, int], None]) -> tuple[Suite, list[Finding]]:
    """Judge every implementation that the target has. `progress(subject, cases)` is called as cases run."""
    suite = Suite("ops")
    findings: list[Finding] = []
    started = time.monotonic()
    skip: list[str] = []
    failed: list[str] = []
    while True:
        remaining = max(0.0, request.seconds - (time.monotonic() - started))
        question = {**request.to_json(), "mode": "ops.check", "seconds": remaining, "skip": skip, "failed": failed}
        subject, index = "", 0
        try:
            for message in ask(question, request.hang_seconds):
                if message["event"] == "start":
                    subject, index = message["subject"], 0
                elif message["event"] == "case":
                    index = message["index"]
                    progress(subject, suite.cases + max(0, index))
                elif message["event"] == "done":
                    skip.append(subject)
                    take(suite, findings, failed, message)
                elif message["event"] == "end":
                    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
                    suite.seconds = time.monotonic() - started
                    return suite, findings
        except ChildEnded as ended:
            if not subject or subject in skip:
                raise ended_early(request.target, ended) from None
            skip.append(subject)
            _take_failure(suite, findings, failed, request, subject, index, ended)


def take(suite: Suite, findings: list[Finding], failed: list[str], message: Message) -> None:
    """Note what a child's "done" says of a subject."""
    suite.cases += message["cases"]
    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
    if message["cases"]:
        packing = {name: message[name] for name in ("launches", "packed", "seconds") if name in message}
        suite.judged.append(Judged(message["op"], message["subject"], message["where"], message["cases"], **packing))
    if message["finding"]:
        failed.append(message["subject"])
        findings.append(finding_from_json(message["finding"]))


def _take_failure(
    suite: Suite,
    findings: list[Finding],
    failed: list[str],
    request: OpsRequest,
    subject: str,
    index: int,
    ended: ChildEnded,
) -> None:
    """A child ended on a case: let a fresh one make the finding of it."""
    question = {
        **request.to_json(),
        "mode": "ops.failure",
        "subject": subject,
        "index": index,
        "rule": "O7" if ended.hung else "O8",
        "text": ended.text,
    }
    for message in ask(question, request.hang_seconds):
        if message["event"] == "done":
            take(suite, findings, failed, message)


def replay_ops_twice(request: OpsRequest, replay: Path) -> Message:
    """Run a replay file's case in two processes under two hash seeds. Raises NondeterministicError when they differ."""
    one, two = (replay_ops(request, replay, hash_seed) for hash_seed in HASH_SEEDS)
    titles = [[violation["title"] for violation in message.get("violations", ())] for message in (one, two)]
    if titles[0] != titles[1]:
        raise NondeterministicError(f"{titles[0] or 'no violation'}, then {titles[1] or 'no violation'}")
    if one.get("digest") != two.get("digest"):
        raise NondeterministicError(f"the digest of the outputs was {one.get('digest')}, then {two.get('digest')}")
    return two


def replay_ops(request: OpsRequest, replay: Path, hash_seed: str = "", ask: Ask = ask, record: bool = False) -> Message:
    """Run a replay file's case on the request's target; returns the worker's "replayed" message, or one with
    `violations` of the rule that a dying or hanging child breaks. With `record` it has the outputs.
    """
    question = {**request.to_json(), "mode": "ops.replay", "replay": str(replay), "record": record}
    subject = ""
    try:
        for message in ask(question, request.hang_seconds, hash_seed):
            if message["event"] == "start":
                subject = message["subject"]
            if message["event"] == "replayed":
                return message
    except ChildEnded as ended:
        if not subject:
            raise ended_early(request.target, ended) from None
        violation = {
            "rule": "O7" if ended.hung else "O8",
            "sentence": "",
            "title": ended.text,
            "expected": "",
            "actual": ended.text,
        }
        return {
            "subject": subject,
            "where": "",
            "judged": True,
            "same_source": True,
            "digest": "",
            "violations": [violation],
            "explanation": "",
            "inputs": {},
            "expected": {},
        }
    raise no_answer(request.target)


def shrink_ops(request: OpsRequest, replay: Path, attempts: int, seconds: float = math.inf) -> Message:
    """Make a replay file's case smaller, for `seconds` at most; the message names the new
    file and the sizes before and after.
    """
    question = {
        **request.to_json(),
        "mode": "ops.shrink",
        "replay": str(replay),
        "attempts": attempts,
        "shrink_seconds": seconds,
    }
    return shrunk(question, request.hang_seconds)
