"""The language model of the simulation: the next token is a hash of what was read.

A KV slot holds the fingerprint of the token sequence up to and including its position, so a wrong slot, a stale row, a
missing move or a wrong mask bit changes tokens. No weights, no tolerance, no luck.
"""

from __future__ import annotations

_MASK64 = (1 << 64) - 1

VOCABULARY = 1 << 20
EOS = 1
STOP = 2
FIRST_ORDINARY_TOKEN = 3
EMPTY = 0x5BD1E995  # fingerprint of the empty sequence


def extend(fingerprint: int, token: int) -> int:
    """The fingerprint of a sequence with one more token."""
    z = (fingerprint + 0x9E3779B97F4A7C15 * (token + 1)) & _MASK64
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    return z ^ (z >> 31)


def fingerprints(tokens: list[int]) -> list[int]:
    """The fingerprint of every prefix of `tokens`, the empty one left out."""
    chain = []
    fingerprint = EMPTY
    for token in tokens:
        fingerprint = extend(fingerprint, token)
        chain.append(fingerprint)
    return chain


def next_token(fingerprint: int) -> int:
    """An ordinary token: the hash of the sequence."""
    return FIRST_ORDINARY_TOKEN + (fingerprint ^ (fingerprint >> 29)) % (VOCABULARY - FIRST_ORDINARY_TOKEN)


def next_token_after(fingerprint: int, length: int, specials: dict[int, int]) -> int:
    """The token at position `length`; `specials` are the positions where the model says something else (EOS, a stop
    token).
    """
    return specials.get(length) or next_token(fingerprint)
