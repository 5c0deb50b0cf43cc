"""What a mutant is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """A one-line change of the model.

    `title`       what is wrong, one sentence
    `references`  where the bug was reported or fixed
    `module`      import name of the module that is changed
    `line`        the line that is replaced, without its indentation; it occurs in the module exactly once
    `becomes`     what it is replaced by, one line, which gets the same indentation
    """

    id: str
    title: str
    references: tuple[str, ...]
    module: str
    line: str
    becomes: str
