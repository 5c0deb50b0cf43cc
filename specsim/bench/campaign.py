"""What a campaign costs around the bare simulator, and what a second process brings: `specsim fuzz model` beside a loop
that makes the same runs, in turns, each in processes of its own.

CPU time is that of a whole process and of all that it started, from the first import on.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

from specsim.bench.rows import BenchRow
from specsim.compiled.build import find_build
from specsim.lifting.cache import open_cache

NAME = "campaign"
ROUNDS = 3
SECONDS, SECONDS_FULL = 20, 100  # of each part
_SEED = "7"
_RUNS = ["--only", "accounting", "--family", "any"]


class CampaignShare(NamedTuple):
    """What one process and its children did: events of schedules, seconds, and CPU seconds of all of them."""

    events: int
    seconds: float
    cpu_seconds: float

    @property
    def cpu_us(self) -> float:
        """CPU time of an event, in microseconds."""
        return 1e6 * self.cpu_seconds / self.events

    @property
    def rate(self) -> float:
        """Events a second."""
        return self.events / self.seconds


def rows(_device: str, rounds: int | None, full: bool = False) -> list[BenchRow]:
    """One row, since all of it is compared."""
    return [BenchRow(NAME, {"seconds": SECONDS_FULL if full else SECONDS}, lambda: entries(rounds, full=full))]


def entries(rounds: int | None, *, full: bool = False) -> list[dict[str, Any]]:
    """Run everything `rounds` times. Returns the `benchmarks` entries of the result format: CPU time of an event, the
    ratio to the bare loop; and events a second, the ratio to one job, above 1 is more.
    """
    seconds = SECONDS_FULL if full else SECONDS
    parts: dict[str, list[CampaignShare]] = {"bare loop": [], "1 job": [], "2 jobs": []}
    for _ in range(rounds or ROUNDS):
        parts["bare loop"].append(bare_loop(seconds))
        for jobs, name in ((1, "1 job"), (2, "2 jobs")):
            if jobs <= (os.cpu_count() or 1):
                parts[name].append(campaign(jobs, seconds))
    simulator = "compiled" if find_build(open_cache()) else "in Python"
    shape: dict[str, int | str] = {"simulator": simulator, "seconds": seconds}
    return [
        entry("CPU us an event", shape, "cpu", {"bare loop": parts["bare loop"], "campaign": parts["1 job"]}, "cpu_us"),
        entry("events/s", shape, "wall", {name: parts[name] for name in ("1 job", "2 jobs")}, "rate"),
    ]


def entry(
    unit: str, shape: dict[str, int | str], timing: str, parts: dict[str, list[CampaignShare]], measure: str
) -> dict[str, Any]:
    """One entry of the result format; the ratio is to the first peer."""
    medians = {name: median(getattr(part, measure) for part in of) if of else None for name, of in parts.items()}
    first = next(iter(medians.values()))
    peers = [
        {
            "name": name,
            "timing": timing,
            "median": value,
            "ratio": value / first if value and first else None,
            "not_run": None if value else "there are fewer cores than jobs",
            "parts": [getattr(part, measure) for part in parts[name]],
        }
        for name, value in medians.items()
    ]
    return {"name": NAME, "unit": unit, "shape": shape, "peers": peers}


def bare_loop(seconds: float) -> CampaignShare:
    """The simulator alone."""
    return _measured(["-m", "specsim.fuzz.bare_loop", _SEED, str(seconds)], None)


def campaign(jobs: int, seconds: float) -> CampaignShare:
    """A campaign, from its command to its end."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "told.json"
        places = ["--store", f"{folder}/c.db", "--out", f"{folder}/out", "--json", str(told)]
        command = ["-m", "specsim", "fuzz", "model", *_RUNS, "--jobs", str(jobs), "--seed", _SEED]
        return _measured([*command, "--budget-seconds", str(seconds), *places], told)


def _measured(arguments: list[str], told: Path | None) -> CampaignShare:
    """Run specsim in a process of its own that says how many events it made: in the file `told`, or as its output."""
    started = time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen([sys.executable, *arguments], stdout=output, stderr=subprocess.STDOUT)
        try:
            _, status, usage = os.wait4(process.pid, 0)
        except BaseException:  # the budget is over, or an interrupt
            process.kill()
            raise
        process.returncode = os.waitstatus_to_exitcode(status)
        seconds = time.monotonic() - started
        output.seek(0)
        text = output.read().decode(errors="replace")
    if process.returncode:
        raise RuntimeError(f"{' '.join(arguments)} ended with {process.returncode}:\n{text}")
    events = json.loads(told.read_text(encoding="utf-8") if told else text)["events"]
    return CampaignShare(events, seconds, usage.ru_utime + usage.ru_stime)
