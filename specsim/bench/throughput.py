"""How fast the simulator is, in one process, with every rule and the content check on. Times are of the CPU.

The fixed workload: 8 requests with prompts of 8 to 48 tokens and 8 to 24 outputs, 3 steps, topk 1 or 2 with 4 or 8
draft tokens, pages of 1 or 4 tokens, and in a third of the schedules one abort and one retraction on demand. A point of
the curve: so many requests with so many tokens each that arrive at once; when their prefills are done, all decode. An
event is one line of the event log: a step of the host or the device, of all requests of its batch.

Run as a module, this is a child process: it reads a question from standard input and prints JSON. A process has either
the compiled simulator or the one in Python, and imports nothing but the simulator, or what explores a scope.
"""

from __future__ import annotations

import json
import resource
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from specsim.choices.chooser import Chooser, RecordingChooser, between, seeded, stream
from specsim.engine.config import EngineConfig
from specsim.engine.model import FIRST_ORDINARY_TOKEN
from specsim.engine.request import Turn
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.workload import Scenario, Workload

REQUESTS = 8
SCHEDULES = 200
ROUNDS = 5
SHAPES: tuple[dict[str, int], ...] = tuple(
    {"topk": topk, "num_draft_tokens": ndt, "page_size": page_size}
    for topk, ndt, page_size in ((1, 4, 1), (1, 4, 4), (2, 8, 1))
)
CURVE: tuple[tuple[int, int], ...] = ((8, 100), (64, 100), (512, 100), (8, 1000), (64, 1000), (8, 10_000))
CURVE_FULL = (*CURVE, (512, 1000), (64, 10_000), (512, 10_000))


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


def scenario_of(requests: int, tokens: int) -> Scenario:
    """A point of the curve: chains of 4 draft tokens, pages of 1 token."""
    outputs = max(5, tokens // 100)
    turns = tuple(
        Turn(
            f"r{number}",
            tuple(range(FIRST_ORDINARY_TOKEN + number, FIRST_ORDINARY_TOKEN + number + tokens - outputs)),
            outputs,
        )
        for number in range(requests)
    )
    config = EngineConfig(rows=requests, context_len=tokens)
    slots = requests * config.request_slots_max
    return Scenario(EngineConfig(rows=requests, context_len=tokens, pool_slots=slots), Workload(turns, 0, 0))


def schedules_of(shape: dict[str, int], rounds: int, schedules: int = SCHEDULES) -> dict[str, float]:
    """Schedules and events a second of the fixed workload, the median of `rounds` rounds."""
    measured = [_round(shape, number, schedules) for number in range(rounds)]
    return {
        "schedules/s": statistics.median(each for each, _events in measured),
        "events/s": statistics.median(each for _schedules, each in measured),
    }


def _round(shape: dict[str, int], number: int, schedules: int) -> tuple[float, float]:
    """Schedules and events a CPU second of so many schedules."""
    events = 0
    started = time.process_time()
    for index in range(schedules):
        chooser: RecordingChooser = seeded(number, "bench sim", index)
        events += len(checked_engine(draw_scenario(chooser, shape, index % 3 == 0), chooser).run().log)
    elapsed = time.process_time() - started
    return schedules / elapsed, events / elapsed


def point_of(requests: int, tokens: int) -> dict[str, float]:
    """One schedule of a point of the curve: events and output tokens a second, and the peak of memory."""
    scenario = scenario_of(requests, tokens)
    drawn = stream(0, "bench curve", requests, tokens)
    chooser = RecordingChooser(
        lambda bound, label: 0 if label in ("arrives later", "admit later") else drawn(bound, label)
    )
    started = time.process_time()
    run = checked_engine(scenario, chooser).run()
    elapsed = time.process_time() - started
    if run.violations:
        raise RuntimeError(f"{requests} requests of {tokens} tokens: {run.violations[0].signature}")
    said = requests * scenario.workload.turns[0].max_new_tokens
    return {"events/s": len(run.log) / elapsed, "tokens/s": said / elapsed, "MiB": _peak_mib()}


def states_of(scope: str, states: int) -> dict[str, float]:
    """Distinct states a second of a scope, of which at most `states` are seen, and the peak of memory."""
    from specsim.choices.exhaustive import Explorer
    from specsim.tiers.scheduler.exploration import explore
    from specsim.tiers.scheduler.small_scopes import scope_named

    explored = explore(scope_named(scope), Explorer(states))
    return {"states/s": explored.states_per_second, "MiB": _peak_mib()}


def _peak_mib() -> float:
    """The most memory that this process has had. Linux counts in ru_maxrss what its parent had when it forked."""
    status = Path("/proc/self/status")
    if status.exists():
        (peak,) = [line.split()[1] for line in status.read_text().splitlines() if line.startswith("VmHWM:")]
        return int(peak) / (1 << 10)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1 << 20)  # bytes on macOS


MEASURED: dict[str, Callable[..., dict[str, float]]] = {
    "schedules": schedules_of,
    "point": point_of,
    "states": states_of,
}


def main() -> int:
    question: dict[str, Any] = json.load(sys.stdin)
    print(json.dumps(MEASURED[question["measure"]](*question["arguments"])))
    return 0


if __name__ == "__main__":
    sys.exit(main())
