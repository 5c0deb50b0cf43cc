"""What crosses the pipe between a command and the process that is connected to a Ray cluster; batches and what became
of them as JSON.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specsim.fuzz.work import Batch, BatchResult, RunFinding
from specsim.isolation.messages import Message


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
