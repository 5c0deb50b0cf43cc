"""What a schedule reached has names: pairs, marks and rules."""

from __future__ import annotations

from functools import cache

from specsim.choices.chooser import replayed
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.rules.coverage import pairs
from specsim.engine.rules.table import CONDITIONAL
from specsim.fuzz.reached import LOGS_EVERY, Reached, features_of
from specsim.tiers.accounting.schedules import RanSchedule, chooser_of, run_schedule


@cache
def schedules() -> list[RanSchedule]:
    found = [run_schedule(ModelTarget(), chooser_of(7, index)) for index in range(2 * LOGS_EVERY)]
    return [schedule for schedule in found if schedule is not None]


def test_pairs_tell_what_happened_to_a_request_in_which_state() -> None:
    simplest = run_schedule(ModelTarget(), replayed(()))
    assert simplest is not None
    found = pairs(simplest.run)
    assert ("new", 0, False, "arrive", "") in found
    assert ("waiting", 0, False, "admit", "") in found
    assert {event for _, _, _, event, _ in found} == {line.event for line in simplest.run.log}


def test_names_say_pairs_marks_and_rules() -> None:
    simplest = run_schedule(ModelTarget(), replayed(()))
    assert simplest is not None
    names = features_of(simplest)
    assert {"mark:overlap", "pair:waiting 0 False admit "} <= set(names)
    assert names == sorted(set(names))
    assert [name for name in names if name.startswith("rule:")] == ["rule:I31"]
    rules = {name for schedule in schedules() for name in features_of(schedule) if name.startswith("rule:")}
    assert rules <= {f"rule:{check.rule.id}" for check in CONDITIONAL}
    assert len(rules) > 10


def test_marks_of_every_run_are_counted_and_few_logs_are_read() -> None:
    reached = Reached()
    for schedule in schedules():
        reached.take(schedule)
    assert reached.features["pair:new 0 False arrive "] == 2
    assert reached.features["mark:overlap"] == sum("overlap" in schedule.run.marks for schedule in schedules())
