"""What a check does with its time: two tiers on two cores, and a share of it kept for making findings small."""

from __future__ import annotations

import gc
import threading
import time
from types import SimpleNamespace
from typing import Any

import pytest

from specsim.check import suite
from specsim.commands.beside import beside
from specsim.explore.chooser import Tape
from specsim.targets.garbage import without_collections


def test_what_runs_beside_runs_at_once_and_gives_its_result() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def work() -> str:
        begun.set()
        assert go_on.wait(10)
        return "done"

    result = beside(work)
    assert begun.wait(10)
    go_on.set()
    assert result() == "done"


def test_what_runs_beside_raises_where_it_is_asked_for() -> None:
    def work() -> None:
        raise LookupError("beside")

    result = beside(work)
    with pytest.raises(LookupError, match="beside"):
        result()


class Shrunk:
    """In place of `suite.shrink`: notes the attempts that it may take; what comes of a tape is as large as the tape."""

    def __init__(self, seconds: float) -> None:
        self.attempts: list[int] = []
        self._seconds = seconds

    def __call__(
        self, _target: Any, tape: Tape, _signature: str, attempts_max: int, _on_attempt: Any, _goes_on: Any
    ) -> Any:
        time.sleep(self._seconds)
        self.attempts.append(attempts_max)
        return SimpleNamespace(tape=tape)


def smallest(
    monkeypatch: pytest.MonkeyPatch, ends: float, seconds: float = 0.0, goes_on: bool = True
) -> tuple[Tape, list[int]]:
    shrunk = Shrunk(seconds)
    monkeypatch.setattr(suite, "shrink", shrunk)
    monkeypatch.setattr(suite.Schedule, "size", lambda schedule: len(schedule.tape))
    found = suite._smallest(SimpleNamespace(), "x", [(1, 2, 3), (1,), (1, 2)], ends, lambda: goes_on, lambda: None)
    return found.tape, shrunk.attempts


def test_with_time_left_the_smallest_of_all_starts_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    assert smallest(monkeypatch, time.monotonic() + 60) == ((1,), [suite.SHRINK_ATTEMPTS_MAX] * 3)


def test_without_time_one_start_is_made_smaller_by_few_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert smallest(monkeypatch, time.monotonic() - 1) == ((1, 2, 3), [suite.SHRINK_ATTEMPTS_LATE])


def test_no_start_is_begun_when_the_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    assert smallest(monkeypatch, time.monotonic() + 0.02, 0.05)[1] == [suite.SHRINK_ATTEMPTS_MAX]


def test_no_other_start_is_begun_when_it_does_not_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    found = smallest(monkeypatch, time.monotonic() + 60, goes_on=False)
    assert found == ((1, 2, 3), [suite.SHRINK_ATTEMPTS_MAX])


def test_garbage_is_collected_again_after_a_lift_that_fails() -> None:
    def lift() -> None:
        with without_collections():
            assert not gc.isenabled()
            raise LookupError

    with pytest.raises(LookupError):
        lift()
    assert gc.isenabled()
