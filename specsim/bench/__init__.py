"""Benchmarks: implementations of one operation side by side in one run, as medians with ratios; every kernel beside its
peers in one table; the lockstep interpreter beside Triton's; and what a schedule of a release's scheduler costs.

A ratio is a peer's median over the reference's: below 1 is faster. Absolute times hold on the machine in
`environment` alone. Nothing here asserts a time. A peer that cannot run here, or whose result is wrong, says
why and has no time.

`run` returns, ready for JSON:

    {"format": "specsim.bench/1", "environment": {...}, "benchmarks": [{"name", "unit", "shape": {...},
    "peers": [{"name", "timing", "median", "ratio", "not_run"}]}]}

An entry of what was left out, because the time was over or the run was interrupted, has the reason as "left_out".
Entries of "kernels" have more: "kernel", "bytes" that must move, "bound" (its name), "bound_us", "percent" of it that
specsim reaches, "l2", and with each peer "launches". Those of "interpreter" have "programs" of the grid, "lacks" (why
Triton runs it) and "compiling_ms".
"""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from specsim import interrupts
from specsim.bench import (
    differential,
    hunts,
    interpreter,
    kernel_table,
    scheduler,
    verify_logits_greedy,
    verify_logits_sampled,
    verify_tree_greedy,
)
from specsim.bench.environment import environment
from specsim.bench.measure import Benchmark, Peer, Shape, Timing, one_thread, run_shape
from specsim.bench.rows import BenchRow
from specsim.deadline import SPENT, Deadline, TimeSpent
from specsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from typing import NoReturn

__all__ = ["BENCHMARKS", "FORMAT", "OPERATIONS", "BenchRow", "Benchmark", "Peer", "Timing", "environment", "run"]

FORMAT = "specsim.bench/1"

OPERATIONS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (verify_tree_greedy.BENCHMARK, verify_logits_greedy.BENCHMARK, verify_logits_sampled.BENCHMARK)
}


def _rows_of_operation(benchmark: Benchmark, device: str, rounds: int | None, _full: bool) -> list[BenchRow]:
    def measure(shape: Shape) -> list[dict[str, Any]]:
        peers = run_shape(benchmark, shape, device, rounds or benchmark.rounds)
        return [{"name": benchmark.name, "unit": "us", "shape": dict(shape), "peers": peers}]

    return [BenchRow(benchmark.name, shape, partial(measure, shape)) for shape in benchmark.shapes[device]]


# By name: the rows that are measured on a device, with a number of rounds or their own, all of them or what is done in
# a minute or two.
BENCHMARKS: dict[str, Callable[..., list[BenchRow]]] = {
    **{name: partial(_rows_of_operation, benchmark) for name, benchmark in OPERATIONS.items()},
    verify_logits_sampled.NAME: verify_logits_sampled.rows,
    differential.NAME: differential.rows,
    kernel_table.NAME: kernel_table.rows,
    interpreter.NAME: interpreter.rows,
    scheduler.NAME: scheduler.rows,
    hunts.PLANTED: hunts.rows_planted,
    hunts.FOUND: hunts.rows_found,
}


HUNTS = (hunts.PLANTED, hunts.FOUND)
OF_SCHEDULERS = (scheduler.NAME, *HUNTS)
"""Those that run schedules of targets' schedulers."""


def run(
    names: Sequence[str],
    device: str,
    rounds: int | None = None,
    full: bool = False,
    only: Sequence[str] = (),
    targets: Sequence[str] | None = None,
    budget_seconds: float | None = None,
    schedules: int | None = None,
    worker: str = "fake",
    on_entry: Callable[[dict[str, Any]], None] = lambda _entry: None,
) -> dict[str, Any]:
    """Run the named benchmarks on `device` ("cpu" or "cuda"), with `rounds` timed calls a peer and shape instead of
    each benchmark's own number; with `full` also what takes many minutes. Of "kernels", `only` names operations and
    families, of "planted" defects; `targets` are releases and checkouts: "kernels" compares with their kernels,
    "interpreter" times them too, and OF_SCHEDULERS run `schedules` of each one's scheduler, with that `worker`.
    `on_entry` gets each entry when it was measured. After `budget_seconds`, and when this process is interrupted, the
    row that runs ends, no other begins, and those that were left out say so. Raises UsageError for a name that none
    has.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise UsageError(f"there is no benchmark {unknown[0]!r}", f"name one of {', '.join(BENCHMARKS)}")
    deadline = Deadline.after(budget_seconds)

    def why_over() -> str:
        return interrupts.WHY if interrupts.asked() else SPENT if deadline.is_over else ""

    def is_over() -> bool:
        return bool(why_over())

    hunted: dict[str, Callable[..., list[BenchRow]]] = {
        hunts.PLANTED: partial(hunts.rows_planted, only=only),
        hunts.FOUND: partial(hunts.rows_found, worker=worker),
    }
    chosen = BENCHMARKS | {
        kernel_table.NAME: partial(kernel_table.rows, only=only, targets=targets),
        interpreter.NAME: partial(interpreter.rows, targets=targets),
        scheduler.NAME: partial(scheduler.rows, targets=targets, schedules=schedules, worker=worker),
        **{name: partial(rows, targets=targets, schedules=schedules, is_over=is_over) for name, rows in hunted.items()},
    }
    results: list[dict[str, Any]] = []

    def keep(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            results.append(entry)
            on_entry(entry)

    with one_thread():
        for name in names:
            rows = [BenchRow(name, {}, list)]
            try:
                with _ended_at(deadline):
                    rows = chosen[name](device, rounds, full)
            except TimeSpent as error:
                keep([rows[0].left_out(str(error))])
                continue
            for row in rows:
                try:
                    if why := why_over():
                        raise TimeSpent(why)
                    with ExitStack() if name in HUNTS else _ended_at(deadline):  # hunts look at the time by themselves
                        entries = row.measure()
                except TimeSpent as error:
                    entries = [row.left_out(str(error))]
                keep(entries)
    return {"format": FORMAT, "environment": environment(), "benchmarks": results}


@contextmanager
def _ended_at(deadline: Deadline) -> Iterator[None]:
    """Raise TimeSpent in what runs inside, at the deadline or an interrupt."""

    def stop() -> NoReturn:
        raise TimeSpent(interrupts.WHY)

    with deadline.enforced(), interrupts.told(stop):
        yield
