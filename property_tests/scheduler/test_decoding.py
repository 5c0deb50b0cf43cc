"""Sequential decoding of requests whose logits are changed: by penalties, by a bias, by a grammar."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from specsim.engines.sglang.scheduler import decoding
from specsim.engines.sglang.scheduler.decoding import BIAS, PENALTY, Wanted, decoded
from specsim.rules.answers import alike
from specsim.rules.sampling import is_right as is_as_said
from specsim.world.hash_model import VOCABULARY, Prefixes, likely, prefix_of
from specsim.world.hash_model import decoded as plain
from specsim.world.scheduler import LogprobRow

torch = pytest.importorskip("torch")
registry = pytest.importorskip("specsim.contracts.registry")
worker = pytest.importorskip("specsim.engines.sglang.scheduler.worker")
grammar = pytest.importorskip("specsim.engines.sglang.scheduler.grammar")

PROMPT, COUNT = [20, 31, 44], 60
PENALTIES = ("frequency_penalty", "presence_penalty", "repetition_penalty")
NEUTRAL = {"frequency_penalty": 0.0, "presence_penalty": 0.0, "repetition_penalty": 1.0}
EXACT = 0


def by_the_reference(penalty: str, bias: int) -> list[int]:
    """The same tokens by the reference's operation, one node at a time."""
    tokens: list[int] = []
    values = {**NEUTRAL, penalty: float(PENALTY)}
    while len(tokens) < COUNT:
        logits = torch.from_numpy(decoding.logits_of(prefix_of([*PROMPT, *tokens]))).reshape(1, -1).clone()
        counts = torch.bincount(torch.tensor(tokens, dtype=torch.int64), minlength=VOCABULARY)
        biases = torch.zeros(1, VOCABULARY)
        biases[0, list(decoding.biased(bias))] = float(BIAS)
        registry.OPS["apply_penalties"].reference(
            logits,
            counts.to(torch.int32).reshape(1, -1),
            torch.tensor([len(tokens)], dtype=torch.int32),
            torch.tensor([[tokens[-1] if tokens else 0]]),
            torch.ones(1, 1, 1, dtype=torch.bool),
            *(torch.tensor([values[name]], dtype=torch.float32) for name in PENALTIES),
            torch.zeros(1, dtype=torch.int32),
            torch.full((1, 1), VOCABULARY - 1),
            biases,
            EXACT,
        )
        tokens.append(int(logits.argmax()))
    return tokens


@pytest.mark.parametrize("penalty", PENALTIES)
@pytest.mark.parametrize("bias", [0, 3])
def test_penalties_and_a_bias_give_the_tokens_of_the_reference(penalty: str, bias: int) -> None:
    tokens = decoded(PROMPT, COUNT, Wanted(penalty, bias))
    assert tokens == by_the_reference(penalty, bias)
    assert tokens != plain(PROMPT, COUNT)


@pytest.mark.parametrize("bias", [2, 3, 4])
def test_a_token_of_the_bias_is_never_said_and_the_next_likely_one_is(bias: int) -> None:
    tokens = decoded(PROMPT, COUNT, Wanted(bias=bias))
    for at, token in enumerate(tokens):
        first, second = likely(prefix_of([*PROMPT, *tokens[:at]]), 2)
        assert token == (second if first % bias == 0 else first)


@pytest.mark.parametrize("rank", [0, 1, 2])
def test_a_grammar_decides_every_token(rank: int) -> None:
    text = tuple(plain(PROMPT, 9, rank))
    assert decoded(PROMPT, 9, Wanted(grammar=text)) == list(text)


def test_what_was_said_is_taken_where_penalties_that_lag_behind_allow_it() -> None:
    wanted = Wanted("presence_penalty")
    exact = decoded(PROMPT, COUNT, wanted)
    at = next(i for i in range(COUNT) if likely(prefix_of([*PROMPT, *exact[:i]]), 1) != [exact[i]])
    lagging = (*exact[:at], likely(prefix_of([*PROMPT, *exact[:at]]), 1)[0])
    assert decoded(PROMPT, at + 1, wanted, lagging) == list(lagging)
    assert decoded(PROMPT, at + 1, wanted) == exact[: at + 1]


def test_what_no_penalty_explains_is_not_taken() -> None:
    first, second, third = likely(prefix_of(PROMPT), 3)
    assert decoded(PROMPT, 1, Wanted("presence_penalty"), (second,)) == [first]
    assert decoded([*PROMPT[:2], PROMPT[2]], 1, Wanted(), (third,)) == [first]


def test_the_last_token_of_the_prompt_may_be_penalized_too() -> None:
    prompts = ([one, token] for one in range(10, VOCABULARY) for token in range(10, VOCABULARY))
    prompt = next(prompt for prompt in prompts if likely(prefix_of(prompt), 1) == prompt[-1:])
    second = likely(prefix_of(prompt), 2)[1]
    assert decoded(prompt, 1, Wanted("frequency_penalty"), (second,)) == [second]


