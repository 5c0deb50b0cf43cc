"""The releases' own classes of the memory under the simulated engine: a defect that is put into one is found there, and
one that does not lift is not run.
"""

from __future__ import annotations

import itertools
import os

import pytest
import torch

from property_tests.support.known_releases import NEWEST
from property_tests.support.made_up_sources import edited
from property_tests.support.release_accounting import EXPECTED, OFTEN, Release, findings
from specsim.choices.chooser import replayed
from specsim.engine.accounting import HostFunctionError
from specsim.engine.accounting_target import MEMORY_PARTS
from specsim.engine.config import EngineConfig
from specsim.engine.request import Turn
from specsim.engine.rules.checked_engine import checked_engine
from specsim.engine.rules.ledger import SlotLedger
from specsim.engine.rules.slots import FreeGroup
from specsim.engine.workload import Scenario, Workload
from specsim.engines.sglang import host_names as names
from specsim.engines.sglang.accounting import SglangHostTarget
from specsim.engines.sglang.memory_classes import KERNEL_SHARE, Watch, runs_kernel
from specsim.lifting.cache import Cache
from specsim.lifting.source import SourceTree

IS_NIGHTLY = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"
TOKEN, PAGED = "token allocator", "paged allocator"


def place_of(release: Release, part: str) -> tuple[str, str]:
    """The file and the class of an allocator."""
    source = release(NEWEST)
    return next(place for place in names.SLOT_ALLOCATORS[part] if source.exists(place[0]))


# What is put into the two allocators: a pattern of their classes, what becomes of it, and the rule that it breaks.
PLANTED = {
    "what is handed out stays free": (
        (r"(\.free_pages\[need_size)(?=:\])", r"\1 - 1 ", "I16"),
        (r"(\.free_pages\[num_new_pages)(?=:\])", r"\1 // 2 ", "I16"),
    ),
    "what is given back is lost, or free twice": (
        (r"(cat\(\(self\.free_pages, free_index)", r"\1[1:]", "I13"),
        (r"torch\.unique(\(free_index)", r"\1", "I16"),
    ),
}


@pytest.mark.parametrize("planted", list(PLANTED) if IS_NIGHTLY else list(PLANTED)[:1])
def test_a_defect_of_an_allocator_is_found_there(planted: str, release: Release, wheel_cache: Cache) -> None:
    edits = dict(zip((TOKEN, PAGED), PLANTED[planted], strict=True))
    source: SourceTree = release(NEWEST)
    for part, (pattern, becomes, _) in edits.items():
        path, name = place_of(release, part)
        source = edited(source, path, pattern, becomes, within=name)
    found = findings(SglangHostTarget(source, wheel_cache), 25).keys() - EXPECTED[NEWEST]["findings"].keys()
    assert found == {f"accounting:{rule}:{part}" for part, (_, _, rule) in edits.items()}


def test_an_allocator_that_is_gone_is_not_run_and_the_model_has_its_place(release: Release, wheel_cache: Cache) -> None:
    path, _ = place_of(release, PAGED)
    source = edited(release(NEWEST), path, "def alloc_extend_naive", "def gone")
    target = SglangHostTarget(source, wheel_cache)
    parts = {part.name: part for part in target.parts}
    assert (parts[PAGED].kind, parts[TOKEN].kind, target.missing) == ("not run", "real", [])
    assert "alloc_extend_naive" in parts[PAGED].why
    assert findings(target, 25).keys() <= EXPECTED[NEWEST]["findings"].keys()


# What is put into the radix cache: the method, a pattern of it, what becomes of it, and a rule that it breaks.
IN_THE_TREE = {
    "a lock stays": ("cache_finished_req", r"self\.dec_lock_ref\([\w.]+\)", "pass", "I30"),
    "a locked leaf is evicted": ("_update_leaf_status", r" or node\.lock_ref > 0", "", "I26"),
    "what the tree had is not freed": ("cache_finished_req", r"(free\(\s*kv_indices\[)", r"\1:0][", "I13"),
    "a page in part is inserted": ("cache_finished_req", r"\.page_aligned\([\w.]+\)", "", "I14"),
    "one size is not counted": ("_insert_helper", r"self\.evictable_size_ \+=.*", "pass", "I26"),
}


