"""`specsim fuzz`: a campaign from what is asked to the exit code."""

from __future__ import annotations

import math
import os
import shlex
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from specsim.choices.seeds import parse_seed
from specsim.commands.invocation import output_file, output_folder
from specsim.commands.options import (
    SECONDS_MAX,
    CacheOption,
    HangOption,
    KeepEnvironmentOption,
    MemoryOption,
    one_of,
    say,
    tell,
)
from specsim.commands.trust import NAME_TARGETS, TrustOption, announce
from specsim.deadline import Deadline, TimeSpent
from specsim.errors import UsageError
from specsim.files import save_json, write_text
from specsim.isolation.limits import allowed_jobs
from specsim.replay_file import FINDINGS, command, is_module
from specsim.tiers.registry import TIERS
from specsim.verdict import FINDING, INTERRUPTED, NONDETERMINISM, NOT_CHECKED, PASS, USAGE

if TYPE_CHECKING:
    from specsim.engines.target import Target
    from specsim.fuzz.batches import BatchPlan
    from specsim.fuzz.campaign import BatchPool, CampaignOutcome
    from specsim.fuzz.store import Store, StoredFinding
    from specsim.fuzz.work import BatchResult
    from specsim.lifting.cache import Cache
    from specsim.report.live import LiveLine

FORMAT = "specsim.fuzz/3"
DEFAULT_STORE = Path(".specsim/campaign.db")
NIGHTLY_SECONDS = 300.0
RERUN_SHARE = 0.25  # of the budget, for findings of other versions


def fuzz(
    target: Annotated[
        list[str] | None,
        typer.Argument(metavar="[TARGET]...", show_default="model", help="What `specsim check` takes; several share."),
    ] = None,
    store_file: Annotated[
        Path, typer.Option("--store", metavar="FILE", help="Where all is kept: one SQLite file.")
    ] = DEFAULT_STORE,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the campaign in the store.")] = False,
    jobs: Annotated[
        str, typer.Option(metavar="N|auto", help="Processes at a time; auto: one a core, none beside a cluster.")
    ] = "auto",
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="Run batches on this Ray cluster: HOST:PORT or auto.")
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="I/N", help="This one of N machines, from 0: each has a store.")
    ] = "0/1",
    seed: Annotated[str | None, typer.Option(help="A number or a commit hash.", show_default="0")] = None,
    budget_seconds: Annotated[
        float | None,
        typer.Option(min=1.0, max=SECONDS_MAX, help="End after them.", show_default="none; 300 with --nightly"),
    ] = None,
    only: Annotated[str | None, typer.Option(metavar="TIER", help="ops or scheduler.")] = None,
    out: Annotated[Path, output_folder("--out", help="Folder for replay files of what is new.")] = FINDINGS,
    nightly: Annotated[
        bool, typer.Option("--nightly", help="A time budget, the commit as seed, and canaries that must be found.")
    ] = False,
    again: Annotated[
        str | None, typer.Option(metavar="SHARD:INDEX", help="Make the batch of one run again, and nothing else.")
    ] = None,
    metrics_port: Annotated[
        int | None, typer.Option(min=0, max=65535, help="Serve numbers for Prometheus on this port of the loopback.")
    ] = None,
    json_file: Annotated[Path | None, output_file("--json", help="Write what this part did to this file.")] = None,
    trust: TrustOption = False,
    hang_seconds: HangOption = 20.0,
    _memory: MemoryOption = None,
    _kept: KeepEnvironmentOption = None,
    cache_dir: CacheOption = None,
) -> None:
    """Leave it running: `check`'s suites for hours, on every core, with a store that loses nothing. Exit code 1 when it
    found something that the store did not have, 130 when it was interrupted.
    """
    from specsim.fuzz.store import Store
    from specsim.lifting.cache import open_cache

    cache = open_cache(cache_dir)
    one_of("--only", only, tuple(sorted(TIERS)))
    shard_number = shard_of(shard)
    asked_seed = _seed(seed, nightly)
    if again is not None:
        from specsim.commands.repeated_run import make_again

        plan = _plan(target, only, asked_seed or 0, None)
        raise typer.Exit(
            make_again(again, store_file, plan, out, json_file, hang_seconds, cache.folder, named=target, trust=trust)
        )
    width = jobs_of(jobs)
    if resume and not store_file.exists():
        raise UsageError(f"--resume: there is no campaign in {store_file}", "begin one without --resume")
    with Store.open(store_file, campaign=asked_seed or 0) as store:
        before = _stored_plan(store)
        if before and not (resume or nightly):
            raise UsageError(f"{store_file} holds a campaign", "go on with it by --resume, or name another --store")
        given = asked_seed if asked_seed is not None else store.campaign
        plan = _plan(target, only, given, before)
        announce(store_file, plan.targets, plan.targets if target else (), trust, NAME_TARGETS)
        plan, unavailable = _available(plan, cache)
        store.set_meta(campaign=str(plan.campaign), plan=plan.to_json())
        seconds = budget_seconds or (NIGHTLY_SECONDS if nightly else math.inf)
        campaign = _Campaign(store, plan, shard_number, width, seconds, out, hang_seconds, cache, unavailable)
        campaign.on_cluster(ray, jobs != "auto", cache_dir)
        raise typer.Exit(campaign.run(nightly, metrics_port, json_file))


