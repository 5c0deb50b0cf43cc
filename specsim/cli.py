"""The command line. Torch, triton and rich are imported only by the commands that need them: `specsim --help` answers
at once.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import specsim
from specsim.errors import UsageError
from specsim.explore.seeds import parse_seed

if TYPE_CHECKING:
    from specsim.judge.accounting import AccountingRequest
    from specsim.judge.ops import OpsRequest
    from specsim.replay_file import OpReplay, ScheduleReplay
    from specsim.verdict import Finding, Suite, Verdict

app = typer.Typer(
    name="specsim",
    help="Deterministic simulation testing for speculative decoding in LLM inference.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    epilog="Exit codes: 0 pass, 1 finding, 2 usage or environment, 3 nondeterminism. "
    "Checking a TARGET runs its code: check what you trust.",
)

TIERS = ("ops", "accounting")
DEFAULT_CASES = 100
DEFAULT_SCHEDULES = 400
SHRINK_ATTEMPTS = 5000

CacheOption = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Folder for fetched wheels. Default: $SPECSIM_CACHE_DIR, else ~/.cache/specsim."),
]
DeviceOption = Annotated[str, typer.Option(help="cpu (Triton's interpreter), cuda, or auto.")]
HangOption = Annotated[float, typer.Option(min=1.0, help="Seconds after which a call or schedule counts as hung.")]


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"specsim {specsim.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Commands work on a TARGET: model | sglang==VERSION | sglang@PATH[#REV] | module:object."""


@app.command()
def check(
    target: Annotated[
        str, typer.Argument(help="model | sglang==VERSION | sglang@PATH[#REV] | module:object")
    ] = "model",
    only: Annotated[str | None, typer.Option(metavar="TIER", help="Run one tier only: ops or accounting.")] = None,
    budget_seconds: Annotated[float, typer.Option(min=1.0, help="Time budget of the whole check.")] = 60.0,
    seed: Annotated[str, typer.Option(help="A number or a commit hash.")] = "0",
    cases: Annotated[int, typer.Option(min=1, help="Cases per implementation, as far as time goes.")] = DEFAULT_CASES,
    schedules: Annotated[int, typer.Option(min=1, help="Schedules, as far as time goes.")] = DEFAULT_SCHEDULES,
    mutant: Annotated[str, typer.Option(metavar="ID", help="Put a historic bug back into the model.")] = "",
    kernels: Annotated[
        str, typer.Option(metavar="PROVIDER", help="Move accepted KV in the model by reference, triton or a TARGET's.")
    ] = "",
    canary: Annotated[
        bool, typer.Option("--canary", help="Put historic bugs into the model, one by one: each must be found.")
    ] = False,
    out: Annotated[Path, typer.Option(help="Folder for replay files.")] = Path("specsim-findings"),
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the verdict to this file.")] = None,
    device: DeviceOption = "auto",
    hang_seconds: HangOption = 20.0,
    cache_dir: CacheOption = None,
) -> None:
    """Judge a target: every suite within the budget, a verdict table, one finding per defect."""
    from specsim.judge.accounting import AccountingRequest, run_accounting_suite
    from specsim.judge.ops import OpsRequest, run_ops_suite
    from specsim.report.terminal import live_progress, print_verdict
    from specsim.targets.cache import open_cache
    from specsim.targets.spec import ReleaseTarget, parse_target
    from specsim.verdict import Verdict, write_json

    _one_of("--only", only, TIERS)
    _one_of("--device", device, ("auto", "cpu", "cuda"))
    parsed = parse_target(target)
    if canary:
        _require_model("--canary", parsed.text)
        raise typer.Exit(_sing())
    cache = open_cache(cache_dir)
    started = time.monotonic()
    seed_number = parse_seed(seed)
    if mutant:
        _require_mutant(mutant, parsed.text)
    if kernels and parsed.text != "model":
        raise UsageError(f"--kernels {kernels} with {parsed.text}", "the model uses them: check model --kernels")
    _require_folder("--out", out)
    if json_file is not None:
        _require_folder("--json", json_file.parent)
    if isinstance(parsed, ReleaseTarget):
        from specsim.targets.fetch import fetch_wheel

        fetch_wheel(parsed.version, cache)
    verdict = Verdict(f"{parsed.text} with mutant {mutant}" if mutant else parsed.text, seed_number)
    with live_progress(parsed.text) as progress:
        # A mutant is of the model's accounting: its operations are not touched.
        if only in (None, "ops") and not mutant:
            ops = OpsRequest(
                target=parsed.text,
                cache=cache.folder,
                seed=seed_number,
                cases=cases,
                seconds=budget_seconds * (0.6 if only is None else 1.0),
                hang_seconds=hang_seconds,
                device=device,
                out=out,
            )
            _add(verdict, *run_ops_suite(ops, progress))
        if only in (None, "accounting"):
            accounting = AccountingRequest(
                target=parsed.text,
                cache=cache.folder,
                seed=seed_number,
                schedules=schedules,
                seconds=max(1.0, budget_seconds - (time.monotonic() - started)),
                hang_seconds=hang_seconds,
                out=out,
                mutant=mutant,
                kernels=kernels,
            )
            _add(verdict, *run_accounting_suite(accounting, progress))
    if json_file is not None:
        write_json(json_file, verdict.to_json())
    print_verdict(verdict)
    raise typer.Exit(verdict.exit_code)


