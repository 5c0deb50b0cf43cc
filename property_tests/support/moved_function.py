"""A made-up release in which a function has moved, and what runs of it with one more line in the table of addresses.

`python -m property_tests.support.moved_function WHEEL OP,OP NAME FILE FUNCTION` adds FILE and FUNCTION to the places of
NAME, in a process that has not made the tables yet, and prints what runs of these operations.
"""

from __future__ import annotations

import json
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

from property_tests.support.known_releases import SGLANG
from specsim.engines.sglang import where
from specsim.engines.sglang.where import Place
from specsim.lifting.cache import open_cache
from specsim.lifting.lift import find_function, parse_module
from specsim.lifting.source import SourceTree, WheelSource


def moved(source: SourceTree, old: Place, new: Place) -> dict[str, str]:
    """Two files of a source: the one that a function has left, and the one that it has moved to, which is new."""
    module = parse_module(source, old[0])
    node = find_function(module, old[1])
    lines = module.text.splitlines(keepends=True)
    first = min([node.lineno, *(part.lineno for part in node.decorator_list)]) - 1
    text = textwrap.dedent("".join(lines[first : node.end_lineno])).replace(f"def {node.name}(", f"def {new[1]}(", 1)
    everything = f"from {source.package}.{old[0].removesuffix('.py').replace('/', '.')} import *\n\n\n"
    return {old[0]: "".join(lines[:first] + lines[node.end_lineno :]), new[0]: everything + text}


def made_up_wheel(folder: Path, source: SourceTree, version: str, files: dict[str, str]) -> Path:
    """A wheel of that version, with the Python files of a source and some of its own."""
    path = folder / f"sglang-{version}-py3-none-any.whl"
    texts = {name: source.read(name) for name in source.paths("") if name.endswith(".py")} | files
    with zipfile.ZipFile(path, "w") as wheel:
        for name, text in texts.items():
            wheel.writestr(f"sglang/{name}", text)
        wheel.writestr(f"sglang-{version}.dist-info/METADATA", f"Name: sglang\nVersion: {version}\n")
    return path


def main(wheel: str, ops: str, name: str, file: str, function: str) -> dict[str, Any]:
    where.PLACES = {**where.PLACES, name: ((file, function), *where.PLACES[name])}
    from specsim.contracts.registry import OPS
    from specsim.engines.sglang.provider import SglangProvider  # its tables look when they are made
    from specsim.tiers.ops.suite import SuiteLimits, check_subject

    source = WheelSource(Path(wheel), SGLANG)
    found = [SglangProvider(source, open_cache(), op).subjects() for op in ops.split(",")]
    subjects = [subject for of_op, _not_run in found for subject in of_op]
    results = [
        (subject, check_subject(OPS[subject.op], subject, seed=0, limits=SuiteLimits(5))) for subject in subjects
    ]
    return {
        "run": {f"ops:{subject.op}:{subject.name}": subject.where for subject, result in results if result.cases},
        "wrong": [subject.name for subject, result in results if result.counterexample],
    }


if __name__ == "__main__":
    print(json.dumps(main(*sys.argv[1:])))
