"""By slot of the KV pool what was written to it and who had it freed, in the order in which the device did both."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple


class Freed(NamedTuple):
    """The function of the target that had a slot freed, and FILE:LINE."""

    function: str
    where: str


class Ledger:
    def __init__(self) -> None:
        self._events: defaultdict[int, list[int | Freed]] = defaultdict(list)

    def restart(self) -> None:
        self._events.clear()

    def wrote(self, slots: Iterable[int], contents: Iterable[int]) -> None:
        for slot, content in zip(slots, contents, strict=True):
            self._events[slot].append(content)

    def freed(self, slots: Iterable[int], by: Freed) -> None:
        for slot in slots:
            self._events[slot].append(by)

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
