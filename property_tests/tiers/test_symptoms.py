"""Of what one schedule shows the first is the finding; what comes after it may be its symptom."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from property_tests.support.findings import found
from specsim.findings.comparison import Baseline, Reach, bring_forward, compare
from specsim.rules.content import ContentRead
from specsim.rules.device import StreamRace
from specsim.rules.slots import SlotsAtRest, TreeContent
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler.answers import ScheduleCounts, look_behind_races
from specsim.verdict import Finding, Severity, Suite, Verdict, of_one_wait, with_severity_of_symptoms
from specsim.world.forks import Ran, WantedSchedule
from specsim.world.rule import Violation, signature_of
from specsim.world.schedule import Record

RACE, CONTENT, LEAK = (signature_of(rule.id, "x") for rule in (StreamRace.rule, ContentRead.rule, SlotsAtRest.rule))
DEEP = [*[check.rule.id for check in CHECKS[:6]], SlotsAtRest.rule.id]
SIGNATURES = [signature_of(rule, part) for rule in DEEP for part in ("x", "y")]


def ran(*signatures: str, iterations: int = 9) -> Ran:
    """A schedule that showed these, in this order."""
    violations = [
        Violation(rule=signature.split(":")[1], part=signature.split(":")[2], who="", expected="", actual="")
        for signature in signatures
    ]
    return Ran(
        Record(
            tape=(),
            setup="default",
            settings={},
            workload={},
            choices={"accept": [2], "device policy": [3], "advance": [1]},
            iterations=iterations,
            requests=1,
            violations=tuple(violations),
            events=(),
            digest="",
        )
    )


def counted(*schedules: tuple[str, ...]) -> ScheduleCounts:
    counts, numbers = ScheduleCounts(), count()
    for signatures in schedules:
        counts.take(WantedSchedule((0,), index=next(numbers)), ran(*signatures))
    return counts


def findings_of(counts: ScheduleCounts) -> dict[str, str]:
    """By signature what it follows, "" for a finding."""
    return {signature: counts.follows(signature) for signature in counts.hits}


def test_what_comes_after_something_is_its_symptom() -> None:
    assert findings_of(counted((RACE, LEAK), (RACE,))) == {RACE: "", LEAK: RACE}


def test_what_comes_alone_once_is_a_finding() -> None:
    assert findings_of(counted((RACE, LEAK), (LEAK,))) == {RACE: "", LEAK: ""}


def test_what_is_seen_before_its_cause_whenever_it_is_seen_follows_the_cause() -> None:
    both = counted((RACE, CONTENT), (CONTENT, RACE))
    assert findings_of(both) == {RACE: "", CONTENT: RACE}
    assert findings_of(counted((RACE, CONTENT), (CONTENT, RACE), (CONTENT,))) == {RACE: "", CONTENT: ""}


def test_a_cause_does_not_follow_what_it_causes() -> None:
    assert findings_of(counted((LEAK, RACE), (RACE, LEAK))) == {LEAK: RACE, RACE: ""}


def test_a_finding_has_the_smallest_schedule_in_which_it_comes_first() -> None:
    counts = ScheduleCounts()
    for number, (signatures, iterations) in enumerate([((RACE, LEAK), 3), ((LEAK,), 9), ((LEAK,), 7), ((LEAK,), 8)]):
        new = counts.take(WantedSchedule((0,), index=number), ran(*signatures, iterations=iterations))
        assert new == [[RACE, LEAK], [LEAK], [], []][number]
    assert counts.hits[LEAK].wanted.index == 2
    assert counts.hits[LEAK].count == 4


def test_a_finding_keeps_the_schedule_that_was_shrunk() -> None:
    """A longer one may end sooner, by something else that is wrong."""
    counts = ScheduleCounts()
    counts.take(WantedSchedule((0,), index=0), ran(LEAK, iterations=9))
    counts.hits[LEAK].is_shrunk = True
    counts.take(WantedSchedule((0,), index=1), ran(LEAK, iterations=1))
    assert counts.hits[LEAK].wanted.index == 0
    counts.hits[LEAK].is_first = False  # had it come after another one
    counts.take(WantedSchedule((0,), index=2), ran(LEAK, iterations=9))
    assert counts.hits[LEAK].wanted.index == 2


@given(st.lists(st.lists(st.sampled_from(SIGNATURES), unique=True, max_size=4).map(tuple), max_size=12))
@example([(LEAK, CONTENT, RACE), (CONTENT, RACE), (RACE,)])
def test_each_schedule_that_shows_anything_shows_a_finding(schedules: list[tuple[str, ...]]) -> None:
    follows = findings_of(counted(*schedules))
    assert set(follows) == {signature for shown in schedules for signature in shown}
    for signature, cause in follows.items():
        assert not cause or follows[cause] == ""
        assert not cause or any(signature in shown and cause in shown for shown in schedules)
    for shown in schedules:
        assert not shown or any(follows[signature] == "" for signature in shown)


def finding(signature: str, follows: str = "", hits: int = 4, severity: Severity = Severity.METRIC) -> Finding:
    return found(signature, severity=severity, count=hits, follows=follows)


def verdict(findings: list[Finding], symptoms: list[Finding], schedules: int = 9) -> Verdict:
    return Verdict("t", 0, [Suite("scheduler", schedules=schedules)], findings, symptoms=symptoms)


def baseline(*signatures: str, symptoms: tuple[str, ...] = ()) -> Baseline:
    return Baseline("b", frozenset(signatures), Reach(frozenset({"scheduler"})), frozenset(symptoms))


def test_a_symptom_that_a_baseline_has_only_the_cause_of_is_new() -> None:
    here = verdict([finding(RACE)], [finding(LEAK, RACE)])
    there = baseline(RACE)
    bring_forward(here, there, is_counted=False)
    assert compare(here, there).new == (LEAK,)
    assert here.symptoms == []


def test_a_symptom_stays_one_where_its_cause_is_new_or_the_baseline_has_it_too() -> None:
    for there in (baseline(), baseline(RACE, symptoms=(LEAK,)), baseline(RACE, LEAK)):
        here = verdict([finding(RACE)], [finding(LEAK, RACE)])
        bring_forward(here, there, is_counted=False)
        assert [one.signature for one in here.symptoms] == [LEAK]
        compared = compare(here, there)
        assert LEAK not in (*compared.new, *compared.gone)


def test_a_symptom_of_what_is_met_more_often_stays_one() -> None:
    hits, schedules = {RACE: 1}, {"scheduler": 99}
    there = replace(baseline(RACE), hits=hits, schedules=schedules)
    here = verdict([finding(RACE, hits=9)], [finding(LEAK, RACE)])
    bring_forward(here, there, is_counted=False)
    compared = compare(here, there)
    assert (compared.new, compared.risen, [one.signature for one in here.symptoms]) == ((), (RACE,), [LEAK])


@pytest.mark.parametrize(("hits", "new"), [(1, ()), (9, ()), (10, (LEAK,))])
def test_a_symptom_that_is_rare_stays_one_beside_other_schedules(hits: int, new: tuple[str, ...]) -> None:
    there = replace(baseline(RACE), hits={RACE: 40}, schedules={"scheduler": 100})
    here = verdict([finding(RACE, hits=40)], [finding(LEAK, RACE, hits)], schedules=100)
    bring_forward(here, there, is_counted=True)
    assert compare(here, there).new == new


def test_a_baseline_of_a_verdict_has_its_symptoms() -> None:
    there = Baseline.of_verdict("b", verdict([finding(RACE)], [finding(LEAK, RACE)]).to_json())
    assert [there.signatures, there.symptoms] == [frozenset({RACE}), frozenset({LEAK})]


def race(name: str, wait: str, hits: int = 1, **fields: Any) -> Finding:
    return replace(finding(f"scheduler:S2:race:{name}", hits=hits), wait=wait, **fields)


def test_races_of_one_missing_wait_are_one_finding() -> None:
    races = [race("a", "y for x", 3), race("b", "y for x", 9), race("c", "x for y"), race("d", "y for x", 9)]
    a, b, _c, d = (one.signature for one in races)
    assert of_one_wait(races, ()) == {a: b, d: b}
    assert of_one_wait(races, {b}) == {a: d}
    assert of_one_wait([*races, race("e", "y for x", severity=Severity.WRONG_RESULT)], ()).keys() == {a, b, d}
    assert of_one_wait([replace(one, fixture="known.json") for one in races], ()) == {}
    assert of_one_wait([finding(LEAK), finding(CONTENT)], ()) == {}


@pytest.mark.parametrize("is_counted", [False, True])
def test_new_races_of_one_missing_wait_are_one_new_finding_beside_a_known_one(is_counted: bool) -> None:
    known, new, other = race("known", "y for x", 20), race("new", "y for x", 30), race("other", "y for x", 40)
    leak, hidden = finding(LEAK, new.signature, 5), replace(other, follows=known.signature)
    here = verdict([known, new], [leak, hidden], schedules=100)
    there = replace(baseline(known.signature), hits={known.signature: 20}, schedules={"scheduler": 100})
    bring_forward(here, there, is_counted=is_counted)
    compared = compare(here, there)
    assert (compared.known, compared.new, compared.risen) == ((known.signature,), (other.signature,), ())
    assert {one.signature: one.follows for one in here.symptoms} == dict.fromkeys(
        (new.signature, LEAK), other.signature
    )


def test_a_finding_is_as_severe_as_what_comes_after_it_most_often() -> None:
    race = finding(RACE, hits=10)
    for hits, severity in ((6, Severity.LEAK), (5, Severity.METRIC)):
        leak = finding(LEAK, RACE, hits, Severity.LEAK)
        assert [one.severity for one in with_severity_of_symptoms([race, leak])] == [severity, Severity.LEAK]
    assert with_severity_of_symptoms([replace(race, severity=Severity.CRASH), leak])[0].severity is Severity.CRASH


class Eager:
    """Starters that run schedules once more, on an eager device, where each shows these."""

    def __init__(self, *signatures: str) -> None:
        self.signatures = signatures
        self.asked: list[WantedSchedule] = []

    def run(self, schedule: WantedSchedule) -> Ran:
        self.asked.append(schedule)
        return ran(*self.signatures)


@pytest.mark.parametrize(
    ("eager", "is_own"),
    [((LEAK,), True), ((RACE, LEAK), True), ((RACE,), False), ((), False), ((CONTENT, LEAK), False)],
)
def test_what_comes_after_a_race_and_needs_no_slow_stream_is_a_finding_of_its_own(
    eager: tuple[str, ...], is_own: bool
) -> None:
    counts, starters = counted((RACE, LEAK), (RACE,)), Eager(*eager)
    assert counts.follows(LEAK) == RACE
    look_behind_races(starters, counts, 9.0)  # type: ignore[arg-type]
    assert counts.follows(LEAK) == ("" if is_own else RACE)
    (asked,) = starters.asked
    assert asked.case is not None
    assert asked.case.choices == {"accept": [2]}


def test_only_the_symptoms_of_races_are_run_without_them() -> None:
    counts, starters = counted((CONTENT, LEAK), (CONTENT,), (RACE,)), Eager(LEAK)
    look_behind_races(starters, counts, 9.0)  # type: ignore[arg-type]
    assert starters.asked == []


def test_of_each_race_what_was_met_most_often_behind_it_is_a_finding() -> None:
    other = signature_of(TreeContent.rule.id, "x")
    counts = counted((RACE, LEAK), (RACE, other), (RACE, other), (RACE,))
    look_behind_races(Eager(other), counts, 9.0)  # type: ignore[arg-type]
    assert findings_of(counts) == {RACE: "", other: "", LEAK: RACE}


def test_what_never_comes_without_a_race_that_half_of_the_schedules_have_is_its_symptom() -> None:
    counts, starters = counted(*[(RACE, LEAK)] * 12, *[()] * 12), Eager(LEAK)
    look_behind_races(starters, counts, 9.0)  # type: ignore[arg-type]
    assert (counts.follows(LEAK), starters.asked) == (RACE, [])
