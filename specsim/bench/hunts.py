"""How many schedules of the scheduler tier it takes to find something: defects that are planted into a release, and
what releases show as they are.

`planted` hunts the planted defects of each target, one after the other. A defect is found by the first schedule that
shows a signature which the same release without it shows in none of the same schedules, and which is not in the triage
list for that release. One that a coarser barrier covers is hunted with the barrier left out, too, beside the barrier
alone.

`found` runs the schedules of SEEDS seeds, one after the other in as many processes as there are cores, and counts the
seeds that show each signature. The CPU seconds beside it are those of all of them.

A process imports a target once, and each schedule runs in a fork, as the tier does it. `main` is that process: it reads
what to import and the schedules from standard input, a line each, and prints a line for each: why the target is not run
("" if it is), then what the schedules show. Its CPU seconds are the last.
"""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from statistics import median
from typing import TYPE_CHECKING, Any

from specsim.bench.rows import BenchRow
from specsim.deadline import TimeSpent
from specsim.engines.registry import ENGINES
from specsim.engines.target import Checkout, Release, parse_target
from specsim.engines.triage import triaged
from specsim.errors import UsageError
from specsim.lifting.cache import open_cache

if TYPE_CHECKING:
    from specsim.lifting.planted import Planted

PLANTED, FOUND = "planted", "found"
SCHEDULES = 300
SEEDS = 20
HANG_SECONDS = 20.0
NOT_HUNTED = "not hunted: the time was over, or the run was interrupted"


