"""`[tool.specsim]` of a project's pyproject.toml: what `specsim check` takes where the command line does not say."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from property_tests.support.command_line import specsim
from property_tests.support.wrong_providers import WRONG
from specsim.cli import app, main
from specsim.commands.apart import check_apart
from specsim.commands.asked import Asked
from specsim.commands.project import KEYS, settings_of
from specsim.engines.target import ModelTarget
from specsim.errors import UsageError
from specsim.lifting.cache import Cache

CHECK = getattr(get_command(app), "commands")["dev"].commands["check"]  # noqa: B009 - a click group, which typer does not type
Values = Callable[..., dict[str, Any]]
TABLE = """
    [tool.specsim]
    target = "sglang@."
    budget = 7.5
    cases = 4
    schedules = 30
    attempts = 0
    select = ["content-read", "ops:*"]
    ignore = "W2"
    fail-on = "default/leak"
    baseline = "known.json"
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "pyproject.toml").write_text(textwrap.dedent(TABLE))
    (tmp_path / "deep" / "er").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def values(project: Path) -> Values:
    """The values of parameters with which a check would run."""
    return lambda *arguments: dict(CHECK.make_context("check", list(arguments)).params)


def test_every_key_stands_for_a_parameter_of_check() -> None:
    assert set(KEYS.values()) <= {parameter.name for parameter in CHECK.params}


def test_settings_are_what_the_command_line_does_not_say(values: Values) -> None:
    taken = values()
    assert {name: taken[name] for name in KEYS.values()} == {
        "target": ["sglang@."],
        "budget_seconds": 7.5,
        "cases": 4,
        "schedules": 30,
        "attempts": 0,
        "select": ["content-read", "ops:*"],
        "ignore": ["W2"],
        "fail_on": "default/leak",
        "baseline": "known.json",
    }


def test_the_command_line_wins(values: Values) -> None:
    taken = values("model", "--budget-seconds", "3", "--select", "I32", "--fail-on", "leak")
    assert (taken["target"], taken["budget_seconds"], taken["select"], taken["fail_on"]) == (
        *(["model"], 3.0, ["I32"], "leak"),
    )
    assert taken["ignore"] == ["W2"]
    assert not values("--isolated")["target"]
    assert not values("--isolated")["ignore"]


def test_a_setting_that_does_not_go_with_the_command_line_is_left_out(values: Values) -> None:
    assert values("model")["baseline"] is None  # which is of the project's target
    assert values("--baseline", "other.json")["baseline"] == "other.json"
    assert values("--ci")["budget_seconds"] is None
    assert values("--cases", "3")["budget_seconds"] is None
    assert values("--ci")["schedules"] == 30
    assert values("--canary")["target"] is None
    assert values("--mutant", "A01")["target"] is None
    assert values("--mutant", "P07", "--only", "scheduler")["target"] == ["sglang@."]
    assert values("--provider", "mine:p")["target"] is None


def test_the_nearest_table_upward_is_read_and_paths_are_those_of_its_folder(
    project: Path, values: Values, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project / "deep" / "er")
    (project / "deep" / "pyproject.toml").write_text("[project]\nname = 'one without the table'\n")
    assert values()["target"] == ["sglang@../.."]
    assert values()["baseline"] == "../../known.json"
    (project / "deep" / "pyproject.toml").write_text("[tool.specsim]\nbudget = 9\n")
    assert (not values()["target"], values()["budget_seconds"]) == (True, 9.0)


def test_a_revision_and_what_is_no_path_stay_as_they_are(project: Path) -> None:
    table = "[tool.specsim]\ntarget = ['sglang@.#v1', 'sglang==1.0', 'mine:p', 'model']\nbaseline = 'sglang@a#main'\n"
    (project / "pyproject.toml").write_text(table)
    settings = settings_of(project / "deep")
    assert settings["target"] == ["sglang@..#v1", "sglang==1.0", "mine:p", "model"]
    assert settings["baseline"] == "sglang@../a#main"
    assert settings_of(project)["target"][0] == "sglang@.#v1"


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ("targt = 'model'", "[tool.specsim] has no key 'targt'.\n         Did you mean target?"),
        ("fail_on = 'leak'", "Did you mean fail-on?"),
        ("zzzz = 1", "Keys are target, budget, cases, schedules, attempts, select, ignore, fail-on, baseline"),
        ("budget = 'long'", "budget = 'long' in [tool.specsim]"),
        ("budget = true", "give seconds".capitalize()),
        ("cases = 1.5", "Give a whole number"),
        ("schedules = 'many'", "Give a whole number"),
        ("select = 3", "Give a text or a list of texts"),
        ("ignore = [1]", "Give a text or a list of texts"),
        ("baseline = ['a']", "Give a text"),
        ("ignore = ['content-reed']", "Did you mean content-read?"),
        ("target = 'modle'", "Did you mean model?"),
        ("fail-on = 'defalt'", "Did you mean default?"),
        ("budget = 0.1", "budget"),
        ("[", "is not TOML"),
    ],
)
def test_a_table_that_is_wrong_is_refused(
    table: str, words: str, project: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (project / "pyproject.toml").write_text(f"[tool.specsim]\n{table}\n")
    for more, code in (((), 2), (("--bisect-run",), 128)):
        with pytest.raises(SystemExit) as ended:
            main(["check", *more])
        said = capsys.readouterr().err
        assert ended.value.code == code
        assert words in said
        assert "Traceback" not in said


@given(st.text("targetbudgfilonsc-_", min_size=1, max_size=9).filter(lambda key: key not in KEYS))
def test_no_other_key_is_taken(tmp_path_factory: pytest.TempPathFactory, key: str) -> None:
    folder = tmp_path_factory.mktemp("keys")
    (folder / "pyproject.toml").write_text(f"[tool.specsim]\n{key} = 1\n")
    with pytest.raises(UsageError, match="has no key"):
        settings_of(folder)


def test_the_checks_of_a_matrix_read_no_settings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.specsim]\nno-such-key = 1\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UsageError):
        settings_of(tmp_path)
    asked = Asked(
        ModelTarget(), Cache(tmp_path), "ops", math.inf, 7, 1, 1, tmp_path, "cpu", 20.0, operation="fill_bonus_tokens"
    )
    column = check_apart(asked)
    assert (column.target, column.why, column.exit_code) == ("model", "", 0)
    assert column.verdict["seed"] == 7


def test_a_check_obeys_the_settings_of_its_project(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(textwrap.dedent(WRONG))
    table = "[tool.specsim]\ntarget = 'mine:provider'\nignore = ['equals-reference']\n"
    (tmp_path / "pyproject.toml").write_text(table)
    limits = ("--cases", "3", "--device", "cpu", "--no-shrink", "--json", "v.json")
    ended = specsim(tmp_path, "check", *limits)
    data = json.loads((tmp_path / "v.json").read_text())
    assert (ended.returncode, data["target"], len(data["ignored"])) == (0, "mine:provider", 1), ended.stderr
    assert specsim(tmp_path, "check", "mine:provider", "--isolated", *limits).returncode == 1
