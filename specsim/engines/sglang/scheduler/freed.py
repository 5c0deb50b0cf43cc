"""Who gives slots of the KV pool back, as the world's ledger notes it.

The release's allocator is watched from outside: its `free` is called as it is. The slots that it is given are known
once the device has made them, so they are read behind what was launched by then. No operation is launched for that, and
no tensor is kept: a schedule is the same with it and without.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from typing import Any

import numpy as np

from specsim.engines.sglang.scheduler.modules import below
from specsim.world.kv import Kv
from specsim.world.ledger import Freed

ALLOCATORS = "/mem_cache/allocator"
"""In the names of a release's files: functions of these free what others have them free."""
GROUP_END = "free_group_end"
"""Frees once more what was to be freed since a group began."""


def watch(allocator: Any, device: Any, kv: Kv) -> None:
    """Note from now on what this allocator is told to free."""
    free, page = allocator.free, int(allocator.page_size)

    def noted(indices: Any) -> Any:
        by, is_first_time = _caller(sys._getframe(1))
        slots = _on_the_host(indices)
        try:
            return free(indices)
        finally:  # an allocator that looks itself raises when it has freed them
            lists = _free_lists(allocator)
            freed = slots if is_first_time else None
            device.after(device.current, lambda: _note(kv, freed, lists, page, by))

    allocator.free = noted


def _note(kv: Kv, indices: Any, free_lists: list[Any], page: int, by: Freed) -> None:
    """A page is freed whole."""
    for number in dict.fromkeys(slot // page for slot in indices.tolist()) if indices is not None else ():
        kv.ledger.freed(range(number * page, (number + 1) * page), by)
    twice = _twice(free_lists)
    if twice is not None:
        kv.freed_twice(twice * page, by)


def _caller(frame: Any) -> tuple[Freed, bool]:
    """The innermost function outside the allocators; and whether it frees these slots for the first time, or the end of
    a group does.
    """
    is_first_time = True
    while frame is not None and ALLOCATORS in frame.f_code.co_filename:
        is_first_time &= frame.f_code.co_name != GROUP_END
        frame = frame.f_back
    code = frame.f_code
    return Freed(code.co_qualname, below(code.co_filename, frame.f_lineno)), is_first_time


def _on_the_host(tensor: Any) -> Any:
    """The numbers of a tensor, once the device has made them."""
    return getattr(tensor, "host_bytes", tensor)


def _free_lists(allocator: Any) -> list[Any]:
    """The lists of free pages of the full pool as they are now."""
    pool = getattr(allocator, "full_attn_allocator", allocator)
    lists = (pool.free_pages, getattr(pool, "release_pages", None), *getattr(pool, "staged_pages", ()))
    return [_on_the_host(pages) for pages in lists if pages is not None]


def _twice(lists: Iterable[Any]) -> int | None:
    """A page that is in them twice, None for none."""
    pages = np.concatenate([pages.numpy() for pages in lists])
    numbers, counts = np.unique(pages, return_counts=True)
    return int(numbers[counts > 1][0]) if len(numbers) < len(pages) else None
