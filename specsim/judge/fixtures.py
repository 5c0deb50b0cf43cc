"""Fixtures of a matrix: for each finding without one, its replay file, with the targets on which it is seen to show."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from specsim import replay_file
from specsim.judge.matrix import Matrix
from specsim.judge.pinned import replay_pinned
from specsim.verdict import write_json


def pin_missing(
    matrix: Matrix, folder: Path, known: Mapping[tuple[str, str], Path], say: Callable[[str], None]
) -> list[Path]:
    """Write a fixture for each signature and target of the matrix that is a finding and has none in `known`. One file
    serves all targets on which it shows the finding; one target on which it does not is noted, too.
    """
    written: list[Path] = []
    for row in matrix.rows:
        lacking = [t for t, cell in row.cells.items() if cell.state == "finding" and (row.signature, t) not in known]
        clean = [target for target, cell in row.cells.items() if cell.state == "clean"][-1:]
        while lacking:
            first = lacking[0]
            path = _free(folder, replay_file.file_name(row.signature), first)
            data = json.loads(Path(row.cells[first].replay).read_text(encoding="utf-8"))
            write_json(path, {**data, "expect": {}})
            shown = {first: True}
            for target in [*lacking[1:], *clean]:
                shown[target] = replay_pinned(path, target).shown
            write_json(path, {**data, "expect": {t: _expect(data, shows) for t, shows in shown.items()}})
            written.append(path)
            lacking = [target for target in lacking if not shown[target]]
            say(f"{path}: {', '.join(target for target, shows in shown.items() if shows)}")
    return written


def _expect(data: Mapping[str, object], shows: bool) -> dict[str, object]:
    if data["tier"] == "ops":
        return {"rules": [data["rule"]] if shows else []}
    return {"shows": shows}


def _free(folder: Path, name: str, target: str) -> Path:
    path = folder / f"{name}.json"
    return path if not path.exists() else folder / f"{replay_file.file_name(f'{name}-{target}')}.json"
