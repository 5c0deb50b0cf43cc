"""Reading a package's source text, wherever it lies: in a wheel, a folder, or at a revision of a git repository.

A path is relative to the package folder and has one spelling: "srt/speculative/eagle_info_v2.py". Nothing is
imported, unpacked, checked out or written. A symbolic link inside a git revision is not followed and counts
as absent.
"""

from __future__ import annotations

import ast
import hashlib
import os
import re
from collections.abc import Collection
from email.parser import HeaderParser
from pathlib import Path, PurePosixPath
from typing import Protocol

from specsim.errors import UsageError
from specsim.lifting.archive import MEMBER_BYTES_MAX, ArchiveError, read_archive, read_member
from specsim.lifting.fetch import wheel_problem, wheel_version
from specsim.lifting.git import MERGE_BASE, resolved, run_git
from specsim.lifting.package import Package
from specsim.lifting.versions import is_version


class SourceTree(Protocol):
    """The files of one release or checkout of a package. Every path is plain and relative (`ValueError` otherwise)."""

    @property
    def package(self) -> str:
        """The name under which its modules import each other."""
        ...

    @property
    def label(self) -> str:
        """What messages call it: the TARGET that names it."""
        ...

    @property
    def version(self) -> str | None:
        """The version that it states itself; None when it states none, as a plain checkout does."""
        ...

    def read(self, path: str) -> str:
        """The text of a file, newlines as "\\n". `FileNotFoundError`; `UsageError` when it is not UTF-8."""
        ...

    def exists(self, path: str) -> bool:
        """Whether there is a file (not a folder) of that path."""
        ...

    def paths(self, under: str) -> list[str]:
        """All files below the folder `under` ("" is the package), sorted; none if there is no such folder."""
        ...


def open_path(given: str, revision: str | None, label: str, package: Package) -> SourceTree:
    """The source that lies at a path, or at a git revision there. `UsageError` if it is not there."""
    path = Path(os.path.expanduser(given)).absolute()
    if not path.exists():
        remedy = package.give
        if revision is None and is_version(given):
            remedy = f"a release is written {package.folder}=={given}"
        elif "#" in given:
            remedy = f"{package.give}; the last # starts a revision"
        raise UsageError(f"{label}: the path {given} does not exist", remedy)
    if revision is not None:
        return GitSource(path, revision, package, label)
    if path.is_file():
        return WheelSource(path, package, label)
    return DirectorySource(path, package, label)


class WheelSource:
    """A wheel, read as a zip. Its bytes are held in memory: forked processes then share no file position."""

    def __init__(self, path: Path, package: Package, label: str = "") -> None:
        problem = wheel_problem(path, package)
        if problem is not None:
            raise UsageError(
                f"{path} is not {package.name}'s wheel: {problem}", f"remove it and fetch it again, or {package.give}"
            )
        self.version = wheel_version(path)
        self.label = label or f"{package.folder}=={self.version}"
        self.package = package.folder
        self._root = f"{package.folder}/"
        try:
            self._zip = read_archive(path)
        except ArchiveError as error:
            raise UsageError(f"cannot read {path}: {error}", "remove it and fetch it again") from error
        self._names = {
            name.removeprefix(self._root)
            for name in self._zip.namelist()
            if name.startswith(self._root) and not name.endswith("/")
        }

    def read(self, path: str) -> str:
        if _plain(path) not in self._names:
            raise FileNotFoundError(f"{self.label} has no {path}")
        try:
            content = read_member(self._zip, f"{self._root}{path}")
        except ArchiveError as error:
            raise UsageError(
                f"{self.label} cannot be checked: {path} is damaged in the wheel: {error}", "fetch the wheel again"
            ) from error
        return _text(content, self.label, path)

    def exists(self, path: str) -> bool:
        return _plain(path) in self._names

    def paths(self, under: str) -> list[str]:
        return _below(self._names, under)


