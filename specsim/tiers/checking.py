"""One check of a target by a tier: what its children find, and what ends them.

A case that ends its child is a finding; where the tier has more subjects, a new child goes on with them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from specsim.errors import UsageError
from specsim.isolation.conversation import ChildEnded, ended_early
from specsim.tiers import process
from specsim.tiers.messages import At, CheckWork, Done, End, FailureWork, Found, Lost, Request
from specsim.tiers.registry import TIERS
from specsim.tiers.tier import Tier
from specsim.tiers.transfer import process_finding, received
from specsim.verdict import CheckedSubject, Finding, NotRun, Suite

Progress = Callable[[str, int], None]
OnCounts = Callable[[Mapping[str, Any]], None]


@dataclass(slots=True)
class _Checked:
    """What came so far: findings by signature, the subjects that are done, that failed, and whose case is not to be
    shrunk again. `at` is where the child is, `index` its last case that was not an attempt at a smaller one, `place`
    what it said of it, and `lost` how it lost its device.
    """

    tier: Tier
    out: Path
    suite: Suite
    findings: dict[str, Finding] = field(default_factory=dict)
    skip: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    unshrunk: list[str] = field(default_factory=list)
    at: At | None = None
    index: int = 0
    place: dict[str, Any] = field(default_factory=dict)
    lost: str = ""
    found_before: int = 0

    def begin(self) -> None:
        """A child begins."""
        self.at, self.lost = None, ""

    def move(self, at: At) -> None:
        is_other = self.at is None or self.at.subject != at.subject
        self.place = at.place if is_other else {**self.place, **at.place}
        self.index = max(0, at.index) if is_other or at.index >= 0 else self.index
        self.at = at

    def take(self, message: Any) -> None:
        """Note what a child says of a subject."""
        match message:
            case Found():
                finding = received(message, self.out)
                self.findings[finding.signature] = finding
            case Done():
                self.suite.cases += message.judged.cases
                self.suite.not_run += message.not_run
                if message.judged.cases:
                    self.suite.judged.append(message.judged)
                self.skip.append(message.subject)
                if len(self.findings) > self.found_before:
                    self.failed.append(message.subject)
                self.found_before = len(self.findings)
            case End():
                for differs in message.nondeterministic:
                    self.suite.nondeterministic.append(NotRun(differs.what, differs.text))
                    if (found := self.findings.pop(differs.gone, None)) is not None and found.replay:
                        Path(found.replay).unlink(missing_ok=True)
                self.suite.schedules, self.suite.events = message.schedules, message.events
                self.suite.setups, self.suite.trees = message.setups, message.trees
                self.suite.not_run += message.not_run
                self.suite.ran_lines, self.suite.coverage = message.ran_lines, message.coverage
            case Lost():
                self.lost = message.text


def run_suite(
    request: Request, out: Path, progress: Progress, on_counts: OnCounts = lambda _counts: None
) -> tuple[Suite, list[Finding]]:
    """Check the target by the request's tier; replay files go to `out`. `progress(subject, cases)` is called as cases
    run, `on_counts` with the counts that a simulation sends.
    """
    tier = TIERS[request.tier]
    checked = _Checked(tier, out, Suite(tier.name))
    started = time.monotonic()
    goes_on = True
    while goes_on:
        remaining = max(0.0, request.seconds - (time.monotonic() - started))
        goes_on = _ask_once(checked, request, remaining, progress, on_counts)
    checked.suite.seconds = time.monotonic() - started
    return checked.suite, list(checked.findings.values())


def _ask_once(checked: _Checked, request: Request, seconds: float, progress: Progress, on_counts: OnCounts) -> bool:
    """Let one child check; whether another has to go on."""
    tier, suite = checked.tier, checked.suite
    checked.begin()
    work = CheckWork(skip=tuple(checked.skip), failed=tuple(checked.failed), unshrunk=tuple(checked.unshrunk))
    question = msgspec.structs.replace(request, work=work, seconds=seconds)
    try:
        for message in process.ask(question, tier.limit_seconds(question)):
            if isinstance(message, At):
                checked.move(message)
                is_shrinking = tier.unit == "schedules" and message.index < 0
                progress("shrinking" if is_shrinking else message.subject, suite.cases + message.count)
                if message.counts:
                    suite.schedules, suite.events = message.counts["schedules"], message.counts["events"]
                    on_counts({**message.counts, "tier": suite.name})
            checked.take(message)
    except ChildEnded as ended:
        at = checked.at
        if at is None or at.subject in checked.skip or not tier.blames(request):
            raise ended_early(request.target, ended) from None
        goes_on = tier.cut_short(suite, at, checked.index, ended.text)
        if at.index < 0 and at.subject not in checked.unshrunk:  # the case that was hit is a finding as it is
            checked.unshrunk.append(at.subject)
            return goes_on
        _take_end(checked, request, at, ended)
        return goes_on
    return False


def _take_end(checked: _Checked, request: Request, at: At, ended: ChildEnded) -> None:
    """A child ended on a case: let a fresh one make the finding of it, or make it here when that ends too."""
    tier, text = checked.tier, checked.lost or ended.text
    work = FailureWork(
        subject=at.subject,
        index=checked.index,
        count=at.count,
        known=at.known,
        place=checked.place,
        hung=ended.hung,
        text=text,
    )
    question = msgspec.structs.replace(request, work=work)
    why, is_told = "gave no answer", False
    try:
        for message in process.ask(question, tier.limit_seconds(question)):
            checked.take(message)
            is_told = is_told or isinstance(message, Found | Done)
    except ChildEnded as again:
        why = again.text
    except UsageError as error:
        why = error.problem
    if is_told:
        return
    rule, count = tier.rules[tier.end_rules[ended.hung]], checked.index + 1
    checked.skip.append(at.subject)
    if tier.unit == "cases":
        checked.suite.cases += count
        checked.suite.judged.append(CheckedSubject(at.subject, "", "", count))
    finding = process_finding(
        tier.name,
        rule,
        tier.title_of_end(at.subject, text),
        tier.signature_of_end(at.subject, rule),
        f"{tier.unit.removesuffix('s')} {checked.index}",
        why,
    )
    checked.findings[finding.signature] = finding
