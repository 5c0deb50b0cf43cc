"""Hypothesis strategies of an operation's cases, made by the generator that the fast lane uses too."""

from __future__ import annotations

from typing import TYPE_CHECKING

from specsim.choices.hypothesis_chooser import chosen

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from specsim.choices.chooser import Tape
    from specsim.contracts.contract import Case, Op


def cases(op: Op) -> SearchStrategy[Case]:
    """Valid cases of `op`; shrinks towards the case of all-zero choices."""
    return chosen(op.generate).map(lambda drawn: drawn[0])


def tapes(op: Op) -> SearchStrategy[Tape]:
    """The tapes of such cases; `op.generate(replayed(tape))` makes the case again."""
    return chosen(op.generate).map(lambda drawn: drawn[1])
