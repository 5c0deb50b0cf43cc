"""Which compiled functions SGLang's speculation uses: those that it imports from packages of compiled code, and those
of its own CUDA sources, which it builds as they are needed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from specsim.engines.sgl_kernel import OPERATIONS
from specsim.lifting.kernels import KernelPlace, files_under
from specsim.lifting.lift import parse_module
from specsim.lifting.source import SourceTree

PACKAGES = ("sgl_kernel", "flashinfer")
BUILDER = "load_jit"
ON_CPUS = "_cpu"


def compiled_functions(source: SourceTree, under: tuple[str, ...]) -> list[tuple[KernelPlace, tuple[str, ...]]]:
    """Each function once, where it is first used, with the operations that its implementations are compared as. What
    runs on CPUs is left out.
    """
    found: dict[str, KernelPlace] = {}
    for path in files_under(source, under):
        for name, line in _used(parse_module(source, path).tree):
            if not name.endswith(ON_CPUS):
                found.setdefault(name, KernelPlace(path, name, line, line))
    return [(place, _operations(place.name)) for place in found.values()]


def _operations(name: str) -> tuple[str, ...]:
    return tuple(op for op, (function, _launch) in OPERATIONS.items() if function == name)


def _used(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in PACKAGES:
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) == BUILDER:
            yield from ((name, node.lineno) for name in _built(node))


def _built(call: ast.Call) -> list[str]:
    """The functions of CUDA that a build exports."""
    wrappers = next((keyword.value for keyword in call.keywords if keyword.arg == "cuda_wrappers"), None)
    pairs = wrappers.elts if isinstance(wrappers, ast.List) else []
    exported = [pair.elts[1] for pair in pairs if isinstance(pair, ast.Tuple)]
    return [ast.unparse(name).strip("f'\"").partition("<")[0] for name in exported]
