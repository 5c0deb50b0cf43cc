"""Of a planted defect a check says its cause, beside the release as it is, and not all that follows from it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from functools import cache

import pytest

from property_tests.support.kept_rows import Row
from property_tests.support.planted_findings import NEW, OLD, beside
from specsim.isolation.environment import of_target
from specsim.lifting.source import SourceTree

SCHEDULES = 6
DEFECTS = {
    "memory that was freed is freed again": (
        OLD,
        "P26",
        ["scheduler:I16:free-list", "scheduler:S2:race:full_to_swa_index_mapping:"],
    ),
    "a batch is filtered before a verification has written its lengths": (
        OLD,
        "Q05",
        ["scheduler:S2:race:empty-of-unwritten:ScheduleBatch.filter_batch"],
    ),
    "the scheduler's stream does not wait for the forward pass": (NEW, "R08", ["scheduler:S2:"]),
}


@cache
def row(version: str, defect: str) -> Row:
    """What schedules show of a release with a defect in it; see the program."""
    module = "property_tests.support.planted_findings"
    command = [sys.executable, "-m", module, "-", "--schedules", str(SCHEDULES), "--one", version, defect]
    ended = subprocess.run(command, env=of_target(), check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    found: Row = json.loads(ended.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", DEFECTS)
def test_the_findings_of_a_defect_are_few(release: Callable[[str], SourceTree], name: str) -> None:
    version, defect, causes = DEFECTS[name]
    release(version)
    seen, findings = beside(row(version, defect), row(version, ""))
    assert len(seen) > len(findings)
    assert len(findings) == len(causes)
    assert all(finding.startswith(cause) for finding, cause in zip(sorted(findings), causes, strict=True))
