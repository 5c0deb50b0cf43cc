"""What `specsim bench planted` and `specsim bench found` say, from schedules of no release."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest

from property_tests.support.known_releases import FEW
from specsim.bench import hunts, run
from specsim.errors import UsageError

ROOT = Path(__file__).parents[2]


class Shows:
    """In the place of a process with a target's scheduler: what each mutant's schedules show, the last one for ever."""

    SHOWN: ClassVar[dict[str, list[list[str]]]] = {
        "": [["rare"], []],
        "P01": [["rare"], ["known"], ["new"]],
        "P02": [[]],
        "Q02": [["race"]],
        "Q02+Q01": [["race"], ["race", "other race"]],
    }

    def __init__(self, _target: str, mutant: str = "", *_how: object) -> None:
        self.cpu_seconds, self._shown = 1.25, self.SHOWN[mutant]

    def signatures(self, _seed: int, index: int) -> frozenset[str]:
        return frozenset(self._shown[min(index, len(self._shown) - 1)])

    def close(self) -> None:
        pass


@pytest.mark.parametrize(
    ("mutant", "schedule", "signature"), [("P01", 3, "new"), ("P02", 0, ""), ("Q02+Q01", 2, "other race")]
)
def test_a_defect_is_found_by_what_the_release_without_it_never_shows(
    monkeypatch: pytest.MonkeyPatch, mutant: str, schedule: int, signature: str
) -> None:
    monkeypatch.setattr(hunts, "Hunter", Shows)
    beside: Any = Shows("", "Q02") if "+" in mutant else None
    peer = hunts._hunted("a release", mutant, 5, frozenset(["rare", "known"]), beside)
    assert (peer["median"], peer["signature"]) == (schedule, signature)
    assert peer["not_run"] == (None if schedule else "not found in 5 schedules, 1.2 CPU s")


def test_a_target_that_is_not_run_is_one_clear_sentence(tmp_path: Path) -> None:
    (tmp_path / "python" / "sglang").mkdir(parents=True)
    (tmp_path / "python" / "sglang" / "__init__.py").touch()
    with pytest.raises(UsageError, match="is not run: "):
        hunts.rows_found("cpu", None, targets=[f"sglang@{tmp_path}"], schedules=1)[0].measure()


def test_signatures_are_counted_by_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunts, "Hunter", Shows)
    monkeypatch.setattr(Shows, "SHOWN", {"": [[], ["often"]]})
    (row,) = hunts.rows_found("cpu", None, targets=["a release"], schedules=3)
    (entry,) = row.measure()
    (peer,) = entry["peers"]
    assert (peer["name"], peer["seeds"], peer["median"]) == ("often", hunts.SEEDS, 2)


def test_at_the_deadline_the_seeds_that_ended_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hunts, "Hunter", Shows)
    (row,) = hunts.rows_found("cpu", None, targets=["a release"], schedules=2, is_over=lambda: True)
    (entry,) = row.measure()
    assert (entry["shape"]["seeds"], entry["peers"]) == (0, [])


def test_defects_that_were_not_hunted_in_time_say_so(monkeypatch: pytest.MonkeyPatch) -> None:
    defects = [SimpleNamespace(id=name, covered_by="") for name in ("P01", "P02")]
    monkeypatch.setattr(hunts, "_defects_of", lambda _target: defects)
    (row,) = hunts.rows_planted("cpu", None, targets=["a release"], is_over=lambda: True)
    (entry,) = row.measure()
    assert [(peer["name"], peer["not_run"]) for peer in entry["peers"]] == [
        ("P01", hunts.NOT_HUNTED),
        ("P02", hunts.NOT_HUNTED),
    ]


def test_the_defects_of_a_release_are_those_of_its_source(release: Callable[[str], object]) -> None:
    release(FEW[2])
    ids = [defect.id for defect in hunts._defects_of(f"sglang=={FEW[2]}")]
    assert len([name for name in ids if name.startswith("P")]) == 30
    others = [name for name in ids if not name.startswith("P")]
    assert others == [*(f"Q0{number}" for number in range(1, 9)), "E04"]  # whose function reads as in the newest


@pytest.mark.parametrize("name", [hunts.PLANTED, hunts.FOUND])
def test_a_target_without_a_scheduler_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="hunts nothing"):
        run([name], "cpu")
    for target in ("model", "flashinfer==1.0", "sglang-kernel==1.0"):
        with pytest.raises(UsageError, match=f"{target} has no scheduler"):
            hunts._defects_of(target)


def test_the_page_has_the_measured_hunts_of_planted_defects() -> None:
    results = json.loads((ROOT / "bench/results/2026-11-23-xeon-planted.json").read_text())
    hunted = [peer for entry in results["benchmarks"] for peer in entry["peers"]]
    seconds = [peer["timing"].removesuffix(" CPU s") for peer in hunted]
    measured = [
        (peer["name"], str(peer["median"] or "-"), cpu, peer["signature"].partition(":")[2].partition(":")[0])
        for peer, cpu in zip(hunted, seconds, strict=True)
    ]
    page = (ROOT / "docs/scheduler.md").read_text()
    assert re.findall(r"^\| (\S+) \| (\d+|-) \| ([\d.]+) \| (\w*) ?\|$", page, re.MULTILINE) == measured
    survivors = re.findall(r"^\| (P\d\d) \| \D", page.partition("Not found:")[2], re.MULTILINE)
    assert survivors == [peer["name"] for peer in hunted if peer["not_run"]]


def test_the_page_has_the_measured_seeds_of_known_defects() -> None:
    results = [
        json.loads((ROOT / f"bench/results/2026-11-23-xeon16-{of}.json").read_text()) for of in ("found", "clean")
    ]
    measured = {entry["shape"]["target"]: entry for result in results for entry in result["benchmarks"]}
    page = (ROOT / "docs/scheduler.md").read_text()
    rows = re.findall(r"`(scheduler:\S+)` \| ([\d.]+) \| (\d+) \| (\d+) of (\d+) \|$", page, re.MULTILINE)
    assert rows
    for signature, version, schedules, seeds, of in rows:
        entry = measured[f"sglang=={version}"]
        shown = [peer["seeds"] for peer in entry["peers"] if peer["name"] == signature]
        assert [int(seeds)] == (shown or [0])
        assert entry["shape"] == {"target": f"sglang=={version}", "schedules": int(schedules), "seeds": int(of)}
