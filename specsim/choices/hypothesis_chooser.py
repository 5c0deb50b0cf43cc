"""The Hypothesis lane: choices drawn by Hypothesis, which then structures, shrinks and remembers them.

The fast lane finds (`specsim.choices.chooser.seeded`); both write the same tape. The only module of the product that
imports Hypothesis.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from hypothesis import strategies as st

from specsim.choices.chooser import RecordingChooser, Tape

T = TypeVar("T")


def chosen(generate: Callable[[RecordingChooser], T]) -> st.SearchStrategy[tuple[T, Tape]]:
    """What `generate` makes of choices that Hypothesis draws, with their tape; shrinks towards all-zero choices."""

    @st.composite
    def drawn(draw: st.DrawFn) -> tuple[T, Tape]:
        chooser = RecordingChooser(lambda bound, _label: draw(st.integers(0, bound - 1)))
        return generate(chooser), chooser.tape

    return drawn()
