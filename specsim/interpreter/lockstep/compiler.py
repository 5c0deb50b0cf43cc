"""Compiles a kernel's syntax tree, once, into Python that runs all programs of a launch at once.

Expressions stay as they are written: tensors bring their operators along, and numbers fold as Python's. What changes is
what a statement does when programs differ, and what names mean:

    if c: A                 t = frame.branch(c)
    else: B                 if t.mixed: saved = (x, y)             # all that A or B assigns
                            if t.then: A
                            if t.mixed: then = (x, y); (x, y) = saved; t.flip()
                            if t.orelse: B
                            if t.mixed: (x, y) = t.join(then, (x, y))

    while c: A              l = frame.loop()
                            while l.again(x) and l.test(c):
                                if l.partial: saved = (x,)
                                A
                                if l.partial: (x,) = merge(l.mask, (x,), saved)
                            l.end()

    return e                result = frame.give(e, result)
                            if frame.done: return result

What follows a statement in which programs may return, or leave an iteration, runs for the others (`frame.rest`).
Names of Triton's language become those of `language`, and functions that a kernel calls are compiled like it. Lines
stay the file's, so that a traceback and a finding name them.
"""

from __future__ import annotations

import ast
import builtins
import inspect
import textwrap
import types
from collections.abc import Callable, Iterator
from typing import Any

import triton
import triton.language as tl

from specsim.interpreter.lockstep import control, language
from specsim.interpreter.lockstep.errors import KernelError, UnsupportedError
from specsim.interpreter.lockstep.tensors import NUMPY
from specsim.interpreter.triton_names import kernel_classes

HELPERS: dict[str, Any] = {
    "_Frame": control.Frame,
    "_UNBOUND": control.UNBOUND,
    "_and": control.conjunction,
    "_choose": control.choice,
    "_merge": control.merge,
    "_not": control.negation,
    "_or": control.disjunction,
    "_variable": control.variable,
}
MARK = "_specsim_lockstep"
"""In the globals of compiled functions."""


class Compiled:
    """A compiled kernel, or function that kernels call. Compiled when it is first needed."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self.name = function.__name__
        self.signature = inspect.signature(function)
        self._code: Callable[..., Any] | None = None
        self._needs: list[Compiled] = []
        self._missing: dict[str, str] = {}  # FILE:LINE by name
        self.has_atomics = self.has_while = False
        self.waits = False  # whether programs may wait for one another, and so run together
        self.extents: frozenset[int] = frozenset()  # whole numbers that calls are passed, as extents of blocks are
        self._is_ready = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self._code is None:
            self._compile()
        assert self._code is not None
        return self._code(*args, **kwargs)

    def prepare(self) -> None:
        """Compile it and what it calls. Raises UnsupportedError, for this kernel, if something is missing."""
        if self._is_ready:
            return
        found, missing = self._all(set())
        if missing:
            raise UnsupportedError(self.name, tuple(sorted(missing)), missing)
        self.has_atomics = any(one.has_atomics for one in found)
        self.waits = self.has_atomics and any(one.has_while for one in found)
        self.extents = frozenset(extent for one in found for extent in one.extents)
        self._is_ready = True

    def _all(self, seen: set[int]) -> tuple[list[Compiled], dict[str, str]]:
        if id(self) in seen:
            return [], {}
        seen.add(id(self))
        if self._code is None:
            self._compile()
        found, missing = [self], dict(self._missing)
        for need in self._needs:
            more, lacking = need._all(seen)
            found += more
            missing = lacking | missing
        return found, missing

    def _compile(self) -> None:
        tree, filename = _tree_of(self.function)
        file = filename.rpartition("/")[2]
        try:
            translated = _Translator(tree)
        except UnsupportedError as error:
            self._missing = {name: f"{file}:{line}" for name, line in error.places.items()}
            return
        names = _Names(self.function, translated)
        self._needs, self._missing = names.needs, {name: f"{file}:{line}" for name, line in names.missing.items()}
        self.has_atomics = names.has_atomics
        self.has_while = any(isinstance(node, ast.While) for node in ast.walk(tree))
        self.extents = frozenset(_arguments(tree))
        namespace = {**names.found, **HELPERS, MARK: True, "__name__": self.function.__module__}
        module = ast.Module(body=[translated.function], type_ignores=[])
        ast.fix_missing_locations(module)
        exec(compile(module, filename, "exec"), namespace)
        self._code = namespace[tree.name]


_compiled: dict[Any, Compiled] = {}


def compiled(function: Callable[..., Any]) -> Compiled:
    """The compiled form of a Python function that `triton.jit` decorates."""
    known = _compiled.get(function)
    if known is None:
        known = _compiled[function] = Compiled(function)
    return known


def _tree_of(function: Callable[..., Any]) -> tuple[ast.FunctionDef, str]:
    try:
        lines, first = inspect.getsourcelines(function)
    except (OSError, TypeError):
        raise KernelError(f"{function.__name__} has no source to compile") from None
    tree = ast.parse(textwrap.dedent("".join(lines))).body[0]
    assert isinstance(tree, ast.FunctionDef)
    ast.increment_lineno(tree, first - 1)
    return tree, inspect.getsourcefile(function) or "<kernel>"


def _arguments(tree: ast.AST) -> Iterator[int]:
    """Whole numbers that are passed to a call, in a list too."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call):
            for node in (inner for argument in call.args for inner in (argument, *ast.iter_child_nodes(argument))):
                if isinstance(node, ast.Constant) and type(node.value) is int:
                    yield node.value


