"""What a rule or a finding means, from the rule's object, the triage list and the replay files of known findings."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from packaging.version import Version

from specsim import replay_file
from specsim.engines import triage
from specsim.errors import UsageError, did_you_mean
from specsim.files import read_json
from specsim.lifting.versions import is_version
from specsim.tiers.registry import TIERS, all_rules
from specsim.verdict import REACHES

RULES = all_rules()
FORMAT = "specsim.explained/2"
REMEDY = (
    "name a rule by its number or slug, such as I32 or stale-result, or give a replay file, or the signature of a "
    f"known finding or of one whose file is in {replay_file.FINDINGS}"
)


@dataclass(frozen=True, slots=True)
class Fixture:
    """The replay file of a known finding. `shown_on` are the targets on which it is seen to show it, older
    releases first.
    """

    file: Path
    rule: str
    signature: str
    title: str
    found_on: str
    shown_on: tuple[str, ...]


def own_findings(folder: Path) -> list[Fixture]:
    """The replay files that a check of the user's left in a folder, by name; what is none is passed over."""
    return [
        Fixture(file, stored.rule, stored.signature, stored.title, stored.target, (stored.target,))
        for file, stored in replay_file.load_all(folder)
    ]


def fixtures_of(folder: Path) -> list[Fixture]:
    """The replay files of a folder by name."""
    found = []
    for file in sorted(folder.glob("*.json")):
        data = read_json(file, replay_file.REMEDY, nan=True)
        expected = data.get("expect", {})
        shown = {target for target, expect in expected.items() if expect.get("shows") or expect.get("rules")}
        if data.get("mutant"):  # which the file puts into the target that it was found on
            shown = {f"{data['target']} with mutant {data['mutant']}", *shown} - {data["target"], "mutant"}
        texts = (data["rule"], data["signature"], data["title"], data["target"])
        found.append(Fixture(file, *texts, tuple(sorted(shown or {data["target"]}, key=_version_key))))
    return found


def _version_key(target: str) -> tuple[str, Any, str]:
    engine, _, version = target.partition("==")
    return engine, Version(version) if is_version(version) else (), target


def explain(text: str, fixtures: Iterable[Fixture]) -> dict[str, Any]:
    """What is known of a rule, by number, slug or both as output has them, or of a signature, as JSON has it.

    Raises UsageError, with the names that are near, for what is neither.
    """
    known = [(engine, entry) for engine, entries in triage.TABLE.items() for entry in entries]
    fixtures, rules = list(fixtures), _rules_of(fixtures)
    rule = rule_named(text)
    if rule is not None:
        signature = ""
        known = [(engine, entry) for engine, entry in known if _rule_of(entry.signature, rules) == rule]
        examples = [fixture for fixture in fixtures if fixture.rule == rule]
    else:
        signature = text.strip()
        known = [(engine, entry) for engine, entry in known if entry.signature == signature]
        examples = [fixture for fixture in fixtures if fixture.signature == signature]
        rule = _rule_of(signature, rules)
        if not known and not examples and rule is None:
            raise UsageError(f"{text!r} is no rule and no known signature", _remedy(text, fixtures))
    severities = [entry.severity for _, entry in known if signature and entry.severity]
    severities += [RULES[rule].severity] if rule else []
    return {
        "format": FORMAT,
        "rule": rule or "",
        "slug": RULES[rule].slug if rule else "",
        "sentence": RULES[rule].sentence if rule else "",
        "severity": str(severities[0]) if severities else "",
        "tiers": [name for name, tier in TIERS.items() if rule in tier.rules],
        "signature": signature,
        "known": [_entry(engine, entry) for engine, entry in known],
        "examples": [_example(fixture) for fixture in examples],
        "ignore": signature or RULES[rule or ""].slug,
    }


def rule_named(text: str) -> str | None:
    """The number of the rule that a user names by number, slug or "slug (number)"; None where there is none."""
    label = re.fullmatch(r"\s*\S+ \((\w+)\)\s*", text)
    wanted = (label[1] if label else text).strip().lower()
    return next((rule.id for rule in RULES.values() if wanted in (rule.id.lower(), rule.slug)), None)


def _rules_of(fixtures: Iterable[Fixture]) -> dict[str, str]:
    return {fixture.signature: fixture.rule for fixture in fixtures}


def _rule_of(signature: str, rules: Mapping[str, str]) -> str | None:
    """The rule of a signature: the one that it names, else that of a known finding of it."""
    tier, *parts = signature.split(":")
    own = TIERS[tier].rules if tier in TIERS else {}
    return next((part for part in parts if part in own), rules.get(signature))


def _remedy(text: str, fixtures: Iterable[Fixture]) -> str:
    signatures = [entry.signature for entries in triage.TABLE.values() for entry in entries]
    names = [*RULES, *(rule.slug for rule in RULES.values()), *signatures, *(one.signature for one in fixtures)]
    near = did_you_mean(text, names)
    return f"{near} {REMEDY[:1].upper()}{REMEDY[1:]}" if near else REMEDY


def _entry(engine: str, entry: triage.Triage) -> dict[str, Any]:
    return {
        "engine": engine,
        "signature": entry.signature,
        "reaches": [reach for reach in REACHES if reach in entry.reaches],
        "text": entry.line,
    }


def _example(fixture: Fixture) -> dict[str, Any]:
    return {
        "title": fixture.title,
        "shown_on": list(fixture.shown_on),
        "command": replay_file.command(str(fixture.file), fixture.found_on, fixture.found_on),
    }
