"""What a campaign hands to a worker, and what comes back. Plain data: it goes through pipes, Ray and JSON alike.

A campaign is a seed. Its work is one endless row of batches for each shard; which target and tier a batch has is drawn
from (campaign, shard, number of the batch). So a batch is made again from these.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Batch:
    """Runs `first`, `first + 1`, ... of a shard, `count` of them.

    `campaign` the seed; `shard` 0 to shards - 1
    `target`   a TARGET as the user wrote it; `tier` ops or scheduler
    `known`    signatures that are not shrunk again
    `device`   of the ops tier: cpu or cuda
    """

    campaign: int
    shard: int
    number: int
    first: int
    count: int
    target: str
    tier: str
    known: tuple[str, ...] = ()
    device: str = "cpu"


@dataclass(frozen=True, slots=True)
class RunFinding:
    """A finding of run `index`. `replay` is the text of its replay file, `size` what smaller ones are compared by;
    `cpu_seconds` the CPU time from the start of the batch until it was first hit.
    """

    signature: str
    tier: str
    rule: str
    title: str
    severity: str
    reach: str
    where: str
    index: int
    count: int
    size: tuple[int, ...]
    replay: str
    cpu_seconds: float


@dataclass(frozen=True, slots=True)
class BatchResult:
    """What became of a batch.

    `version`    the target's version, commit or content hash; what a finding was first and last seen on
    `runs`       runs that were checked; `refused` those that were not, by the reason
    `features`   cases of each implementation that was checked: "ops:OPERATION SUBJECT"
    `ended`      how the process ended when it did not come to its end, "" when it did; that costs one run
    """

    batch: Batch
    version: str
    runs: int
    events: int
    seconds: float
    cpu_seconds: float
    refused: dict[str, int] = field(default_factory=dict)
    features: dict[str, int] = field(default_factory=dict)
    findings: tuple[RunFinding, ...] = ()
    ended: str = ""