@pytest.mark.parametrize("planted", list(IN_THE_TREE) if IS_NIGHTLY else list(IN_THE_TREE)[:1])
def test_a_defect_of_the_radix_cache_is_found(planted: str, release: Release, wheel_cache: Cache) -> None:
    method, pattern, becomes, rule = IN_THE_TREE[planted]
    path, _ = names.RADIX_CACHE
    target = SglangHostTarget(edited(release(NEWEST), path, pattern, becomes, within=method), wheel_cache)
    found = findings(target, 400 if IS_NIGHTLY else 30).keys() - EXPECTED[NEWEST]["findings"].keys()
    assert rule in {signature.split(":")[1] for signature in found}


@pytest.mark.skipif(not IS_NIGHTLY, reason="the nightly profile does it")
def test_a_session_that_forgets_what_was_said_is_found(release: Release, wheel_cache: Cache) -> None:
    path = next(path for path, _ in names.SESSION_CLASSES if release(NEWEST).exists(path))
    source = edited(release(NEWEST), path, r"(last_req\.output_ids)\[[^\]]*\]", r"\1[:0]")
    found = findings(SglangHostTarget(source, wheel_cache), 60).keys()
    assert "accounting:I53:session controller" in found - EXPECTED[NEWEST]["findings"].keys()


@pytest.mark.parametrize("version", OFTEN)
@pytest.mark.slow(runs_one_in=2)
def test_the_tree_gets_no_more_of_a_prefill_than_the_part_that_was_computed(
    version: str, release: Release, wheel_cache: Cache
) -> None:
    """The older releases' trees take what `fill_ids` has, which ends with the part; later a length stands beside it."""
    target = SglangHostTarget(release(version), wheel_cache)
    config = EngineConfig(context_len=16, pool_slots=80, rows=2, radix=True, bigram=True, chunk_size=4)
    turns = tuple(Turn(rid, tuple(range(10, 21)), 1) for rid in ("r0", "r1"))
    run = checked_engine(Scenario(config, Workload(turns)), replayed((0,) * 64), target.make).run()
    assert [violation for violation in run.violations if violation.part == "tree insert"] == []
    parts = [event.details for event in run.log if (event.event, event.who) == ("admit", "r0")]
    assert parts == ["extend 0 to 4", "extend 4 to 8", "extend 8 to 11"]


class Pool:
    """An allocator whose free list is what a test says."""

    def __init__(self, *pages: int) -> None:
        self.free_pages = torch.tensor(pages)

    def alloc(self, count: int) -> torch.Tensor:
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return taken

    def free(self, slots: torch.Tensor) -> None:
        self.free_pages = torch.cat((self.free_pages, slots))


def test_what_a_caller_frees_twice_is_the_callers_and_not_the_allocators() -> None:
    pool, ledger = Pool(1, 2, 3), SlotLedger()
    watch = Watch(TOKEN, 1, 3, ledger)
    slots = watch.call(pool, Pool.alloc, "handed_out", 2)
    watch.call(pool, Pool.free, "taken_back", slots)
    assert not ledger.misuses
    watch.call(pool, Pool.free, "taken_back", slots)
    assert [misuse for misuse, _ in ledger.misuses] == ["freed when free", "freed when free"]


def test_a_slot_of_an_open_group_is_not_free_yet() -> None:
    pool = Pool(1, 2, 3)
    watch = Watch(TOKEN, 1, 3, SlotLedger())
    slots = watch.call(pool, Pool.alloc, "handed_out", 2)
    watch.call(pool, lambda _pool: None, "group_begun")
    with pytest.raises(HostFunctionError, match="slot") as raised:
        watch.call(pool, Pool.free, "taken_back", slots)
    assert raised.value.rule is FreeGroup.rule


def test_the_kernel_runs_in_a_fixed_share_of_configurations() -> None:
    sizes = itertools.product((2, 4, 8), range(1, 17), range(60))
    chosen = [runs_kernel(EngineConfig(page_size=p, rows=r, pool_slots=256 + n)) for p, r, n in sizes]
    assert len(chosen) / KERNEL_SHARE / 2 < sum(chosen) < len(chosen) / KERNEL_SHARE * 2
    assert set(names.SLOT_ALLOCATORS) <= set(MEMORY_PARTS)
