"""A run that has to run some tests fails when they are skipped for want of something."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TEST = "property_tests/scheduler/test_releases.py"


@pytest.mark.parametrize(("must_run", "code"), [("scheduler", 1), ("", 0)])
@pytest.mark.slow(runs_one_in=2)
def test_a_skip_for_want_of_a_release_fails_a_run_that_must_run_it(tmp_path: Path, must_run: str, code: int) -> None:
    environment = {**os.environ, "SPECSIM_CACHE_DIR": str(tmp_path), "SPECSIM_MUST_RUN": must_run}
    command = [sys.executable, "-m", "pytest", "-q", "-n", "0", "-p", "no:cacheprovider", TEST]
    ended = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert ended.returncode == code, ended.stdout
    assert ("which SPECSIM_MUST_RUN forbids" in ended.stdout) is bool(code)
