"""A slot is said to be freed under a request by whoever had it freed, after what it should hold was written."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from types import CodeType, SimpleNamespace
from typing import Any

import torch

from specsim.engines.sglang.scheduler.ledger import Ledger

KV, OTHER = 7, 8
RELEASE = """
class Allocator:
    def free(self, indices):
        freed.append(indices)

    def free_group_end(self):
        self.free(freed[-1])
"""
CACHES = """
def finished(allocator, indices):
    allocator.free(indices)
"""


def release(freed: list[Any]) -> tuple[Any, Callable[..., None]]:
    """An allocator in a file of allocators, and a function of another file that frees by it."""
    names: dict[str, Any] = {"freed": freed}
    for text, file in ((RELEASE, "/r/mem_cache/allocator.py"), (CACHES, "/r/mem_cache/radix.py")):
        code: CodeType = compile(text, file, "exec")
        exec(code, names)
    return names["Allocator"](), names["finished"]


def device(*pending: Any) -> Any:
    return SimpleNamespace(current=SimpleNamespace(queue=deque(pending)))


def test_who_frees_is_the_caller_outside_the_allocators() -> None:
    ledger, (allocator, finished) = Ledger(device()), release([])
    ledger.watch(allocator)
    ledger.wrote((3, 4), (KV, KV))
    finished(allocator, torch.tensor([3]))
    freed = ledger.freed_under(3, KV)
    assert freed is not None
    assert (freed.function, freed.file, freed.line) == ("finished", "/r/mem_cache/radix.py", 3)
    assert ledger.freed_under(4, KV) is None


def test_what_was_freed_before_is_nobodys_doing() -> None:
    ledger, (allocator, finished) = Ledger(device()), release([])
    ledger.watch(allocator)
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
    ledger, (allocator, finished) = Ledger(device()), release(freed)
    ledger.watch(allocator)
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
    ledger, (allocator, finished) = Ledger(device(operation)), release([])
    ledger.watch(allocator)
    ledger.wrote((3,), (KV,))
    finished(allocator, slots)
    assert ledger.freed_under(3, KV) is None
    operation.run(None)
    assert ran == ["run"]
    assert ledger.freed_under(3, KV) is not None
