"""Every interleaving that the model has is reached on purpose, and by chance in a share of schedules."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest

from property_tests.support.scripted_schedules import GRAMMAR, Script, turn
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.config import EngineConfig
from specsim.engine.event_log import Run
from specsim.engine.marks import CROSSED, INTERLEAVINGS, LIFE, MARKS, note
from specsim.engine.model import EOS
from specsim.engine.request import Turn
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.sampling_params import SamplingParams
from specsim.engine.workload import Scenario, Workload
from specsim.tiers.accounting.schedules import shares


def played(turns: list[Turn], script: Script, faults: dict[str, int] | None = None, **options: Any) -> Run:
    config = replace(EngineConfig(), **options)
    run = checked_engine(Scenario(config, Workload(tuple(turns), **(faults or {}))), script).run()
    assert run.violations == ()
    return run


RETRACT = {"retractions_max": 1}
ABORT = {"aborts_max": 1}
SAME = tuple(range(10, 16))


def scripted(mark: str) -> Run:
    """A schedule that is written for one interleaving."""
    one, two = turn("a"), turn("b")
    match mark:
        case "stale_result_of_finished":
            return played([one], Script())
        case "stale_result_of_retracted" | "readmitted_at_once":
            return played([one, two], Script(retract_on_demand=[0, 1]), RETRACT)
        case "aborted_in_flight":
            return played([one], Script(abort=[0, 0, 1]), ABORT)
        case "aborted_after_retraction":
            script = Script(retract_on_demand=[0, 1], abort=[0, 0, 0, 1], admit_later=[1], abort_whom=[1])
            return played([one, two], script, {**RETRACT, **ABORT})
        case "dropped_in_flight":
            return played([turn("a", 2, 30)], Script(), pool_slots=12, tight_pool=True)
        case "finished_at_prefill":
            return played([turn("a", answer=1)], Script())
        case "live_result_without_successor":
            return played([turn("a", answer=20), two], Script(arrives_later=[0, 1, 1, 0]))
        case "slots_reused_in_flight":
            turns = [turn("a", answer=9), turn("b", 6, 6)]
            return played(turns, Script(arrives_later=[0, 1]), pool_slots=20, context_len=12)
        case "row_reused_in_flight":
            return played([one, two], Script(), rows=1)
        case "row_remapped_in_flight":
            sharing = [replace(each, tokens=SAME) for each in (one, two)]
            return played(sharing, Script(), radix=True)
        case "tree_took_unwritten_position":
            return played([turn("a", answer=9)], Script(), radix=True)
        case "finished_before_prepared_launch":
            return played([one], Script(result_before_launch=[1] * 9), late_results=True)
        case "batch_lost_and_gained":
            return played([turn("a", answer=1), two], Script(arrives_later=[0, 1]))
        case "stride_changed":
            return played([turn("a", answer=20)], Script(fewer_steps=[0, 1, 0, 1]), adaptive=True)
        case "mask_before_result":
            grammar = turn("a", 3, 16, sampling=SamplingParams(grammar=GRAMMAR))
            return played([grammar], Script(device_goes_first=[1] * 50))
        case "retracted_by_pause":
            return played([one], Script(pause=[0, 0, 1]), {"pauses_max": 1})
        case "session_turn_interrupted":
            turns = [turn("a", session="s"), turn("b", session="s")]
            return played(turns, Script(abort=[0] * 6 + [1]), ABORT)
        case "prefill_result_of_retracted":
            return played([one, two], Script(retract_on_demand=[1]), RETRACT)
    raise AssertionError(mark)


@pytest.mark.parametrize("mark", INTERLEAVINGS)
def test_a_schedule_reaches_it_on_purpose(mark: str) -> None:
    assert mark in scripted(mark).marks


def test_a_pause_retracts_a_request_between_parts_of_its_prefill() -> None:
    run = played([turn("a", 20)], Script(pause=[0, 1], iterations_paused=[2]), {"pauses_max": 1}, chunk_size=4)
    assert run.marks >= {"retract: chunk", "retract: pause", "pause", "resume", "readmission"}


def test_the_simplest_answer_of_several_steps_reaches_the_stale_result_alone() -> None:
    run = played([turn("a", 1, 4, special_at={3: EOS})], Script())
    assert run.marks & INTERLEAVINGS.keys() == {"stale_result_of_finished"}
    run = played([turn("a")], Script(), overlap=False)
    assert run.marks & INTERLEAVINGS.keys() == set()


# Schedules of ten thousand, at least; about half of what was measured over twelve thousand.
LEAST = dict.fromkeys(INTERLEAVINGS, 10) | {
    "stale_result_of_finished": 4000,
    "finished_at_prefill": 2000,
    "aborted_in_flight": 1500,
    "batch_lost_and_gained": 700,
    "live_result_without_successor": 700,
    "finished_before_prepared_launch": 600,
}


@cache
def shares_of_many() -> dict[str, float]:
    return shares(ModelTarget(), seed=3, schedules=2500)


@pytest.mark.slow
def test_random_schedules_reach_every_interleaving() -> None:
    found = shares_of_many()
    assert {mark: share for mark, share in found.items() if 10_000 * share < LEAST.get(mark, 0)} == {}


@pytest.mark.slow
def test_random_schedules_reach_every_other_mark_and_no_mark_is_left_out_of_the_tables() -> None:
    found = {mark for mark, share in shares_of_many().items() if share and " & " not in mark}
    assert found == {*MARKS}


@pytest.mark.slow
def test_random_schedules_have_every_two_of_the_features_that_are_crossed() -> None:
    assert [pair for pair in map(" & ".join, combinations(sorted(CROSSED), 2)) if not shares_of_many().get(pair)] == []


@pytest.mark.slow
def test_every_page_size_is_drawn() -> None:
    found = shares_of_many()
    assert all(found[f"pages of {size}"] > 0.1 for size in (2, 4, 16))
    assert all(0.01 < found[f"pages of {size}"] < 0.06 for size in (64, 256))


def test_pairs_of_features_are_counted_with_each_other_and_with_interleavings() -> None:
    counts = shares(ModelTarget(), seed=0, schedules=0)
    assert counts == dict.fromkeys([*INTERLEAVINGS, *LIFE], 0.0)
    noted: Counter[str] = Counter()
    note(noted, {"stride_changed", "retracted_by_pause", "tree", "overlap"})
    assert set(noted) == {
        *("stride_changed", "retracted_by_pause", "tree", "overlap"),
        *("stride_changed & tree", "retracted_by_pause & tree"),
        *("overlap & stride_changed", "overlap & retracted_by_pause", "overlap & tree"),
    }
