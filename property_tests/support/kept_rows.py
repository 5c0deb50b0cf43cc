"""Rows of a table that a program measures, each kept in a file as soon as it is, and not measured again."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeVar

Row = dict[str, Any]
Case = TypeVar("Case", bound=tuple[str, ...])


def kept_rows(
    out: Path, names: Sequence[str], wanted: Sequence[Case], jobs: int, run: Callable[[Case], Row]
) -> list[Row]:
    """The rows of the file `out`, a line each, and those of the `wanted` cases that it lacks, which are added to it. A
    case is what a row has under these `names`.
    """
    kept = out.read_text(encoding="utf-8").splitlines() if out.exists() else []
    rows: list[Row] = [json.loads(line) for line in kept]
    there = {tuple(row[name] for name in names) for row in rows}
    with ThreadPoolExecutor(jobs) as pool, out.open("a", encoding="utf-8") as file:
        for row in pool.map(run, [case for case in wanted if case not in there]):
            rows.append(row)
            file.write(json.dumps(row) + "\n")
            file.flush()
    return rows
