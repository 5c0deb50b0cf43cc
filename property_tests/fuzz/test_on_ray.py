"""A campaign on a real Ray cluster of two nodes on this machine: batches are counted once, whatever is lost."""

from __future__ import annotations

import contextlib
import json
import math
import os
import signal
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.batch_results import result as result_of
from property_tests.support.command_line import specsim
from specsim import __version__ as specsim_version
from specsim.errors import UsageError
from specsim.fuzz.batch_messages import batch_to_json
from specsim.fuzz.batches import BatchPlan, Lot
from specsim.fuzz.campaign import GivenBack, go_on
from specsim.fuzz.ray_child import left_of, run_there
from specsim.fuzz.ray_pool import RayCluster, RayPool
from specsim.fuzz.store import Store
from specsim.fuzz.work import Batch, BatchResult
from specsim.fuzz.workers import run_batch

needs_ray = pytest.mark.skipif(
    find_spec("ray") is None, reason="Ray is not installed: pip install 'specsim-llm[ray]' adds it"
)
RUNS = 3  # of a batch
MEMORY = 80_000_000  # bytes of a node's object store, about the least that Ray takes
PLAN = BatchPlan(11, (Lot("model", "scheduler", 1),))


class Here:
    """A pool of this machine. `asked` are the numbers of the batches that it ran."""

    def __init__(
        self, run: Callable[[Batch], BatchResult] = lambda batch: run_batch(batch, Path("cache"), 20.0)
    ) -> None:
        self._run = run
        self.asked: list[int] = []
        self.is_interrupted = False

    @property
    def width(self) -> int:
        return 1

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        future: Future[BatchResult] = Future()
        self.asked.append(batch.number)
        if batch.target == "model":
            future.set_result(self._run(batch))
        else:
            future.set_exception(UsageError(f"there is no {batch.target}", "name another"))
        return future

    def interrupt(self) -> None:
        self.is_interrupted = True


class Nodes:
    """A cluster of one node, the head; more may be added."""

    def __init__(self, cpus: int = 1) -> None:
        from ray.cluster_utils import Cluster

        head = {"num_cpus": cpus, "object_store_memory": MEMORY, "include_dashboard": False}
        self._cluster = Cluster(initialize_head=True, head_node_args=head)
        self.address: str = self._cluster.address
        self.head = raylet_of(self._cluster.head_node)

    def add(self, gpus: int = 0) -> int:
        """One more node with one CPU, and so many GPUs that Ray takes on trust; its raylet's process."""
        return raylet_of(self._cluster.add_node(num_cpus=1, num_gpus=gpus, object_store_memory=MEMORY))

    def end(self) -> None:
        self._cluster.shutdown()


def raylet_of(node: Any) -> int:
    ((process,),) = [found for name, found in node.all_processes.items() if name == "raylet"]
    return int(process.process.pid)


def below(ancestor: int) -> dict[int, bytes]:
    """The processes below a process, and their commands."""
    parents: dict[int, int] = {}
    commands: dict[int, bytes] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                parents[int(entry.name)] = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                commands[int(entry.name)] = (entry / "cmdline").read_bytes()

    def is_below(process: int) -> bool:
        while process in parents:
            process = parents[process]
            if process == ancestor:
                return True
        return False

    return {process: command for process, command in commands.items() if is_below(process)}


def children_of(raylet: int) -> set[int]:
    """The processes that run batches on a node."""
    return {process for process, command in below(raylet).items() if b"specsim.tiers.child" in command}


def kill_node(raylet: int) -> None:
    """All of a node's processes at once, as a machine dies. Those of Ray alone would still answer."""
    for process in [raylet, *below(raylet)]:
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)


@pytest.fixture(scope="module")
def nodes() -> Iterator[Nodes]:
    made = Nodes()
    yield made
    made.end()


