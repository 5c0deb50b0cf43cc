"""The releases of SGLang that specsim knows, oldest first, read from `releases.txt`.

A release that is not in the list can be checked all the same; between two releases, these are the steps.
"""

from __future__ import annotations

import itertools
from pathlib import Path

from packaging.version import Version

_FILE = Path(__file__).with_name("releases.txt")


def load(text: str) -> tuple[str, ...]:
    """The versions, a line each; # starts a comment. Raises ValueError for a line that is none, or out of order."""
    lines = (line.partition("#")[0].strip() for line in text.splitlines())
    versions = tuple(filter(None, lines))
    for older, newer in itertools.pairwise(versions):
        if Version(older) >= Version(newer):
            raise ValueError(f"{newer} stands after {older}: the oldest release comes first, and each once")
    return versions


RELEASES = load(_FILE.read_text(encoding="utf-8"))
