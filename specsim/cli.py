"""The command line. Torch, triton and rich are imported only by the commands that need them: `specsim --help` answers
at once.
"""

from __future__ import annotations

import functools
import io
import math
import resource
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import specsim
from specsim.choices.seeds import parse_seed
from specsim.commands import bisect, fuzz, model, replay_files, template
from specsim.commands import doctor as doctor_command
from specsim.commands.ignored_options import without_ignored
from specsim.commands.invocation import GIT_STOPS, Command, output_file, output_folder
from specsim.commands.limits import DEFAULT_CASES, DEFAULT_SCHEDULES
from specsim.commands.options import (
    SECONDS_MAX,
    CacheOption,
    DeviceOption,
    HangOption,
    KeepEnvironmentOption,
    MemoryOption,
    NoBudgetOption,
    NoSeedOption,
    SeedOption,
    accept_seed,
    current_strategy,
    deprecated,
    one_of,
    say,
    tell,
)
from specsim.commands.outputs import GithubOption, JUnitOption, Outputs, SarifOption
from specsim.commands.staleness import note_stale
from specsim.commands.trust import NAME_TARGET, TrustOption, announce_replay
from specsim.errors import NondeterministicError, UsageError
from specsim.files import save_json
from specsim.verdict import INTERRUPTED, NONDETERMINISM, NOT_CHECKED, PASS, USAGE

if TYPE_CHECKING:
    from specsim.replay_file import Replay

app = typer.Typer(
    name="specsim",
    help="Deterministic simulation testing for speculative decoding in LLM inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 pass, 1 finding, 2 usage or environment, 3 nondeterminism, 125 not checkable, "
    "130 interrupted. Checking a TARGET runs its code: check what you trust.",
)

REPLAYED = "specsim.replayed/1"
GIT_SKIPS = NOT_CHECKED  # what `git bisect run` makes of that exit code

BisectRunOption = Annotated[
    bool,
    typer.Option("--bisect-run", help="For `git bisect run`: exit 125 (skip) when the target cannot be checked."),
]


