"""`check --strategy`: one name and seed, the same schedules; findings replay, and crashes are blamed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from specsim.choices.search_strategies import STRATEGIES


def check(folder: Path, *arguments: str) -> dict[str, Any]:
    ended = specsim(folder, "dev", "check", *arguments, "--only", "accounting", "--json", "verdict.json")
    assert ended.returncode in (0, 1), ended.stderr
    data: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return data


def counts(folder: Path, *arguments: str) -> tuple[int, int]:
    (suite,) = check(folder, "model", "--schedules", "25", *arguments)["suites"]
    return suite["schedules"], suite["events"]


@pytest.mark.slow
def test_the_default_is_the_swarm_and_every_strategy_makes_schedules_of_its_own(tmp_path: Path) -> None:
    default = counts(tmp_path)
    made = {name: counts(tmp_path, "--strategy", name) for name in STRATEGIES}
    assert made["swarm"] == default
    assert {schedules for schedules, _ in made.values()} == {25}
    assert len({events for _, events in made.values()}) == len(STRATEGIES)


def test_a_finding_of_a_strategy_that_learns_is_replayed_bit_for_bit(tmp_path: Path) -> None:
    data = check(tmp_path, "model", "--mutant", "A02-finished", "--schedules", "40", "--strategy", "pct")
    (finding, *_) = [each for each in data["findings"] if each["rule"] == "I31"]
    ended = specsim(tmp_path, "replay", finding["replay"])
    assert (ended.returncode, "bit for bit" in ended.stdout) == (1, True), ended.stdout + ended.stderr


DIES = """
import json, os
from specsim.engine.rules.extension import Extension
from specsim.engine.accounting import ModelAccounting


class Dies(ModelAccounting):
    def __init__(self, memory):
        super().__init__(memory)
        self.config = memory.config

    def retract(self, batch):
        with open("died.json", "w") as file:
            json.dump({"pool_slots": self.config.pool_slots, "context_len": self.config.context_len}, file)
        os.abort()


extension = Extension(accounting=Dies)
"""


@pytest.mark.parametrize("name", ["swarm", "pct"])
def test_a_schedule_that_takes_its_process_with_it_is_named_also_when_its_strategy_learns(
    tmp_path: Path, name: str
) -> None:
    (tmp_path / "dies.py").write_text(DIES)
    data = check(tmp_path, "dies:extension", "--strategy", name, "--schedules", "60")
    (finding,) = data["findings"]
    assert finding["rule"] == "X3"
    config = json.loads((tmp_path / finding["replay"]).read_text())["scenario"]["config"]
    died = json.loads((tmp_path / "died.json").read_text())
    assert died == {key: config[key] for key in died}


def test_a_strategy_that_is_not_there_is_refused(tmp_path: Path) -> None:
    ended = specsim(tmp_path, "dev", "check", "--strategy", "luck")
    assert (ended.returncode, "--strategy 'luck' is unknown" in ended.stderr) == (2, True)
