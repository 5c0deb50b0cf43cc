"""The process that ends others when the one that started them is gone, however that went: `python -I -S guard.py`.

Its standard input is a pipe that only that process writes to: "+PID" for a process group that began, "-PID" for one
that is over. When the pipe closes, the groups that are left are killed. Imports nothing of specsim: it starts in
milliseconds.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)


def main() -> None:
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    groups: set[int] = set()
    for line in sys.stdin.buffer:
        change = groups.add if line.startswith(b"+") else groups.discard
        change(int(line[1:]))
    for group in groups:
        with contextlib.suppress(OSError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    main()
