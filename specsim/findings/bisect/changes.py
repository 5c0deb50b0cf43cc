"""Which lines of the lifted functions changed between two revisions, read from the user's own copies at run time.

A function is the innermost one around the FILE:LINE that a verdict gives, on each side by its own names: a function
that moved or was renamed is compared with what it was.
"""

from __future__ import annotations

import ast
import difflib
from dataclasses import dataclass

from specsim.errors import UsageError
from specsim.findings.bisect.verdicts import RevisionVerdict
from specsim.lifting.source import SourceTree
from specsim.tiers.tier import Code


@dataclass(frozen=True, slots=True)
class FunctionLines:
    """Lines `first` to `last` (from 1, inclusive) of the file `path`, which hold the function `function`; `line` is the
    one that was checked, and `source_hash` that of what was lifted.
    """

    path: str
    first: int
    last: int
    line: int
    function: str
    source_hash: str
    text: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.path}:{self.first}-{self.last} {self.function} ({self.source_hash})"


@dataclass(frozen=True, slots=True)
class ChangedFunction:
    """A function of the seam or an implementation of an operation whose code differs; None where a side lacks it."""

    name: str
    before: FunctionLines | None
    after: FunctionLines | None

    def difference(self, lines_max: int) -> list[str]:
        """The lines that went, "-LINE text", and those that came, "+LINE text", each with its number in its file. Of
        more than `lines_max`, those nearest to the line that was checked; "..." stands for lines left out.
        """
        if self.before is None or self.after is None:
            return []
        old, new = self.before, self.after
        lines: list[tuple[int, str]] = []  # distance from the line that was checked
        for tag, i1, i2, j1, j2 in difflib.SequenceMatcher(None, old.text, new.text, autojunk=False).get_opcodes():
            if tag != "equal":
                numbered = [("-", old, i) for i in range(i1, i2)] + [("+", new, j) for j in range(j1, j2)]
                lines += [
                    (abs(side.first + i - side.line), f"{sign}{side.first + i:<5} {side.text[i]}".rstrip())
                    for sign, side, i in numbered
                ]
        kept = set(sorted(range(len(lines)), key=lambda n: (lines[n][0], n))[:lines_max])
        shown: list[str] = []
        for number, (_, line) in enumerate(lines):
            if number in kept:
                shown.append(line)
            elif not shown or shown[-1] != "...":
                shown.append("...")
        return shown


def changed_functions(
    before: RevisionVerdict, after: RevisionVerdict, old: SourceTree, new: SourceTree, blamed: str
) -> list[ChangedFunction]:
    """What differs of the code that was lifted for the two verdicts, what is blamed first."""
    was, now = ({code.name: code for code in verdict.code} for verdict in (before, after))
    changed = []
    for name in dict.fromkeys([blamed, *was, *now]):
        one, two = was.get(name), now.get(name)
        if (one and one.source_hash) != (two and two.source_hash):
            changed.append(ChangedFunction(name, _place(old, one), _place(new, two)))
    return changed


def _place(source: SourceTree, code: Code | None) -> FunctionLines | None:
    if code is None:
        return None
    path, _, line = code.where.rpartition(":")
    try:
        text = source.read(path)
        tree = ast.parse(text)
    except (FileNotFoundError, SyntaxError, ValueError, UsageError):
        return None
    first, last, name = _around(tree, int(line), "")
    lines = text.splitlines()
    return FunctionLines(
        path, first, last or len(lines), int(line), name, code.source_hash, tuple(lines[first - 1 : last or None])
    )


def _around(node: ast.AST, line: int, name: str) -> tuple[int, int, str]:
    """First and last line, and the dotted name, of the innermost function or class around a line."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            first = min([child.lineno, *(decorator.lineno for decorator in child.decorator_list)])
            if first <= line <= (child.end_lineno or first):
                inner = _around(child, line, f"{name}.{child.name}".lstrip("."))
                return inner if inner[1] else (first, child.end_lineno or first, f"{name}.{child.name}".lstrip("."))
    return (1, 0, name)
