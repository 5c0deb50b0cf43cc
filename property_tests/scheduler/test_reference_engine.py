"""Schedules find nothing on the reference engine, and bring it where it could go wrong."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from property_tests.support.replay_fixtures import EXPECT, FILES
from specsim import replay_file
from specsim.choices.chooser import seeded
from specsim.engines.reference import ReferenceEngine, engine, on_kernels
from specsim.reference.engine import Device, Engine, Launch
from specsim.replay_file import SchedulerReplay
from specsim.rules.table import CHECKS
from specsim.world.case import ScheduleCase
from specsim.world.schedule import Record, run_schedule

ROWS = range(len(engine.setups))
OF_MUTANTS = [file for file in FILES if "model" in EXPECT[file.stem]]


def schedule(row: int, index: int, target: ReferenceEngine = engine, *, records: bool = False) -> Record:
    setup = engine.setups[row]
    chooser = seeded(0, "reference engine", row, index)
    return run_schedule(target.start(setup), setup, CHECKS, chooser, records=records)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: engine.setups[row].name)
def test_schedules_find_nothing(row: int) -> None:
    for index in range(3):
        assert schedule(row, index).violations == ()


@pytest.mark.parametrize("row", ROWS[::3], ids=lambda row: engine.setups[row].name)
def test_kernels_in_the_place_of_its_operations_make_no_difference(row: int) -> None:
    assert schedule(row, 0, on_kernels).digest == schedule(row, 0).digest


@pytest.mark.parametrize("file", OF_MUTANTS, ids=lambda file: file.stem)
def test_what_a_mutant_shows_is_not_there_without_it(file: Path) -> None:
    """That it shows with the mutant is what `make stale` holds."""
    stored = replay_file.load(file)
    assert isinstance(stored, SchedulerReplay)
    assert stored.mutant
    assert EXPECT[file.stem] == {"model": {"shows": False}}
    case = ScheduleCase(stored.setup, stored.workload, stored.choices)
    setup = case.started_by()
    record = run_schedule(engine.start(setup), setup, CHECKS, case.chooser(), workload=case.users())
    assert record.violations == ()


def test_a_schedule_is_the_same_twice() -> None:
    assert schedule(0, 0).digest == schedule(0, 0).digest


@pytest.mark.parametrize("row", ROWS[::3], ids=lambda row: engine.setups[row].name)
def test_a_schedule_that_is_recorded_is_the_same(row: int) -> None:
    recorded = schedule(row, 0, records=True)
    assert recorded.digest == schedule(row, 0).digest
    assert len(recorded.states) == sum(step.kind == "mark" for step in recorded.steps)
    held = [leaf for state in recorded.states for leaf in state["slots"].values()]
    assert {(holds, should) for _owner, _at, holds, should in held if should and holds != should} == set()
    assert any(should for _owner, _at, _holds, should in held)
    launches = [step for step in recorded.steps if step.kind == "launch"]
    assert {step.what for step in launches} == {"extend", "decode"}
    assert all(step.where.startswith("Engine.") for step in launches)
    assert max(step.n for step in recorded.steps if step.kind == "wait") == len(launches)


def test_the_launch_that_reads_kv_of_other_tokens_is_blamed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Device, "_extend_draft", lambda *_: None)
    found = schedule(0, 0, records=True)
    read = [violation for violation in found.violations if violation.rule == "D1"]
    assert read
    assert all(violation.at for violation in read)


def test_a_length_beyond_the_tokens_is_shown_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    take = Engine._take_results

    def counted_twice(self: Engine, launch: Launch) -> None:
        for request, tokens in zip(launch.requests, launch.tokens, strict=True):
            request.length += len(tokens) * (request.row >= 0)
        take(self, launch)

    monkeypatch.setattr(Engine, "_take_results", counted_twice)
    recorded = schedule(0, 0, records=True)
    owners = [
        (rid, owner, state[f"request {rid}"]) for state in recorded.states for rid, owner in state["owners"].items()
    ]
    assert any(owner[1] > len(one["prompt"]) + len(one["outputs"]) for _rid, owner, one in owners)


def test_an_error_of_the_engine_is_shown_by_its_own_lines() -> None:
    scheduler = engine.start(engine.setups[0])
    with pytest.raises(ValueError, match="not open") as error:
        scheduler.engine.close("none")
    assert [name for name, _line in scheduler.traceback_of(error.value)] == ["close"]


def test_schedules_bring_it_where_it_can_go_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    happened: Counter[str] = Counter()
    for name in ("_retract", "_free_window", "_release_idle", "_keep", "_settle", "_decode_beside"):
        method = getattr(Engine, name)

        def counted(self: Engine, *given: object, name: str = name, method: object = method) -> object:
            happened[name] += 1
            return method(self, *given)  # type: ignore[operator]

        monkeypatch.setattr(Engine, name, counted)
    for row in ROWS:
        for index in range(2):
            schedule(row, index)
    assert min(happened.values()) > 10
    assert len(happened) == 6


def test_another_source_of_the_engine_is_another_source(tmp_path: Path) -> None:
    other = tmp_path / "engine.py"
    other.write_text("state = 1\n", "utf-8")
    changed = ReferenceEngine()
    changed.sources = (str(other),)
    assert changed.source_hash != engine.source_hash == ReferenceEngine().source_hash
