"""Every historic bug that the model can express is found by the default swarm, and in which rules it shows."""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
import time
import zlib
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import typer

from property_tests.support.command_line import specsim
from property_tests.support.seed_bugs import EVENTS_MAX, REQUESTS_MAX, is_seed_bug
from specsim.commands import model as commands
from specsim.engine.rules.table import BY_ID
from specsim.errors import UsageError
from specsim.selfcheck.canary import SEED_BUGS
from specsim.selfcheck.catalogue import (
    BLIND,
    BUGS,
    CATALOGUE,
    CLASSES,
    KnownBugs,
    Mutant,
    bug_of,
    read,
    require_consistent,
)
from specsim.selfcheck.hunt import EXCEPTION, Hunt, Hunted, Smallest, hunt_in_child, joined, smallest_in_child
from specsim.selfcheck.mutant_table import CONTENT_ORACLE, Effort, Efforts, build, table_to_json
from specsim.selfcheck.mutation import apply, changed_source, find
from specsim.selfcheck.page import blind_cells, page

SEEDS = 3
SCHEDULES_MAX = 3000

PAGE = (Path(__file__).parents[2] / "docs" / "mutants.md").read_text(encoding="utf-8")


def rows_of(section: str) -> list[list[str]]:
    """The rows of the page's table under a heading, without its head; those at the top under "Mutants"."""
    (text,) = re.findall(rf"^##? {section}\n(.*?)(?=^## |\Z)", PAGE, re.MULTILINE | re.DOTALL)
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("| ")]
    return [row for row in rows if row[0] not in ("---", "mutant", "rule", "bug")]


ROWS = rows_of("Mutants")
# The rules in which each mutant shows first, over the seeds of the committed page.
SHOWS_IN = {row[0]: row[3] for row in ROWS}

IDS = [mutant.id for mutant in CATALOGUE]
every_mutant = pytest.mark.parametrize("mutant", CATALOGUE, ids=IDS)
# Every second one is hunted at every run, all by the nightly profile; the committed page is of all.
HUNTED = CATALOGUE if os.environ.get("HYPOTHESIS_PROFILE") == "nightly" else CATALOGUE[::2]
hunted_mutant = pytest.mark.parametrize("mutant", HUNTED, ids=[mutant.id for mutant in HUNTED])


