"""Tables of the index from the JSON of a checkout of specsim: which release has which bug, the mutants, speed. A table
whose files are not there is left out.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from specsim.errors import UsageError
from specsim.files import read_json
from specsim.report.page.index import IndexTable

Cell = str | tuple[str, str]
_FOUND, _CLEAN, _NOT_RUN = ("x", "mark yes"), ("ok", "mark no"), ("-", "mark")


def tables_of(folder: Path) -> list[IndexTable]:
    """The tables of a checkout, or of any folder with its `fixtures/` and `bench/results/`."""
    found = [_matrix(folder / "fixtures"), _mutants(folder / "bench" / "results"), _speed(folder / "bench" / "results")]
    return [table for table in found if table is not None]


def _read(path: Path) -> Any:
    """The JSON of a file; None when it is not there, or is none."""
    try:
        return read_json(path, "")
    except UsageError:
        return None


def _matrix(folder: Path) -> IndexTable | None:
    """Rows are signatures, columns releases. A release that a file does not know was not run on that tier."""
    tiers = {name: _read(folder / f"{name}.expected.json") for name in _EXPECTED}
    known = {name: data for name, data in tiers.items() if isinstance(data, dict)}
    versions = max((list(data) for data in known.values()), key=len, default=[])
    found: dict[str, dict[str, Cell]] = {}
    for data in known.values():
        per_release = {version: _signatures(entry) for version, entry in data.items()}
        for signature in sorted(set().union(*per_release.values())):
            cells = {v: _FOUND if signature in per_release[v] else _CLEAN for v in per_release}
            found[signature] = {version: cells.get(version, _NOT_RUN) for version in versions}
    if not found:
        return None
    rows = [[signature, *cells.values()] for signature, cells in found.items()]
    note = "x: it has the finding; ok: what could show it was run; -: not pinned here. fixtures/*.expected.json"
    return IndexTable("Which release has which bug", note, ["finding", *versions], rows)


def _signatures(entry: Any) -> set[str]:
    return set(entry.get("findings", ()) if isinstance(entry, dict) else entry)


_EXPECTED = ("releases", "scheduler")
"""NAME of each fixtures/NAME.expected.json whose signatures are listed."""


def _mutants(folder: Path) -> IndexTable | None:
    path = max(folder.glob("*-mutants.json"), default=None)
    data = _read(path) if path is not None else None
    if path is None or not isinstance(data, dict):
        return None
    rows: list[list[Cell]] = []
    for mutant in data.get("mutants", ()):
        schedules = mutant.get("schedules") or {}
        found = (f"{mutant['found']} of {mutant['seeds']}", "number")
        median = (f"{schedules['median']:g}" if schedules.get("median") is not None else "-", "number")
        rows.append([mutant["id"], mutant["title"], found, median, " ".join(mutant["rules"])])
    columns = ["mutant", "what is wrong", "seeds that find it", "schedules, median", "rules"]
    return IndexTable("Historic bugs put back", f"{path.parent.name}/{path.name}", columns, rows)


def _speed(folder: Path) -> IndexTable | None:
    rows: list[list[Cell]] = []
    for path in sorted(folder.glob("*.json")):
        data = _read(path)
        if not isinstance(data, dict) or not str(data.get("format", "")).startswith("specsim.bench/"):
            continue
        environment = data["environment"]
        device = environment.get("gpu") if "h200" in path.name else environment.get("cpu")
        for benchmark in data["benchmarks"]:
            shape = ", ".join(f"{name}={value}" for name, value in benchmark["shape"].items())
            for peer in benchmark["peers"]:
                if peer.get("median") is None:
                    continue
                median = (f"{peer['median']:,.4g} {benchmark['unit']}", "number")
                ratio = ("" if peer.get("ratio") is None else f"{peer['ratio']:.2f}", "number")
                rows.append([benchmark["name"], shape, peer["name"], median, ratio, str(device)])
    if not rows:
        return None
    columns = ["benchmark", "shape", "who", "median", "times the reference", "on"]
    return IndexTable("Speed", "bench/results/*.json, as specsim bench writes them", columns, rows)
