"""What guidance is worth is measured on the slowest mutants of the committed table, the same seeds for both."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from specsim.bench import guidance
from specsim.selfcheck.hunt import Hunt, Hunted
from specsim.selfcheck.mutation import find

DOCS = Path(__file__).resolve().parents[2] / "docs"
MUTANTS = (DOCS / "mutants.md").read_text()
PAGE = (DOCS / "guidance.md").read_text()


def hunted(name: str, seconds: list[float]) -> Hunted:
    hunts = (Hunt(seed, 10 + seed, each, ("accounting:I10:x",)) for seed, each in enumerate(seconds))
    return Hunted(find(name), tuple(hunts))


def test_the_mutants_are_the_ten_slowest_of_the_committed_table() -> None:
    table = MUTANTS.split("## By strategy")[0]  # what was written blind is scored apart
    rows = [line.split(" | ") for line in table.splitlines() if re.match(r"\| [A-Z]\d\d\S* \| .* \| 10/10 \|", line)]
    slowest = sorted(rows, key=lambda cells: -float(cells[6]))[:10]
    assert [cells[0].removeprefix("| ") for cells in slowest] == list(guidance.SLOWEST)


def test_the_committed_page_has_each_of_them_with_twenty_seeds() -> None:
    assert re.findall(r"^\| ([A-Z]\d\d\S*) \|", PAGE, re.MULTILINE) == list(guidance.SLOWEST)
    assert f"with {guidance.SEEDS} seeds" in PAGE
    assert guidance._TEXT in PAGE


def test_the_page_says_who_was_sooner_by_sums_mutants_and_hunts() -> None:
    entries = []
    for name in guidance.SLOWEST:
        both = {"swarm": hunted(name, [0.1, 0.3, 0.5]), "coverage": hunted(name, [0.2, 0.2, 0.2])}
        entries += [guidance.entry(name, unit, both) for unit in ("CPU s", "schedules")]
    page = guidance.page(entries)
    assert "the swarm 3.00 CPU seconds and 110 schedules, `coverage` 2.00 and 110" in page
    assert "(0.67 times the CPU time). `coverage` is sooner in the median of 10 of 10 mutants, and in 20 of 30" in page
    assert "| I10 | 0.30 / 0.30 | 11 | 0.20 / 0.20 | 11 | 0.67 |" in page


def test_the_benchmark_has_both_beside_one_another(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(guidance, "SLOWEST", ("A09",))
    entries = guidance.run("cpu", 1)
    assert [(entry["shape"]["mutant"], entry["unit"]) for entry in entries] == [
        (name, unit) for name in ("A09",) for unit in ("CPU s", "schedules")
    ]
    for entry in entries:
        assert [peer["name"] for peer in entry["peers"]] == ["swarm", "coverage"]
        assert entry["peers"][0]["ratio"] == 1
        assert [peer["found"] for peer in entry["peers"]] == [1, 1]
