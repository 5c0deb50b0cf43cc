"""Runs of a campaign as lines of JSON that Tyche reads, in the format of Hypothesis' observability.

A run of a schedule is a "test_case". Batches of other tiers, whose cases are many and small, are one "info" each. What
broke is a "failed" test case, and a process that did not come to its end an "error". The keys are those that Hypothesis
documents, all of them and no others: what is specsim's own stands in `features` and `metadata`.

What it does not say: lines of code that were covered (`coverage` is null).

This module imports neither torch nor triton.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from specsim.errors import UsageError
from specsim.files import Appended
from specsim.fuzz.work import Batch, BatchResult, Found, Observed
from specsim.tiers.accounting.schedules import Schedule

_NEVER_RUN = "the target does not run this scenario"


def observed_run(index: int, schedule: Schedule | None, seconds: float) -> Observed:
    """A run that was just made, None for one that was not checked."""
    if schedule is None:
        return Observed(index, False, _NEVER_RUN, seconds)
    workload = asdict(schedule.scenario.workload)
    values = {**asdict(schedule.scenario.config), **workload, "requests": len(workload.pop("turns"))}
    on = {name: int(value) for name, value in values.items() if isinstance(value, int) and value}
    return Observed(
        index,
        True,
        ", ".join(dict.fromkeys(violation.signature for violation in schedule.run.violations)),
        seconds,
        len(schedule.run.log),
        len(schedule.tape),
        on,
        tuple(sorted(schedule.run.marks)),
    )


def observations_of(result: BatchResult, run_start: float) -> Iterator[dict[str, Any]]:
    """The lines of a batch as JSON objects. `run_start` is when the campaign began, in seconds since 1970."""
    batch = result.batch
    of_all = {"property": property_of(batch), "run_start": run_start}
    for run in result.observed:
        yield {**_test_case(batch, run, result.version), **of_all}
    listed = {run.index for run in result.observed}
    for found in result.findings:
        if found.index not in listed:
            yield {**_finding(batch, found, result.version), **of_all}
    if not result.observed:
        counts = {"runs": result.runs, "events": result.events, "refused": result.refused, "seconds": result.seconds}
        yield {"type": "info", "title": f"batch {batch.number} of shard {batch.shard}", "content": counts, **of_all}
    if result.ended:
        content = f"Batch {batch.number} of shard {batch.shard} did not come to its end: {result.ended}"
        yield {"type": "error", "title": "a process ended early", "content": content, **of_all}


def property_of(batch: Batch) -> str:
    """What runs are grouped by: the target, the tier and the scenario family."""
    return " / ".join(filter(None, (batch.target, batch.tier, batch.family)))


def _test_case(batch: Batch, run: Observed, version: str) -> dict[str, Any]:
    status = "gave_up" if not run.checked else "failed" if run.why else "passed"
    scenario = " ".join(f"{name}={value}" for name, value in run.scenario.items())
    sizes = {"events": run.events, "choices": run.choices, "requests": run.scenario.get("requests", 0)}
    marks = {f"mark: {mark}": True for mark in run.marks}
    return {
        "type": "test_case",
        "status": status,
        "status_reason": run.why,
        "representation": f"run {run.index} of shard {batch.shard}, campaign {batch.campaign}: {scenario}".rstrip(": "),
        "arguments": run.scenario,
        "how_generated": batch.strategy or None,
        "features": {"strategy": batch.strategy, **sizes, **marks} if run.checked else {"strategy": batch.strategy},
        "coverage": None,
        "timing": {"execute:test": max(0.0, run.seconds)},
        "metadata": {**_numbers(batch, run.index), "version": version},
    }


def _finding(batch: Batch, found: Found, version: str) -> dict[str, Any]:
    """A finding of a tier whose runs are not listed one by one, or of a run that took its process with it."""
    return {
        "type": "test_case",
        "status": "failed",
        "status_reason": found.signature,
        "representation": f"{found.rule}: {found.title}",
        "arguments": {},
        "how_generated": batch.strategy or None,
        "features": {"rule": found.rule, "severity": found.severity},
        "coverage": None,
        "timing": {},
        "metadata": {**_numbers(batch, found.index), "version": version, "where": found.where, "count": found.count},
    }


def _numbers(batch: Batch, index: int) -> dict[str, int]:
    """What a run is made again from."""
    return {"campaign": batch.campaign, "shard": batch.shard, "batch": batch.number, "run": index}


class Observations:
    """The file that lines are appended to, each batch's at once."""

    def __init__(self, path: Path, file: Appended, run_start: float) -> None:
        self._path = path
        self._file = file
        self._run_start = run_start

    @classmethod
    def open(cls, path: Path, run_start: float) -> Observations:
        """Begin, or go on with, the file. UsageError when it cannot be written."""
        try:
            return cls(path, Appended(path), run_start)
        except OSError as error:
            raise UsageError(f"--observe {path} cannot be written ({error.strerror})", "name another file") from error

    def take(self, result: BatchResult) -> None:
        """Append the lines of a batch. UsageError when they cannot be written."""
        lines = [json.dumps(line, allow_nan=False) + "\n" for line in observations_of(result, self._run_start)]
        try:
            self._file.add("".join(lines).encode())
        except OSError as error:
            raise UsageError(
                f"--observe {self._path} cannot be written ({error.strerror})",
                "the store has everything: go on with --resume, without --observe or with another file",
            ) from error

    def close(self) -> None:
        with contextlib.suppress(OSError):  # a full disk, which was reported
            self._file.close()