def _add(verdict: Verdict, suite: Suite, findings: list[Finding]) -> None:
    verdict.suites.append(suite)
    verdict.findings += findings


def _require_mutant(mutant: str, target: str) -> None:
    from specsim.mutants.load import find

    find(mutant)
    _require_model(f"--mutant {mutant}", target)


def _require_model(option: str, target: str) -> None:
    if target != "model":
        raise UsageError(f"{option} with {target}", f"mutants are of the model: check model {option}")


def _sing() -> int:
    """The canary: a line per mutant; 1 when one is not found."""
    from specsim.mutants.canary import sing

    missed = 0
    for hunted in sing():
        found = f"found after {hunted.schedules_median:g} schedules in {' '.join(hunted.rules)}"
        missed += not hunted.found
        typer.echo(f"{hunted.mutant.id:14}  {found if hunted.found else 'NOT FOUND'}")
    typer.echo(f"fail: {missed} not found" if missed else "pass: each is found")
    return 1 if missed else 0


@app.command()
def replay(
    file: Annotated[Path, typer.Argument(help="A replay file that `specsim check --out DIR` wrote.")],
    target: Annotated[
        str | None, typer.Option(help="Run it on this target instead of the one it was found on.")
    ] = None,
    device: Annotated[str | None, typer.Option(help="cpu or cuda. Default: the device it was found on.")] = None,
    verify: Annotated[
        bool, typer.Option("--verify", help="Run it twice, under two hash seeds; exit 3 at the first difference.")
    ] = False,
    hang_seconds: HangOption = 20.0,
    cache_dir: CacheOption = None,
) -> None:
    """See a finding again. Exit code 1 when it is reproduced, 0 when it is not, 2 when the file no longer applies,
    3 when it is reproduced but not bit for bit.
    """
    from specsim import replay_file
    from specsim.judge.accounting import replay_schedule, replay_schedule_twice
    from specsim.judge.ops import replay_ops, replay_ops_twice
    from specsim.report.terminal import print_replay, print_schedule_replay
    from specsim.targets.spec import parse_target

    _one_of("--device", device, ("auto", "cpu", "cuda"))
    stored = replay_file.load(file)
    text = parse_target(target or stored.target).text
    if isinstance(stored, replay_file.OpReplay):
        request = _ops_request(stored, text, device, hang_seconds, cache_dir, Path())
        case = replay_ops_twice(request, file) if verify else replay_ops(request, file)
        raise typer.Exit(print_replay(stored, text, case, verified=verify))
    schedule = _schedule_request(stored, text, hang_seconds, cache_dir, Path())
    answer = replay_schedule_twice(schedule, file) if verify else replay_schedule(schedule, file)
    raise typer.Exit(print_schedule_replay(stored, text, answer, verified=verify))


