"""The simulator: schedules and events a second in one process, every rule and the content check on.

The workload is fixed: 8 requests with prompts of 8 to 48 tokens and 8 to 24 outputs, 3 steps, topk 1 or 2 with 4 or 8
draft tokens, pages of 1 or 4 tokens, and in a third of the schedules one abort and one retraction on demand. An event
is one line of the event log: a step of the host or the device. Times are of the CPU.
"""

from __future__ import annotations

import statistics
import time
from typing import Any

from specsim.explore.chooser import Chooser, RecordingChooser, between, seeded
from specsim.sim.config import EngineConfig
from specsim.sim.engine import Engine
from specsim.sim.model import FIRST_ORDINARY_TOKEN
from specsim.sim.request import Turn
from specsim.sim.workload import Scenario, Workload

NAME = "sim"
REQUESTS = 8
SCHEDULES = 200
ROUNDS = 5
SHAPES: tuple[dict[str, int], ...] = tuple(
    {"topk": topk, "num_draft_tokens": ndt, "page_size": page_size}
    for topk, ndt, page_size in ((1, 4, 1), (1, 4, 4), (2, 8, 1))
)


def draw_scenario(chooser: Chooser, shape: dict[str, int], with_faults: bool) -> Scenario:
    """One scenario of the fixed workload."""
    turns = tuple(
        Turn(
            f"r{number}",
            tuple(range(FIRST_ORDINARY_TOKEN + 1000 * number, FIRST_ORDINARY_TOKEN + 1000 * number + prompt_len)),
            max_new_tokens=between(chooser, 8, 24, "outputs"),
        )
        for number in range(REQUESTS)
        for prompt_len in [between(chooser, 8, 48, "prompt length")]
    )
    config = EngineConfig(
        num_steps=3,
        topk=shape["topk"],
        num_draft_tokens=shape["num_draft_tokens"],
        page_size=shape["page_size"],
        rows=REQUESTS,
        context_len=72,
        pool_slots=1024,
    )
    return Scenario(config, Workload(turns, int(with_faults), int(with_faults)))


def run(_device: str, rounds: int | None) -> list[dict[str, Any]]:
    """Time the fixed workload for each shape. Returns the `benchmarks` entries of the result format."""
    results = []
    for shape in SHAPES:
        measured = [_round(shape, number) for number in range(rounds or ROUNDS)]
        schedules = statistics.median(schedules for schedules, _events in measured)
        events = statistics.median(events for _schedules, events in measured)
        peers: list[dict[str, Any]] = [
            {"name": name, "timing": "cpu", "median": median, "ratio": 1.0, "not_run": None}
            for name, median in (("schedules a second", schedules), ("events a second", events))
        ]
        full_shape: dict[str, int] = {"requests": REQUESTS, **shape}
        results.append({"name": NAME, "unit": "1/s", "shape": full_shape, "peers": peers})
    return results


def _round(shape: dict[str, int], number: int) -> tuple[float, float]:
    """Schedules and events a CPU second of SCHEDULES schedules."""
    events = 0
    started = time.process_time()
    for index in range(SCHEDULES):
        chooser: RecordingChooser = seeded(number, "bench sim", index)
        events += len(Engine(draw_scenario(chooser, shape, index % 3 == 0), chooser).run().log)
    elapsed = time.process_time() - started
    return SCHEDULES / elapsed, events / elapsed
