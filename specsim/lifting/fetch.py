"""Fetching a release of a package: its wheel alone, once, with pip, into the cache.

Only the Python source in the wheel is read, straight from the zip, so the wheel may be built for another
Python or platform, its dependencies are not needed and nothing is unpacked, installed or run. The version
asked for is the version used: pip's answer is checked against the wheel's own metadata. A wheel that the
user put into the folder `wheels` of the cache by hand is as good as a fetched one.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from packaging.version import Version

from specsim.errors import UsageError
from specsim.lifting.archive import ArchiveError, open_archive, read_member, require_undamaged
from specsim.lifting.checksums import note, require_noted
from specsim.lifting.versions import is_version, nearest_versions

if TYPE_CHECKING:
    from pathlib import Path

    from specsim.lifting.cache import Cache
    from specsim.lifting.package import Package

WHEELS = "wheels"

_PIP = ("-m", "pip", "download", "--no-deps", "--only-binary=:all:")
_PIP_QUIET = ("--disable-pip-version-check", "--no-input", "--retries", "1")
_PYTHONS = ("3.10", "3.11", "3.12", "3.13")
_PLATFORMS = (
    "manylinux_2_34_x86_64",
    "manylinux_2_28_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_34_aarch64",
    "manylinux_2_28_aarch64",
    "manylinux2014_aarch64",
    "macosx_14_0_arm64",
    "any",
)

_NO_PIP = re.compile(r"No module named '?pip\b")
_DISK_FULL = re.compile(r"No space left on device|\[Errno 28\]|Disk quota exceeded|\[Errno 122\]")
_NETWORK_CAUSE = re.compile(  # what a person understands, in the words of the system and of HTTP
    r"Temporary failure in name resolution|Name or service not known|getaddrinfo failed|nodename nor servname"
    r"|Network is unreachable|Connection refused|Connection reset by peer|CERTIFICATE_VERIFY_FAILED"
    r"|Tunnel connection failed[^'\")]*|(?:[Rr]ead |[Cc]onnection )?timed out"
    r"|HTTP error \d{3}|\d{3} (?:Client|Server) Error"
)
_NO_NETWORK = re.compile(  # what pip wraps it in
    r"Retrying \(Retry\(|Max retries exceeded|NewConnectionError|ConnectTimeoutError|ReadTimeoutError"
    rf"|ProxyError|SSLError|RemoteDisconnected|{_NETWORK_CAUSE.pattern}"
)
_FROM_VERSIONS = re.compile(r"\(from versions: ([^)]*)\)")
_NO_MATCH = re.compile(r"Could not find a version that satisfies|No matching distribution found")
_CREDENTIALS = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, slots=True)
class PipResult:
    """How a run of pip ended."""

    code: int
    stderr: str


PipRunner = Callable[[Sequence[str]], PipResult]


def run_pip(command: Sequence[str]) -> PipResult:
    """Run pip, without a terminal to ask questions on. When it cannot even start, that is its result."""
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
            encoding="utf-8",
            errors="replace",
        )
    except OSError as error:
        return PipResult(127, f"No module named pip: {command[0]!r} does not start: {error.strerror or error}")
    return PipResult(ended.returncode, ended.stderr)


def fetch_wheel(package: Package, version: str, cache: Cache, *, pip: PipRunner = run_pip) -> Path:
    """The wheel of that release: the cached one, else fetched and checked. At most five runs of pip.

    Raises `UsageError` when pip cannot deliver it, delivers something else, or the cache cannot take it.
    Whatever happens, nothing half-written stays behind.
    """
    if not is_version(version):
        raise UsageError(f"{version!r} is not a version of {package.name}", "give the exact number of a release")
    place = cache.path(f"{WHEELS}/{package.folder}-{version}")  # one note a version, whatever tags the wheel's name has
    for path in _cached(package, cache, version):
        if wheel_problem(path, package, version) is None:
            require_noted(place, path)
            return path
    with cache.scratch() as scratch:
        download(package.folder, version, cache, scratch, pip)
        wheels = sorted(scratch.glob("*.whl"))
        if len(wheels) != 1:
            raise UsageError(
                f"pip ended well but left {len(wheels)} wheels for {package.folder}=={version}",
                _by_hand(package.folder, version, cache),
            )
        problem = wheel_problem(wheels[0], package, version, read_all=True)
        if problem is not None:
            raise UsageError(
                f"pip delivered {wheels[0].name} for {package.folder}=={version}, but {problem}",
                "look at the package index that pip is configured to use (pip config list)",
            )
        tags = wheels[0].name.split("-", 2)[-1]
        stored = cache.store_file(f"{WHEELS}/{package.folder}-{version}-{tags}", wheels[0])
        note(place, stored)
        return stored


def cached_wheels(package: Package, cache: Cache) -> list[str]:
    """The versions that `fetch_wheel` has without pip, oldest first."""
    found: set[str] = set()
    for path in _cached(package, cache, "*"):
        version = path.name.split("-")[1]
        if is_version(version) and version not in found and wheel_problem(path, package, version) is None:
            found.add(version)
    return sorted(found, key=Version)


def wheel_problem(path: Path, package: Package, version: str | None = None, *, read_all: bool = False) -> str | None:
    """Why the file is not the package's wheel (of `version`, if given), as the end of a sentence; None when it is.

    `read_all` reads every entry to the end and so finds damage in the middle of the file.
    """
    try:
        with open_archive(path) as wheel:
            names = wheel.namelist()
            metadata = _metadata_names(wheel)
            if len(metadata) != 1:
                return f"it has {len(metadata)} dist-info/METADATA and is no wheel"
            name, found = _name_and_version(wheel, metadata[0])
            if read_all:
                require_undamaged(wheel)
    except ArchiveError as error:
        return str(error)
    if re.sub(r"[-_.]+", "-", name).lower() != package.folder:
        return f"it is the package {name!r}"
    if version is not None and found != version:
        return f"its metadata says version {found!r}"
    marker = f"{package.folder}/{package.marker}"
    if not any(entry.startswith(f"{marker}/") for entry in names):
        return f"it has no folder {marker}"
    return None


def wheel_version(path: Path) -> str | None:
    """The version in the metadata of a wheel for which `wheel_problem` is None."""
    with open_archive(path) as wheel:
        return _name_and_version(wheel, _metadata_names(wheel)[0])[1] or None


def _metadata_names(wheel: zipfile.ZipFile) -> list[str]:
    return [name for name in wheel.namelist() if re.fullmatch(r"[^/]+\.dist-info/METADATA", name)]


def _name_and_version(wheel: zipfile.ZipFile, metadata: str) -> tuple[str, str]:
    headers = HeaderParser().parsestr(read_member(wheel, metadata).decode("utf-8", "replace"))
    return str(headers.get("Name", "")).strip(), str(headers.get("Version", "")).strip()


def _cached(package: Package, cache: Cache, version: str) -> list[Path]:
    """Wheels in the cache by their names alone. The version in a wheel's name has no '-'."""
    try:
        return sorted((cache.folder / WHEELS).glob(f"{package.folder}-{version}-*.whl"))
    except OSError:
        return []


