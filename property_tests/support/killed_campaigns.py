"""Kills short campaigns, `kill -9` at random moments, and then looks at what the store holds.

    python -m property_tests.support.killed_campaigns KILLS [SEED]

A campaign of small batches is run by two workers. Again and again its process is killed, and it goes on with
`--resume`. Each result is told in a file after it was stored. In the end

- the store is whole (`PRAGMA integrity_check`), and has every batch that was told, with its findings;
- no batch is counted twice: sums are those of the batches, whose numbers are each there once;
- batches have what they have when nobody kills anything: runs, events, findings;
- no process is left.

What it does not do: take the machine's power away.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = 4  # of a batch
ENGINE = """
from property_tests.support.own_engine import Engine

def third(requests):
    if requests == 3:
        raise LookupError("three")

engine = Engine(third)
"""
SIGNATURE = "scheduler:X1:run:LookupError"
# A campaign of small batches, which tells the number of each batch after it was stored.
PROGRAM = f"""
import sys
from specsim.tiers.registry import TIERS
TIERS["scheduler"].batch_count = {RUNS}
from specsim.fuzz import campaign
stored = campaign._take
def take(store, result, *rest):
    stored(store, result, *rest)
    with open("told", "a") as file:
        file.write(f"{{result.batch.number}}\\n")
campaign._take = take
from specsim.cli import main
main(sys.argv[1:])
"""
SEED = 5
FUZZ = ["fuzz", "killed:engine", "--only", "scheduler", "--jobs", "2", "--seed", str(SEED), "--store", "c.db"]
PAUSE_SECONDS = (0.0, 3.0)
ALONE = 2  # batches that are run once more
LEFT_SECONDS = 20.0


@dataclass(slots=True)
class Killed:
    """What became of a campaign. `wrong` says what was not as it should be, a sentence each."""

    kills: int = 0
    batches: int = 0
    runs: int = 0
    findings: int = 0
    seconds: float = 0.0
    wrong: list[str] = field(default_factory=list)


def main() -> None:
    kills = int(sys.argv[1])
    seed = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    with tempfile.TemporaryDirectory() as folder:
        killed = kill_again_and_again(Path(folder), kills, seed)
    print(json.dumps({name: getattr(killed, name) for name in Killed.__slots__}, indent=2))
    sys.exit(bool(killed.wrong))


def kill_again_and_again(folder: Path, kills: int, seed: int) -> Killed:
    """Kill a campaign in the folder so often, and look at its store."""
    draw = random.Random(seed)
    killed = Killed()
    started = time.monotonic()
    (folder / "killed.py").write_text(ENGINE)
    campaign = _start(folder)
    while killed.kills < kills:
        while not (family := list(_descendants(campaign.pid))):
            time.sleep(0.02)
        time.sleep(draw.uniform(*PAUSE_SECONDS))
        campaign.kill()
        campaign.wait()
        killed.kills += 1
        _require_gone(family, killed)
        campaign = _start(folder)
    _require_gone(_ended(campaign, folder), killed)
    _look(folder, killed)
    killed.seconds = round(time.monotonic() - started, 1)
    return killed


def _start(folder: Path) -> subprocess.Popen[bytes]:
    path = os.pathsep.join(dict.fromkeys(filter(None, [str(folder), str(ROOT), *sys.path])))
    resume = ["--resume", "--trust"] if (folder / "c.db").exists() else []
    with (folder / "output").open("ab") as output:
        return subprocess.Popen(
            [sys.executable, "-c", PROGRAM, *FUZZ, *resume],
            cwd=folder,
            stdout=output,
            stderr=output,
            env={**os.environ, "PYTHONPATH": path},
        )


def _ended(campaign: subprocess.Popen[bytes], folder: Path) -> list[int]:
    """End a campaign gently, after it has stored something more; what processes it had."""
    told = _told(folder)
    while len(_told(folder)) <= len(told) and campaign.poll() is None:
        time.sleep(0.1)
    family = list(_descendants(campaign.pid))
    campaign.send_signal(signal.SIGTERM)
    campaign.wait(120)
    return family


def _told(folder: Path) -> list[int]:
    file = folder / "told"
    return [int(line) for line in file.read_text().splitlines()] if file.exists() else []


def _descendants(pid: int) -> Iterator[int]:
    """The processes that a campaign has started, and that these have."""
    for child in _children(pid):
        yield child
        yield from _descendants(child)


def _children(pid: int) -> list[int]:
    found: list[int] = []
    try:
        for task in os.listdir(f"/proc/{pid}/task"):
            found += map(int, Path(f"/proc/{pid}/task/{task}/children").read_text().split())
    except OSError:  # it has ended
        pass
    return found


def _require_gone(family: list[int], killed: Killed) -> None:
    """Whether the processes of a campaign end after it."""
    until = time.monotonic() + LEFT_SECONDS
    while any(map(_lives, family)):
        if time.monotonic() > until:
            killed.wrong.append(f"{[pid for pid in family if _lives(pid)]} are left")
            return
        time.sleep(0.05)


def _lives(pid: int) -> bool:
    try:
        return "specsim" in Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return False


def _look(folder: Path, killed: Killed) -> None:
    """Hold the store against what was told, and against the same batches when nobody kills anything."""
    from specsim.fuzz.batches import batch_at, plan_from_json
    from specsim.fuzz.store import Store
    from specsim.fuzz.workers import run_batch

    with closing(sqlite3.connect(folder / "c.db")) as connection:
        whole = connection.execute("PRAGMA integrity_check").fetchone()[0]
        if whole != "ok":
            killed.wrong.append(f"integrity_check: {whole}")
    with Store.open(folder / "c.db") as store:
        rows = {row.number: row for row in store.batches()}
        plan = plan_from_json(store.meta()["plan"])
        missing = sorted(set(_told(folder)) - rows.keys())
        if missing:
            killed.wrong.append(f"batches {missing} were told and are not stored")
        whole_ones = [row for row in rows.values() if row.runs == RUNS]
        for row in whole_ones[:ALONE]:
            alone = run_batch(replace(batch_at(plan, 0, row.number), count=RUNS), folder / "cache", 20.0)
            if (row.runs, row.events) != (alone.runs, alone.events):
                killed.wrong.append(f"batch {row.number}: {row.runs} runs, {row.events} events, not {alone.events}")
        runs, events, _ = store.totals()
        if (runs, events) != (sum(row.runs for row in rows.values()), sum(row.events for row in rows.values())):
            killed.wrong.append("totals are not those of the batches")
        found = {finding.signature: finding.count for finding in store.findings()}
        if found.keys() != {SIGNATURE} or not store.replays(SIGNATURE, "killed:engine"):
            killed.wrong.append(f"findings are {found}, or there is no replay file")
        killed.batches, killed.runs, killed.findings = len(rows), runs, sum(found.values())


if __name__ == "__main__":
    main()