def shard_of(text: str) -> int:
    """The shard that I/N names."""
    number, slash, count = text.partition("/")
    if not (slash and number.isascii() and count.isascii() and number.isdigit() and count.isdigit()):
        raise UsageError(f"--shard {text!r} is no shard", "give I/N, such as 0/4 to 3/4 on four machines")
    if int(number) >= int(count):
        raise UsageError(f"--shard {text}: there is no shard {number} of {count}", f"give 0/{count} and on")
    return int(number)


def jobs_of(text: str) -> int:
    """How many processes --jobs names."""
    if text != "auto" and not (text.isascii() and text.isdigit() and int(text)):
        raise UsageError(f"--jobs {text!r} is no number of processes", "give a number from 1 on, or auto")
    return allowed_jobs(None if text == "auto" else int(text))


def _seed(text: str | None, nightly: bool) -> int | None:
    """The seed that was given, None for none; with `nightly` the commit that is checked out."""
    if text is not None or not nightly:
        return None if text is None else parse_seed(text)
    for variable in ("GITHUB_SHA", "CI_COMMIT_SHA"):
        if os.environ.get(variable):
            return parse_seed(os.environ[variable])
    from specsim.lifting.git import resolved

    try:
        commit = resolved("--nightly", Path(), "HEAD")
    except UsageError:  # there is no git
        commit = None
    if not isinstance(commit, str):
        raise UsageError(
            "--nightly: there is no commit here to take the seed from", "give one: --seed $(git rev-parse HEAD)"
        )
    return parse_seed(commit)


def _stored_plan(store: Store) -> BatchPlan | None:
    from specsim.fuzz.batches import plan_from_json

    text = store.meta().get("plan", "")
    return plan_from_json(text) if text else None


def _plan(
    targets: Sequence[str] | None,
    only: str | None,
    campaign: int,
    before: BatchPlan | None,
) -> BatchPlan:
    """What is asked for; what is not said is as it was `before`."""
    from specsim.engines.ranges import expand_targets
    from specsim.fuzz.batches import BatchPlan, lots_of

    lots = before.lots if before and not targets and not only else None
    if lots is None:
        names = targets or (before.targets if before else ["model"])
        parsed = expand_targets(list(names))
        lots = lots_of({one.text: [tier for tier in _tiers_of(one) if only in (None, tier)] for one in parsed})
    if not lots:
        raise UsageError(f"--only {only}: none of the targets has that tier", f"give one of {', '.join(sorted(TIERS))}")
    return BatchPlan(campaign, lots)


