"""Batches as tasks of a Ray cluster that is there already: Ray places them, runs them again when a node is lost, and
takes in nodes that come. How many wait is bounded by what the cluster has.

Ray ends a process whose cluster is gone. So the connection is a child's (`specsim.fuzz.ray_child`), which may die:
what it had not answered is given back as `RayLost`, and the caller runs it elsewhere.

This module imports neither torch, triton nor ray.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any

from specsim import DISTRIBUTION
from specsim.errors import UsageError
from specsim.fuzz.batch_messages import (
    OF_A_CLUSTER,
    BatchRefused,
    BatchResulted,
    Cluster,
    NoCluster,
    batch_to_json,
    result_from_json,
)
from specsim.fuzz.campaign import BatchPool, GivenBack
from specsim.fuzz.work import Batch, BatchResult
from specsim.isolation import environment, processes
from specsim.isolation.frames import BadFrameError, FrameReader, new_nonce
from specsim.isolation.messages import BadMessageError, decoded

READ_BYTES = 1 << 20
LISTEN_SECONDS = 10.0  # until a host answers
CONNECT_SECONDS = 45.0
LOST_SECONDS = 30  # without the cluster's head, until it counts as lost
INSTALL = f"pip install '{DISTRIBUTION}[ray]'"
GO_ON = "start it, or leave --ray away: what is stored is kept, and --resume goes on with it"
_CHILD = "specsim.fuzz.ray_child"


class RayLost(Exception):  # noqa: N818 - not an error: a batch has no result, and can be run elsewhere
    """A batch has no result: the cluster is gone, or lost it as often as it tries one."""


class RayCluster:
    """A connection. Made by `RayCluster.connect`; close it at the end. `submit` may be called by one thread."""

    def __init__(
        self, address: str, process: subprocess.Popen[bytes], reader: int, nonce: bytes, stderr: IO[bytes]
    ) -> None:
        self.address = address
        self.nodes = self.cpus = self.gpus = 0
        self.ran: Counter[str] = Counter()  # batches that each node ran, by its id
        self._process = process
        self._stderr = stderr
        self._pending: dict[tuple[int, int, int], Future[BatchResult]] = {}
        self._lock = threading.Lock()
        self._lost = ""
        self._is_closing = False
        self._begun: queue.SimpleQueue[str] = queue.SimpleQueue()  # "" when connected, else why not
        self._thread = threading.Thread(target=self._read, args=(reader, nonce), daemon=True)
        self._thread.start()

    @classmethod
    def connect(cls, address: str, cache: Path | None, hang_seconds: float) -> RayCluster:
        """Connect to the cluster at `address`: HOST:PORT, ray://HOST:PORT, or "auto" for the one of this machine.
        `cache` is the folder of fetched wheels on its nodes, None for what is the default of each. UsageError when
        there is none, or no Ray is installed here.
        """
        if find_spec("ray") is None:
            raise UsageError("--ray needs Ray, which is not installed", f"{INSTALL} adds it")
        _require_listener(address)
        stderr = tempfile.TemporaryFile()  # noqa: SIM115 - `close` closes it
        reader, writer = os.pipe()
        nonce = new_nonce()
        process = processes.start(  # in a group of its own: an interrupt of the keyboard is for this process
            [sys.executable, "-m", _CHILD, str(writer)],
            {"RAY_gcs_rpc_server_reconnect_timeout_s": str(LOST_SECONDS), **environment.of_ours()},
            stdin=subprocess.PIPE,
            stdout=stderr,
            stderr=stderr,
            pass_fds=[writer],
        )
        os.close(writer)
        cluster = cls(address, process, reader, nonce, stderr)
        asked = {"nonce": nonce.hex(), "address": address, "hang_seconds": hang_seconds}
        asked["cache"] = None if cache is None else str(cache)
        cluster._send(asked)
        try:
            why_not = cluster._begun.get(timeout=CONNECT_SECONDS)
        except queue.Empty:
            why_not = f"no answer within {CONNECT_SECONDS:g} s"
        if why_not:
            cluster.close()
            raise UsageError(f"there is no Ray cluster at {address} ({why_not})", GO_ON)
        return cluster

    @property
    def lost(self) -> str:
        """Why the cluster is gone, "" while it is there."""
        return self._lost

    @property
    def pending(self) -> int:
        """Batches without a result yet."""
        return len(self._pending)

    @property
    def width(self) -> int:
        """How many batches may be pending: one that runs for each CPU, and some that wait, so that no CPU does, and so
        that a cluster that grows when there is work sees some.
        """
        return 0 if self._lost else self.cpus + max(2, self.cpus // 4)

    @property
    def room(self) -> int:
        """How many more may be submitted now."""
        return max(0, self.width - len(self._pending))

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        """Run a batch on the cluster, for `seconds` at most where it can be cut short. The future has its result, or
        raises RayLost, or UsageError when the nodes have no such target.
        """
        future: Future[BatchResult] = Future()
        key = batch.campaign, batch.shard, batch.number
        with self._lock:
            if self._lost:
                future.set_exception(RayLost(self._lost))
                return future
            self._pending[key] = future
        self._send({"batch": batch_to_json(batch), "seconds": seconds})
        return future

    def give_back(self) -> None:
        """No batch that is pending gets a result."""
        with self._lock:
            left = list(self._pending.values())
            self._pending.clear()
        for future in left:
            future.set_exception(RayLost("it was interrupted"))

    def close(self) -> None:
        """Leave the cluster; what has no result yet gets none."""
        self._is_closing = True
        processes.end(self._process)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()
        self._thread.join()
        self._stderr.close()

    def _send(self, message: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with contextlib.suppress(OSError):  # the reader sees that the child is gone
            self._process.stdin.write(json.dumps(message).encode() + b"\n")
            self._process.stdin.flush()

    def _read(self, pipe: int, nonce: bytes) -> None:
        with os.fdopen(pipe, "rb", buffering=0) as stream:
            for message in _messages(stream, FrameReader(nonce)):
                match message:
                    case Cluster():
                        self.nodes, self.cpus, self.gpus = message.nodes, message.cpus, message.gpus
                        self._begun.put("")
                    case NoCluster():
                        self._begun.put(message.why)
                    case _:
                        self._take(message)
        self._process.wait()
        with self._lock:
            self._lost = f"the Ray cluster at {self.address} was lost"
            left = list(self._pending.values())
            self._pending.clear()
        self._begun.put("the process that connects to it ended" + self._last_words())
        for future in left:
            future.set_exception(RayLost(self._lost))

    def _take(self, message: Any) -> None:
        with self._lock:
            future = self._pending.pop(message.key, None)
        if future is None:
            return
        match message:
            case BatchResulted():
                self.ran[message.node] += 1
                future.set_result(result_from_json(message.result))
            case BatchRefused():
                future.set_exception(UsageError(message.problem, message.remedy))
            case _:
                future.set_exception(RayLost(message.why))

    def _last_words(self) -> str:
        if self._is_closing:
            return ""
        self._stderr.seek(0)
        lines = self._stderr.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1]}" if lines else ""


@dataclass(frozen=True, slots=True)
class _Asked:
    """A batch, when it is to end (of time.monotonic), and what has its result."""

    batch: Batch
    until: float
    outer: Future[BatchResult]

    @property
    def seconds(self) -> float:
        return max(0.0, self.until - time.monotonic())


class RayPool:
    """A cluster, and the workers of this machine for what the cluster does not do: `beside` it from the start, else
    when it is gone, lost a batch too often, or has no such target. `tell` gets one sentence for each kind of trouble.
    """

    def __init__(self, cluster: RayCluster, local: BatchPool, beside: bool, tell: Callable[[str], None]) -> None:
        self._cluster = cluster
        self._local = local
        self._beside = beside
        self._tell = tell
        self._told: set[str] = set()
        self._lock = threading.RLock()
        self._here = 0  # batches that run on this machine
        self._waiting: deque[_Asked] = deque()
        self._stopping = False

    @property
    def width(self) -> int:
        """How many batches it takes at a time, now."""
        return self._cluster.width + (self._local.width if self._beside or self._cluster.lost else 0)

    def submit(self, batch: Batch, seconds: float) -> Future[BatchResult]:
        """Run a batch where there is room. The future raises UsageError when there is no such target here either, and
        GivenBack after an interrupt.
        """
        asked = _Asked(batch, time.monotonic() + seconds, Future())
        if self._cluster.room:
            device = batch.device if self._cluster.gpus else "cpu"
            inner = self._cluster.submit(replace(batch, device=device), seconds)
            inner.add_done_callback(partial(self._answered, asked))
        else:
            self._run_here(asked)
        return asked.outer

    def interrupt(self) -> None:
        """Give back what the cluster has, which --resume runs again, and let the batches of this machine end soon."""
        with self._lock:
            self._stopping = True
            given_back = [*self._waiting]
            self._waiting.clear()
        for asked in given_back:
            asked.outer.set_exception(GivenBack())
        self._local.interrupt()
        self._cluster.give_back()

    def _answered(self, asked: _Asked, inner: Future[BatchResult]) -> None:
        error = inner.exception()
        if error is None:
            asked.outer.set_result(inner.result())
        elif self._stopping or not asked.seconds:
            asked.outer.set_exception(GivenBack())
        else:
            why = f"{error.problem}; {error.remedy}" if isinstance(error, UsageError) else str(error)
            with self._lock:
                is_new = why not in self._told
                self._told.add(why)
            if is_new:
                self._tell(f"{why}: what it had is run on this machine")
            self._run_here(asked)

    def _run_here(self, asked: _Asked) -> None:
        with self._lock:
            if self._here >= self._local.width:
                self._waiting.append(asked)
                return
            self._here += 1
        inner = self._local.submit(replace(asked.batch, device="cpu"), asked.seconds)
        inner.add_done_callback(partial(self._done_here, asked))

    def _done_here(self, asked: _Asked, inner: Future[BatchResult]) -> None:
        error = inner.exception()
        if error is None:
            asked.outer.set_result(inner.result())
        else:
            asked.outer.set_exception(error)
        with self._lock:
            self._here -= 1
            late = [one for one in self._waiting if not one.seconds]
            self._waiting = deque(one for one in self._waiting if one not in late)
            following = self._waiting.popleft() if self._waiting else None
        for one in late:
            one.outer.set_exception(GivenBack())
        if following is not None:
            self._run_here(following)


def _require_listener(address: str) -> None:
    """Refuse what is no address, or one where nobody answers: Ray itself would try for a minute."""
    if address == "auto":
        return
    found = re.fullmatch(r"(?:ray://)?(?P<host>[^/:\s]+|\[[0-9a-fA-F:]+\]):(?P<port>\d{1,5})", address)
    if not found or not 0 < int(found["port"]) < 1 << 16:
        raise UsageError(f"--ray {address!r} is no address", "give HOST:PORT, ray://HOST:PORT, or auto")
    try:
        socket.create_connection((found["host"].strip("[]"), int(found["port"])), LISTEN_SECONDS).close()
    except OSError as error:
        raise UsageError(f"there is no Ray cluster at {address} ({error.strerror or error})", GO_ON) from error


def _messages(stream: IO[bytes], reader: FrameReader) -> Iterator[Any]:
    """The messages until the child is gone, or writes what is none."""
    with contextlib.suppress(BadFrameError, BadMessageError):
        while chunk := stream.read(READ_BYTES):
            for content in reader.feed(chunk):
                yield decoded(content, OF_A_CLUSTER)
