"""A stop string ends an answer with the token that completes it, however the tokens came."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from property_tests.support.watched_engine import watched
from specsim.choices.chooser import seeded
from specsim.engine.config import EngineConfig
from specsim.engine.features import FEATURES
from specsim.engine.model import EOS, STOP
from specsim.engine.request import Turn, make_request
from specsim.engine.rules.oracle import outputs_of
from specsim.engine.sampling_params import SamplingParams
from specsim.engine.stop_strings import stop_string_end, text_of
from specsim.engine.workload import Scenario, Workload, draw_scenario

tokens = st.lists(st.integers(0, 30), max_size=12)
strings = st.lists(st.text("abc", min_size=1, max_size=5), min_size=1, max_size=2).map(tuple)


def said(outputs: list[int]) -> str:
    return "".join(map(text_of, outputs))


@given(outputs=tokens, new_tokens=st.integers(0, 12), stop=strings)
def test_it_ends_with_the_first_new_token_that_completes_a_string(
    outputs: list[int], new_tokens: int, stop: tuple[str, ...]
) -> None:
    start = max(len(outputs) - new_tokens, 0)
    ends = [length for length in range(1, len(outputs) + 1) if any(each in said(outputs[:length]) for each in stop)]
    assume(not ends or ends[0] > start)  # an answer goes on only while there is none
    assert stop_string_end(outputs, len(outputs) - start, stop) == min(ends, default=None)


@given(outputs=tokens, cut=st.integers(0, 12), stop=strings)
def test_the_end_does_not_depend_on_where_runs_begin(outputs: list[int], cut: int, stop: tuple[str, ...]) -> None:
    whole = stop_string_end(outputs, len(outputs), stop)
    first = outputs[:cut]
    in_first = stop_string_end(first, len(first), stop)
    in_parts = in_first if in_first is not None else stop_string_end(outputs, len(outputs) - len(first), stop)
    assert in_parts == whole


def test_ends_of_the_model_read_as_nothing() -> None:
    assert text_of(EOS) == text_of(STOP) == ""
    assert {text_of(token) for token in range(3, 9)} >= {"a", "b", "ab", "ba"}


@pytest.mark.parametrize("disagree", range(4))
@pytest.mark.parametrize("sampling", [None, SamplingParams()])
def test_a_match_may_begin_in_one_run_and_end_inside_another(disagree: int, sampling: SamplingParams | None) -> None:
    answer = outputs_of(make_request(Turn("r0", (50, 51, 52), 20, sampling=sampling), []))
    overshot = Counter[bool]()
    for end in range(4, 12):
        turn = Turn("r0", (50, 51, 52), 20, stop=(said(answer[:end])[-5:],), sampling=sampling)
        scenario = Scenario(EngineConfig(), Workload((turn,)))
        engine = watched(scenario, seeded(disagree, "stop strings", end))
        assert engine.run().violations == ()
        (request,) = engine.requests.everybody
        visible = engine.visible()["r0"]
        assert visible == outputs_of(make_request(turn, []))
        assert turn.stop[0] in said(visible)
        assert turn.stop[0] not in said(visible[:-1])
        overshot[len(request.outputs) > len(visible)] += 1
    assert overshot[True]


def test_the_swarm_ends_answers_by_strings() -> None:
    turns = [turn for index in range(300) for turn in draw_scenario(seeded(3, "strings", index)).workload.turns]
    with_strings = [turn for turn in turns if turn.stop]
    assert len(turns) / 8 < len(with_strings) < len(turns) / 2
    of_one = [turn for turn in with_strings if not turn.session]
    ended = sum(len(outputs_of(make_request(turn, []))) < turn.max_new_tokens for turn in of_one)
    assert len(of_one) / 4 < ended < len(of_one)


def test_who_has_no_stop_strings_gets_turns_without_them() -> None:
    for index in range(50):
        scenario = draw_scenario(seeded(3, "strings", index), FEATURES - {"stop strings"})
        assert not any(turn.stop for turn in scenario.workload.turns)
