"""A verdict beside a baseline: what is new, known and gone, and what one of the two did not run.

Nothing is called new that the baseline could not have shown, and nothing passes that ran on the baseline and could not
be run here, or was hardly run.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from typing import Any

from specsim.engines.triage import is_known_in
from specsim.findings.chance import is_rise
from specsim.tiers.not_run import LACKS, is_absent, is_for_time, is_mistake, is_rest
from specsim.tiers.registry import TIERS
from specsim.verdict import Changed, Compared, FailOn, Finding, NotRun, Verdict, of_one_wait
from specsim.world.scheduler import IN_PYTHON, IN_RUST

GONE = "it is not there any more"


@dataclass(frozen=True, slots=True)
class Reach:
    """What a check ran. A tier is named as it is, "scheduler"; what it has is named below it: an operation's
    implementation, a function, a setup, "scheduler:page_size=4". `not_run` are the reasons, by tier and what it is.
    """

    ran: frozenset[str] = frozenset()
    not_run: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def reasons(self) -> Iterator[tuple[str, str, str]]:
        """Tier, what was not run, and why."""
        return ((tier, what, why) for tier, whats in self.not_run.items() for what, why in whats.items())

    @property
    def tiers(self) -> tuple[str, ...]:
        return tuple(tier for tier in TIERS if tier in self.ran)

    def why_not(self, name: str) -> str:
        """Why something, or a finding of that signature, could not be shown; "" when it could."""
        tier, _, rest = name.partition(":")
        reasons = self.not_run.get(tier, {})
        if tier not in self.ran:
            return next(iter(reasons.values()), "the tier was not run")
        below = [one.partition(":")[2] for one in self.ran if one.startswith(f"{tier}:")]
        suite: dict[str, Any] = {
            "cases": 1,
            "schedules": 1,
            "judged": [dict(zip(("op", "subject"), one.partition(":")[::2], strict=True)) for one in below],
            "setups": below,
            "not_run": [{"what": what, "why": why} for what, why in reasons.items()],
        }
        return TIERS[tier].why_not_checked(suite, rest) if rest and tier in TIERS else ""


def reach_of(suites: Sequence[Mapping[str, Any]]) -> Reach:
    """What ran, by the suites of a verdict's JSON."""
    ran: set[str] = set()
    for suite in suites:
        name = suite["name"]
        below = [f"{checked['op']}:{checked['subject']}" for checked in suite["judged"]]
        below += (*suite.get("setups", ()), *suite.get("trees", ()))
        ran |= {name, *(f"{name}:{one}" for one in below)} if suite["cases"] or suite["schedules"] else set()
    return Reach(
        frozenset(ran),
        {suite["name"]: {entry["what"]: entry["why"] for entry in suite["not_run"]} for suite in suites},
    )


@dataclass(frozen=True, slots=True)
class Baseline:
    """What is known. `name` is the file or target that it comes from, and `reach` what was run to know it. `symptoms`
    only came after one of the `signatures`. `hits` has, of tiers whose schedules are drawn alike, how many showed each
    signature, and `schedules` how many there were by tier; empty where a file does not say.
    """

    name: str
    signatures: frozenset[str]
    reach: Reach = field(default_factory=Reach)
    symptoms: frozenset[str] = frozenset()
    hits: Mapping[str, int] = field(default_factory=dict)
    schedules: Mapping[str, int] = field(default_factory=dict)

    @property
    def known(self) -> frozenset[str]:
        return self.signatures | self.symptoms

    @classmethod
    def of_verdict(cls, name: str, verdict: Mapping[str, Any]) -> Baseline:
        """What the JSON of a verdict knows."""
        findings, symptoms, suites = (verdict.get(part, ()) for part in ("findings", "symptoms", "suites"))
        schedules = drawn_alike({suite["name"]: suite["schedules"] for suite in suites})
        hits = {
            one["signature"]: one["count"]
            for one in (*findings, *symptoms)
            if one["signature"].partition(":")[0] in schedules
        }
        own, followed = (frozenset(one["signature"] for one in part) for part in (findings, symptoms))
        return cls(name, own, reach_of(suites), followed, hits, schedules)


def drawn_alike(schedules: Mapping[str, int]) -> dict[str, int]:
    """Of how many schedules there were by tier those that were drawn alike, each by itself."""
    return {tier: count for tier, count in schedules.items() if count and tier in TIERS}


