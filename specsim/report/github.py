"""A verdict for GitHub Actions: annotations, which are lines on standard output, and the step's summary.

Findings of the baseline are listed in the summary and not annotated: a pull request is shown what it brings.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from specsim.replay_file import command
from specsim.report.page.plain import visible
from specsim.tiers.registry import rule_label

Place = tuple[str, int]  # a file relative to the repository, and a line from 1 on
Located = Callable[[str, str], Place | None]  # of a target and a finding's `where`
CHANGED_MAX = 9  # lines of a change that no schedule ran
LEVELS = {"metric": "warning", "by-design": "notice"}  # of a severity; "error" for the others
TITLE_MAX = 200


def annotations_of(verdicts: Sequence[Mapping[str, Any]], located: Located) -> Iterator[str]:
    """A line for each new finding, as the runner of workflows reads it."""
    for verdict in verdicts:
        for finding in new_of(verdict):
            place = located(verdict["target"], where_of(finding))
            fields = {"title": f"{_label(finding)}: {visible(finding['title'], TITLE_MAX)}"}
            if place:
                fields = {"file": place[0], "line": str(place[1]), **fields}
            named = ",".join(f"{name}={_field(value)}" for name, value in fields.items())
            text = [f"{finding['sentence']}", f"expected {finding['expected']}", f"actual {finding['actual']}"]
            text += [command(finding["replay"], verdict["target"], verdict["target"])] if finding["replay"] else []
            message = "\n".join(map(visible, text))
            yield f"::{LEVELS.get(finding['severity'], 'error')} {named}::{_data(message)}"


def where_of(finding: Mapping[str, Any]) -> str:
    """FILE:LINE where a finding is shown: in the diff where the change is known, else at what is blamed."""
    changed: Sequence[str] = finding.get("changed", ())
    return changed[0].rpartition(" ")[2] if changed else str(finding["where"])


def _label(finding: Mapping[str, Any]) -> str:
    return rule_label(finding["tier"], finding["rule"])


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _field(text: str) -> str:
    return _data(text).replace(":", "%3A").replace(",", "%2C")


def new_of(verdict: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """The findings that the baseline does not have; all of them when there is none."""
    compared = verdict.get("baseline") or {}
    old = {*compared.get("known", ()), *compared.get("not_compared", ())}
    return [finding for finding in verdict["findings"] if finding["signature"] not in old]


def state_of(verdict: Mapping[str, Any], signature: str) -> str:
    """What a finding is beside the baseline: "known", "not compared" or "new"."""
    compared = verdict["baseline"]
    if signature in compared["known"]:
        return "known"
    return "not compared" if signature in compared.get("not_compared", ()) else "new"


def summary_of(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """Markdown: a headline and a table for each verdict, then what was not run."""
    return "\n".join(line for verdict in verdicts for line in _summary(verdict))


def _summary(verdict: Mapping[str, Any]) -> Iterator[str]:
    compared = verdict.get("baseline")
    new = new_of(verdict)
    counts = f"{len(new)} new" if compared else f"{len(new)}"
    yield f"### specsim: {verdict['verdict']}, {_cell(verdict['target'])}"
    yield ""
    beside = f", {len(compared['known'])} as in {_cell(compared['name'])}" if compared else ""
    ran = [
        f"{count:,} {what}"
        for what in ("cases", "schedules", "events")
        if (count := sum(suite[what] for suite in verdict["suites"]))
    ]
    findings = f"{counts} finding{'' if len(new) == 1 else 's'}{beside}"
    yield f"{findings}; {', '.join(ran) or 'nothing run'}; seed {verdict['seed']}."
    yield ""
    for entry in verdict.get("not_checked", ()):
        yield f"**Not checked**: {_cell(entry['what'])} ({_cell(entry['why'])})."
        yield ""
    for entry in (entry for suite in verdict["suites"] for entry in suite.get("nondeterministic", ())):
        yield f"**Not the same twice**: {_cell(entry['what'])} ({_cell(entry['why'])})."
        yield ""
    if verdict.get("changed", {}).get("not_run"):
        places = ", ".join(verdict["changed"]["not_run"][:CHANGED_MAX])
        more = len(verdict["changed"]["not_run"]) - CHANGED_MAX
        yield f"**Changed and not run by any schedule**: {_cell(places)}{f' and {more} more' if more > 0 else ''}."
        yield ""
    if "not_compared" in verdict:
        yield f"**Not compared**: {_cell(verdict['not_compared'])}."
        yield ""
    yield from _table(verdict, new)
    if others := [each for each in verdict["findings"] if each not in new]:
        yield from _folded(f"{len(others)} that are not new", _table(verdict, others))
    for name, what in (("gone", "No longer found"), ("not_judged", "In the baseline and not checked here")):
        if compared and compared[name]:
            yield ""
            yield f"{what}: {', '.join(f'<code>{_cell(signature)}</code>' for signature in compared[name])}."
    not_run = [entry for suite in verdict["suites"] for entry in suite["not_run"]]
    if not_run:
        yield from _folded(
            f"{len(not_run)} not run", (f"- {_cell(entry['what'])}: {_cell(entry['why'])}" for entry in not_run)
        )
    yield ""


def _table(verdict: Mapping[str, Any], findings: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """A row for each finding."""
    if findings:
        yield "| | rule | finding | where | severity | replay |"
        yield "|---|---|---|---|---|---|"
    for finding in findings:
        state = state_of(verdict, finding["signature"]) if verdict.get("baseline") else ""
        cells = [state, _label(finding), finding["title"], where_of(finding), finding["severity"]]
        again = command(finding["replay"], verdict["target"], verdict["target"]) if finding["replay"] else ""
        replay = f"<code>{_cell(again)}</code>" if again else ""
        yield f"| {' | '.join(map(_cell, cells))} | {replay} |"


def _folded(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Lines that a reader opens."""
    yield from ("", f"<details><summary>{title}</summary>", "")
    yield from lines
    yield from ("", "</details>")


_MARKUP = str.maketrans({character: f"\\{character}" for character in "\\`*_[]|~#!@"})


def _cell(text: str) -> str:
    """Text that neither Markdown nor HTML takes for its own."""
    return html.escape(visible(str(text), TITLE_MAX).translate(_MARKUP), quote=False)
