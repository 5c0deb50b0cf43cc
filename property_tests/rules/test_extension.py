"""A user's rule, chooser or accounting that is wrong is a finding against it, with the seed and a replay."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from specsim.choices.chooser import replayed
from specsim.engine.accounting import Memory, ModelAccounting, Observed
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.request import Request
from specsim.engine.rules.extension import Extension, ExtensionTarget
from specsim.tiers.accounting.schedules import chooser_of, run_schedule, simulate

MINE = """
    from specsim.engine.rules.extension import Extension
    from specsim.engine.accounting import ModelAccounting

    def raises(call, memory, requests):
        return {}[call]

    def never_retracts(call, memory, requests):
        return "somebody was retracted" if call == "retract" else ""

    def falls_over(bound, label, value):
        if label == "abort":
            raise RuntimeError("no aborts here")
        return value

    def too_large(bound, label, value):
        return bound

    class Broken(ModelAccounting):
        def prepare(self, batch):
            raise KeyError("seq_lens")

    rule = Extension(rules={"a": raises})
    says = Extension(rules={"b": never_retracts})
    chooser = Extension(chooser=falls_over)
    large = Extension(chooser=too_large)
    accounting = Extension(accounting=Broken)
    sound = Extension(chooser=lambda bound, label, value: value)
"""
FOUND = {
    "rule": ("X4", "accounting:X4:rule a", "KeyError: 'extend'"),
    "says": ("X5", "accounting:X5:rule b", "somebody was retracted"),
    "chooser": ("X4", "accounting:X4:chooser", "RuntimeError: no aborts here"),
    "large": ("X4", "accounting:X4:chooser", "for 'num_steps', which must be an integer from 0 to 3"),
    "accounting": ("X1", "accounting:X1:prepare", "KeyError: 'seq_lens'"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("extension")
    (folder / "mine.py").write_text(textwrap.dedent(MINE))
    return folder


def check(folder: Path, name: str) -> dict[str, Any]:
    arguments = ["--only", "accounting", "--schedules", "60", "--seed", "5", "--json", "verdict.json"]
    ended = specsim(folder, "check", f"mine:{name}", *arguments)
    assert "Traceback" not in ended.stderr
    data: dict[str, Any] = json.loads((folder / "verdict.json").read_text())
    return data


@pytest.mark.parametrize("name", list(FOUND))
@pytest.mark.slow(runs_one_in=3)
def test_what_an_extension_does_wrong_is_a_finding_against_it_with_the_seed(folder: Path, name: str) -> None:
    rule, signature, actual = FOUND[name]
    (finding,) = check(folder, name)["findings"]
    assert (finding["rule"], finding["signature"]) == (rule, signature)
    assert actual in finding["actual"]
    assert any(line.startswith("first in schedule ") and line.endswith(" of seed 5") for line in finding["details"])
    assert finding["order"] is None
    ended = specsim(folder, "replay", finding["replay"], "--verify", "--trust")
    assert (ended.returncode, "bit for bit" in ended.stdout) == (1, True), ended.stdout + ended.stderr


@pytest.mark.slow
def test_an_extension_that_changes_nothing_passes_and_has_no_operations(folder: Path) -> None:
    ended = specsim(folder, "check", "mine:sound", "--schedules", "40", "--json", "verdict.json")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert json.loads((folder / "verdict.json").read_text())["suites"][0]["cases"] == 0


def run(extension: Extension, count: int = 40) -> list[str]:
    target = ExtensionTarget("mine", extension)
    schedules = [run_schedule(target, chooser_of(0, index)) for index in range(count)]
    return [schedule.run.digest for schedule in schedules if schedule is not None]


def test_a_chooser_that_keeps_every_value_changes_no_schedule() -> None:
    plain = [run_schedule(ModelTarget(), chooser_of(0, index)) for index in range(40)]
    same = run(Extension(chooser=lambda _bound, _label, value: value))
    assert same == [schedule.run.digest for schedule in plain if schedule is not None]


def test_a_chooser_is_asked_again_by_a_replay() -> None:
    target = ExtensionTarget("mine", Extension(chooser=lambda bound, _label, value: bound - 1 - value))
    for index in range(20):
        first = run_schedule(target, chooser_of(0, index))
        assert first is not None
        again = run_schedule(target, replayed(first.tape))
        assert again is not None
        assert again.run.digest == first.run.digest


def test_a_rule_sees_what_is_observed_of_every_request_after_every_call() -> None:
    seen: set[str] = set()

    def watch(call: str, memory: Memory, requests: dict[str, Observed]) -> str:
        seen.add(call)
        assert memory.config.rows >= 1
        return "" if all(now.committed <= now.allocated for now in requests.values()) else "committed > allocated"

    assert len(run(Extension(rules={"lengths": watch}))) == 40
    assert seen >= {"extend", "prepare", "resolve", "finish check", "release", "retract", "abort", "session match"}


def test_an_accounting_that_cannot_be_made_or_asked_is_a_finding() -> None:
    class Unmade(ModelAccounting):
        def __init__(self, memory: Memory) -> None:
            raise ValueError("nothing here")

    class Unasked(ModelAccounting):
        def arrive(self, request: Request) -> None:
            raise ValueError("who is this")

    for accounting, signature in ((Unmade, "accounting:X1:accounting"), (Unasked, "accounting:X1:arrive")):
        target = ExtensionTarget("mine", Extension(accounting=accounting))
        result = simulate(target, seed=0, schedules=5, deadline=float("inf"), on_schedule=lambda _index: None)
        assert [finding.signature for finding in result.findings] == [signature]
        assert result.findings[0].count == 5
