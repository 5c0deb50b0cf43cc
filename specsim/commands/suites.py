"""`specsim check` of one target: its suites within the budget, compared with a baseline when there is one."""

from __future__ import annotations

import math
import os
import subprocess
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from specsim.commands import skipped_operations
from specsim.errors import UsageError
from specsim.verdict import (
    Finding,
    NotRun,
    Suite,
    Verdict,
    of_one_wait,
    with_severity_of_symptoms,
)

if TYPE_CHECKING:
    from specsim.commands.asked import Asked
    from specsim.engines.target import Target
    from specsim.findings.comparison import Baseline
    from specsim.lifting.changes import Changes
    from specsim.report.live import LiveLine

KnownOf = Callable[[], "Baseline"]
REPLAY_SHARE = 0.2  # of the budget, with a baseline that is a target: for replaying on it what it did not show


class NoVerdictError(Exception):
    """What was asked for cannot be said: exit code 125."""


def verdict_of(asked: Asked) -> Verdict:
    """Run every suite under a live line. The first interrupt from the keyboard ends it gently."""
    from specsim import interrupts
    from specsim.report.live import live

    budget = asked.budget_seconds if asked.budget_seconds < math.inf else None
    with interrupts.gentle(), live(f"checking {asked.name}", budget) as line:
        verdict = run_tiers(asked, line)
        verdict.interrupted = interrupts.asked()
    return verdict


def run_tiers(asked: Asked, line: LiveLine) -> Verdict:
    """The verdict of every suite. Tiers run beside one another, each in processes of its own, so that time that one
    does not need is the others'.
    """
    from specsim.commands.background import beside
    from specsim.engines.target import Release
    from specsim.tiers.registry import TIERS

    if not asked.tiers:
        of_it = ", ".join(name for name, tier in TIERS.items() if tier.is_of(asked.target))
        raise UsageError(f"nothing that is selected is of {asked.name}", f"select rules or signatures of {of_it}")
    verdict = Verdict(asked.name, asked.seed, timed=asked.budget_seconds < math.inf, fail_on=asked.fail_on)
    started = time.monotonic()
    if asked.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    counted = [asked.count(tier) for tier in asked.tiers if TIERS[tier].unit == "schedules"]
    line.progress.schedules_of = sum(counted)
    deadline = started + asked.budget_seconds
    running = [beside(partial(_run, tier, asked, line, deadline)) for tier in asked.tiers]
    ran = [result() for result in running]
    verdict.suites = [suite for suite, _ in ran]
    found, version = [finding for _, findings in ran for finding in findings], _version(asked)
    if version is not None:
        found = _with_triage(asked, version, found)
        verdict.version = "" if isinstance(asked.target, Release) else version or "unknown"
    stands = of_one_wait([finding for finding in found if not finding.follows], asked.known)
    found = [
        replace(finding, follows=stands.get(finding.signature) or stands.get(finding.follows, finding.follows))
        for finding in found
    ]
    found = with_severity_of_symptoms(found)
    found.sort(key=lambda finding: finding.order_key)
    ignored = {finding.signature for finding in found if asked.selection.ignores(finding)}
    taken = [finding for finding in found if asked.selection.takes(finding) and finding.follows not in ignored]
    verdict.ignored = tuple(finding.signature for finding in found if finding not in taken)
    signatures = {finding.signature for finding in taken}
    verdict.symptoms = [finding for finding in taken if finding.follows in signatures]
    verdict.findings = [finding for finding in taken if finding.follows not in signatures]
    verdict.seconds = time.monotonic() - started
    return verdict