def campaign(
    path: Path,
    pool: Any,
    count: int,
    on_result: Callable[[BatchResult], None] = lambda _result: None,
    runs: int = RUNS,
    interrupted: Callable[[], bool] = lambda: False,
) -> list[BatchResult]:
    """Run batches 0 to `count` - 1; what was stored, in the order in which it was."""
    seen: list[BatchResult] = []

    def take(result: BatchResult, _outcome: object) -> None:
        seen.append(result)
        on_result(result)

    with Store.open(path, campaign=PLAN.campaign) as store:
        before, runs_before = [batch.number for batch in store.batches()], store.totals()[0]
        go_on(
            PLAN,
            store,
            0,
            pool,
            until=math.inf,
            interrupted=interrupted,
            on_result=take,
            prepare=lambda batch: replace(batch, count=runs),
            batches_max=count,
        )
        assert sorted(batch.number for batch in store.batches()) == sorted(
            [*before, *(result.batch.number for result in seen)]
        )
        assert store.totals()[0] - runs_before == sum(result.runs for result in seen)
    return seen


def shown(result: BatchResult) -> tuple[Any, ...]:
    """What is the same wherever a batch is run."""
    return result.batch.number, result.runs, result.events, result.refused, result.features, result.ended


@needs_ray
@pytest.mark.slow
def test_a_campaign_ends_complete_when_a_node_is_killed_and_each_batch_is_counted_once(
    tmp_path: Path, nodes: Nodes
) -> None:
    second = nodes.add()
    cluster = RayCluster.connect(nodes.address, None, 20.0)
    assert (cluster.nodes, cluster.cpus) == (2, 2)
    here = Here()
    told: list[str] = []
    both_worked: list[Any] = []

    def kill_one(_result: BatchResult) -> None:
        if not both_worked and children_of(second):
            both_worked.append(bool(children_of(nodes.head)))
            kill_node(second)

    try:
        stored = campaign(tmp_path / "a.db", RayPool(cluster, here, False, told.append), 10, kill_one)
        began = time.monotonic()
        while cluster.cpus > 1 and time.monotonic() - began < 60:
            time.sleep(0.2)
        assert (cluster.nodes, cluster.cpus) == (1, 1)
    finally:
        cluster.close()
    assert both_worked == [True]
    assert sorted(result.batch.number for result in stored) == list(range(10))
    alone = campaign(tmp_path / "b.db", Here(), 10)
    assert sorted(map(shown, stored)) == sorted(map(shown, alone))
    assert here.asked == []
    assert told == []


@needs_ray
@pytest.mark.slow
def test_when_the_cluster_is_lost_the_campaign_goes_on_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAY_gcs_rpc_server_reconnect_timeout_s", "3")
    nodes = Nodes()
    here = Here()
    told: list[str] = []
    done: list[Any] = []

    def end(_result: BatchResult) -> None:
        done.append(here.asked.copy())
        if len(done) == 2:
            nodes.end()

    try:
        cluster = RayCluster.connect(nodes.address, None, 20.0)
        stored = campaign(tmp_path / "a.db", RayPool(cluster, here, False, told.append), 8, end)
        cluster.close()
    finally:
        nodes.end()
    assert sorted(result.batch.number for result in stored) == list(range(8))
    assert done[1] == []  # the first two were the cluster's
    assert 4 <= len(here.asked) <= 6
    assert told == [f"the Ray cluster at {nodes.address} was lost: what it had is run on this machine"]


@needs_ray
@pytest.mark.slow
def test_an_interrupt_gives_back_what_the_cluster_has_and_a_resume_runs_it(tmp_path: Path, nodes: Nodes) -> None:
    cluster = RayCluster.connect(nodes.address, None, 20.0)
    here = Here()
    done: list[int] = []
    try:
        pool = RayPool(cluster, here, False, lambda _text: None)
        began = time.monotonic()
        first = campaign(
            tmp_path / "a.db", pool, 6, lambda r: done.append(r.batch.number), interrupted=lambda: bool(done)
        )
        assert time.monotonic() - began < 60
    finally:
        cluster.close()
    assert here.is_interrupted
    assert len(first) < 6
    then = campaign(tmp_path / "a.db", Here(), 6 - len(first))
    assert sorted(result.batch.number for result in [*first, *then]) == list(range(6))


@needs_ray
@pytest.mark.slow
def test_a_target_that_the_nodes_do_not_have_is_asked_for_here_and_told_once(nodes: Nodes) -> None:
    cluster = RayCluster.connect(nodes.address, None, 20.0)
    here = Here()
    told: list[str] = []
    pool = RayPool(cluster, here, False, told.append)
    batch = Batch(1, 0, 0, 0, 5, "nosuchmodule:target", "scheduler")
    try:
        for number in range(2):
            with pytest.raises(UsageError, match="there is no nosuchmodule:target"):
                pool.submit(replace(batch, number=number), 5.0).result(timeout=60)
    finally:
        cluster.close()
    assert here.asked == [0, 1]
    assert len(told) == 1
    assert told[0].endswith("what it had is run on this machine")


