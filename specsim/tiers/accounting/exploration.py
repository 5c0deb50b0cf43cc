"""Every schedule of a named scope of the model: exact counts, broken rules, and what it cost."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from typing import Any

from specsim.choices.chooser import Tape, replayed
from specsim.choices.exhaustive import CycleError, Explored, Explorer, Method, NotIndependentError
from specsim.engine.event_log import LoggedEvent
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.small_scopes import Scope
from specsim.engine.snapshot import EngineState
from specsim.errors import UsageError

STATES_MAX = 2_000_000


@dataclass(frozen=True, slots=True)
class ScopeResult:
    """A scope that was explored: what was seen, CPU seconds, and the most memory that the process has had, in MiB."""

    scope: Scope
    explored: Explored
    cpu_seconds: float
    memory_mib: float

    @property
    def states_per_second(self) -> float:
        return self.explored.states / self.cpu_seconds

    def to_json(self) -> dict[str, Any]:
        explored = self.explored
        return {
            "scope": self.scope.name,
            "method": explored.method,
            "complete": explored.complete,
            "schedules": explored.schedules,
            "states": explored.states if explored.method != "stateless" else None,
            "steps": explored.steps,
            "ends": len(explored.ends),
            "broken": {signature: list(tape) for signature, tape in sorted(explored.broken.items())},
            "cpu_seconds": round(self.cpu_seconds, 3),
            "states_per_second": round(self.states_per_second),
            "memory_mib": round(self.memory_mib),
        }


def first_state(scope: Scope) -> EngineState:
    """The model before its first step."""
    return EngineState(checked_engine(scope.scenario, replayed(())), scope.delays)


def explore(
    scope: Scope, method: Method = "visited", states_max: int = STATES_MAX, explorer: Explorer | None = None
) -> ScopeResult:
    """Explore a scope of this process' model. A schedule without end breaks S1 and stops the exploration. UsageError
    when the scope cannot be reduced. `explorer`, new and of this method, is one that others may stop.
    """
    started = time.process_time()
    explorer = explorer or Explorer(method, states_max)
    try:
        explorer.run(first_state(scope))
    except CycleError as error:
        explorer.explored.complete = False
        explorer.explored.broken["accounting:S1:loop"] = error.tape
    except NotIndependentError as error:
        raise UsageError(
            f"scope {scope.name} cannot be reduced: {error}", "explore it with --strategy visited"
        ) from None
    explored = explorer.explored
    elapsed = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return ScopeResult(scope, explored, elapsed, peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))


def log_of(scope: Scope, tape: Tape) -> tuple[LoggedEvent, ...]:
    """The events of one schedule of a scope."""
    return checked_engine(scope.scenario, replayed(tape)).run().log
