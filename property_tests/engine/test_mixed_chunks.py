"""A mixed chunk: a part of a prefill and the decode rows of everybody who runs, in one launch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.watched_engine import Watched
from specsim.choices.chooser import replayed, seeded
from specsim.engine.config import EngineConfig, require_runnable
from specsim.engine.launch import Launch
from specsim.engine.mixed_chunks import cache_locations
from specsim.engine.request import Turn, make_request
from specsim.engine.rules.checked_engine import checked_parts
from specsim.engine.rules.oracle import outputs_of
from specsim.engine.workload import Scenario, Workload, draw_scenario
from specsim.errors import UsageError

slots = st.lists(st.integers(1, 99), max_size=5)
LONG = tuple(range(10, 30))


class Mixing(Watched):
    """Keeps its launches."""

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self.launched: list[Launch] = []
        launch = self.launches.device.launch

        def keeping(launched: Launch) -> None:
            self.launched.append(launched)
            launch(launched)

        self.launches.device.launch = keeping  # type: ignore[method-assign, assignment]


def played(*, overlap: bool = True, pool_slots: int = 256, mixed_chunk: bool = True, chooser: object = None) -> Mixing:
    """One request runs, and another with a long prompt comes."""
    config = EngineConfig(context_len=25, chunk_size=4, mixed_chunk=mixed_chunk, overlap=overlap, pool_slots=pool_slots)
    turns = (Turn("r0", (3, 4), 20), Turn("r1", LONG, 5))
    scenario = Scenario(config, Workload(turns))
    chosen: Any = chooser or replayed((0, 1, 0, 0, 1))
    engine = Mixing(scenario, chosen, *checked_parts(scenario))
    assert engine.run().violations == ()
    return engine


@pytest.mark.parametrize("overlap", [True, False])
def test_who_runs_gains_tokens_while_a_long_prompt_is_prefilled(overlap: bool) -> None:
    engine = played(overlap=overlap)
    mixed = [launch for launch in engine.launched if launch.beside is not None]
    assert len(mixed) >= 3
    assert {row.request.rid for launch in mixed for row in launch.rows} == {"r1"}
    for launch in mixed:
        assert launch.beside is not None
        assert [row.request.rid for row in launch.beside.rows] == ["r0"]
        assert len(launch.beside.run(0)) >= 1


@given(seed=st.integers(0, 50))
def test_outputs_are_those_of_one_token_after_the_other(seed: int) -> None:
    visible = played(chooser=seeded(seed, "mixed")).visible()
    for turn in (Turn("r0", (3, 4), 20), Turn("r1", LONG, 5)):
        assert visible[turn.rid] == outputs_of(make_request(turn, []))


def test_without_memory_for_another_step_the_prefill_goes_alone() -> None:
    wide, tight = (sum(launch.beside is not None for launch in played(pool_slots=size).launched) for size in (256, 40))
    assert 0 < tight < wide


def test_a_launch_mixes_only_where_the_configuration_says_so() -> None:
    assert all(launch.beside is None for launch in played(mixed_chunk=False).launched)


@given(extends=st.lists(slots, max_size=4), trees=st.lists(slots, max_size=4))
def test_every_tree_has_its_own_cache_locations(extends: list[list[int]], trees: list[list[int]]) -> None:
    assert cache_locations(extends, trees) == trees


def test_mixing_needs_chunks() -> None:
    with pytest.raises(UsageError, match="no chunks to mix with"):
        require_runnable(EngineConfig(mixed_chunk=True))


def test_the_swarm_mixes_chunks_in_some_schedules() -> None:
    drawn = [draw_scenario(seeded(1, "mixed", index)).config for index in range(1000)]
    assert 50 < sum(config.mixed_chunk for config in drawn) < 250
