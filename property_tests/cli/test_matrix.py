"""Several targets in one command: ranges of releases, the matrix, its page, and that one target costs one column."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from property_tests.support.known_releases import RELEASES
from specsim.engines.ranges import expand_targets
from specsim.engines.triage import TABLE
from specsim.errors import UsageError
from specsim.findings import fixtures
from specsim.findings.matrix import Column, Matrix, cell_of, rows_of
from specsim.findings.pin import Pinned
from specsim.report.matrix import command_of, fixtures_in, page, print_matrix, with_tier

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "fixtures" / "replays"
PAGE = ROOT / "docs" / "releases.md"


@given(first=st.integers(0, len(RELEASES) - 1), count=st.integers(0, len(RELEASES)))
def test_a_range_is_every_release_between_its_ends_both_included(first: int, count: int) -> None:
    last = min(first + count, len(RELEASES) - 1)
    found = expand_targets([f"sglang=={RELEASES[first]}..{RELEASES[last]}"])
    assert [target.text for target in found] == [f"sglang=={version}" for version in RELEASES[first : last + 1]]


def test_targets_are_taken_once_in_the_order_given() -> None:
    texts = ["model", f"sglang=={RELEASES[1]}", f"sglang=={RELEASES[0]}..{RELEASES[2]}", "model"]
    assert [target.text for target in expand_targets(texts)] == [
        "model",
        *(f"sglang=={RELEASES[i]}" for i in (1, 0, 2)),
    ]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"sglang=={RELEASES[3]}..{RELEASES[0]}", f"did you mean sglang=={RELEASES[0]}..{RELEASES[3]}?"),
        (f"sglang=={RELEASES[0]}..9.9.9", "'9.9.9' is not a release that specsim knows"),
        (f"sglang==..{RELEASES[0]}", "one end is missing"),
        (f"sglang=={RELEASES[0]}..{RELEASES[1]}..{RELEASES[2]}", "is not a release that specsim knows"),
        ("sglang==newest..oldest", "'newest' is not a release that specsim knows"),
    ],
)
def test_a_range_that_is_none_is_one_clear_sentence(text: str, words: str) -> None:
    with pytest.raises(UsageError) as error:
        expand_targets([text])
    assert words in f"{error.value.problem} {error.value.remedy}"


def suite(name: str, **fields: Any) -> dict[str, Any]:
    empty: dict[str, Any] = {"cases": 0, "schedules": 0, "events": 0, "seconds": 0, "judged": []}
    return {"name": name, **empty, "not_run": [], **fields}


def finding(signature: str, rule: str = "I31") -> dict[str, Any]:
    told = {"sentence": "s", "severity": "metric", "reach": "default", "where": "a.py:1", "count": 1, "replay": "r"}
    return {"signature": signature, "rule": rule, "tier": signature.split(":")[0], "triage": "", **told}


def column(target: str, suites: list[dict[str, Any]], findings: list[dict[str, Any]]) -> Column:
    verdict = {"verdict": "fail" if findings else "pass", "suites": suites, "findings": findings}
    return Column(target, verdict, "", 1 if findings else 0, 1.0)


RAN = suite("scheduler", schedules=9)
BAD = column("bad", [RAN], [finding("scheduler:I40:resolve")])
GOOD = column("good", [RAN], [])
UNSIMULATED = column("unsimulated", [suite("scheduler", not_run=[{"what": "scheduler", "why": "no engine"}])], [])
OTHER_TIER = column("other", [suite("ops", cases=3)], [])
LOST = Column("lost", {}, "its check ended with SIGKILL", -9, 1.0)


def test_a_cell_is_a_finding_clean_or_not_run_and_never_clean_for_want_of_a_run() -> None:
    columns = [BAD, GOOD, UNSIMULATED, OTHER_TIER, LOST]
    (row,) = rows_of(columns)
    assert {target: (cell.state, cell.why) for target, cell in row.cells.items()} == {
        "bad": ("finding", ""),
        "good": ("clean", ""),
        "unsimulated": ("not run", "no engine"),
        "other": ("not run", "the tier scheduler was not asked for"),
        "lost": ("not run", "its check ended with SIGKILL"),
    }


def test_an_operation_that_was_not_checked_is_not_clean() -> None:
    checked = {"op": "op", "subject": "caller:f", "where": "", "cases": 1}
    ops = column("t", [suite("ops", judged=[checked], not_run=[{"what": "op in g", "why": "not found"}])], [])
    assert cell_of(ops, "ops:op:caller:f").state == "clean"
    assert (cell_of(ops, "ops:op:caller:g").state, cell_of(ops, "ops:op:caller:g").why) == ("not run", "not found")


@pytest.mark.parametrize(
    ("columns", "code"),
    [([GOOD, LOST], 0), ([GOOD, BAD, LOST], 1), ([LOST, LOST], 125), ([GOOD, Column("n", {}, "n", 3, 1.0)], 3)],
)
def test_the_exit_code_is_that_of_the_worst_that_says_something(columns: list[Column], code: int) -> None:
    assert Matrix("0", columns, rows_of(columns)).exit_code == code


@pytest.mark.slow
def test_a_target_that_cannot_be_checked_costs_its_own_column(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("import os\nprovider = {}\n")
    (tmp_path / "dying.py").write_text("import os\nos.abort()\n")
    arguments = ("mine:provider", "dying:provider", "missing:provider", "--only", "ops", "--cases", "1", "--jobs", "2")
    ended = specsim(tmp_path, "dev", "check", *arguments, "--json", "m.json", "--write", "page.md")
    assert ended.returncode == 125, ended.stderr
    data = json.loads((tmp_path / "m.json").read_text())
    assert data["format"] == "specsim.matrix/1"
    why = {entry["target"]: entry["why"] for entry in data["targets"]}
    assert "SIGABRT" in why["dying:provider"]
    assert "there is no module 'missing'" in why["missing:provider"]
    assert "there is no module 'missing'" in (tmp_path / "page.md").read_text()


def test_what_the_triage_list_has_in_a_release_is_not_clean_there() -> None:
    entry = next(e for e in TABLE["sglang"] if e.signature.startswith("scheduler:I05") and e.last)
    before = RELEASES[RELEASES.index(entry.first) - 1]
    states = []
    for version in (before, entry.first):
        ran = column(f"sglang=={version}", [suite("scheduler", schedules=9)], [])
        states.append(cell_of(ran, entry.signature).state)
    assert states == ["clean", "known"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["check", f"sglang=={RELEASES[1]}..{RELEASES[0]}"], "runs from newer to older"),
        (["check", "sglang@."], "sglang@. is not SGLang"),
        (["dev", "check", "model", "mine:p", "--mutant", "A01"], "--mutant with several targets"),
        (["targets", "model"], "nothing to lift from"),
        (["targets", "sglang@."], "sglang@. is not SGLang"),
        (["targets", "--write", "x.json"], "--write without releases"),
    ],
)
@pytest.mark.slow(runs_one_in=3)
def test_bad_input_is_one_clear_sentence_with_exit_code_2(tmp_path: Path, arguments: list[str], words: str) -> None:
    ended = specsim(tmp_path, *arguments)
    assert ended.returncode == 2, ended.stdout
    assert words in ended.stderr.replace("\n", " ")
    assert "Traceback" not in ended.stderr


def test_a_page_links_each_finding_to_the_fixture_that_shows_it(tmp_path: Path) -> None:
    folder = tmp_path / "fixtures"
    folder.mkdir()
    stored = {"signature": "scheduler:I40:resolve", "expect": {"bad": {"shows": True}, "good": {"shows": False}}}
    (folder / "f.json").write_text(json.dumps(stored))
    matrix = Matrix("0", [BAD, GOOD, LOST], rows_of([BAD, GOOD, LOST]))
    text = page(matrix.to_json(), "the command", fixtures_in(folder), tmp_path / "docs" / "page.md")
    assert "| `scheduler:I40:resolve` | [x](../fixtures/f.json) | ok | - |" in text
    assert "$ the command" in text
    assert "- lost: its check ended with SIGKILL" in text


def test_a_finding_that_no_check_met_is_reported_when_its_fixture_shows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, good, lost = (f"sglang=={version}" for version in RELEASES[2:5])
    stored = json.loads((FIXTURES / "steps-that-became-fewer.json").read_text())
    shows = {target: {"shows": True} for target in (bad, good, lost)}
    (tmp_path / "f.json").write_text(json.dumps({**stored, "expect": shows}))
    ran = [RAN, suite("scheduler", schedules=9)]
    columns = [column(bad, ran, [finding("scheduler:I40:resolve")]), column(good, ran, []), replace(LOST, target=lost)]
    matrix = Matrix("0", columns, rows_of(columns))
    before = [row.rule for row in matrix.rows]
    for known in (bad, good):  # a row of its own; then a cell of that row
        monkeypatch.setattr(
            fixtures, "replay_pinned", lambda _path, target, known=known: Pinned(True, target == known, "")
        )
        fixtures.replay_known(matrix, fixtures_in(tmp_path), 1)
        (row,) = [row for row in matrix.rows if row.signature == stored["signature"]]
        state = "finding" if known == good else "known"  # by the triage list, which has it there
        assert [row.cells[target].state for target in (bad, good, lost)] == ["finding", state, "not run"]
        assert (row.rule, row.severity, row.triage.split(",")[0]) == ("I07", "undefined-behaviour", "known")
        assert sorted(row.rule for row in matrix.rows) == sorted([*before, "I07"])


def test_a_tier_that_was_checked_alone_has_its_part_of_the_page_and_leaves_the_others(tmp_path: Path) -> None:
    matrix = Matrix("0", [BAD, GOOD], rows_of([BAD, GOOD])).to_json()
    written = tmp_path / "page.md"
    whole = page(matrix, "specsim check A..B --write page.md", {}, written)
    assert command_of(whole) == "specsim check A..B --write page.md"
    text = whole
    for command in ("specsim check --only a first", "specsim check --only a second"):
        text = with_tier(text, "a", matrix, command, {}, written)
    text = with_tier(text, "b", matrix, "specsim check --only b", {}, written)
    assert text.startswith(whole)
    assert re.findall(r"^## .*", text.removeprefix(whole), re.M) == ["## The tier `a`", "## The tier `b`"]
    assert "first" not in text
    assert text.count("$ specsim check --only a second\n") == text.count("$ specsim check --only b\n") == 1
    again = with_tier(text, "a", matrix, "specsim check --only a second", {}, written)
    assert sorted(again.splitlines()) == sorted(text.splitlines())


# The committed page


def rows_of_page() -> list[list[str]]:
    """The cells of the tables of findings and releases on the page; the first row are the columns, of each table."""
    columns: list[str] = []
    rows = []
    for table in re.split(r"\n(?=## )", PAGE.read_text(encoding="utf-8")):
        lines = [line for line in table.split("\n###")[0].splitlines() if line.startswith("| ")]
        head, *others = ([cell.strip() for cell in line.strip("|").split("|")] for line in lines or ["| none |"])
        columns = columns or head
        rows += others if head == columns else []
    return [columns, *rows]


def test_the_committed_page_has_every_release_and_names_its_command() -> None:
    columns, *rows = rows_of_page()
    assert columns == ["finding", *RELEASES]
    assert f"$ specsim dev check sglang=={RELEASES[0]}..{RELEASES[-1]}" in PAGE.read_text(encoding="utf-8")
    assert {len(row) for row in rows} == {len(columns)}


def test_every_fixture_of_a_release_is_on_the_committed_page() -> None:
    columns, *rows = rows_of_page()
    cells = {signature.strip("`"): dict(zip(columns[1:], of, strict=True)) for signature, *of in rows}
    for signature, target in fixtures_in(FIXTURES):
        engine, _, version = target.partition("==")
        if engine == "sglang":
            assert cells[signature][version].startswith("[x]"), f"{signature} on {version}"


def test_every_finding_of_the_committed_page_is_triaged_and_has_a_fixture_that_shows_it() -> None:
    shown = fixtures_in(FIXTURES)
    columns, *rows = rows_of_page()
    for signature, *cells in rows:
        name = signature.strip("`")
        known = [entry for entry in TABLE["sglang"] if entry.signature == name]
        assert known
        for version, cell in zip(columns[1:], cells, strict=True):
            entries = [entry for entry in known if entry.covers(version)]
            if cell in ("ok", "(x)", "-"):
                assert cell == "-" or cell == ("(x)" if entries else "ok"), f"{name} on {version}: see the triage"
                continue
            link = re.fullmatch(r"\[x\]\(\.\./fixtures/replays/(.+)\)", cell)
            assert link, f"{name} on {version} has no fixture"
            assert shown[name, f"sglang=={version}"] == FIXTURES / link[1]
            assert entries, f"{name} on {version} is not in the triage"


def test_a_matrix_of_many_releases_is_printed_in_any_width(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Cells have a style of two words, in which no line may be broken."""
    columns = [column(f"sglang=={version}", [RAN], [finding("scheduler:I40:resolve")]) for version in RELEASES]
    matrix = Matrix("0", columns, rows_of(columns)).to_json()
    for width in (*range(20, 130), 400):
        monkeypatch.setenv("COLUMNS", str(width))
        print_matrix(matrix)
        said = capsys.readouterr().out
        assert "bold" not in said
        assert said.split().count("x") >= len(RELEASES)
