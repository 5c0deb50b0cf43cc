"""The index of a run: its findings with links to their pages, and tables of a checkout's data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from specsim.report.page.plain import visible
from specsim.report.page.render import document, part, rendered


class Entry(NamedTuple):
    """A replay file: its page, "" when there is none, the payload's `finding`, and why there is no page. `group` is the
    heading that it stands under, and `facts` are (name, text) to read beside it.
    """

    file: str
    page: str
    finding: Mapping[str, Any]
    why_not: str
    group: str = "Findings"
    facts: Sequence[tuple[str, str]] = ()


class IndexTable(NamedTuple):
    """A table of the index. A cell that is (text, kind) gets that class; `note` says where the data is from."""

    title: str
    note: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str | tuple[str, str]]]

    @property
    def cells(self) -> list[list[tuple[str, str]]]:
        """Text and class of each cell."""
        return [
            [(visible(one), "") if isinstance(one, str) else (visible(one[0]), one[1]) for one in row]
            for row in self.rows
        ]

    @property
    def kinds(self) -> list[str]:
        """The class of each column's heading."""
        first = self.cells[0] if self.rows else []
        kinds = [kind if kind == "number" else "" for _text, kind in first]
        return [*kinds, *[""] * (len(self.columns) - len(kinds))]


def index_of(given: str, entries: Sequence[Entry], tables: Sequence[IndexTable]) -> str:
    """The page `index.html` of what was `given`; groups stand in the order of their first entries."""
    shown = [entry for entry in entries if entry.page]
    without = [(visible(entry.file), visible(entry.why_not)) for entry in entries if not entry.page]
    groups = dict.fromkeys(entry.group for entry in shown)
    body = rendered(
        "index.html",
        heading=f"{len(shown)} {'finding' if len(shown) == 1 else 'findings'}",
        about=f"replay files of {visible(given)}",
        groups=[(group, [entry for entry in shown if entry.group == group]) for group in groups],
        without=without,
        tables=tables,
    )
    return document("specsim report", "report", body)


def table_of(table: IndexTable) -> Markup:
    """A panel with the table."""
    return part("table", table)
