"""The simulator in Python and compiled, each in a process of its own (`specsim.bench.throughput`): the fixed workload,
the states of a scope, and the cost curve in requests and tokens. The larger points of the curve take minutes.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from specsim.bench.rows import BenchRow
from specsim.bench.throughput import CURVE, CURVE_FULL, REQUESTS, ROUNDS, SHAPES
from specsim.compiled.build import find_build
from specsim.compiled.finder import SWITCH
from specsim.lifting.cache import open_cache

NAME = "sim"
SCOPE = "three-requests"
STATES = 100_000


def rows(_device: str, rounds: int | None, full: bool = False) -> list[BenchRow]:
    """Time everything, with `full` the whole curve and a million states. A row has an entry for each unit: the ratio is
    to the simulator in Python, and above 1 is more.
    """

    def row(shape: dict[str, int | str], measure: str, *arguments: object) -> BenchRow:
        return BenchRow(NAME, shape, lambda: compared(shape, measure, *arguments))

    return [
        *(row({"requests": REQUESTS, **shape}, "schedules", shape, rounds or ROUNDS) for shape in SHAPES),
        row({"scope": SCOPE}, "states", SCOPE, 10 * STATES if full else STATES),
        *(
            row({"requests": requests, "tokens": tokens}, "point", requests, tokens)
            for requests, tokens in (CURVE_FULL if full else CURVE)
        ),
    ]


def compared(shape: dict[str, int | str], measure: str, *arguments: object) -> list[dict[str, Any]]:
    """Both simulators side by side, an entry for each unit that is measured."""
    question = json.dumps({"measure": measure, "arguments": arguments})
    plain = _asked(question, "0")
    why = None if find_build(open_cache()) else "nothing is compiled: run specsim dev compile"
    compiled = None if why else _asked(question, "1")
    entries = []
    for unit, median in plain.items():
        found = compiled[unit] if compiled else None
        peers = [
            {"name": "in Python", "timing": "cpu", "median": median, "ratio": 1.0, "not_run": None},
            {
                "name": "compiled",
                "timing": "cpu",
                "median": found,
                "ratio": found / median if found else None,
                "not_run": why,
            },
        ]
        entries.append({"name": NAME, "unit": unit, "shape": shape, "peers": peers})
    return entries


def _asked(question: str, switch: str) -> dict[str, float]:
    ended = subprocess.run(
        [sys.executable, "-m", "specsim.bench.throughput"],
        input=question,
        check=False,
        capture_output=True,
        text=True,
        env={**os.environ, SWITCH: switch},
    )
    if ended.returncode:
        raise RuntimeError(f"measuring {question} ended with {ended.returncode}:\n{ended.stderr}")
    answer: dict[str, float] = json.loads(ended.stdout)
    return answer
