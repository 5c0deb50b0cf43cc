"""How soon the schedules that `specsim check` draws find a mutant.

For each seed from 0 on, schedules are run until one breaks a rule, in a child process that loads the changed model.
Run as a module, this is that child: it reads a question from standard input and prints JSON.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import takewhile
from statistics import median
from typing import Any

from specsim import interrupts
from specsim.deadline import NEVER, Deadline
from specsim.errors import UsageError, no_such
from specsim.isolation import environment, processes
from specsim.selfcheck.catalogue import Mutant
from specsim.selfcheck.mutation import apply, find
from specsim.verdict import Rule

SECONDS_MAX = 60.0  # CPU seconds of one seed
EXCEPTION = "exception"  # stands where a rule's id does when the model itself raised


class InterruptedHuntError(Exception):
    """A hunt was interrupted from the keyboard, or its time was over."""


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
    def schedules_worst(self) -> int:
        return max(hunt.schedules for hunt in self.hunts)

    @property
    def cpu_seconds_median(self) -> float:
        return median(hunt.cpu_seconds for hunt in self.hunts)

    @property
    def cpu_seconds_worst(self) -> float:
        return max(hunt.cpu_seconds for hunt in self.hunts)


@dataclass(frozen=True, slots=True)
class Smallest:
    """The smallest schedule that shows a mutant: its requests, its events from the first admission on, what broke, and
    the CPU seconds that it took to find and shrink it.
    """

    requests: int
    events: int
    signature: str
    cpu_seconds: float


def hunt_in_child(
    mutant: Mutant,
    *,
    seeds: int,
    schedules_max: int,
    first_seed: int = 0,
    seconds_max: float = SECONDS_MAX,
    without: Collection[str] = (),
    only: Collection[str] = (),
    deadline: Deadline = NEVER,
) -> Hunted:
    """Hunt a mutant in a process of its own, with up to `schedules_max` schedules and `seconds_max` CPU seconds for
    each of `seeds` seeds, from `first_seed` on. The rules `without` are switched off; when `only` is not empty, so are
    all but those. Seeds whose hunt was not over at the `deadline` are left out; InterruptedHuntError when that is all
    of them.
    """
    question = {
        "mutant": mutant.id,
        "seeds": list(range(first_seed, first_seed + seeds)),
        "schedules_max": schedules_max,
        "seconds_max": seconds_max,
        "without": sorted(without),
        "only": sorted(only),
        "ends_at": deadline.to_json(),
    }
    hunts = _ask(mutant, "specsim.selfcheck.hunt", question, deadline)
    if not hunts:
        raise InterruptedHuntError
    return Hunted(mutant, tuple(Hunt(**{**hunt, "signatures": tuple(hunt["signatures"])}) for hunt in hunts))


def joined(parts: Sequence[Hunted]) -> Hunted:
    """One mutant's hunts of several children as one."""
    return Hunted(parts[0].mutant, tuple(hunt for part in parts for hunt in part.hunts))


def smallest_in_child(mutant: Mutant, *, schedules: int) -> Smallest | None:
    """Shrink what `schedules` schedules of seed 0 find of a mutant, in a process of its own; None when they find
    nothing.
    """
    shown = _ask(mutant, "specsim.selfcheck.smallest", {"mutant": mutant.id, "schedules": schedules})
    return Smallest(**shown) if shown else None


def _ask(mutant: Mutant, module: str, question: dict[str, Any], deadline: Deadline = NEVER) -> Any:
    command = [sys.executable, "-m", module]
    try:
        ended = processes.run(command, json.dumps(question), deadline.timeout, environment=environment.of_ours())
    except subprocess.TimeoutExpired:
        raise InterruptedHuntError from None
    if ended.returncode and interrupts.asked():
        raise InterruptedHuntError
    if ended.returncode:
        raise RuntimeError(f"the hunt for mutant {mutant.id} ended with {ended.returncode}:\n{ended.stderr}")
    return json.loads(ended.stdout)


def _rules(without: Collection[str], only: Collection[str]) -> tuple[Rule, ...]:
    """The rules to check: all but some, or some alone."""
    from specsim.engine.rules.table import BY_ID, RULES

    off = set(without) | (set(BY_ID) - set(only) if only else set())
    unknown = sorted((set(without) | set(only)) - set(BY_ID))
    if unknown:
        raise no_such("rule", unknown[0], BY_ID)
    return tuple(rule for rule in RULES if rule.id not in off) if off else RULES


def _hunt(
    seed: int,
    schedules_max: int,
    seconds_max: float,
    rules: tuple[Rule, ...],
    deadline: Deadline = NEVER,
) -> Hunt | None:
    """Run schedules of this process' model until one breaks a rule; None when the deadline comes before."""
    # Imported late: the mutant is applied before the modules of the simulator are loaded.
    from specsim.engine.accounting_target import ModelTarget
    from specsim.engine.rules.checked_engine import checked_engine
    from specsim.tiers.accounting.schedules import chooser_of, run_schedule

    target, engine = ModelTarget(), partial(checked_engine, rules=rules)
    start = time.process_time()
    signatures: tuple[str, ...] = ()
    index = 0
    while index < schedules_max and not signatures and time.process_time() - start < seconds_max:
        if deadline.is_over:
            return None
        try:
            schedule = run_schedule(target, chooser_of(seed, index), engine=engine)
        except Exception as error:  # a changed model, or one whose broken rule is switched off, may raise anything
            signatures = (f"accounting:{EXCEPTION}:{type(error).__name__}",)
        else:
            if schedule is not None:
                signatures = tuple(violation.signature for violation in schedule.run.violations)
        index += 1
    return Hunt(seed, index, time.process_time() - start, signatures)


def main() -> int:
    question = json.load(sys.stdin)
    try:
        apply(find(question["mutant"]))
        rules = _rules(question["without"], question["only"])
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    limits = (question["schedules_max"], question["seconds_max"], rules)
    deadline = Deadline.from_json(question["ends_at"])
    hunts = (_hunt(seed, *limits, deadline) for seed in question["seeds"])
    print(json.dumps([asdict(hunt) for hunt in takewhile(lambda hunt: hunt is not None, hunts) if hunt]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
