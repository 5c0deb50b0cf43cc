"""The scheduler tier finds what is wrong in a scheduler, and nothing in one that is right."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from msgspec import structs

from property_tests.support.toy_scheduler import DEFECTS, TOY_SETUPS, ToyTarget, decode
from specsim.choices.chooser import replayed, seeded
from specsim.commands.suites import _where_parted
from specsim.engines.sglang.scheduler.setups import FACTS, SETUPS
from specsim.rules.process import HostException
from specsim.rules.requests import FinishedClaim, LengthsInOrder
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler.answers import ScheduleCounts, _differing, violations_of
from specsim.world.case import ScheduleCase
from specsim.world.forks import EndedSchedule, NotStarted, Outcome, Ran, Starters, WantedSchedule, wanted
from specsim.world.kv import BeyondRow
from specsim.world.rule import Rules, Run
from specsim.world.schedule import first_other_launch
from specsim.world.scheduler import (
    SIZES,
    TOO_LONG,
    Answer,
    Load,
    Noted,
    RequestState,
    Seen,
    Setup,
    StartedScheduler,
    unknown_settings,
)
from specsim.world.users import NeverEndsError, Users
from specsim.world.workload import Workload, draw_workload

EXPECTED = {lie.name: check.rule.id for check in CHECKS for lie in check.defects}


def outcomes(defect: str, count: int, seconds: float = 20.0) -> Iterator[Outcome]:
    starters = Starters(ToyTarget(defect), CHECKS)
    try:
        for index in range(count):
            yield starters.run(wanted(TOY_SETUPS, 0, index, seconds))
    finally:
        starters.close()


def test_a_scheduler_that_is_right_breaks_no_rule() -> None:
    found = list(outcomes("", 60))
    assert all(isinstance(outcome, Ran) for outcome in found)
    assert [violation for outcome in found for violation in violations_of(outcome)] == []


def test_the_functions_that_a_schedule_runs_are_noted_where_they_are_asked_for() -> None:
    starters, schedule = Starters(ToyTarget(""), CHECKS), wanted(SETUPS, 0, 0, 20.0)
    try:
        plain, traced = starters.run(schedule), starters.run(structs.replace(schedule, traces=True))
    finally:
        starters.close()
    assert isinstance(plain, Ran)
    assert isinstance(traced, Ran)
    assert plain.record.ran == ()
    assert "ToyScheduler._step" in [function.name for function in traced.record.ran]
    assert structs.replace(traced.record, ran=()) == plain.record


@pytest.mark.parametrize("defect", DEFECTS)
def test_a_defect_breaks_its_rule_and_no_other(defect: str) -> None:
    """In the first schedule that has what it needs; in some only few have it."""
    shown = ({violation.rule for violation in violations_of(outcome)} for outcome in outcomes(defect, 60, 1.0))
    assert next(filter(None, shown), set()) == {EXPECTED[defect]}


def test_pauses_are_drawn_and_end() -> None:
    paused = [workload for index in range(60) for workload in [_drawn(index)] if workload.pauses]
    assert {pause.retracts for workload in paused for pause in workload.pauses} == {True, False}
    for workload in paused:
        ends = [0, *(pause.at + pause.iterations for pause in workload.pauses)]
        assert all(pause.iterations > 0 and pause.at > end for pause, end in zip(workload.pauses, ends, strict=False))


def _drawn(index: int) -> Workload:
    return draw_workload(seeded(2, "pauses", index), SETUPS[0], FACTS, decode)


def test_a_request_may_fill_the_context_and_its_prompt_leaves_room_for_an_answer() -> None:
    setup = next(setup for setup in SETUPS if setup.context)
    drawn = [draw_workload(seeded(3, "context", index), setup, FACTS, decode) for index in range(300)]
    turns = [turn for workload in drawn for turn in workload.turns]
    taken = [turn for turn in turns if turn.refused != TOO_LONG]
    assert max(len(turn.prompt) + turn.answer for turn in taken) == setup.context
    longest = max(len(turn.prompt) for turn in taken)
    assert longest == setup.context - FACTS.answer_room
    assert min(len(turn.prompt) for turn in turns if turn.refused == TOO_LONG) == longest + 1
    assert {turn.refused for turn in turns} == {"", *FACTS.refusals}


def test_a_session_may_claim_the_last_token_which_the_launch_in_flight_writes_and_a_request_may_not() -> None:
    def broken_by(committed: int, is_of_session: bool) -> list[str]:
        state = RequestState("r", (1, 2), (3, 4), "length", committed, 8, -1, 0)
        return [violation.rule for violation in FinishedClaim(SETUPS[0], FACTS).claim(state, is_of_session)]

    assert [broken_by(claim, False) for claim in (3, 4)] == [[], [EXPECTED["claims too much"]]]
    assert [broken_by(claim, True) for claim in (4, 5)] == [[], [EXPECTED["claims too much"]]]


def test_a_schedule_is_the_same_in_two_processes() -> None:
    first, again = ([o.record for o in outcomes("", 12) if isinstance(o, Ran)] for _ in range(2))
    assert first == again


@pytest.mark.parametrize("starts_anew", [False, True])
def test_schedules_that_run_at_a_time_are_given_in_their_order_and_are_the_same(starts_anew: bool) -> None:
    """Of two setups, so that some wait for their starter, one of which is refused; and one is run in between."""
    table = (Setup(), Setup(page_size=4), Setup(rows=1))
    drawn = [wanted(table[:2], 0, index, 20.0) for index in range(9)]
    drawn.insert(4, WantedSchedule((), case=ScheduleCase({"multi_layer": True}, {"turns": []}, {})))
    given = {}
    for at_once in (1, 3, 20):
        target = ToyTarget("wrong token", setups=table)
        target.starts_anew = starts_anew
        starters = Starters(target, CHECKS, at_once)
        outcomes = []
        try:
            for index, _, outcome in starters.run_all(enumerate(drawn)):
                outcomes += [(index, outcome), (index, starters.run(drawn[5]))]
        finally:
            starters.close()
        given[at_once] = outcomes
    assert [index for index, _ in given[1][::2]] == list(range(10))
    assert isinstance(given[1][8][1], NotStarted)
    assert sum(isinstance(outcome, Ran) for _, outcome in given[1]) == 19
    assert given[3] == given[20] == given[1]


class _Together(ToyTarget):
    """Starts when as many start at a time."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self._all = multiprocessing.Barrier(count)

    def start(self, setup: Setup) -> StartedScheduler:
        self._all.wait(20.0)
        return super().start(setup)


