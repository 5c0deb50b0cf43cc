"""The command that works on the model: its mutants."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specsim.choices.seeds import parse_seed
from specsim.commands.invocation import output_file
from specsim.commands.options import (
    SECONDS_MAX,
    SeedOption,
    one_of,
)
from specsim.deadline import Deadline
from specsim.errors import UsageError
from specsim.files import save_json, save_text
from specsim.isolation.limits import allowed_jobs
from specsim.selfcheck.mutant_table import SCHEDULES_MAX, SCHEDULES_OF_SOURCE, SEEDS
from specsim.verdict import FINDING, INTERRUPTED, NOT_CHECKED, PASS


def mutants(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Mutants; all when left out.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from --seed on.")] = SEEDS,
    schedules: Annotated[
        int | None,
        typer.Option(
            min=1, help=f"Schedules of a seed, at most. Default: {SCHEDULES_MAX}; {SCHEDULES_OF_SOURCE} of --of."
        ),
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time. Default: one a core.")] = None,
    json_file: Annotated[Path | None, output_file("--json", help="Write the table to this file.")] = None,
    write: Annotated[Path | None, output_file("--write", help="Write the page of all mutants to this file.")] = None,
    tier: Annotated[
        str | None, typer.Option("--only", metavar="TIER", help="ops: mistakes in specsim's own kernels and reference.")
    ] = None,
    budget_seconds: Annotated[
        float | None,
        typer.Option("--budget-seconds", min=1.0, max=SECONDS_MAX, help="End after them, with what was hunted."),
    ] = None,
    of: Annotated[
        str | None,
        typer.Option(
            "--of",
            metavar="TARGET",
            help="Plant mistakes of one statement into a target's own scheduler instead: ENGINE==VERSION, ENGINE@PATH.",
        ),
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Of --of: how many mistakes are drawn.")] = 300,
    resume: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Of --of: go on with what --json wrote, which stays.")
    ] = None,
    equivalent: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Of --of: TOML of mistakes that change nothing, by ID why; one in ten at most."
        ),
    ] = None,
    seed: SeedOption = "0",
) -> None:
    """Put each historic bug back into the reference engine, and see how soon schedules find it. Exit code 1 when one
    is not found, 125 when the budget ended before all were hunted. An interrupt keeps and prints what was hunted.

    With --of the share of mistakes in what a target's schedules run that they find: its mutation score. What is not
    found is no failure.
    """
    deadline = Deadline.after(budget_seconds)
    first_seed = parse_seed(seed)
    if of is not None:
        if tier is not None or write is not None:
            raise UsageError("--of with --only or --write", "give one of them")
        from specsim.commands.score import ScoreAsked, score

        asked = ScoreAsked(of, tuple(ids or ()), first_seed, schedules or SCHEDULES_OF_SOURCE, allowed_jobs(jobs))
        raise typer.Exit(score(asked, count, json_file, resume, equivalent, budget_seconds, deadline))
    if resume is not None or equivalent is not None:
        option = "--resume" if resume is not None else "--equivalent"
        raise UsageError(f"{option} without --of", "it is of the mistakes of a target: name one, or leave it out")
    schedules = schedules or SCHEDULES_MAX
    one_of("--only", tier, ("ops", "scheduler"))
    if tier == "ops":
        at_once = allowed_jobs(jobs)
        raise typer.Exit(_operator_mutants(ids or [], seeds, first_seed, at_once, budget_seconds, json_file, write))
    from specsim import interrupts
    from specsim.report.live import live
    from specsim.report.terminal import print_mutants
    from specsim.selfcheck import mutant_table
    from specsim.selfcheck.catalogue import CATALOGUE
    from specsim.selfcheck.mutation import find
    from specsim.selfcheck.page import page

    if write is not None and (ids or first_seed):
        raise UsageError("--write with a selection of mutants or seeds", "the page is of all: give --write alone")
    chosen = [find(mutant_id) for mutant_id in ids or []] or list(CATALOGUE)
    with interrupts.gentle(), live("hunting mutants", budget_seconds) as line:
        hunted = mutant_table.hunt_all(
            chosen,
            seeds=seeds,
            schedules_max=schedules,
            jobs=allowed_jobs(jobs),
            first_seed=first_seed,
            on_done=line.part_done,
            stopped=interrupts.asked,
            deadline=deadline,
        )
        interrupted = interrupts.asked()
    print_mutants(
        mutant_table.COLUMNS, [mutant_table.row(each) for each in hunted], mutant_table.found_by_nobody(hunted)
    )
    if json_file is not None:
        save_json(json_file, {"seeds": seeds, "mutants": [mutant_table.to_json(each) for each in hunted]})
    whole_hunts = [each for each in hunted if len(each.hunts) == seeds]
    if write is not None and len(whole_hunts) == len(chosen):
        save_text(write, page(hunted))
    _say_what_is_left([each.id for each in chosen], [each.mutant.id for each in whole_hunts], interrupted)
    raise typer.Exit(
        _exit_code(
            missed=any(each.found < len(each.hunts) for each in hunted),
            incomplete=len(whole_hunts) < len(chosen),
            interrupted=interrupted,
        )
    )


def _exit_code(*, missed: bool, incomplete: bool, interrupted: bool) -> int:
    if missed:
        return FINDING
    if interrupted:
        return INTERRUPTED
    return NOT_CHECKED if incomplete else PASS


def _say_what_is_left(wanted: list[str], done: list[str], interrupted: bool) -> None:
    """How to go on after an interrupt or the end of the budget."""
    left = [mutant for mutant in wanted if mutant not in set(done)]
    if left:
        why = "interrupted" if interrupted else "the time budget was spent"
        typer.echo(f"specsim: {why}; {len(left)} are left: specsim mutants {' '.join(left)}", err=True)


def _operator_mutants(
    ids: list[str],
    seeds: int,
    first_seed: int,
    jobs: int,
    budget_seconds: float | None,
    json_file: Path | None,
    write: Path | None,
) -> int:
    """The mutants of operations: their table, and 1 when a seed does not find one."""
    from specsim import interrupts
    from specsim.report.live import live
    from specsim.report.terminal import print_mutants
    from specsim.selfcheck import operator_hunt
    from specsim.selfcheck.operator_mutants import MUTANTS, find

    if write is not None and ids:
        raise UsageError("--write with a selection of mutants", "the page is of all: give --write alone")
    chosen = [find(mutant_id) for mutant_id in ids] or list(MUTANTS)
    with interrupts.gentle(), live("checking mutants of operations", budget_seconds) as line:
        hunted = operator_hunt.hunt_all(
            chosen,
            seeds=seeds,
            first_seed=first_seed,
            jobs=jobs,
            on_done=line.part_done,
            stopped=interrupts.asked,
            deadline=Deadline.after(budget_seconds),
        )
        interrupted = interrupts.asked()
    incomplete = len(hunted) < len(chosen)
    if write is not None and not incomplete:
        save_text(write, operator_hunt.page(hunted))
    if json_file is not None:
        save_json(json_file, operator_hunt.to_json(hunted))
    missed = [each.mutant.id for each in hunted if each.found < len(each.kills)]
    print_mutants(operator_hunt.COLUMNS, [operator_hunt.row(each) for each in hunted], missed)
    _say_what_is_left([each.id for each in chosen], [each.mutant.id for each in hunted], interrupted)
    return _exit_code(missed=bool(missed), incomplete=incomplete, interrupted=interrupted)
