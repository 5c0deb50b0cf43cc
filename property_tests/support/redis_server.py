"""A Redis server of the test's own."""

from __future__ import annotations

import socket
import subprocess
import time
from pathlib import Path

HOW_TO_ADD = "needs a redis-server and its client: apt-get install redis-server; pip install 'specsim[redis]'"


class RedisServer:
    """A redis-server on loopback that can be ended and started again, empty, at the same port."""

    def __init__(self, folder: Path, *options: str) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self._folder = folder
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        options = ["--port", str(self.port), "--bind", "127.0.0.1", "--save", "", *self._options]
        self._process = subprocess.Popen(["redis-server", *options], cwd=self._folder, stdout=subprocess.DEVNULL)
        ends = time.monotonic() + 10
        while time.monotonic() < ends:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return
            time.sleep(0.01)
        raise RuntimeError("redis-server did not begin to listen")

    def end(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