class _Names:
    """What the names in a function's body stand for that are not its own."""

    def __init__(self, function: Callable[..., Any], translated: _Translator) -> None:
        self.found: dict[str, Any] = {}
        self.needs: list[Compiled] = []
        self.missing: dict[str, int] = {}  # the line by name
        self.has_atomics = False
        closure = inspect.getclosurevars(function).nonlocals
        for name, line in sorted(translated.free.items()):
            for scope in (closure, function.__globals__, vars(builtins)):
                if name in scope:
                    self._add(name, scope[name], line)
                    break
        for chain, line in translated.chains:
            self._check(chain, line)

    def _add(self, name: str, value: Any, line: int) -> None:
        try:
            self.found[name] = self._seen(meaning(value))
        except UnsupportedError as error:
            self.missing |= dict.fromkeys(error.names, line)
            self.found[name] = None

    def _check(self, chain: tuple[str, ...], line: int) -> None:
        """Resolve `tl.math.exp` and its like now, so that what is missing is known before a launch."""
        value: Any = self.found.get(chain[0])
        for name in chain[1:]:
            if not isinstance(value, Namespace):
                return
            try:
                value = getattr(value, name)
            except UnsupportedError as error:
                self.missing |= dict.fromkeys(error.names, line)
                return
        self._seen(value)

    def _seen(self, value: Any) -> Any:
        if isinstance(value, Compiled):
            self.needs.append(value)
        if value in language.ATOMICS if isinstance(value, types.FunctionType) else False:
            self.has_atomics = True
        return value


class Namespace:
    """A module, each of whose members is what it means to compiled code."""

    def __init__(self, module: types.ModuleType) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        try:
            value = getattr(self._module, name)
        except AttributeError:
            name = f"{self._module.__name__}.{name} (nor does Triton {triton.__version__})"
            raise UnsupportedError("a kernel", (name,)) from None
        found = meaning(value)
        self.__dict__[name] = found
        return found


