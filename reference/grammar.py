"""Which tokens a constrained request may emit next: the protocol of grammars, and a small automaton that speaks it.

A grammar reads the output one token at a time, and takes tokens back: speculation walks down a path of drafts to learn
what may follow each, and returns. `specsim.grammar` puts xgrammar and llguidance behind the same protocol.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol, Self

import torch
from torch import Tensor

from specsim.reference import validation

__all__ = ["Automaton", "Grammar", "tree_masks"]

_END = -1  # the state after an EOS token


class Grammar(Protocol):
    """A grammar that has read some tokens."""

    def allowed(self) -> Tensor:
        """The tokens that may come next, [V] bool on the CPU; none of them once the grammar is terminated."""

    def accept(self, token: int) -> None:
        """Read a token. Raises ValueError, and stays as it is, for one that cannot come next."""

    def rollback(self, count: int) -> None:
        """Take the last `count` tokens back, as if they had never been read. Raises ValueError, and stays as it is,
        for more tokens than were read.
        """

    def is_terminated(self) -> bool:
        """Whether the output is complete: no token can follow."""

    def clone(self) -> Self:
        """One that has read the same tokens and goes its own way."""


class Automaton:
    """A deterministic finite automaton over token ids. It starts in state 0.

    transitions    state, 0 or more -> token -> state; a state that is not a key has none
    final          the states in which the output may end
    vocab_size     V
    eos_token_ids  tokens that end the output in a final state. Without any, it ends in a final state that has no
                   transitions

    Raises ValueError for tokens outside 0 to V - 1, for an EOS token that a final state reads otherwise, and for a
    state without transitions that is not final: there is nothing that the output could go on with.
    """

    def __init__(
        self,
        transitions: Mapping[int, Mapping[int, int]],
        final: Collection[int],
        vocab_size: int,
        eos_token_ids: Collection[int] = (),
    ) -> None:
        rows = {state: dict(row) for state, row in transitions.items()}
        for state in {0, *final, *rows, *(to for row in transitions.values() for to in row.values())}:
            row = rows.setdefault(state, {})
            if validation.enabled():
                for token in (*row, *eos_token_ids):
                    validation.require_scalar(f"a token of state {state}", token, 0, vocab_size - 1)
                if state in final and not row.keys().isdisjoint(eos_token_ids):
                    raise ValueError(f"final state {state} reads {sorted(row)}; allowed: no EOS token")
                if state not in final and not row:
                    raise ValueError(f"state {state} has no transitions; allowed: one at least, or a final state")
            if state in final:
                row |= dict.fromkeys(eos_token_ids, _END)
        self._rows = {**rows, _END: {}}
        self._vocab_size = vocab_size
        self._states = [0]  # after each token that was read, the start first

    def allowed(self) -> Tensor:
        mask = torch.zeros(self._vocab_size, dtype=torch.bool)
        mask[list(self._rows[self._states[-1]])] = True
        return mask

    def accept(self, token: int) -> None:
        following = self._rows[self._states[-1]]
        if token not in following:
            raise ValueError(f"token is {token}; allowed in state {self._states[-1]}: {sorted(following)}")
        self._states.append(following[token])

    def rollback(self, count: int) -> None:
        validation.require_scalar("count", count, 0, len(self._states) - 1)
        del self._states[len(self._states) - count :]

    def is_terminated(self) -> bool:
        return not self._rows[self._states[-1]]

    def clone(self) -> Self:
        clone = copy.copy(self)
        clone._states = list(self._states)
        return clone


def tree_masks(grammar: Grammar, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
    """What may follow each node of a draft tree.

    grammar  has read everything up to the root, with the root's token; is left as it was found
    tokens   the token of each node; that of node 0, the root, is not read
    parents  the parent of each node, an earlier node; that of the root is not read

    Returns masks [nodes, V] bool on the CPU. A node that cannot be emitted, because a token on its path is not allowed
    or comes after the end, allows everything: nothing depends on it, and a softmax over its row stays finite. So does
    a node at which the grammar is terminated.
    Raises ValueError for parents that are no earlier node.
    """
    if validation.enabled():
        for node, parent in enumerate(parents[1:], start=1):
            validation.require_scalar(f"parents[{node}]", parent, 0, node - 1)
    masks = torch.ones(len(tokens), grammar.allowed().shape[0], dtype=torch.bool)  # [nodes, V]

    def visit(node: int) -> None:
        if grammar.is_terminated():
            return
        masks[node] = grammar.allowed()
        for child in range(node + 1, len(tokens)):
            if parents[child] == node and masks[node, tokens[child]]:
                grammar.accept(tokens[child])
                visit(child)
                grammar.rollback(1)

    visit(0)
    return masks
