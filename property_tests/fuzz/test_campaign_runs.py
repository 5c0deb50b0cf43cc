"""A run of a campaign is made from its numbers; a run that ends its process costs one run and is a finding."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support import broken_model
from specsim import replay_file
from specsim.choices.chooser import RecordingChooser, replayed, seeded
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.workload import draw_scenario
from specsim.errors import UsageError
from specsim.fuzz.batch import chooser_of, run_batch_here, run_one, runs_of
from specsim.fuzz.batch_messages import batch_to_json, result_from_json, result_to_json
from specsim.fuzz.batches import (
    RUNS_MAX,
    BatchPlan,
    Lot,
    batch_at,
    family_weights,
    lots_of,
    plan_from_json,
    seed_of,
)
from specsim.fuzz.scenario_families import FAMILIES
from specsim.fuzz.work import Batch
from specsim.fuzz.workers import BatchWorker, run_batch
from specsim.replay_file import ScheduleReplay
from specsim.tiers.accounting.schedules import run_schedule
from specsim.tiers.registry import TIERS

NAMES = st.integers(0, (1 << 64) - 1)
# What the model does before it prepares a step.
DIES = "if requests == 3: os.abort()"
HANGS = "while requests == 3: pass"
BREAKS_A_RULE = 'if requests == 2: raise HostFunctionError("prepare", "two")'
PRINTS = "print('x' * 1000)"
CHANGES = """
    seen.append(requests)
    if len(seen) == 200:
        raise HostFunctionError("prepare", "now")
"""


def batch(target: str = "model", count: int = 12, **fields: Any) -> Batch:
    plain = {"campaign": 7, "shard": 0, "number": 2, "first": 10000, "tier": "accounting"}
    return Batch(target=target, count=count, **{**plain, "family": "any", **fields})


@pytest.fixture
def worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[BatchWorker]:
    """Its model has the defect that a test writes into `tmp_path`."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    worker = BatchWorker(tmp_path / "cache", hang_seconds=1.0)
    yield worker
    worker.close()


# ---- which batch comes next


@given(campaign=NAMES, shard=st.integers(0, 9), number=st.integers(0, 10**6))
def test_a_batch_is_drawn_from_its_numbers_alone(campaign: int, shard: int, number: int) -> None:
    plan = BatchPlan(campaign, lots_of({"a": ["accounting", "ops"], "b": ["ops"]}), family_weights(()))
    drawn = batch_at(plan, shard, number)
    assert drawn == batch_at(plan_from_json(plan.to_json()), shard, number)
    assert drawn.first == number * RUNS_MAX
    assert drawn.count <= RUNS_MAX
    assert batch_at(plan, shard, number, {("a", "accounting"), ("a", "ops")}).target == "b"
    assert bool(drawn.family) == (drawn.tier == "accounting")
    others = {seed_of(batch_at(replace(plan, campaign=campaign ^ 1), shard, number)), seed_of(replace(drawn, shard=10))}
    assert seed_of(drawn) not in others


@given(campaign=NAMES, shard=st.integers(0, 9))
def test_a_campaign_begins_with_each_tier_of_each_target(campaign: int, shard: int) -> None:
    lots = lots_of({"a": ["accounting", "ops", "scheduler"], "b": ["ops"]})
    plan = BatchPlan(campaign, lots, family_weights(()))
    first = [batch_at(plan, shard, number) for number in range(4)]
    assert {(batch.target, batch.tier) for batch in first} == {(lot.target, lot.tier) for lot in lots}
    stopped = {("a", tier) for tier in ("accounting", "ops", "scheduler")}
    assert {batch_at(plan, shard, number, stopped).target for number in range(4)} == {"b"}


def test_batches_are_shared_by_weight() -> None:
    lots = Lot("a", "accounting", 3), Lot("b", "accounting", 1)
    plan = BatchPlan(1, lots, family_weights(["any", "trees=3"]))
    drawn = [batch_at(plan, 0, number) for number in range(2000)]
    for counted, (one, other) in (
        (Counter(b.target for b in drawn), ("a", "b")),
        (Counter(b.family for b in drawn), ("trees", "any")),
    ):
        assert set(counted) == {one, other}
        assert 3 * 0.8 < counted[one] / counted[other] < 3 * 1.25