class DirectorySource:
    """A folder as it lies there: a checkout of the repository, an unpacked wheel, or the package folder."""

    def __init__(self, path: Path, package: Package, label: str = "") -> None:
        self.label = label or f"{package.folder}@{path}"
        try:
            packages = [path / layout for layout in package.layouts if (path / layout / package.marker).is_dir()]
        except OSError as error:
            raise UsageError(f"{self.label}: cannot read {path}: {error.strerror or error}", package.give) from error
        if not packages:
            raise package.missing(self.label)
        self.package = package.folder
        self._folder = packages[0]
        self.version = self._dist_info_version() or _stated_version(self)

    def read(self, path: str) -> str:
        file = self._folder / _plain(path)
        try:
            if not file.is_file():  # a FIFO would be waited for
                raise FileNotFoundError
            with file.open("rb") as opened:
                content = opened.read(MEMBER_BYTES_MAX + 1)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
            raise FileNotFoundError(f"{self.label} has no {path}") from None
        except OSError as error:
            raise UsageError(
                f"{self.label}: cannot read {path}: {error.strerror or error}", "make it readable"
            ) from error
        if len(content) > MEMBER_BYTES_MAX:
            raise _too_large(self.label, path, file.stat().st_size)
        return _text(content, self.label, path)

    def exists(self, path: str) -> bool:
        return (self._folder / _plain(path)).is_file()

    def paths(self, under: str) -> list[str]:
        start = self._folder / _plain(under) if under else self._folder
        found: list[str] = []
        for folder, folders, files in os.walk(start):
            folders[:] = [name for name in folders if name != "__pycache__"]
            inside = Path(folder).relative_to(self._folder)
            found += [(inside / name).as_posix() for name in files if Path(folder, name).is_file()]
        return sorted(found)

    def _dist_info_version(self) -> str | None:
        """The version in the metadata beside the package, when exactly one is there."""
        versions: list[str] = []
        for path in sorted(self._folder.parent.glob("*.dist-info/METADATA")):
            if path.parent.name.lower().startswith(f"{self.package}-"):
                with path.open("rb") as metadata:
                    text = metadata.read(MEMBER_BYTES_MAX).decode("utf-8", "replace")
                headers = HeaderParser().parsestr(text)
                if str(headers.get("Name", "")).strip().lower() == self.package:
                    versions.append(str(headers.get("Version", "")).strip())
        return versions[0] if len(versions) == 1 and versions[0] else None


def blob_of(content: bytes, like: str) -> str:
    """The hash by which git names this content, as long as another one: of a repository of SHA-1 or SHA-256."""
    blob = hashlib.new("sha256" if len(like) == 64 else "sha1", usedforsecurity=False)
    blob.update(b"blob %d\0" % len(content) + content)
    return blob.hexdigest()


