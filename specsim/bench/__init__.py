"""Benchmarks: implementations of one operation side by side in one run, as medians with ratios; every kernel beside its
peers in one table; the simulator; the lockstep interpreter beside Triton's; what a campaign costs; and what a schedule
of a release's scheduler costs.

A ratio is a peer's median over the reference's: below 1 is faster. Absolute times hold on the machine in
`environment` alone. Nothing here asserts a time. A peer that cannot run here, or whose result is wrong, says
why and has no time.

`run` returns, ready for JSON:

    {"format": "specsim.bench/1", "environment": {...}, "benchmarks": [{"name", "unit", "shape": {...},
    "peers": [{"name", "timing", "median", "ratio", "not_run"}]}]}

Entries of "kernels" have more: "kernel", "bytes" that must move, "bound" (its name), "bound_us", "percent" of it that
specsim reaches, "l2", and with each peer "launches". Those of "interpreter" have "programs" of the grid, "lacks" (why
Triton runs it) and "compiling_ms".
"""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

from specsim.bench import (
    campaign,
    differential,
    hunts,
    interpreter,
    kernel_table,
    scheduler,
    simulator,
    verify_logits_greedy,
    verify_logits_sampled,
    verify_tree_greedy,
)
from specsim.bench.environment import environment
from specsim.bench.measure import Benchmark, Peer, Timing, run_shape
from specsim.deadline import SPENT, Deadline, TimeSpent
from specsim.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["BENCHMARKS", "FORMAT", "OPERATIONS", "Benchmark", "Peer", "Timing", "environment", "run"]

FORMAT = "specsim.bench/1"

OPERATIONS: dict[str, Benchmark] = {
    benchmark.name: benchmark
    for benchmark in (verify_tree_greedy.BENCHMARK, verify_logits_greedy.BENCHMARK, verify_logits_sampled.BENCHMARK)
}


def _run_operation(benchmark: Benchmark, device: str, rounds: int | None, _full: bool) -> list[dict[str, Any]]:
    return [
        {
            "name": benchmark.name,
            "unit": "us",
            "shape": dict(shape),
            "peers": run_shape(benchmark, shape, device, rounds or benchmark.rounds),
        }
        for shape in benchmark.shapes[device]
    ]


# By name: what runs on a device, with a number of rounds or its own, all of it or what is done in a minute or two, and
# gives entries of "benchmarks".
BENCHMARKS: dict[str, Callable[..., list[dict[str, Any]]]] = {
    **{name: partial(_run_operation, benchmark) for name, benchmark in OPERATIONS.items()},
    verify_logits_sampled.NAME: verify_logits_sampled.run,
    simulator.NAME: simulator.run,
    differential.NAME: differential.run,
    kernel_table.NAME: kernel_table.run,
    campaign.NAME: campaign.run,
    interpreter.NAME: interpreter.run,
    scheduler.NAME: scheduler.run,
    hunts.PLANTED: hunts.run_planted,
    hunts.FOUND: hunts.run_found,
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
) -> dict[str, Any]:
    """Run the named benchmarks on `device` ("cpu" or "cuda"), with `rounds` timed calls a peer and shape instead of
    each benchmark's own number; with `full` also what takes many minutes. Of "kernels", `only` names operations and
    families, of "planted" defects; `targets` are releases and checkouts: "kernels" compares with their kernels,
    "interpreter" times them too, and OF_SCHEDULERS run `schedules` of each one's scheduler. After `budget_seconds`
    the one that runs ends, and no other begins. Raises UsageError for a name that none has.
    """
    unknown = [name for name in names if name not in BENCHMARKS]
    if unknown:
        raise UsageError(f"there is no benchmark {unknown[0]!r}", f"name one of {', '.join(BENCHMARKS)}")
    deadline = Deadline.after(budget_seconds)
    kernels = partial(kernel_table.run, only=only, targets=targets, deadline=deadline)
    chosen = BENCHMARKS | {
        kernel_table.NAME: kernels,
        interpreter.NAME: partial(interpreter.run, targets=targets),
        scheduler.NAME: partial(scheduler.run, targets=targets, schedules=schedules),
        hunts.PLANTED: partial(hunts.run_planted, targets=targets, schedules=schedules, deadline=deadline, only=only),
        hunts.FOUND: partial(hunts.run_found, targets=targets, schedules=schedules, deadline=deadline),
    }
    results: list[dict[str, Any]] = []
    for name in names:
        try:
            with nullcontext() if name in HUNTS else deadline.enforced():  # hunts keep it by themselves
                results += chosen[name](device, rounds, full)
        except TimeSpent:
            not_run = {"name": name, "not_run": SPENT}
            results.append({"name": name, "unit": "", "shape": {}, "peers": [not_run]})
    return {"format": FORMAT, "environment": environment(), "benchmarks": results}
