"""What a schedule of the scheduler tier costs: the scheduler of each target, imported in a process of its own, started
for each setup, and a fork of that for each schedule, as the tier does it; of one that starts faster than a process
forks, started for each schedule.

CPU time of a schedule is that of its fork, and what its starter takes to make it, or that of its start and its run. As
its iterations vary, the cost that each schedule has is told apart from that of an iteration: a line through all of them
(least squares).

Run as a module, this is the process of one target: it reads a question from standard input and prints JSON.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from statistics import linear_regression, median
from typing import TYPE_CHECKING, Any, NamedTuple

from specsim.bench.rows import BenchRow
from specsim.errors import UsageError

if TYPE_CHECKING:
    from specsim.world.forks import WantedSchedule

NAME = "scheduler"
SCHEDULES = 100


class Cost(NamedTuple):
    """Of one schedule. Page faults are those of its fork: memory that it is the first to write or to map."""

    iterations: int
    requests: int
    cpu_seconds: float
    page_faults: int


class SchedulerSeconds(NamedTuple):
    """Of one target: CPU seconds until its scheduler is imported, those of each setup's start, and its schedules."""

    import_seconds: float
    start_seconds: list[float]
    costs: list[Cost]


MEASURES: dict[str, Callable[[SchedulerSeconds], float]] = {
    "schedules/CPU s": lambda spent: len(spent.costs) / sum(cost.cpu_seconds for cost in spent.costs),
    "iterations/CPU s": lambda spent: (
        sum(cost.iterations for cost in spent.costs) / sum(cost.cpu_seconds for cost in spent.costs)
    ),
    "CPU ms an iteration": lambda spent: 1e3 * _line(spent.costs)[0],
    "CPU ms a schedule beside its iterations": lambda spent: 1e3 * _line(spent.costs)[1],
    "iterations, median": lambda spent: median(cost.iterations for cost in spent.costs),
    "requests, median": lambda spent: median(cost.requests for cost in spent.costs),
    "page faults, median": lambda spent: median(cost.page_faults for cost in spent.costs),
    "CPU s of the import": lambda spent: spent.import_seconds,
    "CPU s of a start": lambda spent: median(spent.start_seconds),
}


def rows(
    _device: str,
    rounds: int | None,
    _full: bool = False,
    targets: Sequence[str] | None = None,
    schedules: int | None = None,
    worker: str = "fake",
) -> list[BenchRow]:
    """Measure the default schedules of seed 0 with that worker, each `rounds` times: the least CPU time counts. One
    row, with an entry for each measure; the ratio is to the first target.
    """
    if not targets:
        raise UsageError(f"specsim bench {NAME} measures nothing", f"specsim bench {NAME} --target ENGINE==VERSION")
    shape: dict[str, Any] = {"worker": worker, "schedules": schedules or SCHEDULES, "rounds": rounds or 1}

    def measure_all() -> list[dict[str, Any]]:
        spent = {target: _asked({"target": target, **shape}) for target in targets}
        values = {unit: {target: measure(of) for target, of in spent.items()} for unit, measure in MEASURES.items()}
        return [entry(unit, shape, of) for unit, of in values.items()]

    return [BenchRow(NAME, {"targets": ", ".join(targets), **shape}, measure_all)]


def entry(unit: str, shape: dict[str, Any], values: dict[str, float]) -> dict[str, Any]:
    """One entry of the result format."""
    first = next(iter(values.values()))
    peers = [
        {"name": name, "timing": "cpu", "median": value, "ratio": value / first if first else None, "not_run": None}
        for name, value in values.items()
    ]
    return {"name": NAME, "unit": unit, "shape": shape, "peers": peers}


def _line(costs: Sequence[Cost]) -> tuple[float, float]:
    """CPU seconds of an iteration, and of a schedule without any."""
    fit = linear_regression([cost.iterations for cost in costs], [cost.cpu_seconds for cost in costs])
    return fit.slope, fit.intercept


