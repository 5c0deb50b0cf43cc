"""Lifting: take functions out of a source tree by AST and run them without importing the package they came from.

The closure of the module-level names that the wanted functions use (definitions, classes, assignments) is kept,
everything else is blanked, line numbers stay. Imports of the release are never executed: `torch`, `triton` and `tl`
are given, a few names come from shims, and a name from the release's own modules is followed there and lifted too.
What cannot be found that way is reported by name. The slice is written to the cache as a real file, because Triton's
interpreter reads a kernel's source from its file and silently skips its rewriting when it cannot.
"""

from __future__ import annotations

import ast
import builtins
import hashlib
import sys
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from specsim.targets.source import SourceTree


class DriftError(Exception):
    """The source does not have what the table of names says: "signature changed: ...", "not found: ..."."""


class TextStore(Protocol):
    """Where lifted slices are written (`specsim.targets.cache.Cache`)."""

    def store_text(self, relative_name: str, text: str) -> Path: ...


@dataclass(frozen=True, slots=True)
class LiftedFunction:
    """A function of the source, ready to call.

    `value` is what the module's namespace holds under the name (for a kernel the `triton.jit` object); `where` is
    FILE:LINE; `parameters` its parameter names in order; `body_hash` identifies its code whatever its comments and
    layout.
    """

    name: str
    value: Any
    where: str
    parameters: tuple[str, ...]
    body_hash: str


@dataclass(slots=True)
class ParsedModule:
    """A parsed file: module-level definitions by name, and where each imported name comes from."""

    path: str
    text: str
    tree: ast.Module
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # local name -> (module, name; "" = the module)


def parse_module(source: SourceTree, path: str) -> ParsedModule:
    """Parse `path` of the source. Raises DriftError when it is not there or not Python."""
    try:
        text = source.read(path)
        module = ParsedModule(path, text, ast.parse(text))
    except FileNotFoundError as error:
        raise DriftError(f"not found: {path}") from error
    except SyntaxError as error:
        raise DriftError(f"cannot be parsed: {path}:{error.lineno}: {error.msg}") from error
    for statement in _module_level(module.tree.body):
        _record(module, statement)
    return module


def _module_level(body: list[ast.stmt]) -> list[ast.stmt]:
    """Module-level statements, looking into `if TYPE_CHECKING`-like and try blocks for imports only."""
    flat: list[ast.stmt] = []
    for statement in body:
        flat.append(statement)
        if isinstance(statement, ast.If | ast.Try):
            nested = [*statement.body, *statement.orelse]
            flat.extend(s for s in _module_level(nested) if isinstance(s, ast.Import | ast.ImportFrom))
    return flat


def _record(module: ParsedModule, statement: ast.stmt) -> None:
    if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        module.definitions.setdefault(statement.name, []).append(statement)
    elif isinstance(statement, ast.Assign):
        for target in statement.targets:
            for node in ast.walk(target):
                if isinstance(node, ast.Name):
                    module.definitions.setdefault(node.id, []).append(statement)
    elif isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name) and statement.value:
        module.definitions.setdefault(statement.target.id, []).append(statement)
    elif isinstance(statement, ast.Import):
        for alias in statement.names:
            local = alias.asname or alias.name.split(".")[0]
            module.imports.setdefault(local, (alias.name if alias.asname else local, ""))
    elif isinstance(statement, ast.ImportFrom) and statement.module and statement.level == 0:
        for alias in statement.names:
            module.imports.setdefault(alias.asname or alias.name, (statement.module, alias.name))


def find_function(module: ParsedModule, name: str) -> ast.FunctionDef:
    """The function `name` or method `Class.name` of a module. Raises DriftError when it is not there."""
    *class_name, function_name = name.split(".")
    bodies: list[ast.stmt] = list(module.tree.body)
    if class_name:
        classes = [s for s in module.tree.body if isinstance(s, ast.ClassDef) and s.name == class_name[0]]
        if not classes:
            raise DriftError(f"not found: class {class_name[0]} in {module.path}")
        bodies = classes[-1].body
    found = [s for s in bodies if isinstance(s, ast.FunctionDef) and s.name == function_name]
    if not found:
        raise DriftError(f"not found: {name} in {module.path}")
    return found[-1]