def download(
    distribution: str, version: str, cache: Cache, scratch: Path, pip: PipRunner = run_pip, by_hand: str = ""
) -> None:
    """The wheel of a release into the folder `scratch`. Raises UsageError when pip cannot deliver it; its remedy is a
    command to fetch the wheel by hand, followed by `by_hand`.

    pip's own tags first; when it has no match for them, those for which engines' wheels are built.
    """
    foreign = [
        ("--implementation", "cp", "--python-version", python, *_each("--platform", _PLATFORMS)) for python in _PYTHONS
    ]
    known: set[str] = set()
    for tags in [(), *foreign]:
        result = pip([sys.executable, *_PIP, *_PIP_QUIET, *tags, "-d", str(scratch), f"{distribution}=={version}"])
        if result.code == 0:
            return
        known |= _known_versions(result.stderr)
        failure = _failure(distribution, version, result.stderr, known, cache, by_hand)
        if failure is not None:
            raise failure
    if not known:
        raise UsageError(
            f"pip finds no release of {distribution} at all, so not {version} either",
            "look at the package index that pip is configured to use (pip config list)",
        )
    raise UsageError(
        f"there is no release {distribution}=={version} that pip can find",
        f"the nearest are {', '.join(nearest_versions(version, known))}",
    )


def _each(option: str, values: Iterable[str]) -> list[str]:
    return [word for value in values for word in (option, value)]


def _known_versions(stderr: str) -> set[str]:
    listed = ",".join(_FROM_VERSIONS.findall(stderr)).split(",")
    return {version.strip() for version in listed if is_version(version.strip())}


def _failure(
    distribution: str, version: str, stderr: str, known: set[str], cache: Cache, by_hand: str
) -> UsageError | None:
    """What stopped pip; None when it merely has no match for the tags, so that other tags are worth a try.

    The order matters: without a network pip says that there is no matching version, too.
    """
    what = f"cannot fetch {distribution}=={version}"
    instead = f"{_by_hand(distribution, version, cache)}{by_hand}"
    if _NO_PIP.search(stderr):
        return UsageError(
            f"{what}: {sys.executable or 'this Python'} has no pip",
            f"install it with python -m ensurepip, or put the wheel into {cache.folder / WHEELS} by hand",
        )
    if _DISK_FULL.search(stderr):
        return UsageError(
            f"{what}: no space left in {cache.folder} or in the folder for temporary files",
            "free some space or name another folder with --cache-dir or SPECSIM_CACHE_DIR (and TMPDIR)",
        )
    if _NO_NETWORK.search(stderr):
        cause = _NETWORK_CAUSE.search(stderr)
        reason = cause[0] if cause else "pip could not connect"
        partly = f"; what it could reach has {', '.join(nearest_versions(version, known))}" if known else ""
        return UsageError(
            f"{what}: no connection to the package index ({reason}{partly})",
            f"try again with a connection (pip's own settings apply), or {instead}",
        )
    if _NO_MATCH.search(stderr):
        return None
    return UsageError(f"{what}: pip says {_last_error(stderr)!r}", instead)


def _last_error(stderr: str) -> str:
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line.removeprefix("ERROR:").strip() for line in lines if line.startswith("ERROR:")]
    return _CREDENTIALS.sub("", (errors or lines or ["nothing"])[-1])


def _by_hand(distribution: str, version: str, cache: Cache) -> str:
    command = ("python", *_PIP, "-d", str(cache.folder / WHEELS), f"{distribution}=={version}")
    return f"fetch it by hand with: {shlex.join(command)}"
