"""The reference engine says what decoding token by token says, and each page of KV has one owner at every step."""

from __future__ import annotations

import copy
from contextlib import suppress
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.engines.reference import HashModel
from specsim.reference.engine import Config, Device, Engine, Request, State
from specsim.reference.grammar import Automaton
from specsim.reference.sequential import Output, SamplingParams, generate
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
    Config(mixed=True, slots=64, reserve=0.1),
    Config(window=6, window_slots=40, slots=96, reserve=0.1),
    Config(window=6, window_slots=80, slots=128, page_size=4, topk=2, num_draft_tokens=6, reserve=0.1, rows=2),
)
PROMPT = tuple(range(20, 60))
CHANGES: tuple[dict[str, Any], ...] = (
    {},
    {},
    {"frequency_penalty": 1.5},
    {"presence_penalty": 1.5},
    {"repetition_penalty": 1.5},
    {"logit_bias": dict.fromkeys(range(0, 128, 3), -4.0)},
    {"logit_bias": {0: 99.0}},
    {"logit_bias": {127: 99.0}},
    {"temperature": 1.0, "top_p": 0.001},
)
"""Each leaves one token to be said."""


@dataclass(frozen=True, slots=True)
class History:
    """`requests` by the step at which they come, and how many steps behind the turn before the next one of a session
    does; `events` by step; `drafts` are bits that say how right drafts are.
    """

    config: Config
    requests: list[tuple[int, Request]]
    events: dict[int, str]
    drafts: int


