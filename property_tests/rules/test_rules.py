"""Every rule of the accounting tier fires: each is shown a run in which exactly its promise is broken.

A sabotage is a small change of the accounting, the memory, the device or the loop. Schedules of the default swarm are
run until a rule breaks, and the first that does must be the one that the sabotage is for.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from property_tests.support.sabotages import SABOTAGES, Sabotage
from specsim import replay_file
from specsim.choices.chooser import replayed, seeded
from specsim.engine.accounting import ModelAccounting
from specsim.engine.loop import Engine
from specsim.engine.observer import Violation
from specsim.engine.rules.checked_engine import checked_parts
from specsim.engine.rules.table import BY_ID, CHECKS, RULES
from specsim.engine.workload import draw_scenario
from specsim.tiers.ops.rules import RULES as RULES_OF_OPS

ROOT = Path(__file__).parents[2]
SCHEDULES_MAX = 600
NUMBERS = {rule.id for rule in (*RULES, *RULES_OF_OPS)}
# A run that hangs or dies breaks these, and only the process that started it is there to say so.
HELD_BY_THE_PARENT = {"X2", "X3"}
# A sabotage that breaks one of two rules, by the page size of the scenario, or where the tree owns the slots.
EITHER = {"I05": {"I19"}, "I13": {"I14"}, "I14": {"I13"}, "S7": {"I01"}}


def first_violations(sabotage: Sabotage, rule_id: str) -> tuple[Violation, ...]:
    """The violations of the first schedule that breaks a rule other than those that the sabotage may break as well."""
    for index in range(SCHEDULES_MAX):
        chooser = seeded(0, "sabotage", index)
        scenario = draw_scenario(chooser)
        engine = sabotage.engine(scenario, chooser, *checked_parts(scenario, sabotage.accounting))
        violations = engine.run().violations
        if {violation.rule.id for violation in violations} - EITHER.get(rule_id, set()):
            return violations
    return ()


CASES = [(rule_id, sabotage) for rule_id, sabotages in SABOTAGES.items() for sabotage in sabotages]


def name_of(rule_id: str, sabotage: Sabotage) -> str:
    changed = [
        part.__name__ for part in (sabotage.accounting, sabotage.engine) if part not in (ModelAccounting, Engine)
    ]
    return "-".join([BY_ID[rule_id].slug, *changed])


@pytest.mark.parametrize(("rule_id", "sabotage"), CASES, ids=[name_of(*case) for case in CASES])
def test_a_broken_promise_breaks_its_rule_first(
    rule_id: str, sabotage: Sabotage, monkeypatch: pytest.MonkeyPatch
) -> None:
    if sabotage.patch is not None:
        sabotage.patch(monkeypatch)
    violations = first_violations(sabotage, rule_id)
    assert violations, f"no schedule of {SCHEDULES_MAX} broke a rule"
    assert violations[0].rule.id == rule_id, violations


def test_the_table_covers_every_rule() -> None:
    shown = {rule.id for rule in RULES} - HELD_BY_THE_PARENT
    assert set(SABOTAGES) == shown


def test_a_rule_that_is_switched_off_is_not_evaluated() -> None:
    sabotage, without = SABOTAGES["I32"][0], tuple(rule for rule in RULES if rule.id not in ("I32", "S3"))
    for index in range(60):
        chooser = seeded(0, "sabotage", index)
        parts = checked_parts(draw_scenario(chooser), sabotage.accounting, rules=without)
        run = sabotage.engine(draw_scenario(replayed(chooser.tape)), replayed(chooser.tape), *parts).run()
        assert not {violation.rule.id for violation in run.violations} & {"I32", "S3"}


def test_every_rule_has_a_number_and_a_name_of_its_own_in_every_tier() -> None:
    every = [*RULES, *RULES_OF_OPS]
    assert len({rule.id for rule in every}) == len({rule.slug for rule in every}) == len(every)
    assert all(re.fullmatch(r"[a-z]+(-[a-z0-9]+)*", rule.slug) for rule in every)
    assert BY_ID["I32"].label == "stale-result (I32)"


def test_every_check_is_of_a_rule_of_the_table_and_comes_after_an_event() -> None:
    assert len(CHECKS) == len({check.rule.id for check in CHECKS})
    assert all(check.after for check in CHECKS)
    assert {check.rule for check in CHECKS} <= set(RULES)


def test_no_number_of_a_rule_stands_outside_its_definition() -> None:
    stray = {}
    for path in sorted((ROOT / "specsim").rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        defined = {
            id(argument)
            for call in ast.walk(tree)
            if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.func.id == "Rule"
            for argument in call.args
        }
        numbers = [
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and node.value in NUMBERS and id(node) not in defined
        ]
        name = path.relative_to(ROOT).as_posix()
        if numbers and not name.startswith("specsim/selfcheck/"):  # mutants have numbers of their own
            stray[name] = numbers
    assert stray == {"specsim/replay_file.py": list(replay_file.ENDED)}  # in a layer below the rules
