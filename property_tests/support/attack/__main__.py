"""The command line of the adversary: a table of what was attacked and what failed; exit code 1 when anything did."""

from __future__ import annotations

import argparse
import math
import os
import sys
import time
from collections.abc import Callable, Sequence

from property_tests.support.attack import runner
from property_tests.support.attack.campaign import KINDS, PATIENCE, Campaign, attacked, campaign, load
from property_tests.support.attack.oracle import ASPECTS

TOLD_SECONDS = 30.0


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m property_tests.support.attack", description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", action="append", choices=sorted(KINDS), help="only this kind; may be repeated")
    parser.add_argument("--inputs", type=int, help="so many inputs, however long they take")
    parser.add_argument("--minutes", type=float, default=5.0, help="no input begins after them (5)")
    parser.add_argument("--index", type=int, help="this one input of --kind alone, as a user runs it, and show all")
    parser.add_argument("--fork", action="store_true", help="with --index: in a fork, as most inputs are run")
    parser.add_argument("--keep", default="", metavar="FOLDER", help="with --index: leave the input in this folder")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parsed = parser.parse_args(arguments)
    kinds = parsed.kind or list(KINDS)
    if parsed.index is not None:
        if len(kinds) != 1:
            parser.error("--index needs one --kind")
        return _one(parsed.seed, kinds[0], parsed.index, parsed.fork, parsed.keep)
    until = time.monotonic() + 60 * parsed.minutes if parsed.inputs is None else math.inf
    inputs = sys.maxsize if parsed.inputs is None else parsed.inputs
    ran = campaign(parsed.seed, kinds, inputs, until, parsed.cores, _telling())
    print(report(ran, parsed.seed))
    return 1 if any(ran.confirmed.values()) else 0


def _telling() -> Callable[[Campaign], None]:
    told = time.monotonic()

    def tell(ran: Campaign) -> None:
        nonlocal told
        if time.monotonic() - told > TOLD_SECONDS:
            told = time.monotonic()
            print(f"{ran.inputs.total()} inputs, {len(ran.failed)} classes of failures", file=sys.stderr, flush=True)

    return tell


def _one(seed: int, kind: str, index: int, fork: bool, keep: str) -> int:
    runner.adopt_orphans()
    if fork:
        load()
    outcome = attacked(seed, kind, index, as_a_user=not fork, patience=PATIENCE, keep=keep)
    ended = outcome.ended
    print(f"{outcome.attack.what}\nspecsim {' '.join(map(repr, outcome.attack.arguments))}"[:4000])
    print(f"exit code {ended.code} after {ended.seconds:.1f} s")
    print(f"-- stdout\n{_safe(ended.stdout)}\n-- stderr\n{_safe(ended.stderr)}")
    for failure in outcome.failures:
        print(f"-- {failure.aspect}: {_safe(failure.which)}\n{_safe(failure.details)}")
    print(f"{len(outcome.failures)} failures")
    return 1 if outcome.failures else 0


def report(ran: Campaign, seed: int) -> str:
    """The table, and a line with the command for each class of failures."""
    rows = [["kind", "inputs", "seconds", *ASPECTS]]
    totals = dict.fromkeys(ASPECTS, 0)
    for kind, inputs in ran.inputs.items():
        row = [kind, str(inputs), f"{ran.seconds[kind]:.0f}"]
        for aspect in ASPECTS:
            number = sum(
                outcome.kind == kind
                for failure, outcomes in ran.failed.items()
                if failure[0] == aspect and ran.confirmed[failure]
                for outcome in outcomes
            )
            totals[aspect] += number
            row.append(str(number))
        rows.append(row)
    rows.append(["all", str(ran.inputs.total()), f"{sum(ran.seconds.values()):.0f}", *map(str, totals.values())])
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    codes = ", ".join(f"{code}: {number}" for code, number in sorted(ran.codes.items(), key=str))
    lines.append(f"exit codes  {codes}")
    for confirmed, title in ((True, "failures"), (False, "seen in a fork, not as a user runs it: not counted")):
        chosen = sorted(failure for failure, found in ran.confirmed.items() if found is confirmed)
        if chosen:
            lines += ["", title]
        for aspect, which in chosen:
            outcomes = ran.failed[aspect, which]
            first = min(outcomes, key=lambda outcome: (outcome.kind, outcome.index))
            command = f"python -m property_tests.support.attack --kind {first.kind} --index {first.index} --seed {seed}"
            lines += [
                f"{aspect} ({len(outcomes)}): {_safe(which)}",
                f"    {_safe(first.attack.what)[:160]}",
                f"    {command}",
            ]
    lines.append(f"\n{sum(totals.values())}")
    return "\n".join(lines)


def _safe(text: str) -> str:
    return "".join(
        character if character.isprintable() or character in "\n\t" else repr(character)[1:-1] for character in text
    )


if __name__ == "__main__":
    sys.exit(main())
