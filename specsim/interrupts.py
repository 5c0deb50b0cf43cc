"""An interrupt from the keyboard (Ctrl-C) ends a check gently: what was found is kept.

The first one asks: the child stops where it is, writes what it found without making it smaller, and says so; the parent
starts nothing more. The second one ends everything at once. A terminal interrupts every process of the group, `kill`
only one: the parent passes it on, and being asked twice is being asked once.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from specsim import deadline

WHY = "the check was interrupted"
SPENT = f"{deadline.SPENT}; give a larger --budget-seconds"
HINT = "specsim: interrupted: writing what was found. Once more ends it at once."


_asked = False
_to_tell: list[Callable[[], None]] = []


def asked() -> bool:
    """Whether this process was interrupted."""
    return _asked


def why_not_run() -> str:
    """Why what was left out was left out."""
    return WHY if _asked else SPENT


def until(seconds: float) -> Callable[[], bool]:
    """Whether to go on: for so many seconds from now, unless this process is interrupted."""
    end = time.monotonic() + seconds
    return lambda: not _asked and time.monotonic() < end


def listen() -> None:
    """In a child: note an interrupt instead of ending."""

    def note(_number: int, _frame: object) -> None:
        global _asked
        _asked = True

    signal.signal(signal.SIGINT, note)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})


@contextmanager
def held() -> Iterator[None]:
    """Hold interrupts back, for a child that is to start with them held back: it has nothing to note them with yet."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def passed_on(child: int) -> Iterator[None]:
    """Meanwhile an interrupt is passed on to the process `child`."""

    def interrupt() -> None:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGINT)

    with told(interrupt):
        yield


def tell_all() -> None:
    """Interrupt what `told` and `passed_on` name, though this process was not interrupted."""
    for stop in _to_tell:
        stop()


@contextmanager
def told(stop: Callable[[], None]) -> Iterator[None]:
    """Meanwhile an interrupt calls `stop`, also one that was there before."""
    _to_tell.append(stop)
    try:
        if _asked:
            stop()
        yield
    finally:
        _to_tell.remove(stop)


@contextmanager
def termination_asks() -> Iterator[None]:
    """SIGTERM, by which `timeout` and batch systems end a program, is an interrupt from the keyboard."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def ask(_number: int, _frame: object) -> None:
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGTERM, ask)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@contextmanager
def gentle() -> Iterator[None]:
    """The first interrupt asks, the second one is a KeyboardInterrupt. Afterwards this process was not interrupted."""
    global _asked
    if threading.current_thread() is not threading.main_thread():  # the only one that may say what a signal does
        yield
        return

    def ask(_number: int, _frame: object) -> None:
        global _asked
        again, _asked = _asked, True
        for stop in _to_tell:
            stop()
        if again:
            raise KeyboardInterrupt
        print(f"\n{HINT}", file=sys.stderr, flush=True)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        _asked = False
        signal.signal(signal.SIGINT, before)
