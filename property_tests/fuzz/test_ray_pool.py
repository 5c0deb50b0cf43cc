"""What becomes of a batch between a cluster and this machine, with a made-up cluster: `test_on_ray` has a real one."""

from __future__ import annotations

from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.errors import UsageError
from specsim.fuzz.campaign import GivenBack
from specsim.fuzz.ray_pool import RayCluster, RayLost, RayPool
from specsim.fuzz.work import Batch, BatchResult

HOUR = 3600.0
Asked = tuple[Batch, Future[BatchResult]]


@dataclass
class Queue:
    """What was submitted and has no answer yet: the cluster, or the workers of this machine."""

    slots: int
    gpus: int = 0
    lost: str = ""
    asked: list[Asked] = field(default_factory=list)
    interrupts: int = 0

    @property
    def width(self) -> int:
        return 0 if self.lost else self.slots

    @property
    def room(self) -> int:
        return max(0, self.width - len(self.asked))

    def submit(self, batch: Batch, _seconds: float) -> Future[BatchResult]:
        future: Future[BatchResult] = Future()
        self.asked.append((batch, future))
        return future

    def answer(self, error: Exception | None = None, which: int = 0) -> int:
        """Answer one; the number of its batch."""
        batch, future = self.asked.pop(which)
        if error is None:
            future.set_result(BatchResult(batch, "1", 1, 1, 0.0, 0.0))
        else:
            future.set_exception(error)
        return batch.number

    def lose(self) -> None:
        self.lost = "the cluster was lost"
        while self.asked:
            self.answer(RayLost(self.lost))

    def give_back(self) -> None:
        while self.asked:
            self.answer(RayLost("it was interrupted"))

    def give_up(self) -> None:
        pass

    def interrupt(self) -> None:
        self.interrupts += 1


def batch_of(number: int, **more: Any) -> Batch:
    return Batch(0, 0, number, number * 10, 10, "model", "ops", **more)


def pool_of(cluster: Queue, here: Queue, said: list[str], beside: bool = False) -> RayPool:
    return RayPool(cast("RayCluster", cluster), here, beside, said.append)


@given(st.data())
def test_every_batch_has_one_result_and_this_machine_never_runs_more_than_it_has_workers_for(
    data: st.DataObject,
) -> None:
    cluster, here = Queue(slots=data.draw(st.integers(1, 4))), Queue(slots=data.draw(st.integers(1, 3)))
    pool = pool_of(cluster, here, [], beside=data.draw(st.booleans()))
    futures: list[Future[BatchResult]] = []
    for _ in range(data.draw(st.integers(1, 30))):
        if sum(not future.done() for future in futures) < pool.width:
            futures.append(pool.submit(batch_of(len(futures)), HOUR))
        moves = ["lose"] * bool(not cluster.lost) + ["cluster"] * bool(cluster.asked) + ["here"] * bool(here.asked)
        move = data.draw(st.sampled_from(["submit", *moves]))
        if move == "lose":
            cluster.lose()
        elif move == "cluster":
            which = data.draw(st.integers(0, len(cluster.asked) - 1))
            cluster.answer(RayLost("too often") if data.draw(st.booleans()) else None, which)
        elif move == "here":
            here.answer(which=data.draw(st.integers(0, len(here.asked) - 1)))
        assert len(here.asked) <= here.width
    while cluster.asked or here.asked:
        (cluster if cluster.asked else here).answer()
    assert [future.result(timeout=0).batch.number for future in futures] == list(range(len(futures)))


def test_a_lost_cluster_is_reported_once_and_leaves_its_batches_in_their_order() -> None:
    cluster, here, said = Queue(slots=4), Queue(slots=1), list[str]()
    pool = pool_of(cluster, here, said)
    assert pool.width == 4
    futures = [pool.submit(batch_of(number), HOUR) for number in range(4)]
    cluster.lose()
    assert said == ["the cluster was lost: what it had is run on this machine"]
    assert pool.width == 1
    assert [here.answer() for _ in range(4)] == [0, 1, 2, 3]
    assert all(future.done() for future in futures)


def test_an_interrupt_gives_back_what_waits_anywhere() -> None:
    cluster, here = Queue(slots=3), Queue(slots=1)
    pool = pool_of(cluster, here, [])
    futures = [pool.submit(batch_of(number), HOUR) for number in range(3)]
    cluster.answer(RayLost("too often"))
    cluster.answer(RayLost("too often"))
    pool.interrupt()
    assert here.interrupts == 1
    assert here.answer() == 0
    assert futures[0].result(timeout=0)
    for future in futures[1:]:
        with pytest.raises(GivenBack):
            future.result(timeout=0)


def test_what_comes_back_when_the_time_is_over_is_given_back() -> None:
    cluster, here, said = Queue(slots=1), Queue(slots=1), list[str]()
    future = pool_of(cluster, here, said).submit(batch_of(0), 0.0)
    cluster.answer(RayLost("it waited for a node that did not come"))
    with pytest.raises(GivenBack):
        future.result(timeout=0)
    assert here.asked == []
    assert said == []


def test_a_target_that_is_nowhere_is_the_errors_of_this_machine() -> None:
    cluster, here, said = Queue(slots=1), Queue(slots=1), list[str]()
    future = pool_of(cluster, here, said).submit(batch_of(0), HOUR)
    cluster.answer(UsageError("no such wheel there", "fetch it"))
    here.answer(UsageError("no such wheel here", "fetch it"))
    with pytest.raises(UsageError, match="no such wheel here"):
        future.result(timeout=0)
    assert said == ["no such wheel there; fetch it: what it had is run on this machine"]


@pytest.mark.parametrize(("gpus", "device"), [(0, "cpu"), (2, "cuda")])
def test_a_batch_is_for_a_gpu_only_where_the_cluster_has_one_and_never_here(gpus: int, device: str) -> None:
    cluster, here = Queue(slots=1, gpus=gpus), Queue(slots=1)
    pool_of(cluster, here, []).submit(batch_of(0, device="cuda"), HOUR)
    assert cluster.asked[0][0].device == device
    cluster.answer(RayLost("too often"))
    assert here.asked[0][0].device == "cpu"
