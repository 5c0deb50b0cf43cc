"""What is compiled, and the copy of the sources that mypyc reads.

Dataclasses are rewritten in that copy, because of what mypyc does with them: without slots (its classes always have
them), with `__init__` spelled out (a generated one is interpreted), and hashable instead of frozen (a frozen one may
not assign in its `__init__`). Other classes may be derived from in Python, and get a `__copy__`, for they have no
`__dict__` to copy. Nothing else changes but the functions of IN_MACHINE_INTEGERS.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

from specsim.compiled.finder import package_sources

# The modules of these but for those of LEFT_OUT, and every module of the packages of the key that they import.
ROOTS = ("engine",)
LEFT_OUT = tuple(f"engine.rules.{name}" for name in ("coverage", "workers"))
# Protocols from which compiled classes derive, so that their methods are called without a lookup.
PLAIN_BASES = frozenset({"Accounting", "Observer"})


def modules(package: Path) -> dict[str, Path]:
    """The modules that are compiled, by import name. `package` is the folder of specsim."""
    by_name = {
        ".".join(["specsim", *path.relative_to(package).with_suffix("").parts]): path
        for path in package_sources(package)
        if path.stem != "__init__"
    }
    waiting = [name for name in by_name if _is_of(name, ROOTS) and not _is_of(name, LEFT_OUT)]
    found: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        if name not in found:
            found[name] = by_name[name]
            waiting += [other for other in _imports(by_name[name]) if other in by_name]
    return dict(sorted(found.items()))


def _is_of(name: str, packages: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"specsim.{package}.") for package in packages)


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


# Functions of 64-bit arithmetic that wraps, on machine integers: an `int` beyond 62 bits is an object to mypyc.
IN_MACHINE_INTEGERS = {
    "specsim.engine.model": {
        "extend": """
def extend(fingerprint: int, token: int) -> int:
    low: i64 = i64(fingerprint & 0xFFFFFFFF)
    high: i64 = i64(fingerprint >> 32 & 0xFFFFFFFF)
    z: i64 = (high << 32 | low) + i64(-0x61C8864680B583EB) * i64(token + 1)
    z = (z ^ (z >> 30 & 0x3FFFFFFFF)) * i64(-0x40A7B892E31B1A47)
    z = z ^ (z >> 31 & 0x1FFFFFFFF)
    return int(z >> 32 & 0xFFFFFFFF) << 32 | int(z & 0xFFFFFFFF)
"""
    }
}


def rewritten(source: str, module: str = "") -> str:
    """A module as mypyc reads it. Its lines move. ValueError for a dataclass of a kind that is not known here."""
    tree = ast.parse(source)
    lines = source.splitlines(keepends=True)
    inserted: list[tuple[int, str]] = []
    replaced = IN_MACHINE_INTEGERS.get(module, {})
    for node in tree.body:
        if isinstance(node, ast.FunctionDef) and node.name in replaced:
            lines[node.lineno - 1 : node.end_lineno] = [""] * ((node.end_lineno or 0) - node.lineno + 1)
            inserted.append((node.lineno - 1, replaced[node.name]))
        if not isinstance(node, ast.ClassDef):
            continue
        if _is_plain(node) or node.name in PLAIN_BASES:
            inserted.append((node.lineno - 1, "@mypyc_attr(allow_interpreted_subclasses=True)\n"))
        if _is_plain(node):
            inserted.append((node.end_lineno or 0, _copy(node.name, _attributes(node))))
        decorator = next((d for d in node.decorator_list if _named(d, "dataclass")), None)
        if decorator is not None:
            lines[decorator.lineno - 1] = _decorator(decorator)
            fields = [line for line in node.body if isinstance(line, ast.AnnAssign)]
            inserted.append((fields[-1].end_lineno or 0, _init(fields)))
    for at, text in sorted(inserted, reverse=True):
        lines.insert(at, text)
    future = next((n.lineno for n in tree.body if isinstance(n, ast.ImportFrom) and n.module == "__future__"), None)
    if inserted and future is not None:
        lines.insert(future, _PREAMBLE)
    return "".join(lines)


# mypyc reads its decorator and runs it not, so a build needs nothing of mypy's when it is imported.
_PREAMBLE = """
from typing import TYPE_CHECKING as _TYPE_CHECKING
if _TYPE_CHECKING:
    from mypy_extensions import i64, mypyc_attr
"""


def _named(node: ast.expr, name: str) -> bool:
    called = node.func if isinstance(node, ast.Call) else node
    return isinstance(called, ast.Name) and called.id == name


def _is_plain(node: ast.ClassDef) -> bool:
    """Whether the class is neither a dataclass nor derived from others than these protocols."""
    return not node.decorator_list and {ast.unparse(base) for base in node.bases} <= PLAIN_BASES


def _attributes(node: ast.ClassDef) -> list[str]:
    """What `__init__` assigns to `self`, in order."""
    init = next((line for line in node.body if isinstance(line, ast.FunctionDef) and line.name == "__init__"), None)
    stored = (
        [n for n in ast.walk(init) if isinstance(n, ast.Attribute) and isinstance(n.ctx, ast.Store)] if init else []
    )
    return list(dict.fromkeys(n.attr for n in stored if isinstance(n.value, ast.Name) and n.value.id == "self"))


def _copy(name: str, attributes: list[str]) -> str:
    """A `__copy__` for `specsim.engine.shallow_copy`."""
    body = "".join(f"        new.{attribute} = self.{attribute}\n" for attribute in attributes)
    return f"\n    def __copy__(self) -> {name}:\n        new = {name}.__new__({name})\n{body}        return new\n"


def _decorator(node: ast.expr) -> str:
    options = {k.arg: ast.unparse(k.value) for k in node.keywords} if isinstance(node, ast.Call) else {}
    unknown = options.keys() - {"slots", "frozen", "eq"}
    if unknown:
        raise ValueError(f"dataclass({', '.join(map(str, unknown))}) is not known to specsim.compiled.sources")
    kept = {"eq": options["eq"]} if "eq" in options else {}
    if options.get("frozen") == "True":
        kept["unsafe_hash"] = "True"
    return f"@dataclass({', '.join(f'{name}={value}' for name, value in kept.items())})\n"


def _init(fields: list[ast.AnnAssign]) -> str:
    """The `__init__` of a dataclass with these fields."""
    parameters, body = ["self"], []
    for field in fields:
        name, kind = ast.unparse(field.target), ast.unparse(field.annotation)
        default = field.value
        value = name
        if default is not None and _named(default, "field"):
            assert isinstance(default, ast.Call)
            options = {k.arg: ast.unparse(k.value) for k in default.keywords}
            if options.keys() != {"default_factory"}:
                raise ValueError(f"{ast.unparse(default)} is not known to specsim.compiled.sources")
            parameters.append(f"{name}: {kind} | None = None")
            value = f"{options['default_factory']}() if {name} is None else {name}"
        else:
            parameters.append(f"{name}: {kind}" + (f" = {ast.unparse(default)}" if default is not None else ""))
        body.append(f"        self.{name} = {value}\n")
    return f"\n    def __init__({', '.join(parameters)}) -> None:\n{''.join(body)}"
