"""Lifting: take functions out of a source tree by AST and run them without importing the package they came from.

The closure of the module-level names that the wanted functions use (definitions, classes, assignments) is kept,
everything else is skipped, line numbers stay. Imports of the release are never executed: a name from the release's
own modules is followed there and lifted too. What cannot be found that way is reported by name.

Two ways. `lift` is for kernels and what launches them: `torch`, `triton` and `tl` are given, a few names come from
shims, and the slice is written to the cache as a real file, because Triton's interpreter reads a kernel's source from
its file and silently skips its rewriting when it cannot. `lift_method` is for host functions,
methods and classes: the caller gives the names that must not come from the source, the tree is compiled under the
file's own path, and a traceback names the line of the source.
"""

from __future__ import annotations

import ast
import builtins
import dis
import hashlib
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, Protocol

from specsim.errors import UsageError
from specsim.isolation.phases import running
from specsim.lifting.source import SourceTree


class DriftError(Exception):
    """The source does not have what the table of names says: "signature changed: ...", "not found: ..."."""


class TextStore(Protocol):
    """Where lifted slices are written (`specsim.lifting.cache.Cache`)."""

    def store_text(self, relative_name: str, text: str) -> Path: ...


@dataclass(frozen=True, slots=True)
class LiftedFunction:
    """A function or class of the source, ready to call.

    `value` is what the module's or the class's namespace holds under the name (for a kernel the `triton.jit` object,
    for a method a plain function, or a property or staticmethod object); `where` is FILE:LINE; `parameters` its
    parameter names in order, none for a class; `body_hash` identifies its code whatever its comments and layout.
    """

    name: str
    value: Any
    where: str
    parameters: tuple[str, ...]
    body_hash: str


@dataclass(slots=True)
class ParsedModule:
    """A parsed file: module-level definitions by name, where each imported name comes from, and the modules of which
    it imports everything.
    """

    path: str
    text: str
    tree: ast.Module
    definitions: dict[str, list[ast.stmt]] = field(default_factory=dict)
    imports: dict[str, tuple[str, str]] = field(default_factory=dict)  # local name -> (module, name; "" = the module)
    stars: list[str] = field(default_factory=list)


def parse_module(source: SourceTree, path: str) -> ParsedModule:
    """Parse `path` of the source. Raises DriftError when it is not there, UsageError when it is not Python."""
    try:
        text = source.read(path)
    except FileNotFoundError as error:
        raise DriftError(f"not found: {path}") from error
    try:
        module = ParsedModule(path, text, _parse(text))
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # a null byte, parentheses without end
        place, why = (f":{error.lineno}", error.msg) if isinstance(error, SyntaxError) else ("", error)
        problem = f"{source.label} cannot be checked: {path}{place} is not Python ({why})"
        raise UsageError(problem, "mend the file, or give another revision") from error
    for statement in _module_level(module.tree.body):
        _record(module, statement)
    return module


@lru_cache(maxsize=128)
def _parse(text: str) -> ast.Module:
    """The tree of a file, shared by all who read it: nobody changes it. Ops, host functions and guards read the same
    large files, and a release and an edited copy of it share most.
    """
    return ast.parse(text)


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
            if alias.name == "*":
                module.stars.append(statement.module)
            module.imports.setdefault(alias.asname or alias.name, (statement.module, alias.name))


def class_functions(module: ParsedModule, name: str) -> dict[str, list[ast.FunctionDef]]:
    """The methods of the class `name` by name; a property with a setter has two. Empty when there is no such class."""
    found: dict[str, list[ast.FunctionDef]] = {}
    classes = [s for s in module.definitions.get(name, ()) if isinstance(s, ast.ClassDef)]
    for statement in classes[-1].body if classes else ():
        if isinstance(statement, ast.FunctionDef):
            found.setdefault(statement.name, []).append(statement)
    return found


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
    return hashlib.sha256(_canonical(node).encode()).hexdigest()[:16]


