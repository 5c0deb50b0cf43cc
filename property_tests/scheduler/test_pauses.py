"""Pauses: what users send while the scheduler is paused, when it goes on, and what must not run meanwhile."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from specsim.choices.chooser import seeded
from specsim.engines.sglang.scheduler.setups import FACTS, SETUPS
from specsim.rules.waiting import Order, Paused
from specsim.world.fakes import NotRunError
from specsim.world.hash_model import decoded
from specsim.world.own import OwnScheduler
from specsim.world.rule import Run
from specsim.world.scheduler import ABORT, DRAIN, KEEP, Answer, Facts, Launch, Load, Pause, Seen, Setup, Turn
from specsim.world.users import Moment, NeverEndsError, Users
from specsim.world.workload import CROSSED, Workload, draw_workload, told

ALL = replace(FACTS, pauses=(KEEP, DRAIN, ABORT), hears=True, refuses=True)


class Server:
    """A scheduler that says to each pause when it is complete, and to nobody anything else."""

    is_idle = False

    def __init__(self, facts: Facts, complete_at: int = 0, launches: tuple[Launch, ...] = ()) -> None:
        self.facts, self.seen = facts, Seen(launches=list(launches))
        self.iteration, self._complete_at = 0, complete_at

    @property
    def has_paused(self) -> bool:
        return self.iteration >= self._complete_at

    def load(self) -> Load:
        return Load((), 0, 9, 9, (), 9)

    def answers(self) -> list[Answer]:
        return []

    def generate(self, turn: Turn) -> str:
        return turn.rid

    def pause(self, pause: Pause) -> str:
        return "pause"

    def resume(self) -> str:
        return "resume"

    def flush(self) -> str:
        return "flush"


def sent(server: Any, workload: Workload, until: int) -> tuple[dict[int, list[str]], Users]:
    """By iteration what is sent."""
    users, found = Users(server, workload, Setup(), lambda _moment: None), {}
    for server.iteration in range(until):
        if messages := users.at(server.iteration):
            found[server.iteration] = list(messages)
    return found, users


TURNS = (Turn("r0", (1,), 1, at=0), Turn("r1", (1,), 1, at=3))


def test_a_pause_is_counted_from_the_iteration_in_which_it_is_complete() -> None:
    workload = Workload(TURNS, pauses=(Pause(2, 2, False), Pause(5, 1, False)))
    assert sent(Server(FACTS), workload, 9)[0] == {
        0: ["r0"],
        2: ["pause"],
        4: ["resume", "r1"],
        5: ["pause"],
        6: ["resume"],
    }
    late, _users = sent(Server(FACTS, complete_at=6), workload, 12)
    assert late == {0: ["r0"], 2: ["pause"], 7: ["resume", "r1"], 8: ["pause"], 9: ["resume"]}


@pytest.mark.parametrize(
    ("workload", "disturbed"),
    [
        (Workload(TURNS), []),
        (Workload(TURNS, flushes=(3,)), [4, 5]),
        (Workload(TURNS, pauses=(Pause(2, 2, False),)), [3, 4]),
    ],
)
def test_a_reset_of_the_cache_and_a_pause_disturb_who_runs(workload: Workload, disturbed: list[int]) -> None:
    """vLLM retracts all who run, to reset the cache: nobody else is to blame."""
    moments: list[Moment] = []
    server: Any = Server(FACTS)
    users = Users(server, workload, Setup(), moments.append)
    for iteration in range(8):
        users.at(iteration)
    assert [moment.iteration for moment in moments if moment.is_disturbed] == disturbed


def test_a_pause_that_is_never_complete_is_a_schedule_that_never_ends() -> None:
    with pytest.raises(NeverEndsError) as error:
        sent(Server(FACTS, complete_at=10_000), Workload(TURNS, pauses=(Pause(2, 2, False),)), 2000)
    assert error.value.part == "pause"


@pytest.mark.parametrize(
    ("waiting", "running", "ends", "part", "who"),
    [
        (("r0", "r1"), (), (), "request:waiting", "r0"),
        (("r0",), ("r1",), (), "request:running", "r1"),
        ((), (), ("r0",), "request", "r1"),
        ((), (), ("r0", "r1"), "idle", ""),
    ],
)
def test_what_never_ends_is_said_by_where_it_is(
    waiting: tuple[str, ...], running: tuple[str, ...], ends: tuple[str, ...], part: str, who: str
) -> None:
    """Who runs is named before those who wait for it, and nobody where all have ended."""

    class Endless(Server):
        def load(self) -> Load:
            waits, runs = tuple((rid, 9) for rid in waiting), tuple((rid, 1, 1) for rid in running)
            return replace(super().load(), waiting=waits, lengths=runs)

        def answers(self) -> list[Answer]:
            return [Answer(rid, (7,), "length") for rid in ends if self.iteration > 9]

    with pytest.raises(NeverEndsError) as error:
        sent(Endless(FACTS), Workload(TURNS), 2000)
    assert (error.value.part, error.value.who) == (part, who)
    assert f"{who or 'the scheduler'} is" in str(error.value)


def test_requests_reach_a_paused_scheduler_that_hears_and_may_be_refused_by_one_that_refuses() -> None:
    workload = Workload(TURNS, pauses=(Pause(2, 3, False, mode=DRAIN, refuses=True),))
    messages, users = sent(Server(ALL), workload, 9)
    assert messages == {0: ["r0"], 2: ["pause"], 3: ["r1"], 5: ["resume"]}
    assert users.refusable == {"r1"}


def test_a_pause_that_aborts_aborts_what_was_sent_before() -> None:
    _messages, users = sent(Server(ALL), Workload(TURNS, pauses=(Pause(2, 3, False, mode=ABORT),)), 9)
    assert users.aborted == {"r0": 2}


@pytest.mark.parametrize(
    ("mode", "launch", "part"),
    [
        (KEEP, Launch(5, "decode", ("r0",)), "kept"),
        (KEEP, Launch(5, "extend", ("r1",)), "start"),
        (DRAIN, Launch(5, "decode", ("r0",)), ""),
        (DRAIN, Launch(5, "extend", ("r1",)), "start"),
        (KEEP, Launch(4, "decode", ("r0",)), ""),  # it may have been made before the pause was heard of
        (KEEP, Launch(8, "decode", ("r0",)), ""),  # and this comes after it
    ],
)
def test_what_a_pause_holds_back_does_not_run(mode: str, launch: Launch, part: str) -> None:
    server: Any = Server(ALL, launches=(Launch(1, "extend", ("r0",)), launch))
    _messages, users = sent(server, Workload(TURNS, pauses=(Pause(2, 6, False, mode=mode),)), 12)
    assert [one.part for one in Paused(Setup(), ALL).after(Run(server, users))] == [part] * bool(part)


@pytest.mark.parametrize(
    ("priorities", "starts", "part"),
    [
        ((0, 0), (4, 9), ""),
        ((0, 0), (9, 4), "arrival"),
        ((0, 40), (9, 4), ""),  # the second one is more urgent
        ((0, 40), (6, 9), "priority"),
        ((0, 40), (4, 9), ""),  # it had come just before
    ],
)
def test_requests_start_in_the_order_of_their_priorities_and_arrivals(
    priorities: tuple[int, int], starts: tuple[int, int], part: str
) -> None:
    facts = replace(ALL, in_order=True)
    turns = tuple(replace(turn, priority=priority) for turn, priority in zip(TURNS, priorities, strict=True))
    launches = sorted(Launch(at, "extend", (turn.rid,)) for turn, at in zip(turns, starts, strict=True))
    server: Any = Server(facts, launches=tuple(launches))
    _messages, users = sent(server, Workload(turns), 12)
    assert [one.part for one in Order(Setup(), facts).after(Run(server, users))] == [part] * bool(part)


def drawn(facts: Facts) -> list[Workload]:
    return [draw_workload(seeded(2, "pauses", index), SETUPS[0], facts, decoded) for index in range(200)]


def test_the_modes_of_an_engine_are_drawn_and_no_others() -> None:
    pauses = [pause for workload in drawn(ALL) for pause in workload.pauses]
    assert {pause.mode for pause in pauses} == {KEEP, DRAIN, ABORT}
    assert {pause.refuses for pause in pauses if pause.mode != KEEP} == {True, False}
    assert not any(pause.refuses for pause in pauses if pause.mode == KEEP)
    plain = [pause for workload in drawn(FACTS) for pause in workload.pauses]
    assert {(pause.mode, pause.refuses) for pause in plain} == {(KEEP, False)}
    assert all(
        set(pause) == {"at", "iterations", "retracts"} for one in drawn(FACTS) for pause in one.plain()["pauses"]
    )


def test_prompts_that_cross_go_on_as_another_one_does() -> None:
    """Behind a page of one prompt stands what stands there in another, which begins otherwise."""
    facts = replace(FACTS, features=FACTS.features | {CROSSED})
    found = 0
    for workload in drawn(facts):
        prompts = [turn.prompt for turn in workload.turns]
        for at, prompt in enumerate(prompts):
            others = [one for one in prompts[:at] if len(one) > 2 and one[1:3] == prompt[1:3] and one[:1] != prompt[:1]]
            found += bool(others)
    assert found


def test_a_request_may_fill_the_pool_of_an_engine_that_it_fits() -> None:
    setup = Setup(page_size=4, slots=64, context=64)
    facts = replace(FACTS, fits=True, answer_room=1)
    longest = {
        fits: max(
            len(turn.prompt) + turn.answer
            for index in range(60)
            for turn in draw_workload(seeded(2, "fits", index), setup, replace(facts, fits=fits), decoded).turns
            if not turn.refused
        )
        for fits in (True, False)
    }
    assert longest[True] == 64 > longest[False]


def test_a_reader_is_told_all_that_users_do() -> None:
    workload = Workload(TURNS[:1], (1,), (2,), (Pause(3, 1, True), Pause(5, 2, False, DRAIN, refuses=True)), (7,))
    assert told(workload.plain()) == [
        ("r0", "1 token for 1 at iteration 0"),
        ("all requests", "aborted at iteration 2"),
        ("prefix cache", "flushed at iteration 1"),
        ("scheduler", "paused at iteration 3 for 1 iteration, all stay where they are, what they hold is given back"),
        ("scheduler", "paused at iteration 5 for 2 iterations, those that run go on, new ones are refused"),
        ("clock", "leaps at iteration 7"),
    ]


def test_an_engine_of_your_own_that_cannot_pause_says_which_method_to_write() -> None:
    with pytest.raises(NotRunError, match="write `pause`"):
        OwnScheduler.pause(SimpleOwn(), Pause(0, 1, False))


class SimpleOwn(OwnScheduler):
    def generate(self, turn: Turn) -> Any: ...
    def run(self, chooser: Any, script: Any) -> None: ...
    def load(self) -> Any: ...
    def requests(self) -> Any: ...
    def answers(self) -> Any: ...
    def pools(self) -> Any: ...

    @property
    def is_idle(self) -> bool:
        return True