def _run(tier: str, asked: Asked, line: LiveLine, deadline: float) -> tuple[Suite, list[Finding]]:
    """The suite of a tier, until `deadline` (of time.monotonic)."""
    from specsim import interrupts
    from specsim.tiers.checking import run_suite
    from specsim.tiers.messages import Request
    from specsim.tiers.registry import TIERS

    if interrupts.asked():
        return Suite(tier, not_run=[NotRun(f"tier {tier}", interrupts.WHY)]), []
    remembers = TIERS[tier].resumes_skipped and deadline < math.inf
    request = Request(
        tier=tier,
        target=asked.target.text,
        cache=str(asked.cache.folder),
        seed=asked.seed,
        count=asked.count(tier),
        seconds=max(1.0, deadline - time.monotonic()),
        hang_seconds=asked.hang_seconds,
        shrinks=asked.shrinks,
        known=tuple(sorted(asked.known)),
        select=asked.selection.select,
        ignore=asked.selection.ignore,
        attempts=asked.attempts,
        fixtures=str(asked.fixtures.absolute()) if asked.fixtures else "",
        device=asked.device if TIERS[tier].has_device else "cpu",
        operation=asked.operation,
        first=skipped_operations.recall(asked.cache, asked.target.text) if remembers else (),
        bulk=asked.bulk,
        mutant=asked.mutant,
        worker=asked.worker,
        at_once=asked.jobs,
        lines={file: list(lines) for file, lines in asked.lines.items()},
    )
    suite, findings = run_suite(request, asked.out.absolute(), partial(line.subject, tier), line.counted)
    if remembers and not asked.operation:
        skipped_operations.remember(asked.cache, asked.target.text, suite)
    return suite, [_as_named(finding, asked.out) for finding in findings]


def _as_named(finding: Finding, out: Path) -> Finding:
    """A finding whose replay file is named as the folder was."""
    return replace(finding, replay=str(out / Path(finding.replay).name)) if finding.replay else finding


def _version(asked: Asked) -> str | None:
    """The release that a target with a source is, or comes after, "" where nothing says; None for another target."""
    from specsim.engines.packages import version_of
    from specsim.engines.target import Checkout, Release

    if not isinstance(asked.target, Release | Checkout):
        return None
    try:
        return version_of(asked.target, asked.cache)
    except UsageError:  # which what reads its source says, too
        return ""


def _with_triage(asked: Asked, version: str, findings: list[Finding]) -> list[Finding]:
    """Findings of an engine or a package, with what is known of them publicly."""
    from specsim.engines.target import Checkout, Release
    from specsim.engines.triage import triage_line
    from specsim.findings.explain import fixtures_of

    target = asked.target
    assert isinstance(target, Release | Checkout)
    engine, is_release = target.engine, isinstance(target, Release) and not asked.mutant
    shown: dict[str, list[str]] = {}
    if not is_release and any(found.fixture for found in findings) and asked.fixtures is not None:
        prefix = f"{engine}=="
        shown = {
            fixture.file.name: [t.removeprefix(prefix) for t in fixture.shown_on if t.startswith(prefix)]
            for fixture in fixtures_of(asked.fixtures)
        }
    return [
        replace(found, triage=triage_line(engine, found, version, None if is_release else shown.get(found.fixture, ())))
        for found in findings
    ]


# The baseline


def baseline_of(text: str, update: bool) -> Path | Target:
    """A baseline as it is typed: a file that is there or is to be written, else a target."""
    from specsim.engines.target import parse_target

    file = Path(text)
    if text == "-":
        raise UsageError("--baseline -: a baseline is read", "name a file, or a TARGET")
    is_target = text == "model" or any(mark in text for mark in ("==", "@", ":"))
    if not file.exists() and is_target:
        if update:
            raise UsageError(f"--update-baseline with the target {text}", "a target is checked each time: name a FILE")
        return parse_target(text)
    if not file.exists() and not update:
        raise UsageError(
            f"there is no baseline {text}", "write it with --update-baseline, or name a TARGET such as ENGINE@.#REV"
        )
    return file


@contextmanager
def checked_beside(asked: Asked) -> Iterator[KnownOf]:
    """Check a baseline in a process of its own meanwhile; what is yielded waits for what it has. Raises NoVerdictError
    when it has no verdict.
    """
    from specsim.commands.apart import check_apart
    from specsim.findings.comparison import Baseline
    from specsim.isolation import processes

    started: list[subprocess.Popen[Any]] = []

    def known_of() -> Baseline:
        column = checked.result()
        if not column.verdict or column.verdict["verdict"] == "error":
            why = column.why or "nothing of it could be checked"
            raise NoVerdictError(f"the baseline {column.target} cannot be checked: {why}")
        return Baseline.of_verdict(column.target, column.verdict)

    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(check_apart, asked, started.append)
        try:
            yield known_of
        finally:
            for process in started:
                processes.end(process)


