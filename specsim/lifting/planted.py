"""Defects planted into other people's source: operations on the syntax tree of one function.

A defect names a module, a function, the hash of its body, and an edit, so nothing of their text is written down. Line
numbers stay.

    drop-call NAME          a statement that calls NAME (`a.b.NAME(...)`) goes
    drop-assignment NAME    an assignment to NAME (or `a.b.NAME`) goes
    never NAME, always NAME, negate NAME    an `if`, `while` or conditional expression whose test mentions NAME
    drop-operand NAME       of an `and` or `or` the operand that mentions NAME
    shift-comparison NAME   of a comparison that mentions NAME, `<` and `<=`, `>` and `>=`, `==` and `!=` change places
    plus-one NAME, minus-one NAME    a use of NAME as a number is one more, or less
    swap-operands NAME      of a subtraction, a division or a comparison that mentions NAME, and where they matter
    drop-keyword NAME       the keyword argument NAME of a call goes
    empty NAME              the value that is assigned to NAME becomes None, if it is something else
    drop-jump KEYWORD       a `return`, `continue`, `break` or `raise` goes that does not go on where all end anyway
    read-before NAME        what assigns NAME and the statement behind it, which reads NAME, change places
    wrong-field NAME>OTHER  of an object whose fields NAME and OTHER are both read, OTHER is read in the place of NAME:
                            those with a word in common, as `seq_lens` and `extend_lens`

NAME of `plus-one` and `minus-one` may be a whole number, as it is written. `nth` says which of several places it is,
from 0, in the order of the source.
"""

from __future__ import annotations

import ast
import functools
import textwrap
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

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
    change = EDITS.get(defect.edit)
    if change is None:
        raise UsageError(f"{defect.id}: edit {defect.edit!r} is unknown", f"choose one of {', '.join(EDITS)}")
    places = [place for place in change(function) if defect.name in place.names]
    if defect.nth >= len(places):
        raise UsageError(
            f"{defect.id} does not apply: {defect.edit} {defect.name} has {len(places)} places in {defect.function}",
            "nth is less than that",
        )
    places[defect.nth].edit()
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


class EditPlace(NamedTuple):
    """A place of an edit: the names that it goes by, the node that it changes, and what changes it."""

    names: list[str]
    node: ast.AST
    edit: Callable[[], None]


def _last(node: ast.AST) -> str:
    """The name that an expression ends with: NAME of `NAME` and of `a.b.NAME`."""
    return node.id if isinstance(node, ast.Name) else node.attr if isinstance(node, ast.Attribute) else ""


def _names(node: ast.AST) -> list[str]:
    """The names that a node mentions."""
    return list(dict.fromkeys(name for child in ast.walk(node) if (name := _last(child))))


def _walk(node: ast.AST) -> Iterator[tuple[ast.AST, str, int | None, ast.AST]]:
    """Every node below in the order of the source, with where it is: parent, field, and index in a list."""
    for field, value in ast.iter_fields(node):
        items = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in items:
            if isinstance(child, ast.AST):
                yield node, field, index, child
                yield from _walk(child)


def _put(parent: ast.AST, field: str, index: int | None, new: ast.AST) -> Callable[[], None]:
    def edit() -> None:
        if index is None:
            setattr(parent, field, new)
        else:
            getattr(parent, field)[index] = new

    return edit


def _dropped(names: list[str], node: ast.AST, parent: ast.AST, field: str, index: int | None) -> EditPlace:
    return EditPlace(names, node, _put(parent, field, index, ast.copy_location(ast.Pass(), node)))


def _drop_call(function: ast.AST) -> Iterator[EditPlace]:
    for parent, field, index, node in _walk(function):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
            yield _dropped([_last(node.value.func)], node, parent, field, index)


def _targets(node: ast.AST) -> list[str]:
    """The names that a statement assigns: NAME, `NAME[]` of an element, `ONE,OTHER` of several at once."""
    if isinstance(node, ast.Assign):
        return [_assigned(target) for target in node.targets]
    return [_assigned(node.target)] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _assigned(target: ast.expr) -> str:
    if isinstance(target, ast.Subscript):
        return f"{_last(target.value)}[]"
    if isinstance(target, ast.Tuple | ast.List):
        return ",".join(map(_assigned, target.elts))
    return _last(target)


def _drop_assignment(function: ast.AST) -> Iterator[EditPlace]:
    for parent, field, index, node in _walk(function):
        if names := _targets(node):
            yield _dropped(names, node, parent, field, index)


def _empty(function: ast.AST) -> Iterator[EditPlace]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.Assign) and ast.dump(node.value) != ast.dump(ast.Constant(None)):
            none = ast.copy_location(ast.Constant(None), node.value)
            yield EditPlace(_targets(node), node, _put(node, "value", None, none))