def _print_version(wanted: bool) -> None:
    if wanted:
        from specsim.compiled.finder import in_use

        typer.echo(f"specsim {specsim.__version__}, the simulator {in_use()}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Commands work on a TARGET: model | sglang==VERSION | sglang@PATH[#REV] | module:object."""


@contextmanager
def _exit_codes(bisect_run: bool, of_errors: int) -> Iterator[None]:
    """With `bisect_run`, errors end with `of_errors`, and what could not be checked is skipped: `git bisect run` would
    take 2 and 3 for bad.
    """
    try:
        yield
    except typer.Exit as ended:
        if bisect_run and ended.exit_code in (2, 3):
            raise typer.Exit(GIT_SKIPS) from None
        raise
    except (UsageError, NondeterministicError) as error:
        if not bisect_run:
            raise
        say(error) if isinstance(error, UsageError) else tell(f"specsim: nondeterministic: {error}", err=True)
        raise typer.Exit(of_errors) from None


def _skipping(command: Callable[..., None]) -> Callable[..., None]:
    """A command with the option --bisect-run: its errors, and what it could not check, are skipped."""

    @functools.wraps(command)
    def run(**arguments: Any) -> None:
        with _exit_codes(arguments["bisect_run"], of_errors=GIT_SKIPS):
            command(**arguments)

    return run


@app.command(cls=Command)
@_skipping
def check(
    context: typer.Context,
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...",
            show_default="model",
            help="model | sglang==VERSION | sglang==A..B | sglang@PATH[#REV] | module:object. Several make a matrix.",
        ),
    ] = None,
    provider: Annotated[
        str, typer.Option(metavar="MODULE:OBJECT", help="Check functions of your own: module:object, its operations.")
    ] = "",
    only: Annotated[
        str | None,
        typer.Option(
            metavar="TIER", help="Run one tier only: ops, workers, accounting or scheduler; ops:NAME for one operation."
        ),
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
            help="Schedules of the simulator; the scheduler tier beside others runs one in five.",
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
    strategy: Annotated[
        str, typer.Option(help="How schedules are made: swarm, pct, delays, coverage, portfolio.")
    ] = "swarm",
    mutant: Annotated[str, typer.Option(metavar="ID", help="Put a historic bug back into the model.")] = "",
    kernels: Annotated[
        str, typer.Option(metavar="PROVIDER", help="Move accepted KV in the model by reference, triton or a TARGET's.")
    ] = "",
    canary: Annotated[
        bool, typer.Option("--canary", help="Put historic bugs into the model, one by one: each must be found.")
    ] = False,
    out: Annotated[Path, output_folder("--out", help="Folder for replay files.")] = Path("specsim-findings"),
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
    jobs: Annotated[int | None, typer.Option(min=1, help="Targets of a matrix at a time. Default: one a core.")] = None,
    baseline: Annotated[
        str | None,
        typer.Option(metavar="FILE|TARGET", help="Exit 1 only for findings that this does not have, checked alike."),
    ] = None,
    update_baseline: Annotated[
        bool, typer.Option("--update-baseline", help="Write the findings to the FILE of --baseline.")
    ] = False,
    junit: JUnitOption = None,
    sarif: SarifOption = None,
    github: GithubOption = None,
    shrinks: Annotated[
        bool, typer.Option("--shrink/--no-shrink", help="Make each finding as small as can be: most of the time.")
    ] = True,
    device: DeviceOption = "auto",
    bisect_run: BisectRunOption = False,
    one_core: Annotated[bool, typer.Option("--one-core", help="Share one core.")] = False,
    hang_seconds: HangOption = 20.0,
    _memory: MemoryOption = None,
    _kept: KeepEnvironmentOption = None,
    cache_dir: CacheOption = None,
) -> None:
    """Check a target: every suite within the budget, a verdict table, one finding per defect. Several targets make a
    matrix: targets across, findings down.
    """
    from specsim.choices.search_strategies import STRATEGIES
    from specsim.commands.check import check_one_target
    from specsim.commands.limits import limits_of
    from specsim.commands.suites import FIXTURES, Asked
    from specsim.engines.ranges import expand_targets
    from specsim.engines.sglang.releases import RELEASES
    from specsim.lifting.cache import open_cache

    with _exit_codes(bisect_run, of_errors=GIT_STOPS):
        tier, operation = _tier(only)
        if provider:
            if target or tier not in (None, "ops"):
                raise UsageError("--provider with a TARGET or another tier", "it is a target of the ops tier by itself")
            target, tier, only = [provider], "ops", only or "ops"
        one_of("--device", device, ("auto", "cpu", "cuda"))
        strategy = current_strategy(strategy)
        one_of("--strategy", strategy, tuple(STRATEGIES))
        if bulk and tier != "ops":
            raise UsageError("--bulk without --only ops", "bulk cases are of operations: add --only ops")
        chosen = expand_targets(target or ["model"], RELEASES)
        limits = limits_of(ci, budget_seconds, seed, cases, schedules, attempts)
        options: dict[str, Any] = {
            "--seed": seed,
            "--cases": limits.cases,
            "--schedules": limits.schedules,
            "--device": device,
        }
        options |= {"--hang-seconds": hang_seconds, "--strategy": strategy}
        given: dict[str, Any] = {
            "--attempts": limits.attempts,
            "--fixtures": fixtures,
            "--only": only,
            "--cache-dir": cache_dir,
        }
        given |= {"--budget-seconds": limits.seconds if limits.seconds < math.inf else None}
        options |= {name: value for name, value in given.items() if value is not None}
        if not use_fixtures and fixtures is not None:
            raise UsageError("--fixtures with --no-known", "give one of them")
        options |= {"--no-known": None} if not use_fixtures else {}
        options |= {"--no-shrink": None} if not shrinks else {}
        options = without_ignored(context, options)
        outputs = Outputs(junit, sarif, github)
        outputs.require()
        if len(chosen) > 1 or (write is not None and not bulk) or pin_to is not None:
            if bulk:
                raise UsageError("--bulk with several targets", "give one target at a time")
            for option, value in (("--mutant", mutant), ("--canary", canary), ("--kernels", kernels)):
                if value:
                    raise UsageError(f"{option} with several targets", f"it is of the model: check model {option}")
            if baseline is not None or update_baseline:
                raise UsageError("--baseline with several targets", "give one target at a time")
            from specsim.commands.matrix import check_many

            texts = [*target, *_given(context, options)] if target else []
            raise typer.Exit(check_many(chosen, options, out, json_file, write, pin_to, jobs, texts, outputs))
        (parsed,) = chosen
        if jobs is not None:
            raise UsageError("--jobs with one target", "it is of a matrix: name several targets")
    if canary:
        _require_model("--canary", parsed.text)
        raise typer.Exit(_sing())
    if mutant:
        _require_mutant(mutant, parsed.text, tier)
    if kernels and parsed.text != "model":
        raise UsageError(f"--kernels {kernels} with {parsed.text}", "the model uses them: check model --kernels")
    asked = Asked(
        target=parsed,
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
        strategy=strategy,
        out=out,
        device=device,
        hang_seconds=hang_seconds,
        bulk=bulk,
        mutant=mutant,
        kernels=kernels,
        shrinks=shrinks,
        one_core=one_core,
    )
    raise typer.Exit(check_one_target(asked, options, outputs, json_file, baseline, update_baseline, bisect_run, write))


