"""The folder of one input, and what must stay as it is around it."""

from __future__ import annotations

import hashlib
import os
import stat
from dataclasses import dataclass
from pathlib import Path

# What lies where in the folder of an input: `work` is the working folder of the run and has its input and outputs.
PLACES = ("work", "home", "cache", "tmp", "outside")
# Devices that a command must never replace: here as nodes of our own, and on the machine.
DEVICES = {"null": (1, 3), "full": (1, 7), "zero": (1, 5)}
MACHINE = ("/dev/null", "/dev/full", "/dev/zero", "/dev/stdout", "/dev/stderr", "/dev/tty")
Snapshot = dict[str, str]


@dataclass(frozen=True, slots=True)
class Folder:
    """The folder of one input."""

    path: Path

    @property
    def work(self) -> Path:
        return self.path / "work"

    @property
    def cache(self) -> Path:
        return self.path / "cache"

    def write(self, name: str, content: bytes | str) -> Path:
        """Write a file of the input below the working folder."""
        file = self.work / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(content.encode("utf-8", "surrogatepass") if isinstance(content, str) else content)
        return file


def made(path: Path) -> Folder:
    """A new folder with files around that nothing may touch, and things in it that are no plain files:

    `work/fifo`, `work/device/null` and `full` (where nodes may be made), `work/link` to a file, `work/dangling`,
    `work/loop`, `work/folder`, `work/file`, `work/outlink` to a file outside.
    """
    for place in PLACES:
        (path / place).mkdir(parents=True)
    folder = Folder(path)
    for name in ("home/.bashrc", "home/.config/pip/pip.conf", "outside/file", "outside/below/file.json"):
        (path / name).parent.mkdir(parents=True, exist_ok=True)
        (path / name).write_text("[global]\nno-index = true\n" if name.endswith(".conf") else f"{name}\n")
    (path / "outside" / "link").symlink_to("file")
    work = folder.work
    (work / "folder").mkdir()
    (work / "folder" / "kept").write_text("kept\n")
    (work / "file").write_text("kept\n")
    os.mkfifo(work / "fifo")
    for name, leads_to in (
        ("link", "linked"),
        ("dangling", "nowhere"),
        ("loop", "loop"),
        ("outlink", "../outside/file"),
    ):
        (work / name).symlink_to(leads_to)
    (work / "linked").write_text("kept\n")
    (work / "device").mkdir()
    for name, numbers in DEVICES.items():
        try:
            os.mknod(work / "device" / name, stat.S_IFCHR | 0o666, os.makedev(*numbers))
        except OSError:  # only root may, and not everywhere
            (work / "device" / name).write_text("no device\n")
    return folder


def snapshot(folder: Folder) -> Snapshot:
    """What is there, by path: kind, mode, and content. Of the cache, the folder for temporary files and what is below
    `work` alone the names are of use: `oracle` looks at what becomes of them.
    """
    found: Snapshot = {name: _described(Path(name)) for name in MACHINE}
    for at, folders, files in os.walk(folder.path):
        for name in (*folders, *files):
            path = Path(at, name)
            found[path.relative_to(folder.path).as_posix()] = _described(path)
    return found


def _described(path: Path) -> str:
    try:
        state = path.lstat()
    except OSError as error:
        return f"not there ({error.strerror})"
    kind = stat.S_IFMT(state.st_mode)
    if kind == stat.S_IFLNK:
        return f"link to {os.readlink(path)}"
    if kind == stat.S_IFCHR:
        return f"device {state.st_rdev}"
    if kind != stat.S_IFREG:
        return f"kind {kind:o}"
    with path.open("rb") as file:
        return f"file {state.st_mode:o} {hashlib.file_digest(file, 'md5').hexdigest()}"
