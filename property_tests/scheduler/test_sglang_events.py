"""SGLang's KV cache events as records, its tree as blocks, and what turning them on changes: nothing of a schedule."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from property_tests.support.found_schedules import found_by
from property_tests.support.known_releases import FEW, RELEASES
from specsim.choices.chooser import seeded
from specsim.engines.sglang.guards import Guards
from specsim.engines.sglang.scheduler.kv_events import (
    cached,
    event_of,
    events_of,
    makes_events,
    native_hash,
    units_of,
)
from specsim.engines.sglang.scheduler.setups import SETUPS, reach_of
from specsim.isolation.environment import of_target
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree
from specsim.world.kv_events import Cleared, Event, Removed, Stored
from specsim.world.scheduler import rows_of

VERSION, NEWEST = FEW[-1], RELEASES[-1]
ROWS = [row for row in rows_of(SETUPS, "fake") if SETUPS[row].kv_events]
PAGES = next(row for row in ROWS if SETUPS[row].page_size > 1 and not SETUPS[row].window)


def event(kind: str, **fields: Any) -> Any:
    return type(kind, (), fields)()


STORED = {"block_hashes": [7], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}


@pytest.mark.parametrize(
    ("published", "record"),
    [
        (event("AllBlocksCleared"), Cleared()),
        (event("BlockRemoved", block_hashes=[7, 8]), Removed((7, 8))),
        (event("BlockStored", **STORED), Stored((7,), None, (1, 2), 2)),
        (
            event("BlockStored", **{**STORED, "block_hashes": [7, 8], "token_ids": [(1, 2), (2, 3), (3, 4), (4, 5)]}),
            Stored((7, 8), None, (1, 2, 3, 4), 2, ahead=((3,), (5,))),
        ),
        (event("BlockStoredWithMetadata", **{**STORED, "parent_block_hash": 6}), Stored((7,), 6, (1, 2), 2)),
    ],
)
def test_an_event_of_any_release_is_a_record(published: Any, record: Event) -> None:
    assert event_of(published) == record


def test_events_of_other_memory_than_the_devices_are_left_out() -> None:
    stored, removed = event("BlockStored", **STORED, medium="GPU"), event("BlockRemoved", block_hashes=[7], medium=None)
    of_the_host = event("BlockRemoved", block_hashes=[7], medium="CPU_PINNED")
    assert events_of([stored, of_the_host, removed]) == (Stored((7,), None, (1, 2), 2, tier="GPU"), Removed((7,)))


@pytest.mark.parametrize(
    ("tokens", "is_bigram", "units"),
    [
        ([1, 2, 3], False, [1, 2, 3]),
        ([1, 2, 3], True, [(1, 2), (2, 3)]),
        ([(1, 2), (2, 3)], True, [(1, 2), (2, 3)]),
        ([(1, 2), (2, 3)], False, [(1, 2), (2, 3)]),
        ([], True, []),
    ],
)
def test_a_key_is_of_tokens_or_of_pairs_however_it_keeps_them(tokens: Any, is_bigram: bool, units: Any) -> None:
    assert units_of(SimpleNamespace(token_ids=tokens, is_bigram=is_bigram)) == units


def naive_hash(units: list[tuple[int, ...]], prior: bytes) -> bytes:
    return hashlib.sha256(prior + b"".join(token.to_bytes(4, "little") for unit in units for token in unit)).digest()


def test_a_page_is_hashed_with_the_one_before_it_by_its_tokens_or_pairs_of_them() -> None:
    chooser = seeded(0, "pages", 0)
    for _ in range(40):
        count, page = 1 + chooser.choose(9, "count"), 1 + chooser.choose(4, "page")
        raw = [chooser.choose(1 << 17, "token") for _ in range(count + 1)]
        prior = bytes(range(32)) if chooser.choose(2, "prior") else b""
        for is_bigram in (False, True):
            units = [tuple(raw[at : at + 1 + is_bigram]) for at in range(count)]
            assert native_hash(raw, count, 1, is_bigram, prior or None, None) == naive_hash(units, prior).hex()
            before, pages = prior, []
            for start in range(0, count, page):
                before = naive_hash(units[start : start + page], before)
                pages.append(before.hex())
            assert native_hash(raw, count, 1, is_bigram, prior or None, page) == pages


def test_a_tree_that_shows_no_nodes_has_no_blocks_to_compare() -> None:
    assert cached(SimpleNamespace()) is None


def test_a_cache_makes_events_by_itself_or_by_its_core() -> None:
    assert not makes_events(SimpleNamespace())
    assert not makes_events(SimpleNamespace(kv_events=None))
    assert makes_events(SimpleNamespace(_record_store_event=len))
    assert makes_events(SimpleNamespace(tree_core=SimpleNamespace(kv_events=[])))


def test_events_are_on_where_a_user_chose_other_options_too() -> None:
    """So that what else shows there has the reach that it has without them."""
    guards = Guards("", tree_is_default=False, overlap_is_default=True)
    without = [replace(SETUPS[row], kv_events=False) for row in ROWS]
    assert without
    assert {reach_of(setup, guards) for setup in without} == {"option"}


def test_no_schedule_is_another_one_for_its_events(release: Callable[[str], SourceTree]) -> None:
    release(VERSION)
    rows = [row for row in ROWS if not SETUPS[row].mixed]  # which that release turns off
    code = f"""
