"""The command line. Torch, triton and rich are imported only by the commands that need them: `specsim --help` answers
at once.
"""

from __future__ import annotations

import io
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

import specsim
from specsim.commands import bisect, check, explore, fuzz, lossless, model, replay_files, template
from specsim.commands import doctor as doctor_command
from specsim.commands import explain as explain_command
from specsim.commands.git_bisect import BisectRunOption, exit_codes, skipping
from specsim.commands.help_text import Group
from specsim.commands.invocation import GIT_STOPS, Command, output_file, output_folder
from specsim.commands.options import (
    SECONDS_MAX,
    CacheOption,
    DeviceOption,
    HangOption,
    one_of,
    say,
    tell,
)
from specsim.commands.trust import NAME_TARGET, TrustOption, announce_replay
from specsim.engines.registry import MAIN
from specsim.errors import NondeterministicError, UsageError
from specsim.files import save_json
from specsim.verdict import INTERRUPTED, NONDETERMINISM, NOT_CHECKED, USAGE

if TYPE_CHECKING:
    from specsim.replay_file import Replay

app = typer.Typer(
    name="specsim",
    help="Deterministic simulation testing for speculative decoding in LLM inference.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    cls=Group,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit codes: 0 pass, 1 finding, 2 usage or environment, 3 nondeterminism, 125 not checkable, "
    "130 interrupted. Checking a TARGET runs its code: check what you trust.",
)

REPLAYED = "specsim.replayed/1"


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


app.command(cls=check.CheckCommand)(check.check)


@app.command(cls=Command)
@skipping
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
    json_file: Annotated[Path | None, output_file("--json", help="Write what it showed to this file.")] = None,
    trust: TrustOption = False,
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
    from specsim.commands.pages import write_page
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.report.terminal import print_replay
    from specsim.tiers import replaying

    with exit_codes(bisect_run, of_errors=GIT_STOPS):
        one_of("--device", device, ("auto", "cpu", "cuda"))
        stored = replay_file.load(file)
        if device is not None and not stored.device:
            raise UsageError(f"--device with a finding of the {stored.tier} tier", "it has no device: leave it out")
        text = parse_target(target or stored.target).text
        announce_replay(file, stored, text, named=target is not None, trust=trust, remedy=NAME_TARGET)
    hang_seconds = min(hang_seconds, budget_seconds or hang_seconds)
    request = replaying.request_of(stored, text, open_cache(cache_dir).folder, hang_seconds, device=device)
    answer = (
        replaying.replay_twice(request, file) if verify else replaying.replay(request, file, record=html is not None)
    )
    exit_code = print_replay(stored, text, answer, verified=verify)
    if html is not None and answer.get("judged", True):
        recorded = replaying.replay(request, file, record=True) if verify else answer
        write_page(stored, file, recorded, text, cache_dir, html)
    elif html is not None:
        typer.echo("specsim: nothing was replayed: there is no page of it.", err=True)
    if json_file is not None:
        shown = {name: value for name, value in answer.items() if name not in ("event", "recording")}
        save_json(json_file, {"format": REPLAYED, "file": str(file), "target": text, "exit_code": exit_code, **shown})
    raise typer.Exit(exit_code)


