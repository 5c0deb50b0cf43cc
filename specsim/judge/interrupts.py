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
from collections.abc import Iterator
from contextlib import contextmanager

WHY = "the check was interrupted"
SPENT = "the time budget was spent; give a larger --budget-seconds"
HINT = "specsim: interrupted: writing what was found. Once more ends it at once."

_asked = False
_children: set[int] = set()  # process ids


def asked() -> bool:
    """Whether this process was interrupted."""
    return _asked


def why_not_run() -> str:
    """Why what was left out was left out."""
    return WHY if _asked else SPENT


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
    _children.add(child)
    try:
        if _asked:
            _interrupt(child)
        yield
    finally:
        _children.discard(child)


@contextmanager
def gentle() -> Iterator[None]:
    """The first interrupt asks, the second one is a KeyboardInterrupt. Afterwards this process was not interrupted."""
    global _asked
    if threading.current_thread() is not threading.main_thread():  # the only one that may say what a signal does
        yield
        return

    def ask(_number: int, _frame: object) -> None:
        global _asked
        if _asked:
            raise KeyboardInterrupt
        _asked = True
        print(f"\n{HINT}", file=sys.stderr, flush=True)
        for child in list(_children):
            _interrupt(child)

    before = signal.signal(signal.SIGINT, ask)
    try:
        yield
    finally:
        _asked = False
        signal.signal(signal.SIGINT, before)


def _interrupt(child: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(child, signal.SIGINT)
