"""Whose code runs: specsim's own, which reads and lifts a target, or the target's.

What ends a process or raises in it while specsim's own code runs is never the target's fault. A hang of the target's
code is ended sooner.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import ModuleType

LOADING = "loading"  # specsim reads, lifts, imports what it needs
RUNNING = "running"  # the target's code

_tell: Callable[[str], None] = lambda _phase: None  # noqa: E731


def listen(tell: Callable[[str], None]) -> None:
    """Let `tell` hear of every phase that begins in this process."""
    global _tell
    _tell = tell


@contextmanager
def running(*ours: str) -> Iterator[None]:
    """The target's code runs meanwhile. Where it imports one of the modules `ours`, which specsim would have imported
    itself and which take long, that time is specsim's.
    """
    finder = _PhaseFinder(ours)
    sys.meta_path[:0] = [finder] if ours else []
    _tell(RUNNING)
    try:
        yield
    finally:
        _tell(LOADING)
        if finder in sys.meta_path:
            sys.meta_path.remove(finder)


class _PhaseFinder(importlib.abc.MetaPathFinder):
    """Finds the modules of some names as Python does, and tells when they are loaded."""

    def __init__(self, names: Sequence[str]) -> None:
        self._names = names
        self._depth = 0

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name not in self._names:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def tell_and_execute(module: ModuleType) -> None:
            if not self._depth:
                _tell(LOADING)
            self._depth += 1  # one of them may import another
            try:
                execute(module)
            finally:
                self._depth -= 1
                if not self._depth:
                    _tell(RUNNING)

        spec.loader.exec_module = tell_and_execute  # type: ignore[method-assign]
        return spec
