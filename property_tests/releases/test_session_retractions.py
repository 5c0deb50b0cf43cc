"""A session's turn that is retracted, on a release: what its session has of it afterwards, and what a turn that leaves
its session costs.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from property_tests.support.known_releases import NEWEST
from property_tests.support.made_up_sources import edited
from property_tests.support.release_accounting import Release
from specsim.choices.chooser import replayed
from specsim.engine.accounting import Held, ModelAccounting
from specsim.engine.memory.sessions import SessionSlot
from specsim.engine.request import Request
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.workload import draw_scenario
from specsim.engines.sglang import accounting
from specsim.engines.sglang.accounting import SglangHostTarget
from specsim.lifting.cache import Cache

REPLAYS = Path(__file__).parents[2] / "fixtures" / "replays"
SESSION = "srt/session/streaming_session.py"
# How the release ends a turn for its session, whether it has finished or was retracted; and only one that has finished.
ENDS, ENDS_FINISHED = r"(req\.session\.finish_req\(req\))", r"req.finished() and \1"


@pytest.fixture(autouse=True)
def short_rehearsal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(accounting, "_REHEARSALS", 2)


def shown(name: str, target: Any) -> set[str]:
    """The signatures that a fixture's schedule shows on a target."""
    tape = json.loads((REPLAYS / f"{name}.json").read_text())["tape"]
    chooser = replayed(tape)
    run = checked_engine(draw_scenario(chooser, target.features), chooser, target.make).run()
    return {violation.signature for violation in run.violations}


def test_a_retraction_that_ends_no_turn_keeps_it_out_of_the_next_prompt_and_in_its_session(
    release: Release, wheel_cache: Cache
) -> None:
    source = edited(release(NEWEST), SESSION, ENDS, ENDS_FINISHED, within="try_cache_finished_req")
    was, now = (SglangHostTarget(made, wheel_cache) for made in (release(NEWEST), source))
    for name, signature in (
        ("session-keeps-a-retracted-turn", "accounting:I53:retracted:session controller"),
        ("session-lost-by-a-turn-retracted-twice", "accounting:S4:left:session match"),
    ):
        assert signature in shown(name, was)
        assert signature not in shown(name, now)


class _KeepsMemory(ModelAccounting):
    """A retracted turn leaves its memory in its session, as releases have it."""

    goes_on = True

    def retract_all(self, batch: list[Request]) -> None:
        for request in batch:
            held = request.state_of_accounting
            if request.turn.session and held.honest:
                slot = SessionSlot(held.row, held.honest, held.allocated)
                self._memory.sessions.slots[request.turn.session] = slot
                held.row = None
                held.honest = held.in_flight = held.allocated = held.launches = 0
                held.is_retracted = True
            else:
                super().retract_all([request])

    def session_match(self, request: Request, key_len: int) -> int | None:  # type: ignore[override]
        return super().session_match(request, key_len) if self.goes_on or not request.incarnation else None


class _Leaves(_KeepsMemory):
    """Once it was retracted it is a request without a session."""

    goes_on = False

    def _save_session(self, request: Request, held: Held) -> None:
        if request.incarnation > 1:
            self._free(held, 0)
            self._free_row(held)
        else:
            super()._save_session(request, held)


def _run(make: type[ModelAccounting]) -> set[str]:
    """Two turns of a session, of which the first is retracted by a pause."""
    tape = json.loads((REPLAYS / "session-keeps-a-retracted-turn.json").read_text())["tape"]
    chooser = replayed(tape[:-1])  # without the abort: the turn goes on
    run = checked_engine(draw_scenario(chooser), chooser, make).run()
    assert "session_turn_interrupted" in run.marks
    return {violation.signature for violation in run.violations}


def test_a_retracted_turn_reuses_what_it_left_with_the_outputs_that_it_had() -> None:
    assert _run(_KeepsMemory) == set()


def test_a_turn_that_leaves_its_session_is_computed_again_and_that_is_all() -> None:
    assert _run(_Leaves) == {"accounting:S4:left:session match"}
