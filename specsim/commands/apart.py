"""A check of one target in a process of its own: a column of a matrix, or a baseline."""

from __future__ import annotations

import json
import math
import pickle
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from specsim import interrupts
from specsim.findings.matrix import Column
from specsim.isolation import environment, processes

if TYPE_CHECKING:
    from specsim.commands.asked import Asked

_TIME_BEYOND_THE_BUDGET = 4  # a check shrinks what it found after its budget, and starts children that import torch


def check_apart(asked: Asked, on_start: Callable[[subprocess.Popen[Any]], None] = lambda _process: None) -> Column:
    """Check a target in a process of its own, which gets an interrupt of this one. `on_start` is told of it."""
    started, budget = time.monotonic(), asked.budget_seconds
    limit = 120 + budget * _TIME_BEYOND_THE_BUDGET if budget < math.inf else None
    with tempfile.TemporaryDirectory() as folder:
        verdict = Path(folder) / "verdict.json"
        command = [sys.executable, "-m", "specsim.commands.alone", str(verdict)]
        pipe = subprocess.PIPE
        process = processes.start(command, environment.of_ours(), stdin=pipe, stderr=pipe)
        on_start(process)
        try:
            with interrupts.passed_on(process.pid):
                stderr = process.communicate(pickle.dumps(asked), timeout=limit)[1].decode(errors="replace")
        except subprocess.TimeoutExpired:
            stderr = f"its check does not end within {limit:g} s"
        finally:
            processes.end(process)
        data: dict[str, Any] = json.loads(verdict.read_text("utf-8")) if verdict.is_file() else {}
    why = "" if data else _reason(stderr, process.returncode)
    return Column(asked.target.text, data, why, process.returncode, time.monotonic() - started)


def _reason(stderr: str, code: int) -> str:
    """Why a check left no verdict, in one sentence."""
    lines = [line.strip() for line in stderr.strip().splitlines() if line.strip()]
    for line in lines:
        if line.startswith("specsim: "):
            return line.removeprefix("specsim: ").rstrip(".")
    ended = signal.Signals(-code).name if code < 0 else f"exit code {code}"
    return lines[-1] if lines else f"its check ended with {ended}"
