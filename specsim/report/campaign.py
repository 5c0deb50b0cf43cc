"""A campaign as one HTML page: what was run and what was found. It holds no script and loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from markupsafe import Markup

from specsim.report.page.charts import Chart, chart_of
from specsim.report.page.index import IndexTable, table_of
from specsim.report.page.plain import visible
from specsim.report.page.render import document


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


class CampaignPage(NamedTuple):
    headline: str
    where: str
    tiles: Sequence[Tile]
    charts: Sequence[Chart]
    findings: Sequence[Card]
    tables: Sequence[IndexTable]
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


def _text(text: str) -> str:
    return escape(visible(text))
