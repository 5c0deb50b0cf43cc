"""What is sent beside an answer, hidden states and logprobs of its prompt: what is right, and how it is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.known_releases import NEWEST, RELEASES
from specsim.engines.sglang.scheduler import attention
from specsim.engines.sglang.scheduler.outputs import _hidden, _logprobs
from specsim.findings.by_hand import Schedule
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree
from specsim.rules.answers import _first_wrong, _spans
from specsim.testing import schedule

LATEST = RELEASES[-1]
STATE = st.integers(0, 2**62 - 1)


@pytest.fixture
def written(
    release: Callable[[str], SourceTree], wheel_cache: Cache, tmp_path: Path
) -> Callable[[str, dict[str, Any]], Schedule]:
    def of(version: str, setup: dict[str, Any]) -> Schedule:
        release(version)
        given = {"worker": "release", "hidden_states": True, **setup}
        return schedule(f"sglang=={version}", out=tmp_path / "found", cache_dir=wheel_cache.folder, **given)

    return of


@given(st.lists(STATE, min_size=1, max_size=4))
def test_a_hidden_state_carries_its_hash_to_a_user(states: list[int]) -> None:
    sent = np.zeros((len(states), 16), np.float32)
    for row, state in zip(sent, states, strict=True):
        row[: len(attention.DIGITS)] = attention.digits_of(state)
    assert attention.hashes_of(np.array(json.loads(json.dumps(sent.tolist())))) == states


def test_what_nobody_has_written_is_a_hidden_state_of_no_text() -> None:
    for value in (np.nan, np.inf, -np.inf, -1.0, 1e30):
        assert 0 <= attention.hashes_of(np.full((1, 16), value, np.float32))[0] < 2**62


def test_hidden_states_are_read_as_releases_send_them() -> None:
    first, second, third = ([float(digit), 0.0, 0.0, 0.0, 9.0] for digit in (7, 8, 9))
    assert _hidden([[[first, second], third]]) == (7, 8, 9)  # those of a prefill are a list of their own
    assert _hidden([[first, second]]) == (7, 8)
    assert _hidden([third]) == (9,)  # the last one, where it is asked for alone
    assert _hidden([[[], third]]) == (9,)
    assert _hidden([[]]) == _hidden([None]) == _hidden([]) == ()


def test_the_first_token_of_a_prompt_has_no_logprob() -> None:
    message = SimpleNamespace(
        input_token_logprobs_val=[[None, -1.5]],
        input_token_logprobs_idx=[[20, 21]],
        input_top_logprobs_val=[[None, [-0.5]]],
        input_top_logprobs_idx=[[None, [22]]],
    )
    assert _logprobs(message, 0, "input") == [((-1, 20),), ((-1.5, 21), (-0.5, 22))]


@pytest.mark.parametrize(
    ("places", "first", "wrong"),
    [
        ([0, 1, 2, 3], 0, (4, "")),
        ([2, 3], 2, (4, "")),
        ([1, 2, 3], 2, (4, "")),  # what was cached may be sent, too
        ([2, 3], 1, (1, "missing")),
        ([], 1, (1, "missing")),
        ([0, 1, 3], 0, (2, "missing")),
        ([0, 1, 2], 0, (3, "missing")),
        ([0, 1, 1, 2, 3], 0, (2, "again")),
        ([0, -1, 2, 3], 0, (1, "another")),
        ([-1, 1, 2, 3], 0, (0, "another")),
        ([0, 1, 2, 3, 4], 0, (5, "behind-the-end")),
    ],
)
def test_the_first_hidden_state_that_is_wrong_is_named(places: list[int], first: int, wrong: tuple[int, str]) -> None:
    assert _first_wrong(places, first, 3) == wrong


def test_a_reader_is_told_which_hidden_states_came() -> None:
    assert _spans([0, 1, 2, -1, -1, 7, 3, 4]) == "8: of tokens 0 to 2, of another text, of token 7, of tokens 3 to 4"
    assert _spans([]) == "none"


CHAINS: dict[str, Any] = {}
GRAPHS = {"graphs": True, "chunk": 12, "slots": 112}
TREES = {"topk": 2, "draft_tokens": 6, "slots": 320, "page_size": 4}
ALONE = {"overlap": False}


@pytest.mark.parametrize(
    ("version", "setup"),
    [
        (NEWEST, CHAINS),
        *(
            pytest.param(version, setup, marks=pytest.mark.slow)
            for version in (RELEASES[0], LATEST)
            for setup in (CHAINS, GRAPHS, ALONE)
        ),
        pytest.param(LATEST, TREES, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_logprobs_of_a_prompt_are_right_in_chunks_behind_a_cached_prefix_and_after_a_retraction(
    written: Callable[[str, dict[str, Any]], Schedule], version: str, setup: dict[str, Any]
) -> None:
    incident = written(version, setup)
    incident.start(range(20, 56), 12, prompt_logprobs=3, logprobs=2)
    incident.start(range(20, 60), 4, at=8, prompt_logprobs=30)
    incident.start(5, 4, at=8, prompt_logprobs=0, logprobs=1)
    incident.retract(at=10)
    incident.check(only=["T6", "X1"])


@pytest.mark.slow
@pytest.mark.parametrize("setup", [CHAINS, GRAPHS, TREES, ALONE], ids=str)
def test_hidden_states_of_a_release_are_right_where_nothing_is_in_chunks_or_retracted(
    written: Callable[[str, dict[str, Any]], Schedule], setup: dict[str, Any]
) -> None:
    incident = written(LATEST, setup)
    for number in range(2):
        incident.start(6, 14 + number, hidden="all")
        incident.start(4, 9 + number, hidden="last")
        incident.start(3, 9)
    incident.check(only=["T6", "X1"])


def test_one_hidden_state_for_each_verification_is_too_few(
    written: Callable[[str, dict[str, Any]], Schedule],
) -> None:
    incident = written(NEWEST, CHAINS)
    incident.start(1, 4, hidden="all")
    with pytest.raises(AssertionError, match="scheduler:T6:hidden-states:missing:answer"):
        incident.check(only=["T6"])
