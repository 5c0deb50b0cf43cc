"""What a client may ask of a request's tokens: temperature, seed, penalties, a grammar."""

from __future__ import annotations

from dataclasses import dataclass

from specsim.choices.chooser import Chooser, pick
from specsim.engine.grammar import Automaton, Matcher, draw_automaton

Counts = dict[int, int]  # how often each token was said


@dataclass(frozen=True, slots=True)
class SamplingParams:
    """The distribution of a request's tokens. Temperature 0 is greedy; penalties lower scores of 0 to 15."""

    temperature: int = 0
    seed: int = 0
    frequency_penalty: int = 0
    presence_penalty: int = 0
    min_new_tokens: int = 0
    grammar: Automaton | None = None

    @property
    def is_penalized(self) -> bool:
        return bool(self.frequency_penalty or self.presence_penalty or self.min_new_tokens)


def make_matcher(params: SamplingParams | None) -> Matcher | None:
    """The matcher of a request, None without a grammar."""
    return Matcher(params.grammar) if params is not None and params.grammar is not None else None


def draw_params(chooser: Chooser, max_new_tokens: int) -> SamplingParams:
    """The parameters of a request."""
    return SamplingParams(
        temperature=pick(chooser, (0, 1, 4), "temperature"),
        seed=chooser.choose(4, "seed"),
        frequency_penalty=pick(chooser, (0, 0, 2, 7), "frequency penalty"),
        presence_penalty=pick(chooser, (0, 0, 5), "presence penalty"),
        min_new_tokens=chooser.choose(max_new_tokens + 1, "min_new_tokens")
        if chooser.choose(3, "has min_new_tokens") == 1
        else 0,
        grammar=draw_automaton(chooser) if chooser.choose(3, "has grammar") == 1 else None,
    )