def meaning(value: Any) -> Any:
    """What something outside of a kernel is to compiled code. Raises UnsupportedError for what Triton alone has."""
    if isinstance(value, types.ModuleType):
        return Namespace(value) if value.__name__.partition(".")[0] == "triton" else value
    if isinstance(value, tl.constexpr):
        return value.value
    try:
        if value in language.INSTEAD:
            return language.INSTEAD[value]
    except TypeError:  # no key of a table
        return value
    if isinstance(value, kernel_classes()):
        own = language.NAMES.get(value.fn.__name__)
        if own is not None and value.fn.__module__ == "triton.language.standard":
            return own
        return compiled(value.fn)
    if getattr(value, "__triton_builtin__", False):
        name = value.__name__
        if name not in language.NAMES:
            raise UnsupportedError("a kernel", (f"tl.{name}",))
        return language.NAMES[name]
    if isinstance(value, types.FunctionType) and value.__module__.startswith("triton.language.extra."):
        if value.__name__ in language.LIBDEVICE:
            return language.LIBDEVICE[value.__name__]
        raise UnsupportedError("a kernel", (f"{value.__module__.rpartition('.')[2]}.{value.__name__}",))
    return value


class _Assigned(ast.NodeVisitor):
    """Names that statements assign."""

    def __init__(self) -> None:
        self.names: dict[str, None] = {}

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Store):
            self.names[node.id] = None

    def visit_Lambda(self, node: ast.Lambda) -> None: ...

    def visit_ListComp(self, node: ast.ListComp) -> None: ...


def _assigned(*blocks: list[ast.stmt]) -> list[str]:
    visitor = _Assigned()
    for statement in (statement for block in blocks for statement in block):
        visitor.visit(statement)
    return list(visitor.names)


def _may_leave(statement: ast.stmt, *, in_loop: bool = False) -> bool:
    """Whether programs may return in it, or leave the iteration that it is part of."""
    if isinstance(statement, ast.Return):
        return True
    if isinstance(statement, (ast.Break, ast.Continue)):
        return not in_loop
    if isinstance(statement, ast.If):
        return any(_may_leave(inner, in_loop=in_loop) for inner in (*statement.body, *statement.orelse))
    if isinstance(statement, (ast.For, ast.While)):
        return any(_may_leave(inner, in_loop=True) for inner in statement.body)
    return False


def _reads(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name) and isinstance(inner.ctx, ast.Load)}


def _exposed(statements: list[ast.stmt]) -> tuple[set[str], set[str]]:
    """Names that the statements may read before they assign them, and those that they assign in any case."""
    read: set[str] = set()
    assigned: set[str] = set()
    for statement in statements:
        inner: list[set[str]] = []
        if isinstance(statement, ast.If):
            then, orelse = _exposed(statement.body), _exposed(statement.orelse)
            inner = [_reads(statement.test), then[0], orelse[0]]
            sure = then[1] & orelse[1]
        elif isinstance(statement, ast.While):
            inner, sure = [_reads(statement.test), _exposed(statement.body)[0]], set()
        elif isinstance(statement, ast.For):
            inner = [_reads(statement.iter), _exposed(statement.body)[0] - set(_assigned_by(statement.target))]
            sure = set()
        else:
            inner, sure = [_reads(statement)], set(_assigned([statement]))
            if isinstance(statement, ast.AugAssign):
                inner.append(sure)
        read |= set().union(*inner) - assigned
        assigned |= sure
    return read, assigned


def _assigned_by(target: ast.expr) -> list[str]:
    visitor = _Assigned()
    visitor.visit(target)
    return list(visitor.names)


def _load(name: str) -> ast.expr:
    return ast.Name(name, ast.Load())


def _tuple(names: list[str], ctx: type[ast.expr_context]) -> ast.expr:
    return ast.Tuple([ast.Name(name, ctx()) for name in names], ctx())


def _call(function: str, *args: ast.expr) -> ast.Call:
    target: ast.expr = _load(function.partition(".")[0])
    if "." in function:
        target = ast.Attribute(target, function.partition(".")[2], ast.Load())
    return ast.Call(target, list(args), [])


def _set(name: str, value: ast.expr) -> ast.stmt:
    return ast.Assign([ast.Name(name, ast.Store())], value)


