"""Many targets, each checked by a `specsim check` of its own: which of them has which finding.

A target that crashes, hangs or cannot be fetched costs its own column and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, Literal

import specsim
from specsim import interrupts
from specsim.engines.triage import is_known_in
from specsim.tiers.registry import TIERS
from specsim.verdict import FINDING, INTERRUPTED, NONDETERMINISM, NOT_CHECKED, PASS

FORMAT = "specsim.matrix/1"

State = Literal["finding", "known", "clean", "not run"]


@dataclass(frozen=True, slots=True)
class Column:
    """One target: its verdict as `specsim check --json` writes it, or why there is none."""

    target: str
    verdict: dict[str, Any]
    why: str
    exit_code: int
    seconds: float

    @property
    def summary(self) -> str:
        """One line."""
        if self.why:
            return f"not checked: {self.why}"
        count = len(self.verdict["findings"])
        return f"{self.verdict['verdict']}, {count} finding{'' if count == 1 else 's'} in {self.seconds:.0f} s"


@dataclass(frozen=True, slots=True)
class Cell:
    """A finding on a target, that what could show it was run and did not, or why it was not run. "known" is one that
    was not met there, though the triage list has it in that release.
    """

    state: State
    why: str = ""
    reach: str = ""
    where: str = ""
    count: int = 0
    replay: str = ""


@dataclass(frozen=True, slots=True)
class FindingRow:
    """One finding, whatever releases have it."""

    signature: str
    rule: str
    sentence: str
    severity: str
    tier: str
    triage: str
    cells: dict[str, Cell]


@dataclass(slots=True)
class Matrix:
    """Targets across, findings down."""

    seed: str
    columns: list[Column]
    rows: list[FindingRow] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """1 with a finding that fails its check; else 3 when a target was not deterministic; else 130 when it was
        interrupted; else 125 when nothing could be checked.
        """
        codes = {column.exit_code for column in self.columns}
        if FINDING in codes:
            return FINDING
        if NONDETERMINISM in codes:
            return NONDETERMINISM
        if INTERRUPTED in codes:
            return INTERRUPTED
        return PASS if PASS in codes else NOT_CHECKED

    def to_json(self) -> dict[str, Any]:
        return {
            "format": FORMAT,
            "specsim": specsim.__version__,
            "seed": self.seed,
            "targets": [
                {"target": c.target, "exit_code": c.exit_code, "seconds": round(c.seconds, 1), "why": c.why}
                | ({"verdict": c.verdict["verdict"], "suites": c.verdict["suites"]} if c.verdict else {})
                for c in self.columns
            ],
            "rows": [
                {
                    **{name: getattr(row, name) for name in ("signature", "rule", "sentence", "severity", "tier")},
                    "triage": row.triage,
                    "cells": {
                        target: {name: getattr(cell, name) for name in Cell.__slots__}
                        for target, cell in row.cells.items()
                    },
                }
                for row in self.rows
            ],
        }


def check_all(
    targets: Sequence[str],
    check: Callable[[str], Column],
    *,
    seed: int,
    jobs: int,
    on_column: Callable[[Column], None],
) -> Matrix:
    """Check each target, `jobs` at a time."""

    def run(target: str) -> Column:
        if interrupts.asked():
            return Column(target, {}, interrupts.WHY, INTERRUPTED, 0.0)
        column = check(target)
        on_column(column)
        return column

    with ThreadPoolExecutor(jobs) as pool:
        columns = list(pool.map(run, targets))
    return Matrix(str(seed), columns, rows_of(columns))


# Rows and cells


def rows_of(columns: Sequence[Column]) -> list[FindingRow]:
    """A row for each signature that any target shows."""
    by_signature: dict[str, list[dict[str, Any]]] = {}
    for column in columns:
        for finding in column.verdict.get("findings", ()):
            by_signature.setdefault(finding["signature"], []).append(finding)
    rows = []
    for signature, findings in by_signature.items():
        newest = findings[-1]
        rows.append(
            FindingRow(
                signature=signature,
                rule=newest["rule"],
                sentence=newest["sentence"],
                severity=newest["severity"],
                tier=newest["tier"],
                triage=newest.get("triage", ""),
                cells={column.target: cell_of(column, signature) for column in columns},
            )
        )
    return in_order(rows)


def in_order(rows: Iterable[FindingRow]) -> list[FindingRow]:
    """Rows by tier, then by rule as the tiers list them."""
    return sorted(rows, key=lambda row: (row.tier, _rule_key(row.rule), row.signature))


def _rule_key(rule: str) -> tuple[str, int]:
    return (rule[:1], int(rule[1:]) if rule[1:].isdigit() else 0)


def cell_of(column: Column, signature: str) -> Cell:
    """What a target shows of a signature."""
    if not column.verdict:
        return Cell("not run", column.why)
    for finding in column.verdict["findings"]:
        if finding["signature"] == signature:
            return Cell(
                "finding",
                reach=finding["reach"],
                where=finding["where"],
                count=finding["count"],
                replay=finding["replay"],
            )
    for symptom in column.verdict.get("symptoms", ()):
        if symptom["signature"] == signature:
            return Cell("not run", f"it was seen only after {symptom['follows']}")
    if signature in column.verdict.get("ignored", ()):
        return Cell("not run", "its findings are ignored")
    suites = {suite["name"]: suite for suite in column.verdict["suites"]}
    tier, _, rest = signature.partition(":")
    if tier not in suites:
        return Cell("not run", f"the tier {tier} was not asked for")
    why = TIERS[tier].why_not_checked(suites[tier], rest)
    if why:
        return Cell("not run", why)
    return Cell("known" if is_known_in(column.target, signature) else "clean")
