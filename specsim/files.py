"""The only place that writes files, and the reader of JSON and TOML files.

A regular file appears whole or not at all: it is written beside its place under a name that nobody can predict, which
must not be there yet, and then renamed over what was there, through a symbolic link to the link's target. It keeps the
permissions of what it replaces. Two writers of one name both succeed, and the file is one of theirs. A character
device, a FIFO, a socket or a descriptor of this process (`/dev/stdout`) is written as it is and stays what it is. A
folder or a block device is refused. `-` is standard output.

No lock is made but by `open_lock`, for a store. What this does not do: wait until the disk has what was written, or
clean up after `kill -9`.
"""

from __future__ import annotations

import contextlib
import errno
import io
import json
import math
import os
import re
import secrets
import select
import socket
import stat
import sys
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from specsim.errors import UsageError

STANDARD_OUTPUT = Path("-")
READER_SECONDS = 10.0  # after which nobody is expected to read a FIFO or a socket any more
LINKS_MAX = 40  # that Linux follows
REMEDY = "name a file in a folder that can be written"
_FULL = (errno.ENOSPC, errno.EDQUOT)
_POLL_SECONDS = 0.05
_DESCRIPTORS = re.compile(r"/proc/(\d+)(/task/\d+)?/fd")

_failures: list[UsageError] | None = None  # of the command that runs
_standard_output: Callable[[bytes], None] | None = None  # while it is one output's alone


# Writing


def write_bytes(file: Path, content: bytes) -> None:
    """Write `file`, and the folders above it; `-` is standard output. Raises UsageError where it cannot be written; a
    regular file then holds what it held before.
    """
    with _problems(file):
        if file == STANDARD_OUTPUT:
            (_standard_output or _print_to(sys.stdout))(content)
        elif (descriptor := _descriptor(file)) is not None:
            _flush()
            _write_all(descriptor, content)
        elif (found := _stat(file)) is None or stat.S_ISREG(found.st_mode):
            with whole(file) as opened:
                opened.write(content)
        elif stat.S_ISSOCK(found.st_mode):
            _send(file, content)
        else:
            with Appended(file) as appended:
                appended.add(content)


def write_text(file: Path, text: str) -> None:
    """Write text as UTF-8, as `write_bytes` does. Half of a surrogate pair, which UTF-8 cannot say, becomes the escape
    by which JSON says it.
    """
    write_bytes(file, text.encode("utf-8", "backslashreplace"))


def write_json(file: Path, data: Mapping[str, Any]) -> None:
    """Write `data` as JSON, as `write_text` does."""
    write_text(file, json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def append_text(file: Path, text: str) -> None:
    """Add text to the end of `file`, which is made when there is none. Raises UsageError where that fails."""
    with _problems(file), Appended(file) as appended:
        appended.add(text.encode("utf-8", "backslashreplace"))


def is_standard_output(file: Path) -> bool:
    """Whether `file` is `-` or stands for standard output, as /dev/stdout does."""
    with _problems(file):
        return file == STANDARD_OUTPUT or _descriptor(file) == 1


def is_replaced(file: Path) -> bool:
    """Whether a second `write_bytes` replaces what the first one wrote, and does not come after it."""
    with _problems(file):
        found = _stat(file)
        return file != STANDARD_OUTPUT and _descriptor(file) is None and (found is None or stat.S_ISREG(found.st_mode))


@contextmanager
def whole(file: Path) -> Iterator[BinaryIO]:
    """A regular file to write. It is there when the block ends well, and else what was there before. Raises OSError."""
    place = Path(os.path.realpath(file))
    place.parent.mkdir(parents=True, exist_ok=True)
    before = _stat(place)
    if before is not None and not os.access(place, os.W_OK):
        raise PermissionError(errno.EACCES, "it is read-only")
    unfinished = _beside(place)
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unfinished, flags, 0o666)
    try:
        with os.fdopen(descriptor, "wb") as opened:
            if before is not None:
                _keep_permissions(descriptor, before)
            yield opened
        os.replace(unfinished, place)
    except BaseException:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise


