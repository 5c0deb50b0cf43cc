"""Every schedule of a small scope of the reference engine: exact counts, broken rules, and what it cost."""

from __future__ import annotations

import resource
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from specsim.choices.exhaustive import CycleError, Explored, Explorer, Scripted
from specsim.engines.reference import SETUPS
from specsim.rules.answers import Progress
from specsim.tiers.scheduler.engine_state import EngineState
from specsim.world.rule import signature_of
from specsim.world.scheduler import unknown_settings
from specsim.world.workload import told

if TYPE_CHECKING:
    from specsim.choices.chooser import Tape
    from specsim.tiers.scheduler.small_scopes import Scope

STATES_MAX = 2_000_000
SHOWN_MAX = 60
"""Iterations of a schedule that has no end."""


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
            "complete": explored.complete,
            "schedules": explored.schedules,
            "states": explored.states,
            "steps": explored.steps,
            "ends": len(explored.ends),
            "broken": {signature: list(tape) for signature, tape in sorted(explored.broken.items())},
            "cpu_seconds": round(self.cpu_seconds, 3),
            "states_per_second": round(self.states_per_second),
            "memory_mib": round(self.memory_mib),
        }


def lacked(scope: Scope) -> list[str]:
    """Features of a scope that the engine does not have."""
    return unknown_settings(scope.setup, SETUPS)


def explore(scope: Scope, explorer: Explorer | None = None) -> ScopeResult:
    """Explore a scope of this process' reference engine. A schedule without end breaks S1 and stops the exploration.
    `explorer`, a new one, is one that others may stop.
    """
    torch.set_num_threads(1)
    started = time.process_time()
    explorer = explorer or Explorer(STATES_MAX)
    try:
        explorer.run(EngineState(scope))
    except CycleError as error:
        explorer.explored.complete = False
        explorer.explored.broken[signature_of(Progress.rule.id, "loop")] = error.tape
    elapsed = time.process_time() - started
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return ScopeResult(scope, explorer.explored, elapsed, peak / (1 << 20 if sys.platform == "darwin" else 1 << 10))


def log_of(scope: Scope, tape: Tape) -> list[str]:
    """One schedule of a scope for a reader: what users do, what is launched, and which rules it breaks."""
    state, script = EngineState(scope), Scripted(tape)
    while not state.is_over and (len(script.values) < len(tape) or state.iteration < SHOWN_MAX):
        state.step(script)
    users = [f"{who}: {what}" for who, what in told(state.users.workload.plain())]
    launches = [launch.line for launch in state.scheduler.seen.launches]
    broken = [f"{v.part} {v.who}: expected {v.expected}, seen {v.actual}" for v in state.violations]
    return [*users, *launches, *broken]
