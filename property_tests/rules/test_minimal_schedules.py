"""The smallest schedules of mutants, and the two events whose order matters.

Sizes are exact: a larger one is a shrinker that got worse. The bugs that the project began with are shrunk at every
run, and a few more for their pairs; the others by the nightly profile.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.seed_bugs import EVENTS_MAX, REQUESTS_MAX, is_seed_bug
from specsim.choices.chooser import Tape, replayed
from specsim.choices.shrinker import Shrinker, shortlex
from specsim.engine.accounting import Memory, ModelAccounting
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.device import Device
from specsim.engine.launch import Launch
from specsim.engine.request import Request
from specsim.engine.workload import draw_scenario
from specsim.selfcheck.canary import SEED_BUGS
from specsim.tiers.accounting.decisive_pair import decisive_pair
from specsim.tiers.accounting.scenario_reduction import scenario_choices, without_one_item
from specsim.tiers.accounting.schedules import chooser_of, run_schedule, shrink, simulate

SCHEDULES = 300
IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
FOR_THEIR_PAIRS = ("N01",)

# Requests, events after the first admission, switches between host and device; and the pair, by event and name.
SMALLEST: dict[str, tuple[tuple[int, int, int], tuple[str, ...]]] = {
    "A01 accounting:I53:short:session save": ((2, 6, 2), ("launch V1", "finish s0t0")),
    "A02-finished accounting:I31:resolve": ((1, 8, 4), ("launch V1", "finish r0")),
    "A02-finished accounting:S3:resolve": ((1, 8, 4), ("launch V1", "finish r0")),
    "A02-retracted accounting:I32:resolve": ((2, 11, 2), ("retract r1", "resolve V1")),
    "A02-retracted accounting:I31:resolve": ((1, 12, 6), ("drop r0", "resolve V2")),
    "A02-retracted accounting:S3:resolve": ((2, 11, 4), ("retract r1", "resolve V1")),
    "A03 accounting:I53:long:session save": ((2, 10, 4), ()),
    "A03 accounting:I29:release": ((1, 8, 4), ()),
    "A05 accounting:I54:leak:session match": ((2, 10, 4), ()),
    "A05-unaligned accounting:I16:session match": ((2, 10, 4), ()),
    "A06 accounting:I57:session save": ((2, 7, 2), ()),
    "A07 accounting:I54:leak:session match": ((2, 6, 2), ()),
    "A07 accounting:I62:prepare": ((2, 15, 6), ()),
    "A07 accounting:I09:session match": ((2, 6, 2), ()),
    "A08 accounting:S4:session match": ((2, 5, 2), ()),
    "A08 accounting:I62:session match": ((2, 14, 6), ()),
    "A08 accounting:I05:memory": ((2, 16, 7), ()),
    "A08 accounting:I16:session match": ((3, 10, 4), ()),
    "A08 accounting:I15:session match": ((2, 14, 6), ()),
    "A09 accounting:I14:release": ((1, 6, 2), ()),
    "A09 accounting:I13:release": ((1, 6, 2), ()),
    "A09 accounting:I14:retract": ((1, 8, 4), ()),
    "A09 accounting:I13:retract": ((1, 8, 4), ()),
    "A10 accounting:I14:retract": ((2, 7, 2), ()),
    "A10 accounting:I13:retract": ((2, 7, 2), ()),
    "A11 accounting:X1:prepare": ((1, 7, 4), ()),
    "A12 accounting:I08:prepare": ((1, 6, 2), ()),
    "A14 accounting:I01:prepare": ((1, 3, 0), ()),
    "A14 accounting:S1:loop": ((1, 1, 0), ()),
    "A18 accounting:I01:extend": ((1, 1, 0), ()),
    "A19 accounting:I49:relay": ((2, 14, 7), ()),
    "A20 accounting:I07:prepare": ((1, 9, 3), ("launch V2", "resolve V1")),
    "A20 accounting:I01:resolve": ((1, 9, 4), ("launch V2", "resolve V1")),
    "A22 accounting:I33:resolve": ((2, 11, 2), ("retract r1", "resolve V1")),
    "A23 accounting:I40:token:finish check": ((1, 15, 6), ()),
    "A23 accounting:M1:tree": ((1, 11, 3), ()),
    "A23 accounting:T6:logprobs": ((2, 20, 6), ()),
    "A23 accounting:I05:memory": ((4, 22, 7), ()),
    "A24 accounting:I29:tree insert": ((1, 2, 0), ()),
    "A24 accounting:I29:release": ((1, 4, 2), ()),
    "B01 accounting:S2:row:streams": ((1, 4, 0), ()),
    "B01 accounting:S2:window slot:streams": ((1, 9, 4), ()),
    "B04 accounting:I40:token:finish check": ((1, 13, 4), ("verify V2", "resolve V1")),
    "B04 accounting:M1:tree": ((1, 9, 3), ("launch V2", "resolve V1")),
    "B04 accounting:I05:memory": ((2, 19, 7), ("verify V3", "resolve V2")),
    "B04 accounting:T6:logprobs": ((1, 13, 4), ("verify V2", "resolve V1")),
    "B06 accounting:S6:loop": ((1, 2, 0), ("launch V1", "resolve V0")),
    "B08 accounting:I40:token:finish check": ((1, 11, 4), ("verify V2", "resolve V1")),
    "B08 accounting:T6:logprobs": ((1, 10, 4), ("verify V2", "resolve V1")),
    "B08 accounting:I61:grammar": ((1, 10, 4), ("verify V2", "resolve V1")),
    "B08 accounting:I04:long:resolve": ((1, 13, 6), ("verify V3", "resolve V2")),
    "B08 accounting:I60:grammar": ((1, 10, 4), ("verify V2", "resolve V1")),
    "C01 accounting:I29:tree insert": ((1, 2, 0), ()),
    "C01 accounting:I29:release": ((1, 4, 2), ()),
    "C02 accounting:I48:draft extend": ((1, 9, 3), ()),
    "C02 accounting:D1:draft extend": ((1, 9, 3), ()),
    "C07 accounting:X6:device": ((1, 5, 1), ()),
    "C11 accounting:S5:prepare": ((1, 3, 0), ()),
    "C14 accounting:I05:memory": ((3, 4, 1), ()),
    "C15 accounting:I49:relay": ((1, 9, 5), ()),
    "D01 accounting:I43:move": ((1, 6, 3), ()),
    "D01-hidden accounting:D1:draft extend": ((1, 9, 3), ()),
    "D02 accounting:I42:bonus": ((2, 7, 1), ()),
    "D03 accounting:X6:device": ((1, 5, 1), ()),
    "D03 accounting:I42:bonus": ((2, 7, 3), ()),
    "D05 accounting:I47:draft extend": ((1, 11, 5), ()),
    "F01 accounting:I48:draft extend": ((1, 6, 1), ()),
    "G01 accounting:I40:token:finish check": ((1, 8, 4), ()),
    "G01-nodes accounting:I58:penalties": ((1, 6, 1), ()),
    "H02 accounting:I10:finish check": ((1, 7, 4), ()),
    "H02 accounting:I40:long:finish check": ((1, 10, 2), ()),
    "K01 accounting:I34:resolve": ((2, 8, 4), ()),
    "N01 accounting:S3:resolve": ((2, 11, 2), ("launch V1", "finish r0")),
}

# Takes the id of a mutant; prints what `simulate` finds.
PROGRAM = f"""
import json, sys
from specsim.selfcheck.mutation import apply, find
apply(find(sys.argv[1]))
import time
from specsim.tiers.accounting.schedules import simulate
from specsim.engine.accounting_target import ModelTarget
deadline = time.monotonic() + 600
found = simulate(ModelTarget(), seed=0, schedules={SCHEDULES}, deadline=deadline, on_schedule=lambda _: None).findings
shown = []
for finding in found:
    run = finding.schedule.run
    admitted = next((e.number for e in run.log if e.event == "admit"), 0)
    size = len(finding.schedule.scenario.workload.turns), len(run.log) - admitted, run.switches
    pair = [f"{{event.event}} {{event.who}}".strip() for event in finding.order or ()]
    numbers = [event.number for event in finding.order or ()]
    shown.append([finding.signature, size, pair, numbers, finding.violation.event, len(run.log)])