class Appended:
    """What is added to at its end: a regular file, which is made when there is none, a FIFO, a device, or standard
    output. Raises OSError.
    """

    def __init__(self, file: Path) -> None:
        self._is_shared = file == STANDARD_OUTPUT or _descriptor(file) is not None
        self._is_fifo = False
        self._descriptor = -1
        self._file = file
        if self._is_shared:
            return
        found = _stat(file)
        if found is not None and stat.S_ISBLK(found.st_mode):
            raise OSError(errno.EINVAL, "it is a disk")
        self._is_fifo = found is not None and stat.S_ISFIFO(found.st_mode)
        if found is None:
            Path(os.path.realpath(file)).parent.mkdir(parents=True, exist_ok=True)
        flags = os.O_WRONLY | os.O_APPEND | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC
        flags |= os.O_CREAT if found is None else 0
        self._descriptor = _with_a_reader(file, flags) if self._is_fifo else os.open(file, flags, 0o666)
        os.set_blocking(self._descriptor, not self._is_fifo)

    def add(self, content: bytes) -> None:
        """Add to the end."""
        if self._is_shared:
            write_bytes(self._file, content)
        else:
            _write_all(self._descriptor, content, READER_SECONDS if self._is_fifo else None)

    def close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __enter__(self) -> Appended:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()


def make_folder(folder: Path) -> None:
    """Make a folder and those above it, unless they are there. Raises OSError."""
    folder.mkdir(parents=True, exist_ok=True)


def open_lock(path: Path) -> int:
    """A descriptor of the lock file of a store, which is made when there is none, but not through a link. Raises
    OSError.
    """
    make_folder(path.parent)
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)


# Trying before the work