def test_as_many_schedules_run_at_a_time_as_are_asked_for() -> None:
    starters = Starters(_Together(3), CHECKS, 3)
    try:
        ran = [outcome for *_, outcome in starters.run_all((i, wanted(TOY_SETUPS, 0, i, 20.0)) for i in range(6))]
    finally:
        starters.close()
    assert all(isinstance(outcome, Ran) for outcome in ran)


def test_a_setting_that_no_setup_of_an_engine_has_is_not_run() -> None:
    table = (Setup(), Setup(window=8, steps=1))
    assert set(Setup.__slots__) >= SIZES
    assert unknown_settings(Setup(page_size=4, slots=9, rows=2, window=3), table) == []
    assert unknown_settings(Setup(multi_layer=True, hidden_states=True, slots=9), table) == [
        "hidden_states",
        "multi_layer",
    ]
    starters = Starters(ToyTarget(setups=table), CHECKS)
    try:
        ended = starters.run(WantedSchedule((), case=ScheduleCase({"multi_layer": True}, {"turns": []}, {})))
    finally:
        starters.close()
    assert isinstance(ended, NotStarted)
    assert "multi_layer" in ended.why


def test_a_tape_gives_its_schedule_again() -> None:
    starters = Starters(ToyTarget("wrong token"), CHECKS)
    try:
        first = starters.run(wanted(SETUPS, 3, 14, 20.0))
        assert isinstance(first, Ran)
        again = starters.run(WantedSchedule(first.record.tape))
    finally:
        starters.close()
    assert again == first


def test_a_race_without_a_wrong_token_is_harmless_and_one_with_is_not() -> None:
    (race,) = {v.harmless for outcome in outcomes("race", 2) for v in violations_of(outcome)}
    assert race


def test_a_schedule_that_ends_its_process_ends_no_other() -> None:
    first, second = outcomes("ends its process", 2)
    assert isinstance(first, EndedSchedule)
    assert isinstance(second, EndedSchedule)


@pytest.mark.parametrize("setup", SETUPS, ids=lambda setup: setup.name)
def test_no_request_is_drawn_that_a_server_would_refuse_but_those_that_say_so(setup: Setup) -> None:
    for index in range(200):
        workload = draw_workload(seeded(1, "workload", index), setup, FACTS, decode)
        assert len({turn.rid for turn in workload.turns}) == len(workload.turns)
        for turn in [turn for turn in workload.turns if not turn.refused]:
            assert len(turn.prompt) >= 1
            assert turn.grammar.count(turn.grammar[-1]) == 1 if turn.grammar else True
            same = [t for t in workload.turns if t.session == turn.session and t.session and not t.refused]
            length = sum(len(t.prompt) + t.answer for t in same)
            length = length or len(turn.prompt) + turn.answer
            assert length + 2 * setup.draft_tokens <= min(FACTS.context, setup.slots)


def test_what_an_engine_does_not_take_is_not_drawn() -> None:
    fewer = replace(FACTS, features=FACTS.features - {"aborts", "flushes"}, priorities=(7,))
    setup = next(setup for setup in SETUPS if setup.priorities)
    drawn = [
        [draw_workload(seeded(4, "facts", index), setup, facts, decode) for index in range(40)]
        for facts in (FACTS, fewer)
    ]
    assert [any(workload.flushes for workload in workloads) for workloads in drawn] == [True, False]
    turns = [[turn for workload in workloads for turn in workload.turns] for workloads in drawn]
    assert [any(turn.abort >= 0 for turn in some) for some in turns] == [True, False]
    assert [{turn.priority for turn in some} for some in turns] == [{*FACTS.priorities}, {7}]


