"""Every interleaving that the model has is reached on purpose, and by chance in a share of schedules."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace
from functools import cache
from typing import Any

import pytest

from specsim.engine.accounting_target import ModelTarget
from specsim.engine.config import EngineConfig
from specsim.engine.event_log import Run
from specsim.engine.grammar import LAW_TOKENS, Automaton
from specsim.engine.loop import Engine
from specsim.engine.marks import CROSSED, INTERLEAVINGS, LIFE, NOT_EXPRESSED, OPTIONS, note
from specsim.engine.model import EOS
from specsim.engine.request import Turn
from specsim.engine.sampling import SamplingParams
from specsim.engine.workload import Scenario, Workload
from specsim.tiers.accounting.schedules import shares
from specsim.tiers.accounting.sweep import crossed


class Script:
    """Choices by their label, each list in its order, then zeros."""

    def __init__(self, **choices: list[int]) -> None:
        self._left = defaultdict(list, {label.replace("_", " "): list(values) for label, values in choices.items()})

    def choose(self, bound: int, label: str) -> int:
        left = self._left[label]
        return min(left.pop(0), bound - 1) if left else 0


def turn(name: str, prompt_len: int = 3, answer: int = 8, **fields: Any) -> Turn:
    start = 10 + 100 * ord(name[0])
    return Turn(name, tuple(range(start, start + prompt_len)), answer, **fields)


def played(turns: list[Turn], script: Script, faults: dict[str, int] | None = None, **options: Any) -> Run:
    config = replace(EngineConfig(), **options)
    run = Engine(Scenario(config, Workload(tuple(turns), **(faults or {}))), script).run()
    assert run.violations == ()
    return run


RETRACT = {"retractions_max": 1}
ABORT = {"aborts_max": 1}
SAME = tuple(range(10, 16))
GRAMMAR = Automaton({0: dict.fromkeys(LAW_TOKENS[:3], 0)}, final=(1,))


def scripted(mark: str) -> Run:
    """A schedule that is written for one interleaving."""
    one, two = turn("a"), turn("b")
    match mark:
        case "R1":
            return played([one], Script())
        case "R2" | "R3":
            return played([one, two], Script(retract_on_demand=[0, 1]), RETRACT)
        case "R4":
            return played([one], Script(abort=[0, 0, 1]), ABORT)
        case "R5":
            script = Script(retract_on_demand=[0, 1], abort=[0, 0, 0, 1], admit_later=[1], abort_whom=[1])
            return played([one, two], script, {**RETRACT, **ABORT})
        case "R6":
            return played([turn("a", 2, 30)], Script(), pool_slots=12, tight_pool=True)
        case "R7":
            return played([turn("a", answer=1)], Script())
        case "R8":
            return played([turn("a", answer=20), two], Script(arrives_later=[0, 1, 1, 0]))
        case "R9":
            turns = [turn("a", answer=9), turn("b", 6, 6)]
            return played(turns, Script(arrives_later=[0, 1]), pool_slots=20, context_len=12)
        case "R10":
            return played([one, two], Script(), rows=1)
        case "R11":
            sharing = [replace(each, tokens=SAME) for each in (one, two)]
            return played(sharing, Script(), radix=True)
        case "R12":
            return played([turn("a", answer=9)], Script(), radix=True)
        case "R13":
            return played([one], Script(result_before_launch=[1] * 9), late_results=True)
        case "R14":
            return played([turn("a", answer=1), two], Script(arrives_later=[0, 1]))
        case "R15":
            return played([turn("a", answer=20)], Script(fewer_steps=[0, 1, 0, 1]), adaptive=True)
        case "R16":
            grammar = turn("a", 3, 16, sampling=SamplingParams(grammar=GRAMMAR))
            return played([grammar], Script(device_goes_first=[1] * 50))
        case "R17":
            return played([one], Script(pause=[0, 0, 1]), {"pauses_max": 1})
        case "R18":
            turns = [turn("a", session="s"), turn("b", session="s")]
            return played(turns, Script(abort=[0] * 6 + [1]), ABORT)
        case "R20":
            return played([one, two], Script(retract_on_demand=[1]), RETRACT)
    raise AssertionError(mark)


@pytest.mark.parametrize("mark", INTERLEAVINGS)
def test_a_schedule_reaches_it_on_purpose(mark: str) -> None:
    assert mark in scripted(mark).marks


def test_a_pause_retracts_a_request_between_parts_of_its_prefill() -> None:
    run = played([turn("a", 20)], Script(pause=[0, 1], iterations_paused=[2]), {"pauses_max": 1}, chunk_size=4)
    assert run.marks >= {"retract: chunk", "retract: pause", "pause", "resume", "readmission"}


def test_the_dullest_answer_of_several_steps_reaches_the_stale_result_alone() -> None:
    run = played([turn("a", 1, 4, special_at={3: EOS})], Script())
    assert run.marks & INTERLEAVINGS.keys() == {"R1"}
    run = played([turn("a")], Script(), overlap=False)
    assert run.marks & INTERLEAVINGS.keys() == set()


# Schedules of ten thousand, at least; about half of what was measured over twelve thousand.
LEAST = dict.fromkeys(INTERLEAVINGS, 10) | {"R1": 4000, "R7": 2000, "R4": 1500, "R14": 700, "R8": 700, "R13": 600}


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
    assert found == {*INTERLEAVINGS, *LIFE, *OPTIONS}


@pytest.mark.slow
def test_random_schedules_have_every_two_of_the_features_that_are_crossed() -> None:
    assert [pair for pair in crossed(CROSSED) if not shares_of_many().get(pair)] == []


def test_every_page_size_is_drawn() -> None:
    found = shares_of_many()
    assert all(found[f"pages of {size}"] > 0.1 for size in (2, 4, 16))
    assert all(0.01 < found[f"pages of {size}"] < 0.06 for size in (64, 256))


def test_every_number_of_the_catalogue_is_a_mark_or_says_why_not() -> None:
    numbers = [f"R{number}" for number in range(1, 21)]
    assert sorted([*INTERLEAVINGS, *NOT_EXPRESSED], key=numbers.index) == numbers


def test_pairs_of_features_are_counted_with_each_other_and_with_interleavings() -> None:
    counts = shares(ModelTarget(), seed=0, schedules=0)
    assert counts == dict.fromkeys([*INTERLEAVINGS, *LIFE], 0.0)
    noted: Counter[str] = Counter()
    note(noted, {"R1", "R2", "tree", "overlap"})
    assert set(noted) == {
        *("R1", "R2", "tree", "overlap"),
        *("R1 & tree", "R2 & tree", "R1 & overlap", "R2 & overlap", "overlap & tree"),
    }
