"""Public modules by the names that they had before they moved: they import as before, and warn.

`docs/api.md` says how long a name stays after it was deprecated.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

REMOVED_IN = "0.3"
MOVED = {
    "specsim.check": "specsim.rules",
    "specsim.diff": "specsim.interpreter",
    "specsim.explore": "specsim.choices",
    "specsim.ops": "specsim.contracts",
}


class _Alias(Loader):
    """Gives the module of the new name for the old one."""

    def __init__(self, new: str) -> None:
        self._new = new

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        module = importlib.import_module(self._new)
        self._spec = module.__spec__
        return module

    def exec_module(self, module: ModuleType) -> None:
        module.__spec__ = self._spec  # the import system has set that of the old name


class Aliases(MetaPathFinder):
    """Finds the packages of MOVED and their modules by their old names."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        package = ".".join(fullname.split(".")[:2])
        if package not in MOVED:
            return None
        new = MOVED[package] + fullname.removeprefix(package)
        if fullname == package:  # which is imported before any module of it
            text = f"{package} and its modules are now {new}; the old names go in specsim {REMOVED_IN}"
            warnings.warn(text, DeprecationWarning, stacklevel=2)
        return ModuleSpec(fullname, _Alias(new))


def install() -> None:
    """Let this process import what MOVED lists by its old names."""
    if not any(isinstance(finder, Aliases) for finder in sys.meta_path):
        sys.meta_path.insert(0, Aliases())  # before the one of files, which would load a second copy