@needs_ray
@pytest.mark.slow
def test_the_command_runs_a_campaign_on_the_cluster_and_says_so(tmp_path: Path, nodes: Nodes) -> None:
    arguments = ["fuzz", "model", "--ray", nodes.address, "--budget-seconds", "6", "--json", "f.json"]
    ended = specsim(tmp_path, *arguments)
    assert ended.returncode == 0, ended.stderr
    assert f"Ray at {nodes.address}: " in ended.stderr + ended.stdout
    assert json.loads((tmp_path / "f.json").read_text())["runs"] > 0
    ended = specsim(tmp_path, "fuzz", "model", "--ray", "127.0.0.1:1", "--store", "other.db")
    assert ended.returncode == 2
    assert "Traceback" not in ended.stderr
    assert "specsim: there is no Ray cluster at 127.0.0.1:1 (Connection refused)." in ended.stderr


@needs_ray
@pytest.mark.slow
def test_a_batch_for_a_gpu_waits_for_a_node_that_has_one_and_comes_to_it(nodes: Nodes) -> None:
    cluster = RayCluster.connect(nodes.address, None, 20.0)
    batch = Batch(1, 0, 0, 0, 5, "model", "scheduler", device="cuda")
    second = 0
    try:
        assert cluster.gpus == 0
        waiting = cluster.submit(batch, 5.0)
        assert cluster.submit(replace(batch, number=1, device="cpu"), 5.0).result(timeout=60).runs
        assert not waiting.done()
        second = nodes.add(gpus=1)
        assert waiting.result(timeout=60).runs
        assert children_of(second)
        assert cluster.gpus == 1
    finally:
        cluster.close()
        if second:
            kill_node(second)


def test_a_node_with_another_version_of_specsim_says_so() -> None:
    batch = Batch(1, 0, 0, 0, 5, "model", "scheduler")
    answer = run_there(batch_to_json(batch), None, 20.0, 5.0, 0.0, "0.0")
    assert set(answer) == {"problem", "remedy"}
    assert f"has specsim {specsim_version}, the campaign 0.0" in answer["problem"]


@given(st.floats(0, 1e6) | st.just(math.inf), st.floats(-1e6, 1e6))
def test_waiting_costs_time_and_a_wrong_clock_costs_none(seconds: float, waited: float) -> None:
    left = left_of(seconds, waited)
    assert 0 <= left <= seconds
    assert left == seconds or left + waited == pytest.approx(seconds)


@needs_ray
@pytest.mark.parametrize("address", ["127.0.0.1", "local", "ray://", "127.0.0.1:70000", "127.0.0.1:6379/x"])
def test_what_is_no_address_is_refused(address: str) -> None:
    with pytest.raises(UsageError, match=r"is no address; give HOST:PORT, ray://HOST:PORT, or auto"):
        RayCluster.connect(address, None, 20.0)


@needs_ray
def test_a_cluster_that_is_not_there_is_one_sentence_at_once() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    began = time.monotonic()
    with pytest.raises(
        UsageError, match=rf"there is no Ray cluster at 127.0.0.1:{port} \(Connection refused\); start it"
    ):
        RayCluster.connect(f"127.0.0.1:{port}", None, 20.0)
    assert time.monotonic() - began < 5


@pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here")
def test_without_ray_the_command_that_adds_it_is_named() -> None:
    with pytest.raises(UsageError, match=r"Ray, which is not installed; pip install 'specsim-llm\[ray\]' adds it"):
        RayCluster.connect("auto", None, 20.0)


def test_a_batch_that_was_given_back_is_run_when_the_campaign_goes_on(tmp_path: Path) -> None:
    class Gone(Here):
        def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
            if batch.number % 2:
                return super().submit(batch, seconds)
            future: Future[BatchResult] = Future()
            future.set_exception(GivenBack())
            return future

    first = campaign(tmp_path / "a.db", Gone(result_of), 4)
    then = campaign(tmp_path / "a.db", Here(result_of), 2)
    assert {result.batch.number for result in then} & {result.batch.number for result in first} == set()