def _tiers_of(target: Target) -> tuple[str, ...]:
    return tuple(sorted(name for name, tier in TIERS.items() if tier.is_of(target)))


def _available(plan: BatchPlan, cache: Cache) -> tuple[BatchPlan, dict[str, str]]:
    """The plan without the targets that are not there, and why each is not. UsageError when none is."""
    from specsim.engines.load import prepare
    from specsim.engines.target import parse_target
    from specsim.fuzz.versions import version_of

    problems: dict[str, UsageError] = {}
    for text in plan.targets:
        target = parse_target(text)
        try:
            prepare(target, cache, on_gpu=False)
            version_of(target, cache)
        except UsageError as error:
            problems[text] = error
    if len(problems) == len(plan.targets):
        raise next(iter(problems.values()))
    there = tuple(lot for lot in plan.lots if lot.target not in problems)
    return replace(plan, lots=there), {text: f"{error.problem}; {error.remedy}" for text, error in problems.items()}


class _Campaign:
    """A campaign while it runs: what is shown and written of it."""

    def __init__(
        self,
        store: Store,
        plan: BatchPlan,
        shard: int,
        jobs: int,
        seconds: float,
        out: Path,
        hang_seconds: float,
        cache: Cache,
        unavailable: Mapping[str, str],
    ) -> None:
        self._store = store
        self._plan = plan
        self._shard = shard
        self._jobs = jobs
        self._seconds = seconds
        self._out = out
        self._hang_seconds = hang_seconds
        self._cache = cache
        self._unavailable = unavailable
        self._started = time.monotonic()
        self._told = 0
        self._verdicts: list[dict[str, str]] = []
        self._ray: tuple[str | None, bool, Path | None] = None, False, None

    def on_cluster(self, address: str | None, beside: bool, cache_dir: Path | None) -> None:
        """Run batches on a Ray cluster, with processes here `beside` it; `cache_dir` as its nodes have it."""
        self._ray = address, beside, cache_dir

    def run(
        self,
        nightly: bool,
        metrics_port: int | None,
        json_file: Path | None,
    ) -> int:
        """Run it, print and write what it did; returns the exit code."""
        from specsim import interrupts
        from specsim.commands.campaign_pool import pool_of
        from specsim.fuzz.campaign import go_on
        from specsim.report.live import live

        missed = _missed_canaries() if nightly else []
        until = self._started + self._seconds
        budget = None if math.isinf(self._seconds) else self._seconds
        with ExitStack() as stack:
            stack.enter_context(interrupts.gentle())
            stack.enter_context(interrupts.termination_asks())
            line = stack.enter_context(live(f"fuzzing {self._names()}", budget))
            address, beside, nodes_cache = self._ray
            pool = pool_of(
                stack, self._jobs, address, beside, self._cache.folder, nodes_cache, self._hang_seconds, line.say
            )
            watchers = _watchers(stack, self._store, pool, metrics_port, line)
            for text, why in self._unavailable.items():
                line.say(f"specsim: {text} is left out ({why}).")
            self._ask_other_versions(line, until)

            def on_result(result: BatchResult, outcome: CampaignOutcome) -> None:
                self._show(result, outcome, line)
                for watcher in [*watchers]:
                    try:
                        watcher(result)
                    except UsageError as error:  # the store has everything: the campaign goes on without
                        watchers.remove(watcher)
                        line.say(f"specsim: {error.problem}; the campaign goes on without it.")

            outcome = go_on(
                self._plan,
                self._store,
                self._shard,
                pool,
                until=until,
                interrupted=interrupts.asked,
                on_result=on_result,
                on_stop=lambda text: line.say(f"specsim: {text}."),
                prepare=lambda batch: replace(
                    batch,
                    device="cuda" if address is not None and TIERS[batch.tier].has_device else "cpu",
                ),
            )
            interrupted = interrupts.asked()
        code = _exit_code(outcome, missed, interrupted)
        self._print(outcome, missed, interrupted)
        if json_file is not None:
            save_json(json_file, self._to_json(outcome, missed, interrupted, code))
        return code

    def _names(self) -> str:
        first, *rest = self._plan.targets
        return f"{first} and {len(rest)} more" if rest else first

    def _ask_other_versions(self, line: LiveLine, until: float) -> None:
        """Run the findings of other versions again on those of this campaign."""
        from specsim import interrupts
        from specsim.engines.target import parse_target
        from specsim.findings.bisect.verdicts import AskLimits
        from specsim.fuzz.rerun import run_again
        from specsim.fuzz.versions import version_of

        limits = AskLimits(self._cache.folder, self._out, hang_seconds=self._hang_seconds)
        no_later = min(until, time.monotonic() + self._seconds * RERUN_SHARE)
        for text in self._plan.targets:
            version = version_of(parse_target(text), self._cache)

            def tell(finding: StoredFinding, verdict: str, why: str, text: str = text, version: str = version) -> None:
                told = {"signature": finding.signature, "target": text, "version": version, "verdict": verdict}
                self._verdicts.append({**told, "why": why})
                word = "still there" if verdict == "shown" else verdict
                line.say(f"{finding.signature} of {finding.target} {finding.last_seen}: {word} on {text} ({why})")

            def goes_on() -> bool:
                return time.monotonic() < no_later and not interrupts.asked()

            with suppress(TimeSpent), Deadline(no_later).enforced():
                run_again(self._store, text, version, limits, goes_on, tell)

    def _show(self, result: BatchResult, outcome: CampaignOutcome, line: LiveLine) -> None:
        progress = line.progress
        name = TIERS[result.batch.tier].unit
        progress.counts[name] = progress.counts.get(name, 0) + result.runs
        progress.events, progress.findings = outcome.events, len(outcome.new)
        progress.now = f"{result.batch.target}, {result.batch.tier}"
        for finding in outcome.new[self._told :]:
            line.say(f"new: {finding.signature} on {finding.target}: {finding.title}")
            for said in self._write(finding):
                line.say(f"     {said}")
        self._told = len(outcome.new)
        line.tell()

    def _write(self, finding: StoredFinding) -> list[str]:
        """Write the smallest replay file of a finding; returns lines that say where it is, or why there is none."""
        said = []
        for replay in self._store.replays(finding.signature, finding.target)[:1]:
            try:
                path = self._write_file(finding.target, finding.signature, replay.text)
                said.append(command(str(path), finding.target, finding.target))
            except UsageError as error:  # the store has it
                said += [f"{error.problem}; it is made again by", self._again(finding.shard, finding.run)]
        return said

    def _write_file(self, target: str, signature: str, text: str) -> Path:
        from specsim.replay_file import file_name

        path = self._out / f"{file_name(f'{target}-{signature}')}.json"
        write_text(path, text)
        return path

    def _again(self, shard: int, index: int) -> str:
        return f"specsim fuzz --again {shard}:{index}{self._stored()}"

    def _stored(self) -> str:
        """The options by which a command goes on with this store."""
        trust = " --trust" if any(map(is_module, self._plan.targets)) else ""
        return f"{trust} --store {shlex.quote(str(self._store.path))}"

    def _keep_lost(self, lost: Sequence[BatchResult]) -> None:
        """Name the findings that the store does not have, with the runs that make them again, and write their files
        where there may be room.
        """
        for result in lost:
            for found in result.findings:
                batch = result.batch
                run = self._again(batch.shard, found.index)
                tell(f"         not stored: {found.signature} on {batch.target}: {run}", err=True)
                if found.replay:
                    with suppress(UsageError):  # the disk is full, as was said
                        self._write_file(batch.target, found.signature, found.replay)

    def _print(self, outcome: CampaignOutcome, missed: Sequence[str], interrupted: bool) -> None:
        runs, events, cpu_seconds = self._store.totals()
        took = time.monotonic() - self._started
        typer.echo(
            f"{outcome.runs} runs in {outcome.batches} batches, {outcome.events} events, {took:.0f} s; "
            f"the store has {runs} runs, {events} events, {cpu_seconds:.0f} s of CPU time"
        )
        for finding in outcome.new:
            where = f"run {finding.shard}:{finding.run}, after {finding.cpu_seconds:.0f} s of CPU time"
            tell(f"new: {finding.signature} on {finding.target} {finding.first_seen}: {where}")
        if outcome.nondeterministic:
            tell(f"specsim: nondeterministic: {outcome.nondeterministic}.", err=True)
        for mutant in missed:
            typer.echo(f"specsim: the canary {mutant} was NOT FOUND: what passes here says nothing.", err=True)
        if outcome.problem is not None:
            say(outcome.problem)
            self._keep_lost(outcome.lost)
        if outcome.new or missed:
            verdict = "fail"
        elif outcome.problem is not None:
            verdict = "error: the store cannot be written"
        else:
            verdict = "pass" if outcome.runs else "error: nothing could be checked"
        typer.echo(verdict)
        if interrupted:
            typer.echo(f"specsim: interrupted; specsim fuzz --resume{self._stored()} goes on.", err=True)

    def _to_json(self, outcome: CampaignOutcome, missed: Sequence[str], interrupted: bool, code: int) -> dict[str, Any]:
        from dataclasses import asdict

        runs, events, cpu_seconds = self._store.totals()
        return {
            "format": FORMAT,
            "store": str(self._store.path),
            "campaign": self._plan.campaign,
            "shard": self._shard,
            "jobs": self._jobs,
            "targets": list(self._plan.targets),
            "exit_code": code,
            "interrupted": interrupted,
            "seconds": round(time.monotonic() - self._started, 3),
            "runs": outcome.runs,
            "events": outcome.events,
            "batches": outcome.batches,
            "stored": {"runs": runs, "events": events, "cpu_seconds": cpu_seconds},
            "new": [asdict(finding) for finding in outcome.new],
            "other_versions": self._verdicts,
            "stopped": [{"target": t, "tier": tier, "why": why} for (t, tier), why in outcome.stopped.items()],
            "left_out": [{"target": text, "why": why} for text, why in self._unavailable.items()],
            "missed_canaries": list(missed),
            "nondeterministic": outcome.nondeterministic,
            "problem": outcome.problem.problem if outcome.problem else "",
        }


