"""Historic bugs that the reference engine can express are found by the schedules that `specsim check` draws."""

from __future__ import annotations

import ast
import importlib.util
import json
import re
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.command_line import specsim
from property_tests.support.known_releases import RELEASES
from specsim.errors import UsageError
from specsim.rules.process import HostException
from specsim.rules.table import BY_ID
from specsim.selfcheck import mutant_table
from specsim.selfcheck.canary import SEED_BUGS, sample
from specsim.selfcheck.catalogue import (
    BUGS,
    CATALOGUE,
    CLASSES,
    OF_NO_BUG,
    KnownBugs,
    Mutant,
    bug_of,
    read,
    require_consistent,
)
from specsim.selfcheck.hunt import Hunt, Hunted, hunt_in_child
from specsim.selfcheck.mutation import MODULE, apply, changed_source, find
from specsim.selfcheck.page import page

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "mutants.md").read_text(encoding="utf-8")
DESIGN = (ROOT / "docs" / "design.md").read_text(encoding="utf-8")
SOURCE = (ROOT / "reference" / "engine.py").read_text(encoding="utf-8")
IDS = [mutant.id for mutant in CATALOGUE]

WITHOUT_MUTANTS = {
    "Engine.owners": "checks and changes nothing",
    "Engine.owners.owned": "checks and changes nothing",
    **dict.fromkeys(("Model.vocab_size", "Model.kv", "Model.state", "Model.logits", "Model.drafts"), "of a protocol"),
    "RanksOf.__call__": "of a protocol",
}
"""Functions of the engine that no mutant changes, and why."""


