"""The reference engine says what decoding token by token says, and each page of KV has one owner at every step."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from specsim.engines.reference import HashModel
from specsim.reference.engine import Config, Device, Engine, Request, State
from specsim.reference.sequential import SamplingParams, generate
from specsim.world.hash_model import decoded, prefix_of

CONFIGS = (
    Config(),
    Config(page_size=4, slots=96),
    Config(slots=64, reserve=0.1),
    Config(topk=2, num_draft_tokens=6, slots=96, reserve=0.1),
    Config(page_size=4, topk=2, num_draft_tokens=6, slots=160, reserve=0.1),
    Config(overlap=False, slots=64, reserve=0.1),
    Config(caches=False, slots=64, reserve=0.1),
    Config(chunk=5),
)
PROMPT = tuple(range(20, 60))
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"frequency_penalty": 1.5},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.5},
    {"logit_bias": dict.fromkeys(range(0, 128, 3), -4.0)},
    {"temperature": 1.0, "top_p": 0.001},
)
"""Each leaves one token to be said."""


@st.composite
def histories(draw: st.DrawFn) -> tuple[Config, list[tuple[int, Request]], dict[int, str], int]:
    """A configuration, requests by the step at which they come, what else happens by step, and how right drafts are."""
    config = draw(st.sampled_from(CONFIGS))
    requests = []
    for number in range(draw(st.integers(1, 6))):
        shared = draw(st.integers(0, 12))
        prompt = PROMPT[:shared] + tuple(90 + number + at % 7 for at in range(draw(st.integers(1, 12))))
        answer = draw(st.integers(1, 16))
        stop = draw(st.sampled_from([None, *decoded(prompt, answer)]))
        change = draw(st.sampled_from(CHANGES))
        params = SamplingParams(
            max_new_tokens=answer, stop_token_ids=() if stop is None else (stop,), **{"temperature": 0.0, **change}
        )
        requests.append((draw(st.integers(0, 12)), Request(f"r{number}", prompt, params)))
    events = draw(
        st.dictionaries(st.integers(1, 30), st.sampled_from(["retract", "flush", "abort r0", "abort r2"]), max_size=3)
    )
    return config, requests, events, draw(st.integers(0, 2**16))


def told(request: Request) -> list[int]:
    """By decoding token by token."""
    model = HashModel()
    found = generate(
        lambda text: model.logits([prefix_of(text)])[0], request.prompt, request.params, coins=lambda _: 0.0
    )
    return list(found.tokens)


@given(histories())
def test_every_answer_is_that_of_decoding_token_by_token(
    history: tuple[Config, list[tuple[int, Request]], dict[int, str], int],
) -> None:
    config, requests, events, drafts = history
    engine = Engine(config, Device(config, HashModel()))
    step = 0

    def rank(_request: Request, number: int) -> int:
        return (drafts >> (engine.steps + number) % 16) & 3

    while step < 1000 and (step < 40 or not engine.is_idle):
        for at, request in requests:
            if at == step:
                engine.submit(request)
        event = events.get(step, "")
        if event == "retract":
            engine.retract_all()
        elif event == "flush":
            engine.flush()
        elif event:
            engine.abort(event.partition(" ")[2])
        engine.step(rank)
        engine.owners()
        step += 1
    assert engine.is_idle
    for _at, request in requests:
        assert request.state is State.ENDED
        expected = told(request)
        assert request.outputs == expected[: len(request.outputs)]
        assert request.outputs == expected or request.reason == "abort"
    assert set(engine.owners().values()) <= {"free", "cache"}
    assert sorted(engine.free_rows) == list(range(config.rows))


def test_its_state_is_data_that_can_be_copied() -> None:
    engine = Engine(Config(), Device(Config(), HashModel()))
    engine.submit(Request("a", PROMPT[:9], SamplingParams(max_new_tokens=12, temperature=0.0)))
    for _ in range(3):
        engine.step(lambda _request, _step: 0)
    other = copy.deepcopy(engine)
    while not engine.is_idle:
        engine.step(lambda _request, _step: 0)
    assert other.requests["a"].outputs != engine.requests["a"].outputs
    while not other.is_idle:
        other.step(lambda _request, _step: 3)
    assert other.requests["a"].outputs == engine.requests["a"].outputs == decoded(PROMPT[:9], 12)
