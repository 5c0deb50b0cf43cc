"""Run something in a fork of this process, and say how that ended; find what part of it is to blame.

A fork costs milliseconds where a new child costs seconds. On a GPU the process that forks must not have used the
device, which its forks start for themselves.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time
from collections.abc import Callable
from typing import NamedTuple

from specsim.isolation import pipes
from specsim.isolation.processes import Patience, fork

POLL_SECONDS = 0.002
LOST = 65  # exit code of a fork whose device is lost
_CAME_TO_ITS_END = (
    64  # and of one that came to its end; 0 is what a function gives that ends its process and means no harm
)


class Ended(NamedTuple):
    """How a fork ended that did not come to its end. `hung` says that it had to be ended."""

    hung: bool
    text: str


def run_apart(function: Callable[[], object], seconds_max: float) -> Ended | None:
    """Call `function` in a fork; None when it comes to its end, be it by an exception."""
    pid = fork()
    if pid == 0:
        try:
            function()
        except SystemExit as asked:
            os._exit(asked.code if isinstance(asked.code, int) else int(asked.code is not None))
        except BaseException:  # what is looked for is what takes a process with it
            os._exit(_CAME_TO_ITS_END)
        os._exit(_CAME_TO_ITS_END)
    patience = Patience(pid, seconds_max)
    while True:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done:
            return _ended(os.waitstatus_to_exitcode(status))
        if patience.is_over:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return Ended(True, f"does not end within {seconds_max:g} s")
        time.sleep(POLL_SECONDS)


class Called:
    """A function that is called in a fork of this process, each time in the same one. Close it."""

    def __init__(self, function: Callable[[bytes], object]) -> None:
        questions, self._questions = os.pipe()
        self._answers, answers = os.pipe()
        self._pid = fork()
        if self._pid == 0:
            os.close(self._questions)
            os.close(self._answers)
            _call_until_closed(function, questions, answers)
        os.close(questions)
        os.close(answers)

    def call(self, argument: bytes, seconds_max: float) -> Ended | None:
        """None when the call comes to its end, be it by an exception. After another end there is no fork any more."""
        patience = Patience(self._pid, seconds_max)
        with contextlib.suppress(BrokenPipeError):
            pipes.send(self._questions, argument)
        while not select.select([self._answers], [], [], patience.left)[0]:
            if patience.is_over:
                os.kill(self._pid, signal.SIGKILL)
                self._wait()
                return Ended(True, f"does not end within {seconds_max:g} s")
        return None if os.read(self._answers, 1) else _ended(self._wait())

    def close(self) -> None:
        os.close(self._questions)
        os.close(self._answers)
        self._wait()

    def _wait(self) -> int:
        """Its exit status, once; it ends where its pipes are closed, or ended by itself."""
        pid, self._pid = self._pid, 0
        return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) if pid else 0


def _call_until_closed(function: Callable[[bytes], object], questions: int, answers: int) -> None:
    """In the fork. Does not return."""
    while argument := pipes.received(questions):
        try:
            function(argument)
        except SystemExit as asked:
            os._exit(asked.code if isinstance(asked.code, int) else int(asked.code is not None))
        except BaseException:  # what is looked for is what takes a process with it
            pass
        os.write(answers, b".")
    os._exit(0)


def _ended(code: int) -> Ended | None:
    if code == _CAME_TO_ITS_END:
        return None
    if code == LOST:
        return Ended(False, "leaves a device that does no more work")
    return Ended(False, f"ends its process ({signal.Signals(-code).name if code < 0 else f'exit code {code}'})")


def blame(ends: Callable[[int, int], Ended | None], first: int, count: int) -> tuple[int, int, Ended | None]:
    """The one of `first`, `first` + 1, ... on which `ends(first, 1)` says that a process ends; all `count` of them, and
    what `ends` says of them, when it takes several. `ends` is asked of halves.
    """
    start, size = first, count
    while size > 1:
        half = size // 2
        if ends(start, half):
            size = half
        else:
            start, size = start + half, size - half
    ended = ends(start, 1)
    return (start, 1, ended) if ended else (first, count, ends(first, count))