def rows_of(section: str) -> list[list[str]]:
    """The rows of the page's table under a heading, without its head; those at the top under "Mutants"."""
    (text,) = re.findall(rf"^##? {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] not in ("---", "mutant", "bug")]


ROWS = rows_of("Mutants")


def in_child(program: str) -> str:
    """What a program prints that runs in a process of its own, where the engine is not loaded."""
    command = [sys.executable, "-c", textwrap.dedent(program)]
    ended = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


# They are found


@cache
def hunted(mutant_id: str) -> Hunted:
    mutant = find(mutant_id)
    return Hunted(mutant, hunt_in_child(mutant, seeds=2, schedules_max=60))


@pytest.mark.parametrize("mutant_id", ["A05", "D01", "G01"])
def test_schedules_find(mutant_id: str) -> None:
    found = hunted(mutant_id)
    assert found.found == 2
    (row,) = (row for row in ROWS if row[0] == mutant_id)
    assert set(found.rules) <= set(row[3].split())


def test_the_engine_as_it_is_breaks_no_rule() -> None:
    (clean,) = hunt_in_child(None, seeds=1, schedules_max=15)
    assert (clean.seed, clean.schedules, clean.signatures) == (0, 15, ())


def test_a_hunt_is_the_same_every_time_and_its_seeds_are_their_own() -> None:
    (again,) = hunt_in_child(find("D01"), seeds=1, first_seed=1, schedules_max=60)
    of_both = hunted("D01").hunts[1]
    assert (again.seed, again.schedules, again.signatures) == (1, of_both.schedules, of_both.signatures)


# The page


def test_the_page_has_every_mutant_and_names_rules_that_exist() -> None:
    assert [row[0] for row in ROWS] == IDS
    assert [row[1] for row in ROWS] == [mutant.title for mutant in CATALOGUE]
    assert {rule for row in ROWS for rule in row[3].split()} <= set(BY_ID)


def test_on_the_page_every_seed_finds_every_mutant() -> None:
    assert {row[2] for row in ROWS} == {f"{mutant_table.SEEDS}/{mutant_table.SEEDS}"}


def test_most_mutants_are_no_exception_of_the_first_schedule() -> None:
    at_once = [row[0] for row in ROWS if row[3] == HostException.rule.id and row[5] == "1"]
    assert len(at_once) * 10 <= len(ROWS), at_once


def test_the_page_says_of_every_known_bug_what_finds_it_or_why_nothing_does() -> None:
    sections = {
        "Bugs that something else finds": {bug.id: bug.found_by for bug in BUGS},
        "Bugs that nothing finds yet": {bug.id: bug.to_plant for bug in BUGS},
        "Bugs that nothing is to find": {bug.id: bug.why_not for bug in BUGS},
    }
    for section, said in sections.items():
        assert {row[0]: row[3] for row in rows_of(section)} == {bug: text for bug, text in said.items() if text}


def test_the_page_is_of_all_mutants_and_of_nothing_less(tmp_path: Path) -> None:
    for arguments in (["A01"], ["--seed", "3"]):
        ended = specsim(tmp_path, "mutants", *arguments, "--write", "page.md")
        assert (ended.returncode, "--write with a selection" in ended.stderr) == (2, True)


def test_the_page_is_the_same_whatever_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    def hunt(mutant: Mutant, *, seeds: int, **_options: Any) -> tuple[Hunt, ...]:
        return tuple(Hunt(seed, seed + 1, (f"scheduler:I40:{mutant.id}",)) for seed in range(seeds))

    monkeypatch.setattr("specsim.selfcheck.mutant_table.hunt_in_child", hunt)
    one, eight = (page(mutant_table.hunt_all(CATALOGUE, jobs=jobs)) for jobs in (1, 8))
    assert one == eight
    assert f"| A01 | {find('A01').title} | 3/3 | I40 | 2 | 3 |" in one


# The catalogue


def test_every_known_bug_has_mutants_or_says_what_there_is_instead() -> None:
    assert len(BUGS) == len({entry.id for entry in BUGS}) == 105
    for entry in BUGS:
        assert sum(map(bool, (entry.mutants, entry.found_by, entry.to_plant, entry.why_not))) == 1, entry.id
        assert entry.bug_class
        assert "\n" not in entry.found_by + entry.to_plant + entry.why_not
    assert sum(bool(entry.why_not) for entry in BUGS) <= 5


def test_what_finds_a_known_bug_exists() -> None:
    """Of defects, replay files and operations that are named, each is there."""
    from specsim.contracts.registry import OPS
    from specsim.engines.sglang.scheduler.planted import planted as into_sglang
    from specsim.engines.vllm.scheduler.planted import planted as into_vllm
    from specsim.selfcheck.operator_mutants import MUTANTS

    there = {"sglang": into_sglang(), "vllm": into_vllm()}
    for entry in BUGS:
        for engine, defect in re.findall(r"planted defects? (\w+) ([A-Z]\d\d)", entry.found_by):
            assert defect in there[engine], entry.id
        for name in re.findall(r"replay files? ([\w-]+)", entry.found_by):
            assert (ROOT / "fixtures" / "replays" / f"{name}.json").is_file(), entry.id
        for op in re.findall(r"operation `(\w+)`", entry.found_by):
            assert op in OPS, entry.id
        for name in re.findall(r"operator mutant ([\w-]+)", entry.found_by):
            assert name in {mutant.id for mutant in MUTANTS}, entry.id
        if entry.found_by:
            assert re.search(r"planted defect|replay file|operation `|operator mutant", entry.found_by), entry.id


def test_a_mutant_belongs_to_a_known_bug_and_names_reports_of_it_or_to_none() -> None:
    references = {entry.id: set(entry.references) for entry in BUGS}
    for mutant in CATALOGUE:
        if mutant.id[0] == OF_NO_BUG:
            assert not mutant.references
        else:
            assert mutant.references
            assert set(mutant.references) <= references[bug_of(mutant)], mutant.id


def test_mutants_have_ids_in_order_and_titles_of_one_form() -> None:
    assert sorted(IDS) == IDS
    assert len({mutant_id.lower() for mutant_id in IDS}) == len(IDS)
    for mutant in CATALOGUE:
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", reference) for reference in mutant.references)
        assert mutant.title[0].islower()
        assert not mutant.title.endswith(".")


CLASS = """
[classes]
A = "lifetime"
Z = "alone"
"""
BUG = """
[[bugs]]
id = "A01"
title = "a bug"
references = ["a/b#1"]
"""
MUTANT = """
[[bugs.mutants]]
id = "A01"
title = "a mutant"
line = "x = 1"
becomes = "x = 2"
"""
ALONE = MUTANT.replace("bugs.mutants", "mutants").replace("A01", "Z01")
SAYS_TWO = "it has not one of mutants, found_by, to_plant and why_not"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CLASS + BUG + MUTANT, ""),
        (CLASS + BUG + MUTANT + ALONE, ""),
        (CLASS + BUG + 'found_by = "something"\n', ""),
        (CLASS + BUG + 'to_plant = "something"\n', ""),
        (CLASS + BUG + 'why_not = "no reason"\n', ""),
        (CLASS + BUG, SAYS_TWO),
        (CLASS + BUG + 'why_not = "no reason"\n' + MUTANT, SAYS_TWO),
        (CLASS + BUG + 'why_not = "no reason"\nfound_by = "something"\n', SAYS_TWO),
        (CLASS.replace("A =", "B =") + BUG + MUTANT, "its class is not listed"),
        (CLASS + BUG + MUTANT + MUTANT, "an id is there twice"),
        (CLASS + BUG + MUTANT + BUG + MUTANT, "an id is there twice"),
        (CLASS + BUG + MUTANT + ALONE + ALONE, "mutant 'Z01': an id is there twice"),
        (CLASS + BUG + MUTANT.replace('"A01"', '"A02"'), "a mutant has the id of another bug"),
        (CLASS + BUG + MUTANT + ALONE.replace("Z01", "B01"), "mutant 'B01': its class is not Z"),
        (CLASS + BUG + MUTANT.replace("x = 2", "x = 1"), "a mutant changes nothing"),
        (CLASS + BUG + MUTANT + 'severity = "high"\n', r"unknown field `severity` - at `\$\.bugs\[0\]\.mutants"),
        (CLASS + BUG + MUTANT.replace('line = "x = 1"', "line = 1"), r"Expected `str`, got `int`"),
        (CLASS + BUG.replace('title = "a bug"', ""), "missing required field `title`"),
        (BUG + MUTANT, "missing required field `classes`"),
    ],
)
def test_a_table_of_known_bugs_that_is_wrong_is_refused_with_the_place(text: str, says: str) -> None:
    def load() -> None:
        table = read(text, KnownBugs)
        require_consistent(table.classes, [row.bug() for row in table.bugs], [row.mutant() for row in table.mutants])

    if not says:
        return load()
    with pytest.raises(ValueError, match=says):
        load()
    return None


