"""`specsim check` of one target: its suites within the budget, held against a baseline when there is one."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.errors import UsageError
from specsim.verdict import Compared, Finding, NotRun, Suite, Verdict

if TYPE_CHECKING:
    from specsim.report.baseline import Baseline
    from specsim.report.live import Line
    from specsim.targets.cache import Cache
    from specsim.targets.spec import Target

KnownOf = Callable[[], "Baseline | None"]
SCHEDULES_SHARE = 0.75  # of what the simulator gets; the rest is for making smaller what it found
ACCOUNTING_SHARE = 0.3  # of the budget, which the simulator gets however long the other tiers and the baseline take
REPLAY_SHARE = 0.25  # of the budget, after it, for replaying on the baseline what it did not show


class NotJudgeableError(Exception):
    """What was asked for cannot be said: exit code 125."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What a check of one target was asked for. `operation` is the one that is judged, "" for all. Without `shrinks`
    what is found stays as large as it is, and so do the signatures `known` of a baseline that is a file. With
    `one_core` one tier runs after the other.
    """

    target: Target
    cache: Cache
    only: str | None
    budget_seconds: float
    seed: int
    cases: int
    schedules: int
    strategy: str
    out: Path
    device: str
    hang_seconds: float
    operation: str = ""
    bulk: bool = False
    mutant: str = ""
    kernels: str = ""
    shrinks: bool = True
    known: frozenset[str] = frozenset()
    one_core: bool = False

    @property
    def name(self) -> str:
        return f"{self.target.text} with mutant {self.mutant}" if self.mutant else self.target.text

    @property
    def tiers(self) -> tuple[str, ...]:
        """The tiers to run. A mutant is of the model's accounting: its operations are not touched."""
        from specsim.targets.spec import CheckoutTarget, ReleaseTarget

        if self.only is not None:
            return () if self.only == "ops" and self.mutant else (self.only,)
        ops = () if self.mutant else ("ops",)
        workers = ("workers",) if isinstance(self.target, ReleaseTarget | CheckoutTarget) else ()
        return (*ops, *workers, "accounting")


def judge(asked: Asked, known_of: KnownOf = lambda: None) -> Verdict:
    """Run every suite under a live line. `known_of` is asked for the baseline as late as can be. The first interrupt
    from the keyboard ends it gently.
    """
    from specsim import interrupts
    from specsim.report.live import live

    with interrupts.gentle(), live(f"checking {asked.name}", asked.budget_seconds) as line:
        verdict = run_tiers(asked, line, known_of)
        baseline = known_of()
        verdict.interrupted = interrupts.asked()
    if baseline is not None:
        verdict.baseline = compare(verdict, baseline)
    return verdict


def run_tiers(asked: Asked, line: Line, known_of: KnownOf = lambda: None) -> Verdict:
    """The verdict of every suite, the operations beside the others where there are two cores for it."""
    from specsim.commands.beside import beside, cores

    verdict = Verdict(asked.name, asked.seed)
    started = time.monotonic()
    runs = [partial(_run, tier, asked, known_of, line, started) for tier in asked.tiers]
    # Of a matrix each target has one process, and as many run at a time as there are cores.
    if asked.tiers[:1] == ("ops",) and len(runs) > 1 and not asked.one_core and cores() > 1:
        operations = beside(runs[0])
        others = [run() for run in runs[1:]]
        ran = [operations(), *others]
    else:
        ran = [run() for run in runs]
    verdict.suites = [suite for suite, _ in ran]
    verdict.findings = _with_triage(asked.target, [finding for _, findings in ran for finding in findings])
    return verdict


def _run(tier: str, asked: Asked, known_of: KnownOf, line: Line, started: float) -> tuple[Suite, list[Finding]]:
    from specsim import interrupts
    from specsim.judge.accounting import AccountingRequest, run_accounting_suite
    from specsim.judge.bulk import run_bulk_suite
    from specsim.judge.ops import OpsRequest, run_ops_suite
    from specsim.judge.workers import WorkersRequest, run_workers_suite

    if interrupts.asked():
        return Suite(tier, not_run=[NotRun(f"tier {tier}", interrupts.WHY)]), []
    told = partial(line.subject, tier)
    alone, known = asked.only is not None, tuple(sorted(asked.known))
    of_any: dict[str, Any] = {
        "target": asked.target.text,
        "cache": asked.cache.folder,
        "seed": asked.seed,
        "hang_seconds": asked.hang_seconds,
        "out": asked.out,
    }
    if tier == "ops":
        seconds = asked.budget_seconds * (1.0 if alone else 0.5)
        ops = OpsRequest(
            **of_any,
            known=known,
            cases=asked.cases,
            seconds=seconds,
            device=asked.device,
            shrinks=asked.shrinks,
            operation=asked.operation,
        )
        return (run_bulk_suite if asked.bulk else run_ops_suite)(ops, told)
    if tier == "workers":
        seconds = asked.budget_seconds * (1.0 if alone else 0.2)
        workers = WorkersRequest(**of_any, known=known, cases=asked.cases, seconds=seconds, shrinks=asked.shrinks)
        return run_workers_suite(workers, told)
    line.progress.now = "waiting for the baseline"
    baseline = known_of()
    line.progress.now = "starting"
    line.progress.schedules_of = asked.schedules
    left = asked.budget_seconds - (time.monotonic() - started)
    whole = max(1.0, left, asked.budget_seconds * ACCOUNTING_SHARE if baseline else 0.0)
    seconds = whole * SCHEDULES_SHARE if asked.shrinks else whole
    accounting = AccountingRequest(
        **of_any,
        schedules=asked.schedules,
        seconds=seconds,
        mutant=asked.mutant,
        kernels=asked.kernels,
        strategy=asked.strategy,
        shrink_seconds=whole - seconds if asked.shrinks else -1e9,
        known=tuple(sorted(baseline.signatures)) if baseline else (),
    )
    return run_accounting_suite(accounting, told, line.counted)


