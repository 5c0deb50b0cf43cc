"""Hypothesis strategies of schedules: the scenario and every choice of the run are drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specsim.choices.hypothesis_chooser import chosen
from specsim.engine.accounting import Accounting, Memory, ModelAccounting
from specsim.engine.event_log import Run
from specsim.engine.features import FEATURES
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.workload import draw_scenario

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from specsim.choices.chooser import RecordingChooser, Tape


def runs(
    accounting: Callable[[Memory], Accounting] = ModelAccounting, features: frozenset[str] = FEATURES
) -> SearchStrategy[tuple[Run, Tape]]:
    """Schedules of the default swarm over an accounting with these features, as they ended, with their tapes."""

    def run(chooser: RecordingChooser) -> Run:
        return checked_engine(draw_scenario(chooser, features), chooser, accounting).run()

    return chosen(run)
