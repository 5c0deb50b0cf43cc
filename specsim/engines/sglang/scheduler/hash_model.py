"""A language model whose next token depends on every token before it: a hash of the whole prefix.

The hash of a prefix stands for the KV of its last position. What a request should produce, and what each position of
its KV should hold, therefore follows from the prompt alone, and any mix-up of KV shows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from specsim.engines.real_scheduler import LogprobRow
from specsim.engines.sglang.scheduler.configuration import VOCABULARY

EMPTY = 0  # hash of no tokens
FIRST_TOKEN = 10  # tokens below are never produced, so that none ends a request by chance
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


def logprob_of(prefix: int, token: int) -> float:
    """The logprob of a token after a prefix of that hash, in (-16, 0]: 20 bits, which a float32 has exactly."""
    return -(_mixed(prefix ^ (token << 55)) >> 44) / 65536


def logprob_row(prefix: int, token: int, top: int) -> LogprobRow:
    """What is sent beside a token: its own logprob and id, then those of the `top` most likely ones."""
    likely = [FIRST_TOKEN + (next_token(prefix) - FIRST_TOKEN + i) % (VOCABULARY - FIRST_TOKEN) for i in range(top)]
    return tuple((logprob_of(prefix, one), one) for one in (token, *likely))


def decoded(prompt: Sequence[int], count: int) -> list[int]:
    """The `count` tokens that sequential decoding appends to a prompt."""
    prefix = EMPTY
    for token in prompt:
        prefix = extended(prefix, token)
    tokens = []
    for _ in range(count):
        tokens.append(next_token(prefix))
        prefix = extended(prefix, tokens[-1])
    return tokens


class Prefixes:
    """The hashes of all prefixes of a prompt and of what follows it, made as far as they are needed."""

    def __init__(self, prompt: Sequence[int]) -> None:
        self.prompt = list(prompt)
        self._hashes = np.zeros(2 * len(prompt) + 64, np.int64)
        self._count = 0  # prefixes hashed, beside the empty one
        for token in prompt:
            self._append(token)

    def first(self, count: int) -> np.ndarray[Any, np.dtype[np.int64]]:
        """int64 [count]: the KV of positions 0 to count - 1."""
        while self._count < count:
            self._append(next_token(int(self._hashes[self._count])))
        return self._hashes[1 : count + 1]

    def of(self, count: int) -> int:
        """The hash of the first `count` tokens."""
        return int(self.first(count)[-1]) if count else EMPTY

    def _append(self, token: int) -> None:
        if self._count + 1 == len(self._hashes):
            self._hashes = np.concatenate([self._hashes, np.zeros_like(self._hashes)])
        self._hashes[self._count + 1] = extended(int(self._hashes[self._count]), token)
        self._count += 1
