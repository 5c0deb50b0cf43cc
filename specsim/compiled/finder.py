"""Importing a build: a finder that knows the modules of the one build whose key is that of the installed sources.

A build is imported when its folder, its manifest and its modules belong to this user or to root, nobody else may write
them, and each module lies in the folder and has the SHA-256 that the manifest states. Any other build is left alone:
specsim then runs in Python, and `specsim --version` says why.

Every process that imports specsim comes through here, so nothing is imported that is not needed when there is no build.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ExtensionFileLoader, ModuleSpec
from importlib.util import spec_from_file_location
from pathlib import Path, PurePosixPath
from types import ModuleType
from typing import Any

from specsim.errors import UsageError
from specsim.lifting.cache import open_cache

SWITCH = "SPECSIM_COMPILED"
FOLDER = "compiled"
MANIFEST = "manifest.json"
PACKAGE = Path(__file__).resolve().parents[1]
KEYED = ("choices", "engine")  # packages of which a file may be compiled


def package_sources(package: Path) -> list[Path]:
    """Every file on which a build of the package in this folder depends, sorted."""
    return sorted(path for name in KEYED for path in (package / name).rglob("*.py"))


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


class RefusedBuildError(Exception):
    """Why a build that is there is not imported."""


_refused = ""


def install(environ: Mapping[str, str] = os.environ) -> None:
    """Let this process import the build of its sources, if there is one and SPECSIM_COMPILED is not 0."""
    global _refused
    if environ.get(SWITCH) == "0" or installed() is not None:
        return
    try:
        builds = open_cache(environ=environ).path(FOLDER)
    except UsageError:  # no home folder: no build
        return
    if not os.path.isdir(builds):  # Path.is_dir raises for a folder in one that may not be read
        return
    try:
        finder = read_build(builds / key())
    except RefusedBuildError as error:
        _refused = str(error)
        return
    if finder is not None:
        sys.meta_path.insert(0, finder)


def read_build(folder: Path) -> Finder | None:
    """The finder of the build in `folder`; None when there is none. Raises RefusedBuildError."""
    manifest = folder / MANIFEST
    if not os.path.lexists(manifest):
        return None
    _require_own(folder)
    try:
        stated: Any = json.loads(_content(manifest))
        mypyc, files = stated["mypyc"], stated["files"]
        entries = [(name, entry["file"], entry["sha256"]) for name, entry in files.items()]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise RefusedBuildError(f"{manifest} is no manifest of this version") from None
    found: dict[str, str] = {}
    for name, file, digest in entries:
        pure = PurePosixPath(file) if isinstance(file, str) else PurePosixPath("/")
        if pure.is_absolute() or ".." in pure.parts or "\0" in str(file):
            raise RefusedBuildError(f"{manifest} names {file!r}, which is not in its folder")
        for parent in reversed(pure.parents[:-1]):
            _require_own(folder / parent)
        if hashlib.sha256(_content(folder / pure)).hexdigest() != digest:
            raise RefusedBuildError(f"{folder / pure} is not the file that was built: its SHA-256 differs")
        found[name] = str(folder / pure)
    return Finder(found, str(mypyc))


def _content(file: Path) -> bytes:
    """The content of a regular file that is this user's own."""
    _require_own(file)
    try:
        return file.read_bytes()
    except OSError as error:
        raise RefusedBuildError(f"{file} cannot be read ({error.strerror})") from error


def _require_own(path: Path) -> None:
    """A file or folder, and no link, of this user or of root, that nobody else may write."""
    try:
        status = path.lstat()
    except OSError as error:
        raise RefusedBuildError(f"{path} cannot be read ({error.strerror})") from error
    if not (stat.S_ISREG(status.st_mode) or stat.S_ISDIR(status.st_mode)):
        raise RefusedBuildError(f"{path} is neither a file nor a folder")
    if status.st_uid not in (0, os.geteuid()):
        raise RefusedBuildError(f"{path} belongs to another user")
    if status.st_mode & stat.S_IWOTH:
        raise RefusedBuildError(f"{path} can be written by everybody")


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
    if finder is not None:
        return f"compiled by mypyc {finder.mypyc}"
    return f"in Python: {_refused}; specsim dev compile builds it again" if _refused else "in Python"
