"""Features that most schedules run without: each is drawn on or off, and none is on in three of four schedules.

Choices are the same for every target: what a target does not support is drawn and left out.
"""

from __future__ import annotations

from dataclasses import replace

from specsim.choices.chooser import Chooser, pick
from specsim.engine.config import EngineConfig
from specsim.engine.request import Turn
from specsim.engine.sampling_params import draw_params

# What an accounting may lack: a scenario for it has none of it. It takes the same choices, so that one tape is the same
# schedule for every accounting that has what the schedule uses.
SCHEDULER_FEATURES = frozenset(
    {
        "adaptive steps",
        "chunked prefill",
        "late results",
        "mixed chunk",
        "no limit",
        "paged trees",
        "pauses",
        "radix cache",
        "session faults",
        "session retractions",
        "sliding window",
        "stop strings",
        "streams",
        "tight pool",
        "timeouts",
    }
)
DEVICE_FEATURES = frozenset(
    {"draft pools", "graph padding", "idle batches", "sampling", "penalties", "grammar", "logprobs"}
)
FEATURES = SCHEDULER_FEATURES | DEVICE_FEATURES


def draw_features(
    chooser: Chooser, config: EngineConfig, turns: tuple[Turn, ...]
) -> tuple[EngineConfig, tuple[Turn, ...]]:
    """The configuration and the turns with the features of this schedule."""
    if chooser.choose(4, "has features") != 1:
        return config, turns
    # What is drawn takes the same choices, whatever can be run with it. The tree of a radix cache shares the KV of one
    # layer's drafter, under keys that hold the next token too; trees draft with one layer.
    layers = pick(chooser, (0, 1) if config.topk > 1 else (0, 1, 1, 3), "draft layers")
    if config.radix:
        layers = min(layers, 1) if config.bigram else 0
    graph_sizes = pick(chooser, ((), (2, 4, 8), (2,)), "graph sizes")
    idle_batches = chooser.choose(3, "idle batches") == 1
    config = replace(
        config,
        draft_layers=layers,
        graph_sizes=graph_sizes,
        idle_batches=idle_batches,
    )
    if chooser.choose(2, "has laws") == 1:
        relaxed = chooser.choose(4, "relaxed penalties") == 1
        turns = tuple(_with_a_distribution(chooser, turn) for turn in turns)
        config = replace(config, relaxed_penalties=relaxed)
    return config, turns


def _with_a_distribution(chooser: Chooser, turn: Turn) -> Turn:
    return_logprob = chooser.choose(3, "return_logprob") == 1
    params = draw_params(chooser, turn.max_new_tokens) if chooser.choose(4, "no law") != 1 else None
    return replace(turn, sampling=params, return_logprob=return_logprob)


def turn_without(lacking: frozenset[str], turn: Turn) -> Turn:
    """The turn without the features of `lacking`."""
    if "stop strings" in lacking and turn.stop:
        turn = replace(turn, stop=())
    params = turn.sampling
    if params is not None:
        if "sampling" in lacking:
            params = replace(params, temperature=0)
        if "penalties" in lacking:
            params = replace(params, frequency_penalty=0, presence_penalty=0, min_new_tokens=0)
        if "grammar" in lacking:
            params = replace(params, grammar=None)
    return replace(turn, sampling=params, return_logprob=turn.return_logprob and "logprobs" not in lacking)
