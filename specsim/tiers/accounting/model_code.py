"""The code that gives a tape its meaning, and a hash of it: with another one a tape may stand for another schedule.

That is what the engine reads, transitively: how a scenario is drawn, what the engine, its memory and the model do,
which rules are checked, and how a tape is read. Who runs schedules, shrinks or orders them gives a tape no meaning.
Docstrings and lines that are comments do not count.
"""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import specsim

ROOTS = (
    "specsim.engine.loop",
    "specsim.engine.workload",
    "specsim.engine.accounting_target",
    "specsim.engine.rules.checked_engine",
)
FOLDERS = ("specsim.engine.", "specsim.engine.memory.", "specsim.engine.rules.")
ALONE = ("specsim.choices.chooser",)
"""Of the packages below the simulator, what reads a tape."""


@cache
def model_hash() -> str:
    """Hash of the code that gives a tape its meaning."""
    digest = hashlib.sha256()
    for module, code in sorted(_modules().items()):
        digest.update(f"{module}\n{code}\n".encode())
    return digest.hexdigest()[:16]


def modules() -> list[str]:
    """The modules that give a tape its meaning."""
    return sorted(_modules())


def _modules() -> dict[str, str]:
    """The code of each module that the roots lead to within the simulator."""
    found: dict[str, str] = {}
    waiting = [*ALONE, *ROOTS]
    while waiting:
        module = waiting.pop()
        if module not in found:
            text = _file(module).read_text(encoding="utf-8")
            tree = ast.parse(text)
            found[module] = code_of(text, tree)
            waiting += () if module in ALONE else _imports(tree)
    return found


def _file(module: str) -> Path:
    return Path(specsim.__file__).parent.joinpath(*module.split(".")[1:]).with_suffix(".py")


def _imports(tree: ast.Module) -> Iterator[str]:
    """The modules of the simulator that a module of it imports, in functions too."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.ImportFrom) or node.module is None:
            continue
        for name in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
            if name.startswith(FOLDERS) and _file(name).is_file():
                yield name


def code_of(text: str, tree: ast.Module) -> str:
    """Python's code without docstrings, empty lines and lines that are comments: the same from every Python."""
    lines = text.splitlines()
    strings: set[int] = set()  # rows inside a string, where a # begins no comment
    for node in ast.walk(tree):
        rows = range(getattr(node, "lineno", 1) - 1, getattr(node, "end_lineno", None) or 0)
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            for row in rows:
                lines[row] = ""
        elif isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            strings.update(rows[1:])
    kept = [line for row, line in enumerate(lines) if row in strings or not line.lstrip().startswith("#")]
    return "\n".join(line.rstrip() for line in kept if line.strip())
