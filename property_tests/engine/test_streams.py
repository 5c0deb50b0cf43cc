"""Streams with visible timing: they change nothing that a client sees, and a wait that is missing is a race in every
order, whether or not it shows in the tokens.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.sabotages import WAITING, replacing, waits_for_nothing
from property_tests.support.scripted_schedules import GRAMMAR, Script, turn
from property_tests.support.watched_engine import fractional, fractions, watched
from specsim.choices.chooser import RecordingChooser, replayed, seeded
from specsim.engine.agents import AGENTS, HOST, SCHEDULE, Step
from specsim.engine.config import EngineConfig
from specsim.engine.event_log import Run
from specsim.engine.request import Turn
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.rules.checker import Checker
from specsim.engine.rules.happens_before import HappensBefore
from specsim.engine.sampling_params import SamplingParams
from specsim.engine.streams import Operation, Streams
from specsim.engine.workload import Scenario, Workload, draw_scenario

SCHEDULES = 400
ORDERS = 25


def with_streams(scenario: Scenario) -> Scenario:
    return replace(scenario, config=replace(scenario.config, streams=True))


@cache
def swarm() -> tuple[Run, ...]:
    """Schedules of the default swarm, all of them with streams."""
    runs = []
    for index in range(SCHEDULES):
        chooser = seeded(4, "streams", index)
        runs.append(checked_engine(with_streams(draw_scenario(chooser)), chooser).run())
    return tuple(runs)


# The right engine


def test_no_schedule_with_streams_breaks_a_rule() -> None:
    assert [(index, run.violations) for index, run in enumerate(swarm()) if run.violations] == []


def test_every_operation_is_run_in_some_schedules() -> None:
    seen = Counter(name for run in swarm() for name in {event.event for event in run.log})
    assert {name: seen[name] for name in (*WAITING, "extend") if seen[name] < 3} == {}


@given(raw=fractions, choices=fractions)
def test_streams_change_no_visible_output(raw: bytes, choices: bytes) -> None:
    scenario = draw_scenario(fractional(raw))
    pool_slots = max(scenario.config.pool_slots, scenario.config.request_slots_max)
    config = replace(scenario.config, tight_pool=False, pool_slots=pool_slots, relaxed_penalties=False)
    scenario = Scenario(config, replace(scenario.workload, aborts_max=0, timeouts_max=0))
    seen = []
    for streams in (False, True):
        engine = watched(replace(scenario, config=replace(config, streams=streams)), fractional(choices))
        assert engine.run().violations == ()
        seen.append(engine.visible())
    assert seen[0] == seen[1]


def test_streams_that_are_off_ask_for_no_choice_and_log_nothing() -> None:
    labels: set[str] = set()

    def choose(_bound: int, label: str) -> int:
        labels.add(label)
        return 0

    chooser = RecordingChooser(choose)
    run = checked_engine(draw_scenario(chooser), chooser).run()
    assert "stream" not in labels
    assert {event.agent for event in run.log} == {"host", "device"}


@pytest.fixture
def run_operations(monkeypatch: pytest.MonkeyPatch) -> list[Operation]:
    """The operations in the order in which they are run."""
    ran: list[Operation] = []
    run_next = Streams.run_next

    def noting(streams: Streams, chooser: Any) -> Any:
        found = run_next(streams, chooser)
        ran.append(found[0])
        return found

    monkeypatch.setattr(Streams, "run_next", noting)
    return ran


def test_the_simplest_order_is_the_one_in_which_operations_were_queued(run_operations: list[Operation]) -> None:
    checked_engine(with_streams(draw_scenario(replayed(()))), replayed(())).run()
    assert [operation.number for operation in run_operations] == list(range(1, len(run_operations) + 1))
    assert {operation.agent for operation in run_operations} == set(AGENTS) - {"host"}


def test_operations_of_a_stream_run_in_order_and_behind_what_they_wait_for(run_operations: list[Operation]) -> None:
    out_of_turn = 0
    for index in range(40):
        run_operations.clear()
        chooser = seeded(5, "streams", index)
        checked_engine(with_streams(draw_scenario(chooser)), chooser).run()
        place = {operation: at for at, operation in enumerate(run_operations)}
        for one, two in combinations(run_operations, 2):
            if one.stream == two.stream:
                assert one.number < two.number
            out_of_turn += one.number > two.number
        for operation in run_operations:
            assert all(place.get(other, -1) < place[operation] for other in operation.waits)
    assert out_of_turn > 40


# Interleavings on purpose


def scripted(mark: str) -> tuple[list[Turn], dict[str, Any], Script]:
    """Requests, options and choices of a schedule that is written for one interleaving."""
    match mark:
        case "slots_reused_in_flight":
            options = {"pool_slots": 20, "context_len": 12}
            return [turn("a", answer=9), turn("b", 6, 6)], options, Script(arrives_later=[0, 1])
        case "row_reused_in_flight":
            return [turn("a"), turn("b")], {"rows": 1}, Script()
        case "row_remapped_in_flight":
            same = tuple(range(10, 16))
            return [replace(turn(name), tokens=same) for name in "ab"], {"radix": True}, Script()
        case _:
            grammar = turn("a", 3, 16, sampling=SamplingParams(grammar=GRAMMAR))
            return [grammar], {}, Script(device_goes_first=[1] * 200)


def play(mark: str, chooser: Any = None) -> Run:
    turns, options, script = scripted(mark)
    config = replace(EngineConfig(streams=True), **options)
    return checked_engine(Scenario(config, Workload(tuple(turns))), chooser or script).run()


class SomeOrder(Script):
    """The choices of a schedule, but whose step is next, which is drawn."""

    def __init__(self, script: Script, number: int) -> None:
        super().__init__()
        self._left = script._left
        self._order = seeded(number, "order")

    def choose(self, bound: int, label: str) -> int:
        if label in ("stream", "device goes first"):
            return self._order.choose(bound, label)
        return super().choose(bound, label)


def in_many_orders(mark: str) -> Iterator[Run]:
    for number in range(ORDERS):
        yield play(mark, SomeOrder(scripted(mark)[2], number))


@pytest.mark.parametrize(
    "mark", ["slots_reused_in_flight", "row_reused_in_flight", "row_remapped_in_flight", "mask_before_result"]
)
def test_a_schedule_with_streams_reaches_it_on_purpose(mark: str) -> None:
    run = play(mark)
    assert mark in run.marks
    assert run.violations == ()
    assert all(other.violations == () for other in in_many_orders(mark))


# (what waits for nothing, in which interleaving, what the race is of)
RACES = [
    ("write", "row_reused_in_flight", "row"),
    ("write", "row_remapped_in_flight", "row"),
    ("plan", "row_reused_in_flight", "row"),
    ("mask", "mask_before_result", "host buffer"),
    ("prefill", "slots_reused_in_flight", "row"),
    ("verify", "slots_reused_in_flight", "plan"),
    ("copy", "slots_reused_in_flight", "output"),
]


@pytest.mark.parametrize(("name", "mark", "kind"), RACES, ids=[f"{name} in {mark}" for name, mark, _ in RACES])
def test_a_wait_that_is_missing_is_a_race_in_every_order(
    name: str, mark: str, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    replacing(Streams, "_queue", waits_for_nothing(name))(monkeypatch)
    signatures = {violation.signature for run in in_many_orders(mark) for violation in run.violations}
    assert signatures == {f"accounting:S2:{kind}:streams"}
    assert all(run.violations for run in in_many_orders(mark))


@pytest.mark.parametrize(
    ("name", "mark"),
    [
        ("write", "row_reused_in_flight"),
        ("mask", "mask_before_result"),
        ("verify", "slots_reused_in_flight"),
        ("copy", "row_reused_in_flight"),
    ],
)
def test_without_clocks_it_shows_in_some_orders_only(name: str, mark: str, monkeypatch: pytest.MonkeyPatch) -> None:
    replacing(Streams, "_queue", waits_for_nothing(name))(monkeypatch)
    monkeypatch.setattr(Checker, "in_order", lambda checker, race: None)
    assert play(mark).violations == ()
    assert any(run.violations for run in in_many_orders(mark))


def test_slots_that_go_to_another_request_need_no_barrier(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who writes them next does so behind the launch that still writes them, on the same stream."""
    replacing(Streams, "_queue", waits_for_nothing("write"))(monkeypatch)
    assert all(run.violations == () for run in in_many_orders("slots_reused_in_flight"))