def _tests(make: Callable[[ast.expr], ast.expr]) -> Callable[[ast.AST], Iterator[EditPlace]]:
    def places(function: ast.AST) -> Iterator[EditPlace]:
        for _parent, _field, _index, node in _walk(function):
            if isinstance(node, ast.If | ast.While | ast.IfExp):
                new = ast.copy_location(make(node.test), node.test)
                yield EditPlace(_names(node.test), node.test, _put(node, "test", None, new))

    return places


def _drop_operand(function: ast.AST) -> Iterator[EditPlace]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                yield EditPlace(_names(value), value, functools.partial(_without, node, value))


def _without(node: ast.BoolOp, value: ast.expr) -> None:
    node.values.remove(value)
    if len(node.values) == 1:  # `and` and `or` take two
        node.values.append(node.values[0])


_SHIFTED: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
}


def _shift_comparison(function: ast.AST) -> Iterator[EditPlace]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.Compare) and type(node.ops[0]) in _SHIFTED:
            yield EditPlace(_names(node), node, _put(node, "ops", 0, _SHIFTED[type(node.ops[0])]()))


def _added(number: int) -> Callable[[ast.AST], Iterator[EditPlace]]:
    def places(function: ast.AST) -> Iterator[EditPlace]:
        for parent, field, index, node in _walk(function):
            new: ast.expr | None = None
            if isinstance(node, ast.Constant) and type(node.value) is int:
                new, name = ast.Constant(node.value + number), str(node.value)
            elif isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load) and field != "func":
                operator = ast.Add() if number > 0 else ast.Sub()
                new, name = ast.BinOp(node, operator, ast.Constant(abs(number))), _last(node)
            if new is not None:
                yield EditPlace([name], node, _put(parent, field, index, ast.copy_location(new, node)))

    return places


def _swap_operands(function: ast.AST) -> Iterator[EditPlace]:
    ordered = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod)
    alike = (ast.Eq, ast.NotEq, ast.Is, ast.IsNot)
    for _parent, _field, _index, node in _walk(function):
        is_one = isinstance(node, ast.Compare) and len(node.ops) == 1 and not isinstance(node.ops[0], alike)
        if is_one or (isinstance(node, ast.BinOp) and isinstance(node.op, ordered)):
            assert isinstance(node, ast.BinOp | ast.Compare)
            yield EditPlace(_names(node), node, functools.partial(_swap, node))


def _swap(node: ast.BinOp | ast.Compare) -> None:
    if isinstance(node, ast.BinOp):
        node.left, node.right = node.right, node.left
    else:
        node.left, node.comparators[0] = node.comparators[0], node.left


def _drop_keyword(function: ast.AST) -> Iterator[EditPlace]:
    for _parent, _field, _index, node in _walk(function):
        if isinstance(node, ast.Call):
            for keyword in node.keywords:
                if keyword.arg is not None:
                    yield EditPlace([keyword.arg], keyword.value, functools.partial(node.keywords.remove, keyword))


_JUMPS = {ast.Return: "return", ast.Continue: "continue", ast.Break: "break", ast.Raise: "raise"}


def _drop_jump(function: ast.AST) -> Iterator[EditPlace]:
    idle = {id(jump) for node in ast.walk(function) for jump in _idle_jumps(node)}
    for parent, field, index, node in _walk(function):
        if (name := _JUMPS.get(type(node))) and id(node) not in idle:
            yield _dropped([name], node, parent, field, index)


def _idle_jumps(node: ast.AST) -> Iterator[ast.stmt]:
    """The jumps that go where their function or loop goes without them."""
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
        for last in _last_statements(node.body):
            if isinstance(last, ast.Return) and (last.value is None or ast.unparse(last.value) == "None"):
                yield last
    elif isinstance(node, ast.For | ast.AsyncFor | ast.While):
        yield from (last for last in _last_statements(node.body) if isinstance(last, ast.Continue))


