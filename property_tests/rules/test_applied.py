"""A rule applies to exactly the schedules in which its check looks at something: lines of its source that were run."""

from __future__ import annotations

import ast
import inspect
import sys
import textwrap
from collections import Counter
from types import FrameType
from typing import Any

import pytest

from specsim.engine.accounting_target import ModelTarget
from specsim.engine.rules.coverage import rules_applied
from specsim.engine.rules.rule import Check
from specsim.engine.rules.table import CHECKS
from specsim.engine.rules.table import CONDITIONAL as CONDITIONAL_CHECKS
from specsim.tiers.accounting.schedules import RanSchedule, chooser_of, run_schedule

SEED, SCHEDULES = 7, 25
CONDITIONAL = {check.rule.id for check in CONDITIONAL_CHECKS}
# Two rules at one place, or a rule of which the device itself sees that it is broken, are told apart by marks alone.
ELSEWHERE = {"I30", "I32", "I48", "I59", "D1"}
WEAKER = {"I58"}  # it is evaluated for requests without penalties too, to which it does not apply


def breaks(node: ast.AST) -> bool:
    """Whether this is a call that breaks a rule, or that leaves it to a helper to do so."""
    if not isinstance(node, ast.Call):
        return False
    called = ast.unparse(node.func)
    return called in ("self.broken", "self._relaxed") or [ast.unparse(each) for each in node.args[:1]] == ["self"]


def guard_of(node: ast.AST, above: dict[ast.AST, ast.AST]) -> ast.stmt:
    """The statement that decides whether this call is reached: the `if` around it or before it, else its own."""
    while not isinstance(node, ast.stmt):
        node = above[node]
    outer: Any = above[node]
    if isinstance(outer, ast.If) and node in outer.body:
        block = outer.body
        before = [each for each in block[: block.index(node)] if isinstance(each, ast.If)]
        return before[-1] if before else outer
    branches = [each for each in outer.body[: outer.body.index(node)] if isinstance(each, (ast.If, ast.For))]
    return branches[-1] if branches and isinstance(branches[-1], ast.If) else node


def places(check: Check) -> tuple[str, set[int]]:
    """The file of a check, and the lines of it on which it looks at something."""
    lines, first = inspect.getsourcelines(type(check))
    tree = ast.parse(textwrap.dedent("".join(lines)))
    above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
    found = {guard_of(node, above).lineno + first - 1 for node in ast.walk(tree) if breaks(node)}
    return str(inspect.getsourcefile(type(check))), found


@pytest.fixture(scope="module")
def schedules() -> list[tuple[RanSchedule, set[str]]]:
    """Schedules of the swarm, each with the rules whose checks looked at something."""
    rules: dict[str, dict[int, set[str]]] = {}
    for check in CHECKS:
        file, lines = places(check)
        for line in lines:
            rules.setdefault(file, {}).setdefault(line, set()).add(check.rule.id)
    looked: set[str] = set()

    def on_line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            looked.update(rules[frame.f_code.co_filename].get(frame.f_lineno, ()))
        return on_line

    found = []
    before = sys.gettrace()
    for index in range(SCHEDULES):
        looked.clear()
        sys.settrace(lambda frame, _event, _argument: on_line if frame.f_code.co_filename in rules else None)
        try:
            schedule = run_schedule(ModelTarget(), chooser_of(SEED, index))
        finally:
            sys.settrace(before)
        assert schedule is not None
        found.append((schedule, set(looked)))
    return found


def test_a_rule_applies_exactly_when_its_check_looks_at_something(
    schedules: list[tuple[RanSchedule, set[str]]],
) -> None:
    for schedule, looked in schedules:
        applied = rules_applied(schedule.scenario, schedule.run)
        assert applied - ELSEWHERE - WEAKER == (looked & CONDITIONAL) - ELSEWHERE - WEAKER
        assert applied & WEAKER <= looked


def test_stale_results_and_readmissions_are_told_apart_by_what_happened(
    schedules: list[tuple[RanSchedule, set[str]]],
) -> None:
    for schedule, looked in schedules:
        applied = rules_applied(schedule.scenario, schedule.run)
        assert bool(applied & {"I31", "I32"}) == bool(looked & {"I31", "I32"})
        assert ("I31" in applied) == (schedule.run.stale_finished > 0)
        assert ("I32" in applied) == (schedule.run.stale_retracted > 0)
        assert ("I58" in applied) >= ("I59" in applied)


def test_every_rule_that_does_not_apply_to_some_schedules_applies_to_others(
    schedules: list[tuple[RanSchedule, set[str]]],
) -> None:
    counts = Counter(rule for schedule, _ in schedules for rule in rules_applied(schedule.scenario, schedule.run))
    assert set(counts) == CONDITIONAL
    assert max(counts.values()) < SCHEDULES
