"""A tokenizer of one character a token: what a scheduler needs of one to find stop strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from specsim.world.fakes import Answers, Fake

FIRST = 0x4E00
"""Character of token 0: the letters that follow it have no case, and none is white space."""


def text_of(tokens: Sequence[int]) -> str:
    return "".join(chr(FIRST + token) for token in tokens)


def tokens_of(text: str) -> tuple[int, ...]:
    return tuple(ord(character) - FIRST for character in text)


class Tokenizer(Fake):
    """Texts and token ids; no token of it is special."""

    def __init__(self, answers: Answers) -> None:
        super().__init__("tokenizer", answers, eos_token_id=None, bos_token_id=None, additional_stop_token_ids=None)

    def encode(self, text: str, *_arguments: Any, **_named: Any) -> list[int]:
        return list(tokens_of(text))

    def decode(self, tokens: Sequence[int], *_arguments: Any, **_named: Any) -> str:
        return text_of(tokens)