def parameter_names(function: ast.FunctionDef) -> tuple[str, ...]:
    """The parameter names of a function, positional then keyword-only."""
    arguments = function.args
    return tuple(a.arg for a in [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs])


def body_hash(node: ast.AST) -> str:
    """A hash of the code below `node` that comments, layout and position do not change."""
    return hashlib.sha256(ast.dump(node, include_attributes=False).encode()).hexdigest()[:16]


def free_names(node: ast.AST) -> set[str]:
    """Names that `node` reads and that are not Python's own."""
    used: set[str] = set()
    for child in ast.walk(node):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
            used.add(child.id)
    return used - set(dir(builtins))


def code_names(statement: ast.stmt) -> set[str]:
    """Names that running `statement` needs. Annotations are never evaluated in a slice, so theirs do not count, but
    for Triton's
    `tl.constexpr`, which the compiler reads.
    """
    used = set()
    for child in ast.walk(_without_annotations(statement)):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Load):
            used.add(child.id)
    return used - set(dir(builtins))


def _without_annotations(statement: ast.stmt) -> ast.stmt:
    class Strip(ast.NodeTransformer):
        def visit_arg(self, node: ast.arg) -> ast.arg:
            return ast.copy_location(ast.arg(arg=node.arg), node)

        def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
            self.generic_visit(node)
            fields = {name: value for name, value in ast.iter_fields(node) if name != "returns"}
            return ast.copy_location(ast.FunctionDef(**fields, returns=None), node)

    stripped = Strip().visit(ast.parse(ast.unparse(statement)).body[0])
    assert isinstance(stripped, ast.stmt)
    return stripped


class Lifter:
    """Lifts functions out of one source tree; a module of it is parsed and sliced once per set of wanted names.

    `shims` are values for names that must not come from the source, by name: device probes, decorators that compile.
    """

    def __init__(self, source: SourceTree, store: TextStore, shims: Mapping[str, Any]) -> None:
        self.source = source
        self._store = store
        self._shims = dict(shims)
        self._parsed: dict[str, ParsedModule] = {}
        self._loaded: dict[tuple[str, frozenset[str]], dict[str, Any]] = {}

    def module(self, path: str) -> ParsedModule:
        if path not in self._parsed:
            self._parsed[path] = parse_module(self.source, path)
        return self._parsed[path]

    def lift(self, path: str, name: str) -> LiftedFunction:
        """Lift the module-level function `name` of the file `path`."""
        module = self.module(path)
        definition = find_function(module, name)
        namespace = self.namespace(path, frozenset({name}))
        return LiftedFunction(
            name=name,
            value=namespace[name],
            where=f"{path}:{definition.lineno}",
            parameters=parameter_names(definition),
            body_hash=body_hash(definition),
        )

    def namespace(self, path: str, wanted: frozenset[str], trail: tuple[str, ...] = ()) -> dict[str, Any]:
        """Execute the slice of `path` that defines `wanted`, and return its globals."""
        key = (path, wanted)
        if key not in self._loaded:
            self._loaded[key] = self._execute(self.module(path), wanted, trail)
        return self._loaded[key]

    def _execute(self, module: ParsedModule, wanted: frozenset[str], trail: tuple[str, ...]) -> dict[str, Any]:
        import torch
        import triton
        import triton.language as tl

        given: dict[str, Any] = {"torch": torch, "triton": triton, "tl": tl, **self._shims}
        kept, outside = _closure(module, wanted, set(given))
        for name in sorted(outside):
            given[name] = self._import(module, name, (*trail, module.path))
        text = _blank_all_but(module.text, kept)
        digest = hashlib.sha256(f"{module.path}\n{text}".encode()).hexdigest()[:24]
        file = self._store.store_text(f"lifted/{digest}.py", text)
        python_module = types.ModuleType(f"specsim_lifted_{digest}")
        python_module.__file__ = str(file)
        python_module.__dict__.update(given)
        # Triton's interpreter looks a kernel's module up by name.
        sys.modules[python_module.__name__] = python_module
        try:
            code = compile(text, str(file), "exec", flags=annotations_flag(), dont_inherit=True)
            exec(code, python_module.__dict__)
        except Exception as error:
            raise DriftError(f"cannot be lifted: {module.path}: {type(error).__name__}: {error}") from error
        return python_module.__dict__

    def _import(self, module: ParsedModule, name: str, trail: tuple[str, ...]) -> Any:
        """The value of a name that `module` imports: from the standard library, torch, or lifted from the release
        itself.
        """
        if name not in module.imports:
            raise DriftError(f"cannot be lifted: {module.path} uses {name}, which it neither defines nor imports")
        origin, imported = module.imports[name]
        root = origin.split(".")[0]
        if root == "sglang":
            for path in (origin.partition(".")[2].replace(".", "/") + suffix for suffix in (".py", "/__init__.py")):
                if self.source.exists(path) and path not in trail:
                    found = self.module(path)
                    if imported in found.definitions:
                        return self.namespace(path, frozenset({imported}), trail)[imported]
                    if imported in found.imports:
                        return self._import(found, imported, (*trail, path))
            raise DriftError(f"cannot be lifted: {module.path} needs {origin}.{imported}, which was not found")
        if root in _SAFE_ROOTS or root in sys.stdlib_module_names:
            target = __import__(origin, fromlist=[imported] if imported else [])
            return getattr(target, imported) if imported else sys.modules[origin]
        raise DriftError(f"cannot be lifted: {module.path} needs {origin}, which specsim does not import")


