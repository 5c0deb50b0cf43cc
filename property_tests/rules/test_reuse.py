"""What the prefix cache has is used, and what was computed last is there."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.sglang.scheduler.setups import FACTS
from specsim.rules.reuse import Reuse
from specsim.world.rule import Run
from specsim.world.scheduler import (
    Answer,
    Chunk,
    Launch,
    Pause,
    Pools,
    Seen,
    Setup,
    TreeNode,
    Turn,
    held_in_window,
    held_of,
)
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


def test_of_a_window_a_cache_needs_what_the_first_token_behind_attends_to() -> None:
    tokens = (1, 2, 3, 4, 5, 6, 7, 8)
    first, third, last = TreeNode((1, 2), (4, 5)), TreeNode((1, 2, 3, 4, 5), (6, 7)), TreeNode(tokens, (8,))
    nodes = [last, first, third]  # of positions 0, 1, 3, 4 and 7
    assert [held_in_window(nodes, tokens, reach, 2) for reach in range(9)] == [0, 1, 2, 2, 2, 5, 5, 5, 5]
    assert [held_in_window(nodes, tokens, 8, need) for need in range(5)] == [8, 8, 5, 2, 2]
    assert held_in_window(nodes, (1, 2, 3, 9), 4, 2) == 2
    assert held_in_window([third], tokens, 8, 3) == 0
    assert held_in_window([], tokens, 8, 1) == 0


def begins(start: int, held: int, *, page_size: int = 1, turn: Turn = TURN) -> list[str]:
    """The parts that are wrong where the prompt of 20 tokens begins so."""
    seen = Seen(launches=[Launch(1, "extend", ("b", "a"), (Chunk(0, 9, 9), Chunk(start, 5, held)))])
    users: Any = SimpleNamespace(workload=Workload((turn,)), aborted={})
    rule = Reuse(Setup(page_size=page_size), FACTS)
    return [one.part for one in rule.after(Run(SimpleNamespace(seen=seen), users))]


@pytest.mark.parametrize(
    ("held", "page_size", "least"),
    [(20, 1, 18), (12, 1, 11), (1, 1, 0), (-1, 1, 0), (20, 4, 12), (12, 4, 8), (7, 4, 0)],
)
def test_a_prompt_begins_behind_what_the_cache_has_of_it(held: int, page_size: int, least: int) -> None:
    assert {start for start in range(20) if not begins(start, held, page_size=page_size)} == {*range(least, 20)}


def test_sessions_and_prompts_with_logprobs_are_not_looked_at() -> None:
    assert begins(0, 20) == ["prompt"]
    assert begins(0, 20, turn=replace(TURN, session="s")) == []
    assert begins(0, 20, turn=replace(TURN, prompt_logprobs=0)) == []


def left(
    in_cache: int,
    *,
    setup: Setup | None = None,
    in_window: range | None = None,
    reason: str = "length",
    flush: int = -1,
    pause: int = -1,
) -> bool:
    """Whether something is wrong where so many tokens of the last request are in the cache at rest, iteration 9."""
    tokens = (*TURN.prompt, *FOUR)
    node = TreeNode(tokens[:in_cache], tuple(range(in_cache)))
    windows = None if in_window is None else [TreeNode(tokens[: in_window.stop], tuple(in_window))]
    flushes = (flush,) if flush >= 0 else ()
    paused = [PauseSpan(Pause(1, 1, retracts=True), 1, pause)] if pause >= 0 else []
    users: Any = SimpleNamespace(
        workload=Workload((TURN,), flushes), sent_at={"a": 0}, aborted={}, paused=paused, iterations=9
    )
    started: Any = SimpleNamespace(
        seen=Seen(launches=[Launch(3, "extend", ("a",)), Launch(6, "decode", ("a",))]),
        answers=lambda: iter([Answer("a", FOUR, reason)]),
        pools=lambda: Pools(99, 99 - in_cache, in_cache, 4, 4, nodes=[node], window_nodes=windows),
    )
    return bool(list(Reuse(setup or Setup(), FACTS).at_rest(Run(started, users))))


def test_who_ran_last_is_in_the_cache_at_rest() -> None:
    assert [count for count in range(25) if not left(count)] == [22, 23, 24]
    assert [count for count in range(25) if not left(count, setup=Setup(page_size=4))] == [*range(16, 25)]
    assert left(0)
    assert not left(0, setup=Setup(radix=False))
    assert not left(0, reason="abort")


def test_of_who_ran_last_the_window_is_there_too() -> None:
    windowed = Setup(window=8)
    assert not left(0, setup=windowed)  # nothing says what is cached of the window
    assert not left(24, setup=windowed, in_window=range(15, 22))
    assert left(24, setup=windowed, in_window=range(16, 22))
    assert left(24, setup=windowed, in_window=range(15, 21))
    assert left(21, setup=windowed, in_window=range(24))


def test_what_is_dropped_behind_the_last_batch_is_not_missed() -> None:
    assert left(0, flush=3)
    assert not left(0, flush=4)  # it may reach the engine later
    assert left(0, pause=3)
    assert not left(0, pause=4)