@pytest.mark.parametrize("session", ["", "s"], ids=["alone", "session"])
def test_who_finishes_between_preparation_and_launch_reads_its_window_as_it_was(session: str) -> None:
    """Its result gives back window slots that the launch, prepared before, still looks up; a session may keep what the
    launch writes.
    """
    turns = tuple(turn(name, 3, 7, session=session) for name in "ab")
    for number in range(ORDERS):
        script = SomeOrder(Script(result_before_launch=[1] * 9, drafts_that_disagree=[2, 1, 0] * 3), number)
        config = EngineConfig(streams=True, late_results=True, window=4)
        run = checked_engine(Scenario(config, Workload(turns)), script).run()
        assert "finished_before_prepared_launch" in run.marks
        assert run.violations == ()


def test_a_race_names_both_steps_and_what_they_touch(monkeypatch: pytest.MonkeyPatch) -> None:
    replacing(Streams, "_queue", waits_for_nothing("write"))(monkeypatch)
    (violation,) = play("row_reused_in_flight").violations
    assert violation.rule.id == "S2"
    assert violation.expected == "an order of forward: extend V3 and schedule: write P4"
    assert violation.actual == "none on row 1, columns 0 to 2"


# Clocks


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[int, list[int], tuple[str, int, int]]]:
    """Steps of agents: whose, which earlier ones it waits for, and what it touches: reads or writes columns. One agent
    writes.
    """
    steps: list[tuple[int, list[int], tuple[str, int, int]]] = []
    for number in range(draw(st.integers(1, 9))):
        agent = draw(st.integers(0, len(AGENTS) - 1))
        after = draw(st.lists(st.integers(0, number - 1), max_size=2)) if number else []
        how = draw(st.sampled_from(["read", "write"])) if agent == SCHEDULE else "read"
        start = draw(st.integers(0, 4))
        steps.append((agent, after, (how, start, start + draw(st.integers(1, 4)))))
    return steps


