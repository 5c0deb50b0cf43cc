"""Features that most schedules run without: what they promise, and that the default swarm draws them."""

from __future__ import annotations

from collections import Counter
from functools import cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.watched_engine import Watched, fractional, fractions, watched
from specsim.choices.chooser import replayed, seeded
from specsim.engine.config import EngineConfig, require_runnable
from specsim.engine.draft import expected_tags, rotate_input_ids
from specsim.engine.features import DEVICE_FEATURES, FEATURES
from specsim.engine.grammar import SAMPLED_TOKENS, Automaton, Matcher
from specsim.engine.graph import GraphBuffers
from specsim.engine.lifecycle import State
from specsim.engine.model import EOS
from specsim.engine.request import Turn, make_request
from specsim.engine.rules.oracle import outputs_of
from specsim.engine.sampling import bincount, draw_token, score_of
from specsim.engine.sampling_params import SamplingParams
from specsim.engine.workload import Scenario, Workload, draw_scenario
from specsim.errors import UsageError

SCHEDULES = 1000
A, B, C, *_ = SAMPLED_TOKENS


def turn(rid: str = "r0", max_new_tokens: int = 12, *, return_logprob: bool = False, **params: object) -> Turn:
    sampling = SamplingParams(**params)  # type: ignore[arg-type]
    return Turn(rid, (50, 51, 52), max_new_tokens, sampling=sampling, return_logprob=return_logprob)


def played(config: EngineConfig, *turns: Turn, tape: tuple[int, ...] = (), retractions: int = 0) -> Watched:
    engine = watched(Scenario(config, Workload(turns, 0, retractions)), replayed(tape))
    assert engine.run().violations == ()
    return engine


def oracle(one: Turn) -> list[int]:
    return outputs_of(make_request(one, []))


CONFIG = EngineConfig()


@cache
def swarm() -> tuple[tuple[Scenario, Watched], ...]:
    """Schedules of the default swarm that have features, run."""
    found = []
    for index in range(SCHEDULES):
        chooser = seeded(2, "features", index)
        scenario = draw_scenario(chooser)
        engine = watched(scenario, chooser)
        assert engine.run().violations == ()
        found.append((scenario, engine))
    return tuple(found)


# The swarm draws them


