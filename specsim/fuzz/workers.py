"""Workers on this machine: each runs one batch after another, in a child that has the batch's target loaded.

`run_batch` is what any other kind of worker calls too. Whatever a target does, and whichever process of it is killed,
a batch has a result; a target that is not there, or no longer, is a UsageError.
"""

from __future__ import annotations

import atexit
import math
import os
import tempfile
import threading
import time
from collections import OrderedDict
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

from specsim import interrupts, replay_file
from specsim.deadline import Deadline
from specsim.engines.target import Checkout, parse_target
from specsim.errors import UsageError
from specsim.fuzz.batch import found_of
from specsim.fuzz.batch_messages import OF_A_WORKER, Again, BatchEnd, BatchRequest, batch_to_json, result_from_json
from specsim.fuzz.batches import seed_of
from specsim.fuzz.campaign import GivenBack
from specsim.fuzz.versions import version_of
from specsim.fuzz.work import Batch, BatchResult, RunFinding
from specsim.isolation.conversation import ChildEnded, ended_early, no_answer
from specsim.isolation.fork_server import ForkServer
from specsim.lifting.cache import Cache
from specsim.tiers.checking import run_suite
from specsim.tiers.messages import Request
from specsim.tiers.process import fetch
from specsim.tiers.registry import TIERS
from specsim.tiers.replaying import replay
from specsim.verdict import Finding, Suite

BATCH_SECONDS = 15.0  # a batch of schedules begins no run after them
CASES_SECONDS = 120.0  # a batch of cases ends before: every implementation of a release has its turn
CHILDREN_MAX = 4  # that a worker keeps loaded, each with its target
RESTARTS_MAX = 3
HASH_SEED = "0"
_CHILD = "specsim.fuzz.child"