@pytest.mark.parametrize("wanted", [Wanted(), Wanted(bias=2), Wanted("frequency_penalty")])
def test_logprobs_are_those_of_the_changed_logits(wanted: Wanted) -> None:
    tokens = decoded(PROMPT, 20, wanted)
    for at, row in enumerate(decoding.logprobs(PROMPT, tokens, wanted, 2)):
        logits = decoding.changed(decoding.logits_of(prefix_of([*PROMPT, *tokens[:at]])), wanted, tokens[:at])
        expected = torch.from_numpy(logits).log_softmax(-1)
        assert [token for _logprob, token in row[:2]] == [tokens[at], tokens[at]]
        assert all(abs(expected[token] - logprob) < 1e-6 for logprob, token in row)


def test_no_two_of_the_most_likely_tokens_are_ever_equal() -> None:
    for penalty in PENALTIES:
        tokens = decoded(PROMPT, COUNT, Wanted(penalty))
        for at in range(COUNT):
            logits = decoding.logits_of(prefix_of([*PROMPT, *tokens[:at]]))
            first, second = np.sort(decoding.changed(logits, Wanted(penalty), tokens[:at]))[-1:-3:-1]
            assert first - second >= 0.125


def test_a_mask_of_a_grammar_allows_its_next_token_alone() -> None:
    for token in (0, 31, 32, 63, 95, 127):
        one = grammar.FakeGrammar(None, [token, 5])
        mask = one.allocate_vocab_mask(VOCABULARY, 3, "cpu")
        one.fill_vocab_mask(mask, 1)
        logits = torch.zeros(3, VOCABULARY)
        one.apply_vocab_mask(logits, mask)
        assert logits[1].isfinite().nonzero().flatten().tolist() == [token]
        assert logits[[0, 2]].isfinite().all()


def test_a_grammar_takes_back_what_it_has_read() -> None:
    one = grammar.FakeGrammar(None, [7, 5])
    one.accept_token(7)
    one.accept_token(5)
    with pytest.raises(ValueError, match="has ended"):
        one.fill_vocab_mask(one.allocate_vocab_mask(VOCABULARY, 1, "cpu"), 0)
    one.rollback(1)
    one.accept_token(5)
    assert one.is_terminated()


def test_prefixes_follow_what_was_said_and_the_model_behind_it() -> None:
    prefixes = Prefixes(PROMPT)
    other = likely(prefix_of(PROMPT), 2)[1]
    prefixes.of(10)
    prefixes.say(3, [other])
    assert prefixes.count == 4
    assert prefixes.of(4) == prefix_of([*PROMPT, other])
    assert prefixes.of(6) == prefix_of([*PROMPT, other, *plain([*PROMPT, other], 2)])


def seat(**wanted: float) -> object:
    parameters = SimpleNamespace(**{**NEUTRAL, **wanted})
    request = SimpleNamespace(rid="r", origin_input_ids=[1, 2], output_ids=[7, 8], sampling_params=parameters)
    made = worker.Seat(request, False, None)
    fed: dict[str, int] = {}
    worker.count_feed(made, fed)
    worker.count_feed(made, fed)
    return made


@pytest.mark.parametrize(
    ("wanted", "added", "scaled", "is_right"),
    [
        ({}, {}, {}, True),
        ({}, {7: -1.5}, {}, False),
        ({"frequency_penalty": 1.5}, {2: -1.5, 8: -1.5}, {}, True),
        ({"frequency_penalty": 1.5}, {8: -3.0}, {}, True),
        ({"frequency_penalty": 1.5}, {8: -1.5}, {}, False),
        ({"frequency_penalty": 1.5}, {8: -1.5, 9: -1.5}, {}, False),
        ({"presence_penalty": 1.5}, {8: -1.5}, {}, True),
        ({"presence_penalty": 1.5}, {}, {}, False),
        ({"repetition_penalty": 1.5}, {}, {8: 1.5, 2: 1.5}, True),
        ({"repetition_penalty": 1.5}, {8: -1.0}, {}, False),
    ],
    ids=str,
)
def test_penalties_are_of_own_tokens_one_for_each_verification(
    wanted: dict[str, float], added: dict[int, float], scaled: dict[int, float], is_right: bool
) -> None:
    assert is_as_said(worker.penalized(seat(**wanted), added, scaled)) == is_right


@pytest.mark.parametrize(
    ("actual", "is_alike"),
    [
        (((0.0, 96), (0.0, 96), (-3.4e38, 0)), True),
        (((0.0, 96), (0.0, 96), (-3.4e38, 5)), True),
        (((0.0, 96), (0.0, 96), (-20.0, 0)), False),
        (((0.0, 96), (0.0, 95), (-3.4e38, 0)), False),
        (((0.0, 96), (0.0, 96)), False),
    ],
    ids=str,
)
def test_of_tokens_that_a_mask_forbids_any_may_be_the_next_likely_one(actual: LogprobRow, is_alike: bool) -> None:
    assert alike(((0.0, 96), (0.0, 96), (-np.inf, 0)), actual) == is_alike
