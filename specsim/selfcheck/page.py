"""The committed page about mutants, Markdown: `docs/mutants.md`."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from specsim.selfcheck.catalogue import BUGS, CLASSES, OF_NO_BUG, KnownBug
from specsim.selfcheck.hunt import Hunted
from specsim.selfcheck.mutant_table import COLUMNS, row


def page(hunted: Sequence[Hunted]) -> str:
    """Of all mutants."""
    parts = [
        _mutants(hunted),
        _bugs("Bugs that something else finds", "found by", lambda bug: bug.found_by),
        _bugs("Bugs that nothing finds yet", "to plant into a release", lambda bug: bug.to_plant),
        _bugs("Bugs that nothing is to find", "why not", lambda bug: bug.why_not),
    ]
    return "\n".join(line for part in parts for line in part)


def _mutants(hunted: Sequence[Hunted]) -> list[str]:
    bugs = sum(bool(bug.mutants) for bug in BUGS)
    alone = sum(each.mutant.id[0] == OF_NO_BUG for each in hunted)
    schedules = max(each.schedules_worst for each in hunted)
    median = max(each.schedules_median for each in hunted)
    return [
        "# Mutants",
        "",
        f"{bugs} of the {len(BUGS)} known bugs of the catalogue are re-created by {len(hunted) - alone} changes of one"
        " line of the",
        f"reference engine (`specsim/selfcheck/known_bugs.toml`). {alone} more, of class {OF_NO_BUG}, are mistakes that"
        " no known bug is. Each is",
        "hunted by the schedules that `specsim check` draws: they are run from each seed until one breaks a rule.",
        f"{len(hunted[0].hunts)} seeds; the slowest mutant takes {median:g} schedules in the median, the longest hunt"
        f" {schedules}.",
        "",
        "This page is written by `specsim mutants --write docs/mutants.md`.",
        "",
        *_head(("mutant", "what is wrong", *COLUMNS[1:])),
        *(_line((each.mutant.id, each.mutant.title, *row(each)[1:])) for each in hunted),
        "",
    ]


def _bugs(title: str, column: str, what: Callable[[KnownBug], str]) -> list[str]:
    """The known bugs of which the catalogue says this."""
    said = [bug for bug in BUGS if what(bug)]
    rows = [_line((bug.id, CLASSES[bug.id[0]], bug.title, what(bug))) for bug in said]
    return [f"## {title}", "", f"{len(said)}.", "", *_head(("bug", "class", "what is wrong", column)), *rows, ""]


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(("---",) * len(cells))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