def source_of(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def in_child(program: str) -> str:
    """What a program prints that runs in a process of its own, where no module of the simulator is loaded."""
    ended = subprocess.run([sys.executable, "-c", program], check=False, capture_output=True, text=True, timeout=60)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


# They are found


@cache
def hunted(mutant: Mutant) -> Hunted:
    return hunt_in_child(mutant, seeds=SEEDS, schedules_max=SCHEDULES_MAX)


@hunted_mutant
@pytest.mark.slow(runs_one_in=5)
def test_the_default_swarm_finds(mutant: Mutant) -> None:
    assert hunted(mutant).found == SEEDS


@hunted_mutant
@pytest.mark.slow(runs_one_in=3)
def test_a_mutant_shows_in_its_rules(mutant: Mutant) -> None:
    assert set(hunted(mutant).rules) <= set(SHOWS_IN[mutant.id].split())


def test_each_half_of_a_stale_result_shows_in_its_own_rule() -> None:
    assert "I31" in hunted(find("A02-finished")).rules
    assert "I32" in hunted(find("A02-retracted")).rules


def test_the_page_has_every_mutant_and_names_rules_that_exist() -> None:
    assert list(SHOWS_IN) == IDS
    assert {rule for rules in SHOWS_IN.values() for rule in rules.split()} <= {*BY_ID, EXCEPTION}


def test_the_page_says_of_every_known_bug_what_finds_it_or_why_nothing_can() -> None:
    left_out = {row[0]: row[3] for row in rows_of("Bugs that the model cannot express")}
    assert left_out == {entry.id: entry.why_not for entry in BUGS if not entry.mutants}


def test_on_the_page_every_seed_finds_every_mutant_within_its_time() -> None:
    for mutant_id, _, found, _, _, _, median, worst, _ in ROWS:
        assert len(set(found.split("/"))) == 1, mutant_id
        assert float(median) <= (1 if mutant_id.partition("-")[0] in SEED_BUGS else 60), mutant_id
        assert float(worst) <= 60, mutant_id


def test_on_the_page_the_bugs_that_the_project_began_with_have_small_schedules() -> None:
    sizes = {row[0]: tuple(map(int, row[8].split("/"))) for row in ROWS if is_seed_bug(row[0])}
    assert {mutant_id.partition("-")[0] for mutant_id in sizes} == set(SEED_BUGS)
    assert max(requests for requests, _ in sizes.values()) <= REQUESTS_MAX
    assert max(events for _, events in sizes.values()) <= EVENTS_MAX


def test_the_page_says_what_survives_without_each_rule() -> None:
    needed = {rule for rules in SHOWS_IN.values() for rule in rules.split()} - {EXCEPTION}
    rows = {row[0]: row[1:] for row in rows_of("Without a rule")}
    assert list(rows) == sorted(needed)
    for rule, (finds, alone, survivors) in rows.items():
        of_rule = [mutant_id for mutant_id, rules in SHOWS_IN.items() if rule in rules.split()]
        only = [mutant_id for mutant_id in of_rule if SHOWS_IN[mutant_id] == rule]
        assert (int(finds), int(alone)) == (len(of_rule), len(only))
        assert survivors == "none" or set(survivors.split()) <= set(only)


def test_the_page_scores_blind_mutants_apart() -> None:
    rows = rows_of("Blind mutants")
    assert [row[0] for row in rows] == [mutant.id for mutant in BLIND]
    score = sum(row[2] != "not found" for row in rows)
    assert (f"apart: {score} of {len(BLIND)} found." if BLIND else "apart: none yet.") in PAGE


# Blind mutants: whether they are found is a score and no test


def test_blind_mutants_apply_and_have_ids_of_their_own() -> None:
    assert [mutant.id for mutant in BLIND] == [f"Z{number:02}" for number in range(1, len(BLIND) + 1)]
    for mutant in BLIND:
        assert find(mutant.id) is mutant
        assert changed_source(mutant, source_of(mutant.module)) != source_of(mutant.module)


def test_a_blind_mutant_that_is_not_found_is_reported_and_fails_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    found, missed = Hunt(0, 3, 0.1, ("accounting:S3:resolve",)), Hunt(0, 9, 0.2, ())
    made_up = [replace(find("N01"), id="Z01"), replace(find("N01"), id="Z02")]
    hunted = [Hunted(made_up[0], (found,)), Hunted(made_up[1], (missed,))]
    assert blind_cells(hunted[0])[:2] == ("1/1", "S3")
    assert blind_cells(hunted[1])[:2] == ("not found", "none")
    monkeypatch.setattr("specsim.selfcheck.catalogue.BLIND", tuple(made_up))
    monkeypatch.setattr("specsim.selfcheck.mutant_table.hunt_all", lambda *_arguments, **_options: hunted)
    with pytest.raises(typer.Exit) as ended:
        commands.mutants(None, 1, 9, 1, None, False, True, None, None)
    assert ended.value.exit_code == 0
    assert "not found: Z02" in capsys.readouterr().out


@pytest.mark.slow
def test_the_command_for_blind_mutants_ends_well_whatever_is_found(tmp_path: Path) -> None:
    ended = specsim(tmp_path, "mutants", "--blind", "--seeds", "1", "--schedules", "20")
    assert ended.returncode == 0, ended.stderr
    refused = specsim(tmp_path, "mutants", "N01", "--blind")
    assert (refused.returncode, "--blind with the ids" in refused.stderr) == (2, True)


# The whole table


SMALL = Efforts(Effort(6, 60), Effort(1, 30), 10)


def without_seconds(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: without_seconds(each) for key, each in value.items() if key != "cpu_seconds"}
    return [without_seconds(each) for each in value] if isinstance(value, list) else value


@pytest.mark.slow
def test_the_whole_table_says_what_its_hunts_found() -> None:
    table = build([find("N01"), find("M01")], (), jobs=3, efforts=SMALL)
    data = table_to_json(table)
    rows = {row["id"]: row for row in data["mutants"]}
    assert rows["N01"]["seeds"] == rows["N01"]["found"] == 6
    assert rows["M01"]["smallest"]["requests"] == 1
    assert data["without"]["S3"] == {"found": ["N01"], "alone": ["N01"], "survivors": ["N01"]}
    assert data["content_oracle"]["survivors"] == ["N01"]
    assert data["cpu_seconds"] > 0
    written = page(table)
    assert "| N01 | " in written
    assert "| S3 | 1 | 1 | N01 |" in written


def test_the_table_is_the_same_whatever_the_number_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Children that end in any order: those here are made up."""

    def hunt(mutant: Mutant, *, seeds: int, first_seed: int, **options: Any) -> Hunted:
        time.sleep(0.001 * (zlib.crc32(f"{mutant.id}{first_seed}".encode()) % 7))
        found = () if options["without"] else ("accounting:S3:x",) if mutant.id < "C" else ("accounting:I40:x",)
        made_up = [Hunt(seed, seed + 1, 0.0, found) for seed in range(first_seed, first_seed + seeds)]
        return Hunted(mutant, tuple(made_up))

    monkeypatch.setattr("specsim.selfcheck.mutant_table.hunt_in_child", hunt)
    monkeypatch.setattr("specsim.selfcheck.mutant_table.smallest_in_child", lambda *_, **__: Smallest(1, 5, "x", 0.0))
    tables, progress = [], []
    for jobs in (1, 8):
        tables.append(
            build(CATALOGUE[:30], (), jobs=jobs, efforts=SMALL, on_done=lambda done, of: progress.append((done, of)))
        )
        assert progress[-1][0] == progress[-1][1]
    one, eight = map(table_to_json, tables)
    assert without_seconds(one) == without_seconds(eight)
    assert page(tables[0]) == page(tables[1])
    assert [hunt.seed for hunt in tables[1].hunted[0].hunts] == list(range(6))
    assert one["without"]["S3"]["survivors"] == one["without"]["S3"]["found"]


def test_a_mutant_whose_model_raises_in_some_schedules_is_shrunk_in_the_others() -> None:
    smallest = smallest_in_child(find("I04"), schedules=12)
    assert smallest is not None
    assert smallest.requests == 1


def test_the_hunts_of_several_children_are_those_of_one() -> None:
    mutant = find("A02-retracted")
    parts = [hunt_in_child(mutant, seeds=1, first_seed=seed, schedules_max=SCHEDULES_MAX) for seed in range(SEEDS)]
    assert [(h.seed, h.schedules, h.signatures) for h in joined(parts).hunts] == [
        (h.seed, h.schedules, h.signatures) for h in hunted(mutant).hunts
    ]


def test_the_page_is_of_all_mutants_and_of_nothing_less(tmp_path: Path) -> None:
    for arguments in (["N01"], ["--without", "S3"], ["--blind"]):
        ended = specsim(tmp_path, "mutants", *arguments, "--write", "page.md")
        assert (ended.returncode, "--write with a selection" in ended.stderr) == (2, True)


# The catalogue of known bugs


def test_every_known_bug_has_mutants_or_a_reason_why_not() -> None:
    assert len(BUGS) == len({entry.id for entry in BUGS}) == 105
    for entry in BUGS:
        assert bool(entry.mutants) != bool(entry.why_not), entry.id
        assert entry.bug_class
        assert "\n" not in entry.why_not


def test_a_mutant_belongs_to_a_known_bug_and_names_reports_of_it() -> None:
    references = {entry.id: set(entry.references) for entry in BUGS}
    for mutant in CATALOGUE:
        assert set(mutant.references) <= references[bug_of(mutant)], mutant.id


CLASS = """
[classes]
A = "lifetime"
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
module = "specsim.engine.loop"
line = "x = 1"
becomes = "x = 2"
"""


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (CLASS + BUG + MUTANT, ""),
        (CLASS + BUG + 'why_not = "no reason"\n', ""),
        (CLASS + BUG, "it has neither mutants nor why_not, or both"),
        (CLASS + BUG + 'why_not = "no reason"\n' + MUTANT, "it has neither mutants nor why_not, or both"),
        (CLASS.replace("A =", "B =") + BUG + MUTANT, "its class is not listed"),
        (CLASS + BUG + MUTANT + MUTANT, "an id is there twice"),
        (CLASS + BUG + MUTANT + BUG + MUTANT, "an id is there twice"),
        (CLASS + BUG + MUTANT.replace('"A01"', '"A02"'), "a mutant has the id of another bug"),
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
        require_consistent(table.classes, [row.bug() for row in table.bugs])

    if not says:
        return load()
    with pytest.raises(ValueError, match=says):
        load()
    return None


def test_the_committed_tables_are_consistent() -> None:
    require_consistent(CLASSES, BUGS)


def test_mutants_are_ordered_by_their_ids() -> None:
    assert sorted(IDS) == IDS


# Rules that are switched off


def test_without_the_rules_that_see_it_a_mutant_survives() -> None:
    mutant = find("N01")
    assert hunt_in_child(mutant, seeds=1, schedules_max=100).rules == ["S3"]
    assert hunt_in_child(mutant, seeds=1, schedules_max=100, without=("S3",)).found == 0


def test_the_content_oracle_alone_sees_tokens_and_no_counters() -> None:
    assert hunt_in_child(find("M01"), seeds=1, schedules_max=100, only=CONTENT_ORACLE).rules == ["I40"]
    assert hunt_in_child(find("N01"), seeds=1, schedules_max=100, only=CONTENT_ORACLE).found == 0


def test_a_rule_that_does_not_exist_cannot_be_switched_off() -> None:
    with pytest.raises(RuntimeError, match="there is no rule 'Z9'"):
        hunt_in_child(find("N01"), seeds=1, schedules_max=1, without=("Z9",))


def test_the_command_prints_a_row_and_ends_with_1_when_one_is_missed(tmp_path: Path) -> None:
    found = specsim(tmp_path, "mutants", "N01", "--seeds", "1", "--json", "table.json")
    assert found.returncode == 0
    (row,) = json.loads((tmp_path / "table.json").read_text())["mutants"]
    assert (row["id"], row["entry"], row["found"], row["rules"]) == ("N01", "N01", 1, ["S3"])
    missed = specsim(tmp_path, "mutants", "N01", "--seeds", "1", "--schedules", "50", "--without", "S3")
    assert missed.returncode == 1
    assert "not found: N01" in missed.stdout


def test_a_hunt_is_the_same_every_time() -> None:
    mutant = find("A02-retracted")
    again = hunt_in_child(mutant, seeds=SEEDS, schedules_max=SCHEDULES_MAX)
    assert [(h.schedules, h.signatures) for h in again.hunts] == [
        (h.schedules, h.signatures) for h in hunted(mutant).hunts
    ]


def test_a_hunt_that_finds_nothing_says_so() -> None:
    result = hunt_in_child(find("A05-unaligned"), seeds=1, schedules_max=1)
    assert (result.found, result.rules) == (0, [])


# They are what they say


@every_mutant
def test_a_mutant_applies_and_changes_one_line(mutant: Mutant) -> None:
    before = source_of(mutant.module)
    after = changed_source(mutant, before)
    one, two = before.splitlines(), after.splitlines()
    assert len(one) == len(two)
    assert sum(a != b for a, b in zip(one, two, strict=True)) == 1
    assert ast.dump(ast.parse(before)) != ast.dump(ast.parse(after))


def test_ids_are_distinct_and_bugs_have_a_reference() -> None:
    assert len({mutant.id.lower() for mutant in CATALOGUE}) == len(CATALOGUE)
    for mutant in CATALOGUE:
        assert mutant.references
        assert all(re.fullmatch(r"[\w.-]+/[\w.-]+#\d+", reference) for reference in mutant.references)
        assert mutant.title[0].islower()
        assert not mutant.title.endswith(".")


def test_the_model_names_no_mutant() -> None:
    root = Path(source_path("specsim.engine")).parents[1]
    sources = [path for layer in ("engine", "choices") for path in (root / layer).rglob("*.py")]
    assert len(sources) > 10
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert "mutant" not in text.lower(), path
        ids = set(IDS) - set(BY_ID)  # some bugs are called as a rule is, and there a rule is meant
        assert [mutant_id for mutant_id in ids if re.search(rf"\b{mutant_id}\b", text)] == [], path


def source_path(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


# Applying one


def test_a_mutant_is_applied_to_its_module_alone_and_line_numbers_stay() -> None:
    program = """
        from specsim.selfcheck.mutation import apply, find
        apply(find("A01"))
        from specsim.engine import accounting, device
        line = accounting.ModelAccounting._save_session.__code__.co_firstlineno
        names = accounting.ModelAccounting._save_session.__code__.co_names
        print(line, "honest" in names, "kv_ready" in names, type(device.__loader__).__name__, accounting.__file__)
    """
    line, changed, kept, loader, file = in_child("\n".join(map(str.strip, program.splitlines()))).split(maxsplit=4)
    assert source_of("specsim.engine.accounting").splitlines()[int(line) - 1].strip().startswith("def _save_session")
    assert (changed, kept, loader) == ("True", "False", "SourceFileLoader")
    assert file == source_path("specsim.engine.accounting")


def test_a_mutant_leaves_nothing_behind_for_the_next_process() -> None:
    program = """
        from specsim.engine.accounting import ModelAccounting
        print("kv_ready" in ModelAccounting._save_session.__code__.co_names)
    """
    hunted(find("A01"))
    assert in_child("\n".join(map(str.strip, program.splitlines()))) == "True"


def test_a_mutant_that_comes_too_late_is_refused() -> None:
    importlib.import_module("specsim.engine.accounting")
    with pytest.raises(UsageError, match=r"A01 comes too late: specsim\.engine\.accounting is already imported"):
        apply(find("A01"))


@pytest.mark.parametrize("source", ["x = 1\n", "x = 2\n    x = 2\n"])
def test_a_mutant_whose_line_is_not_there_exactly_once_is_refused(source: str) -> None:
    mutant = Mutant("Z99", "nothing", ("a/b#1",), "specsim.engine.made_up", "x = 2", "x = 3")
    with pytest.raises(UsageError, match=rf"Z99 does not apply: 'x = 2' is in .* {source.count('2')} times"):
        changed_source(mutant, source)


def test_a_mutant_keeps_the_indentation_and_the_other_lines() -> None:
    mutant = Mutant("Z99", "nothing", ("a/b#1",), "specsim.engine.made_up", "x = 2", "x = 3")
    assert changed_source(mutant, "if y:\n    x = 2\n    z = x = 2\n") == "if y:\n    x = 3\n    z = x = 2\n"


@pytest.mark.parametrize(
    ("wanted", "near"),
    [
        ("A2", "A22"),
        ("a02", "A02-finished or A02-retracted"),
        ("A02-finish", "A02-finished"),
        ("?", "A01, A02-finished"),
    ],
)
def test_an_unknown_id_names_those_that_are_near(wanted: str, near: str) -> None:
    with pytest.raises(UsageError, match="there is no mutant") as refused:
        find(wanted)
    assert near in refused.value.remedy


def test_ids_are_found_in_either_case() -> None:
    assert find("a02-FINISHED").id == "A02-finished"


def test_a_rule_that_is_not_there_cannot_be_switched_off(capsys: pytest.CaptureFixture[str]) -> None:
    from specsim.cli import main

    with pytest.raises(SystemExit) as ended:
        main(["mutants", "A01", "--seeds", "1", "--schedules", "1", "--without", "nosuch"])
    assert ended.value.code == 2
    assert "--without 'nosuch' is unknown" in capsys.readouterr().err
