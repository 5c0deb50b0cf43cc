"""What schedules of a release's scheduler cost is measured by running them."""

from __future__ import annotations

import importlib.util

import pytest

from property_tests.support.known_releases import FEW
from specsim.bench import run, scheduler
from specsim.engines.sglang.scheduler.imports import REAL

MISSING = [name for name in sorted(REAL) if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(
    bool(MISSING), reason=f"{', '.join(MISSING)} missing: pip install 'specsim-llm[scheduler]'"
)


@pytest.mark.slow
def test_schedules_of_a_release_are_measured() -> None:
    entries = run(["scheduler"], "cpu", targets=[f"sglang=={FEW[2]}"], schedules=3)["benchmarks"]
    assert [entry["unit"] for entry in entries] == list(scheduler.MEASURES)
    for entry in entries:
        (peer,) = entry["peers"]
        assert peer["name"] == f"sglang=={FEW[2]}"
        assert peer["median"] != 0
