"""Stop strings: what tokens read as, and where an answer ends because of what it reads as.

A string may begin in one accepted run and end in the next, or end inside a run, so that the tokens behind it are not
the client's to see. An answer ends with the token in which the string ends. Only outputs count, not the prompt.
"""

from __future__ import annotations

from collections.abc import Sequence

from specsim.choices.chooser import Chooser, between
from specsim.engine.model import FIRST_ORDINARY_TOKEN

_PIECES = ("a", "b", "ab", "ba", "c")


def text_of(token: int) -> str:
    """What a token reads as: one or two letters; EOS and stop tokens read as nothing."""
    return _PIECES[token % len(_PIECES)] if token >= FIRST_ORDINARY_TOKEN else ""


def stop_string_end(outputs: Sequence[int], new_tokens: int, stop: Sequence[str]) -> int | None:
    """How many outputs there are when one of the strings `stop` is complete in one of the last `new_tokens` of them,
    None when none is.
    """
    start = len(outputs) - new_tokens
    text = "".join(map(text_of, outputs[:start]))
    text = text[max(len(text) + 1 - max(map(len, stop)), 0) :]
    for length in range(start + 1, len(outputs) + 1):
        text += text_of(outputs[length - 1])
        if any(string in text for string in stop):
            return length
    return None


def draw_stop(chooser: Chooser) -> tuple[str, ...]:
    """One string, short enough to be said by chance."""
    return ("".join("ab"[chooser.choose(2, "letter")] for _ in range(between(chooser, 2, 4, "stop string length"))),)
