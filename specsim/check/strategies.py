"""Hypothesis strategies of schedules: the scenario and every choice of the run are drawn by Hypothesis."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from specsim.explore.hypothesis_lane import chosen
from specsim.sim.accounting import Accounting, Memory, ModelAccounting
from specsim.sim.engine import Engine
from specsim.sim.features import FEATURES
from specsim.sim.log import Run
from specsim.sim.workload import draw_scenario

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from specsim.explore.chooser import RecordingChooser, Tape


def runs(
    accounting: Callable[[Memory], Accounting] = ModelAccounting, features: frozenset[str] = FEATURES
) -> SearchStrategy[tuple[Run, Tape]]:
    """Schedules of the default swarm over an accounting with these features, as they ended, with their tapes."""

    def run(chooser: RecordingChooser) -> Run:
        return Engine(draw_scenario(chooser, features), chooser, accounting).run()

    return chosen(run)
