"""What a user is told beside tokens: what of a prompt was cached, how often a request was retracted, and in parts."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.answers import VisibleOutputs
from specsim.world.rule import Run
from specsim.world.scheduler import Answer, Chunk, Launch, Part, Seen, Setup, Turn
from specsim.world.workload import Workload

TURN = Turn("a", tuple(range(20)), 1, at=0)


def wrong(*launches: Launch, setup: Setup | None = None, **says: Any) -> list[str]:
    """The first part of an answer of one token, 7, that is wrong beside these launches."""
    answer = Answer("a", (7,), "length", 20, 1, matched=1, **says)
    users: Any = SimpleNamespace(workload=Workload((TURN,)), sent_at={"a": 0}, aborted={})
    started: Any = SimpleNamespace(
        seen=Seen(launches=list(launches)), answers=lambda: iter([answer]), expected=lambda *_given: [7]
    )
    return [one.part for one in VisibleOutputs(setup or Setup(), FACTS).at_rest(Run(started, users))][:1]


@pytest.mark.parametrize(
    ("chunks", "cached"),
    [
        (((15, 5),), {15}),
        (((12, 4), (16, 4)), {12}),
        (((12, 4), (3, 17)), {3, 12}),  # it was begun anew
        (((12, 8), None, (17, 3)), {12}),
        ((), set(range(20))),  # nothing says what was computed
    ],
)
def test_what_a_prefill_begins_behind_was_cached(chunks: tuple[tuple[int, int] | None, ...], cached: set[int]) -> None:
    launches = [
        Launch(at, "extend", ("b", "a"), (Chunk(0, 9), Chunk(*chunk))) if chunk else Launch(at, "decode", ("a",))
        for at, chunk in enumerate(chunks, 1)
    ]
    found = {
        count for count in range(21) if not wrong(*(launches or [Launch(1, "extend", ("a",))]), cached_tokens=count)
    }
    assert found == cached


@pytest.mark.parametrize(
    ("kinds", "retractions"),
    [
        ("extend", {0}),
        ("extend decode", {0}),
        ("extend extend", {0, 1}),
        ("extend decode extend", {1}),
        ("extend decode extend extend decode extend", {2, 3}),
    ],
)
def test_who_is_prefilled_after_a_step_was_retracted(kinds: str, retractions: set[int]) -> None:
    launches = [Launch(at, kind, ("a",)) for at, kind in enumerate(kinds.split())]
    assert {count for count in range(5) if not wrong(*launches, retractions=count)} == retractions


def test_where_prefills_have_requests_that_decode_nothing_is_said_of_them() -> None:
    launches = [
        Launch(1, "extend", ("a",), (Chunk(0, 5),)),
        Launch(2, "decode", ("a",)),
        Launch(3, "extend", ("a",), (Chunk(5, 1),)),
    ]
    assert wrong(*launches, setup=Setup(mixed=True), cached_tokens=3, retractions=0) == []


@pytest.mark.parametrize(
    ("tiers", "part"), [((), ""), ((3, 0), ""), ((1, 2), ""), ((3, 3), "cached-by-tier"), ((2,), "cached-by-tier")]
)
def test_what_was_cached_in_each_tier_adds_up(tiers: tuple[int, ...], part: str) -> None:
    found = wrong(Launch(1, "extend", ("a",)), cached_tokens=3, cached_by_tier=tiers)
    assert [one.split(":")[-1] for one in found] == [part] * bool(part)


@pytest.mark.parametrize(
    ("behind", "part"),
    [
        ((), ""),
        ((Part(0, -1, ends=False),), ""),
        ((Part(0, -1, ends=True),), "end"),
        ((Part(1, -1, ends=False),), "end"),
    ],
)
def test_behind_the_end_of_an_answer_is_nothing_that_anybody_reads(behind: tuple[Part, ...], part: str) -> None:
    found = wrong(Launch(1, "extend", ("a",)), parts=(Part(1, -1, ends=True), *behind))
    assert [one.split(":")[-1] for one in found] == [part] * bool(part)
