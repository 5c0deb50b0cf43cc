"""A sweep over several processes: parts of one seed's schedules are counted wherever there is room, and added up.

What was counted is kept: an interrupt, a process that dies, or a kill of this one lose no more than the parts that were
being counted, and since the last time it was written.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Callable, Collection, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

from specsim.deadline import NEVER, SPENT, Deadline
from specsim.isolation import processes
from specsim.tiers.accounting import sweep
from specsim.tiers.accounting.sweep import PART, Counts

SAVE_SECONDS = 30.0
Running = dict[Future[Counts], tuple[int, int]]
INTERRUPTED = "interrupted"


@dataclass(frozen=True, slots=True)
class Swept:
    """What a sweep counted. `ended` says why it did not come to its end, "" when it did."""

    seed: int
    wanted: int
    parts: dict[tuple[int, int], Counts]  # by the schedules that they are of, `[start, end)`
    ended: str
    seconds: float

    @property
    def is_interrupted(self) -> bool:
        """Whether it ended neither by itself nor with its budget."""
        return self.ended not in ("", SPENT)

    @property
    def counts(self) -> Counts:
        return sweep.merged(self.parts)

    def to_json(self) -> dict[str, Any]:
        return {
            "seed": self.seed,
            "wanted": self.wanted,
            "complete": not self.ended,
            "ended": self.ended,
            "counted": sweep.ranges(self.parts),
            **sweep.to_json(self.counts),
        }


def run(
    seed: int,
    schedules: int,
    jobs: int,
    on_progress: Callable[[Swept], None],
    *,
    part: int = PART,
    save_seconds: float = SAVE_SECONDS,
    on_parts: Callable[[Collection[Counts]], None] = lambda _parts: None,
    deadline: Deadline = NEVER,
) -> Swept:
    """Count `schedules` of the model's schedules in `jobs` processes, `part` at a time, of which the digest depends and
    nothing else. `on_progress` is told what there is, at most every `save_seconds`, and `on_parts` the
    parts, after each. At the `deadline` what was counted by then is kept, of the parts that were begun too.
    """
    started = saved = time.monotonic()
    parts: dict[tuple[int, int], Counts] = {}
    ended = ""

    def swept(ended: str) -> Swept:
        return Swept(seed, schedules, dict(parts), ended, time.monotonic() - started)

    cuts: Iterator[tuple[int, int]] = ((at, min(at + part, schedules)) for at in range(0, schedules, part))
    running: Running = {}
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), initializer=_start, initargs=(os.getpid(),))
    try:
        with _termination_interrupts():
            while True:
                for cut in islice(cuts, 2 * jobs - len(running)):
                    running[pool.submit(_count, seed, *cut, deadline)] = cut
                if not running:
                    break
                _collect(running, parts, deadline)
                on_parts(parts.values())
                if time.monotonic() - saved >= save_seconds:
                    saved = time.monotonic()
                    on_progress(swept("it still runs"))
                if deadline.is_over:
                    break
    except KeyboardInterrupt:
        ended = INTERRUPTED
    except BrokenProcessPool:
        ended = "a process that counted was killed"
    finally:
        _end(pool, running, parts, deadline)
    if not ended and sum(end - start for start, end in parts) < schedules:
        ended = SPENT
    return swept(ended)


def _start(parent: int) -> None:
    """Set up a process that counts. An interrupt from the keyboard goes to every process; the first one ends the others
    when their parts are done. When the first one is killed they end with it.
    """
    processes.die_with(parent)
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextmanager
def _termination_interrupts() -> Iterator[None]:
    """SIGTERM ends a sweep as an interrupt from the keyboard does."""

    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _count(seed: int, start: int, end: int, deadline: Deadline) -> Counts:
    from specsim.engine.accounting_target import ModelTarget

    return sweep.count(ModelTarget(), seed, start, end, lambda: not deadline.is_over)


def _collect(running: Running, parts: dict[tuple[int, int], Counts], deadline: Deadline) -> None:
    """Wait for a part, and take all that are there."""
    done, _ = wait(running, deadline.timeout, return_when=FIRST_COMPLETED)
    for future in done:
        _take(parts, running.pop(future), future.result())


def _take(parts: dict[tuple[int, int], Counts], cut: tuple[int, int], counts: Counts) -> None:
    """Keep what was counted of a part, which is its beginning when the time was over."""
    counted = counts.schedules + counts.refused
    if counted:
        parts[cut[0], cut[0] + counted] = counts


def _end(pool: ProcessPoolExecutor, running: Running, parts: dict[tuple[int, int], Counts], deadline: Deadline) -> None:
    """Let the parts that are being counted come to their end, and keep them. A process that does not heed the deadline
    is ended.
    """
    waited_for = [future for future in running if not future.cancel()]
    wait(waited_for, deadline.timeout)
    for future in waited_for:
        if future.done() and not future.cancelled() and future.exception() is None:
            _take(parts, running[future], future.result())
    for process in multiprocessing.active_children() if deadline.is_over else ():
        process.kill()
    pool.shutdown(wait=True, cancel_futures=True)
