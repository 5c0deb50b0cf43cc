"""The gate of docs/ci.md, as it stands there, in a repository of the engine: a clean tree passes, a mistake fails."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from property_tests.support.command_line import specsim
from property_tests.support.engine_repository import (
    IN_VLLM,
    LAYOUTS,
    MISTAKES,
    SCHEDULER,
    SETTINGS,
    EngineRepository,
    Mistake,
)
from property_tests.support.known_releases import NEWEST, RELEASES, SGLANG, VLLM
from specsim.lifting.cache import Cache
from specsim.lifting.fetch import fetch_wheel
from specsim.lifting.source import SourceTree

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "ci.md").read_text(encoding="utf-8")
BESIDE_A_BRANCH, BESIDE_A_FILE, UPDATE = (
    line.partition(" #")[0] if " # " in line else line
    for line in re.findall(r"^\$ specsim (check .*)$", PAGE, re.M)[:3]
)
(OF_THE_README,) = re.findall(r"^\$ specsim (check sglang@.*--ci.*)$", (ROOT / "README.md").read_text(), re.M)
(HOOK,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
FILES = ("specsim.json", "specsim.xml", "specsim.sarif")
OUTPUTS = "--json specsim.json --junit specsim.xml --sarif specsim.sarif"
WITH_FILES = f"{BESIDE_A_BRANCH} {OUTPUTS}"
"""What the action runs."""
Repository = Callable[[str, str], EngineRepository]


@pytest.fixture(scope="module")
def repository(
    release: Callable[[str], SourceTree], wheel_cache: Cache, tmp_path_factory: pytest.TempPathFactory
) -> Repository:
    """Makes the repository of a release in a layout, once; a test restores what it changes."""
    made: dict[tuple[str, str], EngineRepository] = {}

    def make(version: str, layout: str) -> EngineRepository:
        release(version)  # or skips
        if (version, layout) not in made:
            settings = SETTINGS if version == NEWEST else ""
            wheel = fetch_wheel(SGLANG, version, wheel_cache)
            made[version, layout] = EngineRepository(tmp_path_factory.mktemp("engine"), wheel, layout, settings)
        made[version, layout].restore()
        return made[version, layout]

    return make


def run(repository: EngineRepository, command: str) -> subprocess.CompletedProcess[str]:
    ended = specsim(repository.root, *shlex.split(command))
    assert "Traceback" not in ended.stderr, ended.stderr
    return ended


def verdict_in(repository: EngineRepository) -> dict[str, Any]:
    data: dict[str, Any] = json.loads((repository.root / "specsim.json").read_text(encoding="utf-8"))
    return data


def require_clean(repository: EngineRepository, gate: str) -> None:
    """The gate on a tree that nobody changed."""
    ended = run(repository, f"{gate} {OUTPUTS}")
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert all((repository.root / name).stat().st_size for name in FILES)
    data = verdict_in(repository)
    assert data["verdict"] == "pass"
    compared = data["baseline"]
    assert (compared["new"], compared["not_compared"], compared["gone"]) == ([], [], [])
    assert compared["tiers_here"] == compared["tiers_there"]
    assert "scheduler" in compared["tiers_here"]


def require_found(repository: EngineRepository, mistake: Mistake, command: str) -> dict[str, Any]:
    """A gate on a tree with a mistake: what is new is of it, and nothing else is. Returns the first of it."""
    repository.make(mistake)
    ended = run(repository, command)
    data = verdict_in(repository)
    assert (ended.returncode, data["verdict"]) == (1, "fail"), ended.stdout + ended.stderr
    new = data["baseline"]["new"]
    assert new
    assert data["baseline"]["not_compared"] == []
    numbered = re.findall(r"^ *\d+\.  ", ended.stdout, re.M)
    assert len(numbered) == len(new)  # no line of what is known
    first: dict[str, Any] = next(one for one in data["findings"] if one["signature"] in new)
    return first


def test_a_clean_tree_passes_and_a_mistake_fails_the_gate(repository: Repository) -> None:
    made = repository(NEWEST, "python")
    require_clean(made, OF_THE_README)
    (made.root / "specsim.json").rename(made.root / "known.json")
    require_found(made, MISTAKES["the rows of a batch are not filtered"], f"{BESIDE_A_FILE} --json specsim.json")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_clean_tree_of_the_newest_release_passes_every_command(repository: Repository, layout: str) -> None:
    made = repository(RELEASES[-1], layout)
    require_clean(made, BESIDE_A_BRANCH)
    assert run(made, UPDATE).returncode == 0
    assert run(made, BESIDE_A_FILE).returncode == 0
    assert (
        run(made, " ".join([HOOK["entry"].removeprefix("specsim "), *map(shlex.quote, HOOK["args"])])).returncode == 0
    )


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_each_mistake_in_the_newest_release_fails_the_gate(repository: Repository, layout: str, mistake: str) -> None:
    made = repository(RELEASES[-1], layout)
    (changed,) = require_found(made, MISTAKES[mistake], WITH_FILES)["changed"]
    require_named(changed, MISTAKES[mistake])


def require_named(changed: str, mistake: Mistake) -> None:
    """A finding names the function that was changed."""
    function, _, place = changed.rpartition(" ")
    assert function.rpartition(".")[2] == mistake.function
    assert place.startswith(mistake.file)


@pytest.mark.parametrize(
    "mistake", [pytest.param(name, marks=pytest.mark.slow if number else ()) for number, name in enumerate(IN_VLLM)]
)
def test_the_gate_of_a_repository_of_vllm_is_the_same(
    mistake: str, vllm_release: str, wheel_cache: Cache, tmp_path: Path
) -> None:
    settings = SETTINGS.replace("schedules = 5", "schedules = 8")
    made = EngineRepository(tmp_path, fetch_wheel(VLLM, vllm_release, wheel_cache), ".", settings, "vllm")
    gate = BESIDE_A_BRANCH.replace("sglang", "vllm")
    require_clean(made, gate)
    (changed,) = require_found(made, IN_VLLM[mistake], f"{gate} {OUTPUTS}")["changed"]
    require_named(changed, IN_VLLM[mistake])


LOST = {
    "an added import": (SCHEDULER, "import logging\n", "import logging\nimport brand_new_package\n"),
    "a renamed attribute": (SCHEDULER, "init_ipc_channels", "set_up_channels"),
    "a moved function": ("srt/speculative/triton_ops/eagle.py", "def fill_", "def moved_"),
}


@pytest.mark.parametrize(
    "change", [pytest.param(name, marks=pytest.mark.slow if name != "an added import" else ()) for name in LOST]
)
def test_what_cannot_run_any_more_does_not_pass(repository: Repository, change: str) -> None:
    made = repository(NEWEST, "python")
    only = "scheduler --schedules 1" if LOST[change][0] == SCHEDULER else "ops:fill_bonus_tokens --cases 1"
    limits = f"check sglang@. --only {only} --no-known --no-shrink --json specsim.json"
    assert run(made, f"{limits} --baseline known.json --update-baseline").returncode == 0
    made.replace(*LOST[change])
    ended = run(made, f"{limits} --baseline known.json")
    assert (ended.returncode, verdict_in(made)["verdict"]) == (4, "incomplete"), ended.stdout + ended.stderr
    assert ended.stdout.splitlines()[-1].startswith(("not checked: ", "    "))
