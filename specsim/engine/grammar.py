"""Grammars on plain lists: which tokens a request may say next, along the tree and from step to step.

The matcher is that of the reference's `Automaton`; a test holds them equal. It belongs to the request and has read its
outputs. A verification asks it what may follow each node, by accepting the node's path and rolling back. The results of
the launch before must have been read by then, although the host may not have taken them yet: `advance_grammar` reads a
result once, whoever comes first, and a stale one never.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from specsim.choices.chooser import Chooser, between
from specsim.engine import model

END = -1  # the state after an EOS token
SAMPLED_TOKENS = range(model.FIRST_ORDINARY_TOKEN, model.FIRST_ORDINARY_TOKEN + 6)


@dataclass(frozen=True, slots=True)
class Automaton:
    """A deterministic finite automaton over tokens that starts in state 0: state -> token -> state.

    With `ends_by_eos` the output ends by an EOS token in a final state, otherwise in a final state that has no
    transitions.
    """

    transitions: dict[int, dict[int, int]]
    final: tuple[int, ...]
    ends_by_eos: bool = False

    def following(self, state: int) -> dict[int, int]:
        """What may come next, and where it leads; nothing after the end."""
        found = self.transitions.get(state, {})
        return {**found, model.EOS: END} if self.ends_by_eos and state in self.final else found


class Matcher:
    """An automaton that has read some tokens. `refused` is a token that it was given to read and could not."""

    __slots__ = ("_automaton", "refused", "states")

    def __init__(self, automaton: Automaton) -> None:
        self._automaton = automaton
        self.states = [0]
        self.refused: int | None = None

    def allowed(self) -> dict[int, int]:
        return self._automaton.following(self.states[-1])

    def accept(self, token: int) -> None:
        self.states.append(self.allowed()[token])

    def rollback(self, count: int) -> None:
        del self.states[len(self.states) - count :]

    def is_terminated(self) -> bool:
        return not self.allowed()

    @property
    def end(self) -> int | None:
        """How many tokens were read when the grammar ended, None while it has not."""
        return len(self.states) - 1 if self.is_terminated() else None

    def read(self, tokens: Iterable[int]) -> None:
        """Read outputs, up to the end."""
        for token in tokens:
            if self.is_terminated():
                return
            if token not in self.allowed():
                self.refused = token
                return
            self.accept(token)

    def allowed_after(self, path: list[int]) -> dict[int, int] | None:
        """What may follow a path of drafts; None, for everything, behind a draft that cannot be said and after the end.
        Leaves the matcher as it was.
        """
        accepted = 0
        for token in path:
            if token not in self.allowed():
                break
            self.accept(token)
            accepted += 1
        allowed = self.allowed() if accepted == len(path) else None
        self.rollback(accepted)
        return allowed or None


def draw_automaton(chooser: Chooser) -> Automaton:
    """A chain of states with a few tokens each, some of which stay where they are."""
    length = between(chooser, 1, 8, "grammar length")
    salt = chooser.choose(16, "grammar tokens")
    ends_by_eos = chooser.choose(2, "grammar ends by EOS") == 1
    transitions: dict[int, dict[int, int]] = {}
    for state in range(length):
        mixed = model.extend(model.EMPTY + salt, state)
        tokens = [token for token in SAMPLED_TOKENS if (mixed >> 4 * token) % 3] or [SAMPLED_TOKENS[state % 6]]
        transitions[state] = dict.fromkeys(tokens, state + 1)
        if len(tokens) > 2:
            transitions[state][tokens[0]] = state
    final = (length, length // 2) if salt % 4 == 1 else (length,)
    return Automaton(transitions, final, ends_by_eos)
