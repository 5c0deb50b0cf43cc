"""A campaign as one HTML page: what was run, what was found, what was reached and what was not. It holds no script and
loads nothing.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from specsim.report.page.charts import Chart, chart_of
from specsim.report.page.index import IndexTable, table_of
from specsim.report.page.plain import visible
from specsim.report.page.render import document

_SHADES = 8  # of page.css, .s1 and on


class Tile(NamedTuple):
    """A number that sums up, and what it is of."""

    name: str
    value: str
    note: str = ""


class Card(NamedTuple):
    """A finding. `facts` are (name, value); `replays` (href, text); `commands` lines for a shell."""

    rule: str
    title: str
    target: str
    severity: str
    state: str
    sentence: str
    facts: Sequence[tuple[str, str]]
    replays: Sequence[tuple[str, str]]
    commands: Sequence[str]


class CampaignCell(NamedTuple):
    """Of a matrix: the runs that reached it, 0 for none, and a text. `is_hole`: others reached it."""

    runs: int
    is_hole: bool
    text: str


class CampaignMatrix(NamedTuple):
    """`rows` are (name, cells); a matrix that `is_open` is not folded."""

    title: str
    corner: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[CampaignCell]]]
    holes: Sequence[str]
    is_open: bool


class CampaignPage(NamedTuple):
    headline: str
    where: str
    tiles: Sequence[Tile]
    charts: Sequence[Chart]
    findings: Sequence[Card]
    tables: Sequence[IndexTable]
    matrices: Sequence[CampaignMatrix]
    version: str


def page_of(page: CampaignPage) -> str:
    """The document."""
    tiles = "".join(
        f"<div><dt>{_text(tile.name)}</dt><dd>{_text(tile.value)}"
        f"{f'<small>{_text(tile.note)}</small>' if tile.note else ''}</dd></div>"
        for tile in page.tiles
    )
    head = f"""<a class="skip" href="#findings">Skip the summary</a>
<header class="finding"><p class="eyebrow"><span class="brand">specsim</span> <span>campaign</span></p>
<h1>{_text(page.headline)}</h1><p class="where">{_text(page.where)}</p>
<dl class="tiles">{tiles}</dl></header>"""
    parts = [
        f'<div class="charts">{"".join(map(chart_of, page.charts))}</div>',
        _findings(page.findings),
        *map(table_of, page.tables),
        _coverage(page.matrices),
    ]
    foot = f"<footer>specsim {_text(page.version)}</footer>"
    return document("specsim campaign", "report", Markup(f"{head}<main>{''.join(parts)}</main>{foot}"))


def _findings(cards: Sequence[Card]) -> str:
    inner = f'<ul class="found">{"".join(map(_card, cards))}</ul>' if cards else '<p class="note">There are none.</p>'
    return f'<section class="panel" id="findings"><h2>Findings</h2>{inner}</section>'


def _card(card: Card) -> str:
    facts = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in card.facts)
    replays = ", ".join(f'<a href="{escape(href, quote=True)}">{_text(text)}</a>' for href, text in card.replays)
    commands = "".join(f'<div class="command"><code>{_text(line)}</code></div>' for line in card.commands)
    return f"""<li class="{escape(card.state.replace(" ", "-"))}">
<p><span class="rule">{_text(card.rule)}</span> <b>{_text(card.title)}</b>
<span class="severity {escape(card.severity)}">{_text(card.severity.replace("-", " "))}</span>
<span class="state-of">{_text(card.state)}</span></p>
<p><span>{_text(card.target)}</span> <small>{_text(card.sentence)}</small></p>
<dl class="facts">{facts}<div><dt>replay files</dt><dd>{replays or "none was kept"}</dd></div></dl>{commands}</li>"""


def _coverage(matrices: Sequence[CampaignMatrix]) -> str:
    if not matrices:
        return (
            '<section class="panel"><h2>What was reached</h2><p class="note">No schedule was run that counts what it '
            "reaches.</p></section>"
        )
    legend = (
        '<ul class="legend"><li><i class="swatch s3"></i>runs that reached it, darker for more</li>'
        '<li><i class="swatch hole"></i>a hole: another target, or the model, reached it; this one did not</li>'
        '<li><i class="swatch none"></i>no run of any target reached it</li></ul>'
    )
    inner = "".join(map(_matrix, matrices))
    return f'<section class="panel" id="coverage"><h2>What was reached, and the holes</h2>{legend}{inner}</section>'


def _matrix(matrix: CampaignMatrix) -> str:
    most = max((cell.runs for _, cells in matrix.rows for cell in cells), default=0)
    head = "".join(f'<th scope="col"><span>{_text(name)}</span></th>' for name in matrix.columns)
    body = "".join(
        f'<tr><th scope="row">{_text(name)}</th>{"".join(_cell(cell, most) for cell in cells)}</tr>'
        for name, cells in matrix.rows
    )
    title = _text(matrix.title)
    holes = "".join(f"<li>{_text(hole)}</li>" for hole in matrix.holes)
    listed = f'<h3>Not reached</h3><ul class="holes">{holes}</ul>' if holes else ""
    table = f"""<div class="scroll" tabindex="0" role="region" aria-label="{title}"><table class="heat pairs-of">
<thead><tr><th scope="col">{_text(matrix.corner)}</th>{head}</tr></thead><tbody>{body}</tbody></table></div>"""
    return f"<details{' open' if matrix.is_open else ''}><summary>{title}</summary>{table}{listed}</details>"


def _cell(cell: CampaignCell, most: int) -> str:
    title = f' title="{escape(visible(cell.text), quote=True)}"' if cell.text else ""
    if cell.runs:
        return f'<td class="s{shade(cell.runs, most)}"{title}>{_short(cell.runs)}</td>'
    if cell.is_hole:
        return f'<td class="hole"{title}>hole</td>'
    return '<td class="none"><span class="quiet">none</span></td>'


def shade(runs: int, most: int) -> int:
    """1 to 8, by the logarithm: a pair of ten runs in a million is still to be told from one of a thousand."""
    return 1 + round((_SHADES - 1) * math.log(runs) / math.log(most)) if most > 1 else 1


def _short(runs: int) -> str:
    for unit, factor in (("G", 10**9), ("M", 10**6), ("k", 10**3)):
        if runs >= factor:
            scaled = runs / factor
            return f"{scaled:.1f}{unit}" if scaled < 10 else f"{scaled:.0f}{unit}"
    return str(runs)


def _text(text: str) -> str:
    return escape(visible(text))
