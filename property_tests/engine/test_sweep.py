"""A sweep counts the same whatever number of processes it has, and loses nothing of what was counted."""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.command_line import specsim
from property_tests.support.wrong_accountings import ForgetfulTarget
from specsim.engine.accounting_target import ModelTarget
from specsim.engine.marks import INTERLEAVINGS, LIFE, OPTIONS
from specsim.tiers.accounting import sweep
from specsim.tiers.accounting.parallel_sweep import Swept, run
from specsim.tiers.accounting.schedules import chooser_of, run_schedule
from specsim.tiers.accounting.sweep import Counts, count, merged, ranges, to_json

SCHEDULES = 60
CUTS = [(start, start + 10) for start in range(0, SCHEDULES, 10)]


@cache
def parts() -> dict[tuple[int, int], Counts]:
    return {cut: count(ModelTarget(), 5, *cut) for cut in CUTS}


def swept(jobs: int, seed: int = 5, part: int = 10) -> Swept:
    return run(seed, SCHEDULES, jobs, lambda _swept: None, part=part)


# Counting


def test_counts_are_those_of_the_schedules_one_by_one() -> None:
    schedules = [run_schedule(ModelTarget(), chooser_of(5, index)) for index in range(SCHEDULES)]
    lengths = sorted(len(schedule.run.log) for schedule in schedules if schedule is not None)
    counts = merged(parts())
    assert counts.schedules == len(lengths) == SCHEDULES
    assert counts.events == sum(lengths)
    assert counts.events_median == lengths[(SCHEDULES - 1) // 2]
    for mark in ("stale_result_of_finished", "tree", "abort & tree"):
        wanted = set(mark.split(" & "))
        assert counts.marks[mark] == sum(wanted <= schedule.run.marks for schedule in schedules if schedule is not None)


@given(st.permutations(CUTS))
def test_the_order_in_which_parts_come_does_not_matter(order: list[tuple[int, int]]) -> None:
    assert merged({cut: parts()[cut] for cut in order}) == merged(parts())


def test_how_schedules_are_cut_into_parts_matters_to_the_digest_alone() -> None:
    whole = merged({(0, SCHEDULES): count(ModelTarget(), 5, 0, SCHEDULES)})
    pieces = merged(parts())
    assert whole.digest != pieces.digest
    pieces.digest = whole.digest
    assert whole == pieces


def test_nothing_counted_is_nothing_said() -> None:
    data = to_json(merged({}))
    assert (data["schedules"], data["events_median"], data["findings"]) == (0, 0, {})
    assert set(data["rare"]) >= {*INTERLEAVINGS, *LIFE, *OPTIONS}


@given(st.sets(st.integers(0, 9)))
def test_ranges_are_the_schedules_of_the_parts(numbers: set[int]) -> None:
    found = ranges((10 * number, 10 * number + 10) for number in numbers)
    assert {at // 10 for start, end in found for at in range(start, end)} == numbers
    assert all(one[1] < two[0] for one, two in pairwise(found))


def test_what_is_reached_less_than_often_enough_is_listed_with_its_share() -> None:
    counts = merged(parts())
    counts.schedules = 4000
    counts.marks["stale_result_of_finished"], counts.marks["stale_result_of_retracted"] = sweep.ENOUGH, sweep.ENOUGH - 1
    data = to_json(counts)
    assert "stale_result_of_finished" not in data["rare"]
    assert data["rare"]["stale_result_of_retracted"] == {"schedules": 999, "share": 0.24975}
    assert set(data["marks"]) >= {*INTERLEAVINGS, *LIFE, *OPTIONS}


def test_broken_rules_and_exceptions_of_the_model_are_counted_and_the_next_schedule_is_run() -> None:
    counts = count(ForgetfulTarget(), 5, 0, 40)
    assert counts.schedules == 40
    exception = counts.broken["accounting:exception:ZeroDivisionError"]
    assert 0 < exception.count < 40
    assert 0 <= exception.first < 40
    rules = {signature: broken for signature, broken in counts.broken.items() if ":exception:" not in signature}
    assert rules
    assert all(
        run_schedule(ForgetfulTarget(), chooser_of(5, broken.first)).violation(signature)  # type: ignore[union-attr]
        for signature, broken in rules.items()
    )
    halves = merged({(0, 20): count(ForgetfulTarget(), 5, 0, 20), (20, 40): count(ForgetfulTarget(), 5, 20, 40)})
    assert halves.broken == counts.broken


# In several processes


def test_one_process_and_three_count_the_same() -> None:
    assert swept(1).to_json() == swept(3).to_json()
    assert swept(2).counts == merged(parts())


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A suite that a shell runs in the background inherits that interrupts are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interruptible")
@pytest.mark.parametrize(
    ("how", "ended"),
    [
        (lambda: os.kill(os.getpid(), signal.SIGINT), "interrupted"),
        (lambda: os.kill(os.getpid(), signal.SIGTERM), "interrupted"),
        (lambda: os.kill(multiprocessing.active_children()[0].pid or 0, signal.SIGKILL), "was killed"),
    ],
    ids=["interrupt", "termination", "a process is killed"],
)
def test_what_was_counted_before_the_end_is_kept(how: Any, ended: str) -> None:
    seen: list[int] = []

    def stop(so_far: Swept) -> None:
        seen.append(so_far.counts.schedules)
        assert so_far.ended == "it still runs"
        how()

    result = run(5, 100_000, 2, stop, part=10, save_seconds=0)
    assert ended in result.ended
    assert 0 < seen[0] <= result.counts.schedules < 100_000
    data = result.to_json()
    assert not data["complete"]
    assert sum(end - start for start, end in data["counted"]) == data["schedules"]
    kept = {cut: counts for cut, counts in result.parts.items() if cut in parts()}
    assert kept
    assert all(counts == parts()[cut] for cut, counts in kept.items())


@pytest.mark.slow
def test_the_command_writes_what_it_counted(tmp_path: Path) -> None:
    ended = specsim(
        tmp_path, "dev", "sweep", "--schedules", "40", "--seed", "5", "--jobs", "2", "--write", "counts.json"
    )
    assert ended.returncode == 0, ended.stderr
    data = json.loads((tmp_path / "counts.json").read_text())
    assert (data["complete"], data["counted"], data["schedules"], data["findings"]) == (True, [[0, 40]], 40, {})
    assert data["environment"]["python"]
    assert f"digest {data['digest']}" in ended.stdout
    assert "fewer than 1,000: stale_result_of_finished" in ended.stdout


@pytest.mark.parametrize("arguments", [["--schedules", "0"], ["--jobs", "0"], ["--seed", "x"]])
def test_bad_input_is_refused(tmp_path: Path, arguments: list[str]) -> None:
    assert specsim(tmp_path, "dev", "sweep", *arguments).returncode == 2
