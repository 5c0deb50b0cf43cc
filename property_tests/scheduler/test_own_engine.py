"""An engine of a user's own is checked as a release's scheduler is: the example of docs/extend.md as it stands."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.suites import run_pytest
from specsim.testing import schedule

PAGE = (Path(__file__).parents[2] / "docs" / "extend.md").read_text(encoding="utf-8")
(EXAMPLE,) = re.findall(r"^<!-- file engine.py -->\n```python\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
LOST = "scheduler:I66:slots:lost"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "engine.py").write_text(EXAMPLE)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def checked(folder: Path, target: str, *arguments: str) -> dict[str, Any]:
    specsim(folder, "check", target, "--schedules", "40", "--json", "verdict.json", *arguments)
    verdict: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return verdict


def test_the_example_has_no_finding_and_says_what_it_is_not(folder: Path) -> None:
    verdict = checked(folder, "engine:right")
    assert (verdict["verdict"], verdict["findings"]) == ("pass", [])
    suites = {suite["name"]: suite for suite in verdict["suites"]}
    assert suites["scheduler"]["schedules"] == 40
    assert [entry["what"] for entry in suites["ops"]["not_run"]] == ["operations"]
    assert len(suites["scheduler"]["setups"]) == 2


def test_what_it_leaks_is_found_replayed_and_gone_where_it_is_mended(folder: Path) -> None:
    found = {one["signature"]: one for one in checked(folder, "engine:leaky")["findings"]}
    file = found[LOST]["replay"]
    assert found[LOST]["where"] == ""
    ended = specsim(folder, "replay", file, "--target", "engine:leaky")
    assert (ended.returncode, ended.stdout.splitlines()[-1]) == (1, "reproduced, bit for bit")
    mended = specsim(folder, "replay", file, "--target", "engine:right")
    assert mended.returncode == 0, mended.stdout
    unnamed = specsim(folder, "replay", file)
    assert (unnamed.returncode, "names engine:leaky" in unnamed.stderr) == (2, True)


def test_what_it_raises_is_a_finding_that_names_its_line(folder: Path) -> None:
    (folder / "engine.py").write_text(EXAMPLE.replace("one.outputs.append(token)", "raise LookupError(token)"))
    (finding,) = [one for one in checked(folder, "engine:right")["findings"] if one["rule"] == "X1"]
    line = 1 + (folder / "engine.py").read_text().split("raise LookupError")[0].count("\n")
    assert (finding["signature"], finding["where"]) == ("scheduler:X1:step:LookupError", f"engine.py:{line}")


def test_a_feature_that_is_drawn_and_not_written_is_named(folder: Path) -> None:
    (folder / "engine.py").write_text(EXAMPLE.replace('"bursts"', '"bursts", "flushes"'))
    suites = checked(folder, "engine:right", "--only", "scheduler")["suites"]
    assert any("write `flush`, or take its feature out" in entry["why"] for entry in suites[0]["not_run"])


def test_a_schedule_of_it_is_written_by_hand(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(folder))
    written = schedule("engine:leaky", out=folder / "found")
    first = written.start(8, 20)
    written.start(4, 6, at=1)
    written.abort(first, at=3)
    assert written.check().passed == ()


SUITE = """
from engine import leaky, right
from hypothesis import given, settings
from specsim.strategies import schedules

few = settings(max_examples=60, deadline=None, derandomize=True, database=None)

@few
@given(schedules(right))
def test_right(schedule):
    assert schedule.events

@few
@given(schedules(leaky))
def test_leaky(schedule): ...

@few
@given(schedules(leaky, known=["scheduler:I66:slots:lost", "scheduler:S1:request:waiting"]))  # slots run out
def test_known(schedule): ...
"""


def test_hypothesis_draws_its_schedules_and_a_rule_that_is_broken_fails_the_test(folder: Path) -> None:
    (folder / "test_mine.py").write_text(SUITE)
    ended = run_pytest(folder, "-q", "test_mine.py")
    assert "1 failed, 2 passed" in ended.stdout, ended.stdout + ended.stderr
    said = ended.stdout.split("test_leaky")[1]
    assert "slots-at-rest (I66): when nothing runs any more, every slot is free or cached" in said
    assert f"signature  {LOST}" in said
    # Hypothesis takes requests away from the end: of two, the first one stays where the second one shows it.
    assert len(re.findall(r"^E +(r\d+) +\d+ tokens? for", said, re.MULTILINE)) in (1, 2)


def test_a_defect_of_a_release_is_not_planted_into_it(folder: Path) -> None:
    ended = specsim(folder, "dev", "check", "engine:right", "--only", "scheduler", "--mutant", "P07")
    assert ended.returncode == 2
    assert "no defect can be planted into engine:right" in ended.stderr
    assert "Traceback" not in ended.stderr