class GitSource:
    """A revision in a git repository. Work tree and index are neither read nor changed, and no hook runs.

    `commit` is the full hash of the revision at the time of opening, and `repository` the folder in which git is asked.
    """

    def __init__(self, path: Path, revision: str, package: Package, label: str = "") -> None:
        self.label = label or f"{package.folder}@{path}#{revision}"
        self.package = package.folder
        self.repository = path if path.is_dir() else path.parent
        self.commit = self._resolve(revision)
        self._blobs = self._find_package(package)
        self._texts: dict[str, str] = {}
        self.version = _stated_version(self)

    def read(self, path: str) -> str:
        if _plain(path) not in self._blobs:
            raise FileNotFoundError(f"{self.label} has no {path}")
        if path not in self._texts:
            name, size = self._blobs[path]
            if size > MEMBER_BYTES_MAX:
                raise _too_large(self.label, path, size)
            content = self._git_or_raise("cat-file", "blob", name)
            self._texts[path] = _text(content, self.label, path)
        return self._texts[path]

    def exists(self, path: str) -> bool:
        return _plain(path) in self._blobs

    def blob(self, path: str) -> str:
        """The hash by which git names the content of a file, "" where there is none."""
        return self._blobs.get(path, ("", 0))[0]

    def paths(self, under: str) -> list[str]:
        return _below(self._blobs, under)

    def write(self, folder: Path) -> None:
        """Write the package below `folder`, its files as the commit has them: git runs no filter that the repository
        names, as `git archive` would. A file whose path is not plain is left out. UsageError where none can be written.
        """
        blobs = {path: name for path, (name, _size) in self._blobs.items() if _is_plain(path)}
        names = "".join(f"{name}\n" for name in blobs.values())
        answer, at = self._git_or_raise("cat-file", "--batch", question=names.encode()), 0
        try:
            for path in blobs:
                end_of_line = answer.index(b"\n", at)
                start, size = end_of_line + 1, int(answer[at:end_of_line].split()[2])
                file = folder / self.package / path
                file.parent.mkdir(parents=True, exist_ok=True)
                file.write_bytes(answer[start : start + size])
                at = start + size + 1
        except OSError as error:
            raise UsageError(
                f"{self.label} cannot be written in {folder.parent}: {error.strerror or error}",
                "free some space or name another folder with --cache-dir or SPECSIM_CACHE_DIR",
            ) from error

    def _resolve(self, revision: str) -> str:
        ended = resolved(self.label, self.repository, revision)
        if isinstance(ended, str):
            return ended
        said = ended.stderr.decode("utf-8", "replace").strip()
        if "not a git repository" in said:
            raise UsageError(
                f"{self.label}: {self.repository} is not in a git repository",
                "leave #REV away to read the folder as it is",
            )
        if "dubious ownership" in said:
            raise UsageError(
                f"{self.label}: git refuses {self.repository}, which belongs to another user",
                f"allow it with git config --global --add safe.directory {self.repository}",
            )
        if not said:  # by git merge-base
            raise UsageError(
                f"{self.label}: no commit is in the history both of {revision.removesuffix(MERGE_BASE)} and of HEAD",
                "give a branch that HEAD left; a shallow clone needs git fetch --unshallow",
            )
        named = revision.removesuffix(MERGE_BASE)
        local = named.rpartition("/")[2]
        there = local != named and isinstance(resolved(self.label, self.repository, local), str)
        branch = f"it has {local!r}" if there else "give a commit, a tag or a branch that it has"
        remedy = f"{branch}; a shallow clone may need git fetch first"
        raise UsageError(f"{self.label}: the repository has no commit {named!r}", remedy)

    def _find_package(self, package: Package) -> dict[str, tuple[str, int]]:
        """Object names and sizes in bytes of the package's regular files by path."""
        prefix = self._git_or_raise("rev-parse", "--show-prefix").decode("utf-8", "surrogateescape").strip("\n")
        for folder in dict.fromkeys([*(prefix + layout for layout in package.layouts), *package.layouts]):
            root = f"{folder.strip('/')}/" if folder.strip("/") else ""
            pathspec = ("--", root) if root else ()
            listed = self._git_or_raise("ls-tree", "-r", "-l", "-z", "--full-tree", self.commit, *pathspec)
            blobs: dict[str, tuple[str, int]] = {}
            for entry in listed.decode("utf-8", "surrogateescape").split("\0"):
                about, _, path = entry.partition("\t")
                if path.startswith(root) and about.startswith("100"):  # 120000 is a link, 160000 a submodule
                    _mode, _kind, name, size = about.split()
                    blobs[path.removeprefix(root)] = name, int(size) if size.isdigit() else 0
            if any(path.startswith(f"{package.marker}/") for path in blobs):
                return blobs
        raise package.missing(self.label)

    def _git_or_raise(self, *arguments: str, question: bytes = b"") -> bytes:
        ended = run_git(self.label, self.repository, *arguments, question=question)
        if ended.returncode:
            said = ended.stderr.decode("utf-8", "replace").strip().splitlines() or ["nothing"]
            raise UsageError(
                f"{self.label}: git {arguments[0]} fails: {said[-1]}", "check the repository with git fsck"
            )
        return ended.stdout


def _plain(path: str) -> str:
    """`path` itself, when it is relative, has no `..` and no second spelling."""
    if not _is_plain(path):
        raise ValueError(f"{path!r} is not a plain path relative to the package folder")
    return path


def _is_plain(path: str) -> bool:
    pure = PurePosixPath(path)
    odd = pure.as_posix() != path or path == "." or pure.is_absolute() or ".." in pure.parts
    return not (odd or "\\" in path or "\0" in path)


def _below(files: Collection[str], under: str) -> list[str]:
    folder = f"{_plain(under)}/" if under else ""
    return sorted(path for path in files if path.startswith(folder) and "__pycache__" not in path.split("/"))


def _too_large(label: str, path: str, size: int) -> UsageError:
    return UsageError(f"{label}: {path} has {size} bytes, and at most {MEMBER_BYTES_MAX} are read", "check the file")


def _text(content: bytes, label: str, path: str) -> str:
    try:
        return content.decode("utf-8-sig").replace("\r\n", "\n")
    except UnicodeDecodeError as error:
        raise UsageError(f"{label}: {path} is not UTF-8 text ({error.reason})", "check the file") from error


def _stated_version(source: SourceTree) -> str | None:
    """The literal `__version__` at the top level of version.py or, generated by a build, of _version.py."""
    for path in ("version.py", "_version.py"):
        if not source.exists(path):
            continue
        try:
            statements = ast.parse(source.read(path)).body
        except (SyntaxError, ValueError, UsageError):
            continue
        for statement in statements:
            targets = statement.targets if isinstance(statement, ast.Assign) else []
            if not any(isinstance(target, ast.Name) and target.id == "__version__" for target in targets):
                continue
            value = statement.value if isinstance(statement, ast.Assign) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str) and re.search(r"[0-9]", value.value):
                return value.value
    return None