def _given(context: typer.Context, options: Mapping[str, Any]) -> list[str]:
    """Those of the options that stand on the command line and say what is run, as they would be typed."""
    given = []
    for name, value in options.items():
        source = context.get_parameter_source(name.removeprefix("--").replace("-", "_"))
        if name != "--cache-dir" and source is not None and source.name == "COMMANDLINE":
            given += [name] if value is None else [name, f"{value:g}" if isinstance(value, float) else str(value)]
    return given


def _tier(only: str | None) -> tuple[str | None, str]:
    """The tier that --only names, and the operation, "" for all."""
    tier, _, operation = (only or "").partition(":")
    if tier == "ops" and operation:
        return tier, operation
    from specsim.tiers.registry import TIERS

    one_of("--only", only, tuple(TIERS))
    return only, ""


def _require_mutant(mutant: str, target: str, tier: str | None) -> None:
    if tier == "scheduler":
        from specsim.engines.sglang.scheduler.planted import find as find_planted

        find_planted(mutant)
        return
    from specsim.selfcheck.mutation import find

    find(mutant)
    _require_model(f"--mutant {mutant}", target)


def _require_model(option: str, target: str) -> None:
    if target != "model":
        raise UsageError(f"{option} with {target}", f"mutants are of the model: check model {option}")


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


@app.command(cls=Command)
@_skipping
def replay(
    file: Annotated[Path, typer.Argument(help="A replay file that `specsim check --out DIR` wrote.")],
    target: Annotated[
        str | None, typer.Option(help="Run it on this target instead of the one it was found on.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: the device it was found on.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run it twice, under two hash seeds; exit 3 at the first difference.")
    ] = False,
    html: Annotated[
        Path | None, output_file("--html", metavar="OUT", help="Write a page that goes through the events: one file.")
    ] = None,
    perfetto: Annotated[
        Path | None, output_file("--perfetto", metavar="OUT", help="Write a trace that Perfetto opens.")
    ] = None,
    json_file: Annotated[Path | None, output_file("--json", help="Write what it showed to this file.")] = None,
    trust: TrustOption = False,
    seed: NoSeedOption = "0",
    budget_seconds: Annotated[
        float | None,
        typer.Option("--budget-seconds", min=1.0, max=SECONDS_MAX, help="A case that takes longer counts as hung."),
    ] = None,
    bisect_run: BisectRunOption = False,
    hang_seconds: HangOption = 20.0,
    cache_dir: CacheOption = None,
) -> None:
    """See a finding again. Exit code 1 when it is reproduced, 0 when it is not, 125 when the file no longer applies
    or the target does not run it, 3 when it is reproduced but not bit for bit.
    """
    from specsim import replay_file
    from specsim.commands.pages import write_pages
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.report.terminal import print_replay
    from specsim.tiers import replaying

    with _exit_codes(bisect_run, of_errors=GIT_STOPS):
        one_of("--device", device, ("auto", "cpu", "cuda"))
        stored = replay_file.load(file)
        if device is not None and not stored.device:
            raise UsageError(f"--device with a finding of the {stored.tier} tier", "it has no device: leave it out")
        text = parse_target(target or stored.target).text
        accept_seed(seed)
        announce_replay(file, stored, text, named=target is not None, trust=trust, remedy=NAME_TARGET)
        note_stale(file, stored)
    hang_seconds = min(hang_seconds, budget_seconds or hang_seconds)
    record = html is not None or perfetto is not None
    request = replaying.request_of(stored, text, open_cache(cache_dir).folder, hang_seconds, device=device)
    answer = replaying.replay_twice(request, file) if verify else replaying.replay(request, file, record=record)
    exit_code = print_replay(stored, text, answer, verified=verify)
    if record and answer.get("judged", True):
        recorded = replaying.replay(request, file, record=True) if verify else answer
        write_pages(stored, file, recorded, text, cache_dir, html, perfetto)
    elif record:
        typer.echo("specsim: nothing was replayed: there is no page and no trace of it.", err=True)
    if json_file is not None:
        shown = {name: value for name, value in answer.items() if name not in ("event", "recording")}
        save_json(json_file, {"format": REPLAYED, "file": str(file), "target": text, "exit_code": exit_code, **shown})
    raise typer.Exit(exit_code)


