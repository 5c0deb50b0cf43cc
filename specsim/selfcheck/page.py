"""The committed page about mutants, Markdown: `docs/mutants.md`."""

from __future__ import annotations

from collections.abc import Sequence

from specsim.selfcheck.catalogue import BUGS, CLASSES
from specsim.selfcheck.hunt import Hunted
from specsim.selfcheck.mutant_table import COLUMNS, CONTENT_ORACLE, Table, row, seen_by_nobody, spread


def page(table: Table) -> str:
    """All of a table."""
    parts = [_found(table), _without(table), _oracle(table), _blind(table), _not_expressed()]
    return "\n".join(line for part in parts for line in part)


def _found(table: Table) -> list[str]:
    hunted = table.hunted
    entries = sum(bool(entry.mutants) for entry in BUGS)
    schedules = max(each.schedules_worst for each in hunted)
    seconds = max(each.cpu_seconds_median for each in hunted)
    requests, requests_most, events, events_most = spread(table.smallest)
    lines = [
        "# Mutants",
        "",
        f"{entries} of the {len(BUGS)} known bugs of the catalogue are re-created by {len(hunted)} changes of one",
        "line of the model (`specsim/selfcheck/known_bugs.toml`). Each is hunted by the default swarm of `specsim"
        " check`,",
        "with no workload of its own: schedules are run from each seed until one breaks a rule.",
        f"{len(hunted[0].hunts)} seeds; the slowest mutant takes {seconds:.2f} CPU seconds in the median, the"
        f" longest hunt {schedules} schedules.",
        "",
        f"`smallest`: requests, and events from the first admission on, of the smallest schedule that shrinking what"
        f" {table.efforts.smallest}",
        f"schedules find ends with: {requests:g} and {events:g} in the median, {requests_most} and"
        f" {events_most} at most.",
        "",
        "This page is written by `specsim mutants --write docs/mutants.md`.",
        "",
    ]
    lines += _head(("mutant", "what is wrong", *COLUMNS[1:], "smallest"))
    for each in hunted:
        smallest = table.smallest[each.mutant.id]
        first, *cells = row(each)
        shown = f"{smallest.requests}/{smallest.events}" if smallest else "not found"
        lines.append(_line((first, each.mutant.title, *cells, shown)))
    return [*lines, ""]


def _without(table: Table) -> list[str]:
    seeds, schedules = table.efforts.survival
    lines = [
        "## Without a rule",
        "",
        f"What {seeds} seeds of {schedules} schedules do not find when one rule is switched off; a model that raises is"
        " found. A mutant",
        "that another rule found too is still found, and rules that are not here found none first: nothing survives"
        " without them.",
        "",
    ]
    lines += _head(("rule", "finds", "alone", "survive without it"))
    lines += [
        _line((each.rule, f"{len(each.found)}", f"{len(each.alone)}", " ".join(each.survivors) or "none"))
        for each in table.without
    ]
    return [*lines, ""]


def _oracle(table: Table) -> list[str]:
    survivors = seen_by_nobody(table.oracle)
    seeds, schedules = table.efforts.survival
    return [
        "## The content oracle alone",
        "",
        f"With {' and '.join(CONTENT_ORACLE)} alone, which look at tokens and at the content of KV, {len(survivors)} of"
        f" {len(table.oracle)} survive {seeds} seeds of {schedules} schedules:",
        " ".join(survivors) or "none",
        "",
    ]


def _blind(table: Table) -> list[str]:
    blind = table.blind
    lines = [
        "## Blind mutants",
        "",
        "Written after the rules were frozen, by someone who has not read them"
        " (`specsim/selfcheck/blind_mutants.toml`),",
        f"and scored apart: {sum(bool(each.found) for each in blind)} of {len(blind)} found."
        if blind
        else "scored apart: none yet.",
        "",
    ]
    if blind:
        lines += _head(("mutant", "what is wrong", *COLUMNS[1:]))
        lines += [_line((each.mutant.id, each.mutant.title, *blind_cells(each))) for each in blind]
        lines.append("")
    return lines


def blind_cells(hunted: Hunted) -> Sequence[str]:
    """The cells of a blind mutant behind its id; one that is not found says so."""
    cells = row(hunted)[1:]
    return cells if hunted.found else ("not found", *cells[1:])


def _not_expressed() -> list[str]:
    return [
        "## Bugs that the model cannot express",
        "",
        *_head(("bug", "class", "what is wrong", "why not")),
        *(_line((entry.id, CLASSES[entry.id[0]], entry.title, entry.why_not)) for entry in BUGS if entry.why_not),
        "",
    ]


def _head(cells: Sequence[str]) -> list[str]:
    return [_line(cells), _line(("---",) * len(cells))]


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
