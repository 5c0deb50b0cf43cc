"""What becomes of a replay: a target that is not deterministic, and a simulator whose code has changed since."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from property_tests.support.command_line import specsim

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
    specsim(folder, "dev", "check", "--mutant", "A02-finished", "--schedules", "40", "--out", "found")
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
