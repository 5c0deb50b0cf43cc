"""The simulator's grammars on plain lists are those of the reference."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.watched_engine import fractional, fractions
from specsim.engine.grammar import SAMPLED_TOKENS, Automaton, Matcher, draw_automaton
from specsim.engine.model import EOS
from specsim.reference import grammar as reference

VOCAB_SIZE = SAMPLED_TOKENS[-1] + 1
automatons = fractions.map(lambda raw: draw_automaton(fractional(raw)))
sampled_tokens = st.sampled_from([EOS, *SAMPLED_TOKENS])


def reference_of(automaton: Automaton) -> reference.Automaton:
    eos = (EOS,) if automaton.ends_by_eos else ()
    return reference.Automaton(automaton.transitions, automaton.final, VOCAB_SIZE, eos)


def mask_of(allowed: dict[int, int] | None) -> list[bool]:
    """What a matcher allows as the reference has it; None allows everything."""
    return [allowed is None or token in allowed for token in range(VOCAB_SIZE)]


@given(automaton=automatons, data=st.data())
def test_a_matcher_reads_and_takes_back_as_the_reference_does(automaton: Automaton, data: st.DataObject) -> None:
    matcher, right = Matcher(automaton), reference_of(automaton)
    for _ in range(12):
        assert mask_of(matcher.allowed()) == right.allowed().tolist()
        assert matcher.is_terminated() == right.is_terminated()
        read = len(matcher.states) - 1
        assert matcher.end == (read if right.is_terminated() else None)
        if read and (matcher.is_terminated() or data.draw(st.booleans())):
            count = data.draw(st.integers(1, read))
            matcher.rollback(count)
            right.rollback(count)
        else:
            token = data.draw(st.sampled_from(sorted(matcher.allowed())))
            matcher.accept(token)
            right.accept(token)


@given(automaton=automatons, tokens=st.lists(sampled_tokens, max_size=8), data=st.data())
def test_what_may_follow_each_node_of_a_tree_is_what_the_reference_says(
    automaton: Automaton, tokens: list[int], data: st.DataObject
) -> None:
    parents = [-1, *(data.draw(st.integers(0, node)) for node in range(len(tokens)))]
    matcher = Matcher(automaton)
    masks = []
    paths: list[list[int]] = [[]]
    for node, parent in enumerate(parents):
        if node:
            paths.append([*paths[parent], tokens[node - 1]])
        masks.append(mask_of(matcher.allowed_after(paths[node])))
        assert matcher.states == [0]
    expected = reference.tree_masks(reference_of(automaton), [0, *tokens], parents)
    assert torch.equal(torch.tensor(masks), expected)


@given(automaton=automatons, tokens=st.lists(sampled_tokens, max_size=12))
def test_reading_stops_at_the_end_and_at_what_is_forbidden(automaton: Automaton, tokens: list[int]) -> None:
    matcher, right = Matcher(automaton), reference_of(automaton)
    matcher.read(tokens)
    for count, token in enumerate(tokens):
        if right.is_terminated():
            assert (matcher.end, matcher.refused) == (count, None)
            return
        if not right.allowed()[token]:
            assert (matcher.end, matcher.refused, len(matcher.states) - 1) == (None, token, count)
            return
        right.accept(token)
    assert matcher.refused is None