def replayed(verdict: Verdict, baseline: Baseline, target: Target, asked: Asked, deadline: float) -> ReplayedOnBaseline:
    """What is found in the verdict and not in the baseline, replayed on the baseline's target by `deadline` (of
    time.monotonic): its own check may have missed what is rare.
    """
    from specsim import replay_file
    from specsim.replay_file import SchedulerReplay
    from specsim.tiers.process import ask_often
    from specsim.tiers.replaying import outcome_of, replay, request_of
    from specsim.tiers.tier import State

    states: dict[str, State] = {}
    parted: dict[str, str] = {}
    with ask_often() as ask:
        for finding in verdict.findings if not verdict.interrupted else ():
            if finding.signature in baseline.known or not finding.replay or time.monotonic() > deadline:
                continue
            file = Path(finding.replay)
            try:
                stored = replay_file.load(file)
                # The baseline has no mutant of the model.
                request = request_of(stored, target.text, asked.cache.folder, asked.hang_seconds, as_found=False)
                answer = replay(request, file, ask=ask, record=True)
            except UsageError:  # it does not run there
                continue
            states[finding.signature] = outcome_of(stored, target.text, answer).state
            if isinstance(stored, SchedulerReplay) and answer["judged"]:
                parted[finding.signature] = _where_parted(stored.events, answer["events"], target.text)
    return ReplayedOnBaseline(
        frozenset(signature for signature, state in states.items() if state is State.SHOWN),
        frozenset(signature for signature, state in states.items() if state is State.GONE),
        parted,
    )


def _where_parted(here: Sequence[str], there: Sequence[str], base: str) -> str:
    """Where the launches of a schedule part from those on its baseline."""
    from specsim.world.schedule import first_other_launch

    if other := first_other_launch(here, there):
        number, one, its = other
        return f"launch {number} is {one!r}, and {its!r} on {base}"
    return f"its launches are those of {base}"


def changes_of(base: Target, asked: Asked) -> Changes | None:
    """What a checkout has otherwise than the revision `base`; None for another target."""
    from specsim.engines.packages import open_source
    from specsim.engines.target import Checkout
    from specsim.lifting.changes import Changes

    target = asked.target
    if not isinstance(base, Checkout) or not isinstance(target, Checkout) or not base.revision:
        return None
    return Changes(open_source(base, asked.cache), open_source(target, asked.cache))


def changed_by(
    verdict: Verdict, signatures: Collection[str], changes: Changes, asked: Asked, deadline: float
) -> dict[str, tuple[str, ...]]:
    """Of findings of a checkout, by signature: the functions that were changed, and that the case of the finding runs;
    by `deadline` (of time.monotonic), where a case must be run once more for that.
    """
    from specsim import replay_file
    from specsim.lifting.changes import Function
    from specsim.tiers.process import ask_often
    from specsim.tiers.registry import TIERS
    from specsim.tiers.replaying import replay, request_of

    found: dict[str, tuple[str, ...]] = {}
    with ask_often() as ask:
        for finding in verdict.findings:
            if finding.signature not in signatures:
                continue
            if TIERS[finding.tier].unit == "cases":  # which run one function
                found[finding.signature] = changes.around(finding.where)
                continue
            if not finding.replay or time.monotonic() > deadline:
                continue
            file = Path(finding.replay)
            try:
                request = request_of(replay_file.load(file), asked.target.text, asked.cache.folder, asked.hang_seconds)
                ran = replay(request, file, ask=ask, traces=True).get("ran", ())
            except UsageError:  # it ended its process
                continue
            found[finding.signature] = changes.of(Function(*function) for function in ran)
    return found


class ReplayedOnBaseline(NamedTuple):
    """Signatures of findings that a baseline has, too, and of those that it has not, as replays on it show; and by
    signature of a schedule's finding where its launches part from those on the baseline.
    """

    shown: frozenset[str]
    absent: frozenset[str]
    parted: Mapping[str, str]
