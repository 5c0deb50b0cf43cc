"""The runs of a campaign without the campaign: one after the other in one loop, to compare with (`specsim bench
campaign`). Run as a module, this is a child process that prints JSON: {"runs", "events"}.
"""

from __future__ import annotations

import json
import sys
import time

from specsim.engine.accounting_target import ModelTarget
from specsim.fuzz.batch import runs_of
from specsim.fuzz.batches import RUNS_MAX
from specsim.fuzz.work import Batch


def main(campaign: int, seconds: float) -> None:
    """Make runs of the model for so many seconds."""
    until = time.monotonic() + seconds
    target = ModelTarget()
    batch = Batch(campaign, 0, 0, 0, sys.maxsize // RUNS_MAX, "model", "accounting", "any")
    runs = events = 0
    for _, schedule in runs_of(target, batch, {}, lambda _index: None):
        if schedule is not None:
            runs, events = runs + 1, events + len(schedule.run.log)
        if time.monotonic() > until:
            break
    print(json.dumps({"runs": runs, "events": events}))


if __name__ == "__main__":
    main(int(sys.argv[1]), float(sys.argv[2]))
