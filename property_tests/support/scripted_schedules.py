"""Schedules that are written by hand, choice by choice."""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from specsim.engine.grammar import SAMPLED_TOKENS, Automaton
from specsim.engine.request import Turn


class Script:
    """Choices by their label, each list in its order, then zeros."""

    def __init__(self, **choices: list[int]) -> None:
        self._left = defaultdict(list, {label.replace("_", " "): list(values) for label, values in choices.items()})

    def choose(self, bound: int, label: str) -> int:
        left = self._left[label]
        return min(left.pop(0), bound - 1) if left else 0


def turn(name: str, prompt_len: int = 3, answer: int = 8, **fields: Any) -> Turn:
    start = 10 + 100 * ord(name[0])
    return Turn(name, tuple(range(start, start + prompt_len)), answer, **fields)


GRAMMAR = Automaton({0: dict.fromkeys(SAMPLED_TOKENS[:3], 0)}, final=(1,))
