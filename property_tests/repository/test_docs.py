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

from property_tests.support import promises, rules_page
from property_tests.support.command_line import specsim
from specsim.cli import app
from specsim.contracts.__main__ import page as operations_page
from specsim.rules.table import CHECKS
from specsim.tiers.ops.rules import RULES
from specsim.verdict import Severity

ROOT = Path(__file__).parents[2]
CHECK = (ROOT / "docs" / "check.md").read_text()
VERDICT = (ROOT / "docs" / "verdict.md").read_text()


def test_the_documented_rules_are_the_rules() -> None:
    documented = dict(re.findall(r"^\| (\S+ \(O\d+\)) \| (.+) \|$", VERDICT, re.MULTILINE))
    assert documented == {rule.label: rule.sentence for rule in RULES}
    of_schedulers = re.findall(r"^\| (\S+ \([A-Z]\d+\)) \| ([a-z-]+) \| (.+) \|$", VERDICT, re.MULTILINE)
    assert of_schedulers == [(check.rule.label, check.rule.severity, check.rule.sentence) for check in CHECKS]


def test_every_severity_is_documented() -> None:
    assert all(f"`{severity}`" in VERDICT for severity in Severity)


def test_the_documented_commands_are_the_commands() -> None:
    documented = set(re.findall(r"^\| `specsim (\w+)", CHECK, re.MULTILINE))
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


@pytest.mark.parametrize("name", rules_page.PAGES)
def test_the_pages_have_the_rules_of_the_scheduler_tier(name: str) -> None:
    assert (ROOT / "docs" / name).read_text() == rules_page.page(name), "run `make pages`"


def test_the_page_of_operations_is_what_the_contracts_say() -> None:
    assert (ROOT / "docs" / "operations.md").read_text() == operations_page(), "run `make pages`"


def test_a_provider_of_ten_lines_is_caught_as_the_page_says(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n([^`]*provider = .*?)```", CHECK, re.DOTALL)
    assert len(example.strip().splitlines()) <= 10
    (tmp_path / "mine.py").write_text(example)
    ended = specsim(tmp_path, "check", "mine:provider", "--cases", "60", "--device", "cpu")
    assert ended.returncode == 1
    (shown,) = re.findall(r"check mine:provider\n(.*?)```", CHECK, re.DOTALL)
    for line in shown.splitlines():
        if line.strip() != "...":
            assert line.strip() in ended.stdout


def test_the_question_about_a_sampling_rule_is_answered_as_the_page_says(capsys: pytest.CaptureFixture[str]) -> None:
    (example,) = re.findall(r"```python\n([^`]*losslessness.*?)```", CHECK, re.DOTALL)
    exec(example, {})
    assert capsys.readouterr().out == "0\n"


# ---- the public names, and the pictures

API = re.findall(r"^\| `(specsim[\w.]*)` \| (`.+`) \|$", (ROOT / "docs" / "api.md").read_text(), re.MULTILINE)
BY_DOCSTRINGS = (ROOT / "docs" / "api-reference.md").read_text()
PICTURES = {  # the command that makes a picture, by the beginning of its name
    "page": "SPECSIM_PICTURES=docs/pictures pytest property_tests/cli/test_page_in_a_browser.py",
    "worked-tree": "python -m property_tests.support.worked_tree docs/pictures/worked-tree.svg",
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
    assert len(API) == 15
    assert sum(len(re.findall(r"`\w+`", cell)) for _module, cell in API) < 75


def test_pages_that_show_a_picture_name_the_command_that_makes_it_or_link_to_the_page_that_does() -> None:
    for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")):
        text = page.read_text()
        for picture in re.findall(r"pictures/([\w-]+)\.(?:png|svg)", text):
            (command,) = [made for name, made in PICTURES.items() if picture.startswith(name)]
            assert command in text or re.search(r"\]\((docs/)?pages\.md\)", text), f"{page.name}: {picture}"
    shown = "\n".join(page.read_text() for page in (ROOT / "README.md", *(ROOT / "docs").glob("*.md")))
    assert [path.name for path in (ROOT / "docs" / "pictures").iterdir() if path.name not in shown] == []


# ---- links and paths

FOLDERS_WITH_PAGES = ("docs", "property_tests", "fixtures", "bench", ".github")
PAGES = [*ROOT.glob("*.md"), *(path for folder in FOLDERS_WITH_PAGES for path in (ROOT / folder).rglob("*.md"))]
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w-]", "", heading.lower().replace(" ", "-")) for heading in headings}


def dead_links(page: Path) -> list[str]:
    """The relative links of a page that lead to no file of the checkout, or to no heading of it."""
    dead = []
    for link in re.findall(r"\]\(([^)\s]+)\)", CODE.sub("", page.read_text())):
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if re.match(r"[a-z]+:", link):
            continue
        if not target.exists() or (anchor and anchor not in anchors(target)):
            dead.append(link)
    return dead


@pytest.mark.parametrize("page", PAGES, ids=[page.relative_to(ROOT).as_posix() for page in PAGES])
def test_links_lead_somewhere(page: Path) -> None:
    assert dead_links(page) == []


def test_a_link_that_leads_nowhere_is_seen(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading, of two\n")
    page = tmp_path / "page.md"
    page.write_text("[a](there.md) [b](there.md#a-heading-of-two) [c](gone.md) [d](there.md#gone) [e](#gone) `[f](g)`")
    assert dead_links(page) == ["gone.md", "there.md#gone", "#gone"]


PATH = re.compile(r"`((?:\w[\w.-]*/)+[\w.-]*|[A-Z]+\.md|Makefile|mkdocs\.yml)`")
FOLDERS_OF_PATHS = ("specsim/", "reference/", "kernels/", "property_tests/", "fixtures/", "docs/", "bench/")


def missing_paths(text: str) -> list[str]:
    return [path for path in PATH.findall(text) if path.startswith(FOLDERS_OF_PATHS) and not (ROOT / path).exists()]


GUIDES = ["ARCHITECTURE.md", "CONTRIBUTING.md", "docs/extend.md"]


@pytest.mark.parametrize("page", [*GUIDES, "README.md", "docs/design.md"])
def test_every_path_that_a_guide_names_is_there(page: str) -> None:
    text = (ROOT / page).read_text()
    assert page not in GUIDES or len(PATH.findall(text)) > 10
    assert missing_paths(text) == []
    assert missing_paths("in `specsim/gone.py` and `specsim/cli.py`") == ["specsim/gone.py"]


def test_the_tours_name_files_from_the_root_of_the_repository() -> None:
    tours = (ROOT / "ARCHITECTURE.md").read_text().partition("## Tour: one case")[2]
    assert len(PATH.findall(tours)) > 20
    assert [path for path in PATH.findall(tours) if not (ROOT / path).exists()] == []
