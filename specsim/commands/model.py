"""The commands that work on the model: its mutants, its small scopes, many schedules of it, and compiling it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from specsim.commands.options import one_of, require_folder
from specsim.errors import UsageError
from specsim.explore.seeds import parse_seed


def mutants(
    ids: Annotated[list[str] | None, typer.Argument(metavar="[ID]...", help="Mutants; all when left out.")] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Seeds, from 0 on.")] = 20,
    schedules: Annotated[int, typer.Option(min=1, help="Schedules of a seed, at most.")] = 20000,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes at a time. Default: one a core.")] = None,
    without: Annotated[list[str] | None, typer.Option(metavar="RULE", help="Switch a rule off.")] = None,
    only_oracle: Annotated[bool, typer.Option("--only-oracle", help="Switch off all but the content oracle.")] = False,
    strategy: Annotated[
        str, typer.Option(help="How schedules are made: swarm, pct, delays, coverage, portfolio.")
    ] = "swarm",
    blind: Annotated[
        bool, typer.Option("--blind", help="Those written by someone who has not read the rules; none need be found.")
    ] = False,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table to this file.")] = None,
    write: Annotated[
        Path | None, typer.Option(help="Write the page: every strategy, each rule off, smallest schedules.")
    ] = None,
    tier: Annotated[
        str | None, typer.Option("--only", metavar="TIER", help="ops: mistakes in specsim's own kernels and reference.")
    ] = None,
) -> None:
    """Put each historic bug back into the model, and see how soon it is found. Exit code 1 when one is not."""
    one_of("--only", tier, ("ops", "accounting"))
    if tier == "ops":
        if without or only_oracle or blind or strategy != "swarm":
            raise UsageError("--only ops with options of schedules", "give --seeds, --jobs, --json or --write alone")
        raise typer.Exit(_operator_mutants(ids or [], seeds, jobs or os.cpu_count() or 1, json_file, write))
    from specsim.explore.strategies import STRATEGIES
    from specsim.mutants import table
    from specsim.mutants.blind import BLIND
    from specsim.mutants.catalogue import CATALOGUE
    from specsim.mutants.load import find
    from specsim.mutants.page import page
    from specsim.report.live import live
    from specsim.report.terminal import print_mutants
    from specsim.verdict import write_json

    for option, file in (("--json", json_file), ("--write", write)):
        if file is not None:
            require_folder(option, file.parent)
    if blind and ids:
        raise UsageError("--blind with the ids of mutants", "give one of them")
    if write is not None and (ids or without or only_oracle or blind or strategy != "swarm"):
        raise UsageError(
            "--write with a selection of mutants, rules or strategies", "the page is of all: give --write alone"
        )
    one_of("--strategy", strategy, tuple(STRATEGIES))
    chosen = list(BLIND) if blind else [find(mutant_id) for mutant_id in ids or []] or list(CATALOGUE)
    at_once = jobs or os.cpu_count() or 1
    if write is not None:
        efforts = table.efforts_with(seeds, schedules)
        with live("hunting mutants") as line:
            whole = table.build(chosen, BLIND, jobs=at_once, efforts=efforts, on_done=line.part_done)
        write.write_text(page(whole), encoding="utf-8")
        hunted, data = whole.hunted, table.table_to_json(whole)
    else:
        off, only = frozenset(without or ()), frozenset(table.CONTENT_ORACLE if only_oracle else ())
        hunted = table.hunt_all(
            chosen, seeds=seeds, schedules_max=schedules, jobs=at_once, without=off, only=only, strategy=strategy
        )
        data = {"seeds": seeds, "mutants": [table.to_json(each) for each in hunted]}
    print_mutants(table.COLUMNS, [table.row(each) for each in hunted], table.seen_by_nobody(hunted))
    if json_file is not None:
        write_json(json_file, data)
    raise typer.Exit(0 if blind or all(each.found == seeds for each in hunted) else 1)


def _operator_mutants(ids: list[str], seeds: int, jobs: int, json_file: Path | None, write: Path | None) -> int:
    """The mutants of operations: their table, and 1 when a seed does not find one."""
    from specsim.judge import operators
    from specsim.mutants.operators import MUTANTS, find
    from specsim.report.live import live
    from specsim.report.terminal import print_mutants
    from specsim.verdict import write_json

    for option, file in (("--json", json_file), ("--write", write)):
        if file is not None:
            require_folder(option, file.parent)
    if write is not None and ids:
        raise UsageError("--write with a selection of mutants", "the page is of all: give --write alone")
    chosen = [find(mutant_id) for mutant_id in ids] or list(MUTANTS)
    with live("judging mutants of operations") as line:
        judged = operators.judge_all(chosen, seeds=seeds, jobs=jobs, on_done=line.part_done)
    if write is not None:
        write.write_text(operators.page(judged), encoding="utf-8")
    if json_file is not None:
        write_json(json_file, operators.to_json(judged))
    missed = [each.mutant.id for each in judged if each.found < len(each.kills)]
    print_mutants(operators.COLUMNS, [operators.row(each) for each in judged], missed)
    return 1 if missed else 0


def explore(
    scope: Annotated[str | None, typer.Argument(help="A small scope by name; all of them when left out.")] = None,
    strategy: Annotated[
        str, typer.Option(help="visited: each state once; reduced: one order of steps that commute; stateless.")
    ] = "visited",
    states: Annotated[int, typer.Option(min=1, help="States (stateless: schedules) after which to stop.")] = 2_000_000,
    mutant: Annotated[str, typer.Option(metavar="ID", help="Put a historic bug back into the model.")] = "",
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the counts to this file.")] = None,
) -> None:
    """Run every schedule of small scopes of the model; print exact counts of schedules and distinct states."""
    from specsim.mutants.load import apply, find

    if mutant:  # before the modules of the simulator are loaded
        apply(find(mutant))
    from specsim.check.exploration import explore as explore_scope
    from specsim.check.exploration import log_of
    from specsim.explore.exhaustive import METHODS
    from specsim.sim.scopes import SCOPES, scope_named
    from specsim.verdict import write_json

    method = next((method for method in METHODS if method == strategy), None)
    if method is None:
        raise UsageError(f"--strategy {strategy!r} is unknown", f"allowed: {', '.join(METHODS)}")
    if json_file is not None:
        require_folder("--json", json_file.parent)
    chosen = [scope_named(scope)] if scope is not None else list(SCOPES)
    typer.echo(f"{'scope':15}{'schedules':>22}{'states':>10}{'ends':>7}{'states/s':>10}{'MiB':>6}  {strategy}")
    results, found = [], False
    for one in chosen:
        result = explore_scope(one, method, states)
        results.append(result.to_json())
        explored = result.explored
        shown = str(explored.states) if explored.states else "-"
        rate = f"{result.states_per_second:.0f}" if explored.states else "-"
        typer.echo(
            f"{one.name:15}{explored.schedules:>22}{shown:>10}{len(explored.ends):>7}{rate:>10}"
            f"{result.memory_mib:>6.0f}  {'complete' if explored.complete else f'stopped at {states}'}"
        )
        for signature, tape in sorted(explored.broken.items()):
            found = True
            typer.echo(f"  broken: {signature}, with the choices {' '.join(map(str, tape))}")
            for event in log_of(one, tape):
                typer.echo(f"    {event}")
    if json_file is not None:
        write_json(json_file, {"scopes": results})
    raise typer.Exit(1 if found else 0)


def compile_simulator() -> None:
    """Compile the simulator's step loop into the cache: the same digests, several times as fast. SPECSIM_COMPILED=0
    turns it off.
    """
    from specsim.compiled.build import build, find_build
    from specsim.targets.cache import open_cache

    cache = open_cache()
    found = find_build(cache)
    if found is None:
        typer.echo("specsim: compiling takes a minute or two.", err=True)
    typer.echo(f"{'compiled into' if found is None else 'compiled before, in'} {found or build(cache)}")


def sweep(
    schedules: Annotated[int, typer.Option(min=1, help="Schedules of the default swarm, from 0 on.")] = 1_000_000,
    seed: Annotated[str, typer.Option(help="A number or a commit hash.")] = "0",
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes. Default: one a core.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the counts to this file, every half minute too.")] = None,
) -> None:
    """Count many schedules of the model: events, findings, and how often each interleaving and feature was reached. An
    interrupt keeps and prints what was counted. Exit code 1 when a rule broke, 130 when it was interrupted.
    """
    seed_number = parse_seed(seed)
    if write is not None:
        require_folder("--write", write.parent)
    from specsim.bench.environment import environment
    from specsim.judge.sweep import Swept, run
    from specsim.report.terminal import print_sweep
    from specsim.verdict import write_json

    processes = jobs or os.cpu_count() or 1
    where = environment()

    def keep(swept: Swept) -> None:
        typer.echo(f"{swept.counts.schedules} of {schedules} schedules, {swept.seconds:.0f} s", err=True)
        if write is not None:
            ran = {"environment": where, "processes": processes, "seconds": round(swept.seconds, 1)}
            write_json(write, {**swept.to_json(), **ran})

    swept = run(seed_number, schedules, processes, keep)
    keep(swept)
    print_sweep(swept.to_json())
    raise typer.Exit(1 if swept.counts.broken else 130 if swept.ended else 0)
