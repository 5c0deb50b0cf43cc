"""Children of specsim as forks of the process that starts them: torch, which takes seconds to import, is there already,
and specsim is imported anew.

Only for the runs of the adversary. `subprocess.Popen` stays what it is, but for a command that runs a module of specsim
in this Python, with the same surroundings (variables, folder, descriptors, session). pip is answered as it answers
without a network. A PYTHONHASHSEED of its own needs a Python of its own, and gets it.
"""

from __future__ import annotations

import atexit
import concurrent.futures.thread
import contextlib
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import warnings
from collections.abc import Callable, Iterable, Mapping
from typing import Any

NO_NETWORK = "ERROR: Connection refused\n"
_PLAIN = subprocess.Popen._execute_child  # type: ignore[attr-defined]
_PATH_BEFORE = [*sys.path]


def install() -> None:
    """In this process and its forks, for good."""
    subprocess.Popen._execute_child = _execute_child  # type: ignore[attr-defined]


def _execute_child(self: Any, args: Any, *rest: Any) -> None:
    _executable, preexec, _close, passed, cwd, env, _info, _flags, shell, *pipes = rest
    stdin, from_stdin, to_stdout, stdout, to_stderr, stderr, *others = pipes
    *_others, new_session, group = others
    module = args[2] if isinstance(args, list | tuple) and args[:2] == [sys.executable, "-m"] else ""
    surroundings = os.environ if env is None else env
    same_hashes = surroundings.get("PYTHONHASHSEED") == os.environ.get("PYTHONHASHSEED")
    if not (module.split(".")[0] in ("specsim", "pip") and same_hashes and not shell):
        _PLAIN(self, args, *rest)
        return
    streams = [fd if fd != -1 else number for number, fd in enumerate((stdin, stdout, stderr))]
    self.pid = os.fork()
    if self.pid == 0:
        with end_as_python_does():
            if new_session:
                os.setsid()
            elif group is not None and group >= 0:
                os.setpgid(0, group)
            if preexec is not None:
                preexec()
            _take(streams, passed)
            _forget_specsim()
            start(module, list(args[3:]), dict(surroundings), cwd)
    self._child_created = True
    self._close_pipe_fds(stdin, from_stdin, to_stdout, stdout, to_stderr, stderr)


def _take(streams: list[int], passed: Iterable[int]) -> None:
    """Make these the descriptors 0 to 2, and close all others but those that are passed."""
    apart = [os.dup(fd) for fd in streams]
    for number, fd in enumerate(apart):
        os.dup2(fd, number)
    kept = {0, 1, 2, *passed}
    for fd in kept:
        os.set_inheritable(fd, True)
    for name in os.listdir("/proc/self/fd"):
        if int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))


def _forget_specsim() -> None:
    """No module of specsim was imported, and no thread of the process that this is a fork of is waited for."""
    concurrent.futures.thread._threads_queues.clear()  # type: ignore[attr-defined]
    for name in [name for name in sys.modules if name.split(".")[0] == "specsim"]:
        del sys.modules[name]


def start(module: str, arguments: list[str], environment: Mapping[str, str], cwd: Any = None) -> None:
    """Run a module as `python -m` does, in this process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if cwd is not None:
        os.chdir(cwd)
    os.environ.clear()
    os.environ.update(environment)
    try:
        here = os.getcwd()
    except OSError:  # it is gone
        here = ""
    sys.path[:] = [here, *filter(None, environment.get("PYTHONPATH", "").split(os.pathsep)), *_PATH_BEFORE]
    sys.argv = [module, *arguments]
    for name, fd, mode in (("stdin", 0, "r"), ("stdout", 1, "w"), ("stderr", 2, "w")):
        setattr(sys, name, _stream(fd, mode))
    if module == "pip":
        sys.stderr.write(NO_NETWORK)
        raise SystemExit(1)
    sys.modules.pop(module, None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        runpy.run_module(module if module != "specsim" else "specsim.__main__", run_name="__main__", alter_sys=True)


def _stream(fd: int, mode: str) -> Any:
    try:
        os.fstat(fd)
        errors = "backslashreplace" if fd == 2 else None
        return open(fd, mode, encoding="utf-8", errors=errors, closefd=False, buffering=1 if fd == 2 else -1)
    except OSError:  # closed, and None as in any Python that finds it so
        return None


class end_as_python_does(contextlib.AbstractContextManager[None]):  # noqa: N801 - read as a statement
    """End this process where the block ends, as Python ends: what was raised is printed, buffers are written."""

    def __exit__(self, _kind: object, error: BaseException | None, _where: object) -> bool:
        code = _code_of(error)
        steps: list[Callable[[], object]] = [threading._shutdown, atexit._run_exitfuncs]  # type: ignore[attr-defined]
        for step in steps:
            try:
                step()
            except BaseException:
                traceback.print_exc()
        for stream in (sys.stdout, sys.stderr):
            try:
                if stream is not None:
                    stream.flush()
            except BaseException as failed:
                code = 120
                with contextlib.suppress(BaseException):
                    print(f"Exception ignored in: {stream}\n{type(failed).__name__}: {failed}", file=sys.stderr)
        os._exit(code)


def _code_of(error: BaseException | None) -> int:
    if error is None:
        return 0
    if isinstance(error, SystemExit):
        if error.code is None or isinstance(error.code, int):
            return (error.code or 0) & 0xFF
        print(error.code, file=sys.stderr)
        return 1
    with contextlib.suppress(BaseException):
        traceback.print_exception(error)
    return 130 if isinstance(error, KeyboardInterrupt) else 1
