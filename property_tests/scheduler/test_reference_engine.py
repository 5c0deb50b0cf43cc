"""Schedules find nothing on the reference engine, and bring it where it could go wrong."""

from __future__ import annotations

from collections import Counter

import pytest

from specsim.choices.chooser import seeded
from specsim.engines.reference import ReferenceEngine, engine, on_kernels
from specsim.reference.engine import Engine
from specsim.rules.table import CHECKS
from specsim.world.schedule import Record, run_schedule

ROWS = range(len(engine.setups))


def schedule(row: int, index: int, target: ReferenceEngine = engine) -> Record:
    setup = engine.setups[row]
    return run_schedule(target.start(setup), setup, CHECKS, seeded(0, "reference engine", row, index))


@pytest.mark.parametrize("row", ROWS, ids=lambda row: engine.setups[row].name)
def test_schedules_find_nothing(row: int) -> None:
    for index in range(3):
        assert schedule(row, index).violations == ()


@pytest.mark.parametrize("row", ROWS[::3], ids=lambda row: engine.setups[row].name)
def test_kernels_in_the_place_of_its_operations_make_no_difference(row: int) -> None:
    assert schedule(row, 0, on_kernels).digest == schedule(row, 0).digest


def test_a_schedule_is_the_same_twice() -> None:
    assert schedule(0, 0).digest == schedule(0, 0).digest


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