def bring_forward(verdict: Verdict, baseline: Baseline, *, is_counted: bool) -> None:
    """Make findings of those symptoms that a baseline does not have at all, though it has what they come after, and no
    less often: that does not explain them. With `is_counted` the schedules of the two may be others, so that they must
    be met more often than chance explains, too; else the baseline is asked by a replay. Races of one missing wait are
    one finding.
    """
    same = baseline.known - more_often(verdict, baseline).keys()
    own = [one for one in verdict.symptoms if one.signature not in baseline.known and one.follows in same]
    if is_counted:
        own = [one for one, _counts in _risen(own, verdict, baseline)]
    findings = [*verdict.findings, *own]
    stands = of_one_wait(findings, baseline.known)
    symptoms = [one for one in verdict.symptoms if one not in own]
    symptoms += [replace(one, follows=stands[one.signature]) for one in findings if one.signature in stands]
    verdict.symptoms = [replace(one, follows=stands.get(one.follows, one.follows)) for one in symptoms]
    left = (one for one in findings if one.signature not in stands)
    verdict.findings = sorted(left, key=lambda finding: finding.order_key)


def compare(verdict: Verdict, baseline: Baseline, shown_absent: Collection[str] = ()) -> Compared:
    """What is new, known and gone, beside a baseline. Those `shown_absent` were replayed on it, and it does not have
    them. What a suite could not have shown is not gone, and what the baseline could not have shown is not new.
    """
    known, reach = baseline.known, baseline.reach
    data = verdict.to_json()
    here = reach_of(data["suites"])
    found = {finding.signature for finding in verdict.findings}
    cut_short = {suite.name for suite in verdict.suites if any(is_rest(entry) for entry in suite.not_run)}
    missing = set(baseline.signatures) - found - {symptom.signature for symptom in verdict.symptoms}
    # A suite that did not come to its end may yet have shown it, and a known finding that is rare was not met.
    judged = {
        one
        for one in missing
        if one not in verdict.ignored
        and one.partition(":")[0] not in cut_short
        and not here.why_not(one)
        and not is_known_in(verdict.target, one)
    }
    risen = more_often(verdict, baseline)
    asked = found - set(known) - set(shown_absent)
    undecided = {one.signature for one in verdict.findings if one.signature in asked and not _could_show(reach, one)}
    return Compared(
        name=baseline.name,
        new=tuple(sorted(found - set(known) - undecided)),
        known=tuple(sorted((found & set(known)) - risen.keys())),
        gone=tuple(sorted(judged)),
        not_judged=tuple(sorted(missing - judged)),
        not_compared=tuple(sorted(undecided)),
        tiers_here=here.tiers,
        tiers_there=reach.tiers,
        risen=tuple(sorted(risen)),
    )


def more_often(verdict: Verdict, baseline: Baseline) -> dict[str, str]:
    """The findings that a baseline has, too, and that are met more often than chance explains; and how often."""
    there = [one for one in verdict.findings if one.signature in baseline.known]
    return {
        one.signature: "{} of {} schedules, and {} of {} of the baseline".format(*counts)
        for one, counts in _risen(there, verdict, baseline)
    }


def _risen(
    findings: Iterable[Finding], verdict: Verdict, baseline: Baseline
) -> Iterator[tuple[Finding, tuple[int, int, int, int]]]:
    """Of these the ones that are met more often than chance explains: hits and schedules here, and there."""
    here = drawn_alike({suite.name: suite.schedules for suite in verdict.suites})
    compared = [one for one in findings if one.tier in here and one.tier in baseline.schedules]
    for one in compared:
        counts = one.count, here[one.tier], baseline.hits.get(one.signature, 0), baseline.schedules[one.tier]
        if is_rise(*counts, len(compared)):
            yield one, counts


def _could_show(reach: Reach, finding: Finding) -> bool:
    """Whether a baseline that ran this would have shown a finding: what it lacks altogether it does not have."""
    tier = finding.signature.partition(":")[0]
    reasons = reach.not_run.get(tier, {})
    if tier not in reach.ran or any(is_rest(NotRun(what, why)) for what, why in reasons.items()):
        return False
    if finding.tree and f"{tier}:{finding.tree}" not in reach.ran:
        return False
    why = reach.why_not(finding.signature)
    return not why or is_absent(why)


