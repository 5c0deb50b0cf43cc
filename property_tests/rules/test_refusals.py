"""Requests that are to be refused, and those that have ended."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.answers import LogprobRows, VisibleOutputs
from specsim.rules.requests import RunAfterEnd
from specsim.world.rule import Run
from specsim.world.scheduler import REFUSALS, Answer, Launch, Seen, Setup, Turn
from specsim.world.workload import Workload


def told(reason: str, refused: str) -> list[str]:
    """What is wrong with the answer to a request that asked for logprobs."""
    users: Any = SimpleNamespace(
        workload=Workload((Turn("a", (1, 2), 3, 0, logprobs=1, refused=refused),)), sent_at={"a": 0}, aborted={}
    )
    users.told_by = lambda _rid, _token: 0
    started: Any = SimpleNamespace(
        seen=Seen(),
        answers=lambda: iter([Answer("a", (9,), reason)]),
        expected=lambda *_of: [7, 8, 9],
        logprobs=lambda *_of: [],
        requests=lambda: iter(()),
    )
    run = Run(started, users)
    return [one.part for check in (VisibleOutputs, LogprobRows) for one in check(Setup(), FACTS).at_rest(run)]


@pytest.mark.parametrize("why", REFUSALS)
def test_whoever_is_to_be_refused_is_told_so_and_nothing_else_of_the_answer_is_compared(why: str) -> None:
    assert told("abort", why) == []
    assert told("length", why) == ["request:refused"]
    assert told("abort", "") != []


def late(*iterations: int, ended: int = 4, aborted: bool = False) -> list[str]:
    """What is wrong where one whose user was told of its end is launched then."""
    launches = [Launch(iteration, "decode", ("a",)) for iteration in iterations]
    users: Any = SimpleNamespace(aborted={"a": 0} if aborted else {}, ended_at={"a": ended})
    started: Any = SimpleNamespace(seen=Seen(launches=launches))
    rule, run = RunAfterEnd(Setup(), FACTS), Run(started, users)
    return [one.part for one in (*rule.after(run), *rule.at_rest(run))]


def test_who_has_ended_is_launched_no_more() -> None:
    assert late(1, 2, 3, 4) == []
    assert late(3, 5) == ["end"]
    assert late(3, 5, ended=5) == []


def test_of_one_that_was_aborted_some_verifications_may_be_under_way() -> None:
    assert late(*range(1, FACTS.late + 1), aborted=True) == []
    assert late(*range(1, FACTS.late + 2), aborted=True) == ["abort"]
