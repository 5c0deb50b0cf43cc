"""Who gave a slot of the KV pool back while it was in use, or twice, by what was written to it and freed.

The release's allocator is watched from outside: its `free` is called as it is. The slots that it is given are known
once the device has made them, so they are read behind what was launched by then. No operation is launched for that, and
no tensor is kept: a schedule is the same with it and without.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np

ALLOCATORS = "/mem_cache/allocator"
"""In the names of a release's files: functions of these free what others have them free."""
GROUP_END = "free_group_end"
"""Frees once more what was to be freed since a group began."""


class Freed(NamedTuple):
    """The function of the release that had a slot freed, and its file and line."""

    function: str
    file: str
    line: int


class Ledger:
    """By slot what was written to it, and who had it freed, in the order in which the device did both."""

    def __init__(self, device: Any, on_twice: Callable[[int, Freed], None]) -> None:
        """`on_twice` is told a slot that is free twice, and who freed it then."""
        self._device, self._on_twice = device, on_twice
        self._events: defaultdict[int, list[int | Freed]] = defaultdict(list)

    def restart(self) -> None:
        self._events.clear()

    def watch(self, allocator: Any) -> None:
        """Note from now on what this allocator is told to free."""
        free, page = allocator.free, int(allocator.page_size)

        def noted(indices: Any) -> Any:
            by, is_first_time = _caller(sys._getframe(1))
            slots = _on_the_host(indices)
            try:
                return free(indices)
            finally:  # an allocator that looks itself raises when it has freed them
                lists = _free_lists(allocator)
                self._behind_what_is_launched(lambda: self._note(slots, lists, page, by, is_first_time))

        allocator.free = noted

    def _note(self, indices: Any, free_lists: list[Any], page: int, by: Freed, is_first_time: bool) -> None:
        """A page is freed whole."""
        for number in dict.fromkeys(slot // page for slot in indices.tolist() if is_first_time):
            for slot in range(number * page, (number + 1) * page):
                self._events[slot].append(by)
        twice = _twice(free_lists)
        if twice is not None:
            self._on_twice(twice * page, by)

    def _behind_what_is_launched(self, note: Callable[[], None]) -> None:
        queue = self._device.current.queue
        if not queue:
            note()
            return
        operation = queue[-1]
        run = operation.run

        def run_and_note(by: Any) -> None:
            if run is not None:
                run(by)
            note()

        operation.run = run_and_note

    def wrote(self, slots: Iterable[int], contents: Iterable[int]) -> None:
        for slot, content in zip(slots, contents, strict=True):
            self._events[slot].append(content)

    def freed_under(self, slot: int, content: int) -> Freed | None:
        """Who had a slot freed first, after this content was written to it; None where nobody did, or it never was."""
        events = self._events[slot]
        if content not in events:
            return None
        written = len(events) - events[::-1].index(content)
        return next((event for event in events[written:] if isinstance(event, Freed)), None)

    def is_unwritten(self, slot: int) -> bool:
        """Whether nobody has written to a slot since it was freed last."""
        events = self._events[slot]
        return not events or isinstance(events[-1], Freed)


def _caller(frame: Any) -> tuple[Freed, bool]:
    """The innermost function outside the allocators; and whether it frees these slots for the first time, or the end of
    a group does.
    """
    is_first_time = True
    while frame is not None and ALLOCATORS in frame.f_code.co_filename:
        is_first_time &= frame.f_code.co_name != GROUP_END
        frame = frame.f_back
    code = frame.f_code
    return Freed(code.co_qualname, code.co_filename, frame.f_lineno), is_first_time


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
