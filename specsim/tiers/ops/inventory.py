"""Which of a target's kernels for speculation are checked: those that run when an operation's implementation does.

Nothing is taken from a table: each implementation runs on a few generated cases, and the kernels that are launched are
noted. A caller is checked by the arguments that it makes, so it counts for the kernels of its documented launch.
"""

from __future__ import annotations

import contextlib
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from specsim.choices.chooser import seeded
from specsim.contracts.provider import Subject
from specsim.contracts.registry import OPS
from specsim.engines import registry
from specsim.engines.load import function_of
from specsim.engines.registry import ENGINES
from specsim.interpreter.lockstep.launch import lockstep
from specsim.lifting.kernels import KernelPlace, kernel_places
from specsim.lifting.source import SourceTree

CASES, CASES_MIN = 24, 4
"""Cases of an implementation that are run: fewer, the longer one takes, of at most `DRAWN` that are drawn."""
DRAWN = 64
REASONS = Path(registry.__file__).with_name("kernels_not_covered.toml")


@dataclass(frozen=True, slots=True)
class InventoryRow:
    """A kernel: the operations whose implementations launch it, the places in the engine whose call of it is checked,
    and why it is not covered, "" where it is or nobody said.
    """

    place: KernelPlace
    operations: tuple[str, ...]
    callers: tuple[str, ...]
    why: str


def inventory(engine: str, source: SourceTree, subjects: Iterable[Subject]) -> list[InventoryRow]:
    """The kernels of a source of an engine that has some, in the order of the source."""
    subjects = list(subjects)
    by_subject = {subject.name: _launched(subject) for subject in subjects if subject.role == "kernel"}
    reasons = reasons_of(engine)
    rows = []
    for place in kernel_places(source, ENGINES[engine].speculation):
        launching = [s for s in subjects if (place.name, place.first_line) in by_subject.get(s.needs or s.name, ())]
        operations = dict.fromkeys(s.op for s in launching if s.role == "kernel")
        callers = dict.fromkeys(s.name.removeprefix("caller:") for s in launching if s.role == "caller")
        why = "" if operations else reasons.get(place.name, reasons.get(place.path, ""))
        rows.append(InventoryRow(place, tuple(operations), tuple(callers), why))
    return rows


def compiled_inventory(engine: str, source: SourceTree) -> list[InventoryRow]:
    """The compiled functions that a source's speculation uses, by the table of those that are called on a GPU."""
    listed = ENGINES[engine].compiled
    if listed is None:
        return []
    found = function_of(listed)(source, ENGINES[engine].speculation)
    reasons = reasons_of(engine)
    return [InventoryRow(place, ops, (), "" if ops else reasons.get(place.name, "")) for place, ops in found]


def reasons_of(engine: str) -> Mapping[str, str]:
    """Why kernels of an engine are not covered, by the kernel's name or by its file."""
    reasons: dict[str, str] = tomllib.loads(REASONS.read_text(encoding="utf-8")).get(engine, {})
    return reasons


def _launched(subject: Subject) -> set[tuple[str, int]]:
    """The kernels that an implementation launches on generated cases, by name and first line."""
    op, chooser, left = OPS[subject.op], seeded(0, "inventory", subject.name), max(CASES_MIN, CASES // subject.cost)
    with lockstep() as launches:
        for _ in range(DRAWN):
            case = op.generate(chooser)
            if not left:
                break
            if not subject.accepts(case.sizes):
                continue
            left -= 1
            with contextlib.suppress(Exception):  # what is wrong with it, a check says
                subject.run(case.sizes, {**case.tensors, **op.allocate_outputs(case)})
    return launches.kernels
