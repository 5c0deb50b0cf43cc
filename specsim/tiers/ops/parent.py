"""The ops tier in the parent: judge every implementation that a target has.

The child is the trusted side of `specsim.tiers.ops.target_process`: a call that hangs or ends its process is a finding
for that one implementation there. A child that dies is no finding: nothing of the target runs in it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from specsim.tiers.accounting.parent import HASH_SEEDS, NondeterministicError
from specsim.tiers.parent import START_SECONDS_MAX, Ask, ChildEnded, Message, ask, ended_early, no_answer, shrunk
from specsim.tiers.transfer import kept, received
from specsim.verdict import Finding, Judged, NotRun, Suite


@dataclass(frozen=True, slots=True)
class OpsRequest:
    """What to run. `cases` of each implementation and `attempts` at a smaller case of each finding, for `seconds` at
    most; `hang_seconds` is the limit of one call, `operation` the one that is judged, "" for all. Without `shrinks`
    what is found stays as large as it is, and so do the signatures `known`. The cases of the replay files in the folder
    `fixtures` are run first ("" for none), and the implementations `first` before the others.
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
    attempts: int | None = None
    fixtures: str = ""
    first: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "cache": str(self.cache),
            "seed": self.seed,
            "cases": self.cases,
            "seconds": self.seconds,
            "hang_seconds": self.hang_seconds,
            "device": self.device,
            "operation": self.operation,
            "shrinks": self.shrinks,
            "known": list(self.known),
            "attempts": self.attempts,
            "fixtures": self.fixtures,
            "first": list(self.first),
        }


def run_ops_suite(request: OpsRequest, progress: Callable[[str, int], None]) -> tuple[Suite, list[Finding]]:
    """Judge every implementation that the target has. `progress(subject, cases)` is called as cases run."""
    suite = Suite("ops")
    findings: list[Finding] = []
    started = time.monotonic()
    question = {**request.to_json(), "mode": "ops.check"}
    try:
        for message in ask(question, request.hang_seconds + START_SECONDS_MAX):
            if message["event"] == "case":
                progress(message["subject"], message["cases"])
            elif message["event"] == "done":
                take(suite, findings, message, request.out)
            elif message["event"] == "end":
                suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
    except ChildEnded as ended:
        raise ended_early(request.target, ended) from None
    suite.seconds = time.monotonic() - started
    return suite, findings


def take(suite: Suite, findings: list[Finding], message: Message, out: Path) -> None:
    """Note what a child's "done" says of a subject."""
    suite.cases += message["cases"]
    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
    if message["cases"]:
        packing = {name: message[name] for name in ("launches", "packed", "seconds") if name in message}
        suite.judged.append(Judged(message["op"], message["subject"], message["where"], message["cases"], **packing))
    if message["found"]:
        findings.append(received(message["found"], out))


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
    """Run a replay file's case on the request's target; returns the child's "replayed" message, whose `violations` say
    too when the case ended its process. With `record` it has the outputs.
    """
    question = {**request.to_json(), "mode": "ops.replay", "replay": str(replay), "record": record}
    try:
        for message in ask(question, request.hang_seconds + START_SECONDS_MAX, hash_seed):
            if message["event"] == "replayed":
                return message
    except ChildEnded as ended:
        raise ended_early(request.target, ended) from None
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
    return kept(shrunk(question, request.hang_seconds + START_SECONDS_MAX), request.out)
