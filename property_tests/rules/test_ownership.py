"""The account of owners that is kept from check to check says what a look at everything says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from property_tests.support.rule_checks import broken_by
from specsim.engine.accounting import Memory
from specsim.engine.config import EngineConfig
from specsim.engine.memory.allocator import Allocator, ceil_to
from specsim.engine.memory.rows import Rows
from specsim.engine.memory.sessions import Sessions
from specsim.engine.rules.audit import slots_seen
from specsim.engine.rules.ledger import Owner, SlotLedger, is_sound
from specsim.engine.rules.ownership import Account

PAGES, ROWS, WIDTH = 24, 4, 16


class World:
    """Rows, an allocator and a ledger, with owners that do right and, now and then, wrong."""

    def __init__(self, page_size: int) -> None:
        self.page_size = page_size
        self.ledger = SlotLedger(page_size)
        allocator = Allocator(PAGES * page_size, page_size, self.ledger)
        config = EngineConfig(page_size=page_size)
        self.memory = Memory(config, Rows(ROWS, WIDTH), allocator, Sessions())
        self.owners: dict[str, Owner] = {}
        self.account = Account(self.memory, self.ledger)

    def arrive(self) -> None:
        if self.memory.rows.free_rows:
            row = self.memory.rows.alloc()
            name = next(name for name in "abcdefgh" if name not in self.owners)
            self.owners[name] = Owner(name, row, 0)

    def grow(self, name: str, count: int) -> None:
        owner = self.owners[name]
        end = min(owner.allocated + count, WIDTH)
        need = ceil_to(end, self.page_size) - ceil_to(owner.allocated, self.page_size)
        if need <= self.memory.allocator.available:
            rows = self.memory.rows
            last = rows.read(owner.row, owner.allocated - 1, owner.allocated)[0] if owner.allocated else 0
            rows.write(owner.row, owner.allocated, self.memory.allocator.extend(owner.allocated, end, last))
            self.owners[name] = Owner(name, owner.row, end, owner.protected)

    def leave(self, name: str) -> None:
        owner = self.owners.pop(name)
        self.memory.allocator.free(self.memory.rows.read(owner.row, owner.protected, owner.allocated))
        self.memory.rows.free(owner.row)

    def protect(self, name: str) -> None:
        """The tree takes the first whole pages of an owner."""
        owner = self.owners[name]
        end = owner.allocated // self.page_size * self.page_size
        if end > owner.protected:
            self.ledger.inserted("", (), 0, self.memory.rows.read(owner.row, owner.protected, end))
            self.owners[name] = Owner(name, owner.row, owner.allocated, end)


@given(st.data(), st.sampled_from([1, 2, 4]))
def test_the_account_says_what_a_look_at_everything_says(data: st.DataObject, page_size: int) -> None:
    world = World(page_size)
    slots = st.integers(1, PAGES * page_size)
    for _ in range(data.draw(st.integers(1, 25))):
        name = data.draw(st.sampled_from(sorted(world.owners))) if world.owners else ""
        kind = data.draw(st.sampled_from(["grow"] * 6 + ["arrive", "leave", "protect", "entry", "take", "give", "row"]))
        if kind == "arrive" or not name:
            world.arrive()
        elif kind == "grow":
            world.grow(name, data.draw(st.integers(1, 6)))
        elif kind == "leave":
            world.leave(name)
        elif kind == "protect":
            world.protect(name)
        elif kind == "entry" and world.owners[name].allocated:
            at = data.draw(st.integers(0, world.owners[name].allocated - 1))
            world.memory.rows.write(world.owners[name].row, at, [data.draw(slots)])
        elif kind == "take":
            world.ledger.allocated([data.draw(slots)])
        elif kind == "give":
            world.ledger.freed([data.draw(slots)])
        elif kind == "row":
            world.memory.rows.free(world.owners[name].row)
        owners = list(world.owners.values())
        everything = is_sound(world.memory, world.ledger, owners)
        assert world.account.is_sound(owners) == everything
        assert everything == (not broken_by(slots_seen("", world.memory, world.ledger, owners)))


@pytest.mark.parametrize("page_size", [1, 4])
def test_one_wrong_slot_among_many_is_seen(page_size: int) -> None:
    world = World(page_size)
    for name in "ab":
        world.arrive()
        world.grow(name, 8)
    owners = list(world.owners.values())
    assert world.account.is_sound(owners)
    world.memory.rows.write(world.owners["a"].row, 3, world.memory.rows.read(world.owners["b"].row, 3, 4))
    assert not world.account.is_sound(owners)
    assert not world.account.is_sound(owners)


@pytest.mark.parametrize("page_size", [1, 4])
def test_a_slot_lost_for_another_is_seen(page_size: int) -> None:
    world = World(page_size)
    world.arrive()
    world.grow("a", 8)
    owners = list(world.owners.values())
    assert world.account.is_sound(owners)
    world.ledger.freed(list(range(page_size, 2 * page_size)))
    world.ledger.allocated(list(range(20 * page_size, 21 * page_size)))
    assert not world.account.is_sound(owners)
