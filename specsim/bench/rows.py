"""A row of a benchmark: what is measured at once, and is left out as a whole when the time is over before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class BenchRow:
    """`measure` returns entries of "benchmarks" in the result format; `name` and `shape` are of the benchmark."""

    name: str
    shape: Mapping[str, Any]
    measure: Callable[[], list[dict[str, Any]]]

    def left_out(self, why: str) -> dict[str, Any]:
        """The entry of a row that was not measured, or not to its end."""
        peers = [{"name": self.name, "not_run": why}]
        return {"name": self.name, "unit": "", "shape": dict(self.shape), "left_out": why, "peers": peers}
