"""The lines of a target that a finding points to, read where the target lies. They go into pages that are made on the
machine that has the target, and nowhere else.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim.errors import UsageError

if TYPE_CHECKING:
    from specsim.lifting.cache import Cache

LINES_MAX = 40
BEFORE = 14  # lines that are shown before the one of a function that is too long


def source_of(target: str, mutant: str, where: str, cache: Cache) -> dict[str, Any] | None:
    """{where, first, line, lines, note} of FILE:LINE, or of a mutant of the model; None when there is none to show."""
    if mutant:  # of a release's source a line is not shown that is not its own
        return _of_mutant(mutant) if target == "model" else None
    found = re.fullmatch(r"(.+):(\d+)", where)
    if found is None:
        return None
    path, line = found[1], int(found[2])
    try:
        text = _read(target, path, cache)
    except (UsageError, OSError, ValueError):
        return None
    if text is None:
        return None
    return _shown(where, text, line, "Read from the target on this machine when the page was made.")


def _of_mutant(mutant_id: str) -> dict[str, Any] | None:
    from specsim.selfcheck.mutation import MODULE, changed_source, find

    mutant = find(mutant_id)
    path = f"{MODULE.replace('.', '/')}.py"
    text = (Path(__file__).parents[2] / path).read_text(encoding="utf-8")
    changed = changed_source(mutant, text).splitlines()
    line = next((i for i, (was, now) in enumerate(zip(text.splitlines(), changed, strict=True), 1) if was != now), 0)
    note = f"Mutant {mutant.id}: {mutant.title}. Right is: {mutant.line}"
    return _shown(f"{path}:{line}", "\n".join(changed), line, note)


def _read(target: str, path: str, cache: Cache) -> str | None:
    from specsim.engines.packages import open_source
    from specsim.engines.registry import ENGINES
    from specsim.engines.target import Checkout, PythonTarget, Release, parse_target

    parsed = parse_target(target)
    if isinstance(parsed, Release | Checkout):
        is_python = ENGINES[parsed.engine].source is not None
        return open_source(parsed, cache).read(path) if is_python else None
    if isinstance(parsed, PythonTarget) and not Path(path).is_absolute():
        return Path(path).read_text(encoding="utf-8") if Path(path).is_file() else None
    return None


def _shown(where: str, text: str, line: int, note: str) -> dict[str, Any] | None:
    lines = text.splitlines()
    if not 0 < line <= len(lines):
        return None
    first, last = _function(text, line) or (max(1, line - BEFORE), line + BEFORE)
    if last - first >= LINES_MAX:
        first = max(first, line - BEFORE)
        last = min(last, first + LINES_MAX - 1)
    shown = [each.expandtabs(4) for each in lines[first - 1 : last]]
    indent = min((len(each) - len(each.lstrip()) for each in shown if each.strip()), default=0)
    return {
        "where": where,
        "first": first,
        "line": line,
        "lines": [each[indent:] for each in shown],
        "note": note,
    }


def _function(text: str, line: int) -> tuple[int, int] | None:
    """First and last line of the innermost function around a line, its decorators included."""
    try:
        tree = ast.parse(text)
    except (SyntaxError, ValueError):
        return None
    around = [
        (min([node.lineno, *(each.lineno for each in node.decorator_list)]), node.end_lineno or node.lineno)
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
    ]
    return max((span for span in around if span[0] <= line <= span[1]), default=None)
