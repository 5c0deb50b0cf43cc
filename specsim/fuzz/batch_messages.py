"""Batches and what became of them as JSON, for the pipe between a worker and its child."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from specsim.fuzz.work import Batch, BatchResult, Found, Observed


def batch_to_json(batch: Batch) -> dict[str, Any]:
    return asdict(batch)


def batch_from_json(data: Mapping[str, Any]) -> Batch:
    return Batch(**{**data, "known": tuple(data["known"])})


def found_to_json(found: Found) -> dict[str, Any]:
    return asdict(found)


def found_from_json(data: Mapping[str, Any]) -> Found:
    return Found(**{**data, "size": tuple(data["size"])})


def result_to_json(result: BatchResult) -> dict[str, Any]:
    return asdict(result)


def result_from_json(data: Mapping[str, Any]) -> BatchResult:
    """The result of its JSON form."""
    made = {
        "batch": batch_from_json(data["batch"]),
        "findings": tuple(map(found_from_json, data["findings"])),
        "observed": tuple(Observed(**{**run, "marks": tuple(run["marks"])}) for run in data["observed"]),
    }
    return BatchResult(**{**data, **made})
