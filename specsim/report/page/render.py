"""A payload as one HTML file. What does not move is HTML already, so that it can be read without a script; the script
adds what goes through the events. Every text is escaped, and a policy in the file lets nothing run or load but its own
script and style.
"""

from __future__ import annotations

import base64
import hashlib
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

from specsim.report.page.lanes import lanes_of
from specsim.report.page.plain import in_html
from specsim.report.page.tensors import shade


@cache
def _part(name: str) -> str:
    return Path(__file__).with_name(name).read_text(encoding="utf-8")


def html_of(payload: Mapping[str, Any]) -> str:
    """The page of a finding."""
    finding = payload["finding"]
    return document(f"{finding['rule_label']} on {finding['target']}", payload["kind"], body_of(payload), payload)


def document(title: str, kind: str, body: str, payload: Any = None) -> str:
    """A whole document. `body` is HTML, `title` is text."""
    style, script = _part("page.css"), _part("page.js") if payload is not None else ""
    policy = (
        f"default-src 'none'; img-src data:; base-uri 'none'; form-action 'none'; "
        f"script-src {_hash_of(script)}; style-src {_hash_of(style)}"
    )
    parts = {
        "policy": policy,
        "title": escape(title),
        "style": style,
        "script": script,
        "kind": escape(kind),
        "body": body,
        "payload": in_html(payload),
    }
    return re.sub("@@([a-z]+)@@", lambda found: parts[found[1]], _part("page.html"))


