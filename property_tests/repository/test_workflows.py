"""The project's own workflows can run: they parse, and what they call is there."""

from __future__ import annotations

import re
import shlex
import tomllib
from pathlib import Path
from typing import Any

import pytest
import yaml

from property_tests.support.engine_repository import MISTAKES

ROOT = Path(__file__).parents[2]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))


def workflow(name: str) -> dict[Any, Any]:
    loaded: dict[Any, Any] = yaml.safe_load((ROOT / ".github" / "workflows" / name).read_text())
    return loaded


def steps(loaded: dict[Any, Any]) -> list[dict[str, Any]]:
    return [step for job in loaded["jobs"].values() for step in job["steps"]]


@pytest.mark.parametrize("file", WORKFLOWS, ids=[file.stem for file in WORKFLOWS])
def test_a_workflow_makes_what_the_makefile_has_and_may_only_read(file: Path) -> None:
    loaded = workflow(file.name)
    assert loaded["permissions"] == {"contents": "read"}
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    made = set()
    for step in steps(loaded):
        words = shlex.split(step.get("run", ""))
        if words[:1] == ["make"]:
            made |= {word for word in words[1:] if "=" not in word}
        elif words and words[0].endswith("specsim"):
            assert words[1] in {"check", "fuzz", "dev"}
    assert made <= targets
    assert all("timeout-minutes" in job for name, job in loaded["jobs"].items() if name != "publish")


def test_the_suite_runs_on_every_python_that_the_package_names() -> None:
    classifiers = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    named = [line.rsplit(" ", 1)[1] for line in classifiers if re.search(r"Python :: 3\.\d+$", line)]
    assert workflow("ci.yml")["jobs"]["test"]["strategy"]["matrix"]["python"] == named


def test_a_release_is_published_only_with_the_version_of_its_tag() -> None:
    jobs = workflow("release.yml")["jobs"]
    assert jobs["publish"]["needs"] == "build"
    assert any("${GITHUB_REF_NAME#v}-py3-none-any.whl" in step.get("run", "") for step in jobs["build"]["steps"])
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert configuration["project"]["dynamic"] == ["version"]
    assert "setuptools_scm" in configuration["tool"]


def test_the_action_is_exercised_with_the_inputs_that_it_has() -> None:
    inputs = yaml.safe_load((ROOT / "action.yml").read_text())["inputs"]
    (used,) = [step for step in steps(workflow("action.yml")) if step.get("uses") == "./"]
    assert used["with"].keys() <= inputs.keys()
    (made,) = [step["run"] for step in steps(workflow("action.yml")) if "engine_repository" in step.get("run", "")]
    assert shlex.split(made)[-1] in MISTAKES


def test_the_image_has_what_the_action_installs() -> None:
    text = (ROOT / "Dockerfile").read_text()
    action = (ROOT / "action.yml").read_text()
    assert text.count("constraints.txt") == action.count("constraints.txt") == 2
    assert text.rstrip().endswith('ENTRYPOINT ["specsim"]')
    copied = re.findall(r"^COPY (\S+)", text, re.MULTILINE)
    assert copied == ["."]
    assert {".git", ".venv"} <= set((ROOT / ".dockerignore").read_text().split())


def test_a_commit_is_checked_by_the_ruff_of_the_constraints() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"][0]
    assert f"ruff=={hooks['rev'].removeprefix('v')}" in (ROOT / "constraints.txt").read_text().splitlines()
