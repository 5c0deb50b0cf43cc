"""The workers tier in the parent: run the probes of a target, and survive whatever its functions do.

A case that hangs or a child that dies is a finding for that one probe, and a new child goes on with the next.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.engines.probe import BY_ID, signature_of
from specsim.errors import UsageError
from specsim.tiers.accounting.parent import HASH_SEEDS, NondeterministicError
from specsim.tiers.parent import Ask, ChildEnded, Message, ask, ended_early, no_answer, shrunk
from specsim.tiers.transfer import kept, process_finding, received
from specsim.verdict import Finding, Judged, NotRun, Suite


@dataclass(frozen=True, slots=True)
class WorkersRequest:
    """What to run. `cases` of each probe, and `attempts` at a smaller case of each finding, for `seconds` at most;
    `hang_seconds` is the limit of one case. Without `shrinks` what is found stays as large as it is, and so do the
    signatures `known`. The cases of the replay files in the folder `fixtures` are run first, "" for none.
    """

    target: str
    cache: Path
    seed: int
    cases: int
    seconds: float
    hang_seconds: float
    out: Path
    shrinks: bool = True
    known: tuple[str, ...] = ()
    attempts: int | None = None
    fixtures: str = ""

    def question(self, mode: str, **fields: Any) -> dict[str, Any]:
        return {
            "mode": f"workers.{mode}",
            "target": self.target,
            "cache": str(self.cache),
            "seed": self.seed,
            "cases": self.cases,
            "seconds": self.seconds,
            "shrinks": self.shrinks,
            "known": list(self.known),
            "attempts": self.attempts,
            "fixtures": self.fixtures,
            **fields,
        }


def run_workers_suite(request: WorkersRequest, progress: Callable[[str, int], None]) -> tuple[Suite, list[Finding]]:
    """Run every probe that the target has. `progress(probe, cases)` is called as cases run."""
    suite = Suite("workers")
    findings: list[Finding] = []
    started = time.monotonic()
    skip: list[str] = []
    unshrunk: list[str] = []
    while True:
        remaining = max(0.0, request.seconds - (time.monotonic() - started))
        probe, index = "", 0
        try:
            for message in ask(
                request.question("check", seconds=remaining, skip=skip, unshrunk=unshrunk), request.hang_seconds
            ):
                if message["event"] == "start":
                    probe, index = message["probe"], 0
                elif message["event"] == "case":
                    index = message["index"]
                    progress(probe, suite.cases + max(0, index))
                elif message["event"] == "done":
                    skip.append(message["probe"])
                    _take(suite, findings, message, request.out)
                elif message["event"] == "end":
                    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
                    suite.seconds = time.monotonic() - started
                    return suite, findings
        except ChildEnded as ended:
            if not probe or probe in skip:
                raise ended_early(request.target, ended) from None
            if index < 0 and probe not in unshrunk:  # a smaller case did: the one that was hit is a finding as it is
                unshrunk.append(probe)
                continue
            skip.append(probe)
            _take_failure(suite, findings, request, probe, max(0, index), ended)


def _take_failure(
    suite: Suite, findings: list[Finding], request: WorkersRequest, probe: str, index: int, ended: ChildEnded
) -> None:
    """A child ended on a case: let a fresh one make the finding of it, or make it here when that ends too."""
    rule = BY_ID["X2" if ended.hung else "X3"]
    question = request.question("failure", probe=probe, index=index, rule=rule.id, text=ended.text)
    why = "gave no answer"
    try:
        for message in ask(question, request.hang_seconds):
            if message["event"] == "done":
                _take(suite, findings, message, request.out)
                return
    except ChildEnded as again:
        why = again.text
    except UsageError as error:
        why = error.problem
    suite.cases += index + 1
    suite.judged.append(Judged(probe, "", "", index + 1))
    title, signature = f"{probe}: a case {ended.text}", signature_of(probe, rule.id)
    findings.append(process_finding("workers", rule, title, signature, f"case {index}", why))


def _take(suite: Suite, findings: list[Finding], message: Message, out: Path) -> None:
    suite.cases += message["cases"]
    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
    if message["cases"]:
        suite.judged.append(Judged(message["probe"], message["function"], message["where"], message["cases"]))
    findings += [received(found, out) for found in message["findings"]]


def replay_case(request: WorkersRequest, replay: Path, hash_seed: str = "", ask: Ask = ask) -> Message:
    """Run a replay file's case; the child's "replayed" message, or what ended the child as its `broken`."""
    started = False
    try:
        for message in ask(request.question("replay", replay=str(replay)), request.hang_seconds, hash_seed):
            started = started or message["event"] == "start"
            if message["event"] == "replayed":
                return message
    except ChildEnded as ended:
        if not started:
            raise ended_early(request.target, ended) from None
        rule = "X2" if ended.hung else "X3"
        broken = {"rule": rule, "what": ended.text, "expected": "", "actual": ended.text, "details": []}
        return {"same_case": True, "same_source": True, "where": "", "digest": "", "case": {}, "broken": [broken]}
    raise no_answer(request.target)


def replay_case_twice(request: WorkersRequest, replay: Path) -> Message:
    """Run a replay file's case in two processes under two hash seeds. Raises NondeterministicError when they differ."""
    one, two = (replay_case(request, replay, hash_seed) for hash_seed in HASH_SEEDS)
    if one["digest"] != two["digest"]:
        raise NondeterministicError(f"the digest was {one['digest']}, then {two['digest']}")
    return two


def shrink_case(request: WorkersRequest, replay: Path, attempts: int, seconds: float = math.inf) -> Message:
    """Make a replay file's case smaller, for `seconds` at most; the message names the new
    file and the sizes before and after.
    """
    question = request.question("shrink", replay=str(replay), shrink_seconds=seconds)
    return kept(shrunk({**question, "attempts": attempts}, request.hang_seconds), request.out)
