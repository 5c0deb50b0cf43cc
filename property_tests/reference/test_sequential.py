"""Decoding token by token: what a request must emit, when it ends and why, and with which probabilities."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from specsim.contracts.enumeration import Proposal, cdf, normalised, output_distribution, total_variation
from specsim.reference.grammar import Automaton
from specsim.reference.sequential import SamplingParams, draw, generate, next_token_law
from specsim.world.hash_model import prefix_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from torch import Tensor

    from specsim.contracts.enumeration import Distribution, Weights

EOS, STOP = 0, 1
INFINITY = float("inf")
V = 6
VOCABULARY = ("</s>", "<stop>", "a", "b", "ab", "ba")
seeds = st.integers(0, 2**32)
coin_rows = st.lists(st.floats(0, 1), min_size=24, max_size=24)


def weight(seed: int, prefix: Sequence[int], token: int) -> int:
    """1 to 5: how probable the toy model finds a token."""
    return 1 + prefix_of([seed, *prefix, token]) % 5


def toy(seed: int) -> Callable[[Sequence[int]], Tensor]:
    """A model whose distributions are small integers, normalised."""
    return lambda prefix: torch.tensor([weight(seed, prefix, t) for t in range(V)], dtype=torch.float64).log()


def text_of(tokens: Sequence[int]) -> str:
    return "".join(VOCABULARY[token] for token in tokens)


def scripted(*outputs: int) -> Callable[[Sequence[int]], Tensor]:
    """A model that says the outputs one after the other, and begins again at the end; the prompt is empty."""

    def next_logits(prefix: Sequence[int]) -> Tensor:
        return 9.0 * (torch.arange(V) == outputs[len(prefix) % len(outputs)])

    return next_logits


@st.composite
def params(draw: st.DrawFn) -> SamplingParams:
    """Parameters of every kind; half of the requests are greedy."""
    max_new_tokens = draw(st.integers(0, 12))
    return SamplingParams(
        eos_token_ids=(EOS,),
        stop_token_ids=draw(st.sampled_from([(), (STOP,)])),
        stop=draw(st.sampled_from([(), ("aa",), ("bb", "aba")])),
        max_new_tokens=max_new_tokens,
        min_new_tokens=draw(st.integers(0, min(4, max_new_tokens))),
        context_len=draw(st.none() | st.integers(2, 14)),
        ignore_eos=draw(st.booleans()),
        return_logprob=True,
        temperature=draw(st.sampled_from([0.0, 0.0, 1.0, 0.5])),
        top_k=draw(st.sampled_from([-1, 1, 3])),
        top_p=draw(st.sampled_from([1.0, 0.7])),
        min_p=draw(st.sampled_from([0.0, 0.3])),
        frequency_penalty=draw(st.sampled_from([0.0, 0.4, -0.4])),
        presence_penalty=draw(st.sampled_from([0.0, 0.3])),
        repetition_penalty=draw(st.sampled_from([1.0, 1.5])),
        logit_bias=draw(st.sampled_from([{}, {3: 1.0}, {EOS: -2.0}])),
    )


def run(seed: int, request: SamplingParams, coins: list[float], **more: Any) -> Any:
    return generate(toy(seed), [7, 8], request, coins=coins, detokenize=text_of, **more)


# What ends a request


@given(seed=seeds, request=params(), coins=coin_rows)
def test_one_more_token_of_room_changes_nothing_before_it(
    seed: int, request: SamplingParams, coins: list[float]
) -> None:
    short = run(seed, request, coins)
    longer = run(seed, replace(request, max_new_tokens=request.max_new_tokens + 1), coins)
    assert longer.tokens[: len(short.tokens)] == short.tokens
    assert longer.logprobs[: len(short.logprobs)] == short.logprobs
    if short.finish_reason == "stop":
        assert longer == short
    else:
        assert len(longer.tokens) <= len(short.tokens) + 1


@given(seed=seeds, request=params(), coins=coin_rows)
def test_a_request_ends_at_the_first_output_that_ends_it(
    seed: int, request: SamplingParams, coins: list[float]
) -> None:
    output = run(seed, request, coins)
    cap = min(request.max_new_tokens, (request.context_len or 99) - 2)
    ending = {*request.stop_token_ids, *(() if request.ignore_eos else (EOS,))}

    def stops(count: int) -> bool:
        text = text_of(output.tokens[:count])
        return output.tokens[count - 1] in ending or any(string in text for string in request.stop)

    count = len(output.tokens)
    assert not any(stops(n) for n in range(1, count))
    assert count <= cap
    if output.finish_reason == "length":
        assert count == cap
        assert output.matched is None
        assert output.text == text_of(output.tokens)
    elif isinstance(output.matched, int):
        assert output.matched == output.tokens[-1] in ending
        assert output.text == text_of(output.tokens[:-1])
    else:
        text = text_of(output.tokens)
        assert output.matched == next(string for string in request.stop if string in text)
        assert output.text == text[: text.index(output.matched)]


@given(seed=seeds, request=params(), coins=coin_rows)
def test_no_eos_and_no_stop_token_comes_before_min_new_tokens(
    seed: int, request: SamplingParams, coins: list[float]
) -> None:
    tokens = run(seed, request, coins).tokens
    assert not {EOS, *request.stop_token_ids} & {*tokens[: request.min_new_tokens]}


def test_a_stop_string_may_span_two_tokens() -> None:
    request = SamplingParams(temperature=0, stop=("bb",), max_new_tokens=9)
    output = generate(scripted(2, 4, 5, 2), [], request, detokenize=text_of)
    assert output[:3] == ((2, 4, 5), "stop", "bb")
    assert output.text == "aa"


def test_a_stop_within_the_budget_beats_the_cap_and_one_beyond_it_does_not() -> None:
    for end, request in (
        (EOS, SamplingParams(temperature=0, eos_token_ids=(EOS,))),
        (STOP, SamplingParams(temperature=0, stop_token_ids=(STOP,))),
    ):
        for cap in (3, 4, 5):
            output = generate(scripted(2, 3, 2, end), [], replace(request, max_new_tokens=cap))
            assert output[:3] == (((2, 3, 2), "length", None) if cap == 3 else ((2, 3, 2, end), "stop", end))


def test_the_first_reason_of_an_output_counts() -> None:
    grammar = Automaton({0: {3: 1}}, {1}, V)
    request = SamplingParams(temperature=0, max_new_tokens=1, stop_token_ids=(3,), stop=("a", "b"))
    without_string = replace(request, stop=())
    without_token = replace(without_string, stop_token_ids=())
    reasons = [
        generate(scripted(3), [], each, grammar=grammar, detokenize=text_of)[1:3]
        for each in (request, without_string, without_token, replace(without_token, max_new_tokens=2))
    ]
    assert reasons == [("stop", "b"), ("stop", 3), ("length", None), ("stop", None)]


def test_ignore_eos_is_about_eos_alone() -> None:
    request = SamplingParams(temperature=0, ignore_eos=True, eos_token_ids=(EOS,), stop_token_ids=(STOP,))
    assert generate(scripted(EOS, 2, STOP), [], request)[:3] == ((EOS, 2, STOP), "stop", STOP)


@given(prompt_len=st.integers(0, 8), room=st.integers(0, 8), budget=st.integers(0, 8))
def test_prompt_and_outputs_fill_the_context_and_no_more(prompt_len: int, room: int, budget: int) -> None:
    request = SamplingParams(temperature=0, max_new_tokens=budget, context_len=prompt_len + room)
    output = generate(scripted(2), [5] * prompt_len, request)
    assert output[:3] == ((2,) * min(room, budget), "length", None)


@given(seed=seeds, coins=coin_rows, start=st.sampled_from([(), (2,), (2, 5)]))
def test_outputs_match_the_grammar_and_its_end_ends_the_request(
    seed: int, coins: list[float], start: tuple[int, ...]
) -> None:
    grammar = Automaton({0: {2: 1, 3: 2}, 1: {4: 0, 5: 1, 3: 2}, 2: {}}, {2}, V)
    for token in start:
        grammar.accept(token)
    output = run(seed, SamplingParams(max_new_tokens=9), coins, grammar=grammar)
    reader = grammar.clone()
    for token in output.tokens:
        assert not reader.is_terminated()
        reader.accept(token)
    assert reader.is_terminated() or len(output.tokens) == 9
    assert output.finish_reason == ("length" if len(output.tokens) == 9 else "stop")
    grammar.rollback(len(start))  # it has read no more than that
    assert grammar.allowed().nonzero()[:, 0].tolist() == [2, 3]


def test_an_eos_that_ends_the_grammar_ends_the_request_though_eos_is_ignored() -> None:
    grammar = Automaton({0: {2: 0}}, {0}, V, (EOS,))
    request = SamplingParams(temperature=0, eos_token_ids=(EOS,), ignore_eos=True)
    assert generate(scripted(2, EOS), [], request, grammar=grammar)[:3] == ((2, EOS), "stop", None)


# The distribution of the next token


def exact_distribution(
    seed: int, outputs: tuple[int, ...], request: SamplingParams, grammar: Automaton | None
) -> Weights:
    """The distribution of the next output in fractions. Penalties and biases are whole multiples of log 2 and the
    temperature is 1 or 1/2, so that weights stay fractions.
    """
    weights = []
    for token in range(V):
        count = outputs.count(token)
        halvings = request.frequency_penalty * count + request.presence_penalty * (count > 0)
        doublings = round((request.logit_bias.get(token, 0) - halvings) / math.log(2))
        weights.append(
            (weight(seed, (7, 8, *outputs), token) * Fraction(2) ** doublings) ** round(1 / request.temperature)
        )
        if len(outputs) < request.min_new_tokens and token in (*request.eos_token_ids, *request.stop_token_ids):
            weights[-1] = Fraction(0)
    if grammar is not None:
        reader = grammar.clone()
        for token in outputs:
            reader.accept(token)
        weights = [w if ok else Fraction(0) for w, ok in zip(weights, reader.allowed().tolist(), strict=True)]
    dist = normalised(weights)
    if request.top_k != -1:
        pivot = sorted(dist, reverse=True)[request.top_k - 1]
        dist = normalised([p if p >= pivot else Fraction(0) for p in dist])
    if request.top_p < 1:
        total, pivot = Fraction(0), Fraction(0)
        for p in sorted(dist, reverse=True):
            if total < Fraction(request.top_p):
                total, pivot = total + p, p
        dist = normalised([p if p >= pivot else Fraction(0) for p in dist])
    return normalised([p if p >= Fraction(request.min_p) * max(dist) else Fraction(0) for p in dist])


LOG2 = math.log(2)
LAWS = {
    "plain": SamplingParams(),
    "temperature": SamplingParams(temperature=0.5),
    "top-k": SamplingParams(top_k=3),
    "top-p": SamplingParams(top_p=0.6137),
    "min-p": SamplingParams(min_p=0.377),
    "all three": SamplingParams(top_k=4, top_p=0.8137, min_p=0.377, temperature=0.5),
    "penalties": SamplingParams(frequency_penalty=2 * LOG2, presence_penalty=LOG2),
    "negative penalty": SamplingParams(frequency_penalty=-LOG2),
    "bias": SamplingParams(logit_bias={2: 2 * LOG2, 5: -LOG2}),
    "eos": SamplingParams(eos_token_ids=(EOS,), stop_token_ids=(STOP,), min_new_tokens=1),
    "everything": SamplingParams(
        eos_token_ids=(EOS,), min_new_tokens=2, frequency_penalty=LOG2, logit_bias={3: LOG2}, min_p=0.377
    ),
}


@pytest.mark.parametrize("name", LAWS)
@pytest.mark.parametrize("constrained", [False, True])
@pytest.mark.parametrize("seed", [0, 1])
def test_the_outputs_have_exactly_the_distribution_of_the_parameters(name: str, constrained: bool, seed: int) -> None:
    length = 2
    request = replace(LAWS[name], max_new_tokens=length)
    grammar = Automaton({0: {EOS: 0, 2: 1, 3: 0, 4: 1}, 1: {STOP: 0, 2: 1, 5: 0}}, {0, 1}, V) if constrained else None
    dist: Distribution = {}
    thresholds: list[set[Fraction]] = [set() for _ in range(length)]

    def expect(outputs: tuple[int, ...], probability: Fraction) -> None:
        ended = bool(outputs) and outputs[-1] in (*request.eos_token_ids, *request.stop_token_ids)
        if ended or len(outputs) == length:
            dist[outputs] = probability
            return
        following = exact_distribution(seed, outputs, request, grammar)
        thresholds[len(outputs)] |= {*cdf(following)}
        for token, share in enumerate(following):
            if share:
                expect((*outputs, token), probability * share)

    expect((), Fraction(1))
    proposal = Proposal(Fraction(1), None, tuple(tuple(cuts) for cuts in thresholds))

    def emitted(_: None, coins: Tensor) -> list[tuple[int, ...]]:
        return [generate(toy(seed), [7, 8], request, coins=row, grammar=grammar).tokens for row in coins.tolist()]

    assert total_variation(output_distribution(emitted, [proposal]), dist) == 0


@given(seed=seeds, request=params(), coins=coin_rows)
def test_every_output_has_a_probability_and_that_is_its_logprob(
    seed: int, request: SamplingParams, coins: list[float]
) -> None:
    output = run(seed, request, coins)
    everything = replace(request, top_k=-1, top_p=1.0, min_p=0.0, temperature=request.temperature or 1.0)
    for n, (token, logprob) in enumerate(zip(output.tokens, output.logprobs, strict=True)):
        logits, prefix = toy(seed)([7, 8, *output.tokens[:n]]), output.tokens[:n]
        assert next_token_law(logits, prefix, [7, 8], request)[token] > 0
        dist = next_token_law(logits, prefix, [7, 8], everything)
        assert math.isclose(logprob, float(dist[token].log()), rel_tol=1e-9, abs_tol=1e-12)


@given(logits=st.lists(st.sampled_from([-1.5, 0.0, 0.5, 2.0]), min_size=V, max_size=V))
def test_at_temperature_0_the_largest_logit_wins_and_of_equals_the_lowest_token(logits: list[float]) -> None:
    best = min(range(V), key=lambda token: (-logits[token], token))
    for dtype in (torch.float32, torch.float64):
        dist = next_token_law(torch.tensor(logits, dtype=dtype), [], [], SamplingParams(temperature=0))
        assert dist.dtype == dtype
        assert dist.tolist() == [float(token == best) for token in range(V)]


@given(logits=st.lists(st.floats(-3, 3), min_size=V, max_size=V), outputs=st.lists(st.integers(0, V - 1)))
def test_penalties_count_every_output_and_repetition_scales_what_they_leave(
    logits: list[float], outputs: list[int]
) -> None:
    request = SamplingParams(frequency_penalty=0.5, presence_penalty=0.25, repetition_penalty=1.5)
    expected = []
    for token, logit in enumerate(logits):
        less = logit - 0.5 * outputs.count(token) - 0.25
        penalised = less * 1.5 if less < 0 else less / 1.5
        expected.append(math.exp(penalised if token in outputs else logit))
    dist = next_token_law(torch.tensor(logits, dtype=torch.float64), outputs, [0, 1, 2], request)
    torch.testing.assert_close(dist, torch.tensor(expected, dtype=torch.float64) / sum(expected))


def test_all_tokens_that_tie_with_the_last_kept_one_are_kept() -> None:
    logits = torch.tensor([4.0, 2.0, 2.0, 2.0, 1.0, 1.0]).log()
    for request in (SamplingParams(top_k=2), SamplingParams(top_p=0.4), SamplingParams(min_p=0.5)):
        torch.testing.assert_close(
            next_token_law(logits, [], [], request), torch.tensor([0.4, 0.2, 0.2, 0.2, 0.0, 0.0])
        )


def test_a_bias_cannot_beat_the_mask_and_penalties_spread_what_is_left() -> None:
    request = SamplingParams(temperature=0, frequency_penalty=1.5, logit_bias={0: 100.0}, max_new_tokens=4)
    grammar = Automaton({0: {2: 0, 3: 0}}, {0}, V)
    logits = torch.arange(float(V))
    assert generate(lambda _: logits, [9], request, grammar=grammar).tokens == (3, 2, 3, 2)
    assert logits.tolist() == list(range(V))


def test_the_custom_processor_comes_last_and_can_bring_back_a_forbidden_token() -> None:
    seen = []

    def processor(logits: Tensor, prompt: Sequence[int], outputs: Sequence[int]) -> Tensor:
        seen.append((list(prompt), list(outputs), (logits > -INFINITY).nonzero()[:, 0].tolist()))
        return logits.index_fill(0, torch.tensor([1]), 1000.0) if outputs else logits

    request = SamplingParams(temperature=0, custom_logit_processor=processor, max_new_tokens=2)
    grammar = Automaton({0: {2: 1}, 1: {1: 1, 3: 1}}, {1}, V)
    logits = torch.arange(float(V))
    assert generate(lambda _: logits, [9], request, grammar=grammar).tokens == (2, 1)
    assert seen == [([9], [], [2]), ([9], [2], [1, 3])]
    dist = next_token_law(logits, [2], [9], request, torch.arange(V) == 3)
    assert dist.tolist() == [float(token == 1) for token in range(V)]


@given(
    weights=st.lists(st.integers(0, 2), min_size=1, max_size=8).filter(any),
    coin=st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]) | st.floats(0, 1),
)
@example(weights=[1, 1, 0], coin=1.0)
def test_a_uniform_draw_draws_the_smallest_token_whose_cumulative_weight_exceeds_it(
    weights: list[int], coin: float
) -> None:
    token = draw(torch.tensor(weights, dtype=torch.float64), coin)
    assert weights[token] > 0
    assert sum(weights[:token]) <= coin * sum(weights)
    if coin < 1:
        assert sum(weights[: token + 1]) > coin * sum(weights)
    else:
        assert not any(weights[token + 1 :])