print(json.dumps(shown))
"""


@cache
def findings_of(mutant: str) -> list[Any]:
    ended = subprocess.run(
        [sys.executable, "-c", PROGRAM, mutant], check=True, capture_output=True, text=True, timeout=300
    )
    found: list[Any] = json.loads(ended.stdout)
    return found


SHRUNK = sorted({key.split()[0] for key in SMALLEST})


def when(mutant: str) -> Any:
    is_quick = is_seed_bug(mutant) or mutant in FOR_THEIR_PAIRS
    return pytest.param(
        mutant, marks=pytest.mark.skipif(not (is_quick or IS_NIGHTLY), reason="for the nightly profile")
    )


@pytest.mark.parametrize("mutant", [when(mutant) for mutant in SHRUNK])
@pytest.mark.slow(runs_one_in=8)
def test_the_smallest_schedule_of_a_bug_is_this_small(mutant: str) -> None:
    found = {f"{mutant} {signature}": (tuple(size), tuple(pair)) for signature, size, pair, *_ in findings_of(mutant)}
    assert found == {key: value for key, value in SMALLEST.items() if key.split()[0] == mutant}


@pytest.mark.slow
def test_a_schedule_ends_where_its_rule_breaks_and_a_pair_names_events_of_it() -> None:
    for mutant in ("A02-finished", *FOR_THEIR_PAIRS):
        for _signature, _size, _pair, (first, second), violated_at, events in findings_of(mutant):
            assert violated_at == events - 1
            assert 0 <= first < events
            assert second == -1 or first < second < events
    (from_i07, *_) = [numbers for signature, _, _, numbers, *_ in findings_of("A20") if ":I07:" in signature]
    assert from_i07[1] == -1, "the result comes after the launch that breaks the rule"


# The order of host and device


class NeedsTheDeviceFirst(ModelAccounting):
    """Wrong: it counts a launch twice when the device has not run everything that was launched before."""

    def prepare(self, batch: list[Request]) -> None:
        super().prepare(batch)
        if DeviceCounts.launched > DeviceCounts.executed:
            batch[0].state_of_accounting.launches += 1


class DeviceCounts(Device):
    launched = 0
    executed = 0

    def launch(self, launch: Launch) -> None:
        DeviceCounts.launched += 1
        super().launch(launch)

    def execute_next(self) -> Launch:
        DeviceCounts.executed += 1
        return super().execute_next()


class RacyTarget(ModelTarget):
    name = "racy"

    def make(self, memory: Memory) -> ModelAccounting:
        DeviceCounts.launched = DeviceCounts.executed = 0
        return NeedsTheDeviceFirst(memory)


def test_a_race_between_host_and_device_is_named_by_the_step_of_each(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.engine.loop.Device", DeviceCounts)
    signature = "accounting:I11:prepare"
    tape = next(
        schedule.tape
        for schedule in (run_schedule(RacyTarget(), chooser_of(0, index)) for index in range(200))
        if schedule is not None and schedule.violation(signature)
    )
    smallest = shrink(RacyTarget(), tape, signature, 300, lambda: None)
    pair = decisive_pair(RacyTarget(), smallest.tape, signature)
    assert pair is not None
    assert [event.agent for event in pair] == ["host", "device"]
    assert pair[0].event == "prepare"
    assert pair[1].event in ("prefill", "verify")


def test_the_unchanged_model_has_nothing_to_shrink() -> None:
    result = simulate(ModelTarget(), seed=0, schedules=50, deadline=float("inf"), on_schedule=lambda _index: None)
    assert result.findings == []


# Fewer requests


@given(st.integers(0, 400))
def test_a_scenario_with_one_item_fewer_is_one_and_has_fewer_choices(index: int) -> None:
    chooser = chooser_of(3, index)
    draw_scenario(chooser)
    choices = scenario_choices(chooser.tape)
    turns = len(draw_scenario(replayed(chooser.tape)).workload.turns)
    fewer = list(without_one_item(chooser.tape))
    assert all(len(tape) < len(choices) for tape in fewer)
    if turns > 1 and not draw_scenario(replayed(chooser.tape)).workload.turns[0].session:
        counts = [len(draw_scenario(replayed(tape)).workload.turns) for tape in fewer]
        assert turns - 1 in counts


# An order of one's own


@given(st.lists(st.integers(0, 9), min_size=1, max_size=8).map(tuple))
def test_an_order_of_ones_own_comes_before_the_length_of_the_tape(start: Tape) -> None:
    def size(tape: Tape) -> tuple[int, tuple[int, Tape]]:
        return (-sum(tape), shortlex(tape))  # a larger sum is smaller

    def attempt(tape: Tape) -> Tape | None:
        return tape if all(value <= 9 for value in tape) else None

    best = Shrinker(start, attempt, 5000, size).run()
    assert sum(best) >= sum(start)
    assert size(best) <= size(start)


def test_no_bug_that_the_project_began_with_needs_more_than_is_promised() -> None:
    sizes = {key: size for key, (size, _pair) in SMALLEST.items() if is_seed_bug(key.split()[0])}
    assert {key.partition(" ")[0].partition("-")[0] for key in sizes} == set(SEED_BUGS)
    assert max(requests for requests, _, _ in sizes.values()) <= REQUESTS_MAX
    assert max(events for _, events, _ in sizes.values()) <= EVENTS_MAX
