"""What a schedule is said to have asked of the rules is what the checker asked: lines of its source that were run."""

from __future__ import annotations

import ast
import sys
from collections import Counter
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

import specsim.rules
from specsim.engine.accounting_target import ModelTarget
from specsim.rules.applicability import CONDITIONAL, rules_applied
from specsim.rules.table import BY_ID
from specsim.tiers.accounting.schedules import Schedule, chooser_of, run_schedule

SEED, SCHEDULES = 7, 25
# Two rules at one place, or a rule that is checked outside of specsim/rules, are told apart by marks alone.
ELSEWHERE = {"I30", "I32", "I48", "I59", "D1"}
WEAKER = {"I58"}  # the checker asks it of requests without penalties too, which have no say in it


def places() -> dict[str, dict[int, set[str]]]:
    """By file and line: the rules that are asked when that line is run, a condition's when its body breaks a rule."""
    found: dict[str, dict[int, set[str]]] = {}
    for file in sorted(Path(specsim.rules.__file__).parent.glob("*.py")):
        if file.name in ("applied.py", "rules.py"):
            continue
        tree = ast.parse(file.read_text(encoding="utf-8"))
        above = {child: node for node in ast.walk(tree) for child in ast.iter_child_nodes(node)}
        for node in ast.walk(tree):
            if not (isinstance(node, ast.Constant) and node.value in BY_ID):
                continue
            inside: ast.AST = node
            while not isinstance(inside, ast.stmt):
                inside = above[inside]
            outer = above[inside]
            asks = isinstance(inside, ast.Expr) and ast.unparse(inside).startswith("self.hold(")
            if isinstance(outer, ast.If) and inside in outer.body and not asks:
                inside = outer
            found.setdefault(str(file), {}).setdefault(inside.lineno, set()).add(str(node.value))
    return found


@pytest.fixture(scope="module")
def schedules() -> list[tuple[Schedule, set[str]]]:
    """Schedules of the swarm, each with the rules that were asked."""
    rules = places()
    asked: set[str] = set()

    def on_line(frame: FrameType, event: str, _argument: Any) -> Any:
        if event == "line":
            asked.update(rules[frame.f_code.co_filename].get(frame.f_lineno, ()))
        return on_line

    found = []
    before = sys.gettrace()
    for index in range(SCHEDULES):
        asked.clear()
        sys.settrace(lambda frame, _event, _argument: on_line if frame.f_code.co_filename in rules else None)
        try:
            schedule = run_schedule(ModelTarget(), chooser_of(SEED, index))
        finally:
            sys.settrace(before)
        assert schedule is not None
        found.append((schedule, set(asked)))
    return found


def test_a_rule_counts_as_evaluated_exactly_when_the_checker_evaluates_it(
    schedules: list[tuple[Schedule, set[str]]],
) -> None:
    for schedule, asked in schedules:
        said = rules_applied(schedule.scenario, schedule.run)
        assert said - ELSEWHERE - WEAKER == (asked & CONDITIONAL) - ELSEWHERE - WEAKER
        assert said & WEAKER <= asked


def test_stale_results_and_readmissions_are_distinguished_by_what_happened(
    schedules: list[tuple[Schedule, set[str]]],
) -> None:
    for schedule, asked in schedules:
        said = rules_applied(schedule.scenario, schedule.run)
        assert bool(said & {"I31", "I32"}) == bool(asked & {"I31", "I32"})
        assert ("I31" in said) == (schedule.run.stale_finished > 0)
        assert ("I32" in said) == (schedule.run.stale_retracted > 0)
        assert ("I58" in said) >= ("I59" in said)


def test_every_rule_that_some_schedules_do_not_ask_is_asked_by_some(
    schedules: list[tuple[Schedule, set[str]]],
) -> None:
    counts = Counter(rule for schedule, _ in schedules for rule in rules_applied(schedule.scenario, schedule.run))
    assert set(counts) == set(CONDITIONAL)
    assert max(counts.values()) < SCHEDULES
    assert set(BY_ID) >= CONDITIONAL
