"""Results of a campaign's batches, made up."""

from __future__ import annotations

from specsim.fuzz.work import Batch, BatchResult, RunFinding


def batch(number: int = 0, shard: int = 0, target: str = "model", **fields: object) -> Batch:
    plain = {"campaign": 7, "first": number * 10, "count": 10, "tier": "scheduler"}
    return Batch(shard=shard, number=number, target=target, **{**plain, **fields})  # type: ignore[arg-type]


def found(signature: str = "scheduler:C1:x", size: tuple[int, ...] = (1,), **fields: object) -> RunFinding:
    plain = {"rule": "C1", "title": "t", "severity": "leak", "reach": "default", "where": "f.py:1", "index": 3}
    rest = {"count": 2, "replay": f"replay of size {size}", "cpu_seconds": 0.5}
    return RunFinding(signature=signature, tier="scheduler", size=size, **{**plain, **rest, **fields})  # type: ignore[arg-type]


def result(of: Batch, version: str = "v1", **fields: object) -> BatchResult:
    plain = {"runs": 10, "events": 400, "seconds": 1.0, "cpu_seconds": 2.0}
    return BatchResult(batch=of, version=version, **{**plain, **fields})  # type: ignore[arg-type]
