"""`specsim explore`: every schedule of small scopes, of the reference engine or of a release's scheduler."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specsim.commands.invocation import output_file
from specsim.commands.options import (
    SECONDS_MAX,
    CacheOption,
    HangOption,
    KeepEnvironmentOption,
    MemoryOption,
)
from specsim.deadline import Deadline
from specsim.engines.registry import MAIN
from specsim.errors import UsageError
from specsim.files import save_json
from specsim.verdict import FINDING, INTERRUPTED, NOT_CHECKED, PASS

if TYPE_CHECKING:
    from specsim.tiers.scheduler.small_scopes import Scope

OF_RELEASES = "abort"
"""The scope of a release, where none is named."""


def explore(
    scope: Annotated[
        str | None, typer.Argument(help=f"A small scope by name. Default: all; of a target {OF_RELEASES}.")
    ] = None,
    of: Annotated[
        str, typer.Option(metavar="TARGET", help=f"{MAIN}==VERSION, MODULE:OBJECT: run its scheduler again and again.")
    ] = "",
    states: Annotated[int | None, typer.Option(min=1, help="States after which to stop. Default: 2,000,000.")] = None,
    mutant: Annotated[
        str, typer.Option(metavar="ID", help="Put a historic bug back into the engine, or a defect into the target.")
    ] = "",
    json_file: Annotated[Path | None, output_file("--json", help="Write the counts to this file.")] = None,
    budget_seconds: Annotated[
        float | None,
        typer.Option("--budget-seconds", min=0.1, max=SECONDS_MAX, help="Stop after them, with what was counted."),
    ] = None,
    hang_seconds: HangOption = 20.0,
    _memory: MemoryOption = None,
    _kept: KeepEnvironmentOption = None,
    cache_dir: CacheOption = None,
) -> None:
    """Run every schedule of small scopes of the reference engine; print exact counts of schedules and distinct states.
    With --of run every schedule of one scope of a target's own scheduler, one after the other. An interrupt prints what
    was counted. Exit code 1 when a rule broke, 130 when it was interrupted.
    """
    from specsim.tiers.scheduler.small_scopes import SCOPES, scope_named

    if of:
        if states is not None:
            raise UsageError("--states with --of, which remembers no states", "give --budget-seconds")
        chosen = scope_named(scope or OF_RELEASES)
        raise typer.Exit(_of_target(of, chosen, mutant, json_file, budget_seconds, hang_seconds, cache_dir))
    wanted = None if scope is None else scope_named(scope)  # or a refusal, before torch is imported
    if mutant:  # before the engine is loaded
        from specsim.selfcheck.mutation import apply, find

        apply(find(mutant))
    from specsim import interrupts
    from specsim.choices.exhaustive import Explorer
    from specsim.report.live import live
    from specsim.tiers.scheduler import exploration

    if wanted is not None and exploration.lacked(wanted):
        lacked = ", ".join(exploration.lacked(wanted))
        raise UsageError(f"the engine lacks {lacked}, which scope {scope} is about", "name another scope")
    typer.echo(f"{'scope':15}{'schedules':>22}{'states':>10}{'ends':>7}{'states/s':>10}{'MiB':>6}")
    results, found, interrupted = [], False, False
    deadline = Deadline.after(budget_seconds)
    for number, one in enumerate([wanted] if wanted is not None else SCOPES):
        if lacked := ", ".join(exploration.lacked(one)):
            typer.echo(f"{one.name:15}  not run: the engine lacks {lacked}")
            continue
        if interrupted or (number and deadline.is_over):
            typer.echo(f"{one.name:15}  not run: {'interrupted' if interrupted else 'the time budget was spent'}")
            continue
        with interrupts.gentle(), live(f"exploring {one.name}", budget_seconds) as line:
            explorer = Explorer(states or exploration.STATES_MAX)
            line.count = lambda explorer=explorer: {"states": explorer.counted}
            timer = threading.Timer(0.0 if budget_seconds is None else deadline.left, explorer.stop)
            if budget_seconds is not None:
                timer.start()
            with interrupts.told(explorer.stop):
                result = exploration.explore(one, explorer)
            timer.cancel()
            interrupted = interrupts.asked()
        results.append(result.to_json())
        explored = result.explored
        typer.echo(
            f"{one.name:15}{explored.schedules:>22}{explored.states:>10}{len(explored.ends):>7}"
            f"{result.states_per_second:>10.0f}{result.memory_mib:>6.0f}  "
            f"{_how_far(explored.complete, explorer.counted)}"
        )
        for signature, tape in sorted(explored.broken.items()):
            found = True
            typer.echo(f"  broken: {signature}, with the choices {' '.join(map(str, tape))}")
            for text in exploration.log_of(one, tape):
                typer.echo(f"    {text}")
    if json_file is not None:
        save_json(json_file, {"scopes": results})
    if interrupted:
        typer.echo("specsim: interrupted; the same again, from the start: specsim explore SCOPE", err=True)
    raise typer.Exit(FINDING if found else INTERRUPTED if interrupted else PASS)


def _how_far(complete: bool, counted: int) -> str:
    return "complete" if complete else f"stopped at {counted}"


def _of_target(
    target: str,
    scope: Scope,
    mutant: str,
    json_file: Path | None,
    budget_seconds: float | None,
    hang_seconds: float,
    cache_dir: Path | None,
) -> int:
    """Every schedule of a scope of a target's scheduler, as far as the budget goes; the exit code."""
    import msgspec

    from specsim import interrupts
    from specsim.engines.load import planted
    from specsim.engines.target import parse_target
    from specsim.engines.triage import known_line
    from specsim.isolation.conversation import ChildEnded
    from specsim.lifting.cache import open_cache
    from specsim.report.live import live
    from specsim.tiers.messages import At, End, Explore, ExploredByRuns, Request
    from specsim.tiers.process import ask
    from specsim.tiers.registry import TIERS

    parsed = parse_target(target)
    if not TIERS["scheduler"].is_of(parsed):
        raise UsageError(f"{target} has no scheduler to run", "name a release or a checkout of an engine")
    if mutant:
        planted(parsed, mutant, open_cache(cache_dir))
    request = Request(
        tier="scheduler",
        target=parsed.text,
        cache=str(open_cache(cache_dir).folder),
        seed=0,
        count=1,
        seconds=budget_seconds or SECONDS_MAX,
        hang_seconds=hang_seconds,
        mutant=mutant,
        work=Explore(scope=scope.name),
    )
    explored: ExploredByRuns | None = None
    why, count = "it gives no answer", 0
    with interrupts.gentle(), live(f"{target}, {scope.name}", budget_seconds) as line:
        try:
            for message in ask(request, TIERS["scheduler"].limit_seconds(request)):
                if isinstance(message, At):
                    count = message.count
                    line.part_done(count, 0)
                elif isinstance(message, End):
                    why = message.not_run[0].why
                elif isinstance(message, ExploredByRuns):
                    explored = message
        except ChildEnded as ended:
            why = ended.text
        interrupted, seconds = interrupts.asked(), line.elapsed
    if explored is None:
        typer.echo(f"{scope.name} of {target}: not run: {why}")
        return NOT_CHECKED
    rate = explored.schedules / seconds
    how_far = _how_far(explored.complete, explored.schedules)
    typer.echo(f"{scope.name} of {target}: {explored.schedules} schedules, {rate:.1f} a second, {how_far}")
    for signature, broken in sorted(explored.broken.items()):
        typer.echo(
            f"  broken: {signature} in {broken.count}, first with the choices {' '.join(map(str, broken.choices))}"
        )
        known = "" if mutant else known_line(target, signature)
        for text in filter(None, (broken.title, known, *broken.lines)):
            typer.echo(f"    {text}")
    if json_file is not None:
        data: dict[str, Any] = {"target": target, "scope": scope.name, "mutant": mutant, "seconds": round(seconds, 1)}
        counts = {name: getattr(explored, name) for name in ("schedules", "complete", "broken")}
        save_json(json_file, {**data, **msgspec.to_builtins(counts)})
    if explored.broken:
        return FINDING
    return INTERRUPTED if interrupted else PASS