def reachable(steps: list[tuple[int, list[int], tuple[str, int, int]]]) -> set[tuple[int, int]]:
    """The pairs of steps of which the first comes before the second, by following every edge."""
    before: list[set[int]] = []
    for number, (agent, after, _) in enumerate(steps):
        edges = {*after, *(i for i in range(number) if steps[i][0] in (agent, HOST))}
        before.append(edges.union(*(before[i] for i in edges)))
    return {(i, number) for number, found in enumerate(before) for i in found}


@given(steps=histories())
def test_clocks_say_what_following_every_edge_says(steps: list[tuple[int, list[int], tuple[str, int, int]]]) -> None:
    clocks = HappensBefore()
    made: list[Step] = []
    for agent, after, _ in steps:
        made.append(clocks.step(agent, "", [made[i] for i in after]))
    for one, two in combinations(range(len(steps)), 2):
        assert made[one].comes_before(made[two]) == ((one, two) in reachable(steps))
        assert not made[two].comes_before(made[one])


@given(steps=histories(), rows=st.booleans())
def test_a_race_is_seen_exactly_when_two_accesses_have_no_order(
    steps: list[tuple[int, list[int], tuple[str, int, int]]], rows: bool
) -> None:
    clocks = HappensBefore()
    made: list[Step] = []
    for agent, after, (how, start, end) in steps:
        made.append(clocks.step(agent, "", [made[i] for i in after]))
        if rows:
            (clocks.write_row if how == "write" else clocks.read_row)(1, start, end, made[-1])
        else:
            (clocks.write if how == "write" else clocks.read)(("thing", 1), made[-1])

    def conflict(one: int, two: int) -> bool:
        (how, start, end), (other_how, low, high) = steps[one][2], steps[two][2]
        return "write" in (how, other_how) and (not rows or (start < high and low < end))

    pairs = [pair for pair in combinations(range(len(steps)), 2) if conflict(*pair) and pair not in reachable(steps)]
    assert (clocks.race is None) == (pairs == [])


def test_the_host_is_before_what_it_queues_and_behind_what_it_waits_for() -> None:
    clocks = HappensBefore()
    prepared = clocks.step(HOST, "prepare", ())
    queued = clocks.step(SCHEDULE, "write", ())
    unaware = clocks.step(HOST, "go on", ())
    aware = clocks.step(HOST, "wait", (queued,))
    assert prepared.comes_before(queued)
    assert not queued.comes_before(unaware)
    assert queued.comes_before(aware)