def _canonical(value: object) -> str:
    """A node as text, the same on every Python: `ast.dump` is not, since it leaves out other defaults in each."""
    if isinstance(value, ast.AST):
        fields = [
            f"{name}={_canonical(field)}"
            for name, field in ast.iter_fields(value)
            if field not in (None, []) and name not in ("kind", "type_comment", "type_params", "ctx")
        ]
        return f"{type(value).__name__}({','.join(fields)})"
    if isinstance(value, list):
        return f"[{','.join(map(_canonical, value))}]"
    return repr(value)


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
        self._host_values: dict[tuple[int, str, str], Any] = {}
        self.attributes: set[str] = set()  # that host functions which were lifted use of anything

    def module(self, path: str) -> ParsedModule:
        if path not in self._parsed:
            self._parsed[path] = parse_module(self.source, path)
        return self._parsed[path]

    def lift(self, path: str, name: str) -> LiftedFunction:
        """Lift the module-level function, or class or static method `Class.method`, `name` of the file `path`."""
        module = self.module(path)
        definition = find_function(module, name)
        owner, _, method = name.partition(".")
        value = self.namespace(path, frozenset({owner}))[owner]
        return LiftedFunction(
            name=name,
            value=getattr(value, method) if method else value,
            where=f"{path}:{definition.lineno}",
            parameters=parameter_names(definition),
            body_hash=body_hash(definition),
        )

    def forget_values(self) -> None:
        """Forget what host functions of other files were made with: the next ones are given something else."""
        self._host_values.clear()
        self.attributes.clear()

    def look(self, path: str, name: str) -> LiftedFunction:
        """What `lift_method` says of a function or method, without its value."""
        nodes = find_definitions(self.module(path), name)
        if not isinstance(nodes[0], ast.FunctionDef):
            raise DriftError(f"not found: {name} in {path} is no function")
        where = f"{path}:{nodes[0].lineno}"
        return LiftedFunction(name, None, where, parameter_names(nodes[0]), body_hash(nodes[-1]))

    def lift_method(self, path: str, name: str, given: Mapping[str, Any]) -> LiftedFunction:
        """Lift the host function, method (`Class.method`) or class `name` of the file `path`.

        A name that it uses is looked up in `given`, in the module, among its imports and those inside the bodies.
        Imports of the release inside a body are taken out of it, and so are decorators, but for those that make a
        property, a static or class method, a context manager or a dataclass. Raises DriftError when a name is not
        found, or when a wanted function has no body.
        """
        module = self.module(path)
        nodes = find_definitions(module, name)
        return LiftedFunction(
            name=name,
            value=self._host_namespace(module, {name: nodes}, given, ())[name],
            where=f"{path}:{nodes[0].lineno}",
            parameters=parameter_names(nodes[0]) if isinstance(nodes[0], ast.FunctionDef) else (),
            body_hash=body_hash(nodes[-1]),
        )

    def _host_namespace(
        self,
        module: ParsedModule,
        wanted: Mapping[str, list[ast.stmt]],
        given: Mapping[str, Any],
        trail: tuple[str, ...],
    ) -> dict[str, Any]:
        """The values of the wanted names. Methods are made one by one, the rest in the namespace that they share."""
        namespace: dict[str, Any] = {"__name__": __name__}
        kept: dict[int, ast.stmt] = {}
        inner: dict[str, tuple[str, str]] = {}
        methods: dict[str, list[ast.stmt]] = {}
        todo: list[str] = []
        for name, nodes in wanted.items():
            prepared = [self._prepared(module, node, inner) for node in nodes]
            todo += [needed for node in prepared for needed in _names_needed(node)]
            if "." in name:
                methods[name] = prepared
            else:
                kept |= {node.lineno: node for node in prepared}
        seen = {name for name in wanted if "." not in name}
        while todo:
            name = todo.pop()
            if name in seen:
                continue
            seen.add(name)
            if name.removesuffix(_IMPORTED) in given:
                namespace[name] = given[name.removesuffix(_IMPORTED)]
            elif name in module.definitions:
                for statement in module.definitions[name]:
                    prepared_statement = self._prepared(module, statement, inner)
                    kept[statement.lineno] = prepared_statement
                    todo += _names_needed(prepared_statement)
            else:
                namespace[name] = self._follow(
                    module.path,
                    *self._origin(module, name, inner),
                    trail,
                    lambda path, imported, on: self._host_value(path, imported, given, on),
                )
        _execute_statements(module.path, [kept[line] for line in sorted(kept)], namespace, namespace)
        values = {name: namespace[name] for name in wanted if "." not in name}
        for name, statements in methods.items():
            scope: dict[str, Any] = {}
            _execute_statements(module.path, statements, namespace, scope)
            values[name] = scope[name.split(".")[-1]]
        return values

    def _prepared(self, module: ParsedModule, node: ast.stmt, inner: dict[str, tuple[str, str]]) -> ast.stmt:
        prepared = _prepare_for_host(module, node, inner)
        self.attributes.update(child.attr for child in ast.walk(prepared) if isinstance(child, ast.Attribute))
        return prepared

    def _origin(self, module: ParsedModule, name: str, inner: Mapping[str, tuple[str, str]]) -> tuple[str, str]:
        """Where a name comes from that a module uses and does not define: module and name. `inner` are the imports
        inside functions.
        """
        found = module.imports.get(name) or inner.get(name)
        if found is not None:
            return found
        for star in module.stars:
            if self._find_in_source(star, name, (module.path,)):
                return (star, name)
        raise DriftError(f"cannot be lifted: {module.path} uses {name}, which it neither defines nor imports")

    def _host_value(self, path: str, name: str, given: Mapping[str, Any], trail: tuple[str, ...]) -> Any:
        """The value of the module-level name `name` of another file of the release."""
        if name in given:
            return given[name]
        # What is given only grows, so that its size distinguishes its states.
        key = (len(given), path, name)
        if key not in self._host_values:
            module = self.module(path)
            wanted = {name: module.definitions[name]}
            self._host_values[key] = self._host_namespace(module, wanted, given, trail)[name]
        return self._host_values[key]

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
        from triton.language.extra import libdevice

        triton_names = {"triton": triton, "tl": tl, "libdevice": libdevice}
        given: dict[str, Any] = {"torch": torch, **triton_names, **self._shims}
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
            with running():
                exec(code, python_module.__dict__)
        except Exception as error:
            raise DriftError(f"cannot be lifted: {module.path}: {type(error).__name__}: {error}") from error
        return python_module.__dict__

    def _import(self, module: ParsedModule, name: str, trail: tuple[str, ...]) -> Any:
        """The value of a name that `module` imports."""
        if name not in module.imports:
            raise DriftError(f"cannot be lifted: {module.path} uses {name}, which it neither defines nor imports")
        return self._follow(
            module.path,
            *module.imports[name],
            trail,
            lambda path, wanted, on: self.namespace(path, frozenset({wanted}), on)[wanted],
        )

    def _follow(
        self,
        user: str,
        origin: str,
        imported: str,
        trail: tuple[str, ...],
        lift: Callable[[str, str, tuple[str, ...]], Any],
    ) -> Any:
        """The value of `imported` from the module `origin`: from the standard library, torch, or by `lift` from the
        release itself. `trail` are the files on the way, `user` the one that imports.
        """
        root = origin.split(".")[0]
        if root == self.source.package:
            place = self._find_in_source(origin, imported, (*trail, user))
            if place is None:
                raise DriftError(f"cannot be lifted: {user} needs {origin}.{imported}, which was not found")
            if isinstance(place, ParsedModule):
                return lift(place.path, imported, (*trail, user))
            return self._follow(place[0], *place[1:], (*trail, user), lift)
        if root in _SAFE_ROOTS or root in sys.stdlib_module_names:
            try:
                target = __import__(origin, fromlist=[imported] if imported else [])
            except ImportError as error:
                raise DriftError(f"cannot be lifted: {user} needs {origin}: {error}") from error
            return getattr(target, imported) if imported else sys.modules[origin]
        raise DriftError(f"cannot be lifted: {user} needs {origin}, which specsim does not import")

    def _find_in_source(
        self, origin: str, imported: str, trail: tuple[str, ...]
    ) -> ParsedModule | tuple[str, str, str] | None:
        """The file of the module `origin` that defines `imported`, or (file, module, name) of where it imports it
        from.
        """
        for path in (origin.partition(".")[2].replace(".", "/") + suffix for suffix in (".py", "/__init__.py")):
            if path in trail or not self.source.exists(path):
                continue
            found = self.module(path)
            if imported in found.definitions:
                return found
            if imported in found.imports:
                return (path, *found.imports[imported])
            for star in found.stars:
                place = self._find_in_source(star, imported, (*trail, path))
                if place is not None:
                    return place
        return None


