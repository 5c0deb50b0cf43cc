"""How soon a strategy, the default swarm if no other is named, finds a mutant.

For each seed from 0 on, schedules are run until one breaks a rule, in a child process that loads the changed model.
Run as a module, this is that child: it takes MUTANT SEEDS SCHEDULES_MAX STRATEGY and prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from statistics import median

from specsim.errors import UsageError
from specsim.mutants.catalogue import Mutant
from specsim.mutants.load import apply, find


@dataclass(frozen=True, slots=True)
class Hunt:
    """One seed. `schedules` were run in `cpu_seconds`, and the last broke `signatures`; none did when that is empty."""

    seed: int
    schedules: int
    cpu_seconds: float
    signatures: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Hunted:
    """A mutant and how it was found, seed by seed."""

    mutant: Mutant
    hunts: tuple[Hunt, ...]

    @property
    def found(self) -> int:
        """How many seeds found it."""
        return sum(bool(hunt.signatures) for hunt in self.hunts)

    @property
    def rules(self) -> list[str]:
        """The rules that found it first, by id."""
        return sorted({signature.split(":")[1] for hunt in self.hunts for signature in hunt.signatures})

    @property
    def schedules_median(self) -> float:
        return median(hunt.schedules for hunt in self.hunts)

    @property
    def cpu_seconds_median(self) -> float:
        return median(hunt.cpu_seconds for hunt in self.hunts)


def hunt_in_child(mutant: Mutant, *, seeds: int, schedules_max: int, strategy: str = "swarm") -> Hunted:
    """Hunt a mutant in a process of its own, with up to `schedules_max` schedules for each of `seeds` seeds."""
    ended = subprocess.run(
        [sys.executable, "-m", "specsim.mutants.hunt", mutant.id, str(seeds), str(schedules_max), strategy],
        check=False,
        capture_output=True,
        text=True,
    )
    if ended.returncode:
        raise RuntimeError(f"the hunt for mutant {mutant.id} ended with {ended.returncode}:\n{ended.stderr}")
    hunts = [Hunt(**{**hunt, "signatures": tuple(hunt["signatures"])}) for hunt in json.loads(ended.stdout)]
    return Hunted(mutant, tuple(hunts))


def _hunt(seed: int, schedules_max: int, strategy_name: str) -> Hunt:
    """Run schedules of this process' model until one breaks a rule."""
    # Imported late: the mutant is applied before the modules of the simulator are loaded.
    from specsim.check.suite import run_schedule, strategy_of
    from specsim.sim.target import ModelTarget

    target = ModelTarget()
    strategy = strategy_of(strategy_name, seed)
    start = time.process_time()
    signatures: tuple[str, ...] = ()
    index = 0
    while index < schedules_max and not signatures:
        schedule = run_schedule(target, strategy.chooser(index))
        index += 1
        if schedule is not None:
            signatures = tuple(violation.signature for violation in schedule.run.violations)
            schedule.teach(strategy)
    return Hunt(seed, index, time.process_time() - start, signatures)


def main(arguments: list[str]) -> int:
    mutant_id, seeds, schedules_max, strategy = arguments
    try:
        apply(find(mutant_id))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    print(json.dumps([asdict(_hunt(seed, int(schedules_max), strategy)) for seed in range(int(seeds))]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
