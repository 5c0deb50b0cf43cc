"""Grammars: what they allow, and that a token taken back leaves no trace, in the automaton and in the libraries."""

from __future__ import annotations

import itertools
import re
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from specsim.grammar import LLGuidance, XGrammar
from specsim.reference.grammar import Automaton, tree_masks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from specsim.reference.grammar import Grammar

    Make = Callable[[], Grammar]

EOS = 0
VOCABULARY = ("</s>", "a", "b", "ab", "ba", "c", "abc", "cc", "d")
PADDED = len(VOCABULARY) + 30  # logits are often wider than the tokenizer's vocabulary
PATTERN = "(ab|c)+"
# The states of PATTERN after whole letters: start, after "a", matched.
LETTERS = {0: {"a": 1, "c": 2}, 1: {"b": 2}, 2: {"a": 1, "c": 2}}


def automaton() -> Automaton:
    """PATTERN over the toy vocabulary."""
    transitions: dict[int, dict[int, int]] = {}
    for state, (token, text) in itertools.product(LETTERS, enumerate(VOCABULARY)):
        to: int | None = state
        for letter in text:
            to = None if to is None else LETTERS[to].get(letter)
        if to is not None:
            transitions.setdefault(state, {})[token] = to
    return Automaton(transitions, {2}, PADDED, (EOS,))


def xgrammar_grammar() -> Grammar:
    xgrammar = pytest.importorskip("xgrammar", reason="needs xgrammar: pip install 'specsim-llm[grammar]'")
    info = xgrammar.TokenizerInfo(list(VOCABULARY), vocab_size=PADDED, stop_token_ids=[EOS])
    compiled = xgrammar.GrammarCompiler(info, max_threads=1).compile_regex(PATTERN)
    return XGrammar(xgrammar.GrammarMatcher(compiled), PADDED)


def llguidance_grammar(pattern: str = PATTERN) -> Grammar:
    llguidance = pytest.importorskip("llguidance", reason="needs llguidance: pip install 'specsim-llm[grammar]'")
    tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(Letters()), slices=[])
    matcher = llguidance.LLMatcher(tokenizer, llguidance.LLMatcher.grammar_from_regex(pattern))
    return LLGuidance(matcher, PADDED, tokenizer.eos_tokens)


class Letters:
    """A tokenizer that splits every text into letters."""

    eos_token_id = EOS
    bos_token_id = None
    tokens = tuple(text.encode() for text in VOCABULARY)
    special_token_ids = (EOS,)

    def __call__(self, text: str | bytes) -> list[int]:
        return [VOCABULARY.index(letter) for letter in (text if isinstance(text, str) else text.decode())]


GRAMMARS = {"automaton": automaton, "xgrammar": xgrammar_grammar, "llguidance": llguidance_grammar}
all_grammars = pytest.mark.parametrize("make", GRAMMARS.values(), ids=GRAMMARS)
walks = st.lists(st.integers(0, 99), max_size=8)


def allowed(grammar: Grammar) -> list[int]:
    mask = grammar.allowed()
    assert mask.shape == (PADDED,)
    return [int(token) for token in mask.nonzero()[:, 0]]


def walk(grammar: Grammar, choices: Sequence[int]) -> list[int]:
    """Read allowed tokens by choice, up to the end at most."""
    read = []
    for choice in choices:
        if not grammar.is_terminated():
            read.append(allowed(grammar)[choice % len(allowed(grammar))])
            grammar.accept(read[-1])
    return read


def after(grammar: Grammar, tokens: Sequence[int]) -> Grammar:
    for token in tokens:
        grammar.accept(token)
    return grammar


def state(grammar: Grammar) -> tuple[list[int], bool]:
    return allowed(grammar), grammar.is_terminated()


@all_grammars
@given(choices=walks)
def test_exactly_those_tokens_are_allowed_after_which_the_text_can_still_match(make: Make, choices: list[int]) -> None:
    grammar = make()
    read = walk(grammar, choices)
    text = "".join(VOCABULARY[token] for token in read if token != EOS)
    if read and read[-1] == EOS:
        assert re.fullmatch(PATTERN, text)
        assert allowed(grammar) == []
        return
    viable = [t for t, s in enumerate(VOCABULARY) if t != EOS and re.fullmatch("(ab|c)*a?", text + s)]
    assert allowed(grammar) == [EOS] * bool(re.fullmatch(PATTERN, text)) + viable


