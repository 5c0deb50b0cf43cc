"""Fixes that a release of SGLang can take back, for its own tests of regressions: `--mutant PR26972` plants one.

The release's table of them is read as it lies there, and nothing of it is run: by number of the pull request a text in
YAML, of functions and of lines in them that are replaced, or get others before or behind them. SGLang changes those
functions when its scheduler starts, where SGLANG_DEBUG_REVERT_PR says so; here their source is changed on its way in.
"""

from __future__ import annotations

import ast
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import yaml

from specsim.engines.packages import open_source
from specsim.engines.sglang.where import FIXES
from specsim.errors import UsageError, no_such

if TYPE_CHECKING:
    from specsim.engines.target import Checkout, Release
    from specsim.lifting.cache import Cache
    from specsim.lifting.source import SourceTree
    from specsim.world.packages import Edit


def reverted(target: Release | Checkout, cache: Cache, number: int) -> Edit:
    """Takes back the fix of a pull request. UsageError where the target's table has it not, or is of other lines."""
    source = open_source(target, cache)
    texts = _texts(source.read(FIXES)) if source.exists(FIXES) else {}
    if not texts:
        raise UsageError(f"{target.text} has no table of fixes that it can take back", "name sglang==0.5.18 or newer")
    if number not in texts:
        raise no_such("fix that it can take back", f"PR{number}", [f"PR{one}" for one in texts], lists_all=True)
    by_module: dict[str, list[tuple[str, Sequence[dict[str, str]]]]] = {}
    for patch in yaml.safe_load(texts[number])["patches"]:
        module, function = _place(source, patch["target"])
        by_module.setdefault(module, []).append((function, patch["edits"]))

    def edit(module: str, text: str) -> str:
        for function, edits in by_module.get(module, ()):
            text = _edited(text, function, edits, f"PR{number} of {target.text}")
        return text

    for module in by_module:
        edit(module, source.read(f"{module.partition('.')[2].replace('.', '/')}.py"))
    return edit


def _texts(source: str) -> dict[int, str]:
    """The YAML of each pull request: the values of the table are names of strings."""
    assigned: dict[str, Any] = {}
    for node in ast.parse(source).body:
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if isinstance(target, ast.Name):
            assigned[target.id] = getattr(node, "value", None)
    found: dict[int, str] = {}
    for table in assigned.values():
        for key, value in zip(table.keys, table.values, strict=True) if isinstance(table, ast.Dict) else ():
            text = assigned.get(getattr(value, "id", ""))
            if isinstance(key, ast.Constant) and type(key.value) is int and isinstance(text, ast.Constant):
                found[key.value] = str(text.value)
    return found


def _place(source: SourceTree, dotted: str) -> tuple[str, str]:
    """The module and the function of a dotted name."""
    parts = dotted.split(".")
    for count in range(len(parts) - 1, 0, -1):
        if source.exists(f"{'/'.join(parts[1:count])}.py"):
            return ".".join(parts[:count]), ".".join(parts[count:])
    raise UsageError(f"{source.label} has no module of {dotted}", "its table is of another release")


def _edited(text: str, function: str, edits: Sequence[dict[str, str]], what: str) -> str:
    """A module's source with the lines of a function changed, each edit on what those before it left."""
    lines = text.split("\n")
    first, last = _lines(text, function, what)
    body = lines[first:last]
    for edit in edits:
        wanted = [line.strip() for line in edit["match"].strip().split("\n")]
        places = [at for at in range(len(body)) if [line.strip() for line in body[at : at + len(wanted)]] == wanted]
        if len(places) != 1:
            raise UsageError(
                f"{what} cannot be taken back: the lines that its table names are in {function} {len(places)} times",
                "SGLang itself cannot take it back either; name another release",
            )
        at = places[0]
        indent = body[at][: len(body[at]) - len(body[at].lstrip())]
        there = body[at : at + len(wanted)]
        before, behind, instead = (_block(edit.get(name, ""), indent) for name in ("prepend", "append", "replacement"))
        body[at : at + len(wanted)] = [*before, *there, *behind] if before or behind else instead
    return "\n".join([*lines[:first], *body, *lines[last:]])


def _lines(text: str, function: str, what: str) -> tuple[int, int]:
    """The lines of a function, as a slice."""
    body: Sequence[ast.AST] = ast.parse(text).body
    node: ast.AST | None = None
    for name in function.split("."):
        node = next((one for one in body if getattr(one, "name", "") == name), None)
        body = getattr(node, "body", ())
    if not isinstance(node, ast.FunctionDef):
        raise UsageError(f"{what} cannot be taken back: there is no {function}", "name another release")
    return node.lineno - 1, node.end_lineno or node.lineno


def _block(text: str, indent: str) -> list[str]:
    """Lines moved to an indentation, which is that of the first of them."""
    lines = text.strip("\n").split("\n") if text.strip() else []
    own = len(lines[0]) - len(lines[0].lstrip()) if lines else 0
    return [indent + line[own:] if line.strip() else "" for line in lines]
