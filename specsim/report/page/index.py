"""The index of a run: its findings with links to their pages, and tables of a checkout's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from specsim.report.page.plain import visible
from specsim.report.page.render import document


class Entry(NamedTuple):
    """A replay file: its page, "" when there is none, the payload's `finding`, and why there is no page."""

    file: str
    page: str
    finding: Mapping[str, Any]
    why_not: str


class Table(NamedTuple):
    """A table of the index. A cell that is (text, kind) gets that class; `note` says where the data is from."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | tuple[str, str]]]


def index_of(folder: str, entries: Sequence[Entry], tables: Sequence[Table]) -> str:
    """The page `index.html`."""
    shown = [entry for entry in entries if entry.page]
    head = f"""<header class="finding"><p class="eyebrow"><span class="brand">specsim</span> <span>report</span></p>
<h1>{len(shown)} {"finding" if len(shown) == 1 else "findings"}</h1>
<p class="where">replay files of {escape(visible(folder))}</p></header>"""
    parts = [_findings(shown), _left_out(entries), *map(table_of, tables)]
    return document("specsim report", "report", f"{head}<main>{''.join(parts)}</main><footer></footer>")


def _findings(entries: Sequence[Entry]) -> str:
    if not entries:
        return '<section class="panel"><h2>Findings</h2><p class="note">There are none.</p></section>'
    items = []
    for entry in entries:
        finding = {name: escape(text) for name, text in entry.finding.items()}
        items.append(
            f'<li><span class="rule">{finding["rule_label"]}</span>'
            f'<span class="what"><a href="{escape(entry.page, quote=True)}">'
            f"{finding['title'] or finding['signature']}</a><small>{finding['sentence']}</small></span>"
            f'<span>{finding["target"]}</span><span><span class="severity {finding["severity"]}">'
            f"{finding['severity'].replace('-', ' ')}</span></span><small>{finding['verdict']}</small></li>"
        )
    return f'<section class="panel"><h2>Findings</h2><ul class="cards">{"".join(items)}</ul></section>'


def _left_out(entries: Sequence[Entry]) -> str:
    items = "".join(
        f"<li><b>{escape(visible(entry.file))}</b>: {escape(visible(entry.why_not))}</li>"
        for entry in entries
        if not entry.page
    )
    return f'<section class="panel changes"><h2>Without a page</h2><ul>{items}</ul></section>' if items else ""


def table_of(table: Table) -> str:
    """A panel with the table."""
    kinds = [cell[1] if not isinstance(cell, str) and cell[1] == "number" else "" for cell in (table.rows or [[]])[0]]
    kinds += [""] * (len(table.columns) - len(kinds))
    head = "".join(
        f'<th scope="col" class="{kind}">{escape(name)}</th>' for name, kind in zip(table.columns, kinds, strict=True)
    )
    body = "".join(
        f'<tr><th scope="row">{escape(_text(row[0]))}</th>{"".join(map(_cell, row[1:]))}</tr>' for row in table.rows
    )
    title, note = escape(table.title), escape(table.note)
    return f"""<section class="panel"><h2>{title}</h2><div class="scroll" tabindex="0" role="region"
aria-label="{title}"><table class="index"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
<p class="note">{note}</p></section>"""


def _cell(cell: str | tuple[str, str]) -> str:
    if isinstance(cell, str):
        return f"<td>{escape(visible(cell))}</td>"
    return f'<td class="{cell[1]}">{escape(visible(cell[0]))}</td>'


def _text(cell: str | tuple[str, str]) -> str:
    return visible(cell if isinstance(cell, str) else cell[0])
