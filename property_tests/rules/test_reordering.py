"""Other orders of a schedule: what is taken apart is put together again, and neighbours really change places."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from specsim.engine.accounting import Memory, ModelAccounting
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.agents import AGENTS
from specsim.engine.device import Device
from specsim.engine.launch import Launch
from specsim.engine.request import Request
from specsim.tiers.accounting.decisive_pair import (
    _again,
    _around_launches,
    _between_agents,
    _first_run,
    _in_one_go,
    _Orders,
    _overlapped,
    _Ran,
    decisive_pair,
)
from specsim.tiers.accounting.schedules import chooser_of, run_schedule, shrink

TARGET = ModelTarget()


def ran(index: int) -> _Ran:
    schedule = run_schedule(TARGET, chooser_of(8, index))
    assert schedule is not None
    first = _first_run(TARGET, schedule.tape, "")
    assert first.run.digest == schedule.run.digest
    return first


def again(first: _Ran, orders: _Orders) -> _Ran:
    return _again(TARGET, first, "", orders)


schedules = st.integers(0, 400).map(ran)
few = settings(max_examples=25)


@few
@given(schedules)
def test_the_choices_of_a_run_are_dealt_as_they_were(first: _Ran) -> None:
    second = again(first, _Orders())
    assert second.run.digest == first.run.digest
    assert second.engine.choices == first.engine.choices


@few
@given(schedules)
def test_every_event_belongs_to_one_step_of_its_agent(first: _Ran) -> None:
    numbers: list[int] = []
    for step in _in_one_go(first.engine.steps):
        numbers += range(step.start, step.end)
        agents = {event.agent for event in first.run.log[step.start : step.end]}
        assert agents <= ({"device", *AGENTS} - {"host"} if step.kind == "device" else {"host"})
    assert numbers == list(range(len(first.run.log)))


@few
@given(schedules)
@example(ran(163))  # the device runs a prefill between the preparation of a step and its launch
def test_every_other_order_is_one_that_the_unchanged_model_can_have(first: _Ran) -> None:
    log = first.run.log
    swaps = [(one.start, orders) for one, _two, orders in _between_agents(first.engine.steps)][:8]
    for one, _two, orders in list(_around_launches(first.engine.steps, first.engine.late))[:8]:
        swaps.append((1 + max(event.number for event in log[: one.end] if event.event == "prepare"), orders))
    for same, orders in swaps:
        other = again(first, orders).run
        assert other.violations == ()
        assert other.log[:same] == log[:same]


@few
@given(schedules)
def test_the_result_that_overlaps_a_launch_is_of_a_launch_before_it(first: _Ran) -> None:
    """Also where a pause takes all results, that of the newest launch too."""
    for one, two in _overlapped(first.engine.steps) if first.scenario.config.overlap else ():
        launched = [event.who for event in first.run.log[one.start : one.end] if event.event == "launch"]
        if launched and two is not None:
            resolved = [e.who for e in first.run.log[two.start : two.end] if e.event == "resolve"]
            assert all(int(who[1:]) < int(launched[0][1:]) for who in resolved)


def neighbours_changed_places(first: _Ran) -> int:
    """Swaps of a step of the host, which launched nothing, and the device's behind it: all must come about. Where the
    device has streams, what the host does is queued on them, and which of them goes on is another choice.
    """
    swapped = 0
    if first.scenario.config.streams:
        return swapped
    for one, two, orders in _between_agents(first.engine.steps):
        if two is None or two.kind != "device":
            continue
        log = first.run.log
        launched = {event.who for event in log[one.start : one.end] if event.event == "launch"}
        if log[two.start].who in launched:
            continue
        other = again(first, orders).run.log
        assert replace(other[one.start], number=two.start) == log[two.start]
        swapped += 1
    return swapped


@few
@given(schedules)
def test_the_device_comes_before_what_the_host_did_before_it(first: _Ran) -> None:
    neighbours_changed_places(first)


@pytest.mark.slow
def test_pauses_and_late_launches_are_among_what_changes_places() -> None:
    kinds: set[str] = set()
    swapped = 0
    for index in range(60):
        first = ran(index)
        swapped += neighbours_changed_places(first)
        kinds |= {step.kind for step in first.engine.steps if step.start < step.end}
    assert kinds >= {"receive", "pause", "retract all", "schedule", "launch", "resolve", "device"}
    assert swapped > 100


@pytest.mark.slow
def test_a_launch_and_a_result_change_places_where_the_scheduler_may_do_either_first() -> None:
    seen = {True: 0, False: 0}
    for index in range(80):
        first = ran(index)
        log = first.run.log
        for one, two, orders in _around_launches(first.engine.steps, first.engine.late):
            if two is None:
                continue
            other = again(first, orders).run.log
            ((_call, is_late),) = orders.late
            (launched,) = (e for e in log[one.start : two.end] if e.event == "launch")
            prepared = max(e.number for e in log[: launched.number] if e.event == "prepare")
            assert other[: prepared + 1] == log[: prepared + 1]
            behind = list(other[prepared + 1 :])
            at = next(n for n, e in enumerate(behind) if (e.event, e.who) == ("launch", launched.who))
            assert at == 0 or is_late
            seen[is_late] += 1
    assert min(seen.values()) > 5


class Counts:
    prepared = 0
    launched = 0


class CountedDevice(Device):
    def launch(self, launch: Launch) -> None:
        Counts.launched += launch.kind == "decode" and bool(launch.rows)
        super().launch(launch)


class TakesNoResultWhilePrepared(ModelAccounting):
    """Wrong: a result that comes between the preparation of a step and its launch counts a verification twice."""

    def prepare(self, batch: list[Request]) -> None:
        Counts.prepared = Counts.launched + 1
        super().prepare(batch)

    def resolve(self, result: Any, requests: list[Request]) -> list[list[int]]:
        if Counts.prepared > Counts.launched:
            requests[0].state_of_accounting.verify_count += 1
        return super().resolve(result, requests)


class PreparedTarget(ModelTarget):
    name = "prepared"

    def make(self, memory: Memory) -> ModelAccounting:
        Counts.prepared = Counts.launched = 0
        return TakesNoResultWhilePrepared(memory)


def test_a_result_that_must_not_come_before_the_launch_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specsim.engine.loop.Device", CountedDevice)
    hits = [run_schedule(PreparedTarget(), chooser_of(0, index)) for index in range(300)]
    found = [(hit, v.signature) for hit in hits if hit is not None for v in hit.run.violations if v.rule.id == "I33"]
    assert found
    (hit, signature), *_ = found
    smallest = shrink(PreparedTarget(), hit.tape, signature, 400, lambda: None)
    pair = decisive_pair(PreparedTarget(), smallest.tape, signature)
    assert pair is not None
    assert [event.event for event in pair] == ["resolve", "launch"], smallest.run.log
