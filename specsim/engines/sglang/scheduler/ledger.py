"""Who gave a slot of the KV pool back while it was in use, by what was written to it and freed.

The release's allocator is watched from outside: its `free` is called as it is. The slots that it is given are known
once the device has made them, so they are read behind what was launched by then. No operation is launched for that, and
no tensor is kept: a schedule is the same with it and without.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

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

    def __init__(self, device: Any) -> None:
        self._device = device
        self._events: defaultdict[int, list[int | Freed]] = defaultdict(list)

    def restart(self) -> None:
        self._events.clear()

    def watch(self, allocator: Any) -> None:
        """Note from now on what this allocator is told to free."""
        free = allocator.free

        def noted(indices: Any) -> Any:
            by = _caller(sys._getframe(1))
            result = free(indices)
            if by is not None:
                slots = getattr(indices, "host_bytes", indices)
                self._behind_what_is_launched(lambda: self._free(slots.tolist(), by))
            return result

        allocator.free = noted

    def _free(self, slots: Iterable[int], by: Freed) -> None:
        for slot in slots:
            self._events[slot].append(by)

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


def _caller(frame: Any) -> Freed | None:
    """The innermost function outside the allocators; None for what they call by themselves."""
    while frame is not None and ALLOCATORS in frame.f_code.co_filename:
        if frame.f_code.co_name == GROUP_END:
            return None
        frame = frame.f_back
    code = frame.f_code
    return Freed(code.co_qualname, code.co_filename, frame.f_lineno)
