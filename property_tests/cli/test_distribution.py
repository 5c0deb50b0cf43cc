"""The name that pip has for specsim: one everywhere, and one sentence where another project's files are in the way."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from importlib import util
from pathlib import Path

import pytest

import specsim
from specsim.commands import doctor

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
THEIRS = '"""Quick simulations of fiber spectrograph response."""\n\n__version__ = "1.0.0"\n'
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").rglob("*.md"))]


def started(first: Path) -> subprocess.CompletedProcess[str]:
    """The console script, where packages are looked for in a folder first."""
    path = os.pathsep.join([str(first), str(ROOT), *filter(None, sys.path)])
    command = [sys.executable, "-c", "import specsim_llm; specsim_llm.main()", "--version"]
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=first, env=environment, timeout=60)


def test_the_name_is_that_of_the_project_wherever_it_is_said() -> None:
    spec = util.spec_from_file_location("specsim_llm", ROOT / "specsim_llm.py")
    assert spec is not None
    assert spec.loader is not None
    script = util.module_from_spec(spec)
    spec.loader.exec_module(script)
    assert script.NAME == specsim.DISTRIBUTION == PROJECT["name"]
    assert PROJECT["scripts"] == {"specsim": "specsim_llm:main"}
    assert script.clash() == ""


def test_every_extra_that_a_page_or_a_message_names_is_one_of_the_project() -> None:
    extras = set(PROJECT["optional-dependencies"]) | {"redis", "compiled"}  # which the changelog says were removed
    sources = [path.read_text() for folder in ("specsim", "property_tests") for path in (ROOT / folder).rglob("*.py")]
    for text in [*(page.read_text() for page in PAGES), *sources]:
        assert set(re.findall(rf"{specsim.DISTRIBUTION}\[(\w+)\]", text)) <= extras
        assert re.findall(r"(?<![\w.-])specsim\[(?:test|grammar|compiled|ray|browser|docs|dev)\b", text) == []


def test_no_page_installs_the_other_project() -> None:
    for page in PAGES:
        assert re.findall(r"pip install '?specsim(?!-llm)\b|SPECSIM: specsim$", page.read_text(), re.MULTILINE) == []


def test_the_command_starts_where_the_package_is_ours(tmp_path: Path) -> None:
    ended = started(tmp_path)
    assert (ended.returncode, ended.stdout.startswith("specsim ")) == (0, True), ended.stderr


@pytest.mark.parametrize("is_beside_ours", [False, True])
def test_the_command_says_in_one_sentence_that_another_project_is_in_its_place(
    is_beside_ours: bool, tmp_path: Path
) -> None:
    package = tmp_path / "specsim"
    package.mkdir()
    (package / "__init__.py").write_text(THEIRS)
    (package / "quickspecsim.py").write_text("raise RuntimeError('it is never imported')\n")
    if is_beside_ours:  # ours was installed last
        shutil.copy(ROOT / "specsim" / "__init__.py", package / "__init__.py")
    ended = started(tmp_path)
    assert (ended.returncode, ended.stdout) == (2, "")
    first, second = ended.stderr.splitlines()
    assert first.startswith(f"specsim: {package} has files of another package")
    assert f"pip install {specsim.DISTRIBUTION}" in second


def test_doctor_names_the_package_and_how_to_remove_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    versions = {specsim.DISTRIBUTION: "0.1.0", "specsim": ""}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, "1"))
    first = next(iter(doctor._python({}, "")))
    assert (first.name, first.found, first.add) == (specsim.DISTRIBUTION, "0.1.0", "")
    versions["specsim"] = "1.0.0"
    assert "uninstall -y specsim" in next(iter(doctor._python({}, ""))).add


def test_every_file_of_data_is_packaged() -> None:
    """But for what only the tests read of the fixtures."""
    data = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["specsim"]
    package = ROOT / "specsim"
    packaged = {path for pattern in data for path in package.glob(pattern)}
    read = {path for path in package.rglob("*") if path.is_file() and path.suffix not in (".py", ".pyc", ".so")}
    assert {path.relative_to(package).as_posix() for path in read - packaged} == set()
    assert package / "fixtures" / "replays" / "bonus-token-stride.json" in packaged