class BatchWorker:
    """Runs batches, one at a time. Close it at the end. `interrupt` may be called from another thread."""

    def __init__(self, cache: Path, hang_seconds: float) -> None:
        self._cache = cache
        self._hang_seconds = hang_seconds
        self._children: OrderedDict[str, ForkServer] = OrderedDict()
        self._asked: ForkServer | None = None
        self._interrupted = False
        self._closed = False

    def run(self, batch: Batch, seconds: float = math.inf) -> BatchResult:
        """Run a batch, for `seconds` at most where it can be cut short. UsageError when there is no such target,
        GivenBack when the worker was closed.
        """
        _require_there(batch.target)
        if TIERS[batch.tier].has_single_runs:
            return self._run_schedules(batch, seconds)
        return _run_cases(batch, self._cache, self._hang_seconds, min(seconds, CASES_SECONDS))

    def again(self, batch: Batch, index: int) -> dict[str, Any]:
        """Make run `index` of a batch of schedules again: `judged` or `why` not, `digest`, `events`, `tape`, `version`
        and `findings`, each as `specsim.fuzz.batch_messages` writes it.
        """
        request = self._request(batch, "again", index=index)
        try:
            for message in self._child_of(batch.target).ask(request, math.inf):
                if isinstance(message, Again):
                    return {"version": message.version, "judged": message.checked, **message.shown}
        except ChildEnded as ended:
            raise ended_early(batch.target, ended) from None
        raise no_answer(batch.target)

    def _request(self, batch: Batch, mode: Literal["batch", "again"], **fields: Any) -> BatchRequest:
        return BatchRequest(
            mode=mode,
            target=batch.target,
            batch=batch_to_json(batch),
            cache=str(self._cache),
            hang_seconds=self._hang_seconds,
            **fields,
        )

    def has_loaded(self, target: str) -> bool:
        return target in self._children

    def give_up(self) -> None:
        """End the child that runs a batch, which is given back, from another thread. No other batch begins."""
        self._closed = True
        asked = self._asked
        if asked is not None:
            asked.kill()

    def close(self) -> None:
        """End the children. No batch runs any more."""
        self._closed = True
        while self._children:
            self._children.popitem()[1].close()

    def interrupt(self) -> None:
        """Let the batch that runs end soon, with what it has done, and any that comes."""
        self._interrupted = True
        asked = self._asked
        if asked is not None:
            asked.interrupt()
        interrupts.tell_all()  # the children that check cases

    def _run_schedules(self, batch: Batch, seconds: float) -> BatchResult:
        # The child may take long to load the target: its end does not move with its start.
        ends_at = Deadline.after(seconds).to_json()
        restarts: list[str] = []
        while True:
            for_seconds = 0.0 if self._interrupted else min(seconds, BATCH_SECONDS)
            try:
                result, ended = self._ask(self._request(batch, "batch", seconds=for_seconds, ends_at=ends_at))
            except UsageError:
                if self._closed:
                    raise GivenBack from None
                raise
            if result is not None:
                return replace(result, ended="; ".join(filter(None, [*restarts, result.ended])))
            restarts.append(f"its process {ended.text}" if ended else "its process gave no answer")
            if len(restarts) > RESTARTS_MAX:
                raise UsageError(
                    f"the process that runs {batch.target} ended early ({restarts[-1]})",
                    (ended.stderr if ended else "") or "run `specsim targets` to see what works here",
                )

    def _ask(self, request: BatchRequest) -> tuple[BatchResult | None, ChildEnded | None]:
        """The child's answer, or how the child ended."""
        child = self._child_of(request.target)
        result = None
        try:
            self._asked = child
            if self._closed:
                child.kill()
            if self._interrupted:
                child.interrupt()
            for message in child.messages(request, math.inf):
                if isinstance(message, BatchEnd):
                    result = result_from_json(message.result)
        except ChildEnded as ended:
            return result, ended
        finally:
            self._asked = None
        return result, None

    def _child_of(self, target: str) -> ForkServer:
        if self._closed:
            raise UsageError("the campaign was ended", "specsim fuzz --resume goes on with it")
        child = self._children.get(target) or ForkServer(HASH_SEED, _CHILD, OF_A_WORKER, fetch)
        self._children[target] = child
        self._children.move_to_end(target)
        while len(self._children) > CHILDREN_MAX:
            self._children.popitem(last=False)[1].close()
        return child


def _require_there(text: str) -> None:
    """A child that has a checkout loaded does not notice that it is gone."""
    target = parse_target(text)
    path = target.path if isinstance(target, Checkout) else ""
    if path and not os.path.exists(os.path.expanduser(path)):
        raise UsageError(f"{text}: the path {path} does not exist any more", "restore it")


_of_threads = threading.local()


def run_batch(batch: Batch, cache: Path, hang_seconds: float, seconds: float = math.inf) -> BatchResult:
    """Run a batch in children of this process, which stay for the next one: one worker for each thread. `cache` is the
    folder of fetched wheels, `hang_seconds` the limit of one run. UsageError when there is no such target.
    """
    workers: dict[tuple[Path, float], BatchWorker] = _of_threads.__dict__.setdefault("workers", {})
    worker = workers.get((cache, hang_seconds))
    if worker is None:
        worker = workers[cache, hang_seconds] = BatchWorker(cache, hang_seconds)
        atexit.register(worker.close)
    return worker.run(batch, seconds)


def _run_cases(batch: Batch, cache: Path, hang_seconds: float, seconds: float) -> BatchResult:
    """A batch of cases, or of schedules of a whole scheduler: the suites of `check`, each in a child of its own."""
    version = version_of(parse_target(batch.target), Cache(cache))
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tier = TIERS[batch.tier]
        request = Request(
            tier=tier.name,
            target=batch.target,
            cache=str(cache),
            seed=seed_of(batch),
            count=batch.count,
            seconds=seconds,
            hang_seconds=hang_seconds,
            known=batch.known,
            device=batch.device if tier.has_device else "cpu",
        )
        suite, findings, ended = _checked_cases(request, Path(folder))
        found = tuple(_found(batch, finding) for finding in findings)
    took = time.monotonic() - started
    runs = suite.cases + suite.schedules
    refused = {} if runs or ended else _reasons(suite, batch.count)
    return BatchResult(
        batch=batch,
        version=version,
        runs=runs,
        events=suite.events,
        seconds=took,
        cpu_seconds=took,  # the children have one thread
        refused=refused,
        features=_checked(suite),
        findings=found,
        ended="; ".join(ended),
    )


