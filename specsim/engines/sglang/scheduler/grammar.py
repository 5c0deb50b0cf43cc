"""A backend of grammars: each allows one text, and is compiled when the schedule says so, in no thread."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future
from typing import Any

import torch

from specsim.engines.sglang.scheduler.modules import release_module
from specsim.engines.sglang.scheduler.tokenizer import Tokenizer
from specsim.world.fakes import Answers, Fake, nothing

BITS = 32
WRONG = "("
"""A text that ends so is no grammar."""


class FakeGrammar(Fake):
    """The state of a request's grammar, which has `read` so many of the tokens that it allows."""

    def __init__(self, answers: Answers, tokens: Sequence[int]) -> None:
        super().__init__("grammar", answers, finished=False, grammar_stats=None, maybe_init_reasoning=nothing)
        self.tokens = tokens
        self.read = 0

    def accept_token(self, token: int) -> None:
        """ValueError for a token that is not the next one; after the end all are passed over, as by xgrammar."""
        if self.is_terminated():
            return
        if token != self.tokens[self.read]:
            raise ValueError(f"token {token} is not {self.tokens[self.read]}, which is next")
        self.read += 1

    def is_terminated(self) -> bool:
        return self.read == len(self.tokens)

    def rollback(self, count: int) -> None:
        """Take back the last tokens."""
        self.read -= count

    def copy(self) -> FakeGrammar:
        return FakeGrammar(self._answers, self.tokens)

    # ---- masks: int32 [rows, ceil(vocabulary / 32)], a bit for each token that is allowed

    def allocate_vocab_mask(self, vocab_size: int, batch_size: int, device: Any) -> Any:
        return torch.full((batch_size, -(-vocab_size // BITS)), -1, dtype=torch.int32, device=device)

    def fill_vocab_mask(self, vocab_mask: Any, row: int) -> None:
        """ValueError at the end, where nothing is allowed."""
        if self.is_terminated():
            raise ValueError("a mask is made of a grammar that has ended")
        word, bit = divmod(self.tokens[self.read], BITS)
        vocab_mask[row] = 0
        vocab_mask[row, word] = -(1 << bit) if bit == BITS - 1 else 1 << bit

    def fill_vocab_mask_batched(self, entries: Sequence[Any], vocab_mask: Any) -> None:
        for entry in entries:
            entry.grammar.fill_vocab_mask(vocab_mask, entry.row)

    def move_vocab_mask(self, vocab_mask: Any, device: Any) -> Any:
        return vocab_mask.to(device, non_blocking=True)

    def apply_vocab_mask(self, logits: Any, vocab_mask: Any) -> None:
        """In place: -inf for each token that is not allowed. logits [rows, vocabulary]."""
        tokens = torch.arange(logits.shape[-1], device=logits.device)
        allowed = torch.bitwise_right_shift(vocab_mask[:, tokens // BITS], tokens % BITS) & 1
        logits.masked_fill_(allowed == 0, -torch.inf)


class Backend(Fake):
    """Compiles grammars. `wait` says for how many iterations that of a text is not ready; 0 is the next one."""

    def __init__(self, answers: Answers, tokenizer: Tokenizer) -> None:
        super().__init__("grammar_backend", answers, enable_strict_thinking=False)
        self.tokenizer = tokenizer
        self.restart()

    def restart(self) -> None:
        self.wait: dict[str, int] = {}
        self._compiled: dict[tuple[str, str], FakeGrammar] = {}
        self._compiling: list[tuple[int, Future[FakeGrammar], str]] = []

    def get_request_grammar_key(self, key: tuple[str, str], **_named: Any) -> tuple[str, str]:
        return key

    def get_cached_or_future_value(
        self, key: tuple[str, str], *_arguments: Any
    ) -> tuple[FakeGrammar | Future[FakeGrammar], bool]:
        if key in self._compiled:
            return self._compiled[key].copy(), True
        future: Future[FakeGrammar] = Future()
        self._compiling.append((self.wait.get(key[1], 0), future, key[1]))
        return future, False

    def set_cache(self, key: tuple[str, str], value: FakeGrammar) -> None:
        self._compiled[key] = value

    def reset(self) -> None:
        self._compiled.clear()

    def next_iteration(self) -> None:
        """Those whose time has come are compiled; a request that was aborted has cancelled its own."""
        left = []
        for wait, future, text in self._compiling:
            if wait:
                left.append((wait - 1, future, text))
            elif not future.done():
                future.set_result(self._made(text))
        self._compiling = left

    def _made(self, text: str) -> Any:
        """A grammar, or what a release's own backend has in place of one that cannot be compiled."""
        if text.endswith(WRONG):
            return release_module("constrained.base_grammar_backend").InvalidGrammarObject("it ends too soon")
        return FakeGrammar(self._answers, self.tokenizer.encode(text))