@st.composite
def histories(draw: st.DrawFn) -> History:
    config = draw(st.sampled_from(CONFIGS))
    requests = []
    turns = draw(st.integers(0, 3))
    for number in range(draw(st.integers(turns, 6))):
        session = "s" if number < turns else ""
        shared = 0 if session else draw(st.integers(0, 12))
        # All turns of a session must fit into the pool.
        prompt = PROMPT[:shared] + tuple(
            90 + number + at % 7 for at in range(draw(st.integers(1, 6 if session else 12)))
        )
        answer = draw(st.integers(1, 8 if session else 16))
        stop = draw(st.none() | st.sampled_from(decoded(prompt, answer)))
        change = draw(st.sampled_from(CHANGES))
        grammar = None
        if not session and draw(st.integers(0, 4)) == 0:
            text = decoded(prompt, answer, draw(st.integers(0, 1)))
            grammar, stop = Automaton({at: {token: at + 1} for at, token in enumerate(text)}, [len(text)], 128), None
        params = SamplingParams(
            max_new_tokens=answer,
            stop_token_ids=() if stop is None else (stop,),
            min_new_tokens=draw(st.sampled_from([0, 0, answer // 2])),
            return_logprob=draw(st.booleans()),
            **{"temperature": 0.0, **change},
        )
        priority = draw(st.integers(0, 2))
        requests.append((draw(st.integers(0, 12)), Request(f"r{number}", prompt, params, session, priority, grammar)))
    names = ["retract", "flush", "abort r0", "abort r2", "close"]
    events = draw(st.dictionaries(st.integers(1, 30), st.sampled_from(names), max_size=3))
    return History(config, requests, events, draw(st.integers(0, 2**16)))


class Client:
    """Sends what a history says, and knows what must come of it: decoding token by token."""

    def __init__(self, history: History) -> None:
        self.history = history
        self.model = HashModel()
        self.engine = Engine(history.config, Device(history.config, self.model))
        self.engine.open("s")
        self.to_send = list(history.requests)
        self.expected: dict[str, Output] = {}
        self.spoken: tuple[int, ...] = ()
        """Of the session: what its user has sent and been told, turns that were aborted left out."""

    def run(self) -> None:
        step = 0
        while step < 1000 and (step < 40 or self.to_send or not self.engine.is_idle):
            self.event(self.history.events.get(step, ""))
            self.send(step)
            self.engine.step(self.rank)
            self.engine.owners()
            step += 1
        assert self.engine.is_idle

    def rank(self, _request: Request, number: int) -> int:
        return (self.history.drafts >> (self.engine.steps + number) % 16) & 3

    def event(self, event: str) -> None:
        if event == "retract":
            self.engine.retract_all()
        elif event == "flush":
            self.engine.flush()
        elif event == "close":
            if "s" in self.engine.sessions:
                self.engine.close("s")
            self.to_send = [(at, request) for at, request in self.to_send if not request.session]
        elif event:
            self.engine.abort(event.partition(" ")[2])

    def send(self, step: int) -> None:
        for at, request in list(self.to_send):
            before = [one for one in self.engine.requests.values() if one.session and request.session]
            if at > step or any(one.state is not State.ENDED for one in before):
                continue
            if before and before[-1].reason != "abort":
                self.spoken = (*before[-1].prompt, *before[-1].outputs)
            prompt = (*self.spoken, *request.prompt) if request.session else request.prompt
            grammar = request.grammar.clone() if request.grammar is not None else None
            self.expected[request.rid] = generate(
                lambda text: self.model.logits([prefix_of(text)])[0],
                prompt,
                request.params,
                coins=lambda _: 0.0,
                grammar=grammar,
            )
            self.to_send.remove((at, request))
            self.engine.submit(request)
            assert request.prompt == prompt


@given(histories())
def test_every_answer_is_that_of_decoding_token_by_token(history: History) -> None:
    client = Client(history)
    client.run()
    for rid, request in client.engine.requests.items():
        expected, said = client.expected[rid], tuple(request.outputs)
        assert request.state is State.ENDED
        assert said == expected.tokens[: len(said)]
        assert request.reason == "abort" or (said, request.reason) == (expected.tokens, expected.finish_reason)
        if expected.logprobs is not None:
            logprobs = [float(row[token]) for row, token in zip(request.logprobs, said, strict=True)]
            assert logprobs == list(expected.logprobs[: len(said)])
    assert client.engine.sessions or "close" in history.events.values()
    for name in list(client.engine.sessions):
        client.engine.close(name)
    assert set(client.engine.owners().values()) <= {"free", "cache"}
    assert sorted(client.engine.free_rows) == list(range(history.config.rows))


@pytest.mark.parametrize("token", [0, 127])
def test_the_stop_tokens_of_one_request_are_no_other_ones(token: int) -> None:
    """A verification has them in rows of one length: what fills up a shorter one is no token, and none of the last."""
    wanted = SamplingParams(temperature=0, max_new_tokens=6, min_new_tokens=4, logit_bias={token: 99.0})
    other = SamplingParams(temperature=0, max_new_tokens=6, stop_token_ids=(3,))
    requests = [Request("r0", PROMPT[:3], wanted), Request("r1", PROMPT[:5], other)]
    client = Client(History(Config(), [(0, request) for request in requests], {}, 0))
    client.run()
    assert tuple(client.engine.requests["r0"].outputs) == client.expected["r0"].tokens == (token,) * 6


def test_a_more_urgent_request_takes_the_place_of_another() -> None:
    config = Config(rows=1)
    engine = Engine(config, Device(config, HashModel()))
    params = SamplingParams(max_new_tokens=6, temperature=0.0)
    engine.submit(Request("patient", PROMPT[:4], params))
    engine.step(lambda _request, _step: 0)
    engine.submit(Request("urgent", PROMPT[4:8], params, priority=1))
    ended = []
    while not engine.is_idle:
        engine.step(lambda _request, _step: 0)
        ended += [rid for rid, one in engine.requests.items() if one.state is State.ENDED and rid not in ended]
    assert ended == ["urgent", "patient"]
    assert engine.requests["patient"].outputs == decoded(PROMPT[:4], 6)


@pytest.mark.parametrize("page_size", [1, 4])
def test_the_longest_request_that_is_taken_runs_to_its_end(page_size: int) -> None:
    config = Config(page_size=page_size, slots=40)
    device = Device(config, HashModel())
    engine, answer = Engine(config, device), 40
    while not engine.requests:
        answer -= 1
        with suppress(ValueError):
            engine.submit(Request("a", PROMPT[:6], SamplingParams(max_new_tokens=answer, temperature=0.0)))
    for _ in range(2 * answer):
        engine.step(lambda _request, _step: 3)
    assert engine.requests["a"].outputs == decoded(PROMPT[:6], answer)


def test_a_request_that_can_never_run_is_refused() -> None:
    config = Config(page_size=4, slots=40, context=60, window=8, window_slots=24, chunk=8)
    engine = Engine(config, Device(config, HashModel()))
    engine.open("s")

    def refused(prompt: int, answer: int, session: str = "", rid: str = "b", why: str = "") -> None:
        params = SamplingParams(max_new_tokens=answer, temperature=0.0)
        with pytest.raises(ValueError, match=why):
            engine.submit(Request(rid, PROMPT[:prompt], params, session))

    engine.submit(Request("a", PROMPT[:4], SamplingParams(max_new_tokens=4, temperature=0.0), "s"))
    refused(4, 4, rid="a", why="one of that name")
    refused(4, 4, "t", why="'t' is not open")
    refused(4, 4, "s", why="the turn before it in session 's' has not ended")
    refused(0, 4, why="empty")
    refused(40, 21, why="61 tokens, and a request at most 60")
    refused(20, 16, why="pages, and the pool has 10")
    with pytest.raises(ValueError, match="'s' is open"):
        engine.open("s")
    with pytest.raises(ValueError, match="'t' is not open"):
        engine.close("t")
    while not engine.is_idle:
        engine.step(lambda _request, _step: 0)
    assert list(engine.requests) == ["a"]
    assert len(engine.requests["a"].outputs) == 4


def test_a_turn_of_a_session_that_was_closed_is_not_the_next_one_of_its_name() -> None:
    engine = Engine(Config(), Device(Config(), HashModel()))
    engine.open("s")
    engine.submit(Request("a", PROMPT[:4], SamplingParams(max_new_tokens=4, temperature=0.0), "s"))
    engine.step(lambda _request, _step: 0)
    engine.close("s")
    engine.open("s")
    while not engine.is_idle:
        engine.step(lambda _request, _step: 0)
        engine.owners()
    assert engine.sessions["s"].text == ()
    engine.submit(Request("b", PROMPT[:4], SamplingParams(max_new_tokens=4, temperature=0.0), "s"))
    assert engine.requests["b"].prompt == PROMPT[:4]


def test_nobody_begins_before_one_that_gets_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(Config(), Device(Config(), HashModel()))
    params = SamplingParams(max_new_tokens=4, temperature=0.0)
    for rid, prompt in (("a", PROMPT[:8]), ("b", PROMPT[8:10])):
        engine.submit(Request(rid, prompt, params))
    grow = engine._grow
    monkeypatch.setattr(engine, "_grow", lambda requests, ends: len(requests) != 1 or requests[0].rid != "a")
    assert engine.step(lambda _request, _step: 0) is None
    monkeypatch.setattr(engine, "_grow", grow)
    launch = engine.step(lambda _request, _step: 0)
    assert launch is not None
    assert [request.rid for request in launch.requests] == ["a", "b"]


def test_a_request_is_admitted_where_its_window_has_room() -> None:
    """Each of two needs most of the pool of window pages for its prompt."""
    config = Config(window=6, window_slots=40, rows=2, caches=False)
    engine = Engine(config, Device(config, HashModel()))
    params = SamplingParams(max_new_tokens=6, temperature=0.0)
    for rid in ("a", "b"):
        engine.submit(Request(rid, PROMPT[:31], params))
    seen = []
    while not engine.is_idle:
        engine.step(lambda _request, _step: 0)
        seen += [tuple(one.state for one in engine.requests.values())]
    assert not any(now[1] is State.WAITING and before[1] is not State.WAITING for before, now in pairwise(seen))


def test_a_session_computes_what_is_new_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    config = Config(caches=False)
    engine = Engine(config, Device(config, HashModel()))
    computed: list[Any] = []
    prefill = engine.device.prefill

    def noted(rows: Any, starts: Any, chunks: Any) -> Any:
        computed.append(chunks)
        return prefill(rows, starts, chunks)

    monkeypatch.setattr(engine.device, "prefill", noted)
    engine.open("s")
    for number in range(2):
        engine.submit(Request(f"r{number}", PROMPT[:4], SamplingParams(max_new_tokens=6, temperature=0.0), "s"))
        while not engine.is_idle:
            engine.step(lambda _request, _step: 0)
    first, second = engine.requests.values()
    assert second.prompt == (*first.prompt, *first.outputs, *PROMPT[:4])
    assert computed == [[list(PROMPT[:4])], [[first.outputs[-1], *PROMPT[:4]]]]


def test_a_request_is_longer_than_the_pool_of_its_window() -> None:
    config = Config(window=6, window_slots=40, slots=160)
    engine = Engine(config, Device(config, HashModel()))
    engine.submit(Request("a", PROMPT[:30], SamplingParams(max_new_tokens=20, temperature=0.0)))
    while not engine.is_idle:
        engine.step(lambda _request, _step: 0)
    assert engine.requests["a"].outputs == decoded(PROMPT[:30], 20)


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
