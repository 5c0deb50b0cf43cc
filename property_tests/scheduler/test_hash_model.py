"""The model whose next token is a hash of the whole prefix."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from specsim.world.hash_model import EMPTY, FIRST_TOKEN, VOCABULARY, Prefixes, decoded, extended, next_token

prompts = st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=20)


@given(prompts, st.integers(0, 200))
def test_the_prefixes_of_a_prompt_are_those_of_what_sequential_decoding_makes_of_it(prompt: list[int], n: int) -> None:
    prefixes, hashes = Prefixes(prompt), [EMPTY]
    for token in [*prompt, *decoded(prompt, n)]:
        hashes.append(extended(hashes[-1], token))
    assert prefixes.first(len(prompt) + n).tolist() == hashes[1:]
    assert prefixes.of(len(prompt) + n) == hashes[-1]


@given(prompts, st.integers(0, 19), st.integers(1, VOCABULARY - 1))
def test_one_other_token_changes_every_prefix_from_there_on(prompt: list[int], at: int, by: int) -> None:
    at %= len(prompt)
    changed = [*prompt[:at], (prompt[at] + by) % VOCABULARY, *prompt[at + 1 :]]
    same, other = Prefixes(prompt).first(len(prompt)), Prefixes(changed).first(len(prompt))
    assert (same[:at] == other[:at]).all()
    assert (same[at:] != other[at:]).all()


@given(st.integers(0, 2**62 - 1), st.integers(0, VOCABULARY - 1))
def test_a_hash_fits_an_int64_and_a_token_the_vocabulary(prefix: int, token: int) -> None:
    assert 0 <= extended(prefix, token) < 2**62
    assert FIRST_TOKEN <= next_token(prefix) < VOCABULARY