def _with_triage(target: Target, findings: list[Finding]) -> list[Finding]:
    """Findings of an engine or a package, with what is known of them publicly."""
    from specsim.targets.package_findings import triage_line as of_package
    from specsim.targets.sglang.triage import triage_line
    from specsim.targets.spec import CheckoutTarget, PackageTarget, ReleaseTarget

    if isinstance(target, PackageTarget):
        return [replace(found, triage=of_package(target.package, found.signature)) for found in findings]
    if not isinstance(target, ReleaseTarget | CheckoutTarget):
        return findings
    version = target.version if isinstance(target, ReleaseTarget) else None
    return [replace(found, triage=triage_line(found, version)) for found in findings]


# The baseline


def compare(verdict: Verdict, baseline: Baseline) -> Compared:
    """What is new, known and gone. What a suite could not have shown here is not gone."""
    from specsim.judge.matrix import Column, cell_of

    found = {finding.signature for finding in verdict.findings}
    column = Column(verdict.target, verdict.to_json(), "", 0, 0.0)
    # A suite that did not come to its end may yet have shown it.
    cut_short = {suite.name for suite in verdict.suites if any(_is_rest(entry) for entry in suite.not_run)}
    missing = {
        signature: "not run" if signature.split(":")[0] in cut_short else cell_of(column, signature).state
        for signature in baseline.signatures - found
    }
    return Compared(
        name=baseline.name,
        new=tuple(sorted(found - baseline.signatures)),
        known=tuple(sorted(found & baseline.signatures)),
        gone=tuple(sorted(signature for signature, state in missing.items() if state == "clean")),
        not_judged=tuple(sorted(signature for signature, state in missing.items() if state != "clean")),
    )


def _is_rest(entry: NotRun) -> bool:
    return entry.what == "the other schedules" or entry.what.startswith("schedules after ")


def baseline_of(text: str, update: bool) -> Path | Target:
    """A baseline as it is typed: a file that is there or is to be written, else a target."""
    from specsim.targets.spec import parse_target

    file = Path(text)
    is_target = text == "model" or any(mark in text for mark in ("==", "@", ":"))
    if not file.exists() and is_target:
        if update:
            raise UsageError(f"--update-baseline with the target {text}", "a target is checked each time: name a FILE")
        return parse_target(text)
    if not file.exists() and not update:
        raise UsageError(
            f"there is no baseline {text}", "write it with --update-baseline, or name a TARGET such as sglang@.#REV"
        )
    return file


@contextmanager
def checked_beside(target: Target, options: Mapping[str, Any], out: Path) -> Iterator[KnownOf]:
    """Check the baseline in a process of its own meanwhile; what is yielded waits for its signatures. Nothing is made
    smaller there. Raises NotJudgeableError when it has no verdict.
    """
    from specsim.judge.matrix import check_one, end
    from specsim.report.baseline import Baseline

    arguments = [text for name, value in options.items() for text in (name, str(value))]
    arguments += ["--no-shrink", "--no-github", "--out", str(out / "baseline")]
    processes: list[subprocess.Popen[str]] = []

    def known_of() -> Baseline:
        column = checked.result()
        if not column.verdict or column.verdict["verdict"] == "error":
            why = column.why or "nothing of it could be judged"
            raise NotJudgeableError(f"the baseline {target.text} cannot be judged: {why}")
        return Baseline(target.text, frozenset(finding["signature"] for finding in column.verdict["findings"]))

    with ThreadPoolExecutor(1) as pool:
        checked = pool.submit(
            check_one, target.text, arguments, float(options["--budget-seconds"]), on_start=processes.append
        )
        try:
            yield known_of
        finally:
            for process in processes:
                end(process)


def also_shown(verdict: Verdict, target: Target, asked: Asked) -> Baseline:
    """The baseline `target` with what is new in the verdict and shows there too when its case or schedule is replayed:
    the baseline's own check may have missed what is rare.
    """
    from specsim import replay_file
    from specsim.commands.pages import exit_code_of
    from specsim.commands.requests import noted
    from specsim.report.baseline import Baseline

    assert verdict.baseline is not None
    signatures = {*verdict.baseline.known, *verdict.baseline.gone, *verdict.baseline.not_judged}
    no_later = time.monotonic() + asked.budget_seconds * REPLAY_SHARE
    for finding in verdict.new if not verdict.interrupted else ():
        if not finding.replay or time.monotonic() > no_later:
            continue
        file = Path(finding.replay)
        try:
            stored = replay_file.load(file)
            if isinstance(stored, replay_file.ScheduleReplay):  # the baseline has no mutant of the model
                stored = replace(stored, mutant="", kernels="")
            answer = noted(stored, file, target.text, None, asked.hang_seconds, asked.cache.folder)
        except UsageError:  # the baseline does not have it
            continue
        if answer.get("judged", True) and exit_code_of(stored, answer):
            signatures.add(finding.signature)
    return Baseline(verdict.baseline.name, frozenset(signatures))