@pytest.mark.parametrize("text", ["tree", "trees=x", "trees=-1", "trees=1.5", "trees=0", "=1"])
def test_a_weight_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--family"):
        family_weights([text])


# ---- scenario families


def labels_of(seed: int) -> set[str]:
    seen: set[str] = set()
    chooser = seeded(seed, "labels")

    def source(bound: int, label: str) -> int:
        seen.add(label)
        return chooser.choose(bound, label)

    draw_scenario(RecordingChooser(source))
    return seen


def test_every_label_of_a_family_is_one_that_scenarios_are_drawn_with() -> None:
    drawn = set().union(*map(labels_of, range(400)))
    assert {label for family in FAMILIES.values() for label in family.values} <= drawn
    assert all(0 <= value < 64 for family in FAMILIES.values() for values in family.values.values() for value in values)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_makes_scenarios_of_its_own_and_its_tapes_need_no_family(name: str) -> None:
    target, made = ModelTarget(), batch(family=name)
    for index in range(made.first, made.first + 6):
        schedule = run_one(target, chooser_of(made, index))
        assert schedule is not None
        again = run_schedule(target, replayed(schedule.tape))
        assert again is not None
        assert (again.scenario, again.run.digest) == (schedule.scenario, schedule.run.digest)
        config, workload = schedule.scenario.config, schedule.scenario.workload
        holds = {
            "sessions": any(turn.session for turn in workload.turns),
            "trees": config.topk > 1,
            "pages": config.page_size > 1,
            "retractions": workload.retractions_max > 0,
            "aborts": workload.aborts_max > 0,
            "prefixes": config.radix,
            "chunks": config.chunk_size > 0,
            "windows": config.window > 0,
            "streams": config.streams,
        }
        assert holds.get(name, True)


# ---- one run again


def test_a_run_is_made_again_from_its_numbers_in_another_process(worker: BatchWorker) -> None:
    made = batch(family="tiny pools", count=9)
    runs = list(runs_of(ModelTarget(), made, {}, lambda _index: None))
    index, schedule = runs[-1]
    assert schedule is not None
    again = worker.again(made, index)
    assert (again["digest"], again["tape"]) == (schedule.run.digest, list(schedule.tape))
    assert again["digest"] not in {other.run.digest for _, other in runs[:-1] if other is not None}


@pytest.mark.slow
def test_a_batch_is_the_same_here_in_a_child_and_as_json(worker: BatchWorker, tmp_path: Path) -> None:
    broken_model.write(tmp_path, BREAKS_A_RULE)
    made = batch(count=30)
    results = [worker.run(made), run_batch(made, Path("cache"), 5.0), worker.run(made)]
    for result in results:
        assert result_from_json(json.loads(json.dumps(result_to_json(result)))) == result
        assert (result.runs, result.batch, result.ended) == (30, made, "")
    one, *others = [(r.events, r.features, [(f.signature, f.index, f.count) for f in r.findings]) for r in results]
    assert others == [one, one]
    (found,) = results[0].findings
    assert (found.rule, found.count > 1, found.tier) == ("X1", True, "accounting")
    # What is known is counted, and not shrunk again.
    (counted,) = worker.run(replace(made, known=(found.signature,))).findings
    assert (counted.count, counted.index, counted.replay) == (found.count, found.index, "")


# ---- whatever happens to a process


def replayed_file(text: str, folder: Path) -> ScheduleReplay:
    file = folder / "replay.json"
    file.write_text(text)
    stored = replay_file.load(file)
    assert isinstance(stored, ScheduleReplay)
    return stored


