"""The folder in which specsim keeps what it fetched and wrote for itself: the only one it writes unasked.

A file appears in it whole or not at all (`specsim.files.whole`), and two processes that store the same file both
succeed. What this does not do: bound the size of the folder, or clean up after `kill -9`.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

from specsim.errors import UsageError
from specsim.files import make_folder, whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_REMEDY = "free some space or name another folder with --cache-dir or SPECSIM_CACHE_DIR"


def open_cache(option: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> Cache:
    """The cache: `option`, else SPECSIM_CACHE_DIR, else specsim/ in XDG_CACHE_HOME, else in ~/.cache.

    Empty values count as absent, and so does a relative XDG_CACHE_HOME, as its specification asks. Nothing is
    created yet.
    """
    chosen = str(option or "") or environ.get("SPECSIM_CACHE_DIR", "")
    xdg = environ.get("XDG_CACHE_HOME", "")
    if not chosen:
        chosen = os.path.join(xdg if os.path.isabs(xdg) else "~/.cache", "specsim")
    try:
        return Cache(Path(chosen).expanduser().absolute())
    except RuntimeError:
        raise UsageError(
            f"the cache folder {chosen} cannot be found, since the home folder is unknown",
            "name a folder with --cache-dir or SPECSIM_CACHE_DIR",
        ) from None


@dataclass(frozen=True, slots=True)
class Cache:
    """Files by relative names ("lifted/HASH.py") below `folder`, an absolute path that may not exist yet."""

    folder: Path

    def path(self, relative_name: str) -> Path:
        """Where that file is or would be. `ValueError` for a name that could lead out of the folder."""
        pure = PurePosixPath(relative_name)
        plain = pure.as_posix() == relative_name and relative_name not in ("", ".")
        if not plain or pure.is_absolute() or ".." in pure.parts or set("\\\0:") & set(relative_name):
            raise ValueError(f"{relative_name!r} is not a plain relative name")
        return self.folder / pure

    def store_text(self, relative_name: str, text: str) -> Path:
        """Write `text` as UTF-8; returns the path. A file that holds it already stays, so a filled cache may be
        read-only. `UsageError` when the folder cannot take it.
        """
        content = text.encode()
        if self._holds(relative_name, content):
            return self.path(relative_name)
        return self._store(relative_name, lambda file: file.write(content))

    def store_file(self, relative_name: str, source_path: Path) -> Path:
        """Copy the file at `source_path`; returns the copy. `UsageError` when the folder cannot take it."""
        with source_path.open("rb") as source:
            return self._store(relative_name, lambda file: shutil.copyfileobj(source, file))

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """An empty folder of the caller's own inside the cache, removed at the end, whatever the end is."""
        folder = self.folder / f".scratch-{os.getpid()}-{secrets.token_hex(16)}"
        try:
            make_folder(folder)
        except OSError as error:
            raise self._unwritable(folder, error) from error
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _holds(self, relative_name: str, content: bytes) -> bool:
        try:
            with self.path(relative_name).open("rb") as file:
                return file.read(len(content) + 1) == content
        except OSError:
            return False

    def _store(self, relative_name: str, write: Callable[[BinaryIO], object]) -> Path:
        path = self.path(relative_name)
        try:
            with whole(path) as file:
                write(file)
        except OSError as error:
            raise self._unwritable(path, error) from error
        return path

    def _unwritable(self, path: Path, error: OSError) -> UsageError:
        return UsageError(f"cannot write {path} in the cache: {error.strerror or error}", _REMEDY)