def try_file(file: Path) -> None:
    """Refuse with a UsageError what `write_bytes` would refuse. Leaves everything as it is."""
    with _problems(file):
        if file == STANDARD_OUTPUT:
            if sys.stdout is None:
                raise UsageError("standard output is closed", "name a file")
            return
        if _descriptor(file) is not None:
            return
        found = _stat(file)
        if found is None or stat.S_ISREG(found.st_mode):
            if found is not None and not os.access(file, os.W_OK):
                raise PermissionError(errno.EACCES, "it is read-only")
            try_folder(Path(os.path.realpath(file)).parent)
        elif stat.S_ISDIR(found.st_mode):
            raise UsageError(f"{file} is a folder", "name a file")
        elif stat.S_ISBLK(found.st_mode):
            raise UsageError(f"{file} is a disk", "name a file")
        elif not os.access(file, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        elif stat.S_ISCHR(found.st_mode):
            os.close(os.open(file, os.O_WRONLY | os.O_NOCTTY | os.O_NONBLOCK | os.O_CLOEXEC))


def try_folder(folder: Path) -> None:
    """Refuse with a UsageError a folder in which no file can be made. Leaves everything as it is."""
    with _problems(folder):
        _stat(folder)  # which a name that is too long has not
    parent = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    if not parent.is_dir():
        raise UsageError(f"{parent} is not a folder that can be written", "name another folder")
    tried = _beside(parent / "x")
    try:
        tried.mkdir()
        tried.rmdir()
    except OSError as error:
        raise UsageError(
            f"{parent} is not a folder that can be written ({error.strerror})", "name another folder"
        ) from error


# Of a command: what cannot be written is told at its end


def save_text(file: Path, text: str) -> None:
    """Write an output of the command that runs. Where that fails, the command goes on and says so at its end; without
    a command it is a UsageError.
    """
    attempt(lambda: write_text(file, text))


def save_json(file: Path, data: Mapping[str, Any]) -> None:
    """Write `data` as JSON, as `save_text` does."""
    attempt(lambda: write_json(file, data))


def attempt(write: Callable[[], object]) -> bool:
    """Do what writes an output; whether it was written. See `save_text`."""
    try:
        write()
    except UsageError as error:
        if not note_lost(error):
            raise
        return False
    return True


def note_lost(error: UsageError) -> bool:
    """Note for the end of the command that an output of it could not be written; whether there is a command."""
    if _failures is not None:
        _failures.append(error)
    return _failures is not None


@contextmanager
def command_outputs() -> Iterator[list[UsageError]]:
    """While a command runs: what it could not write, standard output among it."""
    global _failures
    before, _failures = _failures, []
    shown = sys.stdout
    if shown is sys.__stdout__ and isinstance(shown, io.TextIOWrapper):
        shown.flush()
        raw = _Printed(shown.fileno(), "wb", closefd=False)
        sys.stdout = io.TextIOWrapper(
            io.BufferedWriter(raw), shown.encoding, shown.errors, line_buffering=shown.line_buffering
        )
    try:
        yield _failures
    finally:
        if sys.stdout is not shown:
            sys.stdout.flush()
            sys.stdout = shown
        _failures = before


class _Printed(io.FileIO):
    """Standard output while a command runs. That a disk is full or a reader is gone loses what is printed, and nothing
    else.
    """

    def write(self, content: Any, /) -> int:
        try:
            return super().write(content)
        except OSError as error:
            problem = UsageError(f"cannot print ({error.strerror})", "the files that were asked for are written")
            if str(problem) not in map(str, _failures or ()):
                note_lost(problem)
            return len(content)


@contextmanager
def standard_output_alone() -> Iterator[None]:
    """Meanwhile standard output has nothing but what is written to `-`. What is printed goes to standard error."""
    global _standard_output
    shown, before = sys.stdout, _standard_output
    shown.flush()
    try:
        descriptor = shown.fileno()
    except (OSError, ValueError):  # not a file: a test's, a notebook's
        descriptor = -1
    kept = os.dup(descriptor) if descriptor >= 0 else -1
    try:
        _standard_output = (lambda content: _write_all(kept, content)) if kept >= 0 else _print_to(shown)
        sys.stdout = sys.stderr
        if kept >= 0:  # for what does not print through Python
            os.dup2(2, descriptor)
        yield
    finally:
        sys.stdout, _standard_output = shown, before
        if kept >= 0:
            os.dup2(kept, descriptor)
            os.close(kept)


# How


@contextmanager
def _problems(file: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        where = "standard output" if file == STANDARD_OUTPUT else str(file)
        remedy = "free some space, or name a file elsewhere" if error.errno in _FULL else REMEDY
        raise UsageError(f"cannot write {where} ({error.strerror or error})", remedy) from error


def _stat(file: Path) -> os.stat_result | None:
    try:
        return os.stat(file)
    except (FileNotFoundError, NotADirectoryError):  # also for a link that leads nowhere: its target is made
        return None


def _beside(place: Path) -> Path:
    return place.with_name(f".specsim-{secrets.token_hex(16)}.tmp")


def _keep_permissions(descriptor: int, before: os.stat_result) -> None:
    made = os.fstat(descriptor)
    if (made.st_uid, made.st_gid) != (before.st_uid, before.st_gid):
        with contextlib.suppress(PermissionError):
            os.fchown(descriptor, before.st_uid, before.st_gid)
    with contextlib.suppress(PermissionError):  # a file system without them
        os.fchmod(descriptor, stat.S_IMODE(before.st_mode) & 0o777)


def _descriptor(file: Path) -> int | None:
    """The number of the descriptor of this process that `file` stands for (/dev/stdout, /dev/fd/63), None for none."""
    for _ in range(LINKS_MAX):
        place = Path(os.path.realpath(file.parent)) / file.name
        folder = _DESCRIPTORS.fullmatch(str(place.parent))
        if folder is not None and int(folder[1]) == os.getpid() and place.name.isdigit():
            return int(place.name)
        if not place.is_symlink():
            return None
        file = place.parent / os.readlink(place)
    return None


def _write_all(descriptor: int, content: bytes, patience_seconds: float | None = None) -> None:
    """Write to a descriptor; when it does not block, wait so long for a reader to take more."""
    left = memoryview(content)
    while left:
        if patience_seconds is not None and not select.select([], [descriptor], [], patience_seconds)[1]:
            raise OSError(errno.ETIMEDOUT, f"nobody read from it for {patience_seconds:g} s")
        with contextlib.suppress(BlockingIOError):
            left = left[os.write(descriptor, left) :]


def _with_a_reader(file: Path, flags: int) -> int:
    """A descriptor of a FIFO as soon as somebody reads it."""
    end = time.monotonic() + READER_SECONDS
    while True:
        try:
            return os.open(file, flags)
        except OSError as error:
            if error.errno != errno.ENXIO:
                raise
            if time.monotonic() > end:
                raise OSError(errno.ENXIO, f"nobody opened it for reading within {READER_SECONDS:g} s") from None
        time.sleep(_POLL_SECONDS)


def _send(file: Path, content: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(READER_SECONDS)
        connection.connect(str(file))
        connection.sendall(content)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:
            stream.flush()


def _print_to(stream: Any) -> Callable[[bytes], None]:
    def write(content: bytes) -> None:
        if stream is None:
            raise OSError(errno.EBADF, "it is closed")
        stream.write(content.decode())
        stream.flush()

    return write


# JSON

JSON_BYTES_MAX = 64 << 20
JSON_DEPTH_MAX = 100
_BRACKET = re.compile(r'"(?:[^"\\]|\\.)*"|[\[\]{}]', re.DOTALL)


def read_json(file: Path, remedy: str, *, what: str = "", nan: bool = False) -> Any:
    """The JSON of a regular file. UsageError, with `remedy`, for what is none: a folder, a FIFO or a device, which are
    not waited for, more than JSON_BYTES_MAX, other text than UTF-8, what is cut off or nested too deeply, a field that
    is given twice, and NaN and infinities unless `nan`. `what` is said before the name of the file.
    """
    named = f"{what} {file}".strip()
    text = _text_of(file, named, remedy)

    def constant(name: str) -> float:
        if nan:
            return {"NaN": math.nan, "Infinity": math.inf}.get(name, -math.inf)
        raise UsageError(f"{named} holds {name}, which is no number of JSON", remedy)

    def fields(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            names = [name for name, _ in pairs]
            twice = next(name for name in names if names.count(name) > 1)
            raise UsageError(f"{named} gives {twice!r} twice in one object", remedy)
        return found

    if is_nested_too_deeply(text):
        raise UsageError(f"{named} is nested too deeply", remedy)
    try:
        return json.loads(text, parse_constant=constant, object_pairs_hook=fields)
    except ValueError as error:
        raise UsageError(f"{named} is not complete JSON ({error}), it may be truncated", remedy) from error


def read_toml(file: Path, remedy: str) -> dict[str, Any]:
    """The TOML of a regular file. UsageError, with `remedy`, for what is none, as by `read_json`."""
    try:
        return tomllib.loads(_text_of(file, str(file), remedy))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise UsageError(f"{file} is not TOML: {error}", remedy) from error


def is_nested_too_deeply(text: str) -> bool:
    """Whether brackets outside of strings are nested more deeply than JSON of ours. Python's own limit is met too late:
    what is collected then has no room left to be finalized in.
    """
    depth = deepest = 0
    for found in _BRACKET.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(found[0], 0)
        deepest = max(deepest, depth)
    return deepest > JSON_DEPTH_MAX


def _text_of(file: Path, named: str, remedy: str) -> str:
    try:
        descriptor = os.open(file, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            mode = os.fstat(descriptor).st_mode
            if not stat.S_ISREG(mode):
                kind = "a folder" if stat.S_ISDIR(mode) else "a FIFO, a socket or a device"
                raise UsageError(f"{named} is {kind} and not a regular file", remedy)
            with open(descriptor, "rb", closefd=False) as opened:
                data = opened.read(JSON_BYTES_MAX + 1)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise UsageError(f"cannot read {named} ({error.strerror})", remedy) from error
    except ValueError as error:  # a NUL in its name
        raise UsageError(f"cannot read {named!r} ({error})", remedy) from error
    if len(data) > JSON_BYTES_MAX:
        raise UsageError(f"{named} has more than {JSON_BYTES_MAX >> 20} MiB", remedy)
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{named} is not a text file in UTF-8", remedy) from error
