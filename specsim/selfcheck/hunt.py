"""How soon the schedules of the reference engine that `specsim check` draws find a mutant.

For each seed from 0 on, schedules of its setups, one after the other, are run until one breaks a rule, in a child
process that loads the changed engine. Run as a module, this is that child: it reads a question from standard input and
prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict, dataclass
from itertools import takewhile
from statistics import median

from specsim import interrupts
from specsim.deadline import NEVER, Deadline
from specsim.errors import UsageError
from specsim.isolation import environment, processes
from specsim.selfcheck.catalogue import Mutant
from specsim.selfcheck.mutation import apply, find

HANG_SECONDS = 20.0  # of a schedule


class InterruptedHuntError(Exception):
    """A hunt was interrupted from the keyboard, or its time was over."""


@dataclass(frozen=True, slots=True)
class Hunt:
    """One seed. `schedules` were run, and the last broke `signatures`; none did when that is empty."""

    seed: int
    schedules: int
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
    def schedules_worst(self) -> int:
        return max(hunt.schedules for hunt in self.hunts)


def hunt_in_child(
    mutant: Mutant | None, *, seeds: int, schedules_max: int, first_seed: int = 0, deadline: Deadline = NEVER
) -> tuple[Hunt, ...]:
    """Hunt a mutant in a process of its own, with up to `schedules_max` schedules of each of `seeds` seeds, from
    `first_seed` on; None is the engine as it is. Seeds whose hunt was not over at the `deadline` are left out;
    InterruptedHuntError when that is all of them.
    """
    name = mutant.id if mutant is not None else ""
    question = {
        "mutant": name,
        "seeds": list(range(first_seed, first_seed + seeds)),
        "schedules_max": schedules_max,
        "ends_at": deadline.to_json(),
    }
    command = [sys.executable, "-m", "specsim.selfcheck.hunt"]
    try:
        ended = processes.run(command, json.dumps(question), deadline.timeout, environment=environment.of_ours())
    except subprocess.TimeoutExpired:
        raise InterruptedHuntError from None
    if ended.returncode and interrupts.asked():
        raise InterruptedHuntError
    if ended.returncode:
        raise RuntimeError(f"the hunt for mutant {name} ended with {ended.returncode}:\n{ended.stderr}")
    hunts = json.loads(ended.stdout)
    if not hunts:
        raise InterruptedHuntError
    return tuple(Hunt(**{**hunt, "signatures": tuple(hunt["signatures"])}) for hunt in hunts)


def hunt(seed: int, schedules_max: int, deadline: Deadline = NEVER) -> Hunt | None:
    """Run schedules of this process' reference engine until one breaks a rule; None when the deadline comes before."""
    # Imported late: the mutant is applied before the engine is loaded.
    from specsim.engines.reference import engine
    from specsim.rules.table import CHECKS
    from specsim.tiers.scheduler.answers import violations_of
    from specsim.world.forks import Starters, wanted

    signatures: tuple[str, ...] = ()
    index = 0
    starters = Starters(engine, CHECKS)
    try:
        while index < schedules_max and not signatures:
            if deadline.is_over:
                return None
            outcome = starters.run(wanted(engine.setups, seed, index, HANG_SECONDS))
            signatures = tuple(violation.signature for violation in violations_of(outcome))
            index += 1
    finally:
        starters.close()
    return Hunt(seed, index, signatures)


def main() -> int:
    question = json.load(sys.stdin)
    try:
        if question["mutant"]:
            apply(find(question["mutant"]))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    deadline = Deadline.from_json(question["ends_at"])
    hunts = (hunt(seed, question["schedules_max"], deadline) for seed in question["seeds"])
    print(json.dumps([asdict(each) for each in takewhile(lambda each: each is not None, hunts) if each]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
