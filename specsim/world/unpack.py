"""A release's files in a folder, where they can be imported: its extension modules cannot be from a zip, and it looks
for folders of its own beside its modules.
"""

from __future__ import annotations

import hashlib
import os
from pathlib import Path, PurePosixPath

from specsim.errors import UsageError
from specsim.files import make_folder
from specsim.lifting.archive import ArchiveError, copy_member, open_archive
from specsim.lifting.cache import Cache

FOLDER = "imported"


def unpacked(wheel: Path, cache: Cache, part: str = "") -> Path:
    """The folder in the cache with all that a wheel holds; made when it is not there. `part` says of what is kept of
    one what that is. UsageError.
    """
    mark = f"-{hashlib.sha256(part.encode()).hexdigest()[:8]}" if part else ""
    folder = cache.path(f"{FOLDER}/{wheel.stem}{mark}")
    if folder.is_dir():
        return folder
    with cache.scratch() as scratch:
        made = scratch / "made"
        try:
            with open_archive(wheel) as archive:
                for name in archive.namelist():
                    if _is_plain(name):
                        target = made / name
                        make_folder(target.parent)
                        copy_member(archive, name, target)
            make_folder(folder.parent)
            os.rename(made, folder)
        except ArchiveError as error:
            raise UsageError(f"{wheel.name} cannot be unpacked: {error}", "fetch it again") from error
        except OSError as error:
            if folder.is_dir():  # another process was faster
                return folder
            raise UsageError(
                f"{wheel.name} cannot be unpacked in {folder.parent}: {error.strerror or error}",
                "free some space or name another folder with --cache-dir or SPECSIM_CACHE_DIR",
            ) from error
    return folder


def _is_plain(name: str) -> bool:
    path = PurePosixPath(name)
    return path.as_posix() == name and not path.is_absolute() and ".." not in path.parts
