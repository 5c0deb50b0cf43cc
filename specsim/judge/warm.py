"""The parent's end of a warm child: the same questions and messages as `specsim.judge.parent.ask`, without waiting for
torch each time. For commands that judge many targets in a row.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from specsim import interrupts
from specsim.errors import UsageError
from specsim.judge.parent import PROGRESS_EVENTS, START_SECONDS_MAX, Answers, ChildEnded, Message, tail


class WarmChild:
    """One process that forks for each question, under one PYTHONHASHSEED. It is started at once, and again after a
    question that it did not survive. Close it at the end. `module` is what it runs.
    """

    def __init__(self, hash_seed: str, module: str = "specsim.judge.warm_child") -> None:
        self._hash_seed = hash_seed
        self._module = module
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        fcntl.fcntl(self._stderr.fileno(), fcntl.F_SETFL, os.O_APPEND)
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def close(self) -> None:
        """End the child, whatever it does."""
        self._end()
        self._stderr.close()

    def interrupt(self) -> None:
        """Pass an interrupt on to the child."""
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGINT)

    def ask(self, question: dict[str, Any], hang_seconds: float, hash_seed: str = "") -> Iterator[Message]:
        """As `specsim.judge.parent.ask`; `hash_seed` is the one that the child was started with, or "" for it."""
        assert hash_seed in ("", self._hash_seed)
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()
        self._stderr.truncate(0)  # what a target prints for hours is not to fill the disk
        answers = Answers(self._reader, START_SECONDS_MAX)
        messages = iter(answers)
        is_open = self._send(question)
        try:
            for message in messages:
                if message is None:
                    raise ChildEnded(True, f"does not end within {answers.limit_s:g} s", tail(self._stderr))
                if message["event"] == "ended":
                    is_open = False
                    if message["code"]:
                        raise ChildEnded(False, _how(message["code"]), tail(self._stderr))
                    return
                if message["event"] == "error":
                    raise UsageError(message["problem"], message["remedy"])
                answers.limit_s = hang_seconds if message["event"] in PROGRESS_EVENTS else START_SECONDS_MAX
                yield message
            is_open = False
            code = self._process.wait() if self._process else 0
            raise ChildEnded(False, _how(code), tail(self._stderr))
        finally:
            # Who asked may have heard enough before the end: the next question must not hear the rest.
            if is_open and not any(message and message["event"] == "ended" for message in messages):
                self._end()

    def _send(self, question: dict[str, Any]) -> bool:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question).encode() + b"\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            return False
        return True

    def _start(self) -> None:
        self._reader, writer = os.pipe()
        # The child finds specsim where this process found it, whatever its own path says.
        path = os.pathsep.join(dict.fromkeys([str(Path(__file__).parents[2]), *filter(None, sys.path)]))
        with interrupts.held():  # until the child can note them
            self._process = subprocess.Popen(
                [sys.executable, "-m", self._module, str(writer)],
                stdin=subprocess.PIPE,
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=[writer],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": path, "PYTHONHASHSEED": self._hash_seed},
            )
        os.close(writer)

    def _end(self) -> None:
        if self._process is None:
            return
        # The child began a session of its own: its group is it and its forks.
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        with contextlib.suppress(BrokenPipeError):
            if self._process.stdin is not None:
                self._process.stdin.close()
        os.close(self._reader)
        self._process = None


def _how(code: int) -> str:
    return f"ends its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})"
