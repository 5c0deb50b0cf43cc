"""Defects planted into other people's source: operations on the syntax tree of one function.

A defect names a module, a function, the hash of its body, and an edit, so nothing of their text is written down. Line
numbers stay.

    drop-call NAME          a statement that calls NAME (`a.b.NAME(...)`) goes
    drop-assignment NAME    an assignment to NAME (or `a.b.NAME`) goes
    never NAME, always NAME, negate NAME    an `if`, `while` or conditional expression whose test mentions NAME
    drop-operand NAME       of an `and` or `or` the operand that mentions NAME
    shift-comparison NAME   of a comparison that mentions NAME, `<` and `<=`, `>` and `>=`, `==` and `!=` change places
    plus-one NAME, minus-one NAME    a use of NAME as a number is one more, or less
    swap-operands NAME      of a subtraction, a division or a comparison that mentions NAME
    drop-keyword NAME       the keyword argument NAME of a call goes
    empty NAME              the value that is assigned to NAME becomes None

`nth` says which of several it is, from 0, in the order of the source.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from specsim.errors import UsageError
from specsim.lifting.lift import body_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Planted:
    """A defect. `function` is a name or CLASS.METHOD; `hashes` are those of its body in the releases that it is for.
    `covered_by` is another one, if it does no harm before that is there, too. `worker` is the one that runs it, "fake"
    or "release".
    """

    id: str
    title: str
    module: str
    function: str
    hashes: tuple[str, ...]
    edit: str
    name: str
    nth: int = 0
    covered_by: str = ""
    worker: str = "fake"


def edited(source: str | ast.Module, defect: Planted) -> ast.Module:
    """The syntax tree of a module's source with the defect in it. Raises UsageError when it does not apply."""
    tree = ast.parse(source) if isinstance(source, str) else source
    function = _function(tree, defect)
    found = body_hash(function)
    if defect.hashes and found not in defect.hashes:
        raise UsageError(
            f"{defect.id} is for another {defect.function}: its body has hash {found}",
            f"planted into {', '.join(defect.hashes)} alone",
        )
    change = _EDITS.get(defect.edit)
    if change is None:
        raise UsageError(f"{defect.id}: edit {defect.edit!r} is unknown", f"choose one of {', '.join(_EDITS)}")
    places = list(change(function, defect.name))
    if defect.nth >= len(places):
        raise UsageError(
            f"{defect.id} does not apply: {defect.edit} {defect.name} has {len(places)} places in {defect.function}",
            "nth is less than that",
        )
    places[defect.nth]()
    return ast.fix_missing_locations(tree)


def text_of(source: str, tree: ast.Module) -> str:
    """A module's source with the functions that differ in its edited `tree`, each on the lines where it stands: what
    reads the source of a function by its line, as an interpreter of kernels does, reads what runs.
    """
    lines = source.splitlines(keepends=True)
    for was, now in zip(_functions(ast.parse(source)), _functions(tree), strict=True):
        if ast.dump(was) == ast.dump(now):
            continue
        first = min([was.lineno, *(node.lineno for node in was.decorator_list)]) - 1
        text = textwrap.indent(ast.unparse(now), " " * was.col_offset).splitlines(keepends=True)
        count = (was.end_lineno or first) - first
        lines[first : first + count] = [*text[:-1], text[-1] + "\n", *["\n"] * (count - len(text))]
    return "".join(lines)


def _functions(tree: ast.Module) -> list[ast.FunctionDef]:
    """Those of a module and of its classes."""
    bodies = [tree.body, *(node.body for node in tree.body if isinstance(node, ast.ClassDef))]
    return [node for body in bodies for node in body if isinstance(node, ast.FunctionDef)]


def _function(tree: ast.Module, defect: Planted) -> ast.FunctionDef:
    body: Sequence[ast.AST] = tree.body
    *classes, name = defect.function.split(".")
    for wanted in classes:
        body = next((n.body for n in body if isinstance(n, ast.ClassDef) and n.name == wanted), [])
    found = [node for node in body if isinstance(node, ast.FunctionDef) and node.name == name]
    if not found:
        raise UsageError(f"{defect.id}: {defect.module} has no {defect.function}", "it is of another release")
    return found[-1]


Place = Callable[[], None]
"""Makes the edit at one of its places."""


def _mentions(node: ast.AST, name: str) -> bool:
    return any(_last(child) == name for child in ast.walk(node))


