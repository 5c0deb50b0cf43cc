"""A batch of a campaign is made from its numbers, and has what a check of its target has."""

from __future__ import annotations

import json
import textwrap
import threading
import time
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.errors import UsageError
from specsim.fuzz.batch_messages import batch_to_json, result_from_json, result_to_json
from specsim.fuzz.batches import RUNS_MAX, BatchPlan, Lot, batch_at, lots_of, plan_from_json, seed_of
from specsim.fuzz.campaign import GivenBack
from specsim.fuzz.work import Batch
from specsim.fuzz.workers import LocalPool, run_batch
from specsim.tiers.registry import TIERS

NAMES = st.integers(0, (1 << 64) - 1)
ENGINES = """
    from property_tests.support.own_engine import Engine

    def third(requests):
        if requests == 3:
            raise LookupError("three")

    def once(requests):
        if requests == 3:
            with open("times", "a") as times:
                times.write(".")
                if times.tell() == 1:
                    raise LookupError("three")

    breaks, sound, differs = Engine(third), Engine(), Engine(once)
"""


def batch(target: str = "batched:breaks", count: int = 6, **fields: Any) -> Batch:
    plain = {"campaign": 7, "shard": 0, "number": 2, "first": 10000, "tier": "scheduler"}
    return Batch(target=target, count=count, **{**plain, **fields})


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for wheels, in a folder that has the engines."""
    (tmp_path / "batched.py").write_text(textwrap.dedent(ENGINES))
    monkeypatch.chdir(tmp_path)
    return tmp_path / "cache"


# ---- which batch comes next


@given(campaign=NAMES, shard=st.integers(0, 9), number=st.integers(0, 10**6))
def test_a_batch_is_drawn_from_its_numbers_alone(campaign: int, shard: int, number: int) -> None:
    plan = BatchPlan(campaign, lots_of({"a": ["scheduler", "ops"], "b": ["ops"]}))
    drawn = batch_at(plan, shard, number)
    assert drawn == batch_at(plan_from_json(plan.to_json()), shard, number)
    assert drawn.first == number * RUNS_MAX
    assert drawn.count <= RUNS_MAX
    assert batch_at(plan, shard, number, {("a", "scheduler"), ("a", "ops")}).target == "b"
    others = {seed_of(batch_at(replace(plan, campaign=campaign ^ 1), shard, number)), seed_of(replace(drawn, shard=10))}
    assert seed_of(drawn) not in others


@given(campaign=NAMES, shard=st.integers(0, 9))
def test_a_campaign_begins_with_each_tier_of_each_target(campaign: int, shard: int) -> None:
    lots = lots_of({"a": ["ops", "scheduler"], "b": ["ops"]})
    plan = BatchPlan(campaign, lots)
    first = [batch_at(plan, shard, number) for number in range(3)]
    assert {(batch.target, batch.tier) for batch in first} == {(lot.target, lot.tier) for lot in lots}
    stopped = {("a", tier) for tier in ("ops", "scheduler")}
    assert {batch_at(plan, shard, number, stopped).target for number in range(3)} == {"b"}


def test_batches_are_shared_by_weight() -> None:
    plan = BatchPlan(1, (Lot("a", "scheduler", 3), Lot("b", "scheduler", 1)))
    counted = Counter(batch_at(plan, 0, number).target for number in range(2000))
    assert set(counted) == {"a", "b"}
    assert 3 * 0.8 < counted["a"] / counted["b"] < 3 * 1.25


def test_no_batch_has_more_runs_than_its_numbers() -> None:
    assert all(0 < tier.batch_count <= RUNS_MAX for tier in TIERS.values())
    assert batch_to_json(batch())["known"] == ()


# ---- what a batch has


def test_a_batch_is_the_same_twice_and_as_json(cache: Path) -> None:
    one, two = run_batch(batch(), cache, 20.0), run_batch(batch(), cache, 20.0)
    assert result_from_json(json.loads(json.dumps(result_to_json(one)))) == one
    assert (one.runs, one.batch, one.ended) == (6, batch(), "")
    assert [(f.signature, f.count, f.replay) for f in one.findings] == [
        (f.signature, f.count, f.replay) for f in two.findings
    ]
    (found,) = one.findings
    assert (found.rule, found.tier, found.index) == ("X1", "scheduler", 10000)
    # What is known is counted, and its file is not kept again.
    (counted,) = run_batch(batch(known=(found.signature,)), cache, 20.0).findings
    assert (counted.count, counted.replay) == (found.count, "")


def test_a_target_that_differs_from_run_to_run_says_so(cache: Path) -> None:
    signature = "scheduler:X1:run:LookupError"
    result = run_batch(batch("batched:differs", known=(signature,)), cache, 20.0)  # which is not made smaller
    assert result.ended.startswith(f"two runs of the schedule of {signature} differ: ")
    assert (result.runs, result.findings) == (6, ())


def test_an_interrupt_ends_a_batch_with_what_it_has_done_and_no_other_begins(cache: Path) -> None:
    pool = LocalPool(1, cache, 20.0)
    try:
        running = pool.submit(batch("batched:sound", RUNS_MAX), 600.0)
        waiting = pool.submit(batch("batched:sound", RUNS_MAX), 600.0)
        threading.Timer(4.0, pool.interrupt).start()
        began = time.monotonic()
        assert running.result(60).runs < RUNS_MAX
        with pytest.raises(GivenBack):
            waiting.result(60)
        assert time.monotonic() - began < 30
    finally:
        pool.close()


@pytest.mark.parametrize("target", ["nowhere:engine", "sglang@/not/there"])
def test_a_target_that_is_not_there_is_one_sentence(cache: Path, target: str) -> None:
    with pytest.raises(UsageError):
        run_batch(batch(target), cache, 20.0)