def _last_statements(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements behind which nothing of a body is left to run."""
    for last in body[-1:]:
        yield last
        if isinstance(last, ast.If):
            yield from (*_last_statements(last.body), *_last_statements(last.orelse))
        elif isinstance(last, ast.With):
            yield from _last_statements(last.body)


def _read_before(function: ast.AST) -> Iterator[EditPlace]:
    for parent, field, index, node in _walk(function):
        names = _targets(node)
        if index is None or not names:
            continue
        body = getattr(parent, field)
        behind = body[index + 1] if index + 1 < len(body) else None
        if isinstance(behind, ast.Assign | ast.AugAssign | ast.AnnAssign | ast.Expr | ast.Return):
            read = {_last(one) for one in ast.walk(behind) if isinstance(getattr(one, "ctx", None), ast.Load)}
            if names := [name for name in names if name in read]:
                yield EditPlace(names, node, functools.partial(_exchange, body, index))


def _exchange(body: list[ast.stmt], index: int) -> None:
    body[index], body[index + 1] = body[index + 1], body[index]


def _wrong_field(function: ast.AST) -> Iterator[EditPlace]:
    called = {id(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)}
    attributes = [node for *_, node in _walk(function) if isinstance(node, ast.Attribute)]
    read = [node for node in attributes if isinstance(node.ctx, ast.Load) and id(node) not in called]
    fields: dict[str, dict[str, None]] = {}
    for node in read:
        fields.setdefault(ast.dump(node.value), {})[node.attr] = None
    for node in read:
        for other in fields[ast.dump(node.value)]:
            if other != node.attr and _words(other) & _words(node.attr):
                yield EditPlace([f"{node.attr}>{other}"], node, functools.partial(setattr, node, "attr", other))


def _words(name: str) -> set[str]:
    return {word for word in name.split("_") if len(word) > 1}


EDITS: dict[str, Callable[[ast.AST], Iterator[EditPlace]]] = {
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
    "drop-jump": _drop_jump,
    "read-before": _read_before,
    "wrong-field": _wrong_field,
}


def defects_in(module: str, source: str, lines: Collection[int]) -> Iterator[tuple[Planted, int]]:
    """Each defect that can be planted into functions of a module where a node begins on one of `lines`, with its line.
    None of what is no statement of a function (annotations, defaults, decorators, docstrings), none of an assertion,
    and one more or less of what is used as a number alone. Its id is that by which `find` knows it.
    """
    for name, function in _named_functions(ast.parse(source)):
        if not any(line in lines for line in range(function.lineno, (function.end_lineno or 0) + 1)):
            continue
        left_out = {id(node) for part in _not_run(function) for node in ast.walk(part)}
        numbers = {id(node) for node in _used_as_numbers(function)}
        for edit, change in EDITS.items():
            nths: Counter[str] = Counter()
            for place in change(function):
                line = getattr(place.node, "lineno", 0)
                is_one = edit not in ("plus-one", "minus-one") or id(place.node) in numbers
                if line in lines and any(place.names) and is_one and id(place.node) not in left_out:
                    of = next(filter(None, place.names))
                    yield defect_of(f"{module}:{name}:{edit}:{of}:{nths[of]}"), line
                nths.update(place.names)


def defect_of(text: str) -> Planted:
    """The defect that MODULE:FUNCTION:EDIT:NAME:NTH says. UsageError for what says none."""
    parts = text.split(":")
    if len(parts) != 5 or not all(parts) or not parts[4].isdecimal() or parts[2] not in EDITS:
        raise UsageError(
            f"{text!r} is no defect", f"MODULE:FUNCTION:EDIT:NAME:NTH, where EDIT is one of {', '.join(EDITS)}"
        )
    module, function, edit, name, nth = parts
    return Planted(
        id=text,
        title=f"{edit} {name}",
        module=module,
        function=function,
        hashes=(),
        edit=edit,
        name=name,
        nth=int(nth),
    )


def _named_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and of its classes, as NAME or CLASS.METHOD: of several of a name the last one."""
    waiting: list[tuple[str, list[ast.stmt]]] = [("", tree.body)]
    while waiting:
        prefix, body = waiting.pop(0)
        yield from {f"{prefix}{node.name}": node for node in body if isinstance(node, ast.FunctionDef)}.items()
        waiting += [(f"{prefix}{node.name}.", node.body) for node in body if isinstance(node, ast.ClassDef)]


def _not_run(function: ast.FunctionDef) -> Iterator[ast.AST]:
    """What of a function is no statement that it runs, and its assertions."""
    for node in ast.walk(function):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node.args
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from (*node.decorator_list, *([node.returns] if node.returns else []))
        if isinstance(node, ast.AnnAssign):
            yield node.annotation
        if isinstance(node, ast.Assert):
            yield node


def _used_as_numbers(function: ast.AST) -> Iterator[ast.AST]:
    """Operands of arithmetic and of comparisons by size, bounds of slices, arguments of `range`, `min` and `max`."""
    for node in ast.walk(function):
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add | ast.Sub | ast.Mult | ast.FloorDiv | ast.Mod):
            yield from (node.left, node.right)
        elif isinstance(node, ast.AugAssign):
            yield node.value
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            yield from (node.left, *node.comparators)
        elif isinstance(node, ast.Slice):
            yield from filter(None, (node.lower, node.upper))
        elif isinstance(node, ast.Call) and _last(node.func) in ("range", "min", "max"):
            yield from node.args
