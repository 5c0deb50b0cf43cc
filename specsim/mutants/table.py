"""The table of mutants: by which rules each is found, after how many schedules and CPU seconds, and what would not be
found without a rule. `specsim mutants --write` commits it as a page.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, NamedTuple

from specsim.mutants.catalogue import Mutant
from specsim.mutants.coverage import CLASSES, ENTRIES, entry_of
from specsim.mutants.hunt import EXCEPTION, Hunted, hunt_in_child


class Effort(NamedTuple):
    """How long a mutant is hunted."""

    seeds: int
    schedules: int


SEEDS = 20
SCHEDULES_MAX = 20000
# Whoever is not found so soon without a rule survives it.
SOON = Effort(seeds=1, schedules=300)
# What is seen of tokens and of the content of KV alone, without a look at lengths, owners or counters.
CONTENT_ORACLE = ("I05", "I40")


def hunt_all(
    mutants: Sequence[Mutant],
    *,
    seeds: int = SEEDS,
    schedules_max: int = SCHEDULES_MAX,
    jobs: int = 1,
    without: Collection[str] = (),
    only: Collection[str] = (),
    strategy: str = "swarm",
    on_hunted: Callable[[Hunted], None] = lambda _hunted: None,
) -> list[Hunted]:
    """Hunt every mutant, `jobs` at a time; `on_hunted` sees them in their order."""

    def hunt(mutant: Mutant) -> Hunted:
        return hunt_in_child(
            mutant, seeds=seeds, schedules_max=schedules_max, without=without, only=only, strategy=strategy
        )

    found = []
    with ThreadPoolExecutor(jobs) as pool:
        for hunted in pool.map(hunt, mutants):
            on_hunted(hunted)
            found.append(hunted)
    return found


def to_json(hunted: Hunted) -> dict[str, Any]:
    mutant = hunted.mutant
    return {
        "id": mutant.id,
        "entry": entry_of(mutant),
        "title": mutant.title,
        "references": list(mutant.references),
        "module": mutant.module,
        "line": mutant.line,
        "becomes": mutant.becomes,
        "seeds": len(hunted.hunts),
        "found": hunted.found,
        "rules": hunted.rules,
        "schedules": {"median": hunted.schedules_median, "worst": hunted.schedules_worst},
        "cpu_seconds": {"median": hunted.cpu_seconds_median, "worst": hunted.cpu_seconds_worst},
    }


def row(hunted: Hunted) -> tuple[str, ...]:
    """The cells of a mutant: id, found of seeds, rules, schedules and CPU seconds in the median and at worst."""
    return (
        hunted.mutant.id,
        f"{hunted.found}/{len(hunted.hunts)}",
        " ".join(hunted.rules) or "none",
        f"{hunted.schedules_median:g}",
        f"{hunted.schedules_worst}",
        f"{hunted.cpu_seconds_median:.3f}",
        f"{hunted.cpu_seconds_worst:.3f}",
    )


COLUMNS = ("mutant", "found", "rules", "schedules, median", "worst", "CPU s, median", "worst")


def seen_by_nobody(hunted: Sequence[Hunted]) -> list[str]:
    """The mutants that no seed found."""
    return [each.mutant.id for each in hunted if not each.found]


def survivors(
    hunted: Sequence[Hunted], *, seeds: int, schedules_max: int, jobs: int
) -> Iterator[tuple[str, list[str]]]:
    """For every rule that found a mutant alone: the rule, and the mutants that no seed finds without it.

    A mutant that two rules found stays found when one is off, so only those that one rule found are hunted again.
    """
    for rule in sorted({rule for each in hunted for rule in each.rules} - {EXCEPTION}):
        alone = [each.mutant for each in hunted if each.rules == [rule]]
        if alone:
            again = hunt_all(alone, seeds=seeds, schedules_max=schedules_max, jobs=jobs, without=(rule,))
            yield rule, seen_by_nobody(again)


def page(hunted: Sequence[Hunted], without: Sequence[tuple[str, list[str]]], oracle: Sequence[Hunted]) -> str:
    """The committed page, Markdown."""
    entries = sum(bool(entry.mutants) for entry in ENTRIES)
    schedules = max(each.schedules_worst for each in hunted)
    seconds = max(each.cpu_seconds_median for each in hunted)
    lines = [
        "# Mutants",
        "",
        f"{entries} of the {len(ENTRIES)} known bugs of the catalogue are re-created by {len(hunted)} changes of one",
        "line of the model (`specsim/mutants/catalogue.py`). Each is hunted by the default swarm of `specsim check`,",
        "with no workload of its own: schedules are run from each seed until one breaks a rule.",
        f"{len(hunted[0].hunts)} seeds; the slowest mutant takes {seconds:.2f} CPU seconds in the median, the"
        f" longest hunt {schedules} schedules.",
        "",
        "This page is written by `specsim mutants --write docs/mutants.md`.",
        "",
        _line(("mutant", "what is wrong", *COLUMNS[1:])),
        _line(("---",) * (len(COLUMNS) + 1)),
    ]
    for each in hunted:
        first, *cells = row(each)
        lines.append(_line((first, each.mutant.title, *cells)))
    lines += [
        "",
        "## Without a rule",
        "",
        f"What {SOON.seeds} seeds of {SOON.schedules} schedules do not find when one rule is switched off.",
        "",
    ]
    lines += [_line(("rule", "survivors")), _line(("---", "---"))]
    lines += [_line((rule, " ".join(ids) or "none")) for rule, ids in without]
    blind = seen_by_nobody(oracle)
    lines += [
        "",
        "## The content oracle alone",
        "",
        f"With {' and '.join(CONTENT_ORACLE)} alone, which look at tokens and at the content of KV, {len(blind)} of"
        f" {len(oracle)} survive:",
        " ".join(blind) or "none",
        "",
        "## Bugs that the model cannot express",
        "",
        _line(("bug", "class", "what is wrong", "why not")),
        _line(("---",) * 4),
    ]
    lines += [_line((entry.id, CLASSES[entry.id[0]], entry.title, entry.why_not)) for entry in ENTRIES if entry.why_not]
    return "\n".join(lines) + "\n"


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