_SAFE_ROOTS = frozenset({"torch", "triton", "numpy"})


def annotations_flag() -> int:
    """The compiler flag of `from __future__ import annotations`: a slice's annotations name types that it does not
    have.
    """
    import __future__

    return __future__.annotations.compiler_flag


def _closure(module: ParsedModule, wanted: frozenset[str], given: set[str]) -> tuple[list[ast.stmt], set[str]]:
    """The statements that define `wanted` and all they use, and the names that come from elsewhere."""
    kept: dict[int, ast.stmt] = {}
    outside: set[str] = set()
    todo, seen = list(wanted), set(given) - wanted
    while todo:
        name = todo.pop()
        if name in seen:
            continue
        seen.add(name)
        if name in module.definitions:
            for statement in module.definitions[name]:
                kept[statement.lineno] = statement
                todo.extend(code_names(statement) - _bound_names(statement))
        elif name in module.imports:
            outside.add(name)
        else:
            raise DriftError(f"not found: {name} in {module.path}")
    return [kept[line] for line in sorted(kept)], outside


def _bound_names(statement: ast.stmt) -> set[str]:
    """Names that a statement binds for itself: parameters, local variables, loop variables, local imports."""
    bound: set[str] = set()
    for child in ast.walk(statement):
        if isinstance(child, ast.Name) and isinstance(child.ctx, ast.Store | ast.Del):
            bound.add(child.id)
        elif isinstance(child, ast.arg):
            bound.add(child.arg)
        elif isinstance(child, ast.Import | ast.ImportFrom):
            bound.update((alias.asname or alias.name).split(".")[0] for alias in child.names)
        elif isinstance(child, ast.FunctionDef | ast.ClassDef) and child is not statement:
            bound.add(child.name)
    if isinstance(statement, ast.Assign | ast.AnnAssign):
        return set()  # `_is_cuda = is_cuda()` binds a module-level name, it does not hide one
    return bound


def _blank_all_but(text: str, statements: list[ast.stmt]) -> str:
    """The text with every line outside `statements` made empty, so that line numbers stay."""
    lines = text.splitlines()
    keep = [False] * len(lines)
    for statement in statements:
        decorators = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        for index in range(first - 1, statement.end_lineno or statement.lineno):
            keep[index] = True
    return "\n".join(line if kept else "" for line, kept in zip(lines, keep, strict=True)) + "\n"


def as_callable(value: Any) -> Callable[..., Any]:
    if not callable(value) and not hasattr(value, "__getitem__"):
        raise DriftError(f"lifted value of type {type(value).__name__} cannot be called")
    return value  # type: ignore[no-any-return]
