"""Run as a program: what schedules show on a release with a defect in it, as a JSON list of signatures.

    python -m property_tests.support.planted_schedules VERSION COUNT FEATURE SETUP MODULE FUNCTION EDIT NAME NTH

The first COUNT schedules of seed 0, each of which has the FEATURE ("" for none in particular) and the SETUP of that
number ("" for each in its turn). EDIT is "" for the release as it is.
"""

from __future__ import annotations

import json
import sys

import msgspec

from specsim.engines.importable import folder_of
from specsim.engines.sglang.scheduler.modules import PACKAGE
from specsim.engines.sglang.scheduler.setups import SETUPS
from specsim.engines.sglang.scheduler.target import SglangScheduler
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.lifting.planted import Planted
from specsim.rules.table import CHECKS
from specsim.tiers.scheduler.answers import violations_of
from specsim.world import workload
from specsim.world.forks import NotStarted, Starters, wanted
from specsim.world.planted import edit_of
from specsim.world.release import ReleaseFiles

SECONDS = 60.0


def main(
    version: str, count: str, feature: str, setup: str, module: str, function: str, edit: str, name: str, nth: str
) -> None:
    if feature:
        drawn = workload.FEATURES if feature in workload.FEATURES else workload.LATER_FEATURES
        drawn[feature] = 1  # every schedule has it
    module = f"sglang.srt.{module}"
    defect = Planted(id="", title="", module=module, function=function, hashes=(), edit=edit, name=name, nth=int(nth))
    root = folder_of(Release("sglang", version), open_cache(None))
    starters = Starters(SglangScheduler(ReleaseFiles(root, PACKAGE), edit_of(defect) if edit else None), CHECKS)
    try:
        schedules = (wanted(SETUPS, 0, index, SECONDS) for index in range(int(count)))
        outcomes = [starters.run(msgspec.structs.replace(s, tape=(int(setup),)) if setup else s) for s in schedules]
    finally:
        starters.close()
    assert not any(isinstance(outcome, NotStarted) for outcome in outcomes), outcomes
    print(json.dumps(sorted({violation.signature for outcome in outcomes for violation in violations_of(outcome)})))


if __name__ == "__main__":
    main(*sys.argv[1:])
