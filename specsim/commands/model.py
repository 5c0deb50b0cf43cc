"""The commands that work on the model: its mutants, and compiling it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from specsim.choices.seeds import parse_seed
from specsim.commands.invocation import output_file
from specsim.commands.options import (
    SECONDS_MAX,
    CacheOption,
    SeedOption,
    one_of,
)
from specsim.deadline import Deadline
from specsim.errors import UsageError
from specsim.files import save_json, save_text
from specsim.isolation.limits import allowed_jobs
from specsim.verdict import FINDING, INTERRUPTED, NOT_CHECKED, PASS


def mutants(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Mutants; all when left out.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from --seed on.")] = 20,
    schedules: Annotated[int, typer.Option(min=1, help="Schedules of a seed, at most.")] = 20000,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time. Default: one a core.")] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Switch a rule off.")] = None,
    only_oracle: Annotated[bool, typer.Option("--only-oracle", help="Switch off all but the content oracle.")] = False,
    blind: Annotated[
        bool, typer.Option("--blind", help="Those written by someone who has not read the rules; none need be found.")
    ] = False,
    json_file: Annotated[Path | None, output_file("--json", help="Write the table to this file.")] = None,
    write: Annotated[
        Path | None, output_file("--write", help="Write the page: each rule off, smallest schedules, blind mutants.")
    ] = None,
    tier: Annotated[
        str | None, typer.Option("--only", metavar="TIER", help="ops: mistakes in specsim's own kernels and reference.")
    ] = None,
    budget_seconds: Annotated[
        float | None,
        typer.Option("--budget-seconds", min=1.0, max=SECONDS_MAX, help="End after them, with what was hunted."),
    ] = None,
    seed: SeedOption = "0",
) -> None:
    """Put each historic bug back into the model, and see how soon it is found. Exit code 1 when one is not, 125 when
    the budget ended before all were hunted. An interrupt keeps and prints what was hunted.
    """
    deadline = Deadline.after(budget_seconds)
    first_seed = parse_seed(seed)
    one_of("--only", tier, ("ops", "accounting"))
    if tier == "ops":
        if without or only_oracle or blind:
            raise UsageError("--only ops with options of schedules", "give --seeds, --jobs, --json or --write alone")
        at_once = allowed_jobs(jobs)
        raise typer.Exit(_operator_mutants(ids or [], seeds, first_seed, at_once, budget_seconds, json_file, write))
    from specsim import interrupts
    from specsim.engine.rules.table import BY_ID
    from specsim.report.live import live
    from specsim.report.terminal import print_mutants
    from specsim.selfcheck import mutant_table
    from specsim.selfcheck.catalogue import BLIND, CATALOGUE
    from specsim.selfcheck.mutation import find
    from specsim.selfcheck.page import page

    if blind and ids:
        raise UsageError("--blind with the ids of mutants", "give one of them")
    if write is not None and (ids or without or only_oracle or blind or first_seed):
        raise UsageError(
            "--write with a selection of mutants, rules or seeds", "the page is of all: give --write alone"
        )
    for rule in without or ():
        one_of("--without", rule, tuple(BY_ID))
    chosen = list(BLIND) if blind else [find(mutant_id) for mutant_id in ids or []] or list(CATALOGUE)
    at_once = allowed_jobs(jobs)
    if write is not None:
        efforts = mutant_table.efforts_with(seeds, schedules)
        with live("hunting mutants") as line:
            whole = mutant_table.build(chosen, BLIND, jobs=at_once, efforts=efforts, on_done=line.part_done)
        save_text(write, page(whole))
        hunted, data, interrupted = whole.hunted, mutant_table.table_to_json(whole), False
    else:
        off, only = frozenset(without or ()), frozenset(mutant_table.CONTENT_ORACLE if only_oracle else ())
        with interrupts.gentle(), live("hunting mutants", budget_seconds) as line:
            hunted = mutant_table.hunt_all(
                chosen,
                seeds=seeds,
                schedules_max=schedules,
                jobs=at_once,
                without=off,
                only=only,
                first_seed=first_seed,
                on_done=line.part_done,
                stopped=interrupts.asked,
                deadline=deadline,
            )
            interrupted = interrupts.asked()
        data = {"seeds": seeds, "mutants": [mutant_table.to_json(each) for each in hunted]}
    print_mutants(
        mutant_table.COLUMNS, [mutant_table.row(each) for each in hunted], mutant_table.seen_by_nobody(hunted)
    )
    if json_file is not None:
        save_json(json_file, data)
    whole_hunts = [each for each in hunted if len(each.hunts) == seeds]
    _say_what_is_left([each.id for each in chosen], [each.mutant.id for each in whole_hunts], interrupted)
    raise typer.Exit(
        _exit_code(
            missed=not blind and any(each.found < len(each.hunts) for each in hunted),
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


def compile_simulator(
    json_file: Annotated[Path | None, output_file("--json", help="Write where it is to this file.")] = None,
    cache_dir: CacheOption = None,
) -> None:
    """Compile the simulator's step loop into the cache: the same digests, several times as fast. SPECSIM_COMPILED=0
    turns it off.
    """
    from specsim.compiled.build import build, find_build
    from specsim.lifting.cache import open_cache

    cache = open_cache(cache_dir)
    found = find_build(cache)
    if found is None:
        typer.echo("specsim: compiling takes a minute or two.", err=True)
    folder = found or build(cache)
    typer.echo(f"{'compiled into' if found is None else 'compiled before, in'} {folder}")
    if json_file is not None:
        save_json(json_file, {"folder": str(folder), "compiled_now": found is None})
