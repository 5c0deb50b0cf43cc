"""vLLM's KV cache events as records, and what turning them on changes: nothing of a schedule."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from specsim.engines.vllm.scheduler.kv_events import event_of, publish
from specsim.engines.vllm.scheduler.setups import SETUPS, reach_of
from specsim.world.fakes import AdapterDriftError
from specsim.world.kv_events import Cleared, Event, Removed, Stored
from specsim.world.scheduler import rows_of

ROWS = [row for row in rows_of(SETUPS, "fake") if SETUPS[row].kv_events]


def event(kind: str, **fields: Any) -> Any:
    return type(kind, (), fields)()


@pytest.mark.parametrize(
    ("published", "record"),
    [
        (event("AllBlocksCleared"), Cleared()),
        (event("BlockRemoved", block_hashes=[7], group_idx=1), Removed((7,), 1)),
        (event("BlockRemoved", block_hashes=[7]), Removed((7,))),
        (
            event("BlockStored", block_hashes=[7, 8], parent_block_hash=6, token_ids=[1, 2, 3, 4], block_size=2),
            Stored((7, 8), 6, (1, 2, 3, 4), 2),
        ),
        (
            event(
                "BlockStored",
                block_hashes=[7],
                parent_block_hash=None,
                token_ids=[1, 2],
                block_size=2,
                group_idx=1,
                lookahead_token_ids=[[3]],
            ),
            Stored((7,), None, (1, 2), 2, 1, ((3,),)),
        ),
        (
            event("BlockStored", block_hashes=None, parent_block_hash=None, token_ids=[1], block_size=1),
            Stored((), None, (1,), 1),
        ),
    ],
)
def test_an_event_of_any_release_is_a_record(published: Any, record: Event) -> None:
    assert event_of(published) == record


def test_a_scheduler_that_publishes_otherwise_is_drift() -> None:
    with pytest.raises(AdapterDriftError, match=r"has no Scheduler\.kv_event_publisher"):
        publish(SimpleNamespace(), lambda _published: None)


def test_events_are_on_where_a_user_chose_other_options_too() -> None:
    """So that what else shows there has the reach that it has without them."""
    assert ROWS
    assert {reach_of(replace(SETUPS[row], kv_events=False), "V1") for row in ROWS} == {"option"}


def test_no_schedule_is_another_one_for_its_events(vllm_release: str) -> None:
    code = f"""
import json
from dataclasses import replace
from specsim.engines.load import load_scheduler
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.rules.table import CHECKS
from specsim.world.forks import WantedSchedule
from specsim.world.schedule import run_schedule

target = load_scheduler(Release("vllm", "{vllm_release}"), open_cache(None))

def ran(row, kv_events):
    setup, chooser = target.setups[row], WantedSchedule((row,), 0, row).chooser()
    chooser.choose(len(target.setups), "setup")
    setup = replace(setup, kv_events=kv_events)
    record = run_schedule(target.start(setup), setup, CHECKS, chooser)
    return record.workload, record.events, record.choices

rows = {ROWS!r}
print(json.dumps([ran(row, True) == ran(row, False) for row in rows]))
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120)
    assert json.loads(ran.stdout) == [True] * len(ROWS)
