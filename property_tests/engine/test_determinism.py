"""A schedule is the same on every Python, under every hash seed, and in however many processes.

When the model or the swarm changes on purpose, `python property_tests/engine/test_determinism.py` writes the golden
digests anew.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "fixtures" / "golden_digests.json"
SCHEDULES = 12
VERSIONS = ("3.11", "3.12", "3.13")
HEAVY = ("torch", "triton", "numpy", "hypothesis")

# Takes the numbers of schedules; prints [number, digest, events] of each, and the heavy modules that were imported.
PROGRAM = f"""
import json, sys
from specsim.choices.chooser import seeded
from specsim.engine.workload import draw_scenario
from specsim.engine.rules.checked_engine import checked_engine
import specsim.tiers.accounting.schedules, specsim.engine.accounting_target
digests = []
for number in map(int, sys.argv[1:]):
    chooser = seeded(number, "golden")
    run = checked_engine(draw_scenario(chooser), chooser).run()
    assert not run.violations, run.violations
    digests.append([number, run.digest, len(run.log)])
print(json.dumps([digests, [name for name in {HEAVY!r} if name in sys.modules]]))
"""

Digests = dict[int, tuple[str, int]]


def run_program(python: str, numbers: list[int], *options: str, hash_seed: str = "random") -> tuple[Digests, list[str]]:
    """Digest and count of events by the number of the schedule, and the heavy modules."""
    ended = subprocess.run(
        [python, *options, "-c", PROGRAM, *map(str, numbers)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": hash_seed, "PYTHONDONTWRITEBYTECODE": "1"},
    )
    assert ended.returncode == 0, ended.stderr
    digests, heavy = json.loads(ended.stdout)
    return {number: (digest, events) for number, digest, events in digests}, heavy


@cache
def golden() -> Digests:
    stored = json.loads(GOLDEN.read_text(encoding="utf-8"))
    return {int(number): (entry["digest"], entry["events"]) for number, entry in stored["schedules"].items()}


@cache
def python_of(version: str) -> str | None:
    """A Python of that version that starts: this one, or one in a folder of SPECSIM_PYTHONS, on PATH, or beside this
    one.
    """
    if version == "{}.{}".format(*sys.version_info):
        return sys.executable
    folders = [
        *os.environ.get("SPECSIM_PYTHONS", "").split(os.pathsep),
        *os.environ.get("PATH", "").split(os.pathsep),
        str(Path(sys.executable).parent),
        f"{sys.base_prefix}/bin",
    ]
    for folder in dict.fromkeys(folders):
        python = shutil.which(f"python{version}", path=folder)
        if python is None:
            continue
        asked = subprocess.run(
            [python, "-c", "import sys; print(*sys.version_info[:2])"], check=False, capture_output=True
        )
        if asked.stdout.decode().split() == version.split("."):  # a version manager's shim may lead nowhere
            return python
    return None


@pytest.mark.parametrize("hash_seed", ["0", "1", "random"])
def test_digests_do_not_depend_on_the_hash_seed(hash_seed: str) -> None:
    digests, _ = run_program(sys.executable, list(range(SCHEDULES)), hash_seed=hash_seed)
    assert digests == golden(), "if this is on purpose: python property_tests/engine/test_determinism.py"


@pytest.mark.parametrize("version", VERSIONS)
def test_digests_do_not_depend_on_the_python(version: str) -> None:
    python = python_of(version)
    if python is None:
        pytest.skip(f"there is no Python {version} on PATH or in a folder of SPECSIM_PYTHONS")
    # Without its site-packages: the simulator needs the standard library alone.
    digests, _ = run_program(python, list(range(SCHEDULES)), "-S")
    assert digests == golden()


def test_one_process_and_several_run_the_same_schedules() -> None:
    several: Digests = {}
    for first in range(3):
        several |= run_program(sys.executable, list(range(first, SCHEDULES, 3)))[0]
    assert several == golden()


def test_a_schedule_does_not_depend_on_those_before_it() -> None:
    assert run_program(sys.executable, [*reversed(range(SCHEDULES))])[0] == golden()


def test_the_simulator_imports_nothing_heavy() -> None:
    assert run_program(sys.executable, [0])[1] == []


def test_golden_schedules_differ() -> None:
    assert list(golden()) == list(range(SCHEDULES))
    assert len({digest for digest, _ in golden().values()}) == SCHEDULES
    assert sum(events for _, events in golden().values()) > 20 * SCHEDULES


def write_golden() -> None:
    digests, _ = run_program(sys.executable, list(range(SCHEDULES)))
    schedules = {str(number): {"digest": digest, "events": events} for number, (digest, events) in digests.items()}
    about = "digests of schedules of the default swarm, by seed; written by property_tests/engine/test_determinism.py"
    GOLDEN.write_text(json.dumps({"about": about, "schedules": schedules}, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    write_golden()
