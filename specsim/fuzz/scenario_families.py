"""Scenario families: what a batch's schedules have more of than the default swarm gives.

A family names labels of choices that draw a scenario, and the values that those choices are drawn from in its batches;
a value that is named twice is drawn twice as often. All other choices, and all of the schedule, are drawn as
ever. The tape holds what was chosen, so a tape needs no family to be run again.

What they do not do: force an interleaving.

This module imports neither torch nor triton.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ScenarioFamily:
    """`weight` of 0 or more: how many batches it has, relative to the others. `values` by the label of the choice."""

    name: str
    weight: int
    what: str
    values: Mapping[str, tuple[int, ...]] = field(default_factory=dict)


_SEVERAL = (1, 2, 3, 4, 5)  # requests after the first

FAMILIES: dict[str, ScenarioFamily] = {
    family.name: family
    for family in (
        ScenarioFamily("any", 6, "the default swarm: each feature in some schedules"),
        ScenarioFamily(
            "sessions", 2, "one or two sessions of several turns", {"has sessions": (1,), "sessions": (1, 2)}
        ),
        ScenarioFamily("trees", 2, "draft trees of two or four branches", {"topk": (2, 3)}),
        ScenarioFamily(
            "pages", 2, "pages of several slots, sometimes large ones", {"page_size": (1, 2, 3) * 4 + (32, 33)}
        ),
        ScenarioFamily(
            "tiny pools",
            3,
            "no slot to spare, and fewer rows than requests",
            {
                "requests": _SEVERAL,
                "rows": (0, 1, 1, 2),
                "spare requests in the pool": (1, 1, 2),
                "spare pages in the pool": (0, 0, 1),
                "tight pool": (0, 1),
                "pages of the tight pool": (0, 1, 2),
            },
        ),
        ScenarioFamily(
            "retractions",
            3,
            "requests are retracted, in pools that are short",
            {"requests": _SEVERAL, "rows": (1, 2, 3), "retractions": (1, 2), "spare requests in the pool": (1, 1, 2)},
        ),
        ScenarioFamily(
            "aborts",
            2,
            "clients, timers and operators end or pause requests",
            {"requests": _SEVERAL, "aborts": (1, 2), "timeouts": (0, 1), "pauses": (0, 1)},
        ),
        ScenarioFamily(
            "long answers", 1, "answers of twenty tokens and more", {"max_new_tokens": (19, 20, 21, 22, 23)}
        ),
        ScenarioFamily(
            "ends", 1, "answers that end at EOS, a stop token or a stop string", {"special token": (1, 2, 3)}
        ),
        ScenarioFamily(
            "prefixes", 2, "prompts that begin alike, in a radix cache", {"requests": _SEVERAL, "radix cache": (1,)}
        ),
        ScenarioFamily(
            "chunks",
            2,
            "long prompts in parts, beside decode rows",
            {"requests": _SEVERAL, "prompt length": (6, 8, 10, 11), "chunked prefill": (1,), "mixed chunk": (0, 1)},
        ),
        ScenarioFamily("windows", 1, "attention with a sliding window", {"sliding window": (1,)}),
        ScenarioFamily(
            "adaptive", 1, "a stride that changes", {"topk": (0,), "has features": (0,), "adaptive steps": (1,)}
        ),
        ScenarioFamily("laws", 2, "sampling, penalties, grammars, logprobs", {"has features": (1,), "has laws": (1,)}),
        ScenarioFamily("streams", 1, "several streams and late results", {"streams": (1,), "late results": (0, 1)}),
    )
}