@all_grammars
@given(choices=walks, more=walks)
def test_a_token_taken_back_was_never_read(make: Make, choices: list[int], more: list[int]) -> None:
    grammar = make()
    read = walk(grammar, choices)
    before = state(grammar)
    grammar.rollback(len(walk(grammar, more)))
    assert state(grammar) == before
    for count in range(len(read) + 1):
        fresh = after(make(), read[: len(read) - count])
        back = grammar.clone()
        back.rollback(count)
        assert state(back) == state(fresh)
        assert walk(back, more) == walk(fresh, more)


@all_grammars
@given(choices=walks, more=walks)
def test_a_clone_goes_its_own_way(make: Make, choices: list[int], more: list[int]) -> None:
    grammar = make()
    walk(grammar, choices)
    before = state(grammar)
    clone = grammar.clone()
    assert state(clone) == before
    walk(clone, more)
    assert state(grammar) == before


@all_grammars
@given(choices=walks, data=st.data())
def test_a_refused_call_changes_nothing(make: Make, choices: list[int], data: st.DataObject) -> None:
    grammar = make()
    read = walk(grammar, choices)
    before = state(grammar)
    refused = sorted({*range(len(VOCABULARY))} - {*before[0]})
    with pytest.raises(ValueError, match="token is"):
        grammar.accept(data.draw(st.sampled_from(refused)))
    for count in (-1, len(read) + 1):
        with pytest.raises(ValueError, match=f"count is {count}"):
            grammar.rollback(count)
    assert state(grammar) == before
    grammar.rollback(len(read))
    assert state(grammar) == state(make())
    with pytest.raises(ValueError, match="count is 1; allowed: 0 to 0"):
        grammar.rollback(1)


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    parents = [-1, *(draw(st.integers(0, node)) for node in range(draw(st.integers(0, 9))))]
    return [draw(st.integers(0, len(VOCABULARY) - 1)) for _ in parents], parents


@all_grammars
@given(choices=walks, tree=trees())
def test_the_mask_of_a_node_is_that_of_a_fresh_walk_down_its_path(
    make: Make, choices: list[int], tree: tuple[list[int], list[int]]
) -> None:
    grammar = make()
    read = walk(grammar, choices)
    before = state(grammar)
    tokens, parents = tree
    masks = tree_masks(grammar, tokens, parents)
    assert state(grammar) == before
    for node in range(len(tokens)):
        path: list[int] = []
        at = node
        while at:
            path.insert(0, tokens[at])
            at = parents[at]
        fresh = after(make(), read)
        try:
            after(fresh, path)
        except ValueError:
            reached = False
        else:
            reached = not fresh.is_terminated()
        expected = allowed(fresh) if reached else list(range(PADDED))
        assert masks[node].nonzero()[:, 0].tolist() == expected


def test_llguidance_takes_back_an_end_where_nothing_else_could_follow() -> None:
    grammar = after(llguidance_grammar("ab"), [VOCABULARY.index("a"), VOCABULARY.index("b")])
    assert state(grammar) == ([EOS], False)
    grammar.accept(EOS)
    assert state(grammar) == ([], True)
    grammar.rollback(1)
    assert state(grammar) == ([EOS], False)
    grammar.rollback(1)
    assert state(grammar) == ([VOCABULARY.index("b")], False)


def test_llguidance_says_what_is_wrong_with_a_grammar() -> None:
    with pytest.raises(ValueError, match="llguidance reports an error"):
        llguidance_grammar("(ab")


def test_an_automaton_without_eos_ends_where_nothing_can_follow() -> None:
    grammar = Automaton({0: {1: 1, 2: 0}, 1: {2: 2}}, {1, 2}, PADDED)
    grammar.accept(1)
    assert state(grammar) == ([2], False)
    grammar.accept(2)
    assert state(grammar) == ([], True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (({0: {4: 0}}, {0}, 4), "a token of state 0 is 4; allowed: 0 to 3"),
        (({0: {1: 0}}, {0}, 4, (-1,)), "a token of state 0 is -1; allowed: 0 to 3"),
        (({0: {1: 0, 3: 1}}, {0, 1}, 4, (3,)), r"final state 0 reads \[1, 3\]; allowed: no EOS token"),
        (({0: {1: 5}}, {0}, 4), "state 5 has no transitions; allowed: one at least, or a final state"),
    ],
)
def test_an_automaton_that_makes_no_sense_is_refused(arguments: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Automaton(*arguments)


def test_a_parent_that_is_no_earlier_node_is_refused() -> None:
    with pytest.raises(ValueError, match=r"parents\[1\] is 1; allowed: 0 to 0"):
        tree_masks(automaton(), [0, 1], [-1, 1])
