"""Lines of functions: which of them run, and those of a single value.

A function that is lifted notes what runs by a call before each run of statements, which costs less than tracing and
works on every Python. An exception in such a run counts all of its lines.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

# What is called with the lines that run, in the namespace of lifted functions.
LINES_RUN = "__specsim_lines_run__"

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")
_COMPOUND = (ast.If, ast.For, ast.While, ast.Try, ast.With, ast.Match, ast.FunctionDef, ast.ClassDef)


def lines_of(function: ast.AST) -> set[int]:
    """The lines on which a statement of the function begins; its docstring is none."""
    return {statement.lineno for block in _blocks(function) for statement in block if not _is_text(statement)}


def note_lines(statement: ast.stmt) -> None:
    """Let every function in the statement note the lines of it that run. Changes the statement."""
    for node in ast.walk(statement):
        if isinstance(node, ast.FunctionDef):
            for block in list(_blocks(node, into_functions=False)):
                _note(block)


def assignments(function: ast.stmt, name: str) -> list[ast.stmt]:
    """The statements of one block of the function that assign to the local variable `name` and to nothing else."""
    for block in _blocks(function):
        found = [statement for statement in block if _assigned(statement) == {name}]
        if any(isinstance(statement, ast.Assign) for statement in found):
            return found
    return []


def as_function(function: ast.stmt, name: str, statements: list[ast.stmt]) -> ast.FunctionDef:
    """A function of the same parameters that runs these statements of it and returns `name`."""
    assert isinstance(function, ast.FunctionDef)
    last = ast.copy_location(ast.Return(ast.copy_location(ast.Name(name, ast.Load()), statements[-1])), statements[-1])
    fields = {**dict(ast.iter_fields(function)), "name": name, "body": [*statements, last], "decorator_list": []}
    return ast.copy_location(ast.FunctionDef(**fields), statements[0])


def _assigned(statement: ast.stmt) -> set[str]:
    """The names that a statement assigns to; a name of its own for anything else that it does."""
    if isinstance(statement, ast.Assign) and all(isinstance(target, ast.Name) for target in statement.targets):
        return {target.id for target in statement.targets if isinstance(target, ast.Name)}
    if isinstance(statement, ast.AugAssign) and isinstance(statement.target, ast.Name):
        return {statement.target.id}
    if isinstance(statement, ast.If):
        return set().union(*map(_assigned, [*statement.body, *statement.orelse]))
    return {""}


def _blocks(node: ast.AST, into_functions: bool = True) -> Iterator[list[ast.stmt]]:
    """The lists of statements in a node, outer ones first."""
    for name in _BLOCKS:
        block = getattr(node, name, None)
        if not isinstance(block, list) or not block:
            continue
        if isinstance(block[0], ast.stmt):
            yield block
        for child in block:
            if into_functions or not isinstance(child, ast.FunctionDef | ast.ClassDef):
                yield from _blocks(child, into_functions)


def _note(block: list[ast.stmt]) -> None:
    noted: list[ast.stmt] = []
    run: list[ast.stmt] = []
    for statement in block:
        if _is_text(statement):
            noted.append(statement)
            continue
        run.append(statement)
        if isinstance(statement, _COMPOUND):
            noted += [_call(run), *run]
            run = []
    if run:
        noted += [_call(run), *run]
    block[:] = noted


def _call(run: list[ast.stmt]) -> ast.stmt:
    lines = [statement.lineno for statement in run]
    call = ast.Expr(
        ast.Call(ast.Name(LINES_RUN, ast.Load()), [ast.Tuple([ast.Constant(line) for line in lines], ast.Load())], [])
    )
    for node in ast.walk(call):
        ast.copy_location(node, run[0])
    return call


def _is_text(statement: ast.stmt) -> bool:
    return isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant)