@app.command(cls=Command)
def report(
    folder: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="DIR|FILE",
            help="The folder of replay files of a run, or what check --json wrote; with --campaign, more stores.",
        ),
    ] = None,
    campaign: Annotated[
        list[Path] | None,
        typer.Option(metavar="FILE", help="Instead of DIR: a store of `specsim fuzz`; several are shown as one."),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="Replay on it. Default: what each was found on, seen from this folder.")
    ] = None,
    html: Annotated[Path, output_folder("--html", help="Where the index and the pages go.")] = Path("specsim-report"),
    data: Annotated[
        Path, typer.Option(metavar="FOLDER", help="A checkout of specsim: its release matrix, mutants and speed.")
    ] = Path(),
    json_file: Annotated[Path | None, output_file("--json", help="Write what the index lists to this file.")] = None,
    trust: TrustOption = False,
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
    if campaign:
        from specsim.commands.campaign_pages import write_campaign

        write_campaign([*campaign, *(folder or [])], html, json_file)
        return
    if folder is None or len(folder) != 1:
        given = " ".join(map(str, folder or [])) or "nothing"
        raise UsageError(
            f"{given} is not the folder of a run", "give one folder of replay files, or --campaign FILE ..."
        )
    from specsim.commands.pages import write_report
    from specsim.engines.target import parse_target
    from specsim.lifting.cache import open_cache
    from specsim.tiers import replaying

    on = parse_target(target).text if target else None

    def announced(stored: Replay, file: Path) -> None:
        announce_replay(file, stored, on or stored.target, named=on is not None, trust=trust)

    def noted(stored: Replay, file: Path) -> dict[str, Any]:
        request = replaying.request_of(stored, on or stored.target, open_cache(cache_dir).folder, hang_seconds)
        return replaying.replay(request, file, record=True)

    if not write_report(folder[0], html, data, noted, cache_dir, json_file, budget_seconds, on, announced):
        raise typer.Exit(NOT_CHECKED)


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
        typer.Option(metavar=f"{MAIN}==VERSION", help="Fetch a release into the cache; may be repeated."),
    ] = None,
    json_file: Annotated[Path | None, output_file("--json", help="Write the list to this file.")] = None,
    write: Annotated[
        Path | None,
        output_file("--write", help="Add the releases to this data file of known functions; of --kernels the page."),
    ] = None,
    kernels: Annotated[
        bool, typer.Option("--kernels", help="Which kernels for speculation run in an operation, and which do not.")
    ] = False,
    cache_dir: CacheOption = None,
) -> None:
    """What can be tested here, at which tier, and why the rest cannot. With TARGET: what of it can be lifted, what
    drifted, and what a maintainer has to add; exit code 1 when something has to be added. With --kernels: which of its
    Triton kernels for speculation are covered.
    """
    if kernels:
        from specsim.commands.inventory import list_kernels

        list_kernels(target or [], json_file, write, cache_dir)
        return
    if target:
        from specsim.commands.matrix import survey

        raise typer.Exit(survey(target, json_file, write, cache_dir))
    if write is not None:
        raise UsageError("--write without releases", f"name those of the data file: {MAIN}==A..B --write FILE")
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
            raise UsageError(f"--fetch {release.text!r} is not a release", f"give for example --fetch {MAIN}==VERSION")
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
    peer: Annotated[
        list[str] | None, typer.Option("--peer", help=f"Of kernels: {MAIN}==VERSION, {MAIN}@PATH, other engines.")
    ] = None,
    target: Annotated[
        list[str] | None, typer.Option("--target", help="Of interpreter, scheduler, planted, found: a release.")
    ] = None,
    schedules: Annotated[
        int | None, typer.Option("--schedules", min=2, help="Of scheduler, planted, found: of each target.")
    ] = None,
    worker: Annotated[
        str, typer.Option("--worker", metavar="fake|release", help="Of scheduler, found: whose worker runs.")
    ] = "fake",
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Timed calls of a peer and shape.")] = None,
    budget_seconds: Annotated[
        float | None, typer.Option("--budget-seconds", max=SECONDS_MAX, help="End after them, with what was measured.")
    ] = None,
) -> None:
    """Speed of specsim's implementations beside the peers that are installed, in one run, with ratios.

    `kernels` is run when it is named or there is a GPU; `interpreter`, `scheduler`, `planted` and `found` when
    they are named. The last two hunt defects planted into a release's scheduler, and count the seeds that show
    what it has.
    """
    from specsim import interrupts
    from specsim.bench import BENCHMARKS, OF_SCHEDULERS, environment, run
    from specsim.report.terminal import print_bench_entry, print_bench_environment, print_bench_rest
    from specsim.tiers.ops.answers import choose_device

    one_of("--device", device, ("auto", "cpu", "cuda"))
    one_of("NAME", name, tuple(BENCHMARKS))
    one_of("--worker", worker, ("fake", "release"))
    for option, value, of in (
        ("--only", only, ("kernels", "planted")),
        ("--peer", peer, ("kernels",)),
        ("--target", target, ("interpreter", *OF_SCHEDULERS)),
        ("--schedules", schedules, OF_SCHEDULERS),
        ("--worker", worker != "fake", ("scheduler", "found")),
    ):
        if value and name not in of:
            raise UsageError(f"{option} without {of[0]}", f"it is an option of specsim bench {of[0]} {option} ...")
    chosen = choose_device("cpu" if name in ("interpreter", *OF_SCHEDULERS) else device)
    unasked = {"interpreter", *OF_SCHEDULERS} | ({"kernels"} if chosen != "cuda" else set())
    names = [name] if name else [each for each in BENCHMARKS if each not in unasked]
    print_bench_environment(environment())
    with interrupts.gentle(), interrupts.termination_asks():
        results = run(
            names,
            chosen,
            rounds,
            full,
            only or (),
            peer or target,
            budget_seconds,
            schedules,
            worker,
            print_bench_entry,
        )
        was_interrupted = interrupts.asked()
    if json_file is not None:
        save_json(json_file, results)
    print_bench_rest(results["benchmarks"])
    if was_interrupted:
        raise typer.Exit(INTERRUPTED)


for command in (
    explain_command.explain,
    *(replay_files.pin, replay_files.shrink, bisect.bisect, lossless.lossless),
    *(explore.explore, model.mutants, fuzz.fuzz),
):
    app.command(cls=Command)(command)
app.command(cls=Command)(template.template)
app.command(cls=Command)(doctor_command.doctor)
developers = typer.Typer(
    name="dev", help="What only developers of specsim need.", no_args_is_help=True, rich_markup_mode=None, cls=Group
)
developers.command(cls=check.DevelopersCheckCommand)(check.check)
app.add_typer(developers)


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
    with ended_in_words():
        _require_a_place_to_work()
        app(args=arguments, prog_name="specsim")


@contextmanager
def ended_in_words() -> Iterator[None]:
    """End the process as a command ends where its work raises an error for users: a sentence, and an exit code."""
    try:
        yield
    except UsageError as error:
        say(error)
        raise SystemExit(USAGE) from None
    except NondeterministicError as error:
        tell(f"specsim: nondeterministic: two runs of one schedule differ ({error}).", err=True)
        raise SystemExit(NONDETERMINISM) from None
    except KeyboardInterrupt:
        print("specsim: interrupted.", file=sys.stderr)
        raise SystemExit(INTERRUPTED) from None