_SAFE_ROOTS = frozenset({"torch", "triton", "numpy", "msgspec"})


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


# Decorators that make what a function is. Others, which register, cache or compile it, are skipped.
_KEPT_DECORATORS = frozenset(
    {"property", "setter", "getter", "cached_property", "staticmethod", "classmethod", "contextmanager", "dataclass"}
)


def find_definitions(module: ParsedModule, name: str) -> list[ast.stmt]:
    """The definition of a function, method or class; a property with a setter has two. Raises DriftError when it is
    not there, or is a function without a body.
    """
    if "." in name:
        class_name, function_name = name.split(".")
        nodes: list[ast.stmt] = list(class_functions(module, class_name).get(function_name, ()))
    else:
        definitions = module.definitions.get(name, ())
        nodes = list(filter(lambda s: isinstance(s, ast.FunctionDef | ast.ClassDef), definitions))[-1:]
    if not nodes:
        raise DriftError(f"not found: {name} in {module.path}")
    for node in nodes:
        if isinstance(node, ast.FunctionDef) and is_emptied(node):
            raise DriftError(f"has no body: {name} in {module.path}:{node.lineno}")
    return nodes


def is_emptied(function: ast.FunctionDef) -> bool:
    """Whether nothing is left of a function but `pass`, `...` and text."""
    return all(
        isinstance(s, ast.Pass) or (isinstance(s, ast.Expr) and isinstance(s.value, ast.Constant))
        for s in function.body
    )


