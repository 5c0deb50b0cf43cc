"""Features of the device that most schedules run without: each is drawn on or off, none of them in three of four
schedules.
"""

from __future__ import annotations

from dataclasses import replace

from specsim.explore.chooser import Chooser, pick
from specsim.sim.config import EngineConfig
from specsim.sim.request import Turn


def draw_features(
    chooser: Chooser, config: EngineConfig, turns: tuple[Turn, ...]
) -> tuple[EngineConfig, tuple[Turn, ...]]:
    """The configuration and the turns with the features of this schedule."""
    if chooser.choose(4, "has features") != 1:
        return config, turns
    # The tree of a radix cache shares the KV of one layer's drafter, under keys that hold the next token too.
    layers = (0, 1, 1, 3) if config.topk == 1 and not config.radix else (0, 1)
    if config.radix and not config.bigram:
        layers = (0,)
    config = replace(
        config,
        draft_layers=pick(chooser, layers, "draft layers"),
        graph_sizes=pick(chooser, ((), (2, 4, 8), (2,)), "graph sizes"),
        idle_batches=chooser.choose(3, "idle batches") == 1,
    )
    return config, turns
