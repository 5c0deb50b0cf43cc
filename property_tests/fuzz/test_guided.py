"""What a schedule reached has names, and a tape is kept for what it was the first to reach."""

from __future__ import annotations

from collections import Counter
from functools import cache

from hypothesis import given
from hypothesis import strategies as st

from specsim.choices.chooser import replayed
from specsim.engine.accounting_target import ModelTarget
from specsim.fuzz.reached import LOGS_EVERY, Reached, features_of, worth_keeping
from specsim.fuzz.work import KeptTape
from specsim.rules.applicability import CONDITIONAL
from specsim.tiers.accounting.schedules import Schedule, chooser_of, run_schedule

NAMES = st.sampled_from("abcdef")
TAPES = st.lists(
    st.builds(KeptTape, st.tuples(st.integers(0, 3)), st.sets(NAMES, min_size=1).map(sorted).map(tuple), st.just(1)),
    max_size=6,
)


@cache
def schedules() -> list[Schedule]:
    found = [run_schedule(ModelTarget(), chooser_of(7, index)) for index in range(2 * LOGS_EVERY)]
    return [schedule for schedule in found if schedule is not None]


def test_names_say_pairs_marks_and_rules() -> None:
    dullest = run_schedule(ModelTarget(), replayed(()))
    assert dullest is not None
    names = features_of(dullest)
    assert {"mark:overlap", "pair:waiting 0 False admit "} <= set(names)
    assert names == sorted(set(names))
    assert [name for name in names if name.startswith("rule:")] == ["rule:I31"]
    rules = {name for schedule in schedules() for name in features_of(schedule) if name.startswith("rule:")}
    assert rules <= {f"rule:{rule}" for rule in CONDITIONAL}
    assert len(rules) > 10


def test_a_batch_counts_what_its_runs_reached_and_keeps_the_first_tape_of_each() -> None:
    reached = Reached(learns=True)
    for schedule in schedules():
        reached.take(schedule)
    assert reached.features == Counter(name for schedule in schedules() for name in features_of(schedule))
    first: dict[str, Schedule] = {}
    for schedule in schedules():
        for name in features_of(schedule):
            first.setdefault(name, schedule)
    assert {name: kept.tape for kept in reached.tapes for name in kept.features} == {
        name: schedule.tape for name, schedule in first.items()
    }
    assert sum(len(kept.features) for kept in reached.tapes) == len(reached.features)


def test_of_runs_that_nobody_learns_from_marks_are_counted_and_few_logs_read() -> None:
    reached = Reached(learns=False)
    for schedule in schedules():
        reached.take(schedule)
    assert reached.tapes == []
    assert reached.features["pair:new 0 False arrive "] == 2
    assert reached.features["mark:overlap"] == sum("overlap" in schedule.run.marks for schedule in schedules())


@given(TAPES, st.sets(NAMES))
def test_what_is_worth_keeping_reaches_all_that_is_new_each_once(tapes: list[KeptTape], known: set[str]) -> None:
    kept = worth_keeping(tapes, known.__contains__)
    names = [name for tape in kept for name in tape.features]
    assert len(names) == len(set(names))
    assert set(names) == {name for tape in tapes for name in tape.features} - known
    assert all(tape.features for tape in kept)
    assert worth_keeping(kept, set(names).__contains__) == []


def test_a_tape_of_which_nobody_knows_what_it_reaches_is_kept() -> None:
    assert worth_keeping([KeptTape((1,), (), 3)], {"a"}.__contains__) == [KeptTape((1,), (), 3)]
