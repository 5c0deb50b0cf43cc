"""A request begins behind what those of its salt computed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.reuse import Salts
from specsim.world.rule import Run
from specsim.world.scheduler import Chunk, Launch, RequestState, Seen, Setup, Turn
from specsim.world.workload import Workload

PROMPT, OTHER = (1, 2, 3, 4, 5, 6), (1, 2, 3, 9, 9, 9)


def wrong(first: Turn, start: int, *, together: bool = False, **setup: Any) -> list[str]:
    """Of a request "b" with salt "a", which begins at `start` behind another one."""
    second = Turn("b", PROMPT, 1, 0, salt="a")
    chunks = Chunk(0, 6), Chunk(start, 6 - start)
    launches = [Launch(1, "extend", ("a",), chunks[:1]), Launch(2, "extend", ("b",), chunks[1:])]
    if together:
        launches = [Launch(1, "extend", ("a", "b"), chunks)]
    states = [RequestState(one.rid, one.prompt, (), "length", 0, 0, -1, 0) for one in (first, second)]
    users: Any = SimpleNamespace(workload=Workload((first, second)), sent_at={"a": 0, "b": 0})
    started: Any = SimpleNamespace(
        seen=Seen(launches=launches), requests=lambda: iter(states), answers=lambda: iter(())
    )
    return [one.part for one in Salts(Setup(**setup), FACTS).at_rest(Run(started, users))]


@pytest.mark.parametrize(
    ("salt", "prompt", "most"), [("a", PROMPT, 6), ("a", OTHER, 3), ("", PROMPT, 0), ("b", PROMPT, 0)]
)
def test_a_request_begins_behind_what_one_of_its_salt_has_in_common(
    salt: str, prompt: tuple[int, ...], most: int
) -> None:
    first = Turn("a", prompt, 1, 0, salt=salt)
    assert [start for start in range(6) if not wrong(first, start)] == list(range(min(most + 1, 6)))


def test_one_in_the_same_launch_counts_and_one_behind_it_does_not() -> None:
    assert not wrong(Turn("a", PROMPT, 1, 0, salt="a"), 5, together=True)
    assert wrong(Turn("a", PROMPT, 1, 0), 5, together=True) == ["request"]


def test_one_that_has_begun_may_begin_again_behind_its_own() -> None:
    turn = Turn("b", PROMPT, 1, 0, salt="a")
    launches = [
        Launch(1, "decode", ("b",), (Chunk(0, 6, drafts=2),)),  # where a release computes its prompt beside drafts
        Launch(2, "extend", ("b",), (Chunk(4, 2),)),
    ]
    states = [RequestState("b", PROMPT, (), "length", 0, 0, -1, 0)]
    users: Any = SimpleNamespace(workload=Workload((turn,)), sent_at={"b": 0})
    started: Any = SimpleNamespace(
        seen=Seen(launches=launches), requests=lambda: iter(states), answers=lambda: iter(())
    )
    assert list(Salts(Setup(), FACTS).at_rest(Run(started, users))) == []


def test_what_comes_from_outside_is_not_looked_at() -> None:
    assert not wrong(Turn("a", PROMPT, 1, 0), 5, connector=True)
