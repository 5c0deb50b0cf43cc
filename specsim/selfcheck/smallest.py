"""The child that finds a mutant and shrinks what it found: `python -m specsim.selfcheck.smallest`, its question as JSON
on standard input. Prints the smallest of the shrunk schedules as JSON, null when nothing was found.
"""

from __future__ import annotations

import json
import math
import sys
import time
from dataclasses import asdict
from typing import Any

from specsim.errors import UsageError
from specsim.selfcheck.hunt import Smallest
from specsim.selfcheck.mutation import apply, find


def _smallest(schedules: int) -> Smallest | None:
    """Of the changed model of this process: the fewest requests, then the fewest events."""
    # Imported late: the mutant is applied before the modules of the simulator are loaded.
    from specsim.engine.accounting_target import ModelTarget
    from specsim.tiers.accounting import schedules as suite

    run_schedule = suite.run_schedule

    def unless_it_raises(*arguments: Any, **options: Any) -> Any:
        try:
            return run_schedule(*arguments, **options)
        except Exception:  # a changed model may raise anything: such a schedule is none
            return None

    suite.run_schedule = unless_it_raises
    start = time.process_time()
    result = suite.simulate(
        ModelTarget(), seed=0, schedules=schedules, deadline=math.inf, on_schedule=lambda _index: None, ordered=False
    )
    sizes = []
    for finding in result.findings:
        log = finding.schedule.run.log
        admitted = next((event.number for event in log if event.event == "admit"), 0)
        sizes.append((len(finding.schedule.scenario.workload.turns), len(log) - admitted, finding.signature))
    return Smallest(*min(sizes), time.process_time() - start) if sizes else None


def main() -> int:
    question = json.load(sys.stdin)
    try:
        apply(find(question["mutant"]))
    except UsageError as error:
        print(error, file=sys.stderr)
        return 2
    found = _smallest(question["schedules"])
    print(json.dumps(asdict(found) if found else None))
    return 0


if __name__ == "__main__":
    sys.exit(main())