@pytest.mark.slow
def test_every_feature_is_on_in_some_schedules_and_off_in_most() -> None:
    on: Counter[str] = Counter()
    for scenario, _ in swarm():
        config, laws = scenario.config, [t.sampling for t in scenario.workload.turns if t.sampling is not None]
        on["draft pools"] += config.draft_layers > 0
        on["several draft layers"] += config.draft_layers > 1
        on["graph padding"] += bool(config.graph_sizes)
        on["idle batches"] += config.idle_batches
        on["streams"] += config.streams
        on["relaxed penalties"] += config.relaxed_penalties
        on["sampling"] += any(law.temperature for law in laws)
        on["penalties"] += any(law.is_penalized for law in laws)
        on["grammar"] += any(law.grammar is not None for law in laws)
        on["logprobs"] += any(t.return_logprob for t in scenario.workload.turns)
    assert on.keys() >= DEVICE_FEATURES
    assert all(SCHEDULES // 100 < count < SCHEDULES // 3 for count in on.values()), on
    assert on["streams"] > SCHEDULES // 6


@given(raw=fractions, supported=st.sets(st.sampled_from(sorted(FEATURES))).map(frozenset))
def test_what_is_not_supported_is_left_out_and_the_choices_stay(raw: bytes, supported: frozenset[str]) -> None:
    all_of, some = fractional(raw), fractional(raw)
    everything, scenario = draw_scenario(all_of), draw_scenario(some, supported)
    assert all_of.tape == some.tape
    config, laws = scenario.config, [t.sampling for t in scenario.workload.turns if t.sampling is not None]
    assert "draft pools" in supported or not config.draft_layers
    assert "graph padding" in supported or not config.graph_sizes
    assert "idle batches" in supported or not config.idle_batches
    assert "sampling" in supported or not any(law.temperature for law in laws)
    assert "penalties" in supported or not any(law.is_penalized for law in laws)
    assert "grammar" in supported or not any(law.grammar for law in laws)
    assert "logprobs" in supported or not any(t.return_logprob for t in scenario.workload.turns)
    assert "paged trees" in supported or config.page_size == 1 or config.topk == 1
    assert "radix cache" in supported or not config.radix
    assert "chunked prefill" in supported or not config.chunk_size
    assert "sliding window" in supported or not config.window
    assert "streams" in supported or not config.streams
    assert "adaptive steps" in supported or not config.adaptive
    require_runnable(config)
    if supported == FEATURES:
        assert scenario == everything


def test_a_schedule_without_features_is_the_one_that_has_them_left_out() -> None:
    plain = draw_scenario(replayed(()))
    assert plain.config == EngineConfig(
        context_len=plain.config.context_len, rows=1, pool_slots=plain.config.pool_slots
    )
    assert plain.workload.turns[0].sampling is None


# Drafting


def test_layers_see_the_token_that_many_positions_on_and_then_drafts() -> None:
    one, two, three = expected_tags(3, [100, 101], [7, 8])
    assert expected_tags(1, [100, 101], [7, 8]) == [one]
    assert len({*one, *two, *three}) == 6
    assert two[0] == expected_tags(2, [100, 999], [0, 8])[1][0]  # of the token two on


@given(rows=st.lists(st.lists(st.integers(3, 9), min_size=1, max_size=4), min_size=1, max_size=3))
def test_rotation_drops_the_first_token_of_each_request_and_appends_its_draft(rows: list[list[int]]) -> None:
    flat = [token for row in rows for token in row + [0] * (4 - len(row))]
    rotated = rotate_input_ids(flat, [len(row) for row in rows], 4, [90 + b for b in range(len(rows))])
    for b, row in enumerate(rows):
        assert rotated[b * 4 :][:4] == [*row[1:], 90 + b] + [0] * (4 - len(row))


def test_drafters_of_several_layers_draft_chains() -> None:
    with pytest.raises(UsageError, match="several layers draft chains"):
        require_runnable(EngineConfig(topk=2, num_draft_tokens=4, draft_layers=2))


# Padding


def test_a_batch_is_padded_to_the_next_captured_size_with_stale_rows_that_point_to_slot_0() -> None:
    graph = GraphBuffers((2, 4), 2)
    graph.load([[1, 2], [3, 4], [5, 6]], [[-1, 0]] * 3, [[7, 8]] * 3, [[10, 11], [12, 13], [14, 15]])
    candidates, parents, targets, out_cache_loc = [[1, 2]], [[-1, 0]], [[7, 8]], [[20, 21]]
    assert graph.load(candidates, parents, targets, out_cache_loc) == 2
    assert candidates == [[1, 2], [3, 4]]
    assert out_cache_loc == [[20, 21], [0, 0]]


def test_a_batch_larger_than_every_graph_runs_without_one() -> None:
    graph = GraphBuffers((2,), 2)
    candidates = [[1, 2], [3, 4], [5, 6]]
    assert graph.load(candidates, [[-1, 0]] * 3, [[7, 8]] * 3, [[1, 2]] * 3) == 3
    assert len(candidates) == 3


# Laws


@given(fingerprint=st.integers(0, 2**64 - 1), temperature=st.sampled_from([1, 4]), repeated=st.integers(0, 3))
def test_uniform_draws_draw_each_token_as_often_as_its_weight_says(
    fingerprint: int, temperature: int, repeated: int
) -> None:
    params = SamplingParams(temperature=temperature, frequency_penalty=2)
    counts = {A: repeated}
    drawn = Counter(draw_token(fingerprint, coin << 54, params, counts, None) for coin in range(1 << 10))
    weights = {token: 2.0 ** (score_of(fingerprint, token, params, counts) // temperature) for token in SAMPLED_TOKENS}
    for token, weight in weights.items():
        assert drawn[token] / 1024 == pytest.approx(weight / sum(weights.values()), abs=2 / 1024)


def test_outputs_do_not_depend_on_batch_tree_or_schedule() -> None:
    one = turn(temperature=4, seed=3, frequency_penalty=2, presence_penalty=5)
    others = [turn(f"r{i}", temperature=1, seed=i, presence_penalty=5) for i in range(1, 4)]
    alone = played(CONFIG, one).visible()["r0"]
    assert alone == oracle(one)
    tree = EngineConfig(topk=2, num_draft_tokens=6, overlap=False)
    for number in range(20):
        numbers = seeded(number, "schedules of one request")
        tape = tuple(numbers.choose(4, "") for _ in range(200))
        assert played(CONFIG, *others, one, tape=tape, retractions=2).visible()["r0"] == alone
        assert played(tree, one, *others, tape=tape).visible()["r0"] == alone


def test_seeds_and_temperatures_make_other_outputs() -> None:
    turns = [turn(temperature=4, seed=seed) for seed in range(4)] + [turn()]
    assert len({tuple(oracle(one)) for one in turns}) == len(turns)


def test_a_penalized_token_is_drawn_less_often() -> None:
    free, penalized = oracle(turn(max_new_tokens=40)), oracle(turn(max_new_tokens=40, frequency_penalty=7))
    assert max(bincount(penalized).values()) < max(bincount(free).values())


def test_no_end_token_comes_before_min_new_tokens() -> None:
    for minimum in range(6):
        one = Turn("r0", (50,), 8, {3: EOS}, sampling=SamplingParams(min_new_tokens=minimum))
        outputs = played(CONFIG, one).visible()["r0"]
        assert len(outputs) == (4 if minimum <= 3 else 8)


def test_the_relaxed_distribution_depends_on_the_schedule_and_the_exact_one_does_not() -> None:
    one = turn(max_new_tokens=30, frequency_penalty=7)
    relaxed = EngineConfig(relaxed_penalties=True, pool_slots=512)
    exact = EngineConfig(pool_slots=512)
    tapes = [(0, 0, 0, 0, *[disagree] * 20) for disagree in range(4)]
    assert len({tuple(played(relaxed, one, tape=tape).visible()["r0"]) for tape in tapes}) > 1
    assert len({tuple(played(exact, one, tape=tape).visible()["r0"]) for tape in tapes}) == 1


# Grammars


@pytest.mark.parametrize("ends_by_eos", [False, True])
def test_a_grammar_ends_its_request_in_the_result_that_ends_it(ends_by_eos: bool) -> None:
    automaton = Automaton({0: {A: 1, B: 1}, 1: {B: 2, C: 2}}, (2,), ends_by_eos)
    engine = played(CONFIG, turn(temperature=4, grammar=automaton))
    (request,) = engine.requests.everybody
    visible = engine.visible()["r0"]
    assert len(visible) == 2 + ends_by_eos
    assert visible[0] in (A, B)
    assert visible[1] in (B, C)
    assert request.outputs[: len(visible)] == visible


@pytest.mark.slow
def test_visible_outputs_of_the_swarm_are_read_by_their_grammars() -> None:
    read = ended = 0
    for _, engine in swarm():
        for request in engine.requests.everybody:
            law = request.turn.sampling
            if law is None or law.grammar is None or request.abort_wanted or request.state is not State.FINISHED:
                continue
            matcher = Matcher(law.grammar)
            visible = engine.visible()[request.rid]
            matcher.read(visible)
            assert matcher.refused is None
            assert len(matcher.states) - 1 == len(visible)
            read += 1
            ended += matcher.is_terminated()
    assert read > 50
    assert 10 < ended < read


# Logprobs


def test_every_output_has_a_logprob_and_a_hidden_state() -> None:
    engine = played(CONFIG, turn("r0", return_logprob=True), turn("r1"), turn("r2", 3, return_logprob=True))
    for request in engine.requests.everybody:
        count = len(request.outputs) if request.turn.return_logprob else 0
        assert (len(request.logprobs), len(request.hidden_states)) == (count, count)


def test_logprobs_do_not_depend_on_the_batch() -> None:
    one = turn("r0", return_logprob=True)
    (alone,) = played(CONFIG, one).requests.everybody
    together = next(r for r in played(CONFIG, turn("r1"), one).requests.everybody if r.rid == "r0")
    assert together.logprobs[: one.max_new_tokens] == alone.logprobs[: one.max_new_tokens]
