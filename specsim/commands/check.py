"""`specsim check`: its options, and what they ask for. The work is in `one_target.py` and `matrix.py`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar

import typer

from specsim.choices.seeds import parse_seed
from specsim.commands.git_bisect import BisectRunOption, exit_codes, skipping
from specsim.commands.ignored_options import as_typed
from specsim.commands.invocation import GIT_STOPS, Command, output_file, output_folder
from specsim.commands.limits import DEFAULT_CASES, DEFAULT_SCHEDULES
from specsim.commands.options import (
    SECONDS_MAX,
    CacheOption,
    DeviceOption,
    HangOption,
    KeepEnvironmentOption,
    MemoryOption,
    SeedOption,
    one_of,
)
from specsim.commands.outputs import GithubOption, JUnitOption, Outputs, SarifOption
from specsim.commands.project import KEYS, leave_out, settings_of
from specsim.engines.registry import MAIN
from specsim.errors import UsageError
from specsim.isolation.limits import allowed_jobs
from specsim.replay_file import FINDINGS
from specsim.verdict import FAILS_BY_DEFAULT

if TYPE_CHECKING:
    from specsim.lifting.cache import Cache


class CheckCommand(Command):
    """`check`, whose options are too many for one list. Those of `developers` are of `specsim dev check` alone."""

    developers: ClassVar[Sequence[str]] = ("canary", "mutant", "write", "pin_to", "one_core")
    is_of_developers: ClassVar[bool] = False
    groups: ClassVar[Mapping[str, Sequence[str]]] = {
        "What is checked": ("provider", "only", "worker", "fixtures", "use_fixtures", "mutant", "canary"),
        "How much": ("budget_seconds", "cases", "schedules", "attempts", "shrinks", "ci", "seed", "bulk"),
        "What is reported": ("select", "ignore", "fail_on"),
        "Beside a baseline": ("baseline", "update_baseline", "allow_not_run", "require_reached", "bisect_run"),
        "What is printed": ("verbose", "quiet", "show_not_run", "github"),
        "Files that are written": ("out", "json_file", "junit", "sarif", "write", "pin_to"),
        "How it is run": ("device", "jobs", "one_core", "hang_seconds", "_memory", "_kept", "cache_dir", "_isolated"),
    }
    examples: ClassVar[Sequence[tuple[str, str]]] = (
        (f"specsim check {MAIN}==VERSION -q", "A release, a line for each finding"),
        (f"specsim check {MAIN}@. --ci --baseline {MAIN}@.#origin/main...", "A pull request: fail for what it adds"),
        ("specsim check mine:provider --only ops:alloc_extend --fail-on wrong-result", "One function of your own"),
    )

    def __init__(self, *arguments: Any, **named: Any) -> None:
        super().__init__(*arguments, **named)
        for parameter in self.params:
            if parameter.name in self.developers and not self.is_of_developers:
                setattr(parameter, "hidden", True)  # noqa: B010 - typer does not type its classes

    def defaults(self, args: list[str]) -> dict[str, Any]:
        """The settings of the project in which the command runs."""
        return {} if "--isolated" in args else settings_of(Path.cwd())

    def settle(self, context: Any) -> None:
        """Leave out settings of the project that do not go with the command line."""
        for parameter in self.params if not self.is_of_developers else ():
            source = context.get_parameter_source(parameter.name)
            if parameter.name in self.developers and source is not None and source.name == "COMMANDLINE":
                option = parameter.opts[0]
                raise UsageError(f"specsim check has no option {option}", f"it is one of specsim dev check {option}")
        sources = {name: context.get_parameter_source(name) for name in KEYS.values()}
        from_project = {name for name, source in sources.items() if source is not None and source.name == "DEFAULT_MAP"}
        if from_project:
            leave_out(context.params, from_project)


class DevelopersCheckCommand(CheckCommand):
    """`dev check`, with every option."""

    is_of_developers = True
    examples: ClassVar[Sequence[tuple[str, str]]] = ()


@skipping
def check(
    context: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            show_default="model",
            help=f"model | {MAIN}==VERSION | {MAIN}==A..B | {MAIN}@PATH[#REV] | module:object. Several make a matrix.",
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option(metavar="MODULE:OBJECT", help="Check functions of your own: module:object, its operations.")
    ] = "",
    only: Annotated[
        str | None,
        typer.Option(metavar="TIER", help="Run one tier only: ops or scheduler; ops:NAME for one operation."),
    ] = None,
    budget_seconds: Annotated[
        float | None,
        typer.Option(
            min=1.0,
            max=SECONDS_MAX,
            help="Wall time of the whole check. Counts given without it end it alone.",
            show_default="60",
        ),
    ] = None,
    seed: SeedOption = "0",
    cases: Annotated[
        int | None, typer.Option(min=1, help="Cases of each implementation.", show_default=str(DEFAULT_CASES))
    ] = None,
    bulk: Annotated[
        bool, typer.Option("--bulk", help="With --only ops: thousands of cases a launch, compared on the device.")
    ] = False,
    schedules: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Schedules of the scheduler tier.",
            show_default=str(DEFAULT_SCHEDULES),
        ),
    ] = None,
    attempts: Annotated[
        int | None, typer.Option(min=0, help="Attempts at a smaller case or schedule of each finding.")
    ] = None,
    ci: Annotated[
        bool,
        typer.Option("--ci", help="Gate a pull request: fixed counts and seed, no clock; the same bytes each time."),
    ] = False,
    fixtures: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Run these replay files first. Default: known findings that come along."),
    ] = None,
    use_fixtures: Annotated[
        bool, typer.Option("--known/--no-known", help="Run the replay files of known findings first.")
    ] = True,
    mutant: Annotated[
        str, typer.Option(metavar="ID", help="Put a historic bug back into the model: the reference engine.")
    ] = "",
    worker: Annotated[
        str,
        typer.Option(
            metavar="fake|release",
            help="Of the scheduler tier: ours, or the release's own over a model that is none.",
        ),
    ] = "fake",
    canary: Annotated[
        bool, typer.Option("--canary", help="Put historic bugs into the model, one by one: each must be found.")
    ] = False,
    out: Annotated[Path, output_folder("--out", help="Folder for replay files.")] = FINDINGS,
    json_file: Annotated[Path | None, output_file("--json", help="Write the verdict or matrix to this file.")] = None,
    write: Annotated[
        Path | None,
        output_file(
            "--write", help="Write the page of a matrix: which target has which bug. With --bulk: add the counts."
        ),
    ] = None,
    pin_to: Annotated[
        Path | None,
        output_folder("--pin", help="Put a fixture there for each finding of a matrix without one."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Schedules, or targets of a matrix, at a time. Default: one a core.")
    ] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="FILE|TARGET", help="Exit 1 only for findings that this does not have, checked alike."),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the findings to the FILE of --baseline.")
    ] = False,
    require_reached: Annotated[
        bool,
        typer.Option("--require-reached", help="Pass only if schedules ran every line of a function that was changed."),
    ] = False,
    allow_not_run: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME|GLOB",
            help="Pass though this ran on the baseline and cannot run here: scheduler, ops:alloc_extend:*; "
            "may be repeated.",
        ),
    ] = None,
    select: Annotated[
        list[str] | None,
        typer.Option(metavar="RULE|GLOB", help="Report these alone: a rule, or signatures with *; may be repeated."),
    ] = None,
    ignore: Annotated[
        list[str] | None, typer.Option(metavar="RULE|GLOB", help="Do not report these; may be repeated.")
    ] = None,
    fail_on: Annotated[
        str | None,
        typer.Option(
            metavar="REACH/SEVERITY",
            help="Exit 1 for findings of at least this reach and severity alone, such as default/wrong-result.",
            show_default=FAILS_BY_DEFAULT.text,
        ),
    ] = None,
    junit: JUnitOption = None,
    sarif: SarifOption = None,
    github: GithubOption = None,
    verbose: Annotated[
        bool, typer.Option("--verbose", "-v", help="Print every finding in full, and every row of what was checked.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print the verdict, and a line a finding.")] = False,
    show_not_run: Annotated[
        bool, typer.Option("--show-not-run", help="Print what was not run, each with its reason.")
    ] = False,
    shrinks: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Make each finding as small as can be: most of the time.")
    ] = True,
    device: DeviceOption = "auto",
    bisect_run: BisectRunOption = False,
    _isolated: Annotated[
        bool, typer.Option("--isolated", help="Do not read [tool.specsim] of a pyproject.toml.")
    ] = False,
    one_core: Annotated[bool, typer.Option("--one-core", help="Share one core.")] = False,
    hang_seconds: HangOption = 20.0,
    _memory: MemoryOption = None,
    _kept: KeepEnvironmentOption = None,
    cache_dir: CacheOption = None,
) -> None:
    """Check a target: every suite within the budget, a verdict table, one finding per defect. Several targets make a
    matrix: targets across, findings down.
    """
    from specsim.commands.asked import FIXTURES, Asked
    from specsim.commands.limits import limits_of
    from specsim.commands.one_target import check_one_target
    from specsim.engines.ranges import expand_targets
    from specsim.findings.selection import fail_on_of, names_of, selection_of
    from specsim.lifting.cache import open_cache
    from specsim.report.check import Detail

    with exit_codes(bisect_run, of_errors=GIT_STOPS):
        tier, operation = _tier(only)
        if provider:
            if target or tier not in (None, "ops"):
                raise UsageError("--provider with a TARGET or another tier", "it is a target of the ops tier by itself")
            target, tier, only = [provider], "ops", only or "ops"
        one_of("--device", device, ("auto", "cpu", "cuda"))
        one_of("--worker", worker, ("fake", "release"))
        if worker != "fake" and tier != "scheduler":
            raise UsageError(f"--worker {worker} without --only scheduler", "it is of that tier: add --only scheduler")
        if bulk and tier != "ops":
            raise UsageError("--bulk without --only ops", "bulk cases are of operations: add --only ops")
        chosen = expand_targets(target or ["model"])
        limits = limits_of(ci, budget_seconds, seed, cases, schedules, attempts)
        if not use_fixtures and fixtures is not None:
            raise UsageError("--fixtures with --no-known", "give one of them")
        selection, fails = (
            selection_of(select or (), ignore or ()),
            fail_on_of(fail_on) if fail_on else FAILS_BY_DEFAULT,
        )
        if allow_not_run and baseline is None:
            raise UsageError("--allow-not-run without --baseline", "it is of what ran on a baseline: add --baseline")
        if require_reached and baseline is None:
            raise UsageError("--require-reached without --baseline", f"add --baseline {MAIN}@.#main...")
        asked = Asked(
            target=chosen[0],
            cache=open_cache(cache_dir),
            only=tier,
            operation=operation,
            budget_seconds=limits.seconds,
            seed=parse_seed(seed),
            cases=limits.cases,
            schedules=limits.schedules,
            attempts=limits.attempts,
            # A mutant is put back to see what finds it.
            fixtures=(fixtures or FIXTURES) if use_fixtures and not mutant else None,
            out=out,
            device=device,
            hang_seconds=hang_seconds,
            bulk=bulk,
            mutant=mutant,
            worker=worker,
            shrinks=shrinks,
            jobs=allowed_jobs(jobs),
            one_core=one_core,
            selection=selection,
            fail_on=fails,
            allowed=names_of(allow_not_run or ()),
            require_reached=require_reached,
        )
        outputs = Outputs(junit, sarif, github)
        outputs.require()
        if len(chosen) > 1 or (write is not None and not bulk) or pin_to is not None:
            if bulk:
                raise UsageError("--bulk with several targets", "give one target at a time")
            of_a_verdict = {"--verbose": verbose, "--quiet": quiet, "--show-not-run": show_not_run}
            of_the_model = {"--mutant": mutant, "--canary": canary}
            for option in (name for name, value in of_a_verdict.items() if value):
                raise UsageError(f"{option} with several targets", "it is of the verdict of one: name one target")
            for option in (name for name, value in of_the_model.items() if value):
                raise UsageError(f"{option} with several targets", f"it is of the model: dev check model {option}")
            if baseline is not None or update_baseline:
                raise UsageError("--baseline with several targets", "give one target at a time")
            from specsim.commands.matrix import check_many

            texts = [*target, *_typed(context)] if target else []
            raise typer.Exit(check_many(chosen, asked, json_file, write, pin_to, texts, outputs))
        (parsed,) = chosen
    if canary:
        _require_model("--canary", parsed.text)
        raise typer.Exit(_sing())
    if mutant:
        _require_mutant(mutant, parsed.text, tier, asked.cache)
    detail = Detail(quiet, verbose, show_not_run)
    raise typer.Exit(check_one_target(asked, outputs, json_file, baseline, update_baseline, bisect_run, write, detail))


_RUN = (
    *("only", "worker", "fixtures", "use_fixtures", "budget_seconds", "cases", "schedules", "attempts", "shrinks"),
    *("seed", "select", "ignore", "fail_on", "device", "hang_seconds"),
)
"""Parameters that say what a matrix runs."""


def _typed(context: typer.Context) -> list[str]:
    """Those of the options that stand on the command line and say what is run, as they would be typed."""
    typed: list[str] = []
    for parameter in context.command.params:
        source, value = context.get_parameter_source(str(parameter.name)), context.params[str(parameter.name)]
        if parameter.name not in _RUN or source is None or source.name != "COMMANDLINE":
            continue
        for one in value if isinstance(value, list | tuple) else (value,):
            shown = [] if isinstance(one, bool) else [f"{one:g}" if isinstance(one, float) else str(one)]
            typed += [as_typed(parameter, one), *shown]
    return typed


def _tier(only: str | None) -> tuple[str | None, str]:
    """The tier that --only names, and the operation, "" for all."""
    tier, _, operation = (only or "").partition(":")
    if tier == "ops" and operation:
        return tier, operation
    from specsim.tiers.registry import TIERS

    one_of("--only", only, tuple(TIERS))
    return only, ""


def _require_mutant(mutant: str, target: str, tier: str | None, cache: Cache) -> None:
    if target != "model" and tier == "scheduler":
        from specsim.engines.load import planted
        from specsim.engines.target import parse_target

        planted(parse_target(target), mutant, cache)
        return
    from specsim.selfcheck.mutation import find

    find(mutant)
    _require_model(f"--mutant {mutant}", target)


def _require_model(option: str, target: str) -> None:
    if target != "model":
        raise UsageError(f"{option} with {target}", f"mutants are of the model: dev check model {option}")


def _sing() -> int:
    """The canary: a line per mutant; 1 when one is not found."""
    from specsim.selfcheck.canary import sing

    missed = 0
    for hunted in sing():
        found = f"found after {hunted.schedules_median:g} schedules in {' '.join(hunted.rules)}"
        missed += not hunted.found
        typer.echo(f"{hunted.mutant.id:14}  {found if hunted.found else 'NOT FOUND'}")
    typer.echo(f"fail: {missed} not found" if missed else "pass: each is found")
    return 1 if missed else 0
