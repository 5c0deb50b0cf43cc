"""The parent's end of a fork server: the questions and messages of `specsim.isolation.conversation`, without waiting
for torch each time. For commands that run many targets in a row.

Each question has a pipe of its own for its messages, which the child is handed with the question: what one question
left behind cannot be heard by the next.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from typing import IO, Any

from specsim.isolation import environment, processes
from specsim.isolation.conversation import START_SECONDS_MAX, ChildQuestion, Conversation, blamed, envelope, tail
from specsim.isolation.frames import new_nonce
from specsim.isolation.questions import CODE, put

END_SECONDS = 5.0  # for whoever has answered


class ForkServer:
    """One process that forks for each question, under one PYTHONHASHSEED. It is started at once, and again after a
    question that it did not survive. Close it at the end. `module` is what it runs, `kinds` the union of the messages
    that it sends; what `prepare` makes of each question is put.
    """

    def __init__(self, hash_seed: str, module: str, kinds: Any, prepare: Callable[[Any], Any]) -> None:
        self._hash_seed = hash_seed
        self._module = module
        self._kinds = kinds
        self._prepare = prepare
        self._stderr: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        fcntl.fcntl(self._stderr.fileno(), fcntl.F_SETFL, os.O_APPEND)
        self._process: subprocess.Popen[bytes] | None = None
        self._start()

    def close(self) -> None:
        """End the child, whatever it does."""
        self._end()
        self._stderr.close()

    def ask(self, request: ChildQuestion, hang_seconds: float, hash_seed: str = "") -> Iterator[Any]:
        """The messages of a question; `hash_seed` is the one that the child was started with, or "" for it."""
        assert hash_seed in ("", self._hash_seed)
        with self._conversation(request, hang_seconds) as conversation:
            yield from blamed(conversation, request.target)

    @contextlib.contextmanager
    def _conversation(self, request: ChildQuestion, hang_seconds: float) -> Iterator[Conversation]:
        if self._process is None or self._process.poll() is not None:
            self._end()
            self._start()
        self._stderr.truncate(0)  # what a target prints for hours is not to fill the disk
        request = self._prepare(request)
        nonce = new_nonce()
        asked = envelope(request, nonce)
        reader, writer = os.pipe()
        codes: list[int] = []

        def gone() -> int | None:
            """How whoever answered ended: as the child says, or with the child."""
            if not codes:
                try:
                    told = self._control.recv(CODE.size)
                except BlockingIOError:
                    return None
                except OSError:  # it was killed before it took the question
                    told = b""
                codes.append(CODE.unpack(told)[0] if len(told) == CODE.size else self._killed())
            return codes[0]

        try:
            try:
                self._control.settimeout(START_SECONDS_MAX)
                put(self._control, asked, writer)
                self._control.setblocking(False)
            except OSError:
                codes.append(self._killed())  # it is gone: nothing comes
            finally:
                os.close(writer)
            limit_s = min(hang_seconds, request.hang_seconds)
            bell = None if codes else self._control.fileno()
            conversation = Conversation(reader, nonce, self._kinds, gone, limit_s, lambda: tail(self._stderr), bell)
            try:
                yield conversation
            finally:
                if conversation.is_answered and not codes:  # who gave the answer ends by itself
                    select.select([self._control], [], [], END_SECONDS)
        finally:
            # Who asked may have heard enough before the end: the next question must not wait for it.
            if gone() is None:
                self._end()
            os.close(reader)

    def _killed(self) -> int:
        """The exit status of the child that does not answer any more."""
        process, self._process = self._process, None
        if process is None:
            return -signal.SIGKILL
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(START_SECONDS_MAX)
        code = processes.end(process)
        self._control.close()
        return code

    def _start(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            self._process = processes.start(
                [sys.executable, "-m", self._module, str(theirs.fileno())],
                environment.of_target(hash_seed=self._hash_seed),
                stdout=self._stderr,
                stderr=self._stderr,
                pass_fds=[theirs.fileno()],
                holds_interrupts=True,
            )

    def _end(self) -> None:
        if self._process is not None:
            processes.end(self._process)
            self._control.close()
            self._process = None
