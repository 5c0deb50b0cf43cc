"""Every historic bug that the model can express is found by the default swarm, and in which rules it shows."""

from __future__ import annotations

import ast
import importlib.util
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

from specsim.check.rules import BY_ID
from specsim.errors import UsageError
from specsim.mutants.catalogue import CATALOGUE, Mutant
from specsim.mutants.hunt import Hunted, hunt_in_child
from specsim.mutants.load import apply, changed_source, find

SEEDS = 3
SCHEDULES_MAX = 3000

# The rules in which each mutant shows first, over twenty seeds.
SHOWS_IN = {
    "A01": "I53",
    "A02-finished": "I31 S3",
    "A02-retracted": "I31 I32 S3",
    "A03": "I29 I53",
    "A05": "I54",
    "A05-unaligned": "I16",
    "A06": "I57",
    "A07": "I09 I13 I14 I55",
    "A09": "I13 I14",
    "A10": "I13 I14",
    "A11": "I07",
    "A11-check": "X1",
    "A14": "I01",
    "A18": "I01",
    "C01": "I29",
    "C05": "I05 I15",
    "D01": "I43",
    "D02": "I42",
    "D01-hidden": "D1",
    "D05": "I47",
    "D09": "I40 M1",
    "D12": "M1",
    "E02": "K3",
    "E09": "K3",
    "F01": "I48",
    "F02": "D1",
    "F02-shift": "D1",
    "G01": "I40",
    "G01-nodes": "I58",
    "G02": "I58",
    "G02-retracted": "I59",
    "G04": "I40",
    "G12": "I40",
    "H01": "I40",
    "H02": "I10 I40",
    "H04": "I40",
    "I01-mask": "I40 I61",
    "I02-end": "I40",
    "I04-barrier": "I60",
    "I06-first": "I60",
    "I07-rollback": "I60",
    "I10-stale": "I60",
    "J01": "T6",
    "J03": "T6",
    "K01": "I34",
    "N01": "S3",
}

IDS = [mutant.id for mutant in CATALOGUE]
every_mutant = pytest.mark.parametrize("mutant", CATALOGUE, ids=IDS)


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


@every_mutant
def test_the_default_swarm_finds(mutant: Mutant) -> None:
    assert hunted(mutant).found == SEEDS


@every_mutant
def test_a_mutant_shows_in_its_rules(mutant: Mutant) -> None:
    assert set(hunted(mutant).rules) <= set(SHOWS_IN[mutant.id].split())


def test_each_half_of_a_stale_result_shows_in_its_own_rule() -> None:
    assert "I31" in hunted(find("A02-finished")).rules
    assert "I32" in hunted(find("A02-retracted")).rules


def test_the_table_of_rules_covers_every_mutant_and_names_rules_that_exist() -> None:
    assert list(SHOWS_IN) == IDS
    assert {rule for rules in SHOWS_IN.values() for rule in rules.split()} <= set(BY_ID)


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
    root = Path(source_path("specsim.sim")).parents[1]
    sources = [path for layer in ("sim", "memory", "check", "explore") for path in (root / layer).glob("*.py")]
    assert len(sources) > 10
    for path in sources:
        text = path.read_text(encoding="utf-8")
        assert "mutant" not in text.lower(), path
        assert [mutant_id for mutant_id in IDS if re.search(rf"\b{mutant_id}\b", text)] == [], path


def source_path(module: str) -> str:
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return spec.origin


# Applying one


def test_a_mutant_is_applied_to_its_module_alone_and_line_numbers_stay() -> None:
    program = """
        from specsim.mutants.load import apply, find
        apply(find("A01"))
        from specsim.sim import accounting, device
        line = accounting.ModelAccounting._save_session.__code__.co_firstlineno
        names = accounting.ModelAccounting._save_session.__code__.co_names
        print(line, "honest" in names, "kv_ready" in names, type(device.__loader__).__name__, accounting.__file__)
    """
    line, changed, kept, loader, file = in_child("\n".join(map(str.strip, program.splitlines()))).split(maxsplit=4)
    assert source_of("specsim.sim.accounting").splitlines()[int(line) - 1].strip().startswith("def _save_session")
    assert (changed, kept, loader) == ("True", "False", "SourceFileLoader")
    assert file == source_path("specsim.sim.accounting")


def test_a_mutant_leaves_nothing_behind_for_the_next_process() -> None:
    program = """
        from specsim.sim.accounting import ModelAccounting
        print("kv_ready" in ModelAccounting._save_session.__code__.co_names)
    """
    hunted(find("A01"))
    assert in_child("\n".join(map(str.strip, program.splitlines()))) == "True"


def test_a_mutant_that_comes_too_late_is_refused() -> None:
    importlib.import_module("specsim.sim.accounting")
    with pytest.raises(UsageError, match=r"A01 comes too late: specsim\.sim\.accounting is already imported"):
        apply(find("A01"))


@pytest.mark.parametrize("source", ["x = 1\n", "x = 2\n    x = 2\n"])
def test_a_mutant_whose_line_is_not_there_exactly_once_is_refused(source: str) -> None:
    mutant = Mutant("Z99", "nothing", ("a/b#1",), "specsim.sim.made_up", "x = 2", "x = 3")
    with pytest.raises(UsageError, match=rf"Z99 does not apply: 'x = 2' is in .* {source.count('2')} times"):
        changed_source(mutant, source)


def test_a_mutant_keeps_the_indentation_and_the_other_lines() -> None:
    mutant = Mutant("Z99", "nothing", ("a/b#1",), "specsim.sim.made_up", "x = 2", "x = 3")
    assert changed_source(mutant, "if y:\n    x = 2\n    z = x = 2\n") == "if y:\n    x = 3\n    z = x = 2\n"


@pytest.mark.parametrize(
    ("wanted", "near"),
    [("A2", "A0"), ("a02", "A02-finished, A02-retracted"), ("A02-finish", "A02-finished"), ("?", "A01, A02-finished")],
)
def test_an_unknown_id_names_those_that_are_near(wanted: str, near: str) -> None:
    with pytest.raises(UsageError, match="there is no mutant") as refused:
        find(wanted)
    assert near in refused.value.remedy


def test_ids_are_found_in_either_case() -> None:
    assert find("a02-FINISHED").id == "A02-finished"
