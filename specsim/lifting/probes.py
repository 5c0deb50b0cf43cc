"""Which lines of a source are run: a probe before each statement that some lines are of, put into its syntax tree.

A tracer is called for every line or function of a process; a probe costs a call where one of a few lines is run, and
nothing elsewhere. Lines outside of functions run when a module is imported, whatever a schedule does: they have none.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

NAME = "__specsim_ran__"
"""What a module that has probes calls, with a line: a builtin of it."""


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


def probed(tree: ast.Module, lines: Collection[int]) -> ast.Module:
    """The tree, changed in place: before each statement of a function that some of these lines are of, a call of NAME
    with each of them.
    """
    wanted = set(lines)
    found = [(body, at, own) for body, at, own in _statements(tree) if wanted.intersection(own)]
    for body, at, own in sorted(found, key=lambda one: -one[1]):  # the last one of a body first: places stay
        body[at:at] = [_call(line, body, at) for line in sorted(wanted.intersection(own))]
    return ast.fix_missing_locations(tree)


def _call(line: int, body: list[ast.stmt], at: int) -> ast.stmt:
    near = body[min(at, len(body) - 1)]
    call = ast.Call(ast.Name(NAME, ast.Load()), [ast.Constant(line)], [])
    return ast.copy_location(ast.Expr(ast.copy_location(call, near)), near)


def _statements(tree: ast.Module) -> Iterator[tuple[list[ast.stmt], int, range]]:
    """Of each statement of a function: the body that it is in, its place there, and its own lines. Those of a head that
    is in no body (of a function, an `except` or a `case`) are run with the first statement behind it.
    """
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        within = is_function or (inside and not isinstance(node, ast.ClassDef))
        if is_function or (within and isinstance(node, ast.ExceptHandler | ast.match_case)):
            body = node.body  # type: ignore[attr-defined]
            first = min([_start(node), *(one.lineno for one in getattr(node, "decorator_list", ()))])
            at = int(is_function and len(body) > 1 and _is_docstring(body[0]))
            yield body, at, range(first, body[0].lineno)
        for body in _bodies(node):
            for at, statement in enumerate(body):
                waiting.append((statement, within))
                if within and not isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                    yield body, at, range(statement.lineno, _head_end(statement) + 1)
        waiting += [(other, within) for name in ("handlers", "cases") for other in getattr(node, name, ())]


def _start(node: ast.AST) -> int:
    return node.pattern.lineno if isinstance(node, ast.match_case) else int(getattr(node, "lineno"))  # noqa: B009


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
