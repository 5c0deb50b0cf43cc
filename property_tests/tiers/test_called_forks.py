"""A function that is called in a fork again and again: `specsim.isolation.fork_runner.Called`."""

from __future__ import annotations

import mmap
import os
import signal
import sys
import time
from collections.abc import Iterator

import pytest

from specsim.isolation.fork_runner import Called, Ended

SECONDS = 20.0


class Counting:
    """Counts its calls in memory that is shared, and does what it is told."""

    def __init__(self) -> None:
        self.memory = mmap.mmap(-1, 2)
        self._calls = 0

    def __call__(self, argument: bytes) -> None:
        self._calls += 1
        self.memory[0] = self._calls
        match argument:
            case b"raise":
                raise ValueError("what it was asked for")
            case b"exit":
                sys.exit(3)
            case b"kill":
                os.kill(os.getpid(), signal.SIGKILL)
            case b"hang":
                time.sleep(60)


@pytest.fixture
def counting() -> Counting:
    return Counting()


@pytest.fixture
def called(counting: Counting) -> Iterator[Called]:
    fork = Called(counting)
    yield fork
    fork.close()


def test_calls_are_made_in_one_fork_an_exception_or_not(called: Called, counting: Counting) -> None:
    for number, argument in enumerate((b"go", b"raise", b"go"), 1):
        assert called.call(argument, SECONDS) is None
        assert counting.memory[0] == number


@pytest.mark.parametrize(
    ("argument", "seconds", "ended"),
    [
        (b"exit", SECONDS, Ended(False, "ends its process (exit code 3)")),
        (b"kill", SECONDS, Ended(False, "ends its process (SIGKILL)")),
        (b"hang", 0.2, Ended(True, "does not end within 0.2 s")),
    ],
)
def test_how_a_fork_ended_is_said(called: Called, argument: bytes, seconds: float, ended: Ended) -> None:
    assert called.call(b"go", SECONDS) is None
    assert called.call(argument, seconds) == ended