@app.command()
def pin(
    file: Annotated[Path, typer.Argument(help="A replay file that `specsim check --out DIR` wrote.")],
    out: Annotated[Path | None, typer.Option(help="The test to write, test_NAME.py.")] = None,
    target: Annotated[str | None, typer.Option(help="What the test runs. Default: what it was found on.")] = None,
    still: Annotated[bool, typer.Option("--still", help="Assert that the finding is still there.")] = False,
) -> None:
    """Write a pytest that replays a finding and asserts that it is gone."""
    from specsim import replay_file
    from specsim.judge import pinned
    from specsim.targets.spec import parse_target

    stored = replay_file.load(file)
    test = out or Path(pinned.default_name(stored))
    pinned.pin(file, test, parse_target(target or stored.target).text, still)
    typer.echo(f"{test}, with {test.with_suffix('.json')} beside it")


@app.command()
def shrink(
    file: Annotated[Path, typer.Argument(help="A replay file that `specsim check --out DIR` wrote.")],
    out: Annotated[Path, typer.Option(help="Folder for the smaller replay file.")] = Path("specsim-findings"),
    attempts: Annotated[int, typer.Option(min=1, help="Cases or schedules to try.")] = SHRINK_ATTEMPTS,
    hang_seconds: HangOption = 20.0,
    cache_dir: CacheOption = None,
) -> None:
    """Make a replay file smaller, with more attempts than `check` takes."""
    from specsim import replay_file
    from specsim.judge.accounting import shrink_schedule
    from specsim.judge.ops import shrink_ops

    _require_folder("--out", out)
    stored = replay_file.load(file)
    if isinstance(stored, replay_file.OpReplay):
        request = _ops_request(stored, stored.target, None, hang_seconds, cache_dir, out)
        answer, unit = shrink_ops(request, file, attempts), "input elements"
    else:
        schedule = _schedule_request(stored, stored.target, hang_seconds, cache_dir, out)
        answer, unit = shrink_schedule(schedule, file, attempts), "events"
    (choices, size), (choices_now, size_now) = answer["before"], answer["after"]
    typer.echo(f"{choices} choices and {size} {unit} before, {choices_now} choices and {size_now} {unit} now")
    typer.echo(f"specsim replay {answer['replay']}")


def _ops_request(
    stored: OpReplay, target: str, device: str | None, hang_seconds: float, cache_dir: Path | None, out: Path
) -> OpsRequest:
    from specsim.judge.ops import OpsRequest
    from specsim.targets.cache import open_cache

    return OpsRequest(
        target=target,
        cache=open_cache(cache_dir).folder,
        seed=stored.seed,
        cases=1,
        seconds=hang_seconds,
        hang_seconds=hang_seconds,
        device=device or stored.device,
        out=out,
    )


def _schedule_request(
    stored: ScheduleReplay, target: str, hang_seconds: float, cache_dir: Path | None, out: Path
) -> AccountingRequest:
    from specsim.judge.accounting import AccountingRequest
    from specsim.targets.cache import open_cache

    return AccountingRequest(
        target=target,
        cache=open_cache(cache_dir).folder,
        seed=stored.seed,
        schedules=1,
        seconds=hang_seconds,
        hang_seconds=hang_seconds,
        out=out,
        mutant=stored.mutant if target == stored.target else "",
        kernels=stored.kernels if target == stored.target else "",
    )


@app.command()
def targets(
    fetch: Annotated[
        list[str] | None,
        typer.Option(metavar="sglang==VERSION", help="Fetch a release into the cache; may be repeated."),
    ] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the list to this file.")] = None,
    cache_dir: CacheOption = None,
) -> None:
    """What can be tested here, at which tier, and why the rest cannot."""
    from specsim.report.terminal import print_targets
    from specsim.targets.cache import open_cache
    from specsim.targets.fetch import fetch_wheel
    from specsim.targets.listing import list_targets
    from specsim.targets.spec import ReleaseTarget, parse_target
    from specsim.verdict import write_json

    cache = open_cache(cache_dir)
    releases = [parse_target(text) for text in fetch or []]
    for release in releases:
        if not isinstance(release, ReleaseTarget):
            raise UsageError(f"--fetch {release.text!r} is not a release", "give for example --fetch sglang==VERSION")
        typer.echo(f"{release.text}: {fetch_wheel(release.version, cache)}")
    if releases:
        return
    listing = list_targets(cache)
    if json_file is not None:
        write_json(json_file, listing)
    print_targets(listing)


