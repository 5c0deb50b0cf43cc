"""Slot allocators: token by token, or in pages.

Slots are numbered from 1; slot 0 takes the writes of padded entries and is never handed out. Slots that are freed
inside a free group come back when it ends, as one set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol


class OutOfSlotsError(Exception):
    """The pool cannot give what was asked for; the scheduler must look before it allocates."""

    def __init__(self, wanted: int, available: int) -> None:
        super().__init__(f"{wanted} slots wanted, {available} available")


class SlotWatcher(Protocol):
    """Sees every slot that changes hands."""

    def allocated(self, slots: list[int]) -> None: ...

    def freed(self, slots: list[int]) -> None: ...


class Allocator:
    """Hands out slots 1 to `size` in pages of `page_size`.

    `free` takes back the whole page of every slot in it; with pages of one slot, a slot that is named twice is freed
    twice. A page's slots are consecutive.
    """

    def __init__(self, size: int, page_size: int, watcher: SlotWatcher) -> None:
        self.size = size
        self.page_size = page_size
        self._watcher = watcher
        # Page i holds slots i * page_size to (i + 1) * page_size - 1. With pages of one slot, page 0 is slot 0.
        first = 1
        self._free_pages = list(range(first, first + size // page_size))
        self._group: list[int] | None = None

    def of_size(self, size: int) -> Allocator:
        """One like this before its first use, with another size."""
        return Allocator(size, self.page_size, self._watcher)

    @property
    def watcher(self) -> SlotWatcher:
        return self._watcher

    @property
    def free_slots(self) -> list[int]:
        """Every slot that could be handed out now."""
        return self._slots_of(self._free_pages)

    @property
    def available(self) -> int:
        return len(self._free_pages) * self.page_size

    @property
    def pending(self) -> list[int]:
        """Slots freed in the open free group, not yet available."""
        return self._slots_of(self._group or [])

    def _slots_of(self, pages: list[int]) -> list[int]:
        size = self.page_size
        return [slot for page in pages for slot in range(page * size, (page + 1) * size)] if size > 1 else pages[:]

    def extend(self, start: int, end: int, last_slot: int) -> list[int]:
        """Slots for positions `[start, end)` of a request; `last_slot` is that of position `start - 1`, unread when
        `start` is at a page's start.

        The partial page of `last_slot` is continued, then whole pages follow.
        """
        page_size = self.page_size
        slots: list[int] = []
        if start % page_size:
            in_page = min(end, -(-start // page_size) * page_size) - start
            slots += range(last_slot + 1, last_slot + 1 + in_page)
        pages = -(-(end - start - len(slots)) // page_size)
        if pages > len(self._free_pages):
            raise OutOfSlotsError(pages * page_size, self.available)
        taken = self._free_pages[:pages]
        del self._free_pages[:pages]
        whole = self._slots_of(taken)
        self._watcher.allocated(whole)
        return slots + whole[: end - start - len(slots)]

    def free(self, slots: Iterable[int]) -> None:
        pages = [slot // self.page_size for slot in slots]
        if self.page_size > 1:
            pages = list(dict.fromkeys(pages))
        self._watcher.freed(self._slots_of(pages))
        if self._group is None:
            self._free_pages += pages
        else:
            known = set(self._group)
            self._group += [page for page in pages if page not in known]

    def free_group_begin(self) -> None:
        self._group = []

    def free_group_end(self) -> None:
        pages, self._group = self._group or [], None
        self._free_pages += pages


def ceil_to(value: int, page_size: int) -> int:
    """`value` rounded up to whole pages."""
    return -(-value // page_size) * page_size
