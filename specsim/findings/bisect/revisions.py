"""What is searched: the releases between two, or the commits between two of a repository, each as a TARGET."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from packaging.version import Version

from specsim.engines.packages import open_source
from specsim.engines.registry import ENGINES, MAIN
from specsim.engines.releases import releases_of
from specsim.engines.target import Checkout, Release, parse_target
from specsim.errors import UsageError
from specsim.lifting.cache import Cache
from specsim.lifting.git import Commit, Repository
from specsim.lifting.source import SourceTree
from specsim.lifting.versions import is_version


@dataclass(frozen=True, slots=True)
class Revision:
    """One place of the search. `target` is its TARGET, `name` what a person calls it, `title` what it says of itself,
    `merged` how many branches it brings (a merge).
    """

    target: str
    name: str
    title: str
    merged: int = 0

    def open(self, cache: Cache) -> SourceTree:
        """Its source; a release is fetched once. UsageError when it is not there, or is no engine's."""
        target = parse_target(self.target)
        assert isinstance(target, Release | Checkout)
        return open_source(target, cache)


def _no_branches(_revision: Revision) -> list[History]:
    return []


@dataclass(frozen=True, slots=True)
class History:
    """The places of a search, oldest first, both ends included.

    `note`      what the user should know of them, or ""
    `branches`  the histories that a place brings that is a merge
    """

    revisions: tuple[Revision, ...]
    good_is_older: bool
    note: str = ""
    branches: Callable[[Revision], list[History]] = _no_branches


def releases_between(good: str, bad: str, engine: str = MAIN) -> History:
    """The releases of an engine from one to the other, each VERSION or ENGINE==VERSION. Both may be newer than, or
    missing from, the list of those that are known.
    """
    one, other = _version("--good", good, engine), _version("--bad", bad, engine)
    if Version(one) == Version(other):
        raise UsageError(f"--good and --bad are both {engine}=={one}", "give two releases that differ")
    low, high = sorted((one, other), key=Version)
    known = [v for v in releases_of(engine) if Version(low) < Version(v) < Version(high)]
    revisions = tuple(Revision(f"{engine}=={v}", f"{engine}=={v}", f"release {v}") for v in (low, *known, high))
    return History(revisions, one == low)


def commits_between(repository: Path, good: str, bad: str) -> History:
    """The commits from one revision of a repository to the other, along first parents."""
    path = Path(os.path.expanduser(repository)).absolute()
    repo = Repository(path)
    one, other = repo.commit(good), repo.commit(bad)
    if one.hash == other.hash:
        raise UsageError(f"--good {good} and --bad {bad} are both {one.hash[:12]}", "give two commits that differ")
    good_is_older = repo.is_ancestor(one, other)
    low, high = (one, other) if good_is_older else (other, one)
    commits = repo.between(low, high)
    note = f"the commits of {path} are checked; changes that are not committed are neither checked nor touched"
    return _history(repo, commits, good_is_older, note)


def _history(repo: Repository, commits: list[Commit], good_is_older: bool, note: str = "") -> History:
    def branches(revision: Revision) -> list[History]:
        merge = repo.commit(revision.target.rpartition("#")[2])
        return [_history(repo, branch, good_is_older) for branch in repo.merged_by(merge)]

    return History(tuple(_revision(repo.path, commit) for commit in commits), good_is_older, note, branches)


def _revision(path: Path, commit: Commit) -> Revision:
    title = "".join(letter if letter.isprintable() else " " for letter in commit.subject)
    target = Checkout(_engine_of(path), str(path), commit.hash)
    return Revision(target.text, commit.hash[:12], title, max(0, len(commit.parents) - 1))


def _engine_of(path: Path) -> str:
    """Whose a repository is, as its work tree says; where that says nothing it is taken for the main engine's."""
    sources = {name: engine.source for name, engine in ENGINES.items() if engine.source is not None}
    here = (
        name
        for name, source in sources.items()
        if any((path / layout / source.marker).is_dir() for layout in source.layouts)
    )
    return next(here, MAIN)


def _version(option: str, text: str, engine: str) -> str:
    named, _, version = text.rpartition("==")
    if named not in ("", engine):
        raise UsageError(f"{option} {text!r} is no release of {engine}", f"give two releases of {engine}")
    version = version.removeprefix("v")
    if not is_version(version):
        raise UsageError(
            f"{option} {text!r} is not a release",
            "give the exact number of one, or name the repository of a revision with --repo PATH",
        )
    return version
