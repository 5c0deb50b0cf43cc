"""The model is right in every schedule, and the default swarm reaches what goes wrong in engines."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from property_tests.support.watched_engine import Watched, fractional, fractions, observed, watched
from specsim.choices.chooser import RecordingChooser, replayed, seeded
from specsim.engine.accounting import ModelAccounting, Retracted
from specsim.engine.admission import Admission
from specsim.engine.config import EngineConfig, require_runnable
from specsim.engine.event_log import Run
from specsim.engine.lifecycle import State
from specsim.engine.loop import ITERATIONS_MAX, UnsupportedScenarioError
from specsim.engine.model import EOS, STOP
from specsim.engine.request import Request, Turn
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.rules.oracle import outputs_of
from specsim.engine.workload import Scenario, Workload, draw_scenario
from specsim.errors import UsageError

SCHEDULES = 1000


@cache
def swarm() -> tuple[tuple[Scenario, Run], ...]:
    """Schedules of the default swarm."""
    runs = []
    for index in range(SCHEDULES):
        chooser = seeded(1, "swarm", index)
        scenario = draw_scenario(chooser)
        runs.append((scenario, checked_engine(scenario, chooser).run()))
    return tuple(runs)


def played(chooser: RecordingChooser) -> tuple[Scenario, Watched, Run]:
    scenario = draw_scenario(chooser)
    engine = watched(scenario, chooser)
    return scenario, engine, engine.run()


# The model is right


def test_no_schedule_of_the_default_swarm_breaks_a_rule() -> None:
    broken = [(index, run.violations) for index, (_, run) in enumerate(swarm()) if run.violations]
    assert broken == []


@given(tape=st.lists(st.integers()))
@example(tape=[])
@example(tape=[1 << 62] * 200)
@example(tape=[-1] * 200)
def test_every_tape_is_a_schedule_that_ends_and_breaks_no_rule(tape: list[int]) -> None:
    _, engine, run = played(replayed(tape))
    assert run.violations == ()
    assert {request.state for request in engine.requests.everybody} <= {State.FINISHED}


@given(raw=fractions)
def test_every_schedule_ends_and_breaks_no_rule(raw: bytes) -> None:
    _, engine, run = played(fractional(raw))
    assert run.violations == ()
    assert {request.state for request in engine.requests.everybody} <= {State.FINISHED}


@given(raw=fractions)
def test_the_tape_of_a_schedule_makes_it_again(raw: bytes) -> None:
    chooser = fractional(raw)
    scenario, _, run = played(chooser)
    assert (scenario, run) == played(replayed(chooser.tape))[::2]


@given(raw=fractions)
def test_every_request_that_nobody_aborts_gets_the_tokens_of_decoding_one_by_one(raw: bytes) -> None:
    scenario, engine, _ = played(fractional(raw))
    if scenario.config.relaxed_penalties:  # they depend on the schedule
        return
    for request in engine.requests.everybody:
        if not request.abort_wanted:
            assert request.outputs[: observed(request).finished_len] == outputs_of(request)


@given(raw=fractions, choices=fractions)
def test_overlap_changes_no_visible_output(raw: bytes, choices: bytes) -> None:
    scenario = draw_scenario(fractional(raw))
    pool_slots = max(scenario.config.pool_slots, scenario.config.request_slots_max)
    config = replace(scenario.config, tight_pool=False, pool_slots=pool_slots)
    scenario = Scenario(config, replace(scenario.workload, aborts_max=0, timeouts_max=0))
    seen = []
    for overlap in (False, True):
        config = replace(scenario.config, overlap=overlap, relaxed_penalties=False)
        engine = watched(replace(scenario, config=config), fractional(choices))
        assert engine.run().violations == ()
        seen.append(engine.visible())
    assert seen[0] == seen[1]


@given(raw=fractions)
def test_without_overlap_no_result_is_stale(raw: bytes) -> None:
    chooser = fractional(raw)
    scenario = draw_scenario(chooser)
    run = checked_engine(replace(scenario, config=replace(scenario.config, overlap=False)), chooser).run()
    assert (run.stale_finished, run.stale_retracted) == (0, 0)
    assert not any(event.event == "stale" for event in run.log)


def test_the_simplest_tape_is_one_request_without_incident() -> None:
    scenario, engine, run = played(replayed([]))
    assert [turn.rid for turn in scenario.workload.turns] == ["r0"]
    assert (scenario.workload.aborts_max, scenario.workload.retractions_max) == (0, 0)
    assert len(engine.requests.everybody) == 1
    assert run.stale_retracted == 0


# The default swarm reaches what goes wrong


def things_seen(scenario: Scenario, run: Run) -> Iterator[str]:
    """What happened in a run, by its log."""
    yield "overlap" if scenario.config.overlap else "no overlap"
    yield "tree" if scenario.config.topk > 1 else "chain"
    if "session resumed" in run.marks:
        yield "session resumed"
    yield "larger pages" if scenario.config.page_size > 1 else "pages of one token"
    if run.stale_finished:
        yield "stale result of a finished request"
    if run.stale_retracted:
        yield "stale result of a retracted request"
    launches = [event.who[0] for event in run.log if event.event == "launch"]
    if any(pair == ("V", "P") for pair in pairwise(launches)):
        yield "prefill between decode steps"
    retracted: set[str] = set()
    for event in run.log:
        if event.event == "abort":
            yield f"abort of a {event.details} request"
            if event.who in retracted:
                yield "abort of a retracted request"
        elif event.event == "retract":
            retracted.add(event.who)
            yield "retraction on demand" if event.details == "on demand" else "retraction under pressure"
        elif event.event == "admit":
            if event.who in retracted:
                yield "retracted request admitted again"
            retracted.discard(event.who)
        elif event.event == "stale":
            yield "prefill whose request was retracted before its result"
        elif event.event == "finish":
            visible, _, outputs, _ = event.details.split()
            yield "accepted tokens beyond the end" if int(visible) < int(outputs) else "end at the end of a run"
            if outputs == "1":
                yield "finish at the prefill's result"


LEAST_PERCENT = {
    "overlap": 50,
    "no overlap": 10,
    "tree": 20,
    "chain": 20,
    "larger pages": 15,
    "pages of one token": 15,
    "stale result of a finished request": 30,
    "stale result of a retracted request": 1,
    "prefill between decode steps": 30,
    "prefill whose request was retracted before its result": 1,
    "abort of a waiting request": 5,
    "abort of a prefilling request": 3,
    "abort of a running request": 5,
    "abort of a retracted request": 0.3,
    "retraction on demand": 2,
    "retraction under pressure": 1,
    "retracted request admitted again": 2,
    "session resumed": 5,
    "accepted tokens beyond the end": 20,
    "end at the end of a run": 20,
    "finish at the prefill's result": 5,
}


@cache
def percent_seen() -> dict[str, float]:
    counts = Counter(thing for scenario, run in swarm() for thing in set(things_seen(scenario, run)))
    return {thing: 100 * count / SCHEDULES for thing, count in counts.items()}


@pytest.mark.parametrize("thing", LEAST_PERCENT)
def test_the_default_swarm_reaches(thing: str) -> None:
    assert percent_seen().get(thing, 0) >= LEAST_PERCENT[thing]


def test_without_chunks_prompts_that_are_admitted_together_are_prefilled_whole() -> None:
    turns = tuple(Turn(rid, tuple(range(10, 21)), 1) for rid in ("r0", "r1", "r2"))
    config = EngineConfig(context_len=12, pool_slots=80, rows=3)
    run = checked_engine(Scenario(config, Workload(turns)), replayed((0,) * 64)).run()
    assert [event.details for event in run.log if event.event == "admit"] == ["extend 0 to 11"] * 3


def test_a_scenario_has_memory_for_its_longest_request_so_that_retraction_drops_nobody() -> None:
    for scenario, run in swarm():
        if not scenario.config.tight_pool:
            assert not any(event.event == "drop" and event.details != "aborted" for event in run.log)


class NeverFits(ModelAccounting):
    """An accounting that gives up on the last request of a batch."""

    def retract(self, batch: list[Request]) -> Retracted:
        outcome = super().retract(batch)
        if len(outcome.kept) == 1:
            victim = outcome.kept.pop()
            victim.state_of_accounting.to_finish = True
            self._take_back(victim.state_of_accounting)
            outcome.aborted.append(victim)
        return outcome


@pytest.mark.slow
def test_a_request_that_is_dropped_for_want_of_memory_leaves_nothing_behind() -> None:
    dropped = stale = 0
    for index in range(1500):
        chooser = seeded(1, "swarm", index)
        run = checked_engine(draw_scenario(chooser), chooser, NeverFits).run()
        assert run.violations == ()
        dropped += any(event.event == "drop" for event in run.log)
        stale += any(event.event == "drop" for event in run.log) and run.stale_finished > 0
    assert dropped > 10
    assert stale > 5


# What no engine could run


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"page_size": 0}, "page_size must be at least 1"),
        ({"topk": 0}, "topk must be at least 1"),
        ({"num_steps": 0}, "num_steps must be at least 1"),
        ({"rows": 0}, "rows must be at least 1"),
        ({"context_len": 0}, "context_len must be at least 1"),
        ({"pool_slots": 0}, "pool_slots must be at least 1"),
        ({"num_draft_tokens": 1}, "a tree has a root and a draft"),
        ({"num_draft_tokens": 5}, "a chain of num_steps + 1 = 4 nodes"),
        ({"topk": 2, "num_draft_tokens": 12}, "draft at most 10 tokens"),
        ({"topk": (1 << 20) + 1}, "the vocabulary has 1048576 tokens"),
        ({"topk": 2, "adaptive": True}, "only chains change their length"),
        ({"page_size": 4, "chunk_size": 6}, "whole pages of 4"),
        ({"chunk_size": -1}, "whole pages of 1"),
        ({"bigram": True}, "there is no radix cache"),
        ({"context_len": 300}, "context_len=300 needs 308"),
        ({"page_size": 16, "context_len": 250, "pool_slots": 271}, "needs 272"),
    ],
)
def test_a_configuration_that_no_engine_could_run_is_refused(changes: dict[str, Any], reason: str) -> None:
    with pytest.raises(UsageError, match="no engine could run") as refused:
        require_runnable(replace(EngineConfig(), **changes))
    assert reason in refused.value.remedy


def test_an_engine_refuses_what_no_engine_could_run() -> None:
    config = EngineConfig(num_draft_tokens=7)
    with pytest.raises(UsageError, match="num_draft_tokens=7"):
        checked_engine(Scenario(config, Workload(())), replayed([]))


@given(raw=fractions)
def test_every_scenario_of_the_swarm_can_be_run(raw: bytes) -> None:
    require_runnable(draw_scenario(fractional(raw)).config)


def test_what_an_accounting_does_not_run_is_not_checked() -> None:
    class Refuses(ModelAccounting):
        def refuses(self, config: EngineConfig) -> str:
            return "no overlap here" if config.overlap else ""

    with pytest.raises(UnsupportedScenarioError, match="no overlap here"):
        checked_engine(Scenario(EngineConfig(), Workload(())), replayed([]), Refuses)


# Small scenarios, written out


def run_turns(*turns: Turn, tape: tuple[int, ...] = (), **options: Any) -> tuple[Watched, Run]:
    engine = watched(Scenario(replace(EngineConfig(), **options), Workload(turns)), replayed(tape))
    return engine, engine.run()


@pytest.mark.parametrize("overlap", [False, True])
@pytest.mark.parametrize(("token", "ignore_eos", "visible"), [(EOS, False, 3), (EOS, True, 9), (STOP, True, 3)])
def test_an_answer_ends_at_its_stop_token(token: int, ignore_eos: bool, visible: int, overlap: bool) -> None:
    turn = Turn("r0", (10, 11, 12), 9, {2: token}, ignore_eos)
    engine, run = run_turns(turn, overlap=overlap)
    assert run.violations == ()
    answer = engine.visible()["r0"]
    assert (len(answer), answer[2]) == (visible, token)


def test_an_answer_of_one_token_is_the_prefills() -> None:
    engine, run = run_turns(Turn("r0", (10, 11), 1))
    assert run.violations == ()
    assert len(engine.visible()["r0"]) == 1
    # With overlap its first decode step is launched before the prefill's result is looked at.
    assert run.stale_finished == 1


def test_a_sessions_second_turn_reuses_what_the_first_one_left() -> None:
    turns = [Turn(f"s0t{number}", (10 + number,) * 5, 4, session="s0") for number in range(2)]
    engine, run = run_turns(*turns)
    assert run.violations == ()
    first, second = engine.requests.everybody
    assert second.prompt == first.prompt + engine.visible()["s0t0"] + list(turns[1].tokens)
    reused = next(e.details for e in run.log if e.event == "admit" and e.who == "s0t1")
    # With a verification in flight all of the first turn's tokens have, or will have, their KV.
    assert reused == "extend 9 to 14"


def test_a_run_that_never_ends_says_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Admission, "admit", lambda admission, chooser: [])
    chooser = replayed([])
    scenario = draw_scenario(chooser)
    (violation,) = checked_engine(scenario, chooser).run().violations
    assert violation.rule.id == "S1"
    assert violation.actual == f"after {ITERATIONS_MAX} iterations ['r0'] wait and [] run"


# A wrong slot, wherever it is


class SwapsSlots(ModelAccounting):
    """As soon as `position` is known, its slot and that of the next known position change places."""

    position = 0
    first_wrong = -1

    def check_finish(self, request: Request, new_tokens: int) -> None:
        super().check_finish(request, new_tokens)
        held = request.state_of_accounting
        if not held.finished and self.first_wrong < 0 and held.honest > self.position:
            rows, other = self._memory.rows, (self.position + 1) % held.honest
            one, two = (rows.read(held.row, at, at + 1) for at in (self.position, other))
            rows.write(held.row, self.position, two)
            rows.write(held.row, other, one)
            type(self).first_wrong = min(self.position, other)


@settings(max_examples=200)
@given(prompt_len=st.integers(2, 12), position=st.integers(0, 26), overlap=st.booleans(), raw=fractions)
def test_a_wrong_slot_at_any_earlier_position_is_found(
    prompt_len: int, position: int, overlap: bool, raw: bytes
) -> None:
    class Planted(SwapsSlots):
        pass

    # A run accepts at most 4 tokens, so 16 of 20 outputs at least are known while another launch is to come.
    Planted.position = position % (prompt_len + 15)
    turn = Turn("r0", tuple(range(10, 10 + prompt_len)), 20)
    scenario = Scenario(EngineConfig(overlap=overlap), Workload((turn,)))
    (violation,) = checked_engine(scenario, fractional(raw), Planted).run().violations
    assert violation.rule.id == "I05"
    assert violation.expected == f"the KV of position {Planted.first_wrong}"
