"""Applying a mutant: the source of the reference engine is changed on its way through the import system.

Nothing is written to disk, bytecode included, and line numbers stay. A mutant lasts as long as its
process: apply it in a child.
"""

from __future__ import annotations

import importlib.util
import linecache
import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType

from specsim.errors import UsageError, no_such
from specsim.selfcheck.catalogue import CATALOGUE, Mutant

MODULE = "specsim.reference.engine"


def find(mutant_id: str) -> Mutant:
    """The mutant of that id; upper and lower case are the same."""
    by_id = {mutant.id.lower(): mutant for mutant in CATALOGUE}
    wanted = mutant_id.lower()
    if wanted in by_id:
        return by_id[wanted]
    raise no_such("mutant", mutant_id, [mutant.id for mutant in by_id.values()])


def changed_source(mutant: Mutant, source: str) -> str:
    """`source` with the mutant's line replaced. UsageError when the line is not in it exactly once."""
    lines = source.splitlines(keepends=True)
    at = [number for number, line in enumerate(lines) if line.strip() == mutant.line]
    if len(at) != 1:
        raise UsageError(
            f"mutant {mutant.id} does not apply: {mutant.line!r} is in {MODULE} {len(at)} times",
            "give the line as it is now in specsim/selfcheck/known_bugs.toml",
        )
    old = lines[at[0]]
    lines[at[0]] = old.replace(mutant.line, mutant.becomes)
    return "".join(lines)


def apply(mutant: Mutant) -> None:
    """Make this process import the changed engine. UsageError when it is imported already, or the line is not there."""
    apply_change(mutant.id, MODULE, lambda source: changed_source(mutant, source))


def apply_change(mutant_id: str, module: str, change: Callable[[str], str]) -> None:
    """Make this process import `module` as `change` makes it. UsageError when it is imported already."""
    if module in sys.modules:
        raise UsageError(
            f"mutant {mutant_id} comes too late: {module} is already imported",
            "apply it first thing in a process of its own",
        )
    spec = _spec_of(module)
    if spec is None or spec.origin is None:
        raise UsageError(f"mutant {mutant_id} changes {module}, which is not there", "install specsim anew")
    source = change(Path(spec.origin).read_text(encoding="utf-8"))
    spec.loader = _ChangedSource(module, spec.origin, source)
    # Triton compiles what `inspect` finds; an entry without a time is not read again from the file.
    linecache.cache[spec.origin] = (len(source), None, source.splitlines(keepends=True), spec.origin)
    sys.meta_path.insert(0, _Finder(spec))


def _spec_of(module: str) -> ModuleSpec | None:
    """Where a module is. Unlike `importlib.util.find_spec` it imports no package on the way, which might import the
    module.
    """
    top, *parts = module.split(".")
    spec = importlib.util.find_spec(top)
    for part in parts:
        if spec is None or spec.submodule_search_locations is None:
            return None
        spec = PathFinder.find_spec(f"{spec.name}.{part}", list(spec.submodule_search_locations))
    return spec


class _ChangedSource(SourceFileLoader):
    """Loads a module from `source` instead of its file or cached bytecode."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(MetaPathFinder):
    """Finds the one module that is changed."""

    def __init__(self, spec: ModuleSpec) -> None:
        self._spec = spec

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        return self._spec if fullname == self._spec.name else None