def _exit_code(outcome: CampaignOutcome, missed: Sequence[str], interrupted: bool) -> int:
    if outcome.new or missed:
        return FINDING
    if outcome.problem is not None:
        return USAGE
    if outcome.nondeterministic:
        return NONDETERMINISM
    if interrupted:
        return INTERRUPTED
    return PASS if outcome.runs else NOT_CHECKED


def _missed_canaries() -> list[str]:
    """The mutants of the canary that were not found."""
    from specsim.selfcheck.canary import sing

    return [hunted.mutant.id for hunted in sing() if not hunted.found]


def _watchers(stack: ExitStack, store: Store, pool: BatchPool, metrics_port: int | None, line: LiveLine) -> list[Any]:
    """What is told of each result beside the live line: functions of one."""
    found: list[Any] = []
    now = time.time()
    if metrics_port is not None:
        from specsim.fuzz.metrics import Counts, serve, text_of

        counts = Counts(now)
        counts.workers = pool.width
        counts.begin(store)
        served = serve(metrics_port)
        stack.callback(served.close)
        served.show(text_of(counts))
        line.say(f"numbers for Prometheus: {served.url}")

        def count(result: BatchResult) -> None:
            counts.workers = pool.width
            counts.take(result, store.findings())
            served.show(text_of(counts))

        found.append(count)
    return found