_IMPORTED = "__imported"


def _assigned(function: ast.FunctionDef) -> frozenset[str]:
    """Names that the code of a function assigns, without imports."""
    stored = (n.id for n in ast.walk(function) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store))
    return frozenset(stored)


def _prepare_for_host(module: ParsedModule, statement: ast.stmt, inner: dict[str, tuple[str, str]]) -> ast.stmt:
    """A copy of a statement without the imports inside it that are not executed, and without decorators that do not
    make what it is. Where the names come from that such imports bind is noted in `inner`.
    """
    # The copy is needed: what is parsed is shared by all lifts of the file.
    prepared = _HostStatement(module, inner).visit(_copied(statement))
    assert isinstance(prepared, ast.stmt)
    return prepared


class _HostStatement(ast.NodeTransformer):
    """See `_prepare_for_host`."""

    def __init__(self, module: ParsedModule, inner: dict[str, tuple[str, str]]) -> None:
        self.module = module
        self.inner = inner
        self.assigned: frozenset[str] = frozenset()  # in the function around

    def visit_Import(self, node: ast.Import) -> ast.AST:
        return self._without(node, [(a.asname or a.name.split(".")[0], (a.name, "")) for a in node.names])

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST:
        origin = node.module or ""
        return self._without(node, [(a.asname or a.name, (origin, a.name)) for a in node.names])

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        around, self.assigned = self.assigned, _assigned(node)
        self.generic_visit(node)
        self.assigned = around
        names = [_last_name(decorator) for decorator in node.decorator_list]
        if "jit" in names:
            raise DriftError(f"cannot be lifted: {self.module.path}:{node.lineno} {node.name} is a kernel")
        kept = [d for d, name in zip(node.decorator_list, names, strict=True) if name in _KEPT_DECORATORS]
        return ast.copy_location(ast.FunctionDef(**{**dict(ast.iter_fields(node)), "decorator_list": kept}), node)

    def _without(self, node: ast.stmt, bound: list[tuple[str, tuple[str, str]]]) -> ast.AST:
        root = bound[0][1][0].split(".")[0]
        if root in _SAFE_ROOTS or root in sys.stdlib_module_names:
            return node
        for name, origin in bound:
            if name in self.assigned:
                continue
            if name in self.module.definitions:
                line = f"{self.module.path}:{node.lineno}"
                raise DriftError(f"cannot be lifted: {line} imports {name}, which the module defines too")
            self.inner[name] = origin
        local = [(name, origin) for name, origin in bound if name in self.assigned]
        self.inner.update((name + _IMPORTED, origin) for name, origin in local)
        return self._assignment([name for name, _ in local], node)

    def _assignment(self, names: list[str], node: ast.stmt) -> ast.AST:
        """The replacement of an import of names that the function assigns elsewhere too, and so are its own."""
        if not names:
            return ast.copy_location(ast.Pass(), node)
        text = "; ".join(f"{name} = {name}{_IMPORTED}" for name in names)
        made = ast.If(ast.Constant(True), ast.parse(text).body, [])
        for child in ast.walk(made):
            if isinstance(child, ast.stmt | ast.expr):
                ast.copy_location(child, node)
        return made


