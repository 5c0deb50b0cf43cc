"""The repository's Python files: paths, module names, syntax trees, imports."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


@cache
def sources() -> dict[str, Path]:
    """Every Python file by its path in the repository; what a symlink leads to only under its real name."""
    folders = ("specsim", "reference", "kernels", "property_tests", "fixtures", "bench")
    found: dict[str, Path] = {}
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            if not any(parent.is_symlink() for parent in path.parents if parent.is_relative_to(ROOT)):
                found[path.relative_to(ROOT).as_posix()] = path
    return found


@cache
def product() -> dict[str, str]:
    """The modules of the product by import name: paths."""
    names: dict[str, str] = {}
    for path in sources():
        if path.startswith(("specsim/", "reference/", "kernels/")):
            dotted = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
            names[dotted if dotted.split(".")[0] == "specsim" else f"specsim.{dotted}"] = path
    return names


@cache
def tree_of(path: str) -> ast.Module:
    return ast.parse(sources()[path].read_text(encoding="utf-8"), path)


def imports_of(path: str, module: str = "") -> set[str]:
    """What a file imports, absolute: for `from a import b` both `a` and `a.b`, which may be a module."""
    found: set[str] = set()
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".") + (["__init__"] if path.endswith("/__init__.py") else [])
                base = ".".join([*parts[: -node.level], *([base] if base else [])])
            found |= {base, *(f"{base}.{alias.name}" for alias in node.names)}
    return found