def test_the_canary_is_of_the_bugs_that_the_project_began_with_and_of_every_class() -> None:
    chosen = sample()
    assert {bug_of(mutant) for mutant in chosen} >= set(SEED_BUGS)
    assert {mutant.id[0] for mutant in chosen} == {mutant.id[0] for mutant in CATALOGUE} <= set(CLASSES)


def test_the_page_of_the_design_says_where_the_first_bugs_are() -> None:
    """Its mutants are those of bugs that name the pull request, and its replay files are of its releases or of them."""
    (table,) = re.findall(r"\| pull request .*?\n\n", DESIGN, re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in table.splitlines()[2:] if line]
    shown_by = {mutant.id: set[str]() for mutant in CATALOGUE}
    for pull_request, _, mutants, releases, files in rows:
        numbers = {f"sgl-project/sglang#{number}" for number in re.findall(r"#(\d+)", pull_request)}
        named = set(mutants.split(", ")) & set(IDS)
        assert all(numbers & set(find(mutant).references) for mutant in named), pull_request
        spans = set[str]()
        for name in files.split(", "):
            stored = json.loads((ROOT / "fixtures" / "replays" / f"{name}.json").read_text())
            if stored.get("mutant"):
                shown_by[stored["mutant"]].add(name)
                assert stored["mutant"] in named
                continue
            told = {release: stored["expect"].get(f"sglang=={release}", {}) for release in RELEASES}
            has = [release for release, one in told.items() if one.get("shows") or one.get("rules")]
            spans.add(" to ".join(dict.fromkeys((has[0], has[-1]))))
        assert spans == {releases.partition(",")[0]}, pull_request
    assert [row[0] for row in rows] == sorted(row[0] for row in rows)
    assert all(shown_by[mutant] for mutant in ("A01", "A02-finished", "A02-retracted", "D02"))


# They are what they say


def test_each_mutant_applies_and_changes_one_line() -> None:
    lines = SOURCE.splitlines()
    for mutant in CATALOGUE:
        after = changed_source(mutant, SOURCE)
        assert sum(a != b for a, b in zip(lines, after.splitlines(), strict=True)) == 1, mutant.id


