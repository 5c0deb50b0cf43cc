"""What the host functions of releases are expected to do, and what simulated schedules find in them."""

from __future__ import annotations

import json
from collections.abc import Callable

from property_tests.support.known_releases import FIXTURES, NEWEST, OLDEST
from specsim.choices.chooser import seeded
from specsim.engine.accounting import HostFunctionError
from specsim.engine.event_log import Run
from specsim.engine.loop import UnsupportedScenarioError
from specsim.engine.observer import Violation
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.rules.failures import HOST_EXCEPTION
from specsim.engine.workload import Scenario, draw_scenario
from specsim.engines.sglang.accounting import SglangHostTarget
from specsim.lifting.source import SourceTree

EXPECTED = json.loads((FIXTURES / "accounting.expected.json").read_text())
SCHEDULES = 300
OFTEN = (OLDEST, NEWEST)  # simulated at every run; the others by `make test-releases`
Release = Callable[[str], SourceTree]
# The easiest reach of a defect is the one that is told.
EASIEST_FIRST = ("default", "option", "guarded")


def run(target: SglangHostTarget, index: int, scenario: Scenario | None = None) -> tuple[Scenario, Run] | None:
    """One schedule: of the default swarm, or of a scenario. None when the target does not run it."""
    chooser = seeded(0, "accounting of releases", index)
    drawn = scenario or draw_scenario(chooser, target.features)
    try:
        return drawn, checked_engine(drawn, chooser, target.make).run()
    except HostFunctionError as error:  # before the first event
        violation = Violation(error.rule or HOST_EXCEPTION, "", error.part, "", "no exception", error.text, 0)
        return drawn, Run((violation,), (), "", 0, 0, frozenset())
    except UnsupportedScenarioError:
        return None


def findings(target: SglangHostTarget, schedules: int = SCHEDULES) -> dict[str, str]:
    """Signatures over many schedules, each with its easiest reach."""
    found: dict[str, str] = {}
    for index in range(schedules):
        checked = run(target, index)
        for violation in checked[1].violations if checked else ():
            reach = target.reach(checked[0].config, violation.part) if checked else ""
            known = found.get(violation.signature, reach)
            found[violation.signature] = min(known, reach, key=lambda r: EASIEST_FIRST.index(r.split(":")[0]))
    return dict(sorted(found.items()))
