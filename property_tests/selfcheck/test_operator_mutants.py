"""Mistakes of shipped code, put into specsim's own kernels and reference: each is found, and nothing is without one."""

from __future__ import annotations

import importlib.util
import json
import re
from pathlib import Path

import pytest

from specsim.contracts.registry import OPS
from specsim.errors import UsageError
from specsim.files import save_json
from specsim.selfcheck import operator_hunt
from specsim.selfcheck.mutation import apply_change
from specsim.selfcheck.operator_mutants import MISTAKES, MUTANTS, NOT_EXPRESSED, OperatorMutant, changed_source, find

PAGE = (Path(__file__).parents[2] / "docs" / "operator-mutants.md").read_text(encoding="utf-8")
# One of each way to be found: a wrong value, a changed reference, each kind of flaw.
QUICK = ("17-reference", "10-kernel")


def source_of(mutant: OperatorMutant) -> str:
    spec = importlib.util.find_spec(mutant.module)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).read_text(encoding="utf-8")


def test_every_mistake_is_put_into_both_sides_or_says_why_not() -> None:
    expressed = [(mutant.mistake, mutant.side) for mutant in MUTANTS]
    both = {(item, side) for item in MISTAKES for side in ("kernel", "reference")}
    not_expressed = [(each.mistake, each.side) for each in NOT_EXPRESSED]
    assert set(expressed) | set(not_expressed) == both
    assert len(expressed) + len(NOT_EXPRESSED) == len(both)


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)
def test_a_mutant_changes_one_line_which_is_there(mutant: OperatorMutant) -> None:
    before = source_of(mutant).splitlines()
    after = changed_source(mutant, source_of(mutant)).splitlines()
    assert len(before) == len(after)
    assert [new.strip() for old, new in zip(before, after, strict=True) if old != new] == [mutant.becomes]
    assert mutant.op in OPS


def test_a_line_that_is_gone_or_there_twice_is_refused() -> None:
    mutant = find("17-reference")
    source = source_of(mutant)
    for changed in (
        source.replace(mutant.line, "pass"),
        source.replace(mutant.line, f"{mutant.line}\n    {mutant.line}"),
    ):
        with pytest.raises(UsageError, match="17-reference does not apply"):
            changed_source(mutant, changed)
    with pytest.raises(UsageError, match="0 functions"):
        changed_source(mutant, "")


def test_a_mutant_that_comes_too_late_is_refused() -> None:
    mutant = find("01-reference")
    with pytest.raises(UsageError, match="too late"):
        apply_change(mutant.id, mutant.module, lambda source: source)


@pytest.mark.parametrize("mutant_id", QUICK)
@pytest.mark.slow(runs_one_in=4)
def test_a_mutant_is_found(mutant_id: str) -> None:
    hunted = operator_hunt.hunt_in_child(find(mutant_id), seeds=1)
    assert hunted.found == 1, hunted


def test_what_was_found_is_written_as_json(tmp_path: Path) -> None:
    hunted = [operator_hunt.HuntedMutant(mutant, (operator_hunt.Kill(0, 3, "O1"),)) for mutant in MUTANTS]
    file = tmp_path / "mutants.json"
    save_json(file, operator_hunt.to_json(hunted))
    written = json.loads(file.read_text())["mutants"]
    assert [each["id"] for each in written] == [mutant.id for mutant in MUTANTS]
    assert all(each["kills"] == [{"seed": 0, "cases": 3, "rule": "O1"}] for each in written)


@pytest.mark.parametrize("mutant", [m for m in MUTANTS if m.by != "cases"], ids=lambda mutant: mutant.id)
def test_without_the_mutant_nothing_is_found(mutant: OperatorMutant) -> None:
    assert operator_hunt._kill(mutant, 0, 2).rule == ""


def test_the_page_has_every_mutant_and_each_is_found_by_every_seed() -> None:
    rows = re.findall(r"^\| (\d\d-\w+) \|.*\| (\d+)/(\d+) \|$", PAGE, flags=re.MULTILINE)
    assert [row[0] for row in rows] == [mutant.id for mutant in MUTANTS]
    assert all(found == seeds for _id, found, seeds in rows)
    assert all(f"{item:02d}-{side}" in PAGE for item, side in ((each.mistake, each.side) for each in NOT_EXPRESSED))
