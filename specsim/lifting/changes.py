"""What a change touched, beside a finding: the functions of the diff that its schedule ran.

Two trees of source are compared as texts. git would run the filters that a repository names.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable
from difflib import SequenceMatcher
from functools import cache
from typing import NamedTuple

from specsim.errors import UsageError
from specsim.lifting.probes import statement_lines
from specsim.lifting.source import GitSource, SourceTree, blob_of


class Function(NamedTuple):
    """A function by its qualified name, its file relative to the package, and its first and last line."""

    name: str
    file: str
    first: int
    last: int


class Changes:
    """What `head` has otherwise than `base`: lines by number, from 1 on."""

    def __init__(self, base: SourceTree, head: SourceTree) -> None:
        self._base, self._head = base, head
        self.lines = cache(self._lines)
        self._functions = cache(lambda file: _functions(file, _text(head, file)))

    def files(self, under: str) -> dict[str, tuple[int, ...]]:
        """The lines of functions, by Python file below a folder, that are changed."""
        found = {}
        for file in self._head.paths(under):
            if not file.endswith(".py") or self._is_same(file):
                continue
            if lines := statement_lines(_text(self._head, file), self.lines(file)):
                found[file] = lines
        return found

    def _is_same(self, file: str) -> bool:
        """Whether git's hash of a file says so: its text in a commit, which takes a process, is not read for that."""
        base, head = self._base, self._head
        was = base.blob(file) if isinstance(base, GitSource) else ""
        now = head.blob(file) if isinstance(head, GitSource) else blob_of(_text(head, file).encode(), was)
        return now == was

    def of(self, functions: Iterable[Function]) -> tuple[str, ...]:
        """ "NAME FILE:LINE" of each function that was changed, with the first changed line of it, the smallest function
        of a line alone; in the order of the files.
        """
        places: dict[tuple[str, int], Function] = {}
        for function in functions:
            for line in self.lines(function.file):
                known = places.get((function.file, line))
                if function.first <= line <= function.last and (known is None or _size(function) < _size(known)):
                    places[function.file, line] = function
        first: dict[Function, int] = {}
        for (_file, line), function in sorted(places.items()):
            first.setdefault(function, line)
        return tuple(f"{self._name(function)} {function.file}:{line}" for function, line in first.items())

    def around(self, where: str) -> tuple[str, ...]:
        """The same of the functions around FILE:LINE."""
        file, _, line = where.rpartition(":")
        functions = self._functions(file) if line.isdigit() else ()
        return self.of(one for one in functions if one.first <= int(line) <= one.last)

    def _name(self, function: Function) -> str:
        """The name with its class, which a method that was lifted has lost."""
        same = (one.name for one in self._functions(function.file) if one.last == function.last)
        return next((name for name in same if name.endswith(f".{function.name}")), function.name)

    def _lines(self, file: str) -> tuple[int, ...]:
        """The lines of `head` that were added or changed, and those behind which some are missing."""
        old, new = (_text(tree, file).splitlines() for tree in (self._base, self._head))
        start = next((at for at, (a, b) in enumerate(zip(old, new, strict=False)) if a != b), min(len(old), len(new)))
        rest = zip(reversed(old[start:]), reversed(new[start:]), strict=False)
        end = next((at for at, (a, b) in enumerate(rest) if a != b), min(len(old), len(new)) - start)
        matcher = SequenceMatcher(None, old[start : len(old) - end], new[start : len(new) - end], autojunk=False)
        return tuple(
            line + start
            for kind, _i1, _i2, j1, j2 in matcher.get_opcodes()
            if kind != "equal"
            for line in (range(j1 + 1, j2 + 1) if j2 > j1 else (max(j1, 1 - start),))
        )


def _size(function: Function) -> int:
    return function.last - function.first


def _text(tree: SourceTree, file: str) -> str:
    """The text of a file, "" where it is not there or is none."""
    try:
        return tree.read(file)
    except (FileNotFoundError, ValueError, UsageError):
        return ""


def _functions(file: str, text: str) -> list[Function]:
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return []
    found: list[Function] = []
    waiting: list[tuple[ast.AST, str]] = [(tree, "")]
    while waiting:
        node, prefix = waiting.pop()
        for child in ast.iter_child_nodes(node):
            inside = prefix
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{prefix}{child.name}"
                inside = f"{name}."
                if not isinstance(child, ast.ClassDef):
                    first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
                    found.append(Function(name, file, first, child.end_lineno or child.lineno))
                    inside = f"{name}.<locals>."
            waiting.append((child, inside))
    return found
