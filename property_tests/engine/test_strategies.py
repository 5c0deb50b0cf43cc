"""Strategies are deterministic, run valid schedules, and hit what their bounds promise."""

from __future__ import annotations

import time
from collections import Counter
from itertools import pairwise

import pytest

from specsim.choices.chooser import Chooser, Tape, replayed
from specsim.choices.search_strategies import (
    HOST,
    STRATEGIES,
    Contest,
    DelayBounded,
    Pct,
    Swarm,
)
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.rules.coverage import CONTESTS, pairs
from specsim.errors import UsageError
from specsim.tiers.accounting.schedules import chooser_of, run_schedule, simulate, strategy_of

STEPS = 12
RUNS = 4000
TWO_AGENTS = {"other first": Contest("other", 1, 0)}


def interleaving(chooser: Chooser) -> str:
    """Two agents with `STEPS` steps each: who went."""
    left = {"h": STEPS, "o": STEPS}
    order = ""
    while any(left.values()):
        other = not left["h"] or (left["o"] > 0 and chooser.choose(2, "other first") == 1)
        order += "o" if other else "h"
        left[order[-1]] -= 1
    return order


def tapes(name: str, seed: int, schedules: int = 60) -> list[Tape]:
    strategy = strategy_of(name, seed)
    found = []
    for index in range(schedules):
        schedule = run_schedule(ModelTarget(), strategy.chooser(index))
        assert schedule is not None
        assert schedule.run.violations == ()
        again = run_schedule(ModelTarget(), replayed(schedule.tape))
        assert again is not None
        assert again.run.digest == schedule.run.digest
        schedule.teach(strategy)
        found.append(schedule.tape)
    return found


@pytest.mark.parametrize("name", STRATEGIES)
@pytest.mark.slow(runs_one_in=5)
def test_a_seed_gives_the_same_schedules_which_replay_and_break_no_rule(name: str) -> None:
    assert tapes(name, 5) == tapes(name, 5)
    assert tapes(name, 5) != tapes(name, 6)


def test_the_swarm_is_the_default_swarm() -> None:
    assert Swarm(3, CONTESTS).chooser(7).choose(1 << 40, "") == chooser_of(3, 7).choose(1 << 40, "")


def test_a_strategy_that_is_not_there_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="no strategy 'luck'"):
        strategy_of("luck", 0)


@pytest.mark.parametrize("depth", [1, 2])
def test_pct_hits_a_defect_of_its_depth_as_often_as_its_bound_says(depth: int) -> None:
    """Depth 1: the other agent is done before the host begins. Depth 2: it is so after exactly the host's 5th step."""
    wanted = "o" * STEPS + "h" * STEPS if depth == 1 else "h" * 5 + "o" * STEPS + "h" * (STEPS - 5)
    strategy = Pct(1, TWO_AGENTS, depth)
    hits = 0
    for index in range(RUNS):
        hits += interleaving(chooser := strategy.chooser(index)) == wanted
        strategy.learn(chooser.tape, (), 0)
    assert hits / RUNS >= strategy.bound * 0.6  # the bound is tight for depth 2: three standard deviations of a sample
    assert strategy.bound == 1 / (2 * 32 ** (depth - 1))


def test_the_swarm_does_not_hit_the_defect_that_pct_hits() -> None:
    wanted = "h" * 5 + "o" * STEPS + "h" * (STEPS - 5)
    assert not any(interleaving(Swarm(1, TWO_AGENTS).chooser(index)) == wanted for index in range(RUNS))


def test_pct_lets_an_agent_go_that_a_spinning_host_refuses() -> None:
    for index in range(50):
        chooser = Pct(0, TWO_AGENTS).chooser(index)
        assert any(chooser.choose(2, "other first") for _ in range(8))


def test_pct_sees_a_host_spin_through_several_contests() -> None:
    """Whatever a useless abort is answered, the request that the host waits for arrives."""
    contests = {label: CONTESTS[label] for label in ("arrives later", "abort", "timeout")}
    for index in range(50):
        chooser = Pct(0, contests).chooser(index)
        rounds = [{label: chooser.choose(4, label) for label in contests} for _ in range(8)]
        assert any(values["arrives later"] == CONTESTS["arrives later"].goes for values in rounds)


def test_priorities_change_at_most_depth_minus_one_times() -> None:
    for index in range(300):
        chooser = Pct(2, {"a": Contest("a", 1, 0)}, 3).chooser(index)
        values = []
        for _ in range(40):
            values.append(chooser.choose(2, "a"))
            chooser.choose(2, "something else")
        switches = sum(a != b for a, b in pairwise(values))
        # Without patience two; every eighth refusal in a row shows as a switch forth and back.
        assert switches <= 2 + 2 * (len(values) // 8)


def test_delay_bounding_leaves_the_simplest_schedule_at_few_places_and_reaches_all_of_them() -> None:
    strategy = DelayBounded(1, TWO_AGENTS, delays=2)
    places: Counter[int] = Counter()
    for index in range(RUNS):
        chooser = strategy.chooser(index)
        values = [chooser.choose(2, "other first") for _ in range(32)]
        assert sum(values) <= 2
        places.update(at for at, value in enumerate(values) if value)
    assert set(places) == set(range(32))


def test_pairs_tell_what_happened_to_a_request_in_which_state() -> None:
    schedule = run_schedule(ModelTarget(), replayed(()))
    assert schedule is not None
    found = pairs(schedule.run)
    assert ("new", 0, False, "arrive", "") in found
    assert ("waiting", 0, False, "admit", "") in found
    assert {event for _, _, _, event, _ in found} == {line.event for line in schedule.run.log}


def test_every_contest_names_an_agent_beside_the_host() -> None:
    assert HOST not in {contest.agent for contest in CONTESTS.values()}
    assert all({contest.goes, contest.waits} == {0, 1} for contest in CONTESTS.values())


@pytest.mark.parametrize("name", STRATEGIES)
def test_a_suite_runs_with_every_strategy(name: str) -> None:
    result = simulate(
        ModelTarget(),
        seed=9,
        schedules=25,
        deadline=time.monotonic() + 60,
        on_schedule=lambda _index: None,
        strategy=strategy_of(name, 9),
    )
    assert (result.schedules, result.findings) == (25, [])