def not_checked(
    verdict: Verdict,
    reach: Reach,
    *,
    operation: str = "",
    enough: Mapping[str, int] | None = None,
    allowed: Sequence[str] = (),
) -> tuple[NotRun, ...]:
    """What stands in the way of a verdict that says pass: what ran on the baseline and could not be run here, what the
    time did not suffice for, and findings that the baseline could not have shown. `enough` are the schedules that a
    tier must have run, `operation` the one that was asked for, "" for all. What a pattern of `allowed` matches is no
    obstacle.
    """
    entries = [*_lost(verdict, reach, operation), *_not_reached(verdict, enough or {}), *_not_compared(verdict, reach)]
    unique = {entry.what: entry for entry in reversed(entries)}
    names = dict.fromkeys(entry.what for entry in entries)
    return tuple(unique[what] for what in names if not any(fnmatchcase(what, pattern) for pattern in allowed))


NOT_REACHED = "it is changed, and no schedule ran it"


def changed_of(lines: Mapping[str, Sequence[int]], verdict: Verdict) -> Changed | None:
    """Which of these lines, by file, the schedules of a verdict ran; None where no schedule could have."""
    if not any(suite.setups for suite in verdict.suites):
        return None
    ran = {place: count for suite in verdict.suites for place, count in suite.ran_lines.items()}
    places = tuple(f"{file}:{line}" for file in lines for line in lines[file])
    not_run = tuple(place for place in places if place not in ran)
    return Changed(places, not_run, max(ran.values(), default=0))


def not_reached(verdict: Verdict) -> tuple[NotRun, ...]:
    """What stands in the way of a verdict that may pass only if all that was changed was run."""
    return tuple(NotRun(place, NOT_REACHED) for place in verdict.changed.not_run) if verdict.changed else ()


def mistaken(verdict: Verdict) -> tuple[NotRun, ...]:
    """What a provider of the user's own names or defines wrongly, so that it was not run: no verdict passes it."""
    return tuple(
        NotRun(f"{suite.name}:{entry.what}", entry.why)
        for suite in verdict.suites
        for entry in suite.not_run
        if is_mistake(entry.why)
    )


def _lost(verdict: Verdict, reach: Reach, operation: str) -> Iterator[NotRun]:
    here = reach_of(verdict.to_json()["suites"])
    asked_for = {suite.name for suite in verdict.suites}
    for name in sorted(reach.ran - here.ran):
        tier, _, rest = name.partition(":")
        is_other = operation and rest and rest.partition(":")[0] != operation
        if tier not in asked_for or is_other or (rest and tier not in here.ran) or rest in (IN_PYTHON, IN_RUST):
            continue  # a release has the tree in Rust, and a checkout where it was built: it is run beside the other
        why = here.why_not(name) or GONE
        if not is_for_time(why):
            yield NotRun(name, GONE if why.startswith(LACKS) else why)


def _not_reached(verdict: Verdict, enough: Mapping[str, int]) -> Iterator[NotRun]:
    for suite in verdict.suites:
        wanted = enough.get(suite.name, 0)
        late = [entry for entry in suite.not_run if is_for_time(entry.why)]
        if not (suite.cases or suite.schedules) and late:
            yield NotRun(suite.name, late[0].why)
            continue
        yield from (NotRun(f"{suite.name}:{entry.what}", entry.why) for entry in late if not is_rest(entry))
        if late and suite.schedules < wanted:
            yield NotRun(suite.name, f"{suite.schedules} schedules are too few: at least {wanted} say something")


def _not_compared(verdict: Verdict, reach: Reach) -> Iterator[NotRun]:
    compared = verdict.baseline
    fails: FailOn = verdict.fail_on
    for finding in verdict.findings if compared else ():
        assert compared is not None
        if finding.signature in compared.not_compared and fails.fails(finding):
            is_tier = finding.tier not in reach.ran
            of_tree = reach.not_run.get(finding.tier, {}).get(finding.tree, "") if not is_tier else ""
            why = reach.why_not(finding.signature) or of_tree or "its check did not come to its end"
            yield NotRun(finding.tier if is_tier else finding.signature, f"not run on {compared.name}: {why}")
