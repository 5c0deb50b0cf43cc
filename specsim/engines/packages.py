"""What a target names, fetched, found in the cache, and opened to be read.

Some wheels are hundreds of megabytes, of which little is read (`Engine.kept`): what is needed goes into a zip of its
own in the cache, `packages/NAME-VERSION.zip`, and the wheel is not kept. Nothing of it is installed, and no Python of
it is imported.
"""

from __future__ import annotations

import io
import os
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.version import InvalidVersion, Version

from specsim.engines.registry import ENGINES
from specsim.engines.target import Checkout, Release, parse_target
from specsim.errors import UsageError
from specsim.files import write_bytes
from specsim.lifting.archive import LIBRARY_BYTES_MAX, ArchiveError, open_archive, read_member
from specsim.lifting.checksums import note, require_noted
from specsim.lifting.fetch import cached_wheels, download, fetch_wheel, run_pip
from specsim.lifting.git import nearest_tag, resolved
from specsim.lifting.source import SourceTree, WheelSource, open_path

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.lifting.cache import Cache
    from specsim.lifting.fetch import PipRunner
    from specsim.lifting.package import Package

FOLDER = "packages"


def fetch_release(target: Target, cache: Cache, *, pip: PipRunner = run_pip) -> Path | None:
    """What is kept of a release: from the cache, else fetched with pip; None for a target that is no release.
    UsageError when pip cannot deliver it.
    """
    if not isinstance(target, Release):
        return None
    if ENGINES[target.engine].kept is not None:
        return fetch_package(target.engine, target.version, cache, pip=pip)
    return fetch_wheel(package_of(target.engine), target.version, cache, pip=pip)


def package_of(engine: str) -> Package:
    """The Python package of an engine whose source is read."""
    package = ENGINES[engine].source
    assert package is not None
    return package


def open_source(target: Release | Checkout, cache: Cache) -> SourceTree:
    """The source of a target whose Python is read; a release that the cache lacks is fetched. UsageError if it is not
    there.
    """
    if isinstance(target, Checkout):
        return _opened(target)
    fetched = fetch_release(target, cache)
    assert fetched is not None
    return WheelSource(fetched, package_of(target.engine), target.text)


def version_of(target: Release | Checkout, cache: Cache) -> str:
    """The release that a target is, or comes after: that which its files state, else the nearest tag in its history;
    "" where neither says.
    """
    if isinstance(target, Release):
        return target.version
    if ENGINES[target.engine].source is None:
        return ""
    path = Path(os.path.expanduser(target.path)).absolute()
    stated = _opened(target).version
    tag = (
        ""
        if stated
        else nearest_tag(target.text, path if path.is_dir() else path.parent, target.revision or "HEAD", "v[0-9]*")
    )
    try:
        return Version(stated or tag).base_version
    except InvalidVersion:
        return ""


def found_at(text: str) -> str:
    """What a folder is that a target names, to find it again from elsewhere: "commit 1a2b3c4d5e6f", else "version
    1.2.3"; "" where neither is known, and for every other target.
    """
    target = _folder(text)
    if target is None or target.revision:
        return ""
    path = Path(os.path.expanduser(target.path)).absolute()
    commit = resolved(text, path if path.is_dir() else path.parent, "HEAD")
    if isinstance(commit, str):
        return f"commit {commit[:12]}"
    try:
        version = _opened(target).version
    except UsageError:
        return ""
    return f"version {version}" if version else ""


def require_there(text: str, file: Path, source: str) -> None:
    """Raise UsageError where a replay file names a folder that is not here, with what is to be named instead."""
    target = _folder(text)
    try:
        if target is not None:
            _opened(target)
    except UsageError as error:
        raise UsageError(
            f"{file} was found on {text}{f', {source}' if source else ''}, and {error.problem}",
            f"say where that is now: --target {text.partition('@')[0]}@PATH",
        ) from error