def _asked(question: dict[str, Any]) -> SchedulerSeconds:
    ended = subprocess.run(
        [sys.executable, "-m", "specsim.bench.scheduler"],
        input=json.dumps(question),
        check=False,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"measuring {question} ended with {ended.returncode}:\n{ended.stderr}")
    seconds, starts, costs = json.loads(ended.stdout)
    return SchedulerSeconds(seconds, starts, [Cost(*cost) for cost in costs])


def measure(target: str, worker: str, schedules: int, rounds: int) -> SchedulerSeconds:
    """Import a target's scheduler into this process, and run schedules of each setup in turns."""
    from specsim.engines.load import load_scheduler
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.verdict import NotRun
    from specsim.world.forks import freeze
    from specsim.world.scheduler import rows_of

    scheduler = load_scheduler(parse_target(target), open_cache())
    if isinstance(scheduler, NotRun):
        raise UsageError(f"the scheduler of {target} is not run: {scheduler.why}", "name another target")
    freeze()
    spent = SchedulerSeconds(time.process_time(), [], [])
    rows = len(rows_of(scheduler.setups, worker))
    for number in range(min(rows, schedules)):
        reader, writer = os.pipe()
        if os.fork() == 0:
            with open(writer, "w", encoding="utf-8", closefd=True) as answers:
                json.dump(_measured(scheduler, worker, range(number, schedules, rows), rounds), answers)
            os._exit(0)
        os.close(writer)
        with open(reader, encoding="utf-8") as answers:
            seconds, costs = json.load(answers)
        os.wait()
        spent.start_seconds.extend(seconds)
        spent.costs.extend(Cost(*cost) for cost in costs)
    return spent


def _measured(scheduler: Any, worker: str, indices: Sequence[int], rounds: int) -> tuple[list[float], list[Cost]]:
    """In a starter: CPU seconds of the start, and schedules of one setup; none where the release refuses the setup."""
    from specsim.world.forks import settle, wanted

    began = time.process_time()
    setup = wanted(scheduler.setups, 0, indices[0], 0.0, worker).setup(scheduler.setups)
    try:
        started = scheduler.start(setup)
    except UsageError:
        return [], []
    settle()
    seconds = time.process_time() - began

    def cost(index: int) -> Cost:
        schedule = wanted(scheduler.setups, 0, index, 0.0, worker)
        if scheduler.starts_anew:
            return _cost_with_start(scheduler, schedule)
        return _cost(started, scheduler.setups, schedule)

    return [seconds], [
        min((cost(index) for _ in range(rounds)), key=lambda cost: cost.cpu_seconds) for index in indices
    ]


def _run(started: Any, setups: Sequence[Any], schedule: WantedSchedule) -> tuple[int, int]:
    """The iterations and the requests of a schedule."""
    from specsim.rules.table import CHECKS
    from specsim.world.schedule import run_schedule

    chooser = schedule.chooser()
    chooser.choose(len(setups), "setup")
    record = run_schedule(started, schedule.setup(setups), CHECKS, chooser)
    return record.iterations, record.requests


def _cost_with_start(scheduler: Any, schedule: WantedSchedule) -> Cost:
    began, faults = time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    started = scheduler.start(schedule.setup(scheduler.setups))
    iterations, requests = _run(started, scheduler.setups, schedule)
    seconds = time.process_time() - began
    return Cost(iterations, requests, seconds, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults)


def _cost(started: Any, setups: Sequence[Any], schedule: WantedSchedule) -> Cost:
    """In a fork."""
    began = time.process_time()
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.write(writer, json.dumps(_run(started, setups, schedule)).encode())
        os._exit(0)
    _, _, usage = os.wait4(pid, 0)
    iterations, requests = json.loads(os.read(reader, 1000))
    os.close(reader)
    os.close(writer)
    return Cost(iterations, requests, time.process_time() - began + usage.ru_utime + usage.ru_stime, usage.ru_minflt)


def main() -> int:
    print(json.dumps(measure(**json.load(sys.stdin))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
