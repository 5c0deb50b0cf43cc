"""What a check does with its time: two tiers on two cores, and a share of it kept for making findings small."""

from __future__ import annotations

import gc
import threading

import pytest

from specsim.commands.background import beside
from specsim.lifting.gc_pause import without_collections


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


def test_garbage_is_collected_again_after_a_lift_that_fails() -> None:
    def lift() -> None:
        with without_collections():
            assert not gc.isenabled()
            raise LookupError

    with pytest.raises(LookupError):
        lift()
    assert gc.isenabled()