@app.command(cls=Command)
def report(
    folder: Annotated[
        list[Path] | None,
        typer.Argument(metavar="DIR", help="The folder of replay files of a run; with --campaign, more stores."),
    ] = None,
    campaign: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Instead of DIR: a store of `specsim fuzz`; several are shown as one."),
    ] = None,
    html: Annotated[Path, output_folder("--html", help="Where the index and the pages go.")] = Path("specsim-report"),
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A checkout of specsim: its release matrix, mutants and speed.")
    ] = Path(),
    json_file: Annotated[Path | None, output_file("--json", help="Write what the index lists to this file.")] = None,
    trust: TrustOption = False,
    seed: NoSeedOption = "0",
    budget_seconds: Annotated[
        float | None,
        typer.Option(
            "--budget-seconds", min=1.0, max=SECONDS_MAX, help="End after them, with the replays that there are."
        ),
    ] = None,
    hang_seconds: HangOption = 20.0,
    cache_dir: CacheOption = None,
) -> None:
    """Write a static index of a run's findings, with a page for each. Replays each on the target it was found on.

    With --campaign a page of what stores of `specsim fuzz` hold; nothing is replayed.
    """
    accept_seed(seed)
    if campaign:
        from specsim.commands.campaign_pages import write_campaign

        write_campaign([*campaign, *(folder or [])], html, json_file)
        return
    if folder is None or len(folder) != 1 or folder[0].is_file():
        given = " ".join(map(str, folder or [])) or "nothing"
        raise UsageError(
            f"{given} is not the folder of a run", "give one folder of replay files, or --campaign FILE ..."
        )
    from specsim.commands.pages import write_report
    from specsim.lifting.cache import open_cache
    from specsim.tiers import replaying

    def noted_there(stored: Replay, file: Path) -> dict[str, Any]:
        announce_replay(file, stored, stored.target, named=False, trust=trust)
        note_stale(file, stored)
        request = replaying.request_of(stored, stored.target, open_cache(cache_dir).folder, hang_seconds)
        return replaying.replay(request, file, record=True)

    write_report(folder[0], html, data, noted_there, cache_dir, json_file, budget_seconds)


@app.command(cls=Command)
def targets(
    target: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TARGET]...", help="Releases or checkouts: what lifts of each, and what drifted since a known one."
        ),
    ] = None,
    fetch: Annotated[
        list[str] | None,
        typer.Option(metavar="sglang==VERSION", help="Fetch a release into the cache; may be repeated."),
    ] = None,
    json_file: Annotated[Path | None, output_file("--json", help="Write the list to this file.")] = None,
    write: Annotated[
        Path | None,
        output_file("--write", help="Add the releases to this data file of known functions."),
    ] = None,
    seed: NoSeedOption = "0",
    budget_seconds: NoBudgetOption = None,
    cache_dir: CacheOption = None,
) -> None:
    """What can be tested here, at which tier, and why the rest cannot. With TARGET: what of it can be lifted, what
    drifted, and what a maintainer has to add; exit code 1 when something has to be added.
    """
    accept_seed(seed)
    if target:
        from specsim.commands.matrix import survey

        raise typer.Exit(survey(target, json_file, write, cache_dir))
    if write is not None:
        raise UsageError("--write without releases", "name those of the data file: sglang==A..B --write FILE")
    from specsim.engines.listing import list_targets
    from specsim.engines.packages import fetch_release
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.report.terminal import print_targets

    cache = open_cache(cache_dir)
    releases = [parse_target(text) for text in fetch or []]
    for release in releases:
        fetched = fetch_release(release, cache)
        if fetched is None:
            raise UsageError(f"--fetch {release.text!r} is not a release", "give for example --fetch sglang==VERSION")
        typer.echo(f"{release.text}: {fetched}")
    if releases:
        return
    listing = list_targets(cache)
    if json_file is not None:
        save_json(json_file, listing)
    print_targets(listing)


