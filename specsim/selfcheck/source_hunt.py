"""How many defects of one statement in a target's own source its schedules find: its mutation score.

The first schedules of a seed are run on the target as it is, which says what each runs of it and what it shows. Each
mutant (`specsim.selfcheck.source_mutants`) then runs those of them that run its statement, until one shows what the
target as it is shows in none of all and what its triage list does not have. The others would run as they did: a
schedule is a function of its seed, its number and what is run. Where none shows such, a mutant is found as a gate finds
it: what is known shows in more of these schedules than it does of the target as it is, and than chance explains. Run as
a module, this is the process that runs schedules of one target or mutant: it reads a question from standard input and
prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import msgspec

from specsim import interrupts
from specsim.deadline import NEVER, SPENT, Deadline, TimeSpent
from specsim.errors import UsageError
from specsim.findings.chance import is_rise
from specsim.isolation import environment, processes
from specsim.selfcheck.source_mutants import KINDS, SourceMutant

if TYPE_CHECKING:
    from specsim.world.forks import Outcome, WantedSchedule

HANG_SECONDS = 10.0  # of a schedule
SECONDS_MAX = 900.0  # of a mutant
QUIET = 10
"""A mutant is quiet where none of so many first schedules raises, hangs or ends its process, and its setups start."""
HASH_SEED = "0"
_LOUD = ("X1", "X2", "X3")
_HANGS = "X2"
_START = "start"


class ScoredMutant(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A mutant, and what became of it. `schedule` is the number of the first that showed it, from 1, by `signature`; 0
    where none did. `ended` says that a time limit ended it, and that nothing else showed it.
    """

    id: str
    file: str
    line: int
    kind: str
    schedule: int
    signature: str
    quiet: bool
    ended: bool = False

    @property
    def is_found(self) -> bool:
        return self.schedule > 0 and not self.ended


