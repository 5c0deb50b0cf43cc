"""A scenario as a reader is shown it: what is not as by default, and nothing of it lost."""

from __future__ import annotations

import json
from dataclasses import asdict, replace

from hypothesis import given
from hypothesis import strategies as st

from specsim.choices.chooser import seeded
from specsim.engine.config import EngineConfig
from specsim.engine.request import Turn
from specsim.engine.workload import draw_scenario
from specsim.tiers.accounting.answers import _plain
from specsim.tiers.accounting.shown import request_lines, settings_line
from specsim.world.workload import turn_text


def test_settings_by_default_are_left_out() -> None:
    tree = "page_size=1, topk=1, num_steps=3, num_draft_tokens=4"
    assert settings_line(asdict(EngineConfig())) == f"{tree}, the others by default"
    config = asdict(replace(EngineConfig(), rows=2, graph_sizes=(4, 8)))
    assert settings_line(config) == f"{tree}, rows=2, graph_sizes=[4, 8], the others by default"


@given(st.integers(0, 5_000))
def test_every_setting_that_differs_and_every_request_is_there(number: int) -> None:
    scenario = draw_scenario(seeded(0, "shown", number))
    data = _plain(scenario)
    line = settings_line(data["config"])
    for name, value in asdict(scenario.config).items():
        if value != getattr(EngineConfig(), name):
            assert f"{name}={list(value) if isinstance(value, tuple) else value}" in line
    lines = dict(request_lines(data["workload"]))
    for turn in scenario.workload.turns:
        assert lines[turn.rid].startswith(f"prompt {len(turn.tokens)}, ")
        assert (f"session {turn.session}" in lines[turn.rid]) == bool(turn.session)
    assert lines == dict(request_lines(json.loads(json.dumps(data))["workload"]))  # as a replay file has it


def test_a_plain_request_is_a_few_words() -> None:
    workload = {"turns": [asdict(Turn("r0", (20, 21), 3))], "aborts_max": 0, "retractions_max": 2}
    assert list(request_lines(workload)) == [("r0", "prompt 2, max_new 3"), ("at most", "2 retractions")]


def test_one_token_is_not_tokens() -> None:
    turn = {"rid": "r0", "prompt": [20], "answer": 5, "at": 0, "session": "", "abort": -1, "stop": -1, "priority": 0}
    assert turn_text(turn) == "1 token for 5 at iteration 0"
