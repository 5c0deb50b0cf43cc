"""A language model whose next token depends on every token before it: a hash of the whole prefix.

The hash of a prefix stands for the KV of its last position. What a request should produce, and what each position of
its KV should hold, therefore follows from the prompt alone, and any mix-up of KV shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specsim.world.scheduler import LogprobRow

VOCABULARY = 128  # tokens
EMPTY = 0  # hash of no tokens
FIRST_TOKEN = 10  # tokens below are never produced, so that none ends a request by chance
ENDS_REASONING = frozenset(range(FIRST_TOKEN, VOCABULARY, 6))  # where an engine takes reasoning apart from its answer
_MASK = (1 << 64) - 1


def _mixed(state: int) -> int:  # the finalizer of SplitMix64
    state = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    state = ((state ^ (state >> 27)) * 0x94D049BB133111EB) & _MASK
    return state ^ (state >> 31)


def extended(prefix: int, token: int) -> int:
    """The hash of a prefix and one more token; 62 bits, so that it fits an int64 and is never negative."""
    return _mixed((prefix * 0x9E3779B97F4A7C15 + token + 1) & _MASK) >> 2


def next_token(prefix: int) -> int:
    """The token that follows a prefix of that hash, in [FIRST_TOKEN, VOCABULARY)."""
    return FIRST_TOKEN + _mixed(prefix ^ 0x5851F42D4C957F2D) % (VOCABULARY - FIRST_TOKEN)


def likely(prefix: int, count: int) -> list[int]:
    """The `count` most likely tokens after a prefix of that hash, the most likely one first."""
    first = next_token(prefix) - FIRST_TOKEN
    return [FIRST_TOKEN + (first + rank) % (VOCABULARY - FIRST_TOKEN) for rank in range(count)]


def prefix_of(tokens: Sequence[int]) -> int:
    """The hash of tokens."""
    prefix = EMPTY
    for token in tokens:
        prefix = extended(prefix, token)
    return prefix


def reasoned(prompt: Sequence[int], tokens: Sequence[int]) -> int:
    """How many of these tokens, which follow a prompt, are of its reasoning, with the one that ends it; -1 where none
    does.
    """
    if prompt[-1] in ENDS_REASONING:
        return 0
    return next((number for number, token in enumerate(tokens, 1) if token in ENDS_REASONING), -1)


def logprob_of(prefix: int, token: int) -> float:
    """The logprob of a token after a prefix of that hash, in (-16, 0]: 20 bits, which a float32 has exactly."""
    return -(_mixed(prefix ^ (token << 55)) >> 44) / 65536


def logprob_row(prefix: int, token: int, top: int) -> LogprobRow:
    """What is sent beside a token: its own logprob and id, then those of the `top` most likely ones."""
    return tuple((logprob_of(prefix, one), one) for one in (token, *likely(prefix, top)))


def decoded(prompt: Sequence[int], count: int, rank: int = 0) -> list[int]:
    """The `count` tokens that sequential decoding appends to a prompt; with a rank, each of them has it."""
    prefix = prefix_of(prompt)
    tokens = []
    for _ in range(count):
        tokens.append(likely(prefix, rank + 1)[rank])
        prefix = extended(prefix, tokens[-1])
    return tokens


class Prefixes:
    """The hashes of all prefixes of a prompt and of what follows it, made as far as they are needed."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = list(prompt)
        self._hashes = np.zeros(2 * len(prompt) + 64, np.int64)
        self._tokens: list[int] = []
        self._count = 0  # prefixes hashed, beside the empty one
        self.say(0, prompt)

    @property
    def count(self) -> int:
        """How many tokens are known."""
        return self._count

    def say(self, count: int, tokens: Sequence[int]) -> None:
        """Have `tokens` follow the first `count` ones, whatever the model says; what is behind them is unknown."""
        self.first(count)
        self._count = count
        for token in tokens:
            self._append(token)

    def first(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """int64 [count]: the KV of positions 0 to count - 1."""
        while self._count < count:
            self._append(next_token(int(self._hashes[self._count])))
        return self._hashes[1 : count + 1]

    def of(self, count: int) -> int:
        """The hash of the first `count` tokens."""
        return int(self.first(count)[-1]) if count else EMPTY

    def token(self, position: int) -> int:
        """The token at a position."""
        self.first(position + 1)
        return self._tokens[position]

    def _append(self, token: int) -> None:
        if self._count + 1 == len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.zeros_like(self._hashes)])
        del self._tokens[self._count :]
        self._tokens.append(token)
        self._hashes[self._count + 1] = extended(int(self._hashes[self._count]), token)
        self._count += 1
