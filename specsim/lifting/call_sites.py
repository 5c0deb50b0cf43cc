"""Call sites: run an operation with the arguments that an engine's own code gives it.

Several historic defects are the caller's: the kernel is right for the stride that it is given, and the worker gives it
the wrong one.
So a launch is taken from the worker by AST together with the statements before it that compute its arguments (a
backward slice), and is run in an environment of stubs of the worker's surroundings: `batch`, `self`, the results
of the step before.
Names that the environment supplies end the slice. The conditions around the call are evaluated first: a call that the
worker does not make in a configuration is not tested there.

What this does not do: it follows no loop and no call into other methods of the worker. A slice that needs those is
"not run".
"""

from __future__ import annotations

import ast
import builtins
import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from specsim.lifting.lift import DriftError, ParsedModule, annotations_flag, body_hash, find_function

_RESULT = "__specsim_result__"


@dataclass(frozen=True, slots=True)
class CallSite:
    """One call in a function, with what it needs.

    `where`       FILE:LINE of the call
    `code`        the slice, then the call
    `guard_code`  the statements that the conditions need
    `conditions`  tests around the call and whether they must hold, outermost first
    `source_hash` hash of the statement with the call and of its slice
    """

    where: str
    callee: str
    code: Any
    guard_code: Any
    conditions: tuple[tuple[Any, bool], ...]
    source_hash: str

    def applies(self, environment: Mapping[str, Any]) -> bool:
        """Whether the worker makes this call in the environment."""
        if not self.conditions:
            return True
        namespace = dict(environment)
        exec(self.guard_code, namespace)
        return all(bool(eval(code, namespace)) is holds for code, holds in self.conditions)

    def run(self, environment: Mapping[str, Any], callee: Any) -> Any:
        """Run the slice with `callee` in the place of the called name; returns the value of the call."""
        namespace = {**environment, self.callee: callee}
        exec(self.code, namespace)
        return namespace[_RESULT]


def find_call(
    module: ParsedModule,
    function: str,
    callees: tuple[str, ...],
    supplied: Mapping[str, Any],
    which: int | None = None,
) -> CallSite:
    """The one call of any of `callees` in `function` ("Class.method"), or number `which` of them from 0 on, sliced down
    to the names in `supplied`.

    `supplied` maps names to sample values; a dotted name such as `batch.seq_lens` is supplied when the sample of its
    root has the attributes.
    Raises DriftError when there is no such call, more than one, or the slice needs something that is not supplied.
    """
    definition = find_function(module, function)
    sites = list(_sites(definition.body, callees, ()))
    if len(sites) <= (which or 0):
        raise DriftError(f"not found: a call of {' or '.join(callees)} in {function} of {module.path}")
    if len(sites) > 1 and which is None:
        lines = ", ".join(str(site.call.lineno) for site in sites)
        raise DriftError(f"signature changed: {function} of {module.path} calls {sites[0].callee} at lines {lines}")
    site = sites[which or 0]
    arguments: list[ast.AST] = [*site.call.args, *(keyword.value for keyword in site.call.keywords)]
    if isinstance(site.call.func, ast.Subscript):
        arguments.append(site.call.func.slice)
    slice_, missing = _backward_slice(arguments, site.before, supplied)
    guard, guard_missing = _backward_slice([test for test, _holds in site.conditions], site.before, supplied)
    if missing or guard_missing:
        needs = ", ".join(sorted({*missing, *guard_missing}))
        raise DriftError(f"signature changed: the call at {module.path}:{site.call.lineno} needs {needs}")
    call = ast.Assign(targets=[ast.Name(id=_RESULT, ctx=ast.Store())], value=copy.deepcopy(site.call))
    body = [*slice_, ast.copy_location(call, site.call)]
    return CallSite(
        where=f"{module.path}:{site.call.lineno}",
        callee=site.callee,
        code=_compile(ast.Module(body=body, type_ignores=[]), module.path, "exec"),
        guard_code=_compile(ast.Module(body=guard, type_ignores=[]), module.path, "exec"),
        conditions=tuple(
            (_compile(ast.Expression(body=test), module.path, "eval"), holds) for test, holds in site.conditions
        ),
        source_hash=body_hash(ast.Module(body=body, type_ignores=[])),
    )


def _compile(node: ast.Module | ast.Expression, path: str, mode: str) -> Any:
    ast.fix_missing_locations(node)
    return compile(node, f"<{path}>", mode, flags=annotations_flag(), dont_inherit=True)


@dataclass(frozen=True, slots=True)
class _Site:
    call: ast.Call
    callee: str
    before: tuple[ast.stmt, ...]  # statements that run before the call, in order, from all enclosing blocks
    conditions: tuple[tuple[ast.expr, bool], ...]


def _sites(
    body: list[ast.stmt],
    callees: tuple[str, ...],
    before: tuple[ast.stmt, ...],
    conditions: tuple[tuple[ast.expr, bool], ...] = (),
) -> list[_Site]:
    found: list[_Site] = []
    for statement in body:
        for call in _calls_in_header(statement):
            name = _callee_name(call)
            if name in callees:
                found.append(_Site(call, name, before, conditions))
        if isinstance(statement, ast.If):
            found += _sites(statement.body, callees, before, (*conditions, (statement.test, True)))
            found += _sites(statement.orelse, callees, before, (*conditions, (statement.test, False)))
        elif isinstance(statement, ast.With | ast.Try):
            found += _sites(statement.body, callees, before, conditions)
        before = (*before, statement)
    return found


