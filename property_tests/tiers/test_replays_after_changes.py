"""What becomes of a replay: a target that is not deterministic, and a simulator whose code has changed since."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from property_tests.support.command_line import specsim

ROOT = Path(__file__).parents[2]

# An accounting that breaks a rule; where there is a file "flaky", every other process wants more memory than there is.
FLAKY = """
from pathlib import Path
from specsim.engine.rules.extension import Extension
from specsim.engine.accounting import ModelAccounting

FLAKY = Path("flaky")
COUNT = len(FLAKY.read_text()) if FLAKY.exists() else 0
if FLAKY.exists():
    FLAKY.write_text("x" * (COUNT + 1))


class Flaky(ModelAccounting):
    run = 0

    def __init__(self, memory):
        super().__init__(memory)
        Flaky.run += 1

    def decode_need(self, batch):
        return 10**6 if COUNT % 2 else super().decode_need(batch)


def nothing_is_released(call, memory, requests):
    return "somebody was" if call == "release" else ""


extension = Extension(accounting=Flaky, rules={"nothing is released": nothing_is_released})
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("changes")
    (folder / "flaky.py").write_text(FLAKY)
    specsim(folder, "check", "flaky:extension", "--only", "accounting", "--schedules", "10", "--out", "broken")
    specsim(folder, "dev", "check", "--mutant", "A02-finished", "--schedules", "40", "--out", "found")
    return folder


def test_verify_names_the_first_event_in_which_two_runs_of_an_accounting_differ(folder: Path) -> None:
    (file,) = (folder / "broken").iterdir()
    same = specsim(folder, "replay", str(file), "--verify", "--trust")
    assert (same.returncode, "same in two processes" in same.stdout) == (1, True), same.stdout + same.stderr
    (folder / "flaky").write_text("")
    ended = specsim(folder, "replay", str(file), "--verify", "--trust")
    assert (ended.returncode, "nondeterministic" in ended.stderr) == (3, True), ended.stdout + ended.stderr
    named = re.search(r"event (\d+) was '(.*)', then '(.*)'\)", ended.stderr)
    assert named, ended.stderr
    was = [" ".join(line.split()[1:]) for line in json.loads(file.read_text())["events"]]
    number, first, second = int(named[1]), " ".join(named[2].split()), " ".join(named[3].split())
    assert first == was[number]
    assert second != first
    assert second.startswith(("host drop", "host retract"))


def test_a_check_of_an_accounting_that_is_not_deterministic_ends_with_exit_code_3(tmp_path: Path) -> None:
    in_one_process = FLAKY.replace("COUNT % 2", "Flaky.run % 2").split("extension =")[0]
    in_one_process += "extension = Extension(accounting=Flaky)\n"
    (tmp_path / "flaky.py").write_text(in_one_process)
    ended = specsim(tmp_path, "check", "flaky:extension", "--only", "accounting", "--schedules", "25")
    assert (ended.returncode, "\nnondeterministic: no findings" in ended.stdout) == (3, True), (
        ended.stdout + ended.stderr
    )
    assert re.search(r"not the same twice: schedule 0 of seed 0 \(event \d+ was ", ended.stdout), ended.stdout


def changed_simulator(folder: Path, module: str, change: Callable[[str], str]) -> Path:
    """A copy of specsim in which one module is changed."""
    copy = folder / f"changed {len(list(folder.iterdir()))}"
    for name in ("specsim", "reference", "kernels"):
        shutil.copytree(ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
    file = copy / module
    before = file.read_text(encoding="utf-8")
    after = change(before)
    assert after != before
    file.write_text(after, encoding="utf-8")
    return copy


def replayed_by(simulator: Path, folder: Path, file: Path, *arguments: str) -> tuple[int, str]:
    ended = subprocess.run(
        [sys.executable, "-m", "specsim", "replay", str(file), *arguments],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        timeout=180,
        env={**os.environ, "PYTHONPATH": str(simulator), "SPECSIM_CACHE_DIR": str(folder / "cache")},
    )
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended.returncode, " ".join(ended.stdout.split())


def first(folder: Path) -> Path:
    return sorted((folder / "found").glob("*I31*"))[0]


def test_a_replay_still_runs_after_a_change_that_leaves_its_schedule_alone(folder: Path, tmp_path: Path) -> None:
    simulator = changed_simulator(tmp_path, "specsim/engine/loop.py", lambda text: text + "\nNOTHING = 0\n")
    code, said = replayed_by(simulator, folder, first(folder))
    assert code == 1
    assert "made before a change of the simulator" in said
    assert "reproduced" in said


NUM_STEPS = '    num_steps = pick(chooser, (3, 1, 2, 5), "num_steps")\n'


def test_a_replay_whose_choices_are_read_as_others_still_runs(folder: Path, tmp_path: Path) -> None:
    """Two more choices come first: every value of the tape is now another one's."""
    added = '    chooser.choose(7, "a newer feature")\n    chooser.choose(7, "another")\n'
    simulator = changed_simulator(
        tmp_path, "specsim/engine/workload.py", lambda text: text.replace(NUM_STEPS, added + NUM_STEPS)
    )
    code, said = replayed_by(simulator, folder, first(folder))
    assert (code, "may stand for another schedule than it did" in said) == (1, True), said


def sound(folder: Path) -> Path:
    """The replay of the model without its mutant: what it shows is gone."""
    file = folder / "sound.json"
    file.write_text(json.dumps(json.loads(first(folder).read_text()) | {"mutant": ""}))
    return file


def test_a_replay_whose_choices_stand_for_another_scenario_says_that_it_no_longer_applies(
    folder: Path, tmp_path: Path
) -> None:
    another = NUM_STEPS.replace("(3, 1, 2, 5)", "(2, 1, 3, 5)")
    simulator = changed_simulator(tmp_path, "specsim/engine/workload.py", lambda text: text.replace(NUM_STEPS, another))
    code, said = replayed_by(simulator, folder, sound(folder))
    assert (code, "no longer applies" in said) == (125, True), said
    assert "its tape stands for another configuration or workload now" in said


def test_a_replay_says_at_which_event_it_diverged_when_the_engine_has_changed(folder: Path, tmp_path: Path) -> None:
    line = 'self._log.record("host", "launch", part.name, '
    begins = line.replace('"launch"', '"begin"')
    simulator = changed_simulator(tmp_path, "specsim/engine/launches.py", lambda text: text.replace(line, begins))
    code, said = replayed_by(simulator, folder, sound(folder))
    assert (code, "no longer applies" in said, "diverged at event" in said) == (125, True, True), said
    assert "is 'host begin" in said
