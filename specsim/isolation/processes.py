"""Starting and ending processes: each is a group of its own, which is killed as one, and none outlives this process.

A group is killed when its work is over (`end`), and by the guard (`specsim.isolation.guard`) when this process is gone,
be it by `kill -9`. A fork dies with the process that forked it. A process that leaves its group (`setsid`) is out of
reach of both.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, NamedTuple

from specsim import interrupts
from specsim.isolation import guard

_PR_SET_PDEATHSIG = 1
_ADDR_NO_RANDOMIZE = 0x0040000
_ASKS_PERSONALITY = 0xFFFFFFFF
_POLL_SECONDS = 0.001


class CommandOutput(NamedTuple):
    """What a command printed, and its exit status."""

    returncode: int
    stdout: str
    stderr: str


class _OwnGuard:
    """This process' guard, started with the first group."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._writer = -1
        self._groups: set[int] = set()

    def add(self, group: int) -> None:
        with self._lock:
            self._groups.add(group)
            self._tell(f"+{group}\n")

    def remove(self, group: int) -> None:
        with self._lock:
            if group in self._groups:
                self._groups.remove(group)
                self._tell(f"-{group}\n")

    def _tell(self, text: str) -> None:
        """Tell the guard; where it was killed, start another one and tell it all."""
        try:
            os.write(self._started(), text.encode())
        except BrokenPipeError:
            self._close()
            os.write(self._started(), "".join(f"+{group}\n" for group in sorted(self._groups)).encode())

    def close(self) -> None:
        """Let the guard end, after what is left."""
        with self._lock:
            self._close()

    def forget(self) -> None:
        """In a fork: the groups are its parent's, and the guard must see when that one is gone."""
        self._lock = threading.Lock()
        self._groups = set()
        if self._process is not None:
            self._process.returncode = 0  # it is no child of this process
            self._close()

    def _started(self) -> int:
        if self._process is None:
            reader, self._writer = os.pipe()
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", guard.__file__],
                stdin=reader,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                cwd="/",
                env={},
                start_new_session=True,
            )
            os.close(reader)
        return self._writer

    def _close(self) -> None:
        if self._process is not None:
            os.close(self._writer)
            self._process.wait()
            self._process = None


_guarded = _OwnGuard()
os.register_at_fork(after_in_child=_guarded.forget)
atexit.register(_guarded.close)


@contextlib.contextmanager
def _same_addresses() -> Iterator[None]:
    """What this thread starts in here has its memory at the addresses at which it had it the last time, where the
    system lets us say so: functions and classes are hashed by them.
    """
    personality = ctypes.CDLL(None).personality
    personality.argtypes, personality.restype = [ctypes.c_ulong], ctypes.c_int
    before = personality(_ASKS_PERSONALITY)
    if before >= 0:
        personality(before | _ADDR_NO_RANDOMIZE)
    try:
        yield
    finally:
        if before >= 0:
            personality(before)


def start(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    stdin: int | IO[Any] = subprocess.DEVNULL,
    stdout: int | IO[Any] = subprocess.DEVNULL,
    stderr: int | IO[Any] = subprocess.DEVNULL,
    pass_fds: Sequence[int] = (),
    cwd: Path | None = None,
    holds_interrupts: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a command in a group of its own. Whoever starts it calls `end`. Every descriptor but `pass_fds` is closed
    in it. With `holds_interrupts` it begins with interrupts held back, until it can note them (`interrupts.listen`).
    """
    with _same_addresses(), interrupts.held() if holds_interrupts else contextlib.nullcontext():
        process = subprocess.Popen(
            command,
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            pass_fds=pass_fds,
            cwd=cwd,
            env=dict(environment),
            start_new_session=True,
        )
    _guarded.add(process.pid)
    return process


def end(process: subprocess.Popen[Any]) -> int:
    """Kill what is left of a process that `start` started, and of its group; returns its exit status."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    code = process.wait()
    _guarded.remove(process.pid)
    return code


def run(
    command: Sequence[str],
    question: str = "",
    timeout: float | None = None,
    *,
    environment: Mapping[str, str] = os.environ,
    cwd: Path | None = None,
) -> CommandOutput:
    """Run a command of ours, no target's, with `question` as its input; an interrupt of this process is one of it.
    Raises subprocess.TimeoutExpired.
    """
    process = start(
        command, environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=cwd
    )
    try:
        with interrupts.passed_on(process.pid):
            printed, said = process.communicate(question.encode(), timeout)
    finally:
        code = end(process)
    return CommandOutput(code, printed.decode(errors="replace"), said.decode(errors="replace"))


def fork(own_group: bool = False) -> int:
    """As os.fork; the fork dies with the process that forked it, even when that one is killed meanwhile. With
    `own_group` it is a group of its own, which `end_fork` ends.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        if own_group:
            os.setpgid(0, 0)
        die_with(parent)
    elif own_group:
        with contextlib.suppress(OSError):  # the fork did it, or is over: whoever is first
            os.setpgid(pid, pid)
        _guarded.add(pid)
    return pid


def end_fork(pid: int, patience_seconds: float = 0.0) -> int:
    """Kill what is left of a fork with a group of its own, and of the group; returns its exit status as `end` does. One
    that is ending by itself has `patience_seconds` for it.
    """
    end = time.monotonic() + patience_seconds
    done, status = os.waitpid(pid, os.WNOHANG)
    while not done and time.monotonic() < end:
        time.sleep(_POLL_SECONDS)
        done, status = os.waitpid(pid, os.WNOHANG)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)
    if not done:
        _, status = os.waitpid(pid, 0)
    _guarded.remove(pid)
    return os.waitstatus_to_exitcode(status)


class Patience:
    """Whether a process has had `seconds` for what it does now. One that is ready to run and gets no core has not: on a
    busy machine the wall clock alone would call slow what hangs not at all. `pid` 0 is a process that is not known.
    """

    def __init__(self, pid: int, seconds: float) -> None:
        self._pid = pid
        self._seconds = seconds
        self._began = time.monotonic()
        self._cpu = _running(pid).cpu_seconds

    @property
    def left(self) -> float:
        """Seconds until `is_over` is worth a look, at least a moment."""
        return max(_POLL_SECONDS, self._began + self._seconds - time.monotonic())

    @property
    def is_over(self) -> bool:
        waited = time.monotonic() - self._began
        if waited <= self._seconds:
            return False
        now = _running(self._pid)
        had_its_share = now.cpu_seconds - self._cpu >= self._seconds * _SHARE
        return had_its_share or not now.is_ready or waited > self._seconds * _PATIENCE_MAX


_SHARE = 0.5  # of its seconds, that a process which runs has had of a core
_PATIENCE_MAX = 20


class _Running(NamedTuple):
    """Of a process: whether it runs or is ready to, and its CPU time."""

    is_ready: bool = False
    cpu_seconds: float = 0.0


def _running(pid: int) -> _Running:
    try:
        state, *numbers = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except (OSError, ValueError):
        return _Running()
    return _Running(state == "R", (int(numbers[10]) + int(numbers[11])) / os.sysconf("SC_CLK_TCK"))


def die_with(parent: int) -> None:
    """Let this process be killed when its parent `parent` ends. The kernel looks at the parent's thread that made it:
    call it where that is the main thread.
    """
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it ended before it could be noticed
        os._exit(1)