import json
from dataclasses import replace
from specsim.engines.load import load_scheduler
from specsim.engines.target import Release
from specsim.lifting.cache import open_cache
from specsim.rules.table import CHECKS
from specsim.world.forks import Starters, WantedSchedule

target = load_scheduler(Release("sglang", "{VERSION}"), open_cache(None))
setups = target.setups

def ran(kv_events):
    type(target).setups = tuple(replace(setup, kv_events=kv_events) for setup in setups)
    starters = Starters(target, CHECKS)
    records = [starters.run(WantedSchedule((row,), 0, row)).record for row in {rows!r}]
    starters.close()
    return [(record.workload, record.events, record.choices) for record in records]

print(json.dumps([one == other for one, other in zip(ran(True), ran(False), strict=True)]))
"""
    ran = subprocess.run(
        [sys.executable, "-c", code], env=of_target(), capture_output=True, text=True, check=True, timeout=300
    )
    assert json.loads(ran.stdout) == [True] * len(rows)


TREE = "mem_cache.radix_cache"


@pytest.mark.parametrize(
    ("function", "call", "signature"),
    [
        ("RadixCache.evict", "_record_remove_event", "scheduler:S17:gone"),
        ("RadixCache._insert_helper", "_record_store_event", "scheduler:S17:unknown"),
    ],
)
def test_a_release_that_leaves_an_event_out_is_found(
    release: Callable[[str], SourceTree], function: str, call: str, signature: str
) -> None:
    release(VERSION)
    program = "property_tests.support.planted_schedules"
    command = [sys.executable, "-m", program, VERSION, "3", "", str(PAGES), TREE, function, "drop-call", call, "0"]
    ended = subprocess.run(command, env=of_target(), check=False, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr[-3000:]
    assert signature in json.loads(ended.stdout.splitlines()[-1])


@pytest.mark.slow(runs_one_in=3)
@pytest.mark.parametrize(
    ("mutant", "signature"),
    [
        ("E01", "scheduler:S17:gone"),
        ("E03", "scheduler:S17:tokens"),
        ("sglang.srt.mem_cache.events:KVCacheEventMixin._record_remove_event:negate:medium:0", "scheduler:S17:tier"),
    ],
)
def test_a_planted_defect_of_events_is_found(
    release: Callable[[str], SourceTree], wheel_cache: Cache, mutant: str, signature: str
) -> None:
    release(NEWEST)
    assert signature in found_by(f"sglang=={NEWEST}", wheel_cache, 15, mutant=mutant)
