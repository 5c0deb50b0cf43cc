"""What crosses the pipe between a worker of a campaign and its child, in both directions, and between a command and the
process that is connected to a Ray cluster; batches and what became of them as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any, ClassVar, Literal

import msgspec

from specsim.fuzz.work import Batch, BatchResult, RunFinding
from specsim.isolation.messages import OF_EVERY_CHILD, Message


class BatchRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Run a batch, for `seconds` at most and until `ends_at` (of time.monotonic, None for never), or make its run
    `index` again.
    """

    mode: Literal["batch", "again"]
    target: str
    batch: dict[str, Any]
    cache: str
    hang_seconds: float
    index: int = 0
    seconds: float = 0.0
    ends_at: float | None = None


class Running(Message, tag="running"):
    """The fork that runs a batch is at this run."""

    index: int


class BatchEnd(Message, tag="end"):
    """A batch is done."""

    is_last: ClassVar[bool] = True
    result: dict[str, Any]


class Again(Message, tag="again"):
    """One run that was made again: whether the target runs it, and what it showed or why it did not."""

    is_last: ClassVar[bool] = True
    version: str
    checked: bool
    shown: dict[str, Any]


OF_A_WORKER = OF_EVERY_CHILD | Running | BatchEnd | Again


class Cluster(Message, tag="cluster"):
    """What the cluster has."""

    nodes: int
    cpus: int
    gpus: int


class NoCluster(Message, tag="no cluster"):
    """There is no cluster."""

    why: str


class BatchResulted(Message, tag="result"):
    """A batch is done, on a node. `key` is its campaign, shard and number."""

    key: tuple[int, int, int]
    result: dict[str, Any]
    node: str


class BatchRefused(Message, tag="refused"):
    """The node that was to run a batch has no such target."""

    key: tuple[int, int, int]
    problem: str
    remedy: str


class BatchLost(Message, tag="lost"):
    """Ray lost a batch as often as it tries one."""

    key: tuple[int, int, int]
    why: str


OF_A_CLUSTER = Cluster | NoCluster | BatchResulted | BatchRefused | BatchLost


def batch_to_json(batch: Batch) -> dict[str, Any]:
    return asdict(batch)


def batch_from_json(data: Mapping[str, Any]) -> Batch:
    return Batch(**{**data, "known": tuple(data["known"])})


def found_to_json(found: RunFinding) -> dict[str, Any]:
    return asdict(found)


def found_from_json(data: Mapping[str, Any]) -> RunFinding:
    return RunFinding(**{**data, "size": tuple(data["size"])})


def result_to_json(result: BatchResult) -> dict[str, Any]:
    return asdict(result)


def result_from_json(data: Mapping[str, Any]) -> BatchResult:
    """The result of its JSON form."""
    made = {
        "batch": batch_from_json(data["batch"]),
        "findings": tuple(map(found_from_json, data["findings"])),
    }
    return BatchResult(**{**data, **made})