def functions() -> dict[str, range]:
    """The lines of every function of the engine, by its name within the classes and functions around it."""
    found: dict[str, range] = {}

    def visit(node: ast.AST, around: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = around
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                name = f"{around}.{child.name}".lstrip(".")
                if isinstance(child, ast.FunctionDef):
                    found[name] = range(child.lineno, (child.end_lineno or 0) + 1)
            visit(child, name)

    visit(ast.parse(SOURCE), "")
    return found


def test_every_function_of_the_engine_has_a_mutant() -> None:
    lines = [line.strip() for line in SOURCE.splitlines()]
    spans = functions()
    changed = set()
    for mutant in CATALOGUE:
        at = lines.index(mutant.line) + 1
        inside = [name for name, span in spans.items() if at in span]
        changed |= set(sorted(inside, key=lambda name: len(spans[name]))[:1])
    assert len(changed) > 50
    assert sorted(set(spans) - changed) == sorted(WITHOUT_MUTANTS)


def test_the_engine_names_no_mutant() -> None:
    assert "mutant" not in SOURCE.lower()
    assert [mutant_id for mutant_id in IDS if re.search(rf"\b{mutant_id}\b", SOURCE)] == []


# Applying one


def test_a_mutant_is_applied_to_the_engine_alone_and_line_numbers_stay() -> None:
    program = """
        from specsim.selfcheck.mutation import apply, find
        apply(find("A05"))
        from specsim.reference import engine, kv
        code = engine.Engine._keep.__code__
        print(code.co_firstlineno, "_in_pages" in code.co_names, type(kv.__loader__).__name__, engine.__file__)
    """
    line, kept, loader, file = in_child(program).split(maxsplit=3)
    assert SOURCE.splitlines()[int(line) - 1].strip().startswith("def _keep")
    assert (kept, loader) == ("False", "SourceFileLoader")
    spec = importlib.util.find_spec(MODULE)
    assert spec is not None
    assert file == spec.origin


def test_a_mutant_leaves_nothing_behind_for_the_next_process() -> None:
    hunted("A05")
    program = """
        from specsim.reference.engine import Engine
        print("_in_pages" in Engine._keep.__code__.co_names)
    """
    assert in_child(program) == "True"


def test_a_mutant_that_comes_too_late_is_refused() -> None:
    importlib.import_module(MODULE)
    with pytest.raises(UsageError, match=r"A05 comes too late: specsim\.reference\.engine is already imported"):
        apply(find("A05"))


@pytest.mark.parametrize("source", ["x = 1\n", "x = 2\n    x = 2\n"])
def test_a_mutant_whose_line_is_not_there_exactly_once_is_refused(source: str) -> None:
    mutant = Mutant("Z99", "nothing", (), "x = 2", "x = 3")
    with pytest.raises(UsageError, match=rf"Z99 does not apply: 'x = 2' is in .* {source.count('2')} times"):
        changed_source(mutant, source)


def test_a_mutant_keeps_the_indentation_and_the_other_lines() -> None:
    mutant = Mutant("Z99", "nothing", (), "x = 2", "x = 3")
    assert changed_source(mutant, "if y:\n    x = 2\n    z = x = 2\n") == "if y:\n    x = 3\n    z = x = 2\n"


# The command


def test_the_command_prints_a_row_and_ends_with_1_when_one_is_missed(tmp_path: Path) -> None:
    found = specsim(tmp_path, "mutants", "A05", "--seeds", "1", "--json", "table.json")
    assert found.returncode == 0, found.stderr
    (row,) = json.loads((tmp_path / "table.json").read_text())["mutants"]
    assert (row["id"], row["entry"], row["found"], row["seeds"]) == ("A05", "A05", 1, 1)
    missed = specsim(tmp_path, "mutants", "A05", "--seeds", "1", "--schedules", "1")
    assert missed.returncode == 1
    assert "not found: A05" in missed.stdout


@pytest.mark.parametrize(
    ("wanted", "near"), [("a02", "A02-finished or A02-retracted"), ("A02-finish", "A02-finished"), ("?", "A01")]
)
def test_an_unknown_id_names_those_that_are_near(wanted: str, near: str) -> None:
    with pytest.raises(UsageError, match="there is no mutant") as refused:
        find(wanted)
    assert near in refused.value.remedy


def test_ids_are_found_in_either_case() -> None:
    assert find("a02-FINISHED").id == "A02-finished"
