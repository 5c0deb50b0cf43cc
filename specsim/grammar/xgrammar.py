"""xgrammar's `GrammarMatcher` as a `Grammar`."""

from __future__ import annotations

from typing import Protocol, Self

import torch
from torch import Tensor


class Matcher(Protocol):
    """What is used of `xgrammar.GrammarMatcher`, from 0.2 on."""

    def accept_token(self, token_id: int) -> bool: ...
    def fill_next_token_bitmask(self, bitmask: Tensor) -> object: ...
    def rollback(self, num_tokens: int) -> None: ...
    def is_terminated(self) -> bool: ...
    def fork(self) -> Matcher: ...


class XGrammar:
    """A `specsim.reference.grammar.Grammar` over a matcher that has read nothing.

    matcher     an `xgrammar.GrammarMatcher`; belongs to the adapter from now on. It terminates when it reads a stop
                token, or, if it was made with `terminate_without_stop_token`, as soon as it has matched
    vocab_size  V, the width of the logits, which must be the `vocab_size` of the `xgrammar.TokenizerInfo` too. Tokens
                that the tokenizer does not have, at the end, are not allowed
    """

    def __init__(self, matcher: Matcher, vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self._read = 0

    def allowed(self) -> Tensor:
        # xgrammar refuses to say what follows the end.
        words = torch.zeros(1, -(-self._vocab_size // 32), dtype=torch.int32)
        if not self._matcher.is_terminated():
            self._matcher.fill_next_token_bitmask(words)
        bits = words.view(-1, 1) >> torch.arange(32, dtype=torch.int32)  # [words, 32]
        return (bits & 1).bool().flatten()[: self._vocab_size]

    def accept(self, token: int) -> None:
        if self._matcher.is_terminated() or not self._matcher.accept_token(token):
            raise ValueError(f"token is {token}; allowed: {self.allowed().nonzero()[:, 0].tolist()}")
        self._read += 1

    def rollback(self, count: int) -> None:
        if not 0 <= count <= self._read:
            raise ValueError(f"count is {count}; allowed: 0 to {self._read}")
        self._matcher.rollback(count)
        self._read -= count

    def is_terminated(self) -> bool:
        return self._matcher.is_terminated()

    def clone(self) -> Self:
        clone = type(self)(self._matcher.fork(), self._vocab_size)
        clone._read = self._read
        return clone
