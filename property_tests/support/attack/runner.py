"""One run: a command on one input, in a session of its own, with limits, and what became of it."""

from __future__ import annotations

import contextlib
import ctypes
import faulthandler
import os
import resource
import signal
import stat
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from property_tests.support.attack import forked_children
from property_tests.support.attack.folder import Folder

ROOT = Path(__file__).parents[3]
MEMORY_MAX = 12 << 30
FILE_MAX = 64 << 20
SHOWN_MAX = 4 << 20
PROCESSES_MAX = 60
TOO_MANY = "more processes than a machine bears"
LOOK_SECONDS = 0.5
GRACE_SECONDS = 3.0  # for the children of a run that has ended to end too
_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
Output = Literal["file", "closed", "full", "broken"]


@dataclass(frozen=True, slots=True)
class Attack:
    """What is run on an input.

    `what`          one line for a reader: what is wrong with the input
    `arguments`     of specsim
    `limit_s`       seconds that it may take on an idle machine, start-up included
    `may_change`    paths below the working folder that the command may write: all others must stay
    `never_finding` whether exit code 1 is a wrong verdict
    `environment`   variables to set, None to unset
    `descriptors`   limit on open files, 0 for none
    `stdout`        where it prints to
    `cwd_removed`   whether its working folder is gone
    `fifo_is_read`  whether somebody reads from `work/fifo`
    """

    what: str
    arguments: tuple[str, ...]
    limit_s: float = 30.0
    may_change: frozenset[str] = frozenset()
    never_finding: bool = False
    environment: Mapping[str, str | None] = field(default_factory=dict)
    descriptors: int = 0
    stdout: Output = "file"
    cwd_removed: bool = False
    fifo_is_read: bool = False


@dataclass(frozen=True, slots=True)
class Ended:
    """How a run ended: `code` is None when it did not, `left` are the command lines of processes that it left."""

    code: int | None
    stdout: str
    stderr: str
    left: tuple[str, ...]
    seconds: float


