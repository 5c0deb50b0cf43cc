"""What a page shows, from a replay file and the answer of its replay. The format is in the package's docstring."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import specsim
from specsim.replay_file import Replay
from specsim.report.page.plain import plain
from specsim.tiers.registry import TIERS, rule_label

FORMAT = "specsim.page/2"
_TEXTS = ("sentence", "where", "part", "who", "expected", "actual")

Payload = dict[str, Any]


@dataclass(frozen=True, slots=True)
class PageContext:
    """What a page is made of beside the replay: what the caller knows of the target and of this machine.

    `target`    the TARGET it was replayed on, with its mutant
    `command`   what replays it
    `verdict`   how it ended, one line
    `severity`  of its rule, "" for unknown
    `source`    {where, first, line, lines, note} or None
    """

    target: str
    command: str
    verdict: str
    severity: str = ""
    source: Mapping[str, Any] | None = None


def payload_of(stored: Replay, answer: Mapping[str, Any], shown: PageContext) -> Payload:
    """The payload of a finding of any tier."""
    page = TIERS[stored.tier].page(stored, shown.target.split(" with ")[0], answer)
    rules = TIERS[stored.tier].rules
    kept = {"sentence": rules[stored.rule].sentence if stored.rule in rules else "", "where": stored.where}
    is_other = page.blamed.get("rule", stored.rule) != stored.rule  # what it shows now, where its own is gone
    blamed = kept if is_other else {**kept, **page.blamed}
    texts = {name: str(blamed.get(name, "")) for name in _TEXTS}
    finding = {
        "rule": stored.rule,
        "rule_label": rule_label(stored.tier, stored.rule),
        "severity": shown.severity,
        "title": stored.title,
        "target": shown.target,
        "found_on": stored.target,
        "signature": stored.signature,
        "verdict": shown.verdict,
        **texts,
    }
    violations = [{**v, "rule_label": rule_label(stored.tier, v["rule"])} for v in page.parts.get("violations", ())]
    found: Payload = plain(
        {
            "format": FORMAT,
            "kind": page.kind,
            "specsim": specsim.__version__,
            "finding": finding,
            "command": shown.command,
            "source": shown.source,
            **page.parts,
            "violations": violations,
        }
    )
    return found
