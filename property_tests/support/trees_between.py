"""Run as a program: how many trees between two releases the scheduler tier starts on.

    python -m property_tests.support.trees_between OUT [--jobs 2]

A tree is a release in which one file that its scheduler imports is already that of the next release, as commits between
the two have it: what the file imports is there, and so is what is imported of it. Each line of the file OUT is a tree
on which schedules were to run, one of each setup. A line that is there is not made again. Then the sums.
"""

from __future__ import annotations

import argparse
import ast
import functools
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from itertools import cycle, islice, pairwise
from pathlib import Path

from property_tests.support.kept_rows import Row, kept_rows
from property_tests.support.known_releases import RELEASES
from property_tests.support.planted_findings import OLD
from specsim.engines.importable import folder_of
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.world.scheduler import rows_of

TREES = 20
FOLDERS = ("managers", "mem_cache", "speculative", "sampling", "session", "model_executor")
PACKAGE = "sglang"
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)


@functools.cache
def root_of(version: str) -> Path:
    return folder_of(Release("sglang", version), open_cache())


def module_of(file: str) -> str:
    """Of a file below the package."""
    return f"{PACKAGE}.{file.removesuffix('.py').removesuffix('/__init__').replace('/', '.')}"


@functools.cache
def parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@functools.cache
def imported(path: Path, *, at_once: bool = False) -> tuple[tuple[str, str], ...]:
    """(module of the package, name) of each `from ... import` of a file, or of those outside its functions."""
    return tuple(
        (str(node.module), alias.name)
        for node in (outside(path) if at_once else ast.walk(parsed(path)))
        if isinstance(node, ast.ImportFrom) and not node.level and (node.module or "").startswith(f"{PACKAGE}.")
        for alias in node.names
    )


@functools.cache
def outside(path: Path) -> tuple[ast.AST, ...]:
    """The nodes of a module outside its functions and classes, these included."""
    found: list[ast.AST] = []
    todo: list[ast.AST] = list(parsed(path).body)
    while todo:
        found.append(node := todo.pop())
        if not isinstance(node, DEFINITIONS):
            todo += ast.iter_child_nodes(node)
    return tuple(found)


@functools.cache
def names_of(path: Path) -> set[str]:
    """What a module binds outside its functions and classes."""
    nodes = outside(path)
    found = {node.name for node in nodes if isinstance(node, DEFINITIONS)}
    found |= {node.id for node in nodes if isinstance(node, ast.Name)}
    aliases = [alias for node in nodes if isinstance(node, ast.Import | ast.ImportFrom) for alias in node.names]
    return found | {alias.asname or alias.name.partition(".")[0] for alias in aliases}


def has(root: Path, module: str, name: str) -> bool:
    place = root.joinpath(*module.split("."))
    if (place / f"{name}.py").exists() or (place / name).is_dir():
        return True
    files = (place.with_suffix(".py"), place / "__init__.py")
    return any(file.exists() and (name == "*" or {name, "__getattr__"} & names_of(file)) for file in files)


def fits(older: str, newer: str, file: str) -> bool:
    """Whether the older release has what the newer one's file imports, and the file what the release imports of it."""
    root, replacement = root_of(older), root_of(newer) / PACKAGE / file
    if not all(has(root, *one) for one in imported(replacement)):
        return False
    names, module = names_of(replacement), module_of(file)
    others = [path for folder in FOLDERS for path in (root / PACKAGE / "srt" / folder).rglob("*.py")]
    asked = {name for path in others for of, name in imported(path) if of == module}
    return asked <= names


def reached(root: Path) -> set[str]:
    """Files below the package that the import of the scheduler imports, in these folders."""
    found: set[str] = set()
    todo = [f"{PACKAGE}.srt.managers.scheduler"]
    while todo:
        place = root.joinpath(*todo.pop().split("."))
        for path in (place.with_suffix(".py"), place / "__init__.py"):
            file = str(path.relative_to(root / PACKAGE))
            if file not in found and path.exists():
                found.add(file)
                todo += [one for module, name in imported(path, at_once=True) for one in (module, f"{module}.{name}")]
    return {file for file in found if {*FOLDERS} & {*file.split("/")[1:-1]}}


def changed(older: str, newer: str) -> list[str]:
    """Files of both, below the package, by how many lines are not the same, most at the end."""
    found = []
    for file in sorted(reached(root_of(older))):
        before, after = (root_of(version) / PACKAGE / file for version in (older, newer))
        if after.exists() and (lines := len({*lines_of(before)} ^ {*lines_of(after)})):
            found.append((lines, file))
    return [file for _lines, file in sorted(found)]


def lines_of(path: Path) -> list[str]:
    return path.read_text(encoding="utf-8").splitlines()


def trees() -> list[tuple[str, str, str]]:
    """(older release, newer one, the file that is of the newer one), each pair of releases by turns. Of the files that
    fit those come first that changed most.
    """
    versions = list(RELEASES)
    left = {pair: changed(*pair) for pair in pairwise(versions[versions.index(OLD) :])}

    def drawn() -> Iterator[tuple[str, str, str]]:
        for pair in cycle(left):
            while left[pair]:
                file = left[pair].pop()
                if fits(*pair, file):
                    yield (*pair, file)
                    break

    return list(islice(drawn(), TREES))


def row(older: str, newer: str, file: str) -> Row:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        tree, out = folder / "tree", folder / "verdict.json"
        shutil.copytree(root_of(older) / PACKAGE, tree / PACKAGE)
        shutil.copyfile(root_of(newer) / PACKAGE / file, tree / PACKAGE / file)
        command = [sys.executable, "-m", "specsim", "check", f"sglang@{tree}", "--only", "scheduler", "--no-shrink"]
        command += ["--schedules", str(len(rows_of(SETUPS, "fake"))), "--json", str(out), "--out", str(folder / "out")]
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        verdict = json.loads(out.read_text(encoding="utf-8")) if out.exists() else {}
    suites = verdict.get("suites", [])
    return {
        "older": older,
        "newer": newer,
        "file": file,
        "schedules": sum(suite["schedules"] for suite in suites),
        "exit": ended.returncode,
        "findings": [finding["signature"] for finding in verdict.get("findings", ())],
        "why": sorted({f"{one['what']}: {one['why']}" for suite in suites for one in suite["not_run"]}),
        "said": "" if verdict else ended.stderr[-300:],
    }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("out", type=Path)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    rows = kept_rows(asked.out, ("older", "newer", "file"), trees(), asked.jobs, lambda case: row(*case))
    print(f"{sum(bool(one['schedules']) for one in rows)} of {len(rows)} trees run schedules")


if __name__ == "__main__":
    main()
