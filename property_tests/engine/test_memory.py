"""Rows, slots and the ledger: what is handed out has one owner, and comes back once."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from property_tests.support.rule_checks import broken_by
from specsim.engine.accounting import Memory
from specsim.engine.config import EngineConfig
from specsim.engine.memory.allocator import Allocator, OutOfSlotsError, ceil_to
from specsim.engine.memory.rows import Rows, RowsExhaustedError
from specsim.engine.memory.sessions import Sessions
from specsim.engine.rules.audit import slots_seen
from specsim.engine.rules.ledger import Owner, SlotLedger

page_sizes = st.sampled_from([1, 2, 4, 16])


def made(pages: int, page_size: int) -> tuple[Allocator, SlotLedger]:
    ledger = SlotLedger(page_size)
    return Allocator(pages * page_size, page_size, ledger), ledger


class Lives(RuleBasedStateMachine):
    """Requests grow, shrink and go, inside free groups and outside."""

    @initialize(pages=st.integers(1, 12), page_size=page_sizes)
    def start(self, pages: int, page_size: int) -> None:
        self.page_size, self.size = page_size, pages * page_size
        self.allocator, self.ledger = made(pages, page_size)
        self.owned: list[list[int]] = []
        self.in_group = False
        self.freed_in_group: set[int] = set()

    @rule(length=st.integers(0, 20))
    def begin(self, length: int) -> None:
        self._extend([], length)

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), more=st.integers(0, 20))
    def grow(self, data: st.DataObject, more: int) -> None:
        slots = self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1)))
        self._extend(slots, len(slots) + more)

    def _extend(self, slots: list[int], end: int) -> None:
        pages = (ceil_to(end, self.page_size) - ceil_to(len(slots), self.page_size)) // self.page_size
        available = self.allocator.available
        last_slot = slots[-1] if slots else 0
        if pages * self.page_size > available:
            with pytest.raises(OutOfSlotsError, match=f"{pages * self.page_size} slots wanted, {available} available"):
                self.allocator.extend(len(slots), end, last_slot)
            assert self.allocator.available == available
            more = []
        else:
            more = self.allocator.extend(len(slots), end, last_slot)
            assert len(more) == end - len(slots)
            assert self.allocator.available == available - pages * self.page_size
            assert not set(more) & self.freed_in_group
        self.owned.append(slots + more)

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def free_tail(self, data: st.DataObject) -> None:
        at = data.draw(st.integers(0, len(self.owned) - 1))
        slots = self.owned[at]
        start = ceil_to(data.draw(st.integers(0, len(slots))), self.page_size)
        self._free(slots[start:])
        self.owned[at] = slots[:start]

    @precondition(lambda self: self.owned)
    @rule(data=st.data())
    def free_all(self, data: st.DataObject) -> None:
        self._free(self.owned.pop(data.draw(st.integers(0, len(self.owned) - 1))))

    def _free(self, slots: list[int]) -> None:
        self.allocator.free(slots)
        if self.in_group:
            self.freed_in_group |= set(slots)

    @precondition(lambda self: not self.in_group)
    @rule()
    def open_group(self) -> None:
        self.allocator.free_group_begin()
        self.ledger.free_group_begin()
        self.in_group = True

    @precondition(lambda self: self.in_group)
    @rule()
    def close_group(self) -> None:
        self.allocator.free_group_end()
        self.ledger.free_group_end()
        self.in_group = False
        self.freed_in_group.clear()

    @invariant()
    def nothing_is_lost_or_shared(self) -> None:
        if not hasattr(self, "allocator"):
            return
        pages_of = [sorted({slot // self.page_size for slot in slots}) for slots in self.owned]
        pages = [page for one in pages_of for page in one]
        assert len(set(pages)) == len(pages)
        assert 0 not in [slot for slots in self.owned for slot in slots]
        used = {page * self.page_size + i for page in pages for i in range(self.page_size)}
        free, pending = self.allocator.free_slots, self.allocator.pending
        assert sorted([*used, *free, *pending]) == list(range(self.page_size, self.page_size + self.size))
        assert len(free) == self.allocator.available
        assert self.ledger.used == used
        assert self.ledger.misuses == []

    @invariant()
    def positions_of_a_page_lie_one_after_the_other(self) -> None:
        for slots in getattr(self, "owned", []):
            for position, slot in enumerate(slots):
                assert slot % self.page_size == position % self.page_size
                if position % self.page_size:
                    assert slot == slots[position - 1] + 1


TestLives = Lives.TestCase


# Allocators


def test_slots_start_at_1_with_pages_of_one_and_at_the_second_page_with_larger_ones() -> None:
    assert made(3, 1)[0].free_slots == [1, 2, 3]
    assert made(2, 4)[0].free_slots == [4, 5, 6, 7, 8, 9, 10, 11]


def test_a_partial_page_is_continued_before_a_new_one_is_taken() -> None:
    allocator, _ = made(4, 4)
    first = allocator.extend(0, 6, 0)
    assert first == [4, 5, 6, 7, 8, 9]
    assert allocator.extend(6, 7, first[-1]) == [10]
    assert allocator.extend(7, 9, 10) == [11, 12]
    assert allocator.available == 4


def test_slots_of_a_free_group_come_back_when_it_ends() -> None:
    allocator, _ = made(2, 4)
    slots = allocator.extend(0, 8, 0)
    allocator.free_group_begin()
    allocator.free(slots[4:])
    assert (allocator.available, allocator.pending) == (0, [8, 9, 10, 11])
    allocator.free_group_end()
    assert (allocator.available, allocator.pending) == (4, [])


def test_a_page_that_comes_back_in_parts_inside_a_group_comes_back_once() -> None:
    allocator, ledger = made(2, 4)
    slots = allocator.extend(0, 8, 0)
    for memory in (allocator, ledger):
        memory.free_group_begin()
    allocator.free(slots[:3])
    allocator.free(slots[3:4])
    for memory in (allocator, ledger):
        memory.free_group_end()
    assert allocator.free_slots == [4, 5, 6, 7]
    assert ledger.misuses == []


@given(value=st.integers(0, 1000), page_size=page_sizes)
def test_ceil_to_is_the_least_multiple_that_is_not_smaller(value: int, page_size: int) -> None:
    up = ceil_to(value, page_size)
    assert up % page_size == 0
    assert value <= up < value + page_size


# The ledger


def test_a_slot_that_is_freed_twice_is_noted() -> None:
    allocator, ledger = made(2, 1)
    slots = allocator.extend(0, 1, 0)
    allocator.free(slots)
    allocator.free(slots)
    assert [misuse for misuse, _ in ledger.misuses] == ["freed when free"]


@pytest.mark.parametrize("at_once", [False, True])
def test_a_slot_that_is_freed_twice_inside_a_group_is_noted(at_once: bool) -> None:
    allocator, ledger = made(2, 1)
    slots = allocator.extend(0, 1, 0)
    for memory in (allocator, ledger):
        memory.free_group_begin()
    for freed in [slots * 2] if at_once else [slots, slots]:
        allocator.free(freed)
    assert [misuse for misuse, _ in ledger.misuses] == ["freed when free"]


@pytest.mark.parametrize(
    ("slots", "misuses"),
    [
        ([0], ["slot 0 allocated"]),
        ([3], ["allocated in its free group"]),
        ([5], ["allocated when in use"]),
        ([7, 7], ["allocated when in use"]),
        ([8, 9], []),
    ],
)
def test_the_ledger_notes_what_may_not_be_handed_out(slots: list[int], misuses: list[str]) -> None:
    ledger = SlotLedger()
    ledger.allocated([3, 5])
    ledger.free_group_begin()
    ledger.freed([3])
    ledger.allocated(slots)
    assert [misuse for misuse, _ in ledger.misuses] == misuses


def owned_memory(page_size: int, *lengths: int) -> tuple[Memory, SlotLedger, list[Owner]]:
    """Owners of rows, each with its slots."""
    config = EngineConfig(page_size=page_size, rows=3)
    allocator, ledger = made(16, page_size)
    memory = Memory(config, Rows(3, config.row_width), allocator, Sessions())
    owners = []
    for number, length in enumerate(lengths):
        row = memory.rows.alloc()
        memory.rows.write(row, 0, allocator.extend(0, length, 0))
        owners.append(Owner(f"r{number}", row, length))
    return memory, ledger, owners


def problem(memory: Memory, ledger: SlotLedger, owners: list[Owner]) -> str | None:
    return next(iter(broken_by(slots_seen("", memory, ledger, owners))), None)


@pytest.mark.parametrize("page_size", [1, 4])
def test_owners_of_distinct_slots_are_in_order(page_size: int) -> None:
    assert problem(*owned_memory(page_size, 5, 7, 0)) is None


@pytest.mark.parametrize(("page_size", "rule_id"), [(1, "I13"), (4, "I14")])
def test_slots_without_an_owner_are_a_leak(page_size: int, rule_id: str) -> None:
    memory, ledger, owners = owned_memory(page_size, 5, 7)
    memory.rows.free(owners[1].row)
    assert problem(memory, ledger, owners[:1]) == rule_id


@pytest.mark.parametrize(("page_size", "rule_id"), [(1, "I12"), (4, "I17")])
def test_a_slot_or_page_with_two_owners_is_found(page_size: int, rule_id: str) -> None:
    memory, ledger, owners = owned_memory(page_size, 5, 7)
    memory.rows.write(2, 6, memory.rows.read(1, 4, 5))
    assert problem(memory, ledger, owners) == rule_id


def test_an_owned_slot_that_is_free_is_found() -> None:
    memory, ledger, owners = owned_memory(1, 5)
    memory.allocator.free(memory.rows.read(1, 4, 5))
    assert problem(memory, ledger, owners) == "I16"


def test_a_row_with_two_owners_and_a_row_without_are_found() -> None:
    memory, ledger, owners = owned_memory(1, 5, 0)
    assert problem(memory, ledger, [*owners, Owner("r2", 1, 0)]) == "I18"
    assert problem(memory, ledger, owners[:1]) == "I18"
    memory.rows.free(1)
    assert problem(memory, ledger, owners) == "I18"


# Rows


@given(
    count=st.integers(1, 4),
    width=st.integers(1, 9),
    writes=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 9), st.lists(st.integers(1, 99), max_size=12))),
)
def test_rows_are_one_table_in_which_a_long_write_runs_on(
    count: int, width: int, writes: list[tuple[int, int, list[int]]]
) -> None:
    rows = Rows(count, width)
    table = [0] * ((count + 1) * width)
    for row, start, slots in writes:
        if row > count or start > width:
            continue
        rows.write(row, start, slots)
        at = row * width + start
        table[at : at + len(slots)] = slots[: len(table) - at]
    assert rows.buffer.tolist() == table
    for row in range(count + 1):
        assert rows.read(row, 0, width) == table[row * width : (row + 1) * width]


def test_a_row_that_a_tensor_looks_at_takes_writes_of_any_length() -> None:
    rows = Rows(2, 4)
    with memoryview(rows.buffer) as seen:
        for slots in ([], [7], [1, 2, 3, 4, 5, 6, 7, 8, 9]):
            rows.write(1, 0, slots)
        assert seen.tolist() == [0, 0, 0, 0, 1, 2, 3, 4, 5, 6, 7, 8]


def test_row_0_is_nobodys_and_rows_run_out() -> None:
    rows = Rows(2, 4)
    assert [rows.alloc(), rows.alloc()] == [1, 2]
    with pytest.raises(RowsExhaustedError, match="all 2 rows are taken"):
        rows.alloc()
    rows.free(2)
    rows.free(1)
    assert [rows.alloc(), rows.alloc()] == [2, 1]


def test_entries_are_int32_as_a_kernel_reads_them() -> None:
    rows = Rows(1, 3)
    assert (rows.buffer.typecode, rows.buffer.itemsize, len(rows.buffer)) == ("i", 4, 6)
