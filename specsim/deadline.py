"""The moment at which work ends: how every command keeps `--budget-seconds`.

Work that can end by itself looks at a `Deadline` between its steps, in a child too: it is a moment of the monotonic
clock, which all processes of a machine share. What cannot look, a call that takes long or a wait for a child, runs
inside `enforced`.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

SPENT = "the time budget was spent"
GRACE_SECONDS = 1.0  # for a child that looks at the same deadline to say what it did by then


class TimeSpent(BaseException):
    """The deadline is over."""


@dataclass(frozen=True, slots=True)
class Deadline:
    """`at` is a moment of time.monotonic(), infinity for none."""

    at: float

    @classmethod
    def after(cls, seconds: float | None) -> Deadline:
        """The deadline so many seconds from now; never for None."""
        return NEVER if seconds is None else cls(time.monotonic() + seconds)

    @classmethod
    def from_json(cls, at: float | None) -> Deadline:
        return NEVER if at is None else cls(at)

    def to_json(self) -> float | None:
        """For a child on this machine."""
        return None if math.isinf(self.at) else self.at

    @property
    def left(self) -> float:
        """Seconds until then, 0 when it is over."""
        return max(0.0, self.at - time.monotonic())

    @property
    def is_over(self) -> bool:
        return time.monotonic() >= self.at

    @property
    def timeout(self) -> float | None:
        """How long to wait for a child that looks at this deadline too; None for ever."""
        return None if math.isinf(self.at) else self.left + GRACE_SECONDS

    def sooner(self, seconds: float) -> Deadline:
        """This one, or the one so many seconds from now when that comes first."""
        return Deadline(min(self.at, time.monotonic() + seconds))

    @contextmanager
    def enforced(self) -> Iterator[None]:
        """Raise TimeSpent at the deadline in what runs inside. For the main thread, which alone gets signals, and one
        at a time.
        """
        if self.is_over:
            raise TimeSpent(SPENT)
        if math.isinf(self.at) or threading.current_thread() is not threading.main_thread():
            yield
            return

        def end(_number: int, _frame: object) -> None:
            raise TimeSpent(SPENT)

        before = signal.signal(signal.SIGALRM, end)
        signal.setitimer(signal.ITIMER_REAL, max(0.001, self.left))
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0.0)
            signal.signal(signal.SIGALRM, before)


NEVER = Deadline(math.inf)
