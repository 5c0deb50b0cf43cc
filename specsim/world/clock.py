"""The modules `time`, `random` and `uuid` that a release sees: a clock that advances with the scheduler's iterations,
and seeded draws.

They are given to the modules of the release alone, when those import them; torch, specsim and the standard library
keep the real ones. Every reading of the clock is later than the one before, so that orders by time are those in which
things happened.
"""

from __future__ import annotations

import random
import time
import types
import uuid

READING_NANOSECONDS = 1_000  # one reading of the clock
ITERATION_NANOSECONDS = 10_000_000  # one iteration of the scheduler's loop
START_NANOSECONDS = 1_700_000_000 * 10**9  # of a schedule, since the epoch


class Surroundings:
    """One virtual clock and one source of draws, and the modules through which a release reads them."""

    def __init__(self) -> None:
        self._now = START_NANOSECONDS
        self._draws = random.Random(0)
        self.modules = {
            "time": overridden(
                time,
                time=self.seconds,
                monotonic=self.seconds,
                perf_counter=self.seconds,
                process_time=self.seconds,
                time_ns=self.nanoseconds,
                monotonic_ns=self.nanoseconds,
                perf_counter_ns=self.nanoseconds,
                sleep=self.sleep,
            ),
            "random": overridden(
                random,
                **{name: getattr(self._draws, name) for name in random.__all__ if hasattr(random.Random, name)},
            ),
            "uuid": overridden(uuid, uuid1=self._uuid, uuid4=self._uuid),
        }

    def restart(self, seed: int = 0) -> None:
        self._now = START_NANOSECONDS
        self._draws.seed(seed)

    def next_iteration(self) -> None:
        self._now += ITERATION_NANOSECONDS

    def nanoseconds(self) -> int:
        self._now += READING_NANOSECONDS
        return self._now

    def seconds(self) -> float:
        return self.nanoseconds() / 1e9

    def sleep(self, seconds: float) -> None:
        """Time passes, and nobody waits."""
        self._now += round(seconds * 1e9)

    def _uuid(self, *_arguments: object) -> uuid.UUID:
        return uuid.UUID(int=self._draws.getrandbits(128), version=4)


def overridden(module: types.ModuleType, **names: object) -> types.ModuleType:
    """A module with all that `module` has, but for `names`."""
    made = types.ModuleType(module.__name__, module.__doc__)
    vars(made).update({name: value for name, value in vars(module).items() if not name.startswith("__")}, **names)
    return made
