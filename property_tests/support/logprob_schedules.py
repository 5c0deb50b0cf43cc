"""Run as a program: what schedules with logprobs show on a release with a defect in it, as a JSON list of signatures.

    python -m property_tests.support.logprob_schedules VERSION COUNT MODULE FUNCTION EDIT NAME NTH

The first COUNT schedules of seed 0, each of which asks for logprobs.
"""

from __future__ import annotations

import json
import sys

from specsim.engines.sglang.scheduler.importable import folder_of
from specsim.engines.sglang.scheduler.planted import edit_of
from specsim.engines.sglang.scheduler.target import SglangScheduler
from specsim.engines.target import ReleaseTarget
from specsim.lifting.cache import open_cache
from specsim.lifting.planted import Planted
from specsim.tiers.scheduler import workload
from specsim.tiers.scheduler.answers import violations_of
from specsim.tiers.scheduler.forks import Starters, wanted

SECONDS = 60.0


def main(version: str, count: str, module: str, function: str, edit: str, name: str, nth: str) -> None:
    workload._FEATURES["logprobs"] = 1  # every schedule has it
    module = f"sglang.srt.managers.{module}"
    defect = Planted(id="", title="", module=module, function=function, hashes=(), edit=edit, name=name, nth=int(nth))
    starters = Starters(SglangScheduler(folder_of(ReleaseTarget(version), open_cache(None)), edit_of(defect)))
    try:
        outcomes = [starters.run(wanted(0, index, SECONDS)) for index in range(int(count))]
    finally:
        starters.close()
    print(json.dumps(sorted({violation.signature for outcome in outcomes for violation in violations_of(outcome)})))


if __name__ == "__main__":
    main(*sys.argv[1:])
