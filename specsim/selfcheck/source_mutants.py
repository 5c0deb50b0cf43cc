"""Defects of one statement in a target's own source: which there are in what its schedules run, and which are drawn.

Lines are drawn in an order of their own, then a kind of mistake that can be made on each, and one of that kind, each
with equal chances, so that long statements and kinds with many places count no more than others. A seed and the target
decide alone: nothing that is drawn was run. Each line has its own numbers: lines that are run besides come between, and
scores by two versions of specsim are mostly of the same mistakes.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import cycle
from typing import NamedTuple

from specsim.choices.chooser import stream
from specsim.lifting.planted import defects_in
from specsim.lifting.probes import probed
from specsim.lifting.source import SourceTree

KINDS = {
    "deleted": ("drop-call", "drop-jump", "drop-operand", "drop-keyword"),
    "branch": ("negate",),
    "off by one": ("shift-comparison", "plus-one", "minus-one"),
    "stale": ("drop-assignment", "read-before"),
    "wrong": ("wrong-field", "swap-operands"),
}
"""The kinds of mistakes, by the edits that make them (`specsim.lifting.planted`)."""
_TELLS = re.compile(
    r"(?:^|_)(?:log|logs|logger|logging|log_\w+|metrics?|stats?|print|repr|report\w*|profil\w*|trac(?:e|er|ing)|debug|"
    r"warn\w*|dump\w*|health\w*|watchdog|latency|fpm|observ\w*|time\w*)(?:_|$)",
    re.IGNORECASE,
)
"""Names of what tells people something and decides nothing."""


class SourceMutant(NamedTuple):
    """A defect by the id that `--mutant` takes, its file below the package, its line, its kind, and the first line of
    the statement that it is in.
    """

    id: str
    file: str
    line: int
    kind: str
    statement: int


def drawn(
    source: SourceTree, target: str, ran: Mapping[str, Collection[int]], count: int, seed: int
) -> list[SourceMutant]:
    """So many mutants of the statements that `ran`, by file the first lines of each, in the order in which they are
    drawn; fewer where there are no more.
    """
    by_line: dict[tuple[str, int], dict[str, list[SourceMutant]]] = {}
    total = 0
    for file in sorted(ran):
        for mutant in _of_file(source, file, ran[file]):
            by_line.setdefault((mutant.file, mutant.line), {}).setdefault(mutant.kind, []).append(mutant)
            total += 1
    numbers = {line: stream(seed, "mutants", target, *line) for line in sorted(by_line)}
    order = sorted(numbers, key=lambda line: (numbers[line](1 << 64, "place"), line))
    found: dict[str, SourceMutant] = {}
    for line in cycle(order):
        if len(found) == min(count, total):
            break
        choose, of_line = numbers[line], by_line[line]
        of_kind = of_line[sorted(of_line)[choose(len(of_line), "kind")]]
        mutant = of_kind[choose(len(of_kind), "mutant")]
        found.setdefault(mutant.id, mutant)
    return list(found.values())


def _of_file(source: SourceTree, file: str, ran: Collection[int]) -> Iterator[SourceMutant]:
    text = source.read(file)
    lines = {line: first for first, last in probed(text, file).spans if first in ran for line in range(first, last + 1)}
    for part in _telling(ast.parse(text)):
        for line in part:
            lines.pop(line, None)
    module = f"{source.package}.{file.removesuffix('.py').replace('/', '.')}"
    kinds = {edit: kind for kind, edits in KINDS.items() for edit in edits}
    if _TELLS.search(module.rpartition(".")[2]):
        return
    for defect, line in defects_in(module, text, lines):
        if defect.edit in kinds and not any(map(_TELLS.search, defect.function.split("."))):
            yield SourceMutant(defect.id, file, line, kinds[defect.edit], lines[line])


def _telling(tree: ast.Module) -> Iterator[range]:
    """The lines of statements that tell people something, and of those that are run for that alone."""
    for node in ast.walk(tree):
        if isinstance(node, ast.If):
            parts: tuple[ast.AST, ...] = (node.test,)
        elif isinstance(node, ast.Expr | ast.Assign | ast.AugAssign | ast.AnnAssign):
            parts = (node,)
        else:
            continue
        names = (getattr(child, "id", getattr(child, "attr", "")) for part in parts for child in ast.walk(part))
        if any(_TELLS.search(name) for name in names if isinstance(name, str)):
            yield range(node.lineno, (node.end_lineno or node.lineno) + 1)
