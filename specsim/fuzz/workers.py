"""Workers on this machine: each runs one batch after another, as the suites of `specsim check` in children.

`run_batch` is what any other kind of worker calls too. Whatever a target does, and whichever process of it is killed,
a batch has a result; a target that is not there, or no longer, is a UsageError.
"""

from __future__ import annotations

import math
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from specsim import interrupts, replay_file
from specsim.engines.target import parse_target
from specsim.fuzz.batches import seed_of
from specsim.fuzz.campaign import NONDETERMINISTIC, GivenBack
from specsim.fuzz.versions import version_of
from specsim.fuzz.work import Batch, BatchResult, RunFinding
from specsim.lifting.cache import Cache
from specsim.tiers.checking import run_suite
from specsim.tiers.messages import Request
from specsim.tiers.registry import TIERS
from specsim.tiers.replaying import replay
from specsim.verdict import Finding, Suite

BATCH_SECONDS = 120.0  # a batch ends before: every implementation of a release has its turn


def run_batch(batch: Batch, cache: Path, hang_seconds: float, seconds: float = math.inf) -> BatchResult:
    """Run a batch, for `seconds` at most: the suite of its tier, in a child of its own. `cache` is the folder of
    fetched wheels, `hang_seconds` the limit of one case or schedule. UsageError when there is no such target.
    """
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
            seconds=min(seconds, BATCH_SECONDS),
            hang_seconds=hang_seconds,
            known=batch.known,
            device=batch.device if tier.has_device else "cpu",
        )
        suite, findings, ended = _checked_again(request, Path(folder))
        ended = [f"{NONDETERMINISTIC} of {one.what} differ: {one.why}" for one in suite.nondeterministic] + ended
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


def _checked_again(request: Request, out: Path) -> tuple[Suite, list[Finding], list[str]]:
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
    """The implementations that were checked, as features: how many cases of each."""
    counts: dict[str, int] = {}
    for checked in suite.judged:
        name = f"{suite.name}:{checked.op} {checked.subject}"
        counts[name] = counts.get(name, 0) + checked.cases
    return counts


def _found(batch: Batch, finding: Finding) -> RunFinding:
    """A finding with the text of its replay file, where it is not known yet."""
    stored, is_known = replay_file.load(Path(finding.replay)), finding.signature in batch.known
    elements, _unit = stored.size
    return RunFinding(
        signature=finding.signature,
        tier=finding.tier,
        rule=finding.rule,
        title=finding.title,
        severity=str(finding.severity),
        reach=finding.reach,
        where=finding.where,
        index=batch.first,
        count=finding.count,
        size=() if is_known else (elements, len(stored.tape)),
        replay="" if is_known else replay_file.to_text(stored),
        cpu_seconds=0.0,
    )


class LocalPool:
    """`jobs` workers on this machine, a thread of this process for each. Close it at the end."""

    def __init__(self, jobs: int, cache: Path, hang_seconds: float) -> None:
        self.width = jobs
        self._cache = cache
        self._hang_seconds = hang_seconds
        self._interrupted = False
        self._threads = ThreadPoolExecutor(jobs, "worker")

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        """Run a batch as soon as a worker is free."""
        return self._threads.submit(self._run, batch, seconds)

    def _run(self, batch: Batch, seconds: float) -> BatchResult:
        if self._interrupted:
            raise GivenBack
        return run_batch(batch, self._cache, self._hang_seconds, seconds)

    def interrupt(self) -> None:
        """Let the batches that run end soon, with what they have done. No other begins."""
        self._interrupted = True
        interrupts.tell_all()

    def close(self) -> None:
        """End the workers and what they run. Nothing runs any more."""
        self.interrupt()
        self._threads.shutdown(wait=True, cancel_futures=True)
