"""Defects in what a release's scheduler does with logprobs are found; each is planted into its source in memory."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable

import pytest

from property_tests.support.known_releases import FEW
from specsim.engines.sglang.scheduler.imports import REAL
from specsim.isolation.environment import of_target
from specsim.lifting.source import SourceTree

MISSING = [name for name in sorted(REAL) if importlib.util.find_spec(name) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} missing: pip install 'specsim[scheduler]'")

VERSION, SCHEDULES = FEW[2], 10
RESULTS = "scheduler_output_processor_mixin", "SchedulerOutputProcessorMixin."
DEFECTS = {
    "rows are not filtered with the batch": (
        ("schedule_batch", "ScheduleBatch.filter_batch", "drop-assignment", "top_logprobs_nums", "0"),
        "scheduler:X1:run_batch:IndexError",
    ),
    "the row of the token before": (
        (RESULTS[0], f"{RESULTS[1]}process_batch_result_decode", "minus-one", "flat_idx", "0"),
        "scheduler:T6:top-logprobs",
    ),
    "the logprob of the next token": (
        (RESULTS[0], f"{RESULTS[1]}process_batch_result_decode", "plus-one", "j", "0"),
        "scheduler:T6:logprobs",
    ),
    "rows are sent again": (
        (
            RESULTS[0],
            f"{RESULTS[1]}stream_output_generation",
            "drop-assignment",
            "send_output_token_logprobs_offset",
            "1",
        ),
        "scheduler:T6:rows",
    ),
}


@pytest.mark.slow(runs_one_in=len(DEFECTS))
@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_of_logprobs_is_found(release: Callable[[str], SourceTree], name: str) -> None:
    release(VERSION)
    defect, expected = DEFECTS[name]
    module = "property_tests.support.logprob_schedules"
    command = [sys.executable, "-m", module, VERSION, str(SCHEDULES), *defect]
    ended = subprocess.run(command, env=of_target(), check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert expected in json.loads(ended.stdout.splitlines()[-1])
