"""The loop of a campaign: batches to workers, what became of them to the store, until the time is spent.

What it guards: a result is stored before its worker has another batch; a batch that was lost is run before new ones; a
target that is not there, or cannot be checked, is reported once and its batches stop, while the others go on. Time is
that of a monotonic clock.

It is no scheduler: the next free worker gets the next batch.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import dataclass, field, replace
from typing import Protocol

from specsim.errors import UsageError
from specsim.fuzz.batches import BatchPlan, batch_at
from specsim.fuzz.store import Store, StoredFinding
from specsim.fuzz.work import Batch, BatchResult

POLL_SECONDS = 0.2
SECONDS_MIN = 10.0  # that are left where a batch begins: its child has to import torch
LATE_SECONDS, LATE_SHARE = 1.0, 0.05  # after the end, until batches are interrupted
NONDETERMINISTIC = "two runs"  # how a batch says that what it ran differs


class GivenBack(Exception):  # noqa: N818 - not an error: a batch was not run, and is when the campaign goes on
    """A batch was not run: the campaign was interrupted."""


class BatchPool(Protocol):
    """Where batches are run. What a Future raises is a UsageError of the batch's target, or GivenBack."""

    @property
    def width(self) -> int:
        """How many batches it takes at a time, now."""
        ...

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        """Run a batch, for `seconds` at most where it can be cut short."""
        ...

    def interrupt(self) -> None:
        """Let the batches that run end soon, with what they have done."""
        ...


@dataclass(slots=True)
class CampaignOutcome:
    """What this part of a campaign did, the store apart.

    `new`       findings that the store did not have open before, each when it was first hit
    `stopped`   why batches of a (target, tier) stopped
    `problem`   why the store could not be written, which ends a campaign; `lost` are results that it does not have
    """

    runs: int = 0
    events: int = 0
    batches: int = 0
    new: list[StoredFinding] = field(default_factory=list)
    stopped: dict[tuple[str, str], str] = field(default_factory=dict)
    nondeterministic: str = ""
    problem: UsageError | None = None
    lost: list[BatchResult] = field(default_factory=list)


def go_on(
    plan: BatchPlan,
    store: Store,
    shard: int,
    pool: BatchPool,
    *,
    until: float,
    interrupted: Callable[[], bool] = lambda: False,
    on_result: Callable[[BatchResult, CampaignOutcome], None] = lambda _result, _outcome: None,
    on_stop: Callable[[str], None] = lambda _text: None,
    prepare: Callable[[Batch], Batch] = lambda batch: batch,
    batches_max: int | None = None,
) -> CampaignOutcome:
    """Run batches of a shard until `until` (of time.monotonic), until it is `interrupted`, or `batches_max` of them. A
    batch that does not end by then is interrupted.

    `on_result` gets each result after it was stored, `on_stop` a sentence when batches of a target stop; `prepare`
    may change a batch before it is run.
    """
    outcome = CampaignOutcome()
    running: dict[Future[BatchResult], Batch] = {}
    open_before = {(f.signature, f.target) for f in store.findings() if f.state == "open"}
    begun = 0
    whole = max(0.0, until - time.monotonic())
    lots = {(lot.target, lot.tier) for lot in plan.lots}

    def left_out() -> set[tuple[str, str]]:
        """The lots of which no batch begins."""
        is_late = until - time.monotonic() < min(SECONDS_MIN, whole / 4)
        return lots if is_late else lots & outcome.stopped.keys()

    def goes_on(without: set[tuple[str, str]]) -> bool:
        lots_left = without < lots
        enough = batches_max is not None and begun >= batches_max
        return lots_left and not enough and not outcome.problem and not interrupted() and time.monotonic() < until

    interrupting = False
    while True:
        while len(running) < pool.width and goes_on(without := left_out()):
            number = store.next_number(shard, {batch.number for batch in running.values()})
            batch = prepare(_with_known(store, batch_at(plan, shard, number, without)))
            running[pool.submit(batch, max(0.0, until - time.monotonic()))] = batch
            begun += 1
        if not running:
            return outcome
        late, late_max = time.monotonic() - until, max(LATE_SECONDS, LATE_SHARE * whole)
        if not interrupting and (interrupted() or outcome.problem or late > late_max):
            pool.interrupt()
            interrupting = True
        done, _ = wait(running, timeout=POLL_SECONDS, return_when=FIRST_COMPLETED)
        for future in sorted(done, key=lambda future: running[future].number):
            batch = running.pop(future)
            try:
                result = future.result()
            except GivenBack:
                continue
            except UsageError as error:
                _stop(outcome, batch, f"{error.problem}; {error.remedy}", on_stop)
                continue
            _take(store, result, outcome, open_before)
            _stop_if_hopeless(outcome, result, on_stop)
            on_result(result, outcome)


def _with_known(store: Store, batch: Batch) -> Batch:
    """The batch with the signatures that the store knows of its target."""
    known = tuple(sorted(f.signature for f in store.findings() if f.target == batch.target and f.state == "open"))
    return replace(batch, known=known)


def _take(store: Store, result: BatchResult, outcome: CampaignOutcome, open_before: set[tuple[str, str]]) -> None:
    """Store a result. One that cannot be stored is lost, and nothing more is begun."""
    try:
        store.add(result)
    except UsageError as error:
        outcome.problem = outcome.problem or error
        outcome.lost.append(result)
        return
    outcome.batches += 1
    outcome.runs += result.runs
    outcome.events += result.events
    hit = {(found.signature, result.batch.target) for found in result.findings} - open_before
    if hit:
        open_before |= hit
        outcome.new += [finding for finding in store.findings() if (finding.signature, finding.target) in hit]


def _stop_if_hopeless(outcome: CampaignOutcome, result: BatchResult, on_stop: Callable[[str], None]) -> None:
    batch = result.batch
    if result.ended.startswith(NONDETERMINISTIC):
        outcome.nondeterministic = f"{batch.target}: {result.ended}"
    if not result.runs and result.refused and not result.ended and sum(result.refused.values()) >= batch.count:
        _stop(outcome, batch, next(iter(result.refused)), on_stop)


def _stop(outcome: CampaignOutcome, batch: Batch, why: str, on_stop: Callable[[str], None]) -> None:
    key = batch.target, batch.tier
    if key not in outcome.stopped:
        outcome.stopped[key] = why
        on_stop(f"{batch.target}, tier {batch.tier}: its batches stop ({why})")
