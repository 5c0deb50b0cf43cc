"""A verdict as SARIF 2.1.0: rules, results with fingerprints, and the launches of a schedule as code flows.

Launches have no line of their own: each stands at the line of the code that is blamed, so that viewers which ask for a
place have one. A thread flow is a kind of launches; `executionOrder` is the order of launches over all of them, and the
last one is essential.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import specsim
from specsim.replay_file import command
from specsim.report.github import Located, state_of, where_of
from specsim.report.page.plain import visible

SCHEMA = "https://docs.oasis-open.org/sarif/sarif/v2.1.0/errata01/os/schemas/sarif-schema-2.1.0.json"
FINGERPRINT = "specsimSignature/v1"
LEVELS = {"metric": "warning", "by-design": "note"}  # of a severity; "error" for the others
EVENTS_MAX = 1000  # of a code flow: the last ones
_EVENT = re.compile(r"\s*(\d+)\s+(\w+)\s+(.*)")
Events = Callable[[str], Sequence[str]]  # the lines of the event log in a replay file, by its path


def sarif_of(verdicts: Sequence[Mapping[str, Any]], located: Located, events: Events) -> str:
    """JSON of verdicts, as `specsim check --json` writes each: a run for each."""
    runs = [_run(verdict, located, events) for verdict in verdicts]
    return json.dumps({"$schema": SCHEMA, "version": "2.1.0", "runs": runs}, indent=1) + "\n"


def _run(verdict: Mapping[str, Any], located: Located, events: Events) -> dict[str, Any]:
    findings = verdict["findings"]
    rules = {finding["rule"]: finding for finding in reversed(findings)}
    ids = sorted(rules)
    states = {"new": "new", "known": "unchanged"}  # of what was not compared there is none
    results = []
    for finding in findings:
        result = _result(finding, verdict, located, events) | {"ruleIndex": ids.index(finding["rule"])}
        state = state_of(verdict, finding["signature"]) if verdict.get("baseline") else ""
        if state in states:
            result["baselineState"] = states[state]
        results.append(result)
    notes = [
        {"level": "note", "message": {"text": visible(f"not run: {entry['what']}: {entry['why']}")}}
        for suite in verdict["suites"]
        for entry in suite["not_run"]
    ]
    return {
        "tool": {
            "driver": {
                "name": "specsim",
                "version": specsim.__version__,
                "rules": [
                    {
                        "id": visible(rule),
                        "shortDescription": {"text": visible(rules[rule]["sentence"])},
                        "defaultConfiguration": {"level": _level(rules[rule])},
                        "properties": {"tags": [rules[rule]["tier"], rules[rule]["severity"]]},
                    }
                    for rule in ids
                ],
            }
        },
        "automationDetails": {"id": f"specsim/{visible(verdict['target'])}/"},
        "invocations": [
            {"executionSuccessful": verdict["verdict"] != "error", "toolExecutionNotifications": notes},
        ],
        "columnKind": "utf16CodeUnits",
        "properties": {"target": visible(verdict["target"]), "seed": str(verdict["seed"])},
        "results": results,
    }


def _level(finding: Mapping[str, Any]) -> str:
    return LEVELS.get(finding["severity"], "error")


def _result(finding: Mapping[str, Any], verdict: Mapping[str, Any], located: Located, events: Events) -> dict[str, Any]:
    place = located(verdict["target"], where_of(finding)) or (finding["replay"] or "specsim", 1)
    location = {
        "physicalLocation": {
            "artifactLocation": {"uri": quote(place[0], errors="replace")},
            "region": {"startLine": max(1, place[1])},
        }
    }
    text = f"{finding['title']}. Expected {finding['expected']}, actual {finding['actual']}."
    text += f" Replay: {command(finding['replay'], verdict['target'], verdict['target'])}" if finding["replay"] else ""
    flow = _flow(events(finding["replay"]) if finding["replay"] else (), location)
    return {
        "ruleId": visible(finding["rule"]),
        "level": _level(finding),
        "message": {"text": visible(text)},
        "locations": [location],
        "partialFingerprints": {FINGERPRINT: visible(finding["signature"])},
        "occurrenceCount": max(1, finding["count"]),
        **({"codeFlows": [flow]} if flow else {}),
        "properties": {
            name: visible(finding[name]) for name in ("signature", "tier", "severity", "reach", "where", "replay")
        },
    }


def _flow(lines: Sequence[str], location: Mapping[str, Any]) -> dict[str, Any] | None:
    """The code flow of an event log, None for none."""
    if not lines:
        return None
    shown = lines[-EVENTS_MAX:]
    kinds: dict[str, list[dict[str, Any]]] = {}
    for number, line in enumerate(shown, 1):
        event = _EVENT.fullmatch(line)
        kinds.setdefault(event[2] if event else "", []).append(
            {
                "location": {**location, "message": {"text": visible(" ".join(line.split()))}},
                "executionOrder": number,
                "importance": "essential" if number == len(shown) else "important",
            }
        )
    left_out = len(lines) - len(shown)
    text = f"{len(lines)} events" + (f", the first {left_out} left out" if left_out else "")
    flows = [{"id": kind or "other", "locations": steps} for kind, steps in kinds.items()]
    return {"message": {"text": text}, "threadFlows": flows}