@app.command()
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
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the table to this file.")] = None,
    write: Annotated[Path | None, typer.Option(help="Write the page of all mutants, survivors included.")] = None,
) -> None:
    """Put each historic bug back into the model, and see how soon it is found. Exit code 1 when one is not."""
    from specsim.explore.strategies import STRATEGIES
    from specsim.mutants import table
    from specsim.mutants.catalogue import CATALOGUE
    from specsim.mutants.load import find
    from specsim.report.terminal import print_mutants
    from specsim.verdict import write_json

    chosen = [find(mutant_id) for mutant_id in ids or []] or list(CATALOGUE)
    for option, file in (("--json", json_file), ("--write", write)):
        if file is not None:
            _require_folder(option, file.parent)
    if write is not None and (ids or without or only_oracle):
        raise UsageError("--write with a selection of mutants or rules", "the page is of all: give --write alone")
    at_once = jobs or os.cpu_count() or 1
    off, only = frozenset(without or ()), frozenset(table.CONTENT_ORACLE if only_oracle else ())
    _one_of("--strategy", strategy, tuple(STRATEGIES))
    hunted = table.hunt_all(
        chosen, seeds=seeds, schedules_max=schedules, jobs=at_once, without=off, only=only, strategy=strategy
    )
    print_mutants(table.COLUMNS, [table.row(each) for each in hunted], table.seen_by_nobody(hunted))
    if json_file is not None:
        write_json(json_file, {"seeds": seeds, "mutants": [table.to_json(each) for each in hunted]})
    if write is not None:
        # Whoever is not found soon without a rule survives it.
        soon = table.SOON
        survivors = list(table.survivors(hunted, seeds=soon.seeds, schedules_max=soon.schedules, jobs=at_once))
        oracle = table.hunt_all(
            chosen, seeds=soon.seeds, schedules_max=soon.schedules, jobs=at_once, only=table.CONTENT_ORACLE
        )
        write.write_text(table.page(hunted, survivors, oracle), encoding="utf-8")
    raise typer.Exit(0 if all(each.found == seeds for each in hunted) else 1)


@app.command()
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
        _require_folder("--json", json_file.parent)
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


@app.command()
def bench(
    name: Annotated[str | None, typer.Argument(help="One benchmark; all when left out.")] = None,
    json_file: Annotated[Path | None, typer.Option("--json", help="Write the results to this file.")] = None,
    device: DeviceOption = "auto",
) -> None:
    """Speed of specsim's implementations beside the peers that are installed, in one run, with ratios."""
    from specsim.bench import BENCHMARKS, run
    from specsim.judge.ops_child import choose_device
    from specsim.report.terminal import print_bench
    from specsim.verdict import write_json

    _one_of("--device", device, ("auto", "cpu", "cuda"))
    _one_of("NAME", name, tuple(BENCHMARKS))
    results = run([name] if name else list(BENCHMARKS), choose_device(device))
    if json_file is not None:
        write_json(json_file, results)
    print_bench(results)


def _one_of(option: str, value: str | None, allowed: tuple[str, ...]) -> None:
    if value is not None and value not in allowed:
        raise UsageError(f"{option} {value!r} is unknown", f"allowed: {', '.join(allowed)}")


def _require_folder(option: str, folder: Path) -> None:
    """Refuse a folder that cannot take files before the work begins rather than after."""
    parent = next(p for p in [folder, *folder.absolute().parents] if p.exists())
    if not parent.is_dir() or not os.access(parent, os.W_OK):
        raise UsageError(f"{option} {folder}: {parent} is not a folder that can be written", "name another folder")


def main(arguments: list[str] | None = None) -> None:
    """Run the command line. Bad input ends as one sentence on standard error and exit code 2."""
    from specsim.judge.accounting import NondeterministicError

    try:
        app(args=arguments, prog_name="specsim")
    except UsageError as error:
        print(f"specsim: {error.problem}.\n         {error.remedy[:1].upper()}{error.remedy[1:]}.", file=sys.stderr)
        raise SystemExit(2) from None
    except NondeterministicError as error:
        print(f"specsim: nondeterministic: two runs of one schedule differ ({error}).", file=sys.stderr)
        raise SystemExit(3) from None
    except KeyboardInterrupt:
        print("specsim: interrupted.", file=sys.stderr)
        raise SystemExit(130) from None
