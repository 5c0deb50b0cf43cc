"""README and docs say what is true."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from typer.main import get_command

from property_tests.support import promises
from property_tests.support.command_line import specsim
from specsim.cli import app
from specsim.contracts.__main__ import page as operations_page
from specsim.rules.table import RULES as ACCOUNTING_RULES
from specsim.tiers.ops.rules import RULES
from specsim.tiers.workers.rules import WORKER_RULES
from specsim.verdict import Severity

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()
VERDICT = (ROOT / "docs" / "verdict.md").read_text()


def test_the_documented_rules_are_the_rules() -> None:
    documented = dict(re.findall(r"^\| (\S+ \(O\d+\)) \| (.+) \|$", VERDICT, re.MULTILINE))
    assert documented == {rule.label: rule.sentence for rule in RULES}
    accounting = re.findall(r"^\| (\S+ \([A-Z]\d+\)) \| ([a-z-]+) \| (.+) \|$", VERDICT, re.MULTILINE)
    assert accounting == [(rule.label, rule.severity, rule.sentence) for rule in (*ACCOUNTING_RULES, *WORKER_RULES)]


def test_every_severity_is_documented() -> None:
    assert all(f"`{severity}`" in VERDICT for severity in Severity)


def test_the_documented_commands_are_the_commands() -> None:
    documented = set(re.findall(r"^\| `specsim (\w+)", README, re.MULTILINE))
    commands = getattr(get_command(app), "commands")  # noqa: B009 - a click group, which typer does not type
    assert documented == set(commands)


def test_the_reference_of_commands_is_what_the_command_line_says_of_itself() -> None:
    command = [
        sys.executable,
        "-m",
        "typer",
        "specsim.cli",
        "utils",
        "docs",
        "--name",
        "specsim",
        "--title",
        "Commands",
    ]
    environment = {**os.environ, "TERMINAL_WIDTH": "100"}
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    committed = (ROOT / "docs" / "commands.md").read_text()
    assert committed.split() == ended.stdout.split(), "run `make pages`"


def test_the_page_of_promises_is_of_these_tests() -> None:
    assert promises.folders_without_a_promise() == []
    assert promises.PAGE.read_text() == promises.page(), "run `make pages`"


def test_the_page_of_operations_is_what_the_contracts_say() -> None:
    assert (ROOT / "docs" / "operations.md").read_text() == operations_page(), "run `make pages`"


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


# ---- the public names, and the pictures

API = re.findall(r"^\| `(specsim[\w.]*)` \| (`.+`) \|$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
BY_DOCSTRINGS = (ROOT / "docs" / "api-reference.md").read_text()
PICTURES = {  # the command that makes a picture, by the beginning of its name
    "page": "SPECSIM_PICTURES=docs/pictures pytest property_tests/cli/test_page_in_a_browser.py",
    "worked-tree": "python -m specsim.report.worked_tree docs/pictures/worked-tree.svg",
}


@pytest.mark.parametrize(("module", "cell"), API)
def test_a_public_name_is_there_and_has_a_docstring(module: str, cell: str) -> None:
    loaded, names = importlib.import_module(module), re.findall(r"`(\w+)`", cell)
    if module in ("specsim.testing", "specsim.strategies", "specsim.interpreter"):
        assert sorted(names) == sorted(loaded.__all__)
    for name in names:
        value = getattr(loaded, name)
        constant = isinstance(value, dict)  # a docstring of it is a comment above
        assert constant or (inspect.getdoc(value) or "").strip(), f"{module}.{name}"
        assert name in BY_DOCSTRINGS


def test_the_list_of_public_names_is_small() -> None:
    assert len(API) == 12
    assert sum(len(re.findall(r"`\w+`", cell)) for _module, cell in API) < 60


def test_pages_that_show_a_picture_name_the_command_that_makes_it_or_link_to_the_page_that_does() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text()
        for picture in re.findall(r"pictures/([\w-]+)\.(?:png|svg)", text):
            (command,) = [made for name, made in PICTURES.items() if picture.startswith(name)]
            assert command in text or re.search(r"\]\((docs/)?pages\.md\)", text), f"{page.name}: {picture}"
    shown = "\n".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    assert [path.name for path in (ROOT / "docs" / "pictures").iterdir() if path.name not in shown] == []


@pytest.mark.parametrize("link", re.findall(r"\]\((docs/[^)]+)\)", README))
def test_links_lead_somewhere(link: str) -> None:
    page, _, anchor = link.partition("#")
    text = (ROOT / page).read_text() if page.endswith(".md") else ""
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    assert not anchor or anchor in [re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings]
    assert (ROOT / page).is_file()
