"""Fixtures of a matrix: replay files, each with the targets on which it is seen to show its finding.

A fixture that is there already and shows a finding on another target serves that one, too; what none shows gets its own
replay file. What a check of a minute does not meet, a replay of its fixture shows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from specsim import replay_file
from specsim.engines.triage import UNTRIAGED, entry_at
from specsim.files import read_json, write_json
from specsim.findings.matrix import Cell, FindingRow, Matrix, cell_of, in_order
from specsim.findings.pin import replay_pinned
from specsim.tiers.registry import TIERS


def pin_missing(
    matrix: Matrix, folder: Path, known: Mapping[tuple[str, str], Path], jobs: int, say: Callable[[str], None]
) -> None:
    """See to a fixture in the folder for each finding of the matrix that has none in `known`, by signature and target.
    One target on which a new fixture does not show the finding is noted, too.
    """
    for row in matrix.rows:
        lacking = [t for t, cell in row.cells.items() if cell.state == "finding" and (row.signature, t) not in known]
        clean = [target for target, cell in row.cells.items() if cell.state == "clean"][-1:]
        for path in sorted({path for (signature, _), path in known.items() if signature == row.signature}):
            shown = _shown(path, lacking, jobs)
            _expect(path, dict.fromkeys(shown, True))
            lacking = [target for target in lacking if target not in shown]
        while lacking:
            *others, first = lacking  # the newest: its neighbours have most in common with it
            path = _free(folder, replay_file.file_name(row.signature), first)
            data = read_json(Path(row.cells[first].replay), replay_file.REMEDY, nan=True)
            write_json(path, {**data, "expect": {}})
            shown = {first, *_shown(path, [*others, *clean], jobs)}
            _expect(path, {target: target in shown for target in [*lacking, *clean] if target in {*shown, *clean}})
            say(f"{path}: {', '.join(target for target in lacking if target in shown)}")
            lacking = [target for target in lacking if target not in shown]


def replay_known(matrix: Matrix, known: Mapping[tuple[str, str], Path], jobs: int) -> None:
    """Replay the fixtures of findings that the checks did not meet, each on the targets of the matrix on which it is
    `known` to show its finding. A cell, and where no target has the finding a row, tells what is seen then.
    """
    checked = {column.target for column in matrix.columns if column.verdict}
    rows = {row.signature: row for row in matrix.rows}
    missed: dict[tuple[str, Path], list[str]] = {}
    for (signature, target), path in known.items():
        row = rows.get(signature)
        if target in checked and (row is None or row.cells[target].state != "finding"):
            missed.setdefault((signature, path), []).append(target)
    for (signature, path), targets in missed.items():
        for target in sorted(_shown(path, targets, jobs), key=targets.index):
            if signature not in rows:
                cells = {column.target: cell_of(column, signature) for column in matrix.columns}
                rows[signature] = _row(signature, path, target, cells)
            entry = entry_at(target, signature)
            reach = " or ".join(sorted(entry.reaches)) if entry else ""
            rows[signature].cells[target] = Cell("finding", reach=reach, replay=str(path))
    matrix.rows = in_order(rows.values())


def _row(signature: str, path: Path, target: str, cells: dict[str, Cell]) -> FindingRow:
    """The row of a finding that is known by its fixture alone."""
    stored = replay_file.load(path)
    rule = TIERS[stored.tier].rules[stored.rule]
    triage = entry_at(target, signature)
    severity = str(triage.severity if triage else rule.severity)
    return FindingRow(
        signature, rule.id, rule.sentence, severity, stored.tier, triage.line if triage else UNTRIAGED, cells
    )


def _shown(path: Path, targets: Iterable[str], jobs: int) -> set[str]:
    """The targets on which a replay file shows its finding."""
    wanted = list(targets)
    with ThreadPoolExecutor(jobs) as pool:
        shown = list(pool.map(lambda target: replay_pinned(path, target).shown, wanted))
    return {target for target, shows in zip(wanted, shown, strict=True) if shows}


def _expect(path: Path, shows: Mapping[str, bool]) -> None:
    """Note in a fixture what it shows on some targets."""
    if not shows:
        return
    data: dict[str, Any] = read_json(path, replay_file.REMEDY, nan=True)
    for target, shown in shows.items():
        data["expect"].setdefault(target, TIERS[data["tier"]].expectation(data["rule"], shown))
    write_json(path, data)


def _free(folder: Path, name: str, target: str) -> Path:
    path = folder / f"{name}.json"
    return path if not path.exists() else folder / f"{replay_file.file_name(f'{name}-{target}')}.json"
