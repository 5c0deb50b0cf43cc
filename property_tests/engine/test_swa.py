"""Two pools, for the whole past and for a window of it: each keeps its own rules, and nothing in the window is given
up.
"""

from __future__ import annotations

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from specsim.engine.memory.allocator import OutOfSlotsError, ceil_to
from specsim.engine.memory.radix import RadixCache
from specsim.engine.memory.swa import SwaAllocator, window_cursor
from specsim.engine.rules.ledger import SlotLedger

page_sizes = st.sampled_from([1, 2, 4, 16])


def made(pages: int, swa_pages: int, page_size: int) -> tuple[SwaAllocator, SlotLedger, SlotLedger]:
    ledger, swa_ledger = SlotLedger(page_size), SlotLedger(page_size)
    return SwaAllocator(pages * page_size, swa_pages * page_size, page_size, ledger, swa_ledger), ledger, swa_ledger


@dataclass
class Running:
    """A request: the slots of its row, whose first `protected` are the tree's, and its cursor."""

    slots: list[int]
    protected: int = 0
    cursor: int = 0


class Windows(RuleBasedStateMachine):
    """Requests grow, slide their windows, hand prefixes to a tree, are cut and go, inside free groups and outside."""

    @initialize(pages=st.integers(4, 24), swa_pages=st.integers(3, 20), page_size=st.sampled_from([1, 2, 4]))
    def start(self, pages: int, swa_pages: int, page_size: int) -> None:
        self.page_size, self.size, self.swa_size = page_size, pages * page_size, swa_pages * page_size
        self.allocator, self.ledger, self.swa_ledger = made(pages, swa_pages, page_size)
        self.running: list[Running] = []
        self.tree: list[list[int]] = []
        self.live: set[int] = set()  # slots in somebody's hands that must have a swa slot
        self.pending: set[int] = set()
        self.in_group = False

    def one(self, data: st.DataObject) -> Running:
        return self.running[data.draw(st.integers(0, len(self.running) - 1))]

    @rule(length=st.integers(0, 14))
    def begin(self, length: int) -> None:
        self.running.append(Running([]))
        self.extend(self.running[-1], length)

    @precondition(lambda self: self.running)
    @rule(data=st.data(), more=st.integers(0, 9), window=st.integers(0, 4))
    def step(self, data: st.DataObject, more: int, window: int) -> None:
        """A decode step: what is behind the window goes, and more positions are allocated."""
        request = self.one(data)
        self.slide(request, len(request.slots), window)
        self.extend(request, len(request.slots) + more)

    def extend(self, request: Running, end: int) -> None:
        start = len(request.slots)
        wanted = ceil_to(end, self.page_size) - ceil_to(start, self.page_size)
        pools = self.allocator.full, self.allocator.swa
        before = [pool.free_slots for pool in pools]
        available = min(map(len, before))
        assert self.allocator.available == available
        last_slot = request.slots[-1] if start else 0
        if wanted > available:
            with pytest.raises(OutOfSlotsError, match=f"{wanted} slots wanted, {available} available"):
                self.allocator.extend(start, end, last_slot)
            assert [pool.free_slots for pool in pools] == before
            return
        slots = self.allocator.extend(start, end, last_slot)
        assert len(slots) == end - start
        assert not self.whole_pages(slots) & self.pending
        assert [pool.available for pool in pools] == [len(free) - wanted for free in before]
        request.slots += slots
        self.live |= self.whole_pages(request.slots[ceil_to(start, self.page_size) :])

    def whole_pages(self, slots: list[int]) -> set[int]:
        p = self.page_size
        return {page * p + i for page in {slot // p for slot in slots} for i in range(p)}

    @precondition(lambda self: self.running)
    @rule(data=st.data(), back=st.integers(0, 6), window=st.integers(0, 12))
    def look_back(self, data: st.DataObject, back: int, window: int) -> None:
        """The next query is `back` positions before the end of what is allocated."""
        request = self.one(data)
        self.slide(request, max(len(request.slots) - back, 0), window)

    def slide(self, request: Running, seq_len: int, window: int) -> None:
        cursor = max(request.cursor, request.protected)
        moved = self.allocator.evict_window(request.slots, cursor, seq_len, window)
        assert moved % self.page_size == 0
        assert cursor <= moved <= max(cursor, seq_len - window)
        assert moved > seq_len - window - self.page_size
        self.live -= set(request.slots[cursor:moved])
        request.cursor = moved

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def hand_over(self, data: st.DataObject) -> None:
        """A tree takes whole pages of a request, with the swa slots that are left of them."""
        request = self.one(data)
        last = len(request.slots) // self.page_size
        protected = data.draw(st.integers(request.protected // self.page_size, last)) * self.page_size
        self.tree.append(request.slots[request.protected : protected])
        request.protected = protected

    @precondition(lambda self: self.tree)
    @rule(data=st.data(), swa_only=st.booleans())
    def evict_from_tree(self, data: st.DataObject, swa_only: bool) -> None:
        """What a tree gives up, it gives up of both pools, or of the window's only."""
        at = data.draw(st.integers(0, len(self.tree) - 1))
        if swa_only:
            self.allocator.free_swa(self.tree[at])
            self.live -= set(self.tree[at])
        else:
            self.free(self.tree.pop(at))

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def cut(self, data: st.DataObject) -> None:
        """The tail goes, and the cursor with it: what is allocated after a cut has swa slots again."""
        request = self.one(data)
        length = ceil_to(data.draw(st.integers(request.protected, len(request.slots))), self.page_size)
        self.free(request.slots[length:])
        del request.slots[length:]
        request.cursor = min(request.cursor, length)

    @precondition(lambda self: self.running)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        request = self.one(data)
        self.free(request.slots[request.protected :])
        self.running.remove(request)

    def free(self, slots: list[int]) -> None:
        self.allocator.free(slots)
        self.live -= self.whole_pages(slots)
        if self.in_group:
            self.pending |= self.whole_pages(slots)

    @precondition(lambda self: not self.in_group)
    @rule()
    def open_group(self) -> None:
        for memory in (self.allocator, self.ledger, self.swa_ledger):
            memory.free_group_begin()
        self.in_group = True

    @precondition(lambda self: self.in_group)
    @rule()
    def close_group(self) -> None:
        for memory in (self.allocator, self.ledger, self.swa_ledger):
            memory.free_group_end()
        self.in_group = False
        self.pending.clear()

    @invariant()
    def the_full_pool_is_shared_out(self) -> None:
        if not hasattr(self, "allocator"):
            return
        pool = self.allocator.full
        private = [request.slots[request.protected :] for request in self.running]
        owned = [slot for slots in [*private, *self.tree] for slot in sorted(self.whole_pages(slots))]
        everything = list(range(self.page_size, self.page_size + self.size))
        assert sorted([*owned, *pool.free_slots, *pool.pending]) == everything
        assert set(pool.pending) == set(self.allocator.pending) == self.pending
        held = sum(ceil_to(len(request.slots), self.page_size) - request.protected for request in self.running)
        assert pool.available + len(pool.pending) + held + sum(map(len, self.tree)) == self.size
        assert self.ledger.used == set(owned)
        assert self.ledger.misuses == []

    @invariant()
    def the_window_pool_is_shared_out(self) -> None:
        if not hasattr(self, "allocator"):
            return
        pool = self.allocator.swa
        swa_slots = [self.allocator.swa_slots[slot] for slot in sorted(self.live)]
        everything = list(range(self.page_size, self.page_size + self.swa_size))
        assert sorted([*swa_slots, *pool.free_slots, *pool.pending]) == everything
        held = sum(
            ceil_to(len(request.slots), self.page_size) - max(request.protected, request.cursor)
            for request in self.running
        )
        in_tree = len(self.live & {slot for slots in self.tree for slot in slots})
        assert pool.available + len(pool.pending) + held + in_tree == self.swa_size
        assert self.swa_ledger.used == set(swa_slots)
        assert self.swa_ledger.misuses == []

    @invariant()
    def a_slot_has_a_swa_slot_until_the_window_has_passed(self) -> None:
        if not hasattr(self, "allocator"):
            return
        assert {slot for slot, swa_slot in enumerate(self.allocator.swa_slots) if swa_slot} == self.live
        for request in self.running:
            assert set(request.slots[max(request.cursor, request.protected) :]) <= self.live
            for slot in self.live & set(request.slots):
                assert self.allocator.swa_slots[slot] % self.page_size == slot % self.page_size


TestWindows = Windows.TestCase
TestWindows.settings = settings(max_examples=3 * settings().max_examples)


@given(cursor=st.integers(0, 20), seq_len=st.integers(0, 200), window=st.integers(0, 64), page_size=page_sizes)
def test_the_cursor_is_the_last_page_boundary_behind_every_window(
    cursor: int, seq_len: int, window: int, page_size: int
) -> None:
    cursor *= page_size
    read = range(max(seq_len - window, 0), seq_len + 1)
    boundaries = range(0, seq_len + 1, page_size)
    behind = max(boundary for boundary in boundaries if boundary <= read[0])
    assert window_cursor(cursor, seq_len, window, page_size) == max(cursor, behind)


# Corners


def test_both_slots_of_a_token_come_and_go_together() -> None:
    allocator, _, _ = made(4, 3, 1)
    slots = allocator.extend(0, 3, 0)
    assert (slots, allocator.available) == ([1, 2, 3], 0)
    assert allocator.swa_slots.tolist() == [0, 1, 2, 3, 0]
    allocator.free([2])
    assert allocator.full.free_slots == [4, 2]
    assert allocator.swa.free_slots == [2]
    assert allocator.extend(3, 4, 3) == [4]
    assert allocator.swa_slots.tolist() == [0, 1, 0, 3, 2]


@pytest.mark.parametrize(("pages", "swa_pages"), [(3, 2), (2, 3)])
def test_nothing_is_taken_when_one_pool_is_short(pages: int, swa_pages: int) -> None:
    allocator, ledger, swa_ledger = made(pages, swa_pages, 4)
    assert allocator.available == 8
    with pytest.raises(OutOfSlotsError, match="12 slots wanted, 8 available"):
        allocator.extend(0, 9, 0)
    assert (allocator.full.available, allocator.swa.available) == (4 * pages, 4 * swa_pages)
    assert not ledger.used | swa_ledger.used


def test_a_partial_page_is_continued_on_the_swa_page_it_has() -> None:
    allocator, _, _ = made(4, 4, 4)
    first = allocator.extend(0, 6, 0)
    allocator.evict_window(first, 0, 6, 2)
    assert allocator.swa.available == 12
    assert allocator.extend(6, 8, first[-1]) == [10, 11]
    assert allocator.swa.available == 12
    assert allocator.swa_slots.tolist()[4:12] == [0, 0, 0, 0, 8, 9, 10, 11]


def test_the_window_gives_back_swa_slots_only() -> None:
    allocator, _, swa_ledger = made(8, 8, 1)
    slots = allocator.extend(0, 6, 0)
    assert allocator.evict_window(slots, 0, 6, 2) == 4
    assert (allocator.full.available, allocator.swa.available) == (2, 6)
    assert allocator.evict_window(slots, 4, 6, 2) == 4
    allocator.free(slots)
    assert (allocator.full.available, allocator.swa.available) == (8, 8)
    assert swa_ledger.misuses == []


def test_a_page_that_the_window_touches_stays_whole() -> None:
    allocator, _, _ = made(4, 4, 4)
    slots = allocator.extend(0, 13, 0)
    for seq_len, cursor in [(9, 4), (10, 4), (11, 4), (12, 8), (13, 8)]:
        assert window_cursor(0, seq_len, 4, 4) == cursor
        assert allocator.evict_window(slots, 0, seq_len, 4) == cursor
    assert allocator.swa_slots.tolist()[4:13] == [0] * 8 + [12]


def test_what_the_tree_owns_is_not_the_windows_to_free() -> None:
    allocator, _, _ = made(8, 8, 2)
    slots = allocator.extend(0, 12, 0)
    assert allocator.evict_window(slots, 4, 12, 4) == 8
    assert [bool(allocator.swa_slots[slot]) for slot in slots] == [True] * 4 + [False] * 4 + [True] * 4


def test_a_cursor_that_is_not_cut_with_the_tail_leaves_swa_slots_behind() -> None:
    """The effect of sgl-project/sglang#22900: the sweep starts beyond slots that were allocated after the cut."""
    left = []
    for cut_too in (True, False):
        allocator, _, _ = made(12, 12, 1)
        slots = allocator.extend(0, 10, 0)
        cursor = allocator.evict_window(slots, 0, 10, 2)
        allocator.free(slots[4:])
        slots = slots[:4] + allocator.extend(4, 8, slots[3])
        cursor = allocator.evict_window(slots, min(cursor, 4) if cut_too else cursor, 8, 2)
        left.append(sum(bool(allocator.swa_slots[slot]) for slot in slots[:6]))
    assert left == [0, 2]


def test_swa_slots_that_are_freed_in_a_group_come_back_when_it_ends() -> None:
    allocator, _, _ = made(3, 3, 2)
    slots = allocator.extend(0, 6, 0)
    allocator.free_group_begin()
    allocator.free_swa(slots[:2])
    allocator.free(slots[:4])
    assert (allocator.full.available, allocator.swa.available, allocator.pending) == (0, 0, slots[:4])
    allocator.free_group_end()
    assert (allocator.full.available, allocator.swa.available) == (4, 4)


def test_a_full_slot_that_is_freed_twice_is_noted_in_the_full_pool_alone() -> None:
    allocator, ledger, swa_ledger = made(2, 2, 1)
    slots = allocator.extend(0, 1, 0)
    allocator.free(slots)
    allocator.free(slots)
    assert [misuse for misuse, _ in ledger.misuses] == ["freed when free"]
    assert swa_ledger.misuses == []


def test_one_slot_of_a_page_stands_for_the_page_in_both_pools() -> None:
    allocator, _, _ = made(2, 2, 4)
    slots = allocator.extend(0, 8, 0)
    allocator.free_swa([slots[2]])
    allocator.free([slots[1], slots[7]])
    assert (allocator.full.available, allocator.swa.available) == (8, 8)
    assert not any(allocator.swa_slots)


def test_a_tree_evicts_from_both_pools() -> None:
    allocator, ledger, swa_ledger = made(4, 3, 2)
    cache = RadixCache(2, allocator)
    slots = allocator.extend(0, 6, 0)
    cache.insert([1, 2, 3, 4, 5, 6], slots)
    allocator.free_swa(slots[:2])
    assert cache.evict(1) == 6
    assert (allocator.full.available, allocator.swa.available) == (8, 6)
    assert ledger.misuses + swa_ledger.misuses == []


def test_slots_and_their_swa_slots_are_int32_as_a_kernel_reads_them() -> None:
    allocator, _, _ = made(3, 2, 4)
    assert (allocator.size, allocator.page_size, len(allocator.free_slots)) == (12, 4, 12)
    assert (allocator.swa_slots.typecode, allocator.swa_slots.itemsize, len(allocator.swa_slots)) == ("i", 4, 16)
