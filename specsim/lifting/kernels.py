"""The Triton kernels of a source, read and not run."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator
from typing import NamedTuple

from specsim.lifting.lift import code_names, parse_module
from specsim.lifting.source import SourceTree


class KernelPlace(NamedTuple):
    """A kernel: its file below the package, its name, the line of its `def`, and the first of its decorators' lines,
    which is the one that its code object has.
    """

    path: str
    name: str
    line: int
    first_line: int


def kernel_places(source: SourceTree, under: Collection[str]) -> list[KernelPlace]:
    """The kernels in files and below folders, in the order of the source. What only kernels of its own file call is a
    part of those, and not one itself.
    """
    return [place for path in files_under(source, under) for place in _of_file(source, path)]


def files_under(source: SourceTree, under: Collection[str]) -> list[str]:
    """The Python files among files and below folders, each once."""
    files = [path for given in under for path in ([given] if source.exists(given) else source.paths(given))]
    return [path for path in dict.fromkeys(files) if path.endswith(".py")]


def _of_file(source: SourceTree, path: str) -> Iterator[KernelPlace]:
    if "jit" not in source.read(path):
        return
    nodes = ast.walk(parse_module(source, path).tree)
    jitted = [node for node in nodes if isinstance(node, ast.FunctionDef) and _is_jitted(node)]
    names = {node.name for node in jitted}
    called = {name for node in jitted for name in code_names(node) & names - {node.name}}
    for node in jitted:
        if node.name not in called:
            first = min(decorator.lineno for decorator in node.decorator_list)
            yield KernelPlace(path, node.name, node.lineno, first)


def _is_jitted(function: ast.FunctionDef) -> bool:
    """Whether `triton.jit` decorates it, with arguments or without."""
    decorators = (d.func if isinstance(d, ast.Call) else d for d in function.decorator_list)
    return any(ast.unparse(decorator) == "triton.jit" for decorator in decorators)
