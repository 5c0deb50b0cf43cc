"""A release or a checkout as a folder that Python can import from, and what is made of it by importing it."""

from __future__ import annotations

import atexit
import functools
import os
import secrets
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from specsim.engines.packages import fetch_release, open_source, package_of
from specsim.engines.registry import ENGINES
from specsim.engines.target import Checkout, Release
from specsim.errors import UsageError, described
from specsim.lifting.package import Package
from specsim.lifting.source import GitSource
from specsim.verdict import NotRun
from specsim.world.packages import Probes
from specsim.world.release import ReleaseFiles
from specsim.world.unpack import unpacked

if TYPE_CHECKING:
    from specsim.lifting.cache import Cache

T = TypeVar("T")


def imported(
    target: Release | Checkout,
    cache: Cache,
    root: Path | None,
    covered: tuple[str, ...],
    make: Callable[[ReleaseFiles], T],
) -> T | NotRun:
    """What `make` makes of a target's files, which it imports into this process; NotRun where they cannot be. `root` is
    what `folder_of` gave, None where it was not asked; of the folders and files that are `covered` it is noted which
    statements run.
    """
    probes = Probes(covered, cache.folder / "code")
    release = ReleaseFiles(root or folder_of(target, cache), package_of(target.engine).folder, probes)
    try:
        return make(release)
    except UsageError:
        raise
    except (Exception, SystemExit) as error:
        return NotRun("scheduler", f"it is not imported: {described(error)}{release.raised_at(error)}")


def folder_of(target: Release | Checkout, cache: Cache) -> Path:
    """The folder that holds the package of an engine: of a release in the cache, of a checkout where it is, of a git
    revision written into the cache until this process ends. UsageError where there is none.
    """
    if isinstance(target, Release):
        wheel = fetch_release(target, cache)
        assert wheel is not None
        kept = ENGINES[target.engine].kept
        return unpacked(wheel, cache, kept.pattern if kept is not None else "")
    source, package = open_source(target, cache), package_of(target.engine)
    if isinstance(source, GitSource):
        return _written(source.repository, source.commit, package, cache)
    sys.dont_write_bytecode = True  # nothing is left in a user's checkout
    path = Path(os.path.expanduser(target.path)).absolute()
    roots = (path / package.within, path, path.parent)
    return next(root for root in roots if (root / package.folder / package.marker).is_dir())


@functools.cache
def _written(repository: Path, commit: str, package: Package, cache: Cache) -> Path:
    """The files of a commit in a folder of this process' own, removed when it ends."""
    folder = cache.path(f".scratch-{os.getpid()}-{secrets.token_hex(16)}")
    atexit.register(_remove, folder, os.getpid())
    GitSource(repository, commit, package).write(folder)
    return folder


def _remove(folder: Path, owner: int) -> None:
    if os.getpid() == owner:  # and no fork of it
        shutil.rmtree(folder, ignore_errors=True)
