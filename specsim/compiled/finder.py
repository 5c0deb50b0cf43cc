"""Importing a build: a finder that knows the modules of the one build whose key is that of the installed sources.

Every process that imports specsim comes through here, so nothing is imported that is not needed when there is no build.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType

from specsim.errors import UsageError
from specsim.targets.cache import open_cache

SWITCH = "SPECSIM_COMPILED"
FOLDER = "compiled"
MANIFEST = "manifest.json"
PACKAGE = Path(__file__).resolve().parents[1]
KEYED = ("check", "explore", "memory", "sim")  # packages of which a file may be compiled


def package_sources(package: Path) -> list[Path]:
    """Every file on which a build of the package in this folder depends, sorted."""
    return sorted(path for name in KEYED for path in (package / name).glob("*.py"))


def key(package: Path = PACKAGE) -> str:
    """Names a build: the sources that it depends on, what rewrites them, and this Python."""
    digest = hashlib.sha256(f"{EXTENSION_SUFFIXES[0]} {sys.version}".encode())
    for path in [Path(__file__).with_name("sources.py"), *package_sources(package)]:
        content = path.read_bytes()
        digest.update(f"\0{path.parent.name}/{path.name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()[:24]


class Finder(MetaPathFinder):
    """Finds the modules of a build. `files` are the extension modules by import name."""

    def __init__(self, files: Mapping[str, str], mypyc: str) -> None:
        self.mypyc = mypyc
        self._files = files

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        if file is None:
            return None
        return spec_from_file_location(fullname, file, loader=ExtensionFileLoader(fullname, file))


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Let this process import the build of its sources, if there is one and SPECSIM_COMPILED is not 0."""
    if environ.get(SWITCH) == "0" or installed() is not None:
        return
    try:
        builds = open_cache(environ=environ).path(FOLDER)
    except UsageError:  # no home folder: no build
        return
    if not builds.is_dir():
        return
    folder = builds / key()
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    files = {name: str(folder / file) for name, file in manifest["files"].items()}
    sys.meta_path.insert(0, Finder(files, manifest["mypyc"]))


def uninstall() -> None:
    """Let this process import the Python files. What it has imported stays what it is."""
    finder = installed()
    if finder is not None:
        sys.meta_path.remove(finder)


def installed() -> Finder | None:
    return next((finder for finder in sys.meta_path if isinstance(finder, Finder)), None)


def in_use() -> str:
    """How the simulator of this process runs, for a reader."""
    finder = installed()
    return f"compiled by mypyc {finder.mypyc}" if finder else "in Python"