def adopt_orphans() -> None:
    """Become the parent of every process below whose own parent ends: what a run leaves behind is found so. End when
    the process ends that this one is a fork of.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def environment_of(folder: Folder, attack: Attack) -> dict[str, str]:
    """The variables of a run: nothing of this process but where programs are."""
    plain = {
        "PATH": os.environ.get("PATH", os.defpath),
        "PYTHONPATH": str(ROOT),
        "PYTHONDONTWRITEBYTECODE": "1",
        "PYTHONIOENCODING": "utf-8",
        "HOME": str(folder.path / "home"),
        "TMPDIR": str(folder.path / "tmp"),
        "SPECSIM_CACHE_DIR": str(folder.cache),
        "TRITON_INTERPRET": "1",
        "TRITON_CACHE_DIR": str(folder.path / "cache" / "triton"),
        "TORCHINDUCTOR_CACHE_DIR": str(folder.path / "cache" / "inductor"),
        "OMP_NUM_THREADS": "1",
        "PIP_NO_INDEX": "1",
        "RUSTUP_HOME": str(folder.path / "cache" / "rustup"),  # pip asks rustc for its version
        "GIT_CEILING_DIRECTORIES": str(folder.path),
    }
    changed = {**plain, **attack.environment}
    return {name: value for name, value in changed.items() if value is not None}


def run(folder: Folder, attack: Attack, *, as_a_user: bool, patience: float = 1.0) -> Ended:
    """Run the attack; `patience` is what its limit is multiplied by. In a fork of this process, or `as_a_user`."""
    (folder.path / "streams").mkdir()
    started = time.monotonic()
    end = started + attack.limit_s * patience
    with _read(folder.work / "fifo" if attack.fifo_is_read else None) as drain:
        process = os.fork()
        if process == 0:
            with forked_children.end_as_python_does():
                _become(folder, attack, as_a_user, end - started)
        code, many = None, 0
        looked = started
        while code is None and time.monotonic() < end:
            drain()
            if time.monotonic() > looked + LOOK_SECONDS:
                looked = time.monotonic()
                many = len(_below())
                if many > PROCESSES_MAX:
                    break
            found, status = os.waitpid(process, os.WNOHANG)
            code = os.waitstatus_to_exitcode(status) if found else None
            time.sleep(0.005)
    seconds = time.monotonic() - started
    left = _left_behind() if code is not None else (TOO_MANY,) if many > PROCESSES_MAX else ()
    _end_all()
    return Ended(code, _shown(folder, "stdout"), _shown(folder, "stderr"), left, seconds)


def _become(folder: Folder, attack: Attack, as_a_user: bool, limit_s: float) -> None:
    """The run itself, in the process that is to become it."""
    os.setsid()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE):
        signal.signal(number, signal.SIG_DFL if number != signal.SIGPIPE else signal.SIG_IGN)
    os.chdir(folder.work)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    streams = folder.path / "streams"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
    os.dup2(os.open(streams / "stderr", flags, 0o600), 2)
    os.dup2(_stdout(attack.stdout, streams / "stdout", flags), 1)
    trace = os.open(streams / "stack", flags, 0o600)
    os.closerange(3, trace)
    os.closerange(trace + 1, 1 << 12)
    if attack.cwd_removed:
        gone = folder.path / "tmp" / "gone"
        gone.mkdir()
        os.chdir(gone)
        gone.rmdir()
    for limit, most in ((resource.RLIMIT_AS, MEMORY_MAX), (resource.RLIMIT_FSIZE, FILE_MAX), (resource.RLIMIT_CORE, 0)):
        resource.setrlimit(limit, (most, most))
    if attack.stdout == "closed":
        os.close(1)
    environment = environment_of(folder, attack)
    if as_a_user:
        if attack.descriptors:
            resource.setrlimit(resource.RLIMIT_NOFILE, (attack.descriptors, attack.descriptors))
        os.execve(sys.executable, [sys.executable, "-m", "specsim", *attack.arguments], environment)
    if limit_s > 1:
        faulthandler.dump_traceback_later(limit_s - 0.5, file=trace)
    if attack.descriptors:
        resource.setrlimit(resource.RLIMIT_NOFILE, (attack.descriptors, attack.descriptors))
    else:
        forked_children.install()
    forked_children.start("specsim", list(attack.arguments), environment)


def _stdout(kind: Output, file: Path, flags: int) -> int:
    if kind == "full":
        node = file.with_name("full")
        with contextlib.suppress(OSError):
            os.mknod(node, stat.S_IFCHR | 0o666, os.makedev(1, 7))
            return os.open(node, os.O_WRONLY)
        kind = "broken"
    if kind == "broken":
        reader, writer = os.pipe()
        os.close(reader)
        return writer
    return os.open(file, flags, 0o600)


@contextlib.contextmanager
def _read(fifo: Path | None) -> Iterator[Callable[[], None]]:
    """Read from the FIFO meanwhile, whenever what is yielded is called."""
    if fifo is None:
        yield lambda: None
        return
    fd = os.open(fifo, os.O_RDONLY | os.O_NONBLOCK)

    def drain() -> None:
        with contextlib.suppress(BlockingIOError):
            while os.read(fd, 1 << 16):
                pass

    try:
        yield drain
    finally:
        os.close(fd)


def _below() -> dict[int, str]:
    """Every process below this one, and its state."""
    parents: dict[int, tuple[int, str]] = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError):
            state, parent, *_ = Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()
            parents[int(pid)] = int(parent), state
    found: dict[int, str] = {}
    reached = {os.getpid()}
    while reached:
        reached = {pid for pid, (parent, _) in parents.items() if parent in reached and pid not in found}
        found |= {pid: parents[pid][1] for pid in reached}
    return found


def _left_behind() -> tuple[str, ...]:
    """The command lines of the processes that are still there when the run is over for a while, but for zombies."""
    end = time.monotonic() + GRACE_SECONDS
    while True:
        found = _below()
        alive = [pid for pid, state in found.items() if state != "Z"]
        for pid in found.keys() - set(alive):
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)
        if not alive or time.monotonic() > end:
            break
        time.sleep(0.05)
    lines = []
    for pid in alive:
        with contextlib.suppress(OSError):
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            lines.append(command.strip()[-200:])
    return tuple(lines)


def _end_all() -> None:
    """End every process below this one."""
    while found := _below():
        for number in (signal.SIGSTOP, signal.SIGKILL):  # what is stopped starts no more
            for pid in found:
                with contextlib.suppress(OSError):
                    os.kill(pid, number)
        with contextlib.suppress(OSError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        time.sleep(0.01)


def _shown(folder: Folder, name: str) -> str:
    file = folder.path / "streams" / name
    if not file.exists() or not file.is_file():
        return ""
    with file.open("rb") as opened:
        return opened.read(SHOWN_MAX).decode("utf-8", "surrogateescape")


def stack_of(folder: Folder) -> str:
    """Where a run that was ended stood, "" when that is not known."""
    file = folder.path / "streams" / "stack"
    return file.read_text(errors="replace") if file.is_file() else ""