def _hash_of(text: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def body_of(payload: Mapping[str, Any]) -> str:
    kind = payload["kind"]
    middle = _MIDDLES[kind](payload) if kind in _MIDDLES else ""
    return "\n".join(
        [
            f'<a class="skip" href="#{_STARTS.get(kind, "about")}">Skip the summary</a>',
            _header(payload),
            "<main>",
            middle,
            '<section id="about" class="about" aria-label="About this finding">',
            _source(payload["source"]),
            *(_panel(title, _table(rows), "facts") for title, rows in payload["tables"].items() if rows),
            "</section>",
            "</main>",
            f"<footer>specsim {escape(payload['specsim'])}. {escape(payload['finding']['signature'])}</footer>",
        ]
    )


def _header(payload: Mapping[str, Any]) -> str:
    finding = payload["finding"]
    severity = finding["severity"]
    badge = f'<span class="severity {escape(severity)}">{escape(severity.replace("-", " "))}</span>' if severity else ""
    where = [finding["part"], finding["who"] and f"of {finding['who']}", finding["where"] and f"at {finding['where']}"]
    facts = [("expected", finding["expected"]), ("actual", finding["actual"])]
    facts = facts if finding["expected"] or finding["actual"] else []
    told = finding["title"] if payload["kind"] != "schedule" and finding["sentence"] else ""
    what = f'<p class="what">{escape(told)}</p>' if told else ""
    notes = "".join(f"<p>{escape(note)}</p>" for note in payload["notes"])
    order = _order(payload)
    return f"""<header class="finding">
<p class="eyebrow"><span class="brand">specsim</span> <span>{escape(finding["target"])}</span> {badge}</p>
<h1><span class="rule">{escape(finding["rule_label"])}</span> {escape(finding["sentence"] or finding["title"])}</h1>
{what}<p class="where">{escape(" ".join(filter(None, where)))}</p>
<dl class="compare">{"".join(f'<div class="{n}"><dt>{n}</dt><dd>{escape(v) or "nothing"}</dd></div>' for n, v in facts)}
</dl>
{order}
<div class="notes">{notes}<p class="verdict">{escape(finding["verdict"])}</p></div>
<div class="command"><code id="command">{escape(payload["command"])}</code>
<button type="button" id="copy" class="js">Copy</button></div>
</header>"""


def _order(payload: Mapping[str, Any]) -> str:
    pair = payload.get("order")
    if not pair:
        return ""
    items = "".join(f"<li>{_event_link(item['event'], item['text'])}</li>" for item in pair)
    return (
        f'<div class="order"><p>The order that matters; in the opposite order the rule holds:</p><ol>{items}</ol></div>'
    )


def _event_link(number: int | None, text: str) -> str:
    return escape(text) if number is None else f'<a href="#e{number}">{escape(text)}</a>'


def _schedule(payload: Mapping[str, Any]) -> str:
    broken: dict[int, list[Mapping[str, Any]]] = {}
    for violation in payload["violations"]:
        broken.setdefault(violation["event"], []).append(violation)
    lines = []
    for event in payload["events"]:
        lines.append(f"<span>{escape(event['line'])}</span>")
        for violation in broken.get(event["number"], []):
            named = f"{violation['rule_label']} {violation['part']} {violation['who']}"
            text = f"      {named}: expected {violation['expected']}"
            lines.append(f"<strong>{escape(text)}, seen {escape(violation['actual'])}</strong>")
    trace = "\n".join(lines)
    return f"""<div id="player" class="js" hidden></div>
<details class="trace" id="trace"><summary>The trace as text, {len(payload["events"])} events</summary>
<pre tabindex="0">{trace}</pre></details>"""


def _case(payload: Mapping[str, Any]) -> str:
    order = {"output": 0, "expected": 1, "input": 2}
    tensors = sorted(payload["tensors"], key=lambda tensor: order[tensor["role"]])
    panels = "\n".join(_tensor(tensor) for tensor in tensors)
    return f'<section class="tensors" aria-label="Tensors">{panels}</section>'


def _tensor(tensor: Mapping[str, Any]) -> str:
    shape = f"[{', '.join(map(str, tensor['shape']))}]" if tensor["shape"] else "a number"
    differing = f", {tensor['count']} differ{'s' * (tensor['count'] == 1)}" if tensor["count"] else ""
    kind = f"{tensor['role']} wrong" if tensor["count"] else tensor["role"]
    numbers = [value for row in tensor["values"] for value in row if _has_a_shade(value)]
    least, most = (min(numbers), max(numbers)) if numbers else (0, 0)
    columns = range(tensor["first"], tensor["first"] + (len(tensor["values"][0]) if tensor["values"] else 0))
    head = "".join(f'<th scope="col">{number}</th>' for number in columns)
    body = []
    for i, row in enumerate(tensor["values"]):
        cells = "".join(_cell(tensor, i, j, value, least, most) for j, value in enumerate(row))
        body.append(f'<tr><th scope="row">{escape(tensor["indices"][i])}</th>{cells}</tr>')
    note = f'<p class="note">{escape(tensor["note"])}</p>' if tensor["note"] else ""
    return f"""<section class="panel tensor {escape(kind)}">
<h2>{escape(tensor["name"])} <small>{escape(tensor["role"])}, {escape(shape)}{differing}</small></h2>
<div class="scroll" tabindex="0" role="region" aria-label="{escape(tensor["name"])}"><table class="heat">
<thead><tr><td></td>{head}</tr></thead><tbody>{"".join(body)}</tbody></table></div>{note}</section>"""


def _cell(tensor: Mapping[str, Any], i: int, j: int, value: Any, least: float, most: float) -> str:
    text = escape(_number(value))
    if tensor["differs"] and tensor["differs"][i][j]:
        right = escape(_number(tensor["expected"][i][j]))
        return f'<td class="differs"><b>{text}</b><span><i>not</i> {right}</span></td>'
    if tensor["defined"] and not tensor["defined"][i][j]:
        return f'<td class="undefined" title="undefined">{text}</td>'
    if not isinstance(value, bool) and not _has_a_shade(value):
        return f'<td class="odd">{text}</td>'
    padding = " padding" if value == -1 and not isinstance(value, bool) else ""
    return f'<td class="s{shade(value, least, most)}{padding}">{text}</td>'


def _has_a_shade(value: Any) -> bool:
    """Whether a value lies between others; NaN and the infinities, which come as texts, do not."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _number(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(int(value) if isinstance(value, bool) else value)


_STARTS = {"schedule": "transport", "streams": "lanes"}
_MIDDLES = {"schedule": _schedule, "case": _case, "streams": lanes_of}


def _source(source: Mapping[str, Any] | None) -> str:
    if source is None:
        return ""
    rows = []
    for number, line in enumerate(source["lines"], source["first"]):
        here = ' class="here"' if number == source["line"] else ""
        rows.append(f"<tr{here}><th>{number}</th><td><code>{escape(line) or ' '}</code></td></tr>")
    note = f'<p class="note">{escape(source["note"])}</p>' if source["note"] else ""
    table = f'<div class="scroll" tabindex="0" role="region" aria-label="Source"><table>{"".join(rows)}</table></div>'
    return _panel(source["where"], table + note, "source")


def _panel(title: str, inner: str, kind: str) -> str:
    return f'<section class="panel {kind}"><h2>{escape(title)}</h2>{inner}</section>'


def _table(rows: Iterable[Sequence[str]]) -> str:
    lines = "".join(f'<tr><th scope="row">{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f"<table>{lines}</table>"
