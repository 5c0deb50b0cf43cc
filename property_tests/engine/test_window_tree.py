"""A radix cache with a sliding window: what is reused has its window, and each pool gets back what is its own."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.watched_engine import watched
from specsim.choices.chooser import seeded
from specsim.engine.config import EngineConfig, require_runnable
from specsim.engine.memory.radix import RadixCache
from specsim.engine.memory.swa import SwaAllocator
from specsim.engine.memory.tree_node import TreeNode
from specsim.engine.memory.window_tree import TreeWindow
from specsim.engine.rules.ledger import SlotLedger
from specsim.engine.workload import draw_scenario
from specsim.errors import UsageError


@dataclass
class Caches:
    """A tree over two pools, with ledgers."""

    tree: RadixCache
    swa: SwaAllocator
    ledger: SlotLedger
    swa_ledger: SlotLedger

    def add(self, tokens: list[int], *, evicted: int = 0) -> list[int]:
        """A request comes, whose first `evicted` window slots are gone, and hands all to the tree."""
        slots = self.swa.extend(0, len(tokens), 0)
        self.swa.free_swa(slots[:evicted])
        held = self.tree.insert(tokens, slots)
        end = self.tree.key_len(len(tokens))
        self.swa.free(slots[:held])
        self.swa.free(slots[end:])
        return slots

    def sound(self) -> None:
        assert self.ledger.misuses + self.swa_ledger.misuses == []
        entries = list(self.tree.entries())
        slots = [slot for entry in entries for slot in entry.node.slots]
        assert self.ledger.used == set(slots)
        with_window = [slot for slot in slots if self.swa.swa_slots[slot]]
        assert self.swa_ledger.used == {self.swa.swa_slots[slot] for slot in with_window}
        window = self.tree.window
        assert window is not None
        assert window.evictable + window.protected == len(with_window)
        assert window.protected == sum(len(e.node.slots) for e in entries if e.node.window_lock_ref)
        for entry in entries:
            assert {bool(self.swa.swa_slots[slot]) for slot in entry.node.slots} == {entry.node.has_window}
            assert entry.node.has_window or entry.node.children


def made(page_size: int = 1, window: int = 3, pages: int = 64, *, bigram: bool = False) -> Caches:
    ledger, swa_ledger = SlotLedger(page_size), SlotLedger(page_size)
    swa = SwaAllocator(pages * page_size, pages * page_size, page_size, ledger, swa_ledger)
    tree = RadixCache(page_size, swa, bigram=bigram, watcher=ledger, window=TreeWindow(swa, window))
    return Caches(tree, swa, ledger, swa_ledger)


tokens_of = st.builds(
    lambda length, turn: [int(position == turn) for position in range(length)], st.integers(1, 14), st.integers(0, 13)
)
steps: st.SearchStrategy[tuple[str, list[int], int]] = st.one_of(
    st.tuples(st.just("add"), tokens_of, st.integers(0, 12)),
    st.tuples(st.just("lock"), tokens_of, st.just(0)),
    st.tuples(st.just("unlock"), st.just([]), st.integers(0, 3)),
    st.tuples(st.just("evict"), st.just([]), st.integers(0, 9)),
    st.tuples(st.just("evict window"), st.just([]), st.integers(0, 9)),
)


@given(
    page_size=st.sampled_from([1, 2, 4]),
    window=st.integers(1, 7),
    bigram=st.booleans(),
    script=st.lists(steps, max_size=30),
)
def test_whatever_comes_and_goes_both_pools_are_shared_out_and_matches_have_their_window(
    page_size: int, window: int, bigram: bool, script: list[tuple[str, list[int], int]]
) -> None:
    caches = made(page_size, window, bigram=bigram)
    tree, swa = caches.tree, caches.swa
    locked: list[TreeNode] = []
    for kind, tokens, number in script:
        if kind == "add" and swa.available >= 16 + page_size:
            end = tree.key_len(len(tokens))
            evicted = max(min(number, end - window), 0) // page_size * page_size  # as the accounting keeps it
            caches.add(tokens, evicted=evicted)
            assert len(tree.match(tokens).slots) == end
        elif kind == "lock":
            locked.append(tree.match(tokens).node)
            tree.lock(locked[-1])
        elif kind == "unlock" and locked:
            tree.unlock(locked.pop(number % len(locked)))
        elif kind == "evict":
            free, evictable = swa.full.available, tree.evictable
            freed = tree.evict(number)
            assert freed >= min(number, evictable)
            assert swa.full.available == free + freed
        elif kind == "evict window":
            assert tree.window is not None
            free, evictable = swa.swa.available, tree.window.evictable
            given_up = tree.evict_window(number)
            assert given_up >= min(number, evictable)
            assert swa.swa.available == free + given_up
        for node in locked:
            assert all(swa.swa_slots[slot] for slot in tree.path_slots(node)[-window:])
        if tokens:
            found = tree.match(tokens)
            assert all(swa.swa_slots[slot] for slot in found.slots[-window:])
            assert tree.match(tokens) == found
        caches.sound()
    for node in locked:
        tree.unlock(node)
    tree.evict(10**6)
    assert (swa.full.available, swa.swa.available) == (swa.full.size, swa.swa.size)
    caches.sound()


# Corners

LONG = list(range(10))


def test_a_match_ends_where_the_window_behind_it_is_whole() -> None:
    caches = made()
    caches.add(LONG, evicted=4)
    found = {length: len(caches.tree.match(LONG[:length]).slots) for length in range(1, 11)}
    assert found == {**dict.fromkeys(range(1, 7), 0), 7: 7, 8: 8, 9: 9, 10: 10}


def test_a_tombstone_keeps_its_full_slots_and_what_is_below_it() -> None:
    caches = made()
    caches.add(LONG[:4])
    caches.add(LONG)
    assert caches.tree.evict_window(1) == 6  # the leaf is the older
    assert caches.tree.match(LONG).slots == caches.tree.match(LONG[:4]).slots != []
    caches.add(LONG)
    caches.tree.lock(caches.tree.match(LONG).node)
    assert caches.tree.evict_window(10**6) == 7
    assert caches.swa.full.available == 64 - 10
    assert len(caches.tree.match(LONG).slots) == 10
    assert caches.tree.match(LONG[:4]).slots == []
    caches.sound()


def test_a_tombstone_that_ends_nothing_any_more_goes_with_its_last_leaf() -> None:
    caches = made()
    caches.add(LONG, evicted=4)
    assert caches.tree.evict(1) == 10
    assert caches.tree.total == 0
    caches.sound()


def test_a_request_that_computed_a_tombstone_again_hands_over_its_window_slots() -> None:
    caches = made()
    first = caches.add(LONG, evicted=6)
    caches.add(LONG[:5])
    assert caches.tree.match(LONG[:5]).slots == first[:5]
    assert len(caches.tree.match(LONG).slots) == 10
    caches.sound()


def test_a_lock_keeps_whole_pages_of_the_window_and_the_path() -> None:
    caches = made(page_size=2)
    caches.add(LONG)
    tree = caches.tree
    node = tree.match(LONG).node
    tree.lock(node)
    assert tree.window is not None
    assert (tree.window.protected, tree.protected) == (4, 10)
    assert tree.evict_window(10**6) == 6
    caches.add([*LONG[:8], 99, 99, 99])  # parts inside what is locked
    tree.unlock(node)
    assert (tree.window.protected, tree.protected) == (0, 0)
    caches.sound()


# The engine


@pytest.mark.parametrize(("fewer", "words"), [(200, "one request needs"), (-1, "the full pool has")])
def test_a_window_pool_that_no_engine_could_run_is_refused(fewer: int, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        require_runnable(EngineConfig(window=4, swa_pool_slots=256 - fewer))
    with pytest.raises(UsageError, match="no window to have slots"):
        require_runnable(EngineConfig(swa_pool_slots=100))


def test_schedules_bury_revive_and_reuse() -> None:
    seen: set[Any] = set()
    for index in range(1500):
        chooser = seeded(7, "rw", index)
        scenario = draw_scenario(chooser)
        if scenario.config.window and scenario.config.radix:
            engine = watched(scenario, chooser)
            run = engine.run()
            assert run.violations == ()
            seen |= run.marks & {"prefix hit", "window slots given back", "session resumed", "tree", "pages"}
            assert engine.memory.tree is not None
            if any(not entry.node.has_window for entry in engine.memory.tree.entries()):
                seen.add("tombstone")
            if scenario.config.draft_layers:
                seen.add("draft pool")
    assert seen == {
        *("prefix hit", "window slots given back", "session resumed", "tree", "pages"),
        *("tombstone", "draft pool"),
    }
