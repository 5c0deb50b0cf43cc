"""Which findings are reported, and which of them fail a check: --select, --ignore and --fail-on."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from specsim.errors import UsageError, did_you_mean
from specsim.findings.explain import RULES, rule_named
from specsim.tiers.registry import TIERS
from specsim.verdict import REACHES, FailOn, Finding, Severity, matches

_WILD = frozenset("*?[")


@dataclass(frozen=True, slots=True)
class Selection:
    """Patterns that `selection_of` has read: numbers of rules and globs of signatures. A finding is reported that one
    of `select` matches, where there are any, and none of `ignore`.
    """

    select: tuple[str, ...] = ()
    ignore: tuple[str, ...] = ()

    def takes(self, finding: Finding) -> bool:
        selected = not self.select or any(matches(pattern, finding.rule, finding.signature) for pattern in self.select)
        return selected and not self.ignores(finding)

    def ignores(self, finding: Finding) -> bool:
        return any(matches(pattern, finding.rule, finding.signature) for pattern in self.ignore)

    def needs(self, tier: str) -> bool:
        """Whether a tier may have findings that are reported: one that has none need not run."""
        return not self.select or any(
            pattern in TIERS[tier].rules or _may_be_of(tier, pattern) for pattern in self.select
        )


EVERYTHING = Selection()


def _may_be_of(tier: str, pattern: str) -> bool:
    head, colon, _ = pattern.partition(":")
    return fnmatchcase(tier, head) if colon else bool(_WILD & set(pattern))


def selection_of(select: Sequence[str], ignore: Sequence[str]) -> Selection:
    """What --select and --ignore ask for. UsageError for what is no rule and can be no signature."""
    return Selection(
        *(
            tuple(_pattern(option, text) for text in texts)
            for option, texts in (("--select", select), ("--ignore", ignore))
        )
    )


def _pattern(option: str, text: str) -> str:
    rule, wanted = rule_named(text), text.strip()
    if rule is not None:
        return rule
    tier = wanted.partition(":")[0]
    if _WILD & set(tier) or (":" in wanted and tier in TIERS):
        return wanted
    slugs = [rule.slug for rule in RULES.values()]
    near = did_you_mean(tier, TIERS) if ":" in wanted else did_you_mean(wanted, [*RULES, *slugs])
    remedy = "name a rule by number or slug, or a signature with * for any part of it; specsim explain explains both"
    problem = f"{option} {text!r} is no rule and no signature"
    raise UsageError(problem, f"{near} {remedy[:1].upper()}{remedy[1:]}" if near else remedy)


def names_of(texts: Sequence[str]) -> tuple[str, ...]:
    """What --allow-not-run asks for. UsageError for what begins with no tier."""
    for text in texts:
        tier = text.partition(":")[0]
        if tier not in TIERS and not _WILD & set(tier):
            near, allowed = did_you_mean(tier, TIERS), f"name begins with one of {', '.join(TIERS)}"
            remedy = f"{near} A {allowed}" if near else f"a {allowed}"
            raise UsageError(f"--allow-not-run {text!r}: there is no tier {tier!r}", remedy)
    return tuple(texts)


def fail_on_of(text: str) -> FailOn:
    """What --fail-on asks for: REACH, SEVERITY or REACH/SEVERITY; of one that is left out, any will do."""
    reaches = {reach.replace(" ", "-"): reach for reach in REACHES}
    severities = {str(severity): severity for severity in Severity}
    reach, severity = list(REACHES)[-1], list(Severity)[-1]
    for part in text.strip().split("/", 1):
        if part in reaches:
            reach = reaches[part]
        elif part in severities:
            severity = severities[part]
        else:
            near = did_you_mean(part, [*reaches, *severities])
            allowed = f"REACH is one of {', '.join(reaches)}; SEVERITY one of {', '.join(severities)}"
            raise UsageError(f"--fail-on {text!r}: {part!r} is neither", f"{near} {allowed}" if near else allowed)
    return FailOn(reach, severity)