def _folder(text: str) -> Checkout | None:
    """The target of a folder, wheel or git revision whose Python is read; None for another one."""
    target = parse_target(text)
    return target if isinstance(target, Checkout) and ENGINES[target.engine].source is not None else None


def _opened(target: Checkout) -> SourceTree:
    return open_path(target.path, target.revision, target.text, package_of(target.engine))


def located(target: Release | Checkout, cache: Cache) -> Path:
    """The path of a target, for a release what is kept of its wheel; fetched where the cache lacks it."""
    if isinstance(target, Release):
        return fetch_package(target.engine, target.version, cache)
    path = Path(os.path.expanduser(target.path)).absolute()
    if not path.exists():
        raise UsageError(
            f"{target.text}: the path {target.path} does not exist",
            f"a release is written {target.engine}==VERSION; else give a wheel, or a folder with what is in one",
        )
    return path


def fetch_package(package: str, version: str, cache: Cache, *, pip: PipRunner = run_pip) -> Path:
    """The zip with what is kept of a release's wheel. UsageError when pip cannot deliver it."""
    engine = ENGINES[package]
    assert engine.kept is not None
    stored = package_file(package, version, cache)
    if _keeps(stored, engine.kept):
        require_noted(stored, stored)
        return stored
    with cache.scratch() as scratch:
        download(engine.distribution, version, cache, scratch, pip, by_hand=", and give the wheel by its path")
        wheels = sorted(scratch.glob("*.whl"))
        if len(wheels) != 1 or not zipfile.is_zipfile(wheels[0]):
            raise UsageError(
                f"pip ended well but left {len(wheels)} wheels for {engine.distribution}=={version}",
                "fetch the wheel by hand and give its path",
            )
        slim = scratch / "slim.zip"
        try:
            write_bytes(slim, _slim(wheels[0], engine.kept))
        except ArchiveError as error:
            raise UsageError(
                f"pip delivered {wheels[0].name}, but {error}", "fetch the wheel by hand and give its path"
            ) from error
        cache.store_file(f"{FOLDER}/{stored.name}", slim)
        note(stored, stored)
        return stored


def package_file(package: str, version: str, cache: Cache) -> Path:
    """Where the cache has, or would have, what is kept of a release."""
    return cache.path(f"{FOLDER}/{ENGINES[package].distribution}-{version}.zip")


def _keeps(stored: Path, kept: re.Pattern[str]) -> bool:
    """Whether a file is there, and has of its wheel what is kept now."""
    if not stored.is_file() or not zipfile.is_zipfile(stored):
        return False
    with zipfile.ZipFile(stored) as slim:
        return slim.comment == kept.pattern.encode()


def _slim(wheel: Path, kept: re.Pattern[str]) -> bytes:
    content = io.BytesIO()
    with open_archive(wheel) as source, zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as slim:
        slim.comment = kept.pattern.encode()  # so that one which keeps less is fetched again
        for name in dict.fromkeys(source.namelist()):
            if kept.fullmatch(name):
                slim.writestr(name, read_member(source, name, LIBRARY_BYTES_MAX))
    return content.getvalue()


def cached_releases(engine: str, cache: Cache) -> list[str]:
    """The versions of an engine that the cache has, oldest first where wheels are kept whole."""
    of_it = ENGINES[engine]
    if of_it.kept is None:
        return cached_wheels(package_of(engine), cache)
    return [version for name, version in cached_packages(cache) if ENGINES[name].distribution == of_it.distribution]


def cached_packages(cache: Cache) -> list[tuple[str, str]]:
    """(package, version) of what the cache has of those of whose wheels a part is kept, in order."""
    packages: dict[str, str] = {}
    for name, engine in ENGINES.items():
        if engine.kept is not None:
            packages.setdefault(engine.distribution, name)
    found: list[tuple[str, str]] = []
    for distribution, package in packages.items():
        try:
            paths = sorted((cache.folder / FOLDER).glob(f"{distribution}-*.zip"))
        except OSError:
            paths = []
        found += [(package, path.stem.removeprefix(f"{distribution}-")) for path in paths]
    return found
