"""Hypothesis strategies of an operation's cases, made by the generator that the fast lane uses too.

The only module of `ops` that imports hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hypothesis import strategies as st

from specsim.explore.chooser import RecordingChooser, Tape

if TYPE_CHECKING:
    from specsim.ops.contract import Case, Op


@st.composite
def _draws(draw: st.DrawFn, op: Op) -> tuple[Tape, Case]:
    chooser = RecordingChooser(lambda bound, _label: draw(st.integers(0, bound - 1)))
    case = op.generate(chooser)
    return chooser.tape, case


def cases(op: Op) -> st.SearchStrategy[Case]:
    """Valid cases of `op`; shrinks towards the case of all-zero choices."""
    return _draws(op).map(lambda drawn: drawn[1])


def tapes(op: Op) -> st.SearchStrategy[Tape]:
    """The tapes of such cases; `op.generate(replayed(tape))` makes the case again."""
    return _draws(op).map(lambda drawn: drawn[0])
