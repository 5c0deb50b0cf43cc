"""Run as a program: what schedules of a release show that tells users something else. Prints the signatures as JSON.

python -m property_tests.support.told_answers VERSION SCHEDULES MISTAKE
"""

from __future__ import annotations

import json
import sys

from specsim.engines.importable import folder_of
from specsim.engines.sglang.scheduler.modules import PACKAGE
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.engines.sglang.scheduler.target import SglangScheduler
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler.answers import violations_of
from specsim.world.forks import Starters, wanted
from specsim.world.release import ReleaseFiles

REASON = "req.finished_reason.to_json() if req.finished_reason else None"
MISTAKES = {
    "another reason": ('"type": "stop",  #', '"type": "length",  #'),
    "another match": ('"matched": self.matched,', '"matched": 0,'),
    "ends twice": ("req.finished_output = True", "req.finished_output = False"),
    "never ends": (REASON, "None"),
    "ends before its tokens": (
        REASON,
        'req.finished_reason.to_json() if req.finished_reason else {"type": "length", "length": 1} '
        "if len(req.output_ids) > 1 else None",
    ),
}
"""By name a text of a release, and what stands in its place, once in a module."""
MODULES = (
    "managers.schedule_batch",
    "managers.scheduler_output_processor_mixin",
    "scheduler_components.output_streamer",
)
SECONDS = 60.0


def main(version: str, count: str, mistake: str) -> None:
    was, now = MISTAKES[mistake]

    def edited(name: str, source: str) -> str:
        return source.replace(was, now, 1) if name.endswith(MODULES) else source

    target = Release("sglang", version)
    starters = Starters(SglangScheduler(ReleaseFiles(folder_of(target, open_cache(None)), PACKAGE), edited), CHECKS)
    try:
        outcomes = [starters.run(wanted(SETUPS, 0, index, SECONDS)) for index in range(int(count))]
    finally:
        starters.close()
    print(json.dumps(sorted({v.signature for outcome in outcomes for v in violations_of(outcome)})))


if __name__ == "__main__":
    main(*sys.argv[1:])