def _copied(node: ast.stmt) -> ast.stmt:
    def copy(value: Any) -> Any:
        if isinstance(value, ast.AST):
            made = type(value)(**{name: copy(child) for name, child in ast.iter_fields(value)})
            return ast.copy_location(made, value)
        return [copy(child) for child in value] if isinstance(value, list) else value

    copied = copy(node)
    assert isinstance(copied, ast.stmt)
    return copied


def _last_name(decorator: ast.expr) -> str:
    """`c` of the decorators `c`, `a.b.c` and `a.b.c(...)`."""
    if isinstance(decorator, ast.Call):
        return _last_name(decorator.func)
    return decorator.attr if isinstance(decorator, ast.Attribute) else getattr(decorator, "id", "")


def _names_needed(statement: ast.stmt) -> set[str]:
    """Names that running a statement, or calling what it defines, looks up in its module. Those with two underscores
    on each side Python makes itself.
    """
    found = set(_global_names(_compile("", [statement]))) - set(dir(builtins))
    return {name for name in found if not name.startswith("__")}


_LOADS_GLOBAL = ("LOAD_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS")


def _global_names(code: types.CodeType) -> Iterator[str]:
    stored = {i.argval for i in dis.get_instructions(code) if i.opname == "STORE_NAME"}
    for instruction in dis.get_instructions(code):
        is_own = instruction.opname == "LOAD_NAME" and instruction.argval in stored
        if instruction.opname in _LOADS_GLOBAL and not is_own:
            yield instruction.argval
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            yield from _global_names(constant)


def _compile(path: str, statements: list[ast.stmt]) -> types.CodeType:
    code = compile(ast.Module(statements, []), path, "exec", flags=annotations_flag(), dont_inherit=True)
    assert isinstance(code, types.CodeType)
    return code


def _execute_statements(
    path: str, statements: list[ast.stmt], namespace: dict[str, Any], scope: dict[str, Any]
) -> None:
    try:
        code = _compile(path, statements)
        with running():
            exec(code, namespace, scope)
    except Exception as error:
        raise DriftError(f"cannot be lifted: {path}: {type(error).__name__}: {error}") from error
