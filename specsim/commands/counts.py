"""How many cases of each operation were checked in bulk, over many checks: a file that each of them adds to.

`specsim.counts/1` is an object with `environment`, `total` (cases of all rows), `operations` (cases of each operation)
and `rows`: {"target", "op", "subject", "where", "device", "seed", "cases", "launches", "packed", "seconds", "finding"}.
`packed` is the most cases that a launch had, which is what the operation's packing allows; `finding` is the signature
of one, whose subject was checked up to it, or "". A check with the same target, device and seed makes the same cases:
of those the row with more of them stays.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from specsim.errors import UsageError
from specsim.files import STANDARD_OUTPUT, read_json, write_json
from specsim.verdict import Verdict

FORMAT = "specsim.counts/1"

_Row = dict[str, Any]


def add_counts(path: Path, verdict: Verdict, device: str) -> None:
    """Add the subjects that a check in bulk has checked to the file. Raises UsageError when it holds something else."""
    from specsim.bench.environment import environment

    surroundings = environment()
    where = {"auto": "cuda" if surroundings["gpu"] else "cpu"}.get(device, device)
    rows = {_key(row): row for row in read_counts(path)}
    for row in _rows(verdict, where):
        before = rows.get(_key(row))
        if before is None or before["cases"] < row["cases"]:
            rows[_key(row)] = row
    listed = [rows[key] for key in sorted(rows)]
    operations: dict[str, int] = {}
    for row in listed:
        operations[row["op"]] = operations.get(row["op"], 0) + row["cases"]
    data = {
        "format": FORMAT,
        "environment": surroundings,
        "total": sum(operations.values()),
        "operations": dict(sorted(operations.items())),
        "rows": listed,
    }
    write_json(path, data)


def _rows(verdict: Verdict, device: str) -> list[_Row]:
    found = {finding.signature for finding in verdict.findings}
    return [
        {
            "target": verdict.target,
            "device": device,
            "seed": verdict.seed,
            **asdict(checked),
            "finding": signature if (signature := f"ops:{checked.op}:{checked.subject}") in found else "",
        }
        for suite in verdict.suites
        for checked in suite.judged
    ]


def _key(row: _Row) -> tuple[str, str, str, str, int]:
    return row["op"], row["target"], row["subject"], row["device"], row["seed"]


def read_counts(path: Path) -> list[dict[str, Any]]:
    """The rows of a file that is there. Raises UsageError when it holds something else."""
    if path == STANDARD_OUTPUT or not path.is_file():
        return []
    data = read_json(path, "name another file", what="--write")
    if not isinstance(data, dict) or data.get("format") != FORMAT or not isinstance(data.get("rows"), list):
        raise UsageError(f"--write {path} holds something else than counts", f"name a new file, or one of {FORMAT}")
    rows: list[_Row] = data["rows"]
    return rows
