"""Reading a zip, such as a wheel, that may be damaged or made to do harm: of each member at most a stated number of
bytes, and one error for all that can be wrong with it.
"""

from __future__ import annotations

import io
import lzma
import struct
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO

from specsim.files import whole

MEMBER_BYTES_MAX = 32 << 20  # of a source file or of METADATA; the largest of SGLang's is below 1 MiB
LIBRARY_BYTES_MAX = 4 << 30  # of a library of CUDA code
ARCHIVE_BYTES_MAX = 4 << 30  # of a zip that is held in memory
TOTAL_BYTES_MAX = 16 << 30  # of all members, where each is read

_FAILURES = (
    OSError,
    EOFError,
    NotImplementedError,  # a compression method that this Python does not have
    RuntimeError,  # it is encrypted
    ValueError,  # of which UnicodeDecodeError is one
    OverflowError,
    struct.error,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
)


class ArchiveError(Exception):
    """Why a zip or a member of it cannot be read, as the end of a sentence."""


def open_archive(file: Path | BinaryIO) -> zipfile.ZipFile:
    """The zip in `file`, open. Raises ArchiveError."""
    try:
        return zipfile.ZipFile(file)
    except _FAILURES as error:
        raise ArchiveError(f"it cannot be read as a zip ({error})") from error


def read_archive(path: Path) -> zipfile.ZipFile:
    """The zip at `path`, held in memory. Raises ArchiveError."""
    try:
        size = path.stat().st_size
        if size > ARCHIVE_BYTES_MAX:
            raise ArchiveError(f"it has {size} bytes, and at most {ARCHIVE_BYTES_MAX} are read")
        return open_archive(io.BytesIO(path.read_bytes()))
    except OSError as error:
        raise ArchiveError(f"it cannot be read ({error.strerror or error})") from error


def read_member(archive: zipfile.ZipFile, name: str, bytes_max: int = MEMBER_BYTES_MAX) -> bytes:
    """The content of the member `name`. Raises ArchiveError when it is damaged or larger than `bytes_max`."""
    try:
        info = archive.getinfo(name)
        _require_size(info, bytes_max)
        with archive.open(info) as member:
            # zipfile reads no more than the size that the zip states, whatever the compressed bytes hold.
            return member.read()
    except KeyError:
        raise ArchiveError(f"it has no entry {name}") from None
    except _FAILURES as error:
        raise ArchiveError(f"its entry {name} cannot be read ({error or type(error).__name__})") from error


def copy_member(archive: zipfile.ZipFile, name: str, to: Path, bytes_max: int = LIBRARY_BYTES_MAX) -> None:
    """Write the member `name` to the file `to`, piece by piece. Raises ArchiveError as `read_member` does."""
    try:
        info = archive.getinfo(name)
        _require_size(info, bytes_max)
        with archive.open(info) as member, whole(to) as written:
            while piece := member.read(1 << 20):
                written.write(piece)
    except _FAILURES as error:
        raise ArchiveError(f"its entry {name} cannot be read ({error or type(error).__name__})") from error


def require_undamaged(archive: zipfile.ZipFile) -> None:
    """Read each member to its end. Raises ArchiveError for the first that is damaged, and for too many bytes."""
    total = sum(info.file_size for info in archive.infolist())
    if total > TOTAL_BYTES_MAX:
        raise ArchiveError(f"its entries have {total} bytes, and at most {TOTAL_BYTES_MAX} are read")
    for info in archive.infolist():
        try:
            with archive.open(info) as member:
                while member.read(1 << 20):
                    pass
        except _FAILURES as error:
            raise ArchiveError(f"its entry {info.filename} is damaged ({error or type(error).__name__})") from error


def _require_size(info: zipfile.ZipInfo, bytes_max: int) -> None:
    if info.file_size > bytes_max:
        raise ArchiveError(f"its entry {info.filename} has {info.file_size} bytes, and at most {bytes_max} are read")
