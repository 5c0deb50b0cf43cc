"""What becomes of a check and a replay of a target that is not deterministic."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from specsim.contracts.provider import MappingProvider
from specsim.contracts.registry import OPS
from specsim.tiers.ops.finding import Origin, finding_of
from specsim.tiers.ops.suite import SuiteLimits, check_subject

ROOT = Path(__file__).parents[2]

# An engine that breaks a rule, and one that does so in every other run; where there is a file "flaky", every other run
# launches something else first.
FLAKY = """
from pathlib import Path
from property_tests.support.own_engine import Engine, Scheduler
from specsim.world.scheduler import Launch

FLAKY = Path("flaky")


class Flaky(Scheduler):
    def run(self, chooser, script):
        if FLAKY.exists():
            count = len(FLAKY.read_text())
            FLAKY.write_text("x" * (count + 1))
            self.seen.launches += [Launch(0, "decode", ("nobody",))] * (count % 2)
        super().run(chooser, script)


class FlakyEngine(Engine):
    def start(self, setup):
        return Flaky(setup, self.step)


def raises(requests):
    if requests == 2:
        raise LookupError(requests)


def raises_now_and_then(requests):
    raises(2 * (len(FLAKY.read_text()) % 2))


engine, wavering = FlakyEngine(raises), FlakyEngine(raises_now_and_then)
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changes")
    (folder / "flaky.py").write_text(FLAKY)
    specsim(folder, "check", "flaky:engine", "--only", "scheduler", "--schedules", "10", "--out", "broken")
    return folder


def test_verify_names_the_first_launch_in_which_two_runs_of_an_engine_differ(folder: Path) -> None:
    (file,) = (folder / "broken").iterdir()
    same = specsim(folder, "replay", str(file), "--verify", "--trust")
    assert (same.returncode, "same in two processes" in same.stdout) == (1, True), same.stdout + same.stderr
    (folder / "flaky").write_text("")
    ended = specsim(folder, "replay", str(file), "--verify", "--trust")
    assert (ended.returncode, "nondeterministic" in ended.stderr) == (3, True), ended.stdout + ended.stderr
    (launch,) = json.loads(file.read_text())["events"]
    assert f"launch 1 was {' '.join(launch.split())!r}, then '0 decode nobody'" in ended.stderr


def test_a_check_of_an_engine_that_is_not_deterministic_ends_with_exit_code_3(tmp_path: Path) -> None:
    (tmp_path / "flaky.py").write_text(FLAKY)
    (tmp_path / "flaky").write_text("")
    ended = specsim(tmp_path, "check", "flaky:wavering", "--only", "scheduler", "--schedules", "25", "--no-shrink")
    assert (ended.returncode, "\nnondeterministic: no findings" in ended.stdout) == (3, True), (
        ended.stdout + ended.stderr
    )
    assert "the finding came in the first run alone" in ended.stdout, ended.stdout


# Operations


# A case takes two calls in which nothing is wrong, and four in which something is.
@pytest.mark.parametrize(
    ("is_wrong", "missed"),
    [(lambda _call: True, 0), (lambda call: not 4 < call <= 6, 1), (lambda call: call <= 4, 8)],
    ids=["always", "again", "once"],
)
def test_a_finding_of_an_operation_says_which_runs_of_its_case_did_not_show_it(
    is_wrong: Callable[[int], bool], missed: int
) -> None:
    op = OPS["fill_bonus_tokens"]
    calls: list[None] = []

    def wavers(predict: Any, accept_index: Any, accept_lens: Any) -> Any:
        calls.append(None)
        return op.reference(predict, accept_index, accept_lens) + int(is_wrong(len(calls)))

    (subject,) = MappingProvider("mine", {op.name: wavers}).subjects()[0]
    found = check_subject(op, subject, seed=0, limits=SuiteLimits(cases=1, attempts=0)).counterexample
    assert found is not None
    finding, stored = finding_of(op, subject, found, Origin("mine", 0, "cpu"))
    said = [line for line in finding.details if line.startswith("not in every run")]
    wanted = f"not in every run: {missed} of {missed + 1} runs of this case did not show it"
    assert (finding.rule, stored.rule, found.missed) == ("O1", "O1", missed)
    assert said == ([wanted] if missed else [])
