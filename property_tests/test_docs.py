"""README and docs say what is true."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.main import get_command

from property_tests.test_check import specsim
from specsim.check.rules import RULES as ACCOUNTING_RULES
from specsim.cli import app
from specsim.diff.rules import RULES
from specsim.targets.probe import WORKER_RULES
from specsim.verdict import Severity

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
VERDICT = (ROOT / "docs" / "verdict.md").read_text()


def test_the_documented_rules_are_the_rules() -> None:
    documented = dict(re.findall(r"^\| (O\d+) \| (.+) \|$", VERDICT, re.MULTILINE))
    assert documented == {rule.id: rule.sentence for rule in RULES}
    accounting = re.findall(r"^\| ([A-Z]\d+) \| ([a-z-]+) \| (.+) \|$", VERDICT, re.MULTILINE)
    assert accounting == [(rule.id, rule.severity, rule.sentence) for rule in (*ACCOUNTING_RULES, *WORKER_RULES)]


def test_every_severity_is_documented() -> None:
    assert all(f"`{severity}`" in VERDICT for severity in Severity)


def test_the_documented_commands_are_the_commands() -> None:
    documented = set(re.findall(r"^\| `specsim (\w+)", README, re.MULTILINE))
    commands = getattr(get_command(app), "commands")  # noqa: B009 - a click group, which typer does not type
    assert documented == set(commands)


def test_the_ten_lines_of_the_readme_are_caught_as_it_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n([^`]*provider = .*?)```", README, re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    (tmp_path / "mine.py").write_text(example)
    ended = specsim(tmp_path, "check", "mine:provider", "--cases", "60", "--device", "cpu")
    assert ended.returncode == 1
    (shown,) = re.findall(r"check mine:provider\n(.*?)```", README, re.DOTALL)
    for line in shown.splitlines():
        if line.strip() != "...":
            assert line.strip() in ended.stdout


def test_the_readmes_question_about_a_sampling_rule_is_answered_as_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n([^`]*losslessness.*?)```", README, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "0\n"


@pytest.mark.parametrize("link", re.findall(r"\]\((docs/[^)]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    assert (ROOT / link).is_file()