@app.command(cls=Command)
def bench(
    name: Annotated[str | None, typer.Argument(help="One benchmark; all when left out.")] = None,
    json_file: Annotated[Path | None, output_file("--json", help="Write the results to this file.")] = None,
    device: DeviceOption = "auto",
    full: Annotated[bool, typer.Option("--full", help="Also what takes many minutes.")] = False,
    only: Annotated[
        list[str] | None, typer.Option("--only", help="Of kernels: an operation or family; of planted: a defect.")
    ] = None,
    peer: Annotated[list[str] | None, typer.Option("--peer", help="Of kernels: sglang==VERSION, sglang@PATH.")] = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", help="Of interpreter, scheduler, planted, found: a release.")
    ] = None,
    schedules: Annotated[
        int | None, typer.Option("--schedules", min=2, help="Of scheduler, planted, found: of each target.")
    ] = None,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Timed calls of a peer and shape.")] = None,
    write: Annotated[str | None, typer.Option("--write", hidden=True, help="Deprecated: writes nothing.")] = None,
    budget_seconds: Annotated[
        float | None, typer.Option("--budget-seconds", max=SECONDS_MAX, help="End after them, with what was measured.")
    ] = None,
    seed: NoSeedOption = "0",
) -> None:
    """Speed of specsim's implementations beside the peers that are installed, in one run, with ratios.

    `kernels` is run when it is named or there is a GPU; `campaign`, `interpreter`, `scheduler`, `planted` and `found`
    when they are named. The last two hunt defects planted into a release's scheduler, and count the seeds that show
    what it has.
    """
    from specsim.bench import BENCHMARKS, OF_SCHEDULERS, run
    from specsim.report.terminal import print_bench
    from specsim.tiers.ops.answers import choose_device

    one_of("--device", device, ("auto", "cpu", "cuda"))
    if name == "guidance":
        deprecated("bench guidance", "measures nothing: strategies guided by coverage were removed")
        raise typer.Exit(PASS)
    one_of("NAME", name, tuple(BENCHMARKS))
    accept_seed(seed)
    for option, value, of in (
        ("--only", only, ("kernels", "planted")),
        ("--peer", peer, ("kernels",)),
        ("--target", target, ("interpreter", *OF_SCHEDULERS)),
        ("--schedules", schedules, OF_SCHEDULERS),
    ):
        if value and name not in of:
            raise UsageError(f"{option} without {of[0]}", f"it is an option of specsim bench {of[0]} {option} ...")
    if write is not None:
        deprecated("bench --write", "writes nothing: it was an option of bench guidance")
    chosen = choose_device("cpu" if name in ("interpreter", *OF_SCHEDULERS) else device)
    unasked = {"campaign", "interpreter", *OF_SCHEDULERS} | ({"kernels"} if chosen != "cuda" else set())
    names = [name] if name else [each for each in BENCHMARKS if each not in unasked]
    results = run(names, chosen, rounds, full, only or (), peer or target, budget_seconds, schedules)
    if json_file is not None:
        save_json(json_file, results)
    print_bench(results)


for command in (
    *(replay_files.pin, replay_files.shrink, bisect.bisect),
    *(model.explore, model.mutants, model.sweep, fuzz.fuzz),
):
    app.command(cls=Command)(command)
app.command(cls=Command)(template.template)
app.command(cls=Command)(doctor_command.doctor)
app.command(name="compile", cls=Command)(model.compile_simulator)


OPEN_FILES_MIN = 64  # of a command: pipes of two children, a store and its journal, what Python imports


def _require_a_place_to_work() -> None:
    """Refuse a folder that is gone and a limit of open files that no command keeps to, before either ends in an error
    of something else.
    """
    try:
        Path.cwd()
    except OSError as error:
        raise UsageError(f"the working folder cannot be used ({error.strerror})", "change to another folder") from error
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if limit != resource.RLIM_INFINITY and limit < OPEN_FILES_MIN:
        raise UsageError(
            f"this process may open {limit} files, specsim needs {OPEN_FILES_MIN}", "raise the limit: ulimit -n 1024"
        )


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Bad input ends as one sentence on standard error and exit code 2."""
    for stream in (sys.stdout, sys.stderr):  # a locale that lacks a character gets it spelled out
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        _require_a_place_to_work()
        app(args=arguments, prog_name="specsim")
    except UsageError as error:
        say(error)
        raise SystemExit(USAGE) from None
    except NondeterministicError as error:
        tell(f"specsim: nondeterministic: two runs of one schedule differ ({error}).", err=True)
        raise SystemExit(NONDETERMINISM) from None
    except KeyboardInterrupt:
        print("specsim: interrupted.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
