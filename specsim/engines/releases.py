"""Lists of releases: a version a line, oldest first. The folder of an engine has one, `releases.txt`.

A release that is not in its engine's list can be checked all the same; between two releases, these are the steps.
"""

from __future__ import annotations

import functools
import itertools
from pathlib import Path

from packaging.version import Version


def load(text: str) -> tuple[str, ...]:
    """The versions, a line each; # starts a comment. Raises ValueError for a line that is none, or out of order."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    versions = tuple(filter(None, lines))
    for older, newer in itertools.pairwise(versions):
        if Version(older) >= Version(newer):
            raise ValueError(f"{newer} stands after {older}: the oldest release comes first, and each once")
    return versions


@functools.cache
def releases_of(engine: str) -> tuple[str, ...]:
    """The releases of an engine that are known, oldest first; none where its folder has no list."""
    file = Path(__file__).parent / engine / "releases.txt"
    return load(file.read_text(encoding="utf-8")) if file.is_file() else ()
