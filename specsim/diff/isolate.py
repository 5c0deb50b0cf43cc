"""The parent's side of the ops tier: run a target's code in a child process, and survive whatever it does.

A call that hangs is ended after a limit; a child that dies is noticed; either is a finding for that one
implementation, and a new child goes on with the next. This module imports neither torch nor triton.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from specsim.errors import UsageError
from specsim.verdict import Finding, Judged, NotRun, Severity, Suite

Message = dict[str, Any]
START_SECONDS_MAX = 120.0  # a child imports torch and triton, and lifts the target


@dataclass(frozen=True, slots=True)
class OpsRequest:
    """What to run. `seconds` is the time budget, `hang_seconds` the limit of one call."""

    target: str
    cache: Path
    seed: int
    cases: int
    seconds: float
    hang_seconds: float
    device: str
    out: Path

    def to_json(self) -> dict[str, Any]:
        return {
            "target": self.target,
            "cache": str(self.cache),
            "seed": self.seed,
            "cases": self.cases,
            "seconds": self.seconds,
            "device": self.device,
            "out": str(self.out),
        }


class _Ended(Exception):  # noqa: N818 - not an error: how a child process ended
    """The child ended or was ended before its work was done. `rule` is the rule that this breaks."""

    def __init__(self, rule: str, text: str, stderr: str) -> None:
        super().__init__(text)
        self.rule = rule
        self.text = text
        self.stderr = stderr


def run_ops_suite(request: OpsRequest, progress: Callable[[str, int], None]) -> tuple[Suite, list[Finding]]:
    """Judge every implementation that the target has. `progress(subject, cases)` is called as cases run."""
    suite = Suite("ops")
    findings: list[Finding] = []
    started = time.monotonic()
    skip: list[str] = []
    failed: list[str] = []
    while True:
        remaining = max(0.0, request.seconds - (time.monotonic() - started))
        question = {**request.to_json(), "mode": "check", "seconds": remaining, "skip": skip, "failed": failed}
        subject, index = "", 0
        try:
            for message in _ask(question, request.hang_seconds):
                if message["event"] == "start":
                    subject, index = message["subject"], 0
                elif message["event"] == "case":
                    index = message["index"]
                    progress(subject, suite.cases + max(0, index))
                elif message["event"] == "done":
                    skip.append(subject)
                    _take(suite, findings, failed, message)
                elif message["event"] == "end":
                    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
                    suite.seconds = time.monotonic() - started
                    return suite, findings
        except _Ended as ended:
            if not subject or subject in skip:
                raise UsageError(
                    f"the process that runs {request.target} ended before any of its code ran ({ended.text})",
                    ended.stderr or "run `specsim targets` to see what works here",
                ) from None
            skip.append(subject)
            _take_failure(suite, findings, failed, request, subject, index, ended)


def _take(suite: Suite, findings: list[Finding], failed: list[str], message: Message) -> None:
    suite.cases += message["cases"]
    suite.not_run += [NotRun(**entry) for entry in message["not_run"]]
    if message["cases"]:
        suite.judged.append(Judged(message["op"], message["subject"], message["where"], message["cases"]))
    if message["finding"]:
        failed.append(message["subject"])
        findings.append(finding_from_json(message["finding"]))


def finding_from_json(data: dict[str, Any]) -> Finding:
    return Finding(**{**data, "severity": Severity(data["severity"]), "details": tuple(data["details"])})


def _take_failure(
    suite: Suite,
    findings: list[Finding],
    failed: list[str],
    request: OpsRequest,
    subject: str,
    index: int,
    ended: _Ended,
) -> None:
    """A child ended on a case: let a fresh one make the finding of it."""
    question = {
        **request.to_json(),
        "mode": "failure",
        "subject": subject,
        "index": index,
        "rule": ended.rule,
        "text": ended.text,
    }
    for message in _ask(question, request.hang_seconds):
        if message["event"] == "done":
            _take(suite, findings, failed, message)


def replay_ops(request: OpsRequest, replay: Path) -> Message:
    """Run a replay file's case on the request's target; returns the worker's "replayed" message, or one with
    `violations` of the rule that a dying or hanging child breaks.
    """
    question = {**request.to_json(), "mode": "replay", "replay": str(replay)}
    subject = ""
    try:
        for message in _ask(question, request.hang_seconds):
            if message["event"] == "start":
                subject = message["subject"]
            if message["event"] == "replayed":
                return message
    except _Ended as ended:
        if not subject:
            raise UsageError(
                f"the process that runs {request.target} ended early ({ended.text})", ended.stderr
            ) from None
        violation = {"rule": ended.rule, "sentence": "", "title": ended.text, "expected": "", "actual": ended.text}
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
    raise UsageError(f"the process that runs {request.target} gave no answer", "report this as a defect of specsim")


def _ask(question: dict[str, Any], hang_seconds: float) -> Iterator[Message]:
    """Start a child, give it the question, and yield its messages. Raises _Ended when it dies or hangs, UsageError
    when it says so.
    """
    with _child(question) as (process, messages, stderr):
        answers = _Answers(messages, START_SECONDS_MAX)
        finished = False
        for message in answers:
            if message is None:
                process.kill()
                raise _Ended("O7", f"does not end within {answers.limit_s:g} s", _tail(stderr))
            if message["event"] == "error":
                raise UsageError(message["problem"], message["remedy"])
            answers.limit_s = hang_seconds if message["event"] in ("case", "start") else START_SECONDS_MAX
            finished = message["event"] in ("end", "replayed")
            yield message
        code = process.wait()
        if code and not finished:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise _Ended("O8", f"ends its process ({name})", _tail(stderr))


@contextmanager
def _child(question: dict[str, Any]) -> Iterator[tuple[subprocess.Popen[bytes], int, IO[bytes]]]:
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as stderr:
        # The child finds specsim where this process found it, whatever its own path says.
        path = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
        process = subprocess.Popen(
            [sys.executable, "-m", "specsim.diff.worker", str(writer)],
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            pass_fds=[writer],
            env={**os.environ, "PYTHONPATH": path},
        )
        os.close(writer)
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(question).encode())
                process.stdin.close()
            except BrokenPipeError:
                pass
            yield process, reader, stderr
        finally:
            os.close(reader)
            if process.poll() is None:
                process.kill()
            process.wait()


class _Answers:
    """Messages from the pipe until it closes; None when none comes within `limit_s`, which may be changed meanwhile."""

    def __init__(self, fd: int, limit_s: float) -> None:
        self._fd = fd
        self.limit_s = limit_s

    def __iter__(self) -> Iterator[Message | None]:
        pending = b""
        with selectors.DefaultSelector() as selector:
            selector.register(self._fd, selectors.EVENT_READ)
            while True:
                if not selector.select(self.limit_s):
                    yield None
                    return
                chunk = os.read(self._fd, 1 << 16)
                if not chunk:
                    return
                *lines, pending = (pending + chunk).split(b"\n")
                for line in lines:
                    yield json.loads(line)


def _tail(stderr: IO[bytes]) -> str:
    stderr.seek(0)
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
