"""Run as a program: what schedules of a release's scheduler show, as JSON, in a process of its own.

    python -m property_tests.support.release_schedules TARGET COUNT fake|release [alone] [REPLAY_FILE ...]

The first COUNT schedules of seed 0 with that worker, and those of the replay files; with `alone` each in a process of
its own, whatever the target. The hash seed is this process'.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any, cast

from specsim import replay_file
from specsim.engines.load import load_scheduler
from specsim.engines.registry import MAIN
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.engines.target import parse_target
from specsim.isolation.environment import of_target
from specsim.lifting.cache import open_cache
from specsim.replay_file import SchedulerReplay
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler.answers import again, violations_of
from specsim.verdict import NotRun
from specsim.world.forks import NotStarted, Ran, Starters, WantedSchedule, wanted
from specsim.world.scheduler import SchedulerTarget, rows_of

SCHEDULES = 3 * len(rows_of(SETUPS, "fake"))  # of a release that its tests run: three of each setup
SECONDS = 60.0
ALONE = "alone"


@functools.cache
def shown_by(
    version: str,
    count: int,
    hash_seed: str,
    files: tuple[Path, ...] = (),
    engine: str = MAIN,
    *,
    alone: bool = False,
    worker: str = "fake",
) -> dict[str, Any]:
    """{"schedules": [...], "files": {NAME: ...}}, each with its `digest` and the `signatures` that it shows."""
    command = [
        sys.executable,
        "-m",
        __name__,
        f"{engine}=={version}",
        str(count),
        worker,
        *[ALONE] * alone,
        *map(str, files),
    ]
    environment = of_target(hash_seed=hash_seed)
    ended = subprocess.run(command, env=environment, check=False, capture_output=True, text=True, timeout=1200)
    assert ended.returncode == 0, ended.stderr[-3000:]
    answer: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return answer


def signatures_of(schedules: list[dict[str, Any]]) -> list[str]:
    """What any of these schedules shows."""
    return sorted({signature for schedule in schedules for signature in schedule["signatures"]})


class _Alone:
    """A target of whose schedules each has a fork of its own."""

    starts_anew = False

    def __init__(self, target: SchedulerTarget) -> None:
        self._target = target

    def __getattr__(self, name: str) -> Any:
        return getattr(self._target, name)


def main(text: str, count: str, worker: str, *files: str) -> None:
    target = load_scheduler(parse_target(text), open_cache(None))
    assert not isinstance(target, NotRun), target
    if ALONE in files:
        target = cast(SchedulerTarget, _Alone(target))
    starters = Starters(target, CHECKS)

    def run(schedule: WantedSchedule) -> dict[str, Any]:
        outcome = starters.run(schedule)
        if isinstance(outcome, NotStarted):  # a setup that the release refuses
            return {"digest": outcome.why, "signatures": []}
        assert isinstance(outcome, Ran), outcome
        found = {violation.signature for violation in violations_of(outcome)}
        return {"digest": outcome.record.digest, "signatures": sorted(found)}

    try:
        loaded = {Path(file).stem: replay_file.load(Path(file)) for file in files if file != ALONE}
        stored = {name: one for name, one in loaded.items() if isinstance(one, SchedulerReplay)}
        answer = {
            "schedules": [run(wanted(target.setups, 0, index, SECONDS, worker)) for index in range(int(count))],
            "files": {
                name: run(again(one, SECONDS)) for name, one in stored.items() if isinstance(one, SchedulerReplay)
            },
        }
    finally:
        starters.close()
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
