"""Every rule of the accounting tier fires: each is shown a run in which exactly its promise is broken.

A sabotage is a small change of the accounting, the memory, the device or the loop. Schedules of the default swarm are
run until a rule breaks, and the first that does must be the one that the sabotage is for.
"""

from __future__ import annotations

import pytest

from property_tests.support.sabotages import SABOTAGES, Sabotage
from specsim.choices.chooser import seeded
from specsim.engine.accounting import ModelAccounting
from specsim.engine.loop import Engine
from specsim.engine.observer import Violation
from specsim.engine.workload import draw_scenario
from specsim.rules.checked_engine import checked_parts
from specsim.rules.table import RULES

SCHEDULES_MAX = 600
# A run that hangs or dies breaks these, and only the process that started it is there to say so.
HELD_BY_THE_PARENT = {"X2", "X3"}
# A user's own rules and choosers: test_extension.py shows these.
OF_EXTENSIONS = {"X4", "X5"}
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
    return "-".join([rule_id, *changed])


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
    assert list(SABOTAGES) == [rule.id for rule in RULES if rule.id not in HELD_BY_THE_PARENT | OF_EXTENSIONS]
