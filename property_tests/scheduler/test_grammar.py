"""The backend of grammars: when a grammar is compiled, what it reads, and what it refuses."""

from __future__ import annotations

import pytest

from specsim.engines.sglang.scheduler.grammar import Backend, FakeGrammar
from specsim.engines.sglang.scheduler.tokenizer import Tokenizer, text_of
from specsim.world.fakes import Answers

KEY = ("regex", text_of((5, 6)))


@pytest.fixture
def backend() -> Backend:
    answers = Answers({})
    return Backend(answers, Tokenizer(answers))


def compiled(backend: Backend) -> FakeGrammar:
    future, is_ready = backend.get_cached_or_future_value(KEY, False)
    assert not is_ready
    assert not isinstance(future, FakeGrammar)
    backend.next_iteration()
    return future.result(timeout=0)


def test_a_grammar_reads_its_text_and_nothing_else(backend: Backend) -> None:
    grammar = compiled(backend)
    with pytest.raises(ValueError, match="token 6 is not 5"):
        grammar.accept_token(6)
    grammar.accept_token(5)
    assert not grammar.is_terminated()
    grammar.accept_token(6)
    assert grammar.is_terminated()
    grammar.accept_token(7)
    assert grammar.read == 2


def test_a_grammar_is_compiled_in_the_iteration_that_the_schedule_says(backend: Backend) -> None:
    backend.wait[KEY[1]] = 2
    future, _ = backend.get_cached_or_future_value(KEY, False)
    assert not isinstance(future, FakeGrammar)
    ready = []
    for _ in range(3):
        backend.next_iteration()
        ready.append(future.done())
    assert ready == [False, False, True]


def test_a_cancelled_grammar_is_not_compiled(backend: Backend) -> None:
    future, _ = backend.get_cached_or_future_value(KEY, False)
    assert not isinstance(future, FakeGrammar)
    future.cancel()
    backend.next_iteration()
    assert future.cancelled()


def test_two_requests_of_one_grammar_have_a_state_each(backend: Backend) -> None:
    backend.set_cache(KEY, compiled(backend))
    one, two = (backend.get_cached_or_future_value(KEY, False) for _ in range(2))
    assert one[1]
    assert two[1]
    assert isinstance(one[0], FakeGrammar)
    assert isinstance(two[0], FakeGrammar)
    one[0].accept_token(5)
    assert (one[0].read, two[0].read) == (1, 0)