class Hunter:
    """A process with a target's scheduler, which runs schedules, each once. `cpu_seconds` are those of its whole tree,
    when it has been closed.
    """

    def __init__(
        self, target: str, mutant: str = "", worker: str = "fake", is_over: Callable[[], bool] = lambda: False
    ) -> None:
        self.cpu_seconds = 0.0
        self._is_over = is_over
        self._shown: dict[tuple[int, int], frozenset[str]] = {}
        self._process = subprocess.Popen(
            [sys.executable, "-c", f"from {__name__} import main; main()"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # an interrupt from the keyboard is for its parent, which keeps what it has
        )
        why = self._answer({"target": target, "mutant": mutant, "worker": worker})
        if why:
            self._process.communicate()
            raise UsageError(f"the scheduler of {target} is not run: {why}", "name another target")

    def signatures(self, seed: int, index: int) -> frozenset[str]:
        """What a schedule shows. Raises TimeSpent when the time is over."""
        if self._is_over():
            raise TimeSpent(NOT_HUNTED)
        if (seed, index) not in self._shown:
            self._shown[seed, index] = frozenset(self._answer({"seed": seed, "index": index}))
        return self._shown[seed, index]

    def close(self) -> None:
        output, _ = self._process.communicate()
        self.cpu_seconds = float(output or 0)

    def _answer(self, question: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(question), file=self._process.stdin, flush=True)
        answer = self._process.stdout.readline()
        if not answer:
            raise RuntimeError("the process that hunts has ended, as it says above")
        return json.loads(answer)


@contextmanager
def hunter(
    target: str, mutant: str = "", worker: str = "fake", is_over: Callable[[], bool] = lambda: False
) -> Iterator[Hunter]:
    made = Hunter(target, mutant, worker, is_over)
    try:
        yield made
    finally:
        made.close()


def rows_planted(
    _device: str,
    _rounds: int | None,
    _full: bool = False,
    targets: Sequence[str] | None = None,
    schedules: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
    only: Sequence[str] = (),
) -> list[BenchRow]:
    """Hunt the planted defects of each target, or `only` those, by its first schedules of seed 0. A row and an entry
    for each target: a peer a defect, `median` being the number of the schedule that found it. When the time `is_over`
    the defects that were not hunted say so.
    """

    def row(target: str) -> BenchRow:
        return BenchRow(PLANTED, {"target": target}, lambda: [_planted(target, schedules or SCHEDULES, is_over, only)])

    return [row(target) for target in _named(PLANTED, targets)]


def _named(name: str, targets: Sequence[str] | None) -> Sequence[str]:
    if not targets:
        raise UsageError(f"specsim bench {name} hunts nothing", f"specsim bench {name} --target ENGINE==VERSION")
    return targets


def _planted(target: str, schedules: int, is_over: Callable[[], bool], only: Sequence[str]) -> dict[str, Any]:
    known: dict[str, frozenset[str]] = {}

    def hunted(defect: Planted) -> dict[str, Any]:
        worker = defect.worker
        if worker not in known:
            with hunter(target, worker=worker, is_over=is_over) as base:
                shown = (base.signatures(0, index) for index in range(schedules))
                known[worker] = triaged(_parsed(target)).union(*shown)
        peer = _hunted(target, defect.id, schedules, known[worker], None, worker, is_over)
        if defect.covered_by and peer["not_run"]:
            with hunter(target, defect.covered_by, worker, is_over) as barrier:
                both = f"{defect.covered_by}+{defect.id}"
                peer = _hunted(target, both, schedules, known[worker], barrier, worker, is_over)
        return peer

    peers = []
    for defect in _defects_of(target):
        if only and defect.id not in only:
            continue
        try:
            if is_over():
                raise TimeSpent(NOT_HUNTED)
            peers.append(_told(target, hunted(defect)))
        except TimeSpent as error:
            peers.append(_peer(defect.id, 0, "", 0.0) | {"not_run": str(error)})
    return {"name": PLANTED, "unit": "schedules", "shape": {"target": target, "schedules": schedules}, "peers": peers}


def _hunted(
    target: str,
    mutant: str,
    schedules: int,
    known: frozenset[str],
    beside: Hunter | None = None,
    worker: str = "fake",
    is_over: Callable[[], bool] = lambda: False,
) -> dict[str, Any]:
    """A peer of the result format: of the first schedule that shows what is not known, nor shown by `beside`."""
    found, new = 0, frozenset[str]()
    with hunter(target, mutant, worker, is_over) as hunted:
        for index in range(schedules):
            new = hunted.signatures(0, index) - known
            if new and beside is not None:
                new -= frozenset().union(*(beside.signatures(0, number) for number in range(index + 1)))
            if new:
                found = index + 1
                break
    return _peer(mutant, found, f"in {schedules} schedules", hunted.cpu_seconds, signature=min(new, default=""))


def _peer(name: str, found: float, where: str, cpu_seconds: float, **more: Any) -> dict[str, Any]:
    seconds = round(cpu_seconds, 1)
    not_run = None if found else f"not found {where}, {seconds} CPU s"
    return {"name": name, "timing": f"{seconds} CPU s", "median": found, "ratio": None, "not_run": not_run, **more}


def _told(target: str, peer: dict[str, Any]) -> dict[str, Any]:
    """The peer, of which a line is written at once: the whole table takes many minutes."""
    shown = peer["not_run"] or f"schedule {peer['median']:g}, {peer['timing']}: {peer['signature']}"
    print(f"{target} {peer['name']}: {shown}", file=sys.stderr, flush=True)
    return peer


def _defects_of(target: str) -> list[Planted]:
    """The planted defects that are of a target's source."""
    from specsim.engines.load import planted_into
    from specsim.engines.packages import open_source
    from specsim.lifting.planted import edited

    source = open_source(_parsed(target), open_cache())
    found = []
    for defect in planted_into(_parsed(target)).values():
        path = f"{defect.module.partition('.')[2].replace('.', '/')}.py"
        try:
            edited(source.read(path) if source.exists(path) else "", defect)
        except UsageError:
            continue
        found.append(defect)
    return found


def _parsed(target: str) -> Release | Checkout:
    parsed = parse_target(target)
    if not isinstance(parsed, Release | Checkout) or "scheduler" not in ENGINES[parsed.engine].subjects:
        raise UsageError(f"{target} has no scheduler", "name a release or a checkout: ENGINE==VERSION, ENGINE@PATH")
    return parsed


def rows_found(
    _device: str,
    _rounds: int | None,
    _full: bool = False,
    targets: Sequence[str] | None = None,
    schedules: int | None = None,
    is_over: Callable[[], bool] = lambda: False,
    worker: str = "fake",
) -> list[BenchRow]:
    """Run the first schedules of each of SEEDS seeds on each target, with that worker. A row and an entry for each
    target: a peer a signature, with the `seeds` that show it, `median` being that of the first schedule that does in
    those. The shape has the seeds whose schedules all ran: those that had not when the time `is_over` are left out.
    """

    def row(target: str) -> BenchRow:
        return BenchRow(FOUND, {"target": target}, lambda: [_found(target, schedules or SCHEDULES, is_over, worker)])

    return [row(target) for target in _named(FOUND, targets)]


def _found(target: str, schedules: int, is_over: Callable[[], bool], worker: str) -> dict[str, Any]:
    to_run = deque((seed, index) for seed in range(SEEDS) for index in range(schedules))
    shown: dict[tuple[int, int], frozenset[str]] = {}

    def run() -> float:
        with hunter(target, worker=worker) as hunted:
            while not is_over():
                try:
                    seed, index = to_run.popleft()
                except IndexError:
                    break
                shown[seed, index] = hunted.signatures(seed, index)
        return hunted.cpu_seconds

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        seconds = sum(future.result() for future in [pool.submit(run) for _ in range(os.cpu_count() or 1)])
    firsts = []
    for seed in range(SEEDS):
        of_seed = [shown.get((seed, index)) for index in range(schedules)]
        if None in of_seed:
            continue
        first: dict[str, int] = {}
        for number, signatures in enumerate(of_seed, 1):
            for signature in signatures or ():
                first.setdefault(signature, number)
        print(f"{target} seed {seed}: {', '.join(sorted(first)) or 'nothing'}", file=sys.stderr, flush=True)
        firsts.append(first)
    where = f"in {schedules} schedules of each of {len(firsts)} seeds"
    peers = []
    for signature in sorted(set[str]().union(*firsts)):
        of = [first[signature] for first in firsts if signature in first]
        peers.append(_peer(signature, median(of), where, seconds, seeds=len(of)))
    shape = {"target": target, "worker": worker, "schedules": schedules, "seeds": len(firsts)}
    return {"name": FOUND, "unit": "schedules", "shape": shape, "peers": peers}


# ---- the process with a target's scheduler


def main() -> None:
    from specsim.engines.load import load_scheduler
    from specsim.rules.table import CHECKS
    from specsim.tiers.scheduler.answers import violations_of
    from specsim.verdict import NotRun
    from specsim.world.forks import Starters, wanted

    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a release prints is no answer
    wish = json.loads(sys.stdin.readline())
    try:
        scheduler = load_scheduler(parse_target(wish["target"]), open_cache(), wish["mutant"])
    except UsageError as error:
        scheduler = NotRun(wish["target"], error.problem)
    if isinstance(scheduler, NotRun):
        print(json.dumps(scheduler.why), file=answers, flush=True)
        return
    print(json.dumps(""), file=answers, flush=True)
    starters = Starters(scheduler, CHECKS)
    for line in sys.stdin:
        schedule = json.loads(line)
        outcome = starters.run(
            wanted(scheduler.setups, schedule["seed"], schedule["index"], HANG_SECONDS, wish["worker"])
        )
        print(json.dumps([violation.signature for violation in violations_of(outcome)]), file=answers, flush=True)
    starters.close()
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    print(sum(usage.ru_utime + usage.ru_stime for usage in usages), file=answers, flush=True)
