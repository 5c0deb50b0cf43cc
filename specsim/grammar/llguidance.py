"""llguidance's `LLMatcher` as a `Grammar`."""

from __future__ import annotations

from collections.abc import Collection
from typing import Protocol, Self

import torch
from torch import Tensor


class Matcher(Protocol):
    """What is used of `llguidance.LLMatcher`, from 1.0 on."""

    def compute_bitmask(self) -> bytes: ...
    def validate_tokens(self, tokens: list[int]) -> int: ...
    def consume_token(self, sampled_token: int) -> bool: ...
    def rollback(self, num_tokens: int) -> bool: ...
    def is_accepting(self) -> bool: ...
    def is_error(self) -> bool: ...
    def get_error(self) -> str: ...
    def deep_copy(self) -> Matcher: ...


class LLGuidance:
    """A `specsim.reference.grammar.Grammar` over a matcher that has read nothing.

    matcher        an `llguidance.LLMatcher`; belongs to the adapter from now on
    vocab_size     V, the width of the logits. Tokens that the tokenizer does not have, at the end, are not allowed
    eos_token_ids  the tokens that end the output where the grammar has matched: the tokenizer's `eos_tokens`

    The matcher never sees an EOS token. It would count it in `rollback` when more text could have followed, and not
    count it when none could, and a rollback over the end would take a token too few or too many.

    `allowed` may leave out tokens that `accept` takes: with a tokenizer that says how it would split a text,
    llguidance allows only that way to spell text that is forced.

    Raises ValueError for a matcher in an error state, which a wrong grammar causes.
    """

    def __init__(self, matcher: Matcher, vocab_size: int, eos_token_ids: Collection[int]) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._eos_token_ids = frozenset(eos_token_ids)
        self._read = 0
        self._ended = False
        self._check()

    def allowed(self) -> Tensor:
        mask = torch.zeros(self._vocab_size, dtype=torch.bool)
        if not self._ended:
            octets = torch.frombuffer(bytearray(self._matcher.compute_bitmask()), dtype=torch.uint8)
            bits = octets[:, None] >> torch.arange(8, dtype=torch.uint8)  # [octets, 8]
            known = (bits & 1).bool().flatten()[: self._vocab_size]
            mask[: known.shape[0]] = known
            self._check()
        return mask

    def accept(self, token: int) -> None:
        ends = token in self._eos_token_ids and self._matcher.is_accepting()
        # A token that it does not take would leave the matcher in its error state for ever.
        if self._ended or not (ends or self._matcher.validate_tokens([token]) == 1):
            raise ValueError(f"token is {token}; allowed: {self.allowed().nonzero()[:, 0].tolist()}")
        if not ends:
            self._matcher.consume_token(token)
            self._check()
        self._ended = ends
        self._read += 1

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self._read:
            raise ValueError(f"count is {count}; allowed: 0 to {self._read}")
        self._read -= count
        if count and self._ended:
            self._ended = False
            count -= 1
        if count:
            self._matcher.rollback(count)
            self._check()

    def is_terminated(self) -> bool:
        return self._ended

    def clone(self) -> Self:
        clone = type(self)(self._matcher.deep_copy(), self._vocab_size, self._eos_token_ids)
        clone._read, clone._ended = self._read, self._ended
        return clone

    def _check(self) -> None:
        if self._matcher.is_error():
            raise ValueError(f"llguidance reports an error: {self._matcher.get_error()}")
