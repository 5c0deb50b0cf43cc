"""What a target's version is: what a finding was first and last seen on."""

from __future__ import annotations

import hashlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import specsim
from specsim.engines.packages import open_source
from specsim.engines.registry import ENGINES
from specsim.engines.target import ModelTarget, PythonTarget, Release, Target
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.lifting.source import GitSource

_SHOWN = 12  # hexadecimal digits of a hash
_OF_THE_MODEL = ("reference/*.py", "kernels/*.py", "engines/reference.py")


def version_of(target: Target, cache: Cache) -> str:
    """The version, the commit, or a hash of the content of what has neither. UsageError when the target is not there.

    Of a folder it is the hash of its Python files, so a file that is edited makes another version.
    """
    if isinstance(target, ModelTarget):
        folder = Path(specsim.__file__).parent
        return _hash_of(sorted(file for name in _OF_THE_MODEL for file in folder.glob(name)), target.text)
    if isinstance(target, Release):
        return target.version
    if isinstance(target, PythonTarget):
        return _module_hash(target)
    if ENGINES[target.engine].source is None:
        return _hash_of([Path(os.path.expanduser(target.path))], target.text)
    source = open_source(target, cache)
    if isinstance(source, GitSource):
        return source.commit[:_SHOWN]
    digest = hashlib.sha256()
    for path in source.paths(""):
        if path.endswith(".py"):
            digest.update(f"{path}\0{source.read(path)}\0".encode("utf-8", "surrogateescape"))
    return digest.hexdigest()[:_SHOWN]


def _module_hash(target: PythonTarget) -> str:
    """The hash of a module's file, which is found without running anything; of its name where there is none."""
    within = target.module.replace(".", "/")
    for folder in dict.fromkeys([os.getcwd(), *sys.path]):
        for path in (Path(folder, f"{within}.py"), Path(folder, within, "__init__.py")):
            if path.is_file():
                return _hash_of([path], target.text)
    return target.module


def _hash_of(paths: list[Path], label: str) -> str:
    digest = hashlib.sha256()
    try:
        for path in paths:
            for file in _files(path):
                digest.update(f"{file.name}\0".encode())
                digest.update(file.read_bytes())
    except OSError as error:
        raise UsageError(f"{label}: cannot read {error.filename} ({error.strerror})", "restore it") from error
    return digest.hexdigest()[:_SHOWN]


def _files(path: Path) -> Iterator[Path]:
    yield from sorted(file for file in path.rglob("*") if file.is_file()) if path.is_dir() else [path]
