"""A budget ends what runs, and not only what would begin: every command that takes --budget-seconds looks at one kind
of deadline, and a child gets the same moment as its parent.
"""

from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.batch_results import result
from specsim import bench
from specsim.commands.pages import write_report
from specsim.deadline import NEVER, Deadline, TimeSpent
from specsim.fuzz import campaign
from specsim.fuzz.batches import BatchPlan, lots_of
from specsim.fuzz.campaign import GivenBack, go_on
from specsim.fuzz.store import Store
from specsim.fuzz.work import Batch, BatchResult
from specsim.selfcheck.hunt import InterruptedHuntError, hunt_in_child

FIXTURE = Path(__file__).parents[2] / "fixtures" / "replays" / "slots-freed-under-a-running-request.json"
IDLE = 5.0  # seconds of start-up, and of a busy machine, that a test allows for


def seconds_of(work: Callable[[], object]) -> float:
    started = time.monotonic()
    work()
    return time.monotonic() - started


# The deadline itself


def test_a_wait_is_ended_at_the_deadline_and_nothing_after_it() -> None:
    with pytest.raises(TimeSpent), Deadline.after(0.05).enforced():
        time.sleep(30)
    with Deadline.after(0.05).enforced():
        pass
    time.sleep(0.1)
    with pytest.raises(TimeSpent), Deadline.after(-1.0).enforced():
        raise AssertionError("nothing begins after the deadline")


def test_no_deadline_ends_nothing() -> None:
    with NEVER.enforced():
        pass
    assert not NEVER.is_over
    assert (NEVER.left, NEVER.timeout, NEVER.to_json()) == (math.inf, None, None)
    assert Deadline.after(None) == Deadline.from_json(None) == NEVER
    assert NEVER.sooner(5).left <= 5


def test_a_handler_of_errors_does_not_take_the_end_for_one() -> None:
    def heedless() -> None:
        try:
            time.sleep(30)
        except Exception:  # what this is about
            time.sleep(30)

    with pytest.raises(TimeSpent), Deadline.after(0.05).enforced():
        heedless()


def test_in_another_thread_only_who_looks_ends() -> None:
    ended: list[bool] = []

    def work() -> None:
        with Deadline.after(0.01).enforced():
            time.sleep(0.05)
        ended.append(True)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert ended == [True]


# Mutants, benchmarks, reports


def test_a_hunt_that_runs_is_ended_with_the_budget_and_counts_as_none() -> None:
    def hunt() -> None:
        with pytest.raises(InterruptedHuntError):
            hunt_in_child(None, seeds=50, schedules_max=10**9, deadline=Deadline.after(0.3))

    assert seconds_of(hunt) < 0.3 + IDLE


def test_a_benchmark_that_runs_is_ended_with_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow() -> list[dict[str, Any]]:
        time.sleep(30)
        return []

    def rows(*_arguments: object) -> list[bench.BenchRow]:
        quick = {"name": "slow", "unit": "us", "shape": {"bs": 1}, "peers": []}
        return [bench.BenchRow("slow", {"bs": 1}, lambda: [quick]), bench.BenchRow("slow", {"bs": 2}, slow)]

    monkeypatch.setattr(bench, "BENCHMARKS", {"slow": rows, "other": rows})
    told: list[dict[str, Any]] = []
    ran: dict[str, Any] = {}

    def run() -> None:
        ran.update(bench.run(["slow", "other"], "cpu", budget_seconds=0.1, on_entry=told.append))

    assert seconds_of(run) < 0.1 + IDLE
    assert told == ran["benchmarks"]
    assert [entry.get("left_out", "") for entry in told] == ["", *["the time budget was spent"] * 2]
    assert [entry["shape"] for entry in told[1:]] == [{"bs": 2}, {}]


def test_a_replay_that_runs_when_the_budget_of_a_report_ends_is_bounded_by_it(tmp_path: Path) -> None:
    (tmp_path / "found").mkdir()
    for name in ("a.json", "b.json"):
        (tmp_path / "found" / name).write_text(FIXTURE.read_text())

    def replay(*_arguments: object) -> dict[str, Any]:
        time.sleep(30)
        return {}

    json_file = tmp_path / "r.json"
    folders = tmp_path / "found", tmp_path / "pages", tmp_path
    assert seconds_of(lambda: write_report(*folders, replay, None, json_file, budget_seconds=0.2)) < 0.2 + IDLE
    entries = json.loads(json_file.read_text())["entries"]
    assert [entry["why_not"].partition(";")[0] for entry in entries] == ["the time budget was spent"] * 2


# Campaigns


class StubbornPool:
    """Batches that end when they are interrupted, and not before."""

    width = 2

    def __init__(self) -> None:
        self.tiers: list[str] = []
        self.calls: list[str] = []
        self._running: list[Future[BatchResult]] = []

    def submit(self, batch: Batch, _seconds: float) -> Future[BatchResult]:
        self.tiers.append(batch.tier)
        self._running.append(Future())
        return self._running[-1]

    def interrupt(self) -> None:
        self.calls.append("interrupt")
        for future in self._running:
            future.set_exception(GivenBack())


def plan_of(**tiers: list[str]) -> BatchPlan:
    return BatchPlan(3, lots_of(tiers))


def test_a_batch_that_does_not_end_is_interrupted_and_run_again_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "LATE_SECONDS", 0.1)
    pool = StubbornPool()
    with Store.open(tmp_path / "c.db", campaign=3) as store:
        began = time.monotonic()
        go_on(plan_of(model=["scheduler"]), store, 0, pool, until=began + 0.2)
        assert time.monotonic() - began < 0.2 + IDLE
        assert pool.calls == ["interrupt"]
        assert (store.batches(), store.next_number(0)) == ([], 0)


def test_no_batch_begins_when_its_start_takes_longer_than_what_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "SECONDS_MIN", 3600.0)

    class Pool(StubbornPool):
        width = 1

        def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
            future = super().submit(batch, seconds)
            time.sleep(0.6)
            future.set_result(result(batch))
            return future

    pool = Pool()
    with Store.open(tmp_path / "c.db", campaign=3) as store:
        go_on(plan_of(model=["ops"]), store, 0, pool, until=time.monotonic() + 0.7)
        assert pool.tiers == ["ops"]