def _calls_in_header(statement: ast.stmt) -> list[ast.Call]:
    """Calls in a statement, not counting those in its nested blocks."""
    if isinstance(statement, ast.If | ast.While):
        roots: list[ast.AST] = [statement.test]
    elif isinstance(statement, ast.With | ast.Try | ast.For | ast.FunctionDef | ast.ClassDef):
        roots = []
    else:
        roots = [statement]
    return [node for root in roots for node in ast.walk(root) if isinstance(node, ast.Call)]


def _callee_name(call: ast.Call) -> str:
    function = call.func.value if isinstance(call.func, ast.Subscript) else call.func
    return function.id if isinstance(function, ast.Name) else ""


def _dotted(node: ast.AST) -> str:
    """`a.b.c` for a chain of attributes on a name, else ""."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = _dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""


def _needs(node: ast.AST) -> set[str]:
    """The longest dotted names that `node` reads, but for those that it binds itself (a comprehension's, a
    lambda's).
    """
    found: set[str] = set()
    bound = {child.id for child in ast.walk(node) if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store)}
    bound |= {child.arg for child in ast.walk(node) if isinstance(child, ast.arg)}

    def visit(child: ast.AST) -> None:
        name = _dotted(child)
        if name:
            found.add(name)
            return
        for grandchild in ast.iter_child_nodes(child):
            visit(grandchild)

    visit(node)
    return {name for name in found if name.split(".")[0] not in bound}


def _assigned(statement: ast.stmt) -> set[str]:
    """Dotted names that a statement assigns, at any depth."""
    targets: list[ast.expr] = []
    for node in ast.walk(statement):
        if isinstance(node, ast.Assign):
            targets += node.targets
        elif isinstance(node, ast.AnnAssign | ast.AugAssign):
            targets.append(node.target)
    names: set[str] = set()
    for target in targets:
        elements = target.elts if isinstance(target, ast.Tuple | ast.List) else [target]
        names.update(name for name in map(_dotted, elements) if name)
    return names


def _is_supplied(name: str, supplied: Mapping[str, Any]) -> bool:
    root, *attributes = name.split(".")
    if root not in supplied:
        return hasattr(builtins, root)
    value = supplied[root]
    for attribute in attributes:
        if not hasattr(value, attribute):
            return False
        value = getattr(value, attribute)
    return True


def _backward_slice(
    wanted: Sequence[ast.AST], before: tuple[ast.stmt, ...], supplied: Mapping[str, Any]
) -> tuple[list[ast.stmt], list[str]]:
    """The statements of `before` that the expressions `wanted` need, and the names that nothing gives."""
    needed = {name for node in wanted for name in _needs(node)}
    kept: list[ast.stmt] = []
    for statement in reversed(before):
        gives = {
            need
            for need in needed
            for name in _assigned(statement)
            if (need == name or need.startswith(f"{name}.")) and not _is_supplied(need, supplied)
        }
        if gives:
            kept.append(statement)
            needed = (needed - gives) | _needs_of_statement(statement)
    missing = sorted(name for name in needed if not _is_supplied(name, supplied) and not _is_given_by(name, kept))
    return list(reversed(kept)), missing


def _is_given_by(name: str, statements: list[ast.stmt]) -> bool:
    return any(name == given or name.startswith(f"{given}.") for s in statements for given in _assigned(s))


def _needs_of_statement(statement: ast.stmt) -> set[str]:
    if isinstance(statement, ast.Assign):
        return _needs(statement.value)
    if isinstance(statement, ast.AnnAssign):
        return _needs(statement.value) if statement.value else set()
    return _needs(statement)


class CapturedCall:
    """Stands in for a called kernel or function: remembers the arguments of the last call, by parameter name, and
    calls it.

    For a launch, `grid` is remembered too.
    """

    def __init__(self, function: Any, parameters: tuple[str, ...]) -> None:
        self._function = function
        self._parameters = parameters
        self._fill: tuple[tuple[str, ...], int] = ((), 0)
        self.grid: tuple[int, ...] | None = None
        self.arguments: dict[str, Any] = {}

    def fill_before_call(self, names: tuple[str, ...], value: int) -> None:
        """Fill the arguments of these names with `value` before each call: an element that is never written is then
        seen.
        """
        self._fill = (names, value)

    def __getitem__(self, grid: Any) -> Callable[..., Any]:
        def launch(*args: Any, **kwargs: Any) -> Any:
            self._remember(args, kwargs)
            self.grid = tuple(int(extent) for extent in grid)
            return self._function[grid](*args, **kwargs)

        return launch

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._remember(args, kwargs)
        return self._function(*args, **kwargs)

    def _remember(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self.arguments = {**dict(zip(self._parameters, args, strict=False)), **kwargs}
        names, value = self._fill
        for name in names:
            if name in self.arguments:
                self.arguments[name].fill_(value)
