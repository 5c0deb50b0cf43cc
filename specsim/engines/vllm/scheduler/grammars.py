"""A backend of grammars under the release's own `StructuredOutputManager`: a grammar allows one text, token by token.

What the manager has of others is ours: who compiles, in as many iterations as a request says, and the grammar.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from specsim.engines.vllm.scheduler.imports import PACKAGE
from specsim.world.hash_model import ENDS_REASONING, VOCABULARY

BACKEND = "xgrammar"
"""The one that the manager is to take; it takes ours for it."""
WRONG = "("
"""No token of a grammar."""
WORD = 32
"""Tokens in a number of a mask."""


def parameters_of(text: Sequence[int], *, is_wrong: bool = False) -> Any:
    """The release's parameters of a request whose grammar allows `text`; or cannot be compiled."""
    words = [*map(str, text), *[WRONG] * is_wrong]
    made = importlib.import_module(f"{PACKAGE}.sampling_params").StructuredOutputsParams(grammar=" ".join(words))
    made._backend = BACKEND
    return made


def allowed(row: Any, tokens: Sequence[int]) -> int:
    """The first of these tokens that a row of a mask allows, int32 [words]; the first one where it allows none."""
    return next((token for token in tokens if int(row[token // WORD]) >> token % WORD & 1), tokens[0])


class _Reasoner:
    """See the release's `ReasoningParser`."""

    def __init__(self, *_arguments: Any, **_named: Any) -> None: ...

    def is_reasoning_end(self, prompt: Sequence[int]) -> bool:
        return prompt[-1] in ENDS_REASONING

    def is_reasoning_end_streaming(self, _tokens: Sequence[int], last: Iterable[int]) -> bool:
        return any(token in ENDS_REASONING for token in last)


def manage(manager: Any, iteration: Callable[[], int], compiling: dict[str, int], *, reasons: bool) -> None:
    """Have a release's manager compile here. `iteration()` is the engine's, `compiling` by request what it takes; with
    `reasons` a grammar begins behind the reasoning.
    """
    if reasons:
        manager.reasoner_cls, manager.reasoner = _Reasoner, _Reasoner()

    def submit(compile_: Callable[..., Any], request: Any) -> Future[Any]:
        ready = iteration() + compiling.get(request.request_id, 0)
        return _Compiled(functools.partial(compile_, request), lambda: iteration() >= ready)

    manager.executor = SimpleNamespace(submit=submit, shutdown=lambda **_how: None)
    vars(importlib.import_module(type(manager).__module__))["XgrammarBackend"] = lambda *_of, **_more: _Backend()


@functools.cache
def _grammar_class() -> type:
    """Releases ask whether it is one of theirs."""
    base = importlib.import_module(f"{PACKAGE}.v1.structured_output.backend_types").StructuredOutputGrammar
    return type("Grammar", (OneText, base), {})


class _Compiled(Future[Any]):
    """Done when it is, whoever waits."""

    def __init__(self, make: Callable[[], Any], is_ready: Callable[[], bool]) -> None:
        super().__init__()
        self._make, self._is_ready = make, is_ready

    def done(self) -> bool:
        return self._is_ready()

    def result(self, timeout: float | None = None) -> Any:
        if not self._is_ready():
            raise TimeoutError
        return self._make()


class _Backend:
    def compile_grammar(self, _kind: Any, text: str, **_more: Any) -> Any:
        """ValueError for a text with WRONG."""
        if WRONG in text:
            raise ValueError(f"no grammar: {text!r}")
        return _grammar_class()(tuple(map(int, text.split())))

    def allocate_token_bitmask(self, rows: int) -> torch.Tensor:
        return torch.full((rows, VOCABULARY // WORD), -1, dtype=torch.int32)

    def destroy(self) -> None: ...


class OneText:
    """See the release's `StructuredOutputGrammar`."""

    def __init__(self, text: tuple[int, ...]) -> None:
        self._text, self._at = text, 0

    def accept_tokens(self, _request: str, tokens: Sequence[int]) -> bool:
        for token in tokens:
            if not self.validate_tokens([token]):
                return False
            self._at += 1
        return True

    def validate_tokens(self, tokens: Sequence[int]) -> list[int]:
        """Those of the first tokens that may follow."""
        may = self._text[self._at : self._at + len(tokens)]
        same = [token == one for token, one in zip(tokens, may, strict=False)]
        return list(tokens[: [*same, False].index(False)])

    def rollback(self, count: int) -> None:
        self._at -= count

    def fill_bitmask(self, mask: torch.Tensor, row: int) -> None:
        words = np.zeros(VOCABULARY // WORD, np.uint32)
        if not self.is_terminated():
            token = self._text[self._at]
            words[token // WORD] = 1 << token % WORD
        mask[row] = torch.from_numpy(words.view(np.int32))

    def is_terminated(self) -> bool:
        return self._at >= len(self._text)

    def reset(self) -> None:
        self._at = 0