@pytest.mark.parametrize(("harm", "rule", "says"), [(DIES, "X3", "SIGABRT"), (HANGS, "X2", "within 1 s")])
@pytest.mark.slow(runs_one_in=2)
def test_a_run_that_ends_its_process_is_a_finding_and_costs_one_run(
    worker: BatchWorker, tmp_path: Path, harm: str, rule: str, says: str
) -> None:
    broken_model.write(tmp_path, harm)
    result = worker.run(batch(count=40))
    (found,) = result.findings
    assert (found.rule, found.signature) == (rule, f"accounting:{rule}:process")
    assert says in result.ended
    assert result.runs == found.index - result.batch.first + 1
    # Its file holds the whole schedule until then: what the model does of it has three requests and prepares a step.
    stored = replayed_file(found.replay, tmp_path)
    schedule = run_schedule(ModelTarget(), replayed(stored.tape))
    assert schedule is not None
    assert len(schedule.scenario.workload.turns) >= 3
    before = run_batch_here(ModelTarget(), replace(result.batch, count=result.runs - 1), "")
    assert before.events == result.events


@pytest.mark.slow
def test_a_process_that_somebody_kills_is_no_finding_and_its_batch_is_whole(worker: BatchWorker) -> None:
    made = batch(count=150)
    expected = run_batch_here(ModelTarget(), made, "")
    killed: list[int] = []

    def kill() -> None:
        while not killed and not done.is_set():
            child = worker._children.get("model")
            process = child._process if child else None
            for fork in children_of(process.pid) if process else ():
                time.sleep(0.2)
                killed.append(fork)
                os.kill(fork, signal.SIGKILL)
            time.sleep(0.01)

    done = threading.Event()
    thread = threading.Thread(target=kill)
    thread.start()
    result = worker.run(made)
    done.set()
    thread.join()
    assert killed
    assert "SIGKILL" in result.ended
    assert (result.runs, result.events, result.features, result.findings) == (
        expected.runs,
        expected.events,
        expected.features,
        (),
    )


def children_of(pid: int) -> list[int]:
    try:
        return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    except OSError:
        return []


@pytest.mark.slow
def test_a_child_that_is_killed_is_started_again(worker: BatchWorker) -> None:
    made = batch(count=3)
    first = worker.run(made)
    process = worker._children["model"]._process
    assert process is not None
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    second = worker.run(made)
    assert (second.runs, second.events) == (first.runs, first.events)


@pytest.mark.parametrize("seconds", [0.0, 0.1, 0.6])
def test_an_interrupt_ends_a_batch_with_what_it_has_done(worker: BatchWorker, seconds: float) -> None:
    """Whether the child is not there yet, begins, or runs."""
    timer = threading.Timer(seconds, worker.interrupt)
    timer.start()
    result = worker.run(batch(count=RUNS_MAX))
    assert 0 < result.runs < 1000
    assert (result.ended, result.batch.count) == ("", RUNS_MAX)


@pytest.mark.slow
def test_a_target_that_differs_from_run_to_run_says_so(worker: BatchWorker, tmp_path: Path) -> None:
    broken_model.write(tmp_path, CHANGES)
    result = worker.run(batch(count=40, first=1))
    assert result.ended == "two runs of a schedule differ: accounting:X1:prepare in the first one alone"
    assert (result.runs, result.findings) == (40, ())


@pytest.mark.slow
def test_what_a_target_prints_does_not_pile_up(worker: BatchWorker, tmp_path: Path) -> None:
    broken_model.write(tmp_path, PRINTS)
    for _ in range(2):
        worker.run(batch(count=4))
        child = worker._children["model"]
        assert os.fstat(child._stderr.fileno()).st_size < 4_000_000
    size = os.fstat(child._stderr.fileno()).st_size
    worker.run(batch(count=1))
    assert os.fstat(child._stderr.fileno()).st_size < size


@pytest.mark.parametrize("target", ["nowhere:engine", "sglang@/not/there"])
def test_a_target_that_is_not_there_is_one_sentence(worker: BatchWorker, target: str) -> None:
    with pytest.raises(UsageError):
        worker.run(batch(target, tier="scheduler", family=""))


def test_a_checkout_that_is_gone_is_noticed_though_it_is_loaded(worker: BatchWorker, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="does not exist any more"):
        worker.run(batch(f"sglang@{tmp_path / 'gone'}"))


def test_no_batch_has_more_runs_than_its_numbers() -> None:
    assert all(0 < tier.batch_count <= RUNS_MAX for tier in TIERS.values())
    assert batch_to_json(batch())["known"] == ()
