"""Small source trees made up for tests of lifting: nothing in them comes from an engine."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Mapping
from pathlib import Path

from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree


class MadeUpSource:
    """A source tree in memory, optionally on top of another one."""

    def __init__(self, files: Mapping[str, str], base: SourceTree | None = None, label: str = "made up") -> None:
        self.label = label
        self.package = base.package if base else "sglang"
        self.version = base.version if base else None
        self._base = base
        self._files = {path: text if base else textwrap.dedent(text) for path, text in files.items()}

    def read(self, path: str) -> str:
        if path in self._files:
            return self._files[path]
        if self._base is not None:
            return self._base.read(path)
        raise FileNotFoundError(path)

    def exists(self, path: str) -> bool:
        return path in self._files or (self._base is not None and self._base.exists(path))

    def paths(self, under: str) -> list[str]:
        below = self._base.paths(under) if self._base else []
        return sorted({*below, *(path for path in self._files if path.startswith(under))})


def edited(source: SourceTree, path: str, pattern: str, replacement: str, within: str = "") -> MadeUpSource:
    """The tree with what `pattern` matches in a file replaced; `within`: only in the class or function of that name.
    Patterns say names and what is around them, so that no line of an engine stands in a test.
    """
    text = source.read(path)
    before, body, after = "", text, ""
    if within:
        found = re.search(rf"^( *)(?:def|class) {within}\b", text, re.MULTILINE)
        assert found is not None, f"{within} is not in {path}"
        end = re.search(rf"\n {{0,{len(found[1])}}}[^ \n)]", text[found.end() :])
        stop = found.end() + end.start() if end else len(text)
        before, body, after = text[: found.end()], text[found.end() : stop], text[stop:]
    becomes, count = re.subn(pattern, replacement, body)
    assert count, f"{pattern} is not in {within or path}"
    return MadeUpSource({path: before + becomes + after}, base=source, label=source.label)


def cache_in(folder: Path) -> Cache:
    return Cache(folder / "cache")
