"""How soon a mutant of an operation is found: by generated cases, or by the sanitizer.

Each mutant is checked in a process of its own, which loads the changed module. Run as a module, this is that child: it
reads a question from standard input and prints JSON.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from itertools import count
from statistics import median
from typing import Any

from msgspec import structs

from specsim import interrupts
from specsim.deadline import NEVER, Deadline
from specsim.isolation import environment, processes
from specsim.selfcheck.mutation import apply_change
from specsim.selfcheck.operator_mutants import MISTAKES, NOT_EXPRESSED, OperatorMutant, changed_source, find

CASES_MAX = 400
SECONDS_MAX = 120.0  # of a child, which a mutant may hang
FAR = 2**30  # a program so far that offsets of int32 do not reach its row
COLUMNS = ("mutant", "what is wrong", "operation", "found by", "cases", "seeds")


@dataclass(frozen=True, slots=True)
class Kill:
    """One seed: the rule, or the kind of flaw, that case number `cases` of it broke; "" when no case did."""

    seed: int
    cases: int
    rule: str


@dataclass(frozen=True, slots=True)
class HuntedMutant:
    """A mutant and how it was found, seed by seed."""

    mutant: OperatorMutant
    kills: tuple[Kill, ...]

    @property
    def found(self) -> int:
        """How many seeds found it."""
        return sum(bool(kill.rule) for kill in self.kills)


def hunt_all(
    mutants: Sequence[OperatorMutant],
    *,
    seeds: int,
    jobs: int,
    cases_max: int = CASES_MAX,
    first_seed: int = 0,
    on_done: Callable[[int, int], object] = lambda _done, _of: None,
    stopped: Callable[[], bool] = lambda: False,
    deadline: Deadline = NEVER,
) -> list[HuntedMutant]:
    """Check mutants, `jobs` processes at a time, on up to `cases_max` cases of each of `seeds` seeds from `first_seed`
    on. After `stopped` none is begun, and at the `deadline` those that run end; those that were not checked by then are
    left out.
    """

    done = count(1)

    def hunt(mutant: OperatorMutant) -> HuntedMutant:
        if stopped() or deadline.is_over:
            return HuntedMutant(mutant, ())
        hunted = hunt_in_child(mutant, seeds=seeds, cases_max=cases_max, first_seed=first_seed, deadline=deadline)
        on_done(next(done), len(mutants))
        return hunted

    with ThreadPoolExecutor(jobs) as pool:
        return [hunted for hunted in pool.map(hunt, mutants) if hunted.kills]


def hunt_in_child(
    mutant: OperatorMutant,
    *,
    seeds: int,
    cases_max: int = CASES_MAX,
    first_seed: int = 0,
    deadline: Deadline = NEVER,
) -> HuntedMutant:
    """Check a mutant in a process of its own; nothing is known of it when the deadline comes before its end."""
    question = {"mutant": mutant.id, "first_seed": first_seed, "seeds": seeds, "cases_max": cases_max}
    try:
        ended = processes.run(
            [sys.executable, "-m", "specsim.selfcheck.operator_hunt"],
            json.dumps(question),
            min(SECONDS_MAX, deadline.left),
            environment=environment.of_ours() | {"TRITON_INTERPRET": "1"},
        )
    except subprocess.TimeoutExpired:
        if deadline.is_over:
            return HuntedMutant(mutant, ())
        return HuntedMutant(mutant, (Kill(0, 0, "does not end"),))
    if ended.returncode and interrupts.asked():
        return HuntedMutant(mutant, ())
    if ended.returncode:
        raise RuntimeError(f"checking mutant {mutant.id} ended with {ended.returncode}:\n{ended.stderr}")
    return HuntedMutant(mutant, tuple(Kill(**kill) for kill in json.loads(ended.stdout)))


def row(hunted: HuntedMutant) -> Sequence[str]:
    """The cells of COLUMNS."""
    mutant, kills = hunted.mutant, hunted.kills
    rules = sorted({kill.rule for kill in kills if kill.rule})
    counts = [kill.cases for kill in kills]
    needed = f"{median(counts):g}/{max(counts)}"
    shown = " ".join(rules) or "not found"
    return (mutant.id, MISTAKES[mutant.mistake], mutant.op, shown, needed, f"{hunted.found}/{len(kills)}")


def to_json(hunted: Sequence[HuntedMutant]) -> dict[str, Any]:
    return {
        "mutants": [
            {
                **structs.asdict(each.mutant),
                "id": each.mutant.id,
                "title": MISTAKES[each.mutant.mistake],
                "kills": [asdict(kill) for kill in each.kills],
            }
            for each in hunted
        ]
    }


def page(hunted: Sequence[HuntedMutant]) -> str:
    """The committed page, Markdown: `docs/operator-mutants.md`."""
    seeds = max(len(each.kills) for each in hunted)
    found = sum(each.found == len(each.kills) for each in hunted)
    lines = [
        "# Mutants of operations",
        "",
        "Mistakes that shipped code has made, each put as one line into specsim's own kernels and reference:",
        f"{found} of {len(hunted)} are found by every seed: by {seeds}, or as many as a minute allows. A kernel is",
        "compared with the reference, on generated cases under two poisons (rules O1 to O6:",
        "[verdict.md](verdict.md)); the reference, changed, is what the kernel is checked",
        "against; a race, a lane without a value and an overflow of an offset are found by the sanitizer.",
        "",
        "`cases`: how many it takes, in the median/at most. Written by `specsim mutants --only ops --write"
        " docs/operator-mutants.md`.",
        "",
        _line(COLUMNS),
        _line(("---",) * len(COLUMNS)),
        *(_line(row(each)) for each in hunted),
        "",
        "Not expressed:",
        "",
        *(f"- {no.mistake:02d}-{no.side}, {MISTAKES[no.mistake]}: {no.why}." for no in NOT_EXPRESSED),
        "",
    ]
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def main() -> int:
    question = json.load(sys.stdin)
    mutant = find(question["mutant"])
    apply_change(mutant.id, mutant.module, lambda source: changed_source(mutant, source))
    import torch

    torch.set_num_threads(1)
    started = time.monotonic()
    kills = [
        _kill(mutant, seed, question["cases_max"])
        for seed in range(question["first_seed"], question["first_seed"] + question["seeds"])
        if seed == question["first_seed"] or time.monotonic() - started < SECONDS_MAX / 2
    ]
    print(json.dumps([asdict(kill) for kill in kills]))
    return 0


def _kill(mutant: OperatorMutant, seed: int, cases_max: int) -> Kill:
    """Run cases of one seed until the mutant shows."""
    # Imported late: the mutant is applied before its module is loaded.
    from specsim.contracts.registry import OPS
    from specsim.tiers.ops.suite import chooser_of

    op = OPS[mutant.op]
    subject = _subject(mutant)
    cases = 0
    for index in range(10 * cases_max):
        if cases == cases_max:
            break
        case = op.generate(chooser_of(seed, subject, index))
        if not subject.accepts(case.sizes):
            continue
        cases += 1
        rule = _shown(mutant, op, subject, case)
        if rule:
            return Kill(seed, cases, rule)
    return Kill(seed, cases, "")


def _subject(mutant: OperatorMutant) -> Any:
    (subject,) = [each for each in _kernels().provider().subjects()[0] if each.op == mutant.op]
    return subject


def _kernels() -> Any:
    from specsim.engines.load import MODEL_PROVIDER

    return importlib.import_module(MODEL_PROVIDER[0])


def _shown(mutant: OperatorMutant, op: Any, subject: Any, case: Any) -> str:
    """What a case shows of a mutant: the rule, or the kind of flaw; "" for nothing."""
    from specsim.tiers.ops.run import run_case
    from specsim.tiers.ops.suite import worst

    if mutant.by != "cases":
        return _flaw(mutant, op, case)
    try:
        outcome = run_case(op, subject, case)
    except Exception as error:  # the changed reference
        return type(error).__name__
    return worst(outcome).id if outcome.violations else ""


def _flaw(mutant: OperatorMutant, op: Any, case: Any) -> str:
    """The kind of flaw that the mutant has to show, if the sanitizer sees it."""
    from specsim.interpreter.sanitizer import sanitize

    function = getattr(_kernels(), mutant.op)
    scalars = {arg.name: case.sizes[arg.name] for arg in op.args if arg.name not in {t.name for t in op.tensor_args}}
    tensors = {**case.clone().tensors, **op.allocate_outputs(case)}
    outputs = [arg.name for arg in op.tensor_args if arg.role.value == "out" and arg.prefill is None]
    expected = op.expected(case)
    far = mutant.by == "int32-overflow"
    report = sanitize(
        function,
        **tensors,
        **scalars,
        outputs=() if far else outputs,
        defined=op.defined(case, expected),
        programs=(lambda programs: [(FAR, *programs[0][1:])] if programs else programs) if far else tuple,
    )
    return mutant.by if mutant.by in report.kinds else ""


if __name__ == "__main__":
    sys.exit(main())
