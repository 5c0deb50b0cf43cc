"""What schedules of a release's scheduler cost is measured by running them."""

from __future__ import annotations

import pytest

from property_tests.support.known_releases import FEW
from specsim.bench import run, scheduler


@pytest.mark.slow
def test_schedules_of_a_release_are_measured() -> None:
    entries = run(["scheduler"], "cpu", targets=[f"sglang=={FEW[2]}"], schedules=3)["benchmarks"]
    assert [entry["unit"] for entry in entries] == list(scheduler.MEASURES)
    for entry in entries:
        (peer,) = entry["peers"]
        assert peer["name"] == f"sglang=={FEW[2]}"
        assert peer["median"] != 0
