"""Run as a program: write property_tests/PROMISES.md, what the tests promise, from their names and docstrings.

python -m property_tests.support.promises
"""

from __future__ import annotations

import ast
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
PAGE = TESTS / "PROMISES.md"
COLUMNS = 100
FOLDERS = {
    "reference": "the operations in PyTorch are what a decode step needs, and sampling is lossless",
    "contracts": "the contract of each operation holds, and its cases reach the corners",
    "kernels": "the operations in Triton give the reference's results",
    "interpreter": "the interpreter of Triton kernels detects what is wrong with one",
    "choices": "every choice is drawn, replayed and shrunk alike",
    "rules": "every rule fires on what breaks it, and on nothing else",
    "tiers": "each tier checks a target within its limits, whatever the target does",
    "releases": "released engines are lifted as they are, and their known defects are found",
    "fuzz": "a campaign loses nothing and counts once",
    "selfcheck": "bugs that are put in are found",
    "scheduler": "a release's own scheduler runs on a CPU, and its fakes are what it takes them for",
    "vdevice": "the virtual device orders what CUDA orders, and reports what CUDA does not",
    "cli": "every command ends with one verdict, one exit code and files that are whole",
    "gate": "the gate of a pull request passes a clean tree, and neither a mistake nor what cannot be run any more",
    "gpu": "the kernels on a GPU are those of the interpreter",
    "repository": "the documentation is true, and the modules keep their layers",
}


def page() -> str:
    """The page, Markdown."""
    lines = [
        "# Promises",
        "",
        "For whoever changes something and wants to know what must stay: what the tests promise, a folder",
        "after the other. This page is written by `make pages`, from names and docstrings.",
        "",
        "| folder | promise | tests |",
        "| -- | -- | -- |",
    ]
    modules = {folder: list(_modules(TESTS / folder)) for folder in FOLDERS}
    for folder, of_it in modules.items():
        count = sum(len(tests) for _path, _promise, tests in of_it)
        lines.append(f"| [{folder}](#{folder}) | {FOLDERS[folder]} | {count} |")
    for folder, of_it in modules.items():
        lines += ["", f"## {folder}"]
        for path, promise, tests in of_it:
            lines += ["", *_wrapped(f"[{path.name}]({folder}/{path.name}): {promise}"), ""]
            lines += [line for each in tests for line in _wrapped(f"- {each}", "  ")]
    return "\n".join(lines) + "\n"


def _wrapped(text: str, indent: str = "") -> list[str]:
    return textwrap.wrap(text, COLUMNS, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def folders_without_a_promise() -> list[str]:
    """Folders that hold tests and are not in `FOLDERS`."""
    return sorted({path.parent.name for path in TESTS.rglob("test_*.py")} - set(FOLDERS))


def _modules(folder: Path) -> Iterator[tuple[Path, str, list[str]]]:
    """Each test module with the first paragraph of its docstring and its tests in words."""
    for path in sorted(folder.glob("test_*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        paragraph = (ast.get_docstring(tree) or "").split("\n\n")[0]
        tests = [
            node.name.removeprefix("test_").replace("_", " ")
            for node in tree.body
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
        ]
        yield path, re.sub(r"\s+", " ", paragraph), tests


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
