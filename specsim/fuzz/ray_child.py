"""The process that is connected to a Ray cluster: `python -m specsim.fuzz.ray_child MESSAGES_FD`.

The first line of standard input says which cluster, {"nonce", "address", "cache", "hang_seconds"}; each one
after it is a batch, {"batch", "seconds"}. When standard input closes, this process ends. Messages are those
of `specsim.fuzz.batch_messages`.

A batch takes one CPU, and one GPU when it is for one; Ray runs it again, `RETRIES` times, when its node or its process
is lost.
"""

from __future__ import annotations

import json
import os
import select
import sys
import time
from pathlib import Path
from typing import Any

import specsim
from specsim.errors import UsageError
from specsim.fuzz.batch_messages import (
    BatchLost,
    BatchRefused,
    BatchResulted,
    Cluster,
    NoCluster,
    batch_from_json,
    result_to_json,
)
from specsim.isolation.messages import Messages

RETRIES = 3
_OF_THE_CLUSTER = ("LocalRayletDiedError", "RaySystemError", "ConnectionError")  # no task will do better
WAIT_SECONDS = 0.2
LOOK_SECONDS = 2.0
GRACE_SECONDS = 60.0  # for a batch that runs when its time is over to come to its end


def run_there(
    batch: dict[str, Any], cache: str | None, hang_seconds: float, seconds: float, asked_at: float, version: str
) -> dict[str, Any]:
    """The task, on a node: {"result", "node"}, or {"problem", "remedy"} for what the node lacks."""
    from specsim.fuzz.workers import run_batch
    from specsim.lifting.cache import open_cache

    try:
        if specsim.__version__ != version:
            raise UsageError(
                f"{os.uname().nodename} has specsim {specsim.__version__}, the campaign {version}",
                "install the same version on every node",
            )
        folder = open_cache(Path(cache) if cache else None).folder
        result = run_batch(batch_from_json(batch), folder, hang_seconds, left_of(seconds, time.time() - asked_at))
        return {"result": result_to_json(result), "node": _node()}
    except UsageError as error:
        return {"problem": error.problem, "remedy": error.remedy}


def left_of(seconds: float, waited: float) -> float:
    """What is left of a batch's time when it begins on a node. A clock that is far off its neighbours' is ignored:
    all that clocks decide here is when a batch is cut short.
    """
    return seconds - waited if 0 <= waited <= seconds else seconds


def _node() -> str:
    """The node that runs the task, by its id, for nodes may share a host."""
    import ray

    return str(ray.get_runtime_context().get_node_id())


def main() -> None:
    asked = json.loads(sys.stdin.buffer.readline() or b"null")
    if asked is None:
        return
    messages = Messages(int(sys.argv[1]), asked["nonce"])
    try:
        import ray

        ray.init(address=asked["address"], log_to_driver=False, logging_level="ERROR")
    except Exception as error:  # Ray raises what its parts raise
        messages.send(NoCluster(why=_line(error)))
        return
    Connected(ray, messages, asked).work()


class Connected:
    """The cluster, and the tasks that have no result yet."""

    def __init__(self, ray: Any, messages: Messages, asked: dict[str, Any]) -> None:
        self._ray = ray
        self._messages = messages
        self._fixed = asked["cache"], asked["hang_seconds"]
        self._task = ray.remote(max_retries=RETRIES, num_cpus=1)(run_there)
        self._keys: dict[Any, tuple[int, int, int]] = {}
        self._ends: dict[Any, float] = {}  # of time.monotonic()
        self._pending = b""
        self._told: dict[str, int] = {}
        self._looked = 0.0

    def work(self) -> None:
        """Until standard input closes, or the cluster is gone, which ends this process."""
        is_open = True
        while is_open:
            self._look()
            if not self._keys:
                select.select([sys.stdin.buffer.fileno()], [], [], LOOK_SECONDS)
            is_open = self._submit()
            if self._keys:
                ready, _ = self._ray.wait(list(self._keys), num_returns=1, timeout=WAIT_SECONDS)
                for reference in ready:
                    self._answer(reference)
            self._cancel_late()
        self._ray.shutdown()

    def _submit(self) -> bool:
        """Take the requests that came meanwhile; False at the end."""
        descriptor = sys.stdin.buffer.fileno()
        while select.select([descriptor], [], [], 0)[0]:
            chunk = os.read(descriptor, 1 << 16)
            if not chunk:
                return False
            *lines, self._pending = (self._pending + chunk).split(b"\n")
            for line in lines:
                asked = json.loads(line)
                batch = asked["batch"]
                gpus = 1 if batch.get("device") == "cuda" else 0
                task = self._task.options(num_gpus=gpus) if gpus else self._task
                reference = task.remote(batch, *self._fixed, asked["seconds"], time.time(), specsim.__version__)
                self._keys[reference] = batch["campaign"], batch["shard"], batch["number"]
                self._ends[reference] = time.monotonic() + asked["seconds"] + GRACE_SECONDS
        return True

    def _cancel_late(self) -> None:
        """What waits for a node that does not come is not waited for when the campaign's time is over."""
        now = time.monotonic()
        for reference in [reference for reference, end in self._ends.items() if end < now]:
            del self._ends[reference]
            self._ray.cancel(reference, force=False)

    def _answer(self, reference: Any) -> None:
        key = self._keys.pop(reference)
        self._ends.pop(reference, None)
        try:
            answer = self._ray.get(reference)
        except Exception as error:  # a node, a worker or its memory was lost too often, or the node has no specsim
            if type(error).__name__ in _OF_THE_CLUSTER:
                sys.exit(_line(error))
            self._messages.send(BatchLost(key=key, why=f"Ray could not run a batch ({_line(error)})"))
            return
        kind = BatchResulted if "result" in answer else BatchRefused
        self._messages.send(kind(key=key, **answer))

    def _look(self) -> None:
        if time.monotonic() - self._looked < LOOK_SECONDS and self._told:
            return
        self._looked = time.monotonic()
        has = self._ray.cluster_resources()
        nodes = sum(bool(node["Alive"]) for node in self._ray.nodes())
        now = {"nodes": nodes, "cpus": int(has.get("CPU", 0)), "gpus": int(has.get("GPU", 0))}
        if now != self._told:
            self._told = now
            self._messages.send(Cluster(**now))


def _line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if type(error).__name__.startswith("RayTaskError") and lines:
        return lines[-1]  # of the traceback of the node
    return f"{type(error).__name__}: {lines[0] if lines else ''}".rstrip(": ")


if __name__ == "__main__":
    main()
