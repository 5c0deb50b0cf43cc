"""The parent's end: start a child, ask it, and notice when it dies or hangs.

A call that hangs is ended after a limit; a child that dies is noticed. Imports neither torch nor triton.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from specsim import interrupts
from specsim.errors import UsageError

Message = dict[str, Any]
# How a child is asked: the question, the limit of one call in seconds, PYTHONHASHSEED or "".
Ask = Callable[[dict[str, Any], float, str], Iterator[Message]]
PROGRESS_EVENTS = ("start", "case", "schedule")
LAST_EVENTS = ("end", "replayed", "done alone")
TAIL_BYTES = 1 << 16  # of what was printed, in which the last line is looked for
START_SECONDS_MAX = 120.0  # a child imports torch and triton, and lifts the target


class ChildEnded(Exception):  # noqa: N818 - not an error: how a child process ended
    """The child died or was ended before its work was done. `hung` says which."""

    def __init__(self, hung: bool, text: str, stderr: str) -> None:
        super().__init__(text)
        self.hung = hung
        self.text = text
        self.stderr = stderr


def ended_early(target: str, ended: ChildEnded) -> UsageError:
    """A child that ended before any of the target's code ran: nothing of the target can be blamed."""
    return UsageError(
        f"the process that runs {target} ended early ({ended.text})",
        ended.stderr or "run `specsim targets` to see what works here",
    )


def no_answer(target: str) -> UsageError:
    return UsageError(f"the process that runs {target} gave no answer", "report this as a defect of specsim")


def shrunk(question: dict[str, Any], hang_seconds: float) -> Message:
    """What a child that was asked to make a replay file smaller says of it: the new file, and the sizes before and
    after.
    """
    try:
        for message in ask(question, hang_seconds):
            if message["event"] == "done alone":
                return message
    except ChildEnded as ended:
        raise ended_early(question["target"], ended) from None
    raise no_answer(question["target"])


def ask(question: dict[str, Any], hang_seconds: float, hash_seed: str = "") -> Iterator[Message]:
    """Start a child, give it the question, and yield its messages. Raises ChildEnded when it dies or hangs, UsageError
    when it says so. `hash_seed` is the child's PYTHONHASHSEED, "" for this process' own.
    """
    with _child(question, hash_seed) as (process, messages, stderr):
        answers = Answers(messages, START_SECONDS_MAX)
        finished = False
        for message in answers:
            if message is None:
                process.kill()
                raise ChildEnded(True, f"does not end within {answers.limit_s:g} s", tail(stderr))
            if message["event"] == "answered":
                finished = True
                continue
            if message["event"] == "error":
                raise UsageError(message["problem"], message["remedy"])
            answers.limit_s = hang_seconds if message["event"] in PROGRESS_EVENTS else START_SECONDS_MAX
            finished = message["event"] in LAST_EVENTS
            yield message
        if not finished:
            code = process.wait()
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            raise ChildEnded(False, f"ends its process ({name})", tail(stderr))


@contextmanager
def _child(question: dict[str, Any], hash_seed: str) -> Iterator[tuple[subprocess.Popen[bytes], int, IO[bytes]]]:
    reader, writer = os.pipe()
    with tempfile.TemporaryFile() as stderr:
        # The child finds specsim where this process found it, whatever its own path says.
        path = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
        with interrupts.held():
            process = subprocess.Popen(
                [sys.executable, "-m", "specsim.judge.child", str(writer)],
                stdin=subprocess.PIPE,
                stdout=stderr,
                stderr=stderr,
                pass_fds=[writer],
                env={**os.environ, "PYTHONPATH": path, **({"PYTHONHASHSEED": hash_seed} if hash_seed else {})},
            )
        os.close(writer)
        try:
            assert process.stdin is not None
            try:
                process.stdin.write(json.dumps(question).encode())
                process.stdin.close()
            except BrokenPipeError:
                pass
            with interrupts.passed_on(process.pid):
                yield process, reader, stderr
        finally:
            os.close(reader)
            if process.poll() is None:
                process.kill()
            process.wait()


class Answers:
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


def tail(stderr: IO[bytes], start: int = 0) -> str:
    """The last line that was printed from the byte `start` on, "" for none."""
    stderr.seek(max(start, stderr.seek(0, os.SEEK_END) - TAIL_BYTES))
    lines = stderr.read().decode(errors="replace").strip().splitlines()
    return lines[-1] if lines else ""