class Together(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Statements, by file their first lines, and the schedules that run them, from 0: the bits of a number, in hex."""

    schedules: str
    ran: dict[str, list[int]]


class Reached(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the schedules of a target as it is run, and what is no news of it: the signatures of its triage list and
    those that they show, each with the schedules that show it, as in Together.
    """

    blocks: list[Together]
    known: dict[str, str]

    @property
    def ran(self) -> dict[str, list[int]]:
        """By file the first lines of all statements that are run, sorted."""
        found: dict[str, list[int]] = {}
        for block in self.blocks:
            for file, lines in block.ran.items():
                found.setdefault(file, []).extend(lines)
        return {file: sorted(found[file]) for file in sorted(found)}

    def schedules_of(self, mutant: SourceMutant) -> list[int]:
        """Those that run its statement."""
        for block in self.blocks:
            if mutant.statement in block.ran.get(mutant.file, ()):
                return _indices(block.schedules)
        return []

    def more_often(self, indices: Sequence[int], shown: Sequence[Collection[str]]) -> tuple[int, str]:
        """Of what is known the first in which these schedules show it more often than of the target as it is, and than
        chance explains: the index of the first that shows it and did not, and the signature. (-1, "") for none.
        """
        signatures = sorted({signature for each in shown for signature in each})
        for signature in signatures:
            here = [index for index, each in zip(indices, shown, strict=True) if signature in each]
            there = set(_indices(self.known[signature])).intersection(indices)
            if is_rise(len(here), len(indices), len(there), len(indices), len(signatures)):
                return next(index for index in here if index not in there), signature
        return -1, ""


def _indices(schedules: str) -> list[int]:
    mask = int(schedules, 16)
    return [index for index in range(mask.bit_length()) if mask >> index & 1]


def reached(target: str, seed: int, schedules: int, jobs: int, triaged: Collection[str], deadline: Deadline) -> Reached:
    """Run the first schedules of a seed on a target as it is. UsageError where it is not run.

    The first one runs alone: it compiles the target's modules into the cache, which each process would else do.
    """

    def answered(part: Sequence[int]) -> tuple[Sequence[int], dict[str, Any]]:
        answer = _asked(target, "", seed, part, (), deadline.timeout)
        if answer is None:
            raise KeyboardInterrupt
        if answer["why"]:
            raise UsageError(f"the scheduler of {target} is not run: {answer['why']}", "name another target")
        return part, answer

    parts = [part for job in range(jobs) if (part := range(1 + job, schedules, jobs))]
    try:
        answers = [answered((0,))]
        with ThreadPoolExecutor(jobs) as pool:
            answers += pool.map(answered, parts)
    except subprocess.TimeoutExpired:
        raise TimeSpent(SPENT) from None
    masks: dict[tuple[str, int], int] = {}
    known = dict.fromkeys(triaged, 0)
    for run, answer in answers:
        for index, shown in zip(run, answer["shown"], strict=True):
            for signature in shown:
                known[signature] = known.get(signature, 0) | 1 << index
        for mask, ran in answer["ran"].items():
            bits = int(mask, 16)
            for file, lines in ran.items():
                for line in lines:
                    masks[file, line] = masks.get((file, line), 0) | bits
    blocks = [Together(mask, ran) for mask, ran in _by_mask(masks).items()]
    return Reached(blocks, {signature: f"{known[signature]:x}" for signature in sorted(known)})


def _by_mask(masks: Mapping[tuple[str, int], int]) -> dict[str, dict[str, list[int]]]:
    """Of statements by file and line, those of each set of schedules."""
    found: dict[str, dict[str, list[int]]] = {}
    for (file, line), mask in sorted(masks.items()):
        found.setdefault(f"{mask:x}", {}).setdefault(file, []).append(line)
    return found


def hunt_all(
    target: str,
    mutants: Sequence[SourceMutant],
    seen: Reached,
    *,
    seed: int,
    jobs: int,
    on_done: Callable[[ScoredMutant], object],
    stopped: Callable[[], bool] = lambda: False,
    deadline: Deadline = NEVER,
) -> None:
    """Hunt mutants, `jobs` at a time, and tell each `on_done`. After `stopped` and the `deadline` none is begun, and
    those that run are left out.
    """

    def hunt(mutant: SourceMutant) -> None:
        if stopped() or deadline.is_over:
            return
        hunted = _hunted(target, mutant, seen, seed, deadline)
        if hunted is not None:
            on_done(hunted)

    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(hunt, mutants):
            pass


def _hunted(target: str, mutant: SourceMutant, seen: Reached, seed: int, deadline: Deadline) -> ScoredMutant | None:
    timeout = min(SECONDS_MAX, deadline.left)
    indices = seen.schedules_of(mutant)
    try:
        answer = _asked(target, mutant.id, seed, indices, list(seen.known), timeout)
    except subprocess.TimeoutExpired:
        return None if deadline.is_over else ScoredMutant(*mutant[:4], 0, "", False, ended=True)
    if answer is None:
        return None
    if answer["why"]:
        return ScoredMutant(*mutant[:4], 1, _START, False)
    first, signature, loud = 0, "", False
    for index, shown in zip(indices, answer["shown"], strict=False):  # it ends where one is found
        number, new = index + 1, set(shown) - seen.known.keys()
        if new and not first:
            first, signature = number, min(new, key=lambda each: (_rule(each) == _HANGS, each))
        loud = loud or (number <= QUIET and any(_rule(each) in (*_LOUD, _START) for each in new))
    if not first:
        index, signature = seen.more_often(indices, answer["shown"])
        first = index + 1
    return ScoredMutant(*mutant[:4], first, signature, not loud, ended=_rule(signature) == _HANGS)


def _rule(signature: str) -> str:
    return signature.split(":")[1] if ":" in signature else signature


def _asked(
    target: str, mutant: str, seed: int, indices: Sequence[int], known: Sequence[str], timeout: float | None
) -> dict[str, Any] | None:
    """What the process says: why the target is not run, else what each schedule shows and, of a target as it is, which
    statements which schedules run. None when it was interrupted.
    """
    question = {
        "target": target,
        "mutant": mutant,
        "seed": seed,
        "indices": list(indices),
        "known": list(known),
    }
    ended = processes.run(
        [sys.executable, "-m", __name__],
        json.dumps(question),
        timeout,
        environment=environment.of_target(hash_seed=HASH_SEED),
    )
    if interrupts.asked():
        return None
    if ended.returncode:
        return {"why": f"its process ended with {ended.returncode}: {ended.stderr[-400:]}"}
    answer: dict[str, Any] = json.loads(ended.stdout)
    return answer


# The score


def totals(hunted: Sequence[ScoredMutant], equivalent: Collection[str] = ()) -> Iterator[tuple[str, ...]]:
    """By kind and of all: mutants, found, ended by a limit, left, equivalent, and of quiet ones how many are found. An
    equivalent one that is found is none; no share counts the others.
    """
    for kind in (*KINDS, ""):
        of = [each for each in hunted if each.kind == kind or not kind]
        if not of:
            continue
        counted = [each for each in of if each.is_found or each.id not in equivalent]
        quiet = [each for each in counted if each.quiet]
        counts = Counter("found" if each.is_found else "ended" if each.ended else "left" for each in counted)
        yield (
            kind or "all",
            str(len(of)),
            _share(counts["found"], len(counted)),
            str(counts["ended"]),
            str(counts["left"]),
            str(len(of) - len(counted)),
            _share(sum(each.is_found for each in quiet), len(quiet)),
        )


COLUMNS = ("mistake", "mutants", "found", "ended by a limit", "not found", "equivalent", "of quiet ones found")


def _share(part: int, whole: int) -> str:
    return f"{part} of {whole}, {100 * part / whole:.1f} %" if whole else "none"


# The process that runs schedules


def main() -> int:
    question = json.load(sys.stdin)
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what a target prints is no answer
    from specsim.engines.load import load_scheduler
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.verdict import NotRun

    try:
        scheduler = load_scheduler(parse_target(question["target"]), open_cache(), question["mutant"])
    except UsageError as error:
        scheduler = NotRun("scheduler", error.problem)
    if isinstance(scheduler, NotRun):
        answers.write(json.dumps({"why": scheduler.why}))
        answers.close()
        return 0
    shown, ran = _run(scheduler, question)
    answers.write(json.dumps({"why": "", "shown": shown, "ran": _by_mask(ran)}))
    answers.close()
    return 0


def _run(scheduler: Any, question: Mapping[str, Any]) -> tuple[list[list[str]], dict[tuple[str, int], int]]:
    """What each schedule shows: of a mutant until one shows what is not known and enough of the first ones were run.
    And of a target as it is, by file and line of each statement, the schedules that run it, as bits.
    """
    from specsim.rules.table import CHECKS
    from specsim.world.forks import Ran, Starters, wanted

    known = set(question["known"])
    shown: list[list[str]] = []
    ran: dict[tuple[str, int], int] = {}
    is_found = False
    starters = Starters(scheduler, CHECKS)
    for index in question["indices"]:
        schedule = wanted(scheduler.setups, question["seed"], index, HANG_SECONDS)
        outcome = starters.run(schedule)
        signatures = signatures_of(outcome, schedule)
        shown.append(signatures)
        if not question["mutant"]:
            for file, lines in outcome.record.ran_lines.items() if isinstance(outcome, Ran) else ():
                for line in lines:
                    ran[file, line] = ran.get((file, line), 0) | 1 << index
            continue
        new = set(signatures) - known
        is_found = is_found or bool(new)
        is_loud = any(_rule(each) in (*_LOUD, _START) for each in new)
        if is_found and (is_loud or index + 1 >= QUIET):
            break
    starters.close()
    return shown, ran


def signatures_of(outcome: Outcome, schedule: WantedSchedule) -> list[str]:
    """What a schedule shows. That a setup does not start is one signature, whichever schedule of it shows it."""
    from specsim.tiers.scheduler.answers import violations_of
    from specsim.world.forks import NotStarted

    found = [violation.signature for violation in violations_of(outcome)]
    return [*found, f"scheduler:{_START}:{schedule.tape[0]}"] if isinstance(outcome, NotStarted) else found


if __name__ == "__main__":
    sys.exit(main())