def _checked_cases(request: Request, out: Path) -> tuple[Suite, list[Finding], list[str]]:
    """The suite of a batch and its findings; and how processes ended that do not when their case is run again."""
    suite, findings = run_suite(request, out, _tell_nobody)
    kept, ended = [], []
    for finding in findings:
        if finding.follows:
            continue
        if finding.rule in replay_file.ENDED and not _ends_again(request, Path(finding.replay)):
            ended.append(f"a case of {finding.signature} {finding.actual}, and not when it was run again")
        else:
            kept.append(finding)
    return suite, kept, ended


def _ends_again(request: Request, file: Path) -> bool:
    """Whether the case of a replay file ends its process again."""
    answer = replay(request, file)
    broken = answer.get("violations", answer.get("broken", ()))
    return any(violation["rule"] in replay_file.ENDED for violation in broken)


def _reasons(suite: Suite, count: int) -> dict[str, int]:
    """Why none of `count` cases was checked; empty when time alone was short."""
    reasons = dict.fromkeys(entry.why for entry in suite.not_run) or {f"it has nothing of the tier {suite.name}": None}
    return {} if reasons.keys() & {interrupts.SPENT, interrupts.WHY} else dict.fromkeys(reasons, count)


def _tell_nobody(_subject: str, _cases: int) -> None:
    pass


def _checked(suite: Suite) -> dict[str, int]:
    """The operations and probes that were checked, as features: how many cases of each."""
    counts: dict[str, int] = {}
    for checked in suite.judged:
        name = f"{suite.name}:{checked.op} {checked.subject}"
        counts[name] = counts.get(name, 0) + checked.cases
    return counts


def _found(batch: Batch, finding: Finding) -> RunFinding:
    stored = replay_file.load(Path(finding.replay))
    elements, _unit = stored.size
    found = found_of(finding, stored, batch.first, (elements, len(stored.tape)), 0.0)
    return replace(found, size=(), replay="") if finding.signature in batch.known else found


class LocalPool:
    """`jobs` workers on this machine, a thread of this process for each. Close it at the end."""

    def __init__(self, jobs: int, cache: Path, hang_seconds: float) -> None:
        self.width = jobs
        self._free = [BatchWorker(cache, hang_seconds) for _ in range(jobs)]
        self._all = tuple(self._free)
        self._lock = threading.Lock()
        self._threads = ThreadPoolExecutor(jobs, "worker")

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        """Run a batch as soon as a worker is free."""
        return self._threads.submit(self._run, batch, seconds)

    def _run(self, batch: Batch, seconds: float) -> BatchResult:
        with self._lock:  # a worker that has the target loaded is the better one
            worker = max(self._free, key=lambda worker: worker.has_loaded(batch.target))
            self._free.remove(worker)
        try:
            return worker.run(batch, seconds)
        finally:
            with self._lock:
                self._free.append(worker)

    def interrupt(self) -> None:
        """Let the batches that run end soon, with what they have done."""
        for worker in self._all:
            worker.interrupt()

    def give_up(self) -> None:
        """End the children that run batches of schedules; these are given back."""
        for worker in self._all:
            worker.give_up()

    def close(self) -> None:
        """End the workers and their children. Nothing runs any more."""
        self.give_up()
        self._threads.shutdown(wait=True, cancel_futures=True)
        for worker in self._all:
            worker.close()
