"""Which statements of a source are run: a probe before each of them, put into its syntax tree. And code that is kept
from one process to the next, with probes and without.

A tracer is called for every function of a process, and made schedules two thirds slower before it looked at a line; a
probe is an assignment to an element of a list. Statements outside of functions run when a module is imported, whatever
a schedule does, and kernels are no Python: they have none.
"""

from __future__ import annotations

import ast
import marshal
import sys
from bisect import bisect_right
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from pathlib import Path
from types import CodeType
from typing import Any, NamedTuple

from specsim.files import write_bytes

NAME = "__specsim_ran__"
"""What a module that has probes finds among its builtins: a list, 1 at the line of each statement that was run."""

Span = tuple[int, int]
"""The first and last line of a statement, without the bodies of one that has some."""


class Probed(NamedTuple):
    """What is run in place of a source, and its statements in functions, sorted."""

    code: CodeType
    spans: tuple[Span, ...]


def probed(source: str | ast.Module, file: str, kept: Path | None = None) -> Probed:
    """The code of a source, or of its tree, which is changed, with a probe before each statement of a function. A
    folder `kept` has what was made of a source of that file last. SyntaxError for one that is no Python.
    """
    if not isinstance(source, str):
        return _made(source, file)
    return Probed(*_kept(kept, "probed", source.encode(), file, lambda: _made(source, file)))


def unprobed(source: bytes, file: str, kept: Path | None = None) -> CodeType:
    """The code of a source as it is. `kept` and errors as of `probed`: beside a user's files Python may leave none."""
    code: CodeType
    (code,) = _kept(kept, "unprobed", source, file, lambda: (compile(source, file, "exec", dont_inherit=True),))
    return code


def _kept(
    kept: Path | None, kind: str, source: bytes, file: str, make: Callable[[], tuple[Any, ...]]
) -> tuple[Any, ...]:
    """What `make` gives, which is code and what marshal can write, or gave for this source in another process."""
    if kept is None:
        return make()
    name = kept / f"{blake2b(f'{kind} {file}'.encode(), digest_size=16).hexdigest()}.bin"
    of = (blake2b(source).digest(), kind, file, sys.version, _VERSION)
    with suppress(OSError, ValueError, EOFError, TypeError):
        was, *made = marshal.loads(name.read_bytes())
        if was == of:
            return tuple(made)
    new = make()
    with suppress(OSError):  # a cache that cannot be written
        write_bytes(name, marshal.dumps((of, *new)))
    return new


_VERSION = 2
"""Of where probes are put, and of what is kept."""


def _made(source: str | ast.Module, file: str) -> Probed:
    tree = ast.parse(source) if isinstance(source, str) else source
    found = list(_statements(tree))
    for body, at, own in sorted(found, key=lambda one: -one[1]):  # the last one of a body first: places stay
        body.insert(at, _probe(own.start, body[min(at, len(body) - 1)]))
    code = compile(ast.fix_missing_locations(tree), file, "exec", dont_inherit=True)
    return Probed(code, tuple(sorted({(own.start, own.stop - 1) for _body, _at, own in found})))


def _probe(line: int, near: ast.stmt) -> ast.stmt:
    element = ast.Subscript(ast.Name(NAME, ast.Load()), ast.Constant(line), ast.Store())
    return ast.copy_location(ast.Assign([element], ast.Constant(1)), near)


def statement_at(spans: Sequence[Span], line: int) -> int | None:
    """The first line of the statement that a line is of, None where it is of none."""
    at = bisect_right(spans, (line, sys.maxsize)) - 1
    return spans[at][0] if at >= 0 and line <= spans[at][1] else None


def statement_lines(source: str, lines: Collection[int]) -> tuple[int, ...]:
    """Those of these lines that are of a statement of a function and no comment alone, sorted; none of a source that
    cannot be read.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError):
        return ()
    texts = source.split("\n")
    wanted = {line for line in lines if line <= len(texts) and texts[line - 1].lstrip()[:1] not in ("", "#")}
    return tuple(sorted({line for _body, _at, own in _statements(tree) for line in wanted.intersection(own)}))


def _statements(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], int, range]]:
    """Of each statement of a function: the body that it is in, its place there, and its own lines. Those of a head that
    is in no body (of a function, an `except` or a `case`) are run with the first statement behind it.
    """
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if any(_is_jit(one) for one in getattr(node, "decorator_list", ())):
            continue
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        within = is_function or (inside and not isinstance(node, ast.ClassDef))
        if is_function or (within and isinstance(node, ast.ExceptHandler | ast.match_case)):
            body = node.body  # type: ignore[attr-defined]
            first = min([_start(node), *(one.lineno for one in getattr(node, "decorator_list", ()))])
            yield body, int(is_function and _is_docstring(body[0])), range(first, max(first + 1, body[0].lineno))
        for body in _bodies(node):
            for at, statement in enumerate(body):
                waiting.append((statement, within))
                is_counted = within and not (is_function and at == 0 and _is_docstring(statement))
                if is_counted and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield body, at, range(statement.lineno, _head_end(statement) + 1)
        waiting += [(other, within) for name in ("handlers", "cases") for other in getattr(node, name, ())]


def _start(node: ast.AST) -> int:
    return node.pattern.lineno if isinstance(node, ast.match_case) else int(getattr(node, "lineno"))  # noqa: B009


def _is_jit(decorator: ast.expr) -> bool:
    """Whether it makes a kernel: `triton.jit`, called or not."""
    named = decorator.func if isinstance(decorator, ast.Call) else decorator
    return getattr(named, "attr", getattr(named, "id", "")) == "jit"


def _is_docstring(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)


def _bodies(node: ast.AST) -> list[list[ast.stmt]]:
    bodies = (getattr(node, name, None) for name in ("body", "orelse", "finalbody"))
    return [body for body in bodies if isinstance(body, list) and body]


def _head_end(statement: ast.stmt) -> int:
    """The last line of a statement, without the bodies of one that has some."""
    bodies = _bodies(statement)
    if isinstance(statement, ast.Match):
        return statement.cases[0].pattern.lineno - 1
    if not bodies:
        return statement.end_lineno or statement.lineno
    return max(statement.lineno, bodies[0][0].lineno - 1)