def _when(name: str, field: str, body: list[ast.stmt]) -> list[ast.stmt]:
    return [ast.If(ast.Attribute(_load(name), field, ast.Load()), body, [])] if body else []


def _thunk(value: ast.expr) -> ast.expr:
    return ast.Lambda(ast.arguments([], [], None, [], [], None, []), value)


class _Translator:
    """Translates one function. `free` are names that it reads and does not assign, `chains` those with attributes."""

    def __init__(self, tree: ast.FunctionDef) -> None:
        self.count = 0
        self.loops: list[str] = []
        parameters = [arg.arg for arg in (*tree.args.posonlyargs, *tree.args.args, *tree.args.kwonlyargs)]
        local = [name for name in _assigned(tree.body) if name not in parameters]
        self.own = {*parameters, *local}
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id not in self.own]
        self.free = {node.id: node.lineno for node in reversed(names)}
        self.chains = _chains(tree)
        self.readers = [node for node in ast.walk(tree) if isinstance(node, (ast.Name, ast.AugAssign))]
        head: list[ast.stmt] = [_set("_frame", _call("_Frame")), _set("_result", _load("_UNBOUND"))]
        head += [_set(name, _load("_UNBOUND")) for name in local]
        tail: list[ast.stmt] = [
            ast.Expr(_call("_frame.end")),
            ast.Return(
                ast.IfExp(
                    ast.Compare(_load("_result"), [ast.Is()], [_load("_UNBOUND")]), ast.Constant(None), _load("_result")
                )
            ),
        ]
        body = self.block(tree.body)
        arguments = tree.args
        for arg in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            arg.annotation = None
        function = ast.FunctionDef(tree.name, arguments, [*head, *body, *tail], [], None)
        self.function = ast.copy_location(function, tree)

    def kept_names(self, statements: list[ast.stmt], tests: list[ast.expr], *, loops: bool = False) -> list[str]:
        """Of what the statements assign, what anything else reads: elsewhere, or in another iteration."""
        inside = {id(node) for statement in statements for node in ast.walk(statement)}
        elsewhere: set[str] = set()
        for node in self.readers:
            if id(node) in inside:
                continue
            if isinstance(node, ast.AugAssign):
                elsewhere |= set(_assigned_by(node.target))
            elif isinstance(node.ctx, ast.Load):
                elsewhere.add(node.id)
        if loops or self.loops:
            elsewhere |= _exposed(statements)[0]
        for test in tests:
            elsewhere |= _reads(test)
        return [name for name in _assigned(statements) if name in elsewhere]

    def fresh(self, kind: str) -> str:
        self.count += 1
        return f"_{kind}{self.count}"

    def block(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        found: list[ast.stmt] = []
        for i, statement in enumerate(statements):
            found += [_located(made, statement) for made in self.statement(statement)]
            rest = statements[i + 1 :]
            if rest and _may_leave(statement):
                return found + [_located(made, rest[0]) for made in self.rest(rest)]
        return found

    def rest(self, statements: list[ast.stmt]) -> list[ast.stmt]:
        rest, saved, names = self.fresh("rest"), self.fresh("saved"), self.kept_names(statements, [])
        body = self.kept(rest, saved, names, self.block(statements), "mask")
        return [_set(rest, _call("_frame.rest")), *_when(rest, "any", body)]

    def kept(self, of: str, saved: str, names: list[str], body: list[ast.stmt], mask: str) -> list[ast.stmt]:
        """The body, and its assignments merged with what stood before, where it ran for some programs alone."""
        if not names:
            return body
        merge = _call("_merge", ast.Attribute(_load(of), mask, ast.Load()), _tuple(names, ast.Load), _load(saved))
        return [
            *_when(of, "partial", [_set(saved, _tuple(names, ast.Load))]),
            *body,
            *_when(of, "partial", [ast.Assign([_tuple(names, ast.Store)], merge)]),
        ]

    def statement(self, node: ast.stmt) -> list[ast.stmt]:
        method = getattr(self, f"on_{type(node).__name__.lower()}", None)
        if method is None:
            raise _unsupported(f"the statement `{type(node).__name__.lower()}`", node)
        return method(node)  # type: ignore[no-any-return]

    def on_pass(self, node: ast.Pass) -> list[ast.stmt]:
        return [node]

    def on_expr(self, node: ast.Expr) -> list[ast.stmt]:
        return [] if isinstance(node.value, ast.Constant) else [ast.Expr(self.expression(node.value))]

    def on_assign(self, node: ast.Assign) -> list[ast.stmt]:
        return [ast.Assign(node.targets, _call("_variable", self.expression(node.value)))]

    def on_augassign(self, node: ast.AugAssign) -> list[ast.stmt]:
        assert isinstance(node.target, ast.Name)
        value = ast.BinOp(_load(node.target.id), node.op, self.expression(node.value))
        return [_set(node.target.id, _call("_variable", _located(value, node)))]

    def on_annassign(self, node: ast.AnnAssign) -> list[ast.stmt]:
        assert isinstance(node.target, ast.Name)
        if node.value is None:
            return []
        value = self.expression(node.value)
        constexpr = "constexpr" in ast.dump(node.annotation)
        return [_set(node.target.id, value if constexpr else _call("_variable", value))]

    def on_assert(self, node: ast.Assert) -> list[ast.stmt]:
        return []  # Triton drops it unless it debugs

    def on_if(self, node: ast.If) -> list[ast.stmt]:
        branch, saved, then = self.fresh("branch"), self.fresh("saved"), self.fresh("then")
        names = self.kept_names([*node.body, *node.orelse], [])
        names += sorted(_exposed(node.orelse)[0] & set(_assigned(node.body)) - set(names))
        swap: list[ast.stmt] = [
            _set(then, _tuple(names, ast.Load)),
            *([ast.Assign([_tuple(names, ast.Store)], _load(saved))] if names else []),
            ast.Expr(_call(f"{branch}.flip")),
        ]
        join = _call(f"{branch}.join", _load(then), _tuple(names, ast.Load))
        return [
            _set(branch, _call("_frame.branch", self.expression(node.test))),
            *_when(branch, "mixed", [_set(saved, _tuple(names, ast.Load))]),
            *_when(branch, "then", self.block(node.body)),
            *_when(branch, "mixed", swap),
            *_when(branch, "orelse", self.block(node.orelse)),
            *_when(branch, "mixed", [ast.Assign([_tuple(names, ast.Store)], join) if names else ast.Expr(join)]),
        ]

    def on_while(self, node: ast.While) -> list[ast.stmt]:
        loop, saved, names = (
            self.fresh("loop"),
            self.fresh("saved"),
            self.kept_names(node.body, [node.test], loops=True),
        )
        values = [_load(name) for name in names]
        test = ast.BoolOp(
            ast.And(), [_call(f"{loop}.again", *values), _call(f"{loop}.test", self.expression(node.test))]
        )
        body = self.kept(loop, saved, names, self.iteration(loop, node.body), "mask")
        return [
            _set(loop, _call("_frame.loop")),
            ast.While(test, body or [ast.Pass()], []),
            ast.Expr(_call(f"{loop}.end")),
        ]

    def on_for(self, node: ast.For) -> list[ast.stmt]:
        loop, saved, item = self.fresh("loop"), self.fresh("saved"), self.fresh("item")
        targets = [name for name in _assigned_by(node.target) if name in self.kept_names([node], [])]
        names = list(dict.fromkeys([*targets, *self.kept_names(node.body, [], loops=True)]))
        leaves = any(isinstance(inner, (ast.Break, ast.Return)) for inner in ast.walk(node))
        body = [ast.Assign([node.target], _load(item)), *self.iteration(loop, node.body)]
        return [
            _set(loop, _call("_frame.each", self.expression(node.iter), ast.Constant(leaves))),
            ast.For(ast.Name(item, ast.Store()), _load(loop), self.kept(loop, saved, names, body, "mask"), []),
            ast.Expr(_call(f"{loop}.end")),
        ]

    def iteration(self, loop: str, statements: list[ast.stmt]) -> list[ast.stmt]:
        self.loops.append(loop)
        try:
            return self.block(statements)
        finally:
            self.loops.pop()

    def on_break(self, node: ast.Break) -> list[ast.stmt]:
        return [ast.Expr(_call(f"{self.loops[-1]}.leave"))]

    def on_continue(self, node: ast.Continue) -> list[ast.stmt]:
        return [ast.Expr(_call(f"{self.loops[-1]}.skip"))]

    def on_return(self, node: ast.Return) -> list[ast.stmt]:
        value = ast.Constant(None) if node.value is None else self.expression(node.value)
        return [
            _set("_result", _call("_frame.give", value, _load("_result"))),
            *_when("_frame", "done", [ast.Return(_load("_result"))]),
        ]

    def expression(self, node: ast.expr) -> ast.expr:
        found = _Expressions().visit(node)
        assert isinstance(found, ast.expr)
        return found


class _Expressions(ast.NodeTransformer):
    """Replaces the operators that Python evaluates by truth values."""

    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        name = "_and" if isinstance(node.op, ast.And) else "_or"
        value = node.values[-1]
        for first in reversed(node.values[:-1]):
            value = _located(_call(name, first, _thunk(value)), node)
        return value

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        if not isinstance(node.op, ast.Not):
            return node
        negated: ast.AST = _located(_call("_not", node.operand), node)
        return negated

    def visit_IfExp(self, node: ast.IfExp) -> ast.AST:
        self.generic_visit(node)
        chosen: ast.AST = _located(_call("_choose", node.test, _thunk(node.body), _thunk(node.orelse)), node)
        return chosen

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1:
            raise _unsupported("a chain of comparisons", node)
        return node


def _unsupported(name: str, node: ast.stmt | ast.expr) -> UnsupportedError:
    return UnsupportedError("a kernel", (name,), {name: str(node.lineno)})


def _located(node: Any, at: ast.AST) -> Any:
    """`node`, made at the place of `at`, with what was made below it."""
    ast.copy_location(node, at)
    for child in ast.iter_child_nodes(node):
        if not hasattr(child, "lineno") and "lineno" in child._attributes:
            _located(child, at)
        elif not hasattr(child, "lineno"):
            _located_children(child, at)
    return node


def _located_children(node: ast.AST, at: ast.AST) -> None:
    for child in ast.iter_child_nodes(node):
        if not hasattr(child, "lineno"):
            _located(child, at)


def _chains(tree: ast.AST) -> list[tuple[tuple[str, ...], int]]:
    """Every `a.b.c` in the tree, with its line."""
    found = []
    for node in ast.walk(tree):
        names: list[str] = []
        at: ast.AST = node
        while isinstance(at, ast.Attribute):
            names.append(at.attr)
            at = at.value
        if names and isinstance(at, ast.Name):
            found.append(((at.id, *reversed(names)), at.lineno))
    return found


def missing() -> tuple[str, ...]:
    """The public functions and types of `triton.language`, as installed, that the interpreter does not have."""
    return tuple(f"tl.{name}" for name in dir(tl) if not name.startswith("_") and _is_missing(getattr(tl, name)))


def _is_missing(value: Any) -> bool:
    if isinstance(value, tl.dtype):
        return not (value.is_ptr() or value.name == "void" or value in NUMPY)
    if isinstance(value, (type, types.ModuleType)):
        return False
    try:
        found = meaning(value)
        if isinstance(found, Compiled):
            found.prepare()
    except UnsupportedError:
        return True
    return False