def test_choice_zero_is_one_request_of_one_token() -> None:
    workload = draw_workload(replayed(()), SETUPS[0], FACTS, decode)
    (turn,) = workload.turns
    assert (len(turn.prompt), turn.answer, turn.at, turn.abort) == (1, 1, 0, -1)
    assert not workload.flushes
    assert not workload.abort_all
    assert not workload.pauses


class Raises:
    """A scheduler whose run ended with an exception, after so many slots for a row of 80."""

    is_idle, facts = False, FACTS

    def __init__(self, allocated: int) -> None:
        self.seen = Seen(noted=[Noted(BeyondRow("0", 90, allocated, 80), when=0)])

    def traceback_of(self, error: Exception) -> list[tuple[str, str]]:
        return [("check_memory", "checker.py:1")]


@pytest.mark.parametrize(("allocated", "shown"), [(83, ["I01"]), (80, ["I01", "X1"])])
def test_what_comes_after_slots_beyond_a_row_is_left_out(allocated: int, shown: list[str]) -> None:
    """From then on the rows of others are written. A baseline with what follows would hide a defect that shows so."""
    scheduler: Any = Raises(allocated)
    rules = Rules((LengthsInOrder, HostException), Setup(), FACTS)
    run = Run(scheduler, Users(scheduler, Workload(()), Setup(), rules.at), ValueError("a leak"))
    assert [violation.rule for violation in rules.broken(run)] == shown


class FullBatch:
    """A scheduler at which a request that fits waits for ever, after another one has ended with so many tokens."""

    is_idle, facts, seen = False, FACTS, Seen()

    def __init__(self, tokens: int) -> None:
        self._answers = [Answer("gone", tuple(range(tokens)), "abort")]

    def answers(self) -> list[Answer]:
        return self._answers

    def load(self) -> Load:
        return Load((("waits", 4),), running=20, free=120, free_rows=2, lengths=(), row_width=240, chunked=False)


@pytest.mark.parametrize(("tokens", "broken"), [(3, ["S9"]), (0, [])])
def test_who_is_aborted_while_it_waits_makes_no_room(tokens: int, broken: list[str]) -> None:
    """A release looks at a batch that is full again when one of its requests has ended, which that one was not."""
    scheduler: Any = FullBatch(tokens)
    rules = Rules(CHECKS, Setup(), FACTS)
    users = Users(scheduler, Workload(()), Setup(), rules.at)
    for iteration in range(1, FACTS.patience + 2):
        users.at(iteration)
    run = Run(scheduler, users, NeverEndsError("request:waiting", "waits", "it waits"))
    assert [violation.rule for violation in rules.broken(run) if violation.rule != "S1"] == broken


@pytest.mark.parametrize(("defect", "gone"), [("wrong token", False), ("", True)])
def test_a_schedule_that_does_not_run_the_same_twice_is_named_with_the_launch_that_differs(
    defect: str, gone: bool
) -> None:
    counts = ScheduleCounts()
    for outcome in outcomes("wrong token", 3):
        assert isinstance(outcome, Ran)
        counts.take(WantedSchedule(outcome.record.tape), outcome)
    signature, hit = next(iter(counts.hits.items()))
    assert hit.record is not None
    events = ("0 extend another", *hit.record.events[1:])
    hit.outcome = Ran(structs.replace(hit.record, events=events, digest="other"))
    starters = Starters(ToyTarget(defect), CHECKS)
    try:
        (differs,) = [one for one in _differing(starters, counts, 20.0) if signature in one.what]
    finally:
        starters.close()
    assert differs.text.startswith("a launch was '0 extend another', and then ")
    assert (differs.gone, "in the first run alone" in differs.text) == (signature * gone, gone)


def test_an_exception_says_through_which_functions_of_the_target_it_came() -> None:
    (outcome,) = outcomes("raises", 1)
    (raised,) = [violation for violation in violations_of(outcome) if violation.rule == "X1"]
    assert (raised.part.partition(":")[0], raised.where) == ("_step", "toy.py:1")
    assert raised.details == ("raised through toy.py:9 run", "raised through toy.py:1 _step")


def test_two_runs_part_at_the_first_launch_that_only_one_of_them_has() -> None:
    here, there = ("   1  extend  a", "   2  decode  a"), ("   1  extend  a", "   2  decode  a b")
    assert first_other_launch(here, here) is None
    assert first_other_launch(here, there) == (2, "2 decode a", "2 decode a b")
    assert first_other_launch(here[:1], here) == (2, "no launch", "2 decode a")
    assert _where_parted(here, there, "B") == "launch 2 is '2 decode a', and '2 decode a b' on B"
    assert _where_parted(here, here, "B") == "its launches are those of B"
