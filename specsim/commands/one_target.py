"""A check of one target, from what is asked to the exit code: its verdict is printed and written."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from specsim.commands.outputs import Outputs
from specsim.commands.suites import (
    REPLAY_SHARE,
    NoVerdictError,
    baseline_of,
    changed_by,
    changes_of,
    checked_beside,
    replayed,
    verdict_of,
)
from specsim.errors import UsageError
from specsim.findings.comparison import (
    Baseline,
    bring_forward,
    changed_of,
    compare,
    mistaken,
    more_often,
    not_checked,
    not_reached,
)
from specsim.verdict import INCOMPLETE, NOT_CHECKED, Finding, Verdict

if TYPE_CHECKING:
    from specsim.commands.asked import Asked
    from specsim.engines.target import Target
    from specsim.report.check import Detail


def check_one_target(
    asked: Asked,
    outputs: Outputs,
    json_file: Path | None,
    baseline: str | None,
    update_baseline: bool,
    bisect_run: bool,
    write: Path | None,
    detail: Detail,
) -> int:
    """Check a target, and the baseline beside it alike; returns the exit code. How many cases were checked is added to
    the file `write`; `detail` says how much is printed.
    """
    from specsim.commands.counts import add_counts, read_counts
    from specsim.files import attempt, save_json, try_file
    from specsim.findings import baseline as known
    from specsim.report.check import print_verdict

    if write is not None:
        read_counts(write)
    if update_baseline and baseline is None:
        raise UsageError("--update-baseline without --baseline", "name the file to write: --baseline FILE")
    beside = baseline_of(baseline, update_baseline) if baseline is not None else None
    _prepare(asked, *([] if beside is None or isinstance(beside, Path) else [beside]))
    if update_baseline:
        assert isinstance(beside, Path)
        try_file(beside)
    stored = Baseline(str(beside), frozenset())
    if isinstance(beside, Path) and beside.exists():
        stored = known.load(beside)
    asked = replace(asked, known=stored.known)
    if beside is None or isinstance(beside, Path):
        verdict = verdict_of(asked)
        if beside is not None:
            bring_forward(verdict, stored, is_counted=True)
            _compare(verdict, stored, asked)
        if update_baseline:
            verdict.not_checked = ()
    else:
        verdict = _checked_with(beside, asked)
    verdict.not_checked = (*mistaken(verdict), *verdict.not_checked)
    if asked.require_reached:
        verdict.not_checked += not_reached(verdict)
    _forget_replays(verdict.symptoms)
    data = verdict.to_json()
    is_written = update_baseline and not verdict.interrupted and verdict.verdict != "error"
    written = _written(beside, verdict) if is_written and isinstance(beside, Path) else ""
    print_verdict(verdict, detail, written)
    if json_file is not None:
        save_json(json_file, data)
    if write is not None:
        attempt(partial(add_counts, write, verdict, asked.device))
    outputs.write([data])
    _say_how_to_go_on(verdict, asked)
    if is_written:
        return 0
    if update_baseline:
        typer.echo(f"specsim: the baseline {beside} stays as it is: the check did not come to its end.", err=True)
        return verdict.exit_code or NOT_CHECKED
    ran = (suite.cases or suite.schedules for suite in verdict.suites)
    half_checked = verdict.verdict == "pass" and not all(ran)
    is_open = half_checked or verdict.exit_code == INCOMPLETE
    return NOT_CHECKED if bisect_run and is_open else verdict.exit_code


def check_alone(asked: Asked) -> Verdict:
    """The verdict of a target, with nothing beside it."""
    _prepare(asked)
    verdict = verdict_of(asked)
    verdict.not_checked = (*mistaken(verdict), *verdict.not_checked)
    _forget_replays(verdict.symptoms)
    return verdict


def _prepare(asked: Asked, *others: Target) -> None:
    """Fetch and build what a check runs."""
    from specsim.engines.load import prepare
    from specsim.tiers.registry import TIERS

    has_device = asked.device != "cpu" and any(TIERS[tier].has_device for tier in asked.tiers)
    on_gpu = has_device and shutil.which("nvidia-smi") is not None
    for target in (asked.target, *others):
        prepare(target, asked.cache, on_gpu)


def _checked_with(beside: Target, asked: Asked) -> Verdict:
    """The verdict of a check, with that of a baseline which is a target, checked alike meanwhile."""
    share = asked.budget_seconds * (1.0 - REPLAY_SHARE)
    with checked_beside(replace(alike(asked, beside), budget_seconds=share)) as known_of:
        deadline = time.monotonic() + asked.budget_seconds
        changes = changes_of(beside, asked)
        lines = changes.files("srt") if changes is not None else {}  # of what a scheduler may import
        verdict = verdict_of(replace(asked, budget_seconds=share, lines=lines))
        verdict.changed = changed_of(lines, verdict)
        try:
            baseline = known_of()
        except NoVerdictError as error:
            verdict.not_compared = str(error)
            return verdict
        bring_forward(verdict, baseline, is_counted=False)
        shown, absent, launches = replayed(verdict, baseline, beside, asked, deadline)
        _compare(verdict, replace(baseline, signatures=baseline.signatures | shown), asked, absent)
        assert verdict.baseline is not None
        new = verdict.baseline.new
        changed = changed_by(verdict, new, changes, asked, deadline) if changes is not None else {}
        parted = {signature: (launches[signature],) for signature in new if signature in launches}
        verdict.findings = [
            replace(one, changed=changed.get(one.signature, ()), details=(*one.details, *parted.get(one.signature, ())))
            for one in verdict.findings
        ]
        verdict.findings.sort(key=lambda finding: finding.order_key)
    return verdict


def alike(asked: Asked, beside: Target) -> Asked:
    """What is asked of a baseline, which is checked as the target is; nothing is shrunk there. Beside a mutant it has
    none: of it the tier that runs one is checked, and no known finding is replayed there either.
    """
    there = replace(asked, target=beside, out=asked.out / "baseline", shrinks=False, attempts=None)
    if not asked.mutant:
        return there
    return replace(there, mutant="", only=asked.only or "scheduler", fixtures=None)


def _compare(verdict: Verdict, baseline: Baseline, asked: Asked, absent: frozenset[str] = frozenset()) -> None:
    """Note in a verdict what is new beside a baseline, and what keeps it from passing."""
    verdict.baseline = compare(verdict, baseline, absent)
    told = dict.fromkeys(verdict.baseline.new, f"new here: {baseline.name} does not have it")
    told |= {signature: f"more often here: {counts}" for signature, counts in more_often(verdict, baseline).items()}
    verdict.findings = [replace(one, triage=told.get(one.signature, one.triage)) for one in verdict.findings]
    if not verdict.interrupted:
        verdict.not_checked = not_checked(
            verdict, baseline.reach, operation=asked.operation, enough=asked.enough, allowed=asked.allowed
        )


def _forget_replays(symptoms: Iterable[Finding]) -> None:
    """Of what is no finding there is no file: the schedule of the one that it follows shows it, too."""
    for symptom in symptoms:
        if symptom.replay:
            Path(symptom.replay).unlink(missing_ok=True)


def _written(file: Path, verdict: Verdict) -> str:
    """Make the findings of a verdict the baseline, and say so; "" where the file cannot be written."""
    from specsim.files import attempt
    from specsim.findings import baseline as known

    kept = verdict.baseline.not_judged if verdict.baseline else ()
    if not attempt(partial(known.save, file, verdict.to_json(), kept)):
        return ""
    count = len(kept) + len(verdict.findings)
    unchecked = f", {len(kept)} of them kept because they were not checked" if kept else ""
    return f"{count} finding{'' if count == 1 else 's'} in the baseline {file}{unchecked}"


def _say_how_to_go_on(verdict: Verdict, asked: Asked) -> None:
    if not verdict.interrupted:
        return
    larger = "; specsim shrink FILE makes what was found smaller" if verdict.findings else ""
    again = f"specsim check {asked.target.text} --seed {asked.seed}"
    typer.echo(f"specsim: interrupted. The same cases and schedules again, from the first: {again}{larger}.", err=True)