def _last(node: ast.AST) -> str:
    """The name that an expression ends with: NAME of `NAME` and of `a.b.NAME`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _walk(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node below in the order of the source, with where it is: parent, field, and index in a list."""
    for field, value in ast.iter_fields(node):
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in items:
            if isinstance(child, ast.AST):
                yield node, field, index, child
                yield from _walk(child)


def _replaced(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> Place:
    def place() -> None:
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    return place


def _drop_call(function: ast.AST, name: str) -> Iterator[Place]:
    for parent, field, index, node in _walk(function):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _last(node.value.func) == name:
            yield _replaced(parent, field, index, ast.copy_location(ast.Pass(), node))


def _targets(node: ast.AST) -> list[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _drop_assignment(function: ast.AST, name: str) -> Iterator[Place]:
    for parent, field, index, node in _walk(function):
        if any(_last(target) == name for target in _targets(node)):
            yield _replaced(parent, field, index, ast.copy_location(ast.Pass(), node))


def _empty(function: ast.AST, name: str) -> Iterator[Place]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.Assign) and any(_last(target) == name for target in node.targets):
            yield _replaced(node, "value", None, ast.copy_location(ast.Constant(None), node.value))


def _tests(make: Callable[[ast.expr], ast.expr]) -> Callable[[ast.AST, str], Iterator[Place]]:
    def places(function: ast.AST, name: str) -> Iterator[Place]:
        for _parent, _field, _index, node in _walk(function):
            if isinstance(node, ast.If | ast.While | ast.IfExp) and _mentions(node.test, name):
                yield _replaced(node, "test", None, ast.copy_location(make(node.test), node.test))

    return places


def _drop_operand(function: ast.AST, name: str) -> Iterator[Place]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                if _mentions(value, name):
                    yield _without(node, value)


def _without(node: ast.BoolOp, value: ast.expr) -> Place:
    def place() -> None:
        node.values.remove(value)
        if len(node.values) == 1:  # `and` and `or` take two
            node.values.append(node.values[0])

    return place


_SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def _shift_comparison(function: ast.AST, name: str) -> Iterator[Place]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _SHIFTED and _mentions(node, name):
            yield _replaced(node, "ops", 0, _SHIFTED[type(node.ops[0])]())


def _added(number: int) -> Callable[[ast.AST, str], Iterator[Place]]:
    def places(function: ast.AST, name: str) -> Iterator[Place]:
        for parent, field, index, node in _walk(function):
            is_use = isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load)
            if is_use and _last(node) == name and isinstance(node, ast.expr) and field != "func":
                sum_ = ast.BinOp(node, ast.Add() if number > 0 else ast.Sub(), ast.Constant(abs(number)))
                yield _replaced(parent, field, index, ast.copy_location(sum_, node))

    return places


def _swap_operands(function: ast.AST, name: str) -> Iterator[Place]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Sub | ast.Div | ast.FloorDiv | ast.Mod):
            if _mentions(node, name):
                yield _swapped(node)
        elif isinstance(node, ast.Compare) and len(node.ops) == 1 and _mentions(node, name):
            yield _swapped(node)


def _swapped(node: ast.BinOp | ast.Compare) -> Place:
    def place() -> None:
        if isinstance(node, ast.BinOp):
            node.left, node.right = node.right, node.left
        else:
            node.left, node.comparators[0] = node.comparators[0], node.left

    return place


def _drop_keyword(function: ast.AST, name: str) -> Iterator[Place]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg == name:
                    yield _removed(node, keyword)


def _removed(call: ast.Call, keyword: ast.keyword) -> Place:
    return lambda: call.keywords.remove(keyword)


_EDITS: dict[str, Callable[[ast.AST, str], Iterator[Place]]] = {
    "drop-call": _drop_call,
    "drop-assignment": _drop_assignment,
    "empty": _empty,
    "never": _tests(lambda _test: ast.Constant(False)),
    "always": _tests(lambda _test: ast.Constant(True)),
    "negate": _tests(lambda test: ast.UnaryOp(ast.Not(), test)),
    "drop-operand": _drop_operand,
    "shift-comparison": _shift_comparison,
    "plus-one": _added(1),
    "minus-one": _added(-1),
    "swap-operands": _swap_operands,
    "drop-keyword": _drop_keyword,
}
