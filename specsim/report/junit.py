"""A verdict as JUnit XML: a test case for each implementation and finding.

What is known from the baseline, and what was not run, is skipped, with the reason.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any
from xml.etree import ElementTree as Tree

from specsim.replay_file import command
from specsim.report.page.plain import visible
from specsim.tiers.registry import rule_label

_Json = Mapping[str, Any]


def junit_of(verdicts: Sequence[_Json]) -> str:
    """XML of verdicts, as `specsim check --json` writes each."""
    root = Tree.Element("testsuites", name="specsim")
    for verdict in verdicts:
        for suite in verdict["suites"]:
            _add(root, verdict, suite)
    for name in ("tests", "failures", "skipped"):
        root.set(name, str(sum(int(suite.get(name, "0")) for suite in root)))
    root.set("errors", "0")
    Tree.indent(root)
    return f'<?xml version="1.0" encoding="utf-8"?>\n{Tree.tostring(root, encoding="unicode")}\n'


def _add(root: Tree.Element, verdict: _Json, suite: _Json) -> None:
    name = f"{verdict['target']} {suite['name']}"
    element = Tree.SubElement(root, "testsuite", name=visible(name), errors="0")
    if "times" in verdict:  # a check that ends by counts alone has none
        element.set("time", f"{verdict['times']['suites'][suite['name']]:.3f}")
    cases = list(_cases(verdict, suite))
    for case in cases:
        element.append(case)
    element.set("tests", str(len(cases)))
    element.set("failures", str(sum(case.find("failure") is not None for case in cases)))
    element.set("skipped", str(sum(case.find("skipped") is not None for case in cases)))


def _cases(verdict: _Json, suite: _Json) -> Iterator[Tree.Element]:
    found = [finding for finding in verdict["findings"] if finding["tier"] == suite["name"]]
    wrong = {finding["signature"] for finding in found}
    for checked in suite["judged"]:
        signature = f"{suite['name']}:{checked['op']}:{checked['subject']}"
        if not any(each == signature or each.startswith(f"{signature}:") for each in wrong):
            yield _case(suite, f"{checked['op']}, {checked['subject']}")
    if suite["schedules"]:
        yield _case(suite, f"{suite['schedules']} schedules, {suite['events']} events")
    compared = verdict.get("baseline") or {}
    skipped = dict.fromkeys(compared.get("not_compared", ()), "not compared: the baseline did not run it")
    skipped |= dict.fromkeys(compared.get("known", ()), "in the baseline")
    for finding in found:
        case = _case(suite, finding["signature"])
        if finding["signature"] in skipped:
            Tree.SubElement(case, "skipped", message=visible(f"{skipped[finding['signature']]}: {finding['title']}"))
        else:
            failure = Tree.SubElement(case, "failure", type=visible(finding["rule"]), message=visible(finding["title"]))
            failure.text = "\n".join(map(visible, lines_of(finding, verdict["target"])))
        yield case
    for entry in suite["not_run"]:
        case = _case(suite, entry["what"])
        Tree.SubElement(case, "skipped", message=visible(f"not run: {entry['why']}"))
        yield case


def _case(suite: _Json, name: str) -> Tree.Element:
    return Tree.Element("testcase", classname=f"specsim.{suite['name']}", name=visible(name))


def lines_of(finding: _Json, target: str) -> list[str]:
    """A finding as lines of text, the command that replays it last."""
    return [
        f"{rule_label(finding['tier'], finding['rule'])}: {finding['sentence']}",
        *(f"changed  {one}" for one in finding.get("changed", ())),
        *([f"where    {finding['where']}"] if finding["where"] else []),
        f"expected {finding['expected']}",
        f"actual   {finding['actual']}",
        f"severity {finding['severity']}, reach {finding['reach']}, hit {finding['count']} times",
        *([f"triage   {finding['triage']}"] if finding.get("triage") else []),
        *finding["details"],
        *([command(finding["replay"], target, target)] if finding["replay"] else []),
    ]
