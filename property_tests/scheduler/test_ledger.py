"""A slot is said to be freed under a request by whoever had it freed, after what it should hold was written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from types import CodeType, SimpleNamespace
from typing import Any, cast

import pytest
import torch

from specsim.engines.sglang.scheduler.freed import watch
from specsim.vdevice.device import Device
from specsim.world.kv import FreedTwice, Kv, Reports
from specsim.world.ledger import Freed

KV, OTHER = 7, 8
RELEASE = """
class Allocator:
    page_size = 1
    free_pages = torch.tensor([], dtype=torch.int64)

    def free(self, indices):
        freed.append(indices)
        self.free_pages = torch.cat((self.free_pages, indices // self.page_size))

    def free_group_end(self):
        self.free(freed[-1])
"""
CACHES = """
def finished(allocator, indices):
    allocator.free(indices)
"""


def release(freed: list[Any]) -> tuple[Any, Callable[..., None]]:
    """An allocator in a file of allocators, and a function of another file that frees by it."""
    names: dict[str, Any] = {"freed": freed, "torch": torch}
    for text, file in ((RELEASE, "/sglang/mem_cache/allocator.py"), (CACHES, "/sglang/mem_cache/radix.py")):
        code: CodeType = compile(text, file, "exec")
        exec(code, names)
    return names["Allocator"](), names["finished"]


def device(*pending: Any) -> Any:
    one = SimpleNamespace(current=SimpleNamespace(queue=deque(pending)))
    one.after = partial(Device.after, cast(Any, one))
    return one


def kv() -> Kv:
    return Kv(Reports(), 16)


def test_who_frees_is_the_caller_outside_the_allocators() -> None:
    held, (allocator, finished) = kv(), release([])
    watch(allocator, device(), held)
    ledger = held.ledger
    ledger.wrote((3, 4), (KV, KV))
    finished(allocator, torch.tensor([3]))
    freed = ledger.freed_under(3, KV)
    assert freed is not None
    assert (freed.function, freed.where) == ("finished", "mem_cache/radix.py:3")
    assert ledger.freed_under(4, KV) is None


def test_what_was_freed_before_is_nobodys_doing() -> None:
    held, (allocator, finished) = kv(), release([])
    watch(allocator, device(), held)
    ledger = held.ledger
    assert ledger.freed_under(3, KV) is None
    finished(allocator, torch.tensor([3]))
    ledger.wrote((3,), (OTHER,))
    assert ledger.freed_under(3, KV) is None
    ledger.wrote((3,), (KV,))
    assert ledger.freed_under(3, KV) is None
    ledger.restart()
    assert ledger.freed_under(3, KV) is None


def test_what_a_group_frees_at_its_end_was_freed_by_whoever_asked() -> None:
    freed: list[Any] = []
    held, (allocator, finished) = kv(), release(freed)
    watch(allocator, device(), held)
    ledger = held.ledger
    finished(allocator, torch.tensor([3]))
    ledger.wrote((3,), (KV,))
    allocator.free_group_end()
    assert len(freed) == 2
    assert ledger.freed_under(3, KV) is None


def test_slots_are_read_behind_what_is_launched() -> None:
    ran: list[str] = []
    slots = torch.tensor([0])

    def run(_by: object) -> None:
        ran.append("run")
        slots.fill_(3)

    operation = SimpleNamespace(run=run)
    held, (allocator, finished) = kv(), release([])
    watch(allocator, device(operation), held)
    ledger = held.ledger
    ledger.wrote((3,), (KV,))
    finished(allocator, slots)
    assert ledger.freed_under(3, KV) is None
    operation.run(None)
    assert ran == ["run"]
    assert ledger.freed_under(3, KV) is not None


@pytest.mark.parametrize("page_size", [1, 4])
def test_what_is_freed_while_it_is_free_is_told_with_who_frees_it(page_size: int) -> None:
    reports, (allocator, finished) = Reports(), release([])
    allocator.page_size = page_size
    watch(allocator, device(), Kv(reports, 16))
    finished(allocator, torch.tensor([4]))
    assert reports.records == []
    finished(allocator, torch.tensor([8, 4]))
    assert reports.records == [FreedTwice(4, Freed("finished", "mem_cache/radix.py:3"))]


def test_a_slot_holds_nothing_until_somebody_writes_to_it_again() -> None:
    held, (allocator, finished) = kv(), release([])
    allocator.page_size = 4
    watch(allocator, device(), held)
    ledger = held.ledger
    assert ledger.is_unwritten(5)
    ledger.wrote((5, 9), (KV, KV))
    finished(allocator, torch.tensor([4]))
    assert [ledger.is_unwritten(slot) for slot in (5, 9)] == [True, False]
    ledger.wrote((5,), (OTHER,))
    assert not ledger.is_unwritten(5)
