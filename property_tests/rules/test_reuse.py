"""What the prefix cache has is used, and what was computed last is there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.reuse import Reuse
from specsim.world.rule import Run
from specsim.world.scheduler import Answer, Chunk, Launch, Pause, Pools, Seen, Setup, TreeNode, Turn, held_of
from specsim.world.users import PauseSpan
from specsim.world.workload import Workload

TURN = Turn("a", tuple(range(20)), 4, at=0)
FOUR = (50, 51, 52, 53)


def test_what_a_cache_has_of_tokens_reaches_as_far_as_its_nodes_follow_one_another() -> None:
    nodes = [TreeNode((1, 2, 3, 4, 5, 6), (8, 9)), TreeNode((1, 2), (4, 5)), TreeNode((1, 2, 3, 4), (6, 7))]
    assert held_of(nodes, (1, 2, 3, 4, 5, 6, 7)) == 6
    assert held_of(nodes, (1, 2, 3, 4, 5, 7)) == 5
    assert held_of(nodes, (1, 2, 3)) == 3
    assert held_of(nodes, (2, 2)) == 0
    assert held_of(nodes[:2], (1, 2, 3, 4, 5, 6)) == 2
    assert held_of(nodes[:1], (1, 2, 3, 4, 5, 6), 4) == 6


def begins(start: int, held: int, *, page_size: int = 1, turn: Turn = TURN) -> list[str]:
    """The parts that are wrong where the prompt of 20 tokens begins so."""
    seen = Seen(launches=[Launch(1, "extend", ("b", "a"), (Chunk(0, 9, 9), Chunk(start, 5, held)))])
    users: Any = SimpleNamespace(workload=Workload((turn,)), aborted={})
    rule = Reuse(Setup(page_size=page_size), FACTS)
    return [one.part for one in rule.after(Run(SimpleNamespace(seen=seen), users))]


@pytest.mark.parametrize(
    ("held", "page_size", "least"),
    [(20, 1, 18), (12, 1, 10), (1, 1, 0), (-1, 1, 0), (20, 4, 12), (12, 4, 4), (7, 4, 0)],
)
def test_a_prompt_begins_behind_what_the_cache_has_of_it(held: int, page_size: int, least: int) -> None:
    assert {start for start in range(20) if not begins(start, held, page_size=page_size)} == {*range(least, 20)}


def test_sessions_and_prompts_with_logprobs_are_not_looked_at() -> None:
    assert begins(0, 20) == ["prompt"]
    assert begins(0, 20, turn=replace(TURN, session="s")) == []
    assert begins(0, 20, turn=replace(TURN, prompt_logprobs=0)) == []


def left(
    in_cache: int, *, setup: Setup | None = None, reason: str = "length", flush: int = -1, pause: int = -1
) -> bool:
    """Whether something is wrong where so many tokens of the last request are in the cache at rest, iteration 9."""
    node = TreeNode((*TURN.prompt, *FOUR)[:in_cache], tuple(range(in_cache)))
    flushes = (flush,) if flush >= 0 else ()
    paused = [PauseSpan(Pause(1, 1, retracts=True), 1, pause)] if pause >= 0 else []
    users: Any = SimpleNamespace(
        workload=Workload((TURN,), flushes), sent_at={"a": 0}, aborted={}, paused=paused, iterations=9
    )
    started: Any = SimpleNamespace(
        seen=Seen(launches=[Launch(3, "extend", ("a",)), Launch(6, "decode", ("a",))]),
        answers=lambda: iter([Answer("a", FOUR, reason)]),
        pools=lambda: Pools(99, 99 - in_cache, in_cache, 4, 4, nodes=[node]),
    )
    return bool(list(Reuse(setup or Setup(), FACTS).at_rest(Run(started, users))))


def test_who_ran_last_is_in_the_cache_at_rest() -> None:
    assert [count for count in range(25) if not left(count)] == [22, 23, 24]
    assert [count for count in range(25) if not left(count, setup=Setup(page_size=4))] == [*range(16, 25)]
    assert left(0)
    assert not left(0, setup=Setup(radix=False))
    assert not left(0, setup=Setup(window=8))
    assert not left(0, reason="abort")


def test_what_is_dropped_behind_the_last_batch_is_not_missed() -> None:
    assert left(0, flush=5)
    assert not left(0, flush=6)
    assert left(0, pause=5)
    assert not left(0, pause=6)
