"""The allocator of a model in which some layers attend to a sliding window only (SWA).

Two pools of slots. A row names slots of the full pool, and `swa_slots` leads from each to the slot of its token in the
pool of the window's layers, 0 when that was given back. Both are taken together and a window slot may go earlier, so
each pool has a rule of its own: a request holds the full slots of `[protected, allocated)` and the window slots of
`[max(protected, cursor), allocated)`, in whole pages.

It does not know which positions are still to be read: who says how far the window has moved answers for it.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence

from specsim.engine.memory.allocator import Allocator, OutOfSlotsError, SlotWatcher, ceil_to


def window_cursor(cursor: int, seq_len: int, window: int, page_size: int) -> int:
    """The position, in whole pages, below which no query from position `seq_len` on reads; never before `cursor`.

    A query at position q reads `[q - window, q]`. `seq_len` is the first position of any query that is launched and
    unresolved, or to come.
    """
    behind = max(seq_len - window, 0)
    return max(cursor, behind - behind % page_size)


class SwaAllocator:
    """Hands out slots 1 to `size`, each with a slot of a second pool of `swa_size`. Pages and groups as in `Allocator`.

    `full`       the pool of the layers that see everything
    `swa`        the pool of the layers that see the window
    `swa_slots`  int32 [size + page_size]: by full slot, the slot in `swa`, or 0 for none
    `mapped`     where it is a list, gets what is written to `swa_slots`: full slot, swa slot

    A page of one pool goes with a page of the other. Slots are those of the full pool unless they are called swa.
    Source: SGLang's SWA allocator; both rules sgl-project/sglang#22900, #40681.
    """

    def __init__(
        self, size: int, swa_size: int, page_size: int, watcher: SlotWatcher, swa_watcher: SlotWatcher
    ) -> None:
        self.full = Allocator(size, page_size, watcher)
        self.swa = Allocator(swa_size, page_size, swa_watcher)
        self.swa_slots = array("i", bytes(4 * (size + page_size)))
        self.mapped: list[tuple[int, int]] | None = None

    @property
    def size(self) -> int:
        return self.full.size

    @property
    def page_size(self) -> int:
        return self.full.page_size

    @property
    def free_slots(self) -> list[int]:
        """Every slot of the full pool that is free; the other pool may have fewer."""
        return self.full.free_slots

    @property
    def available(self) -> int:
        """How many can be handed out now: what both pools have."""
        return min(self.full.available, self.swa.available)

    @property
    def pending(self) -> list[int]:
        """Slots of the full pool that were freed in the open free group."""
        return self.full.pending

    def extend(self, start: int, end: int, last_slot: int) -> list[int]:
        """Slots for positions `[start, end)` of a request, as `Allocator.extend`, each with its swa slot.

        Raises OutOfSlotsError, with both pools as they were, when either has too few. A partial page that is continued
        has the swa page it was given; one that was given back does not come again.
        """
        page_size = self.page_size
        aligned = ceil_to(start, page_size)
        wanted = max(ceil_to(end, page_size) - aligned, 0)
        if wanted > self.available:
            raise OutOfSlotsError(wanted, self.available)
        slots = self.full.extend(start, end, last_slot)
        if wanted:
            whole = self._pages_from(slots[aligned - start :: page_size])
            for slot, swa_slot in zip(whole, self.swa.extend(0, wanted, 0), strict=True):
                self._map(slot, swa_slot)
        return slots

    def free(self, slots: Iterable[int]) -> None:
        """Take back the whole page of every slot, from both pools; the swa pages that are still there."""
        slots = list(slots)
        self.free_swa(slots)
        self.full.free(slots)

    def free_swa(self, slots: Iterable[int]) -> None:
        """Take back the swa page of every slot that still has one; the slots stay their owner's."""
        page_size, swa_slots = self.page_size, self.swa_slots
        pages = dict.fromkeys([slot // page_size for slot in slots])
        whole = self._pages_from([page * page_size for page in pages if swa_slots[page * page_size]])
        if whole:
            self.swa.free([swa_slots[slot] for slot in whole])
            for slot in whole:
                self._map(slot, 0)

    def hand_over(self, slots: Sequence[int], to: Sequence[int]) -> None:
        """Let the slots `to`, which have none, have the swa slots of `slots`; both are whole pages."""
        for slot, other in zip(slots, to, strict=True):
            self._map(other, self.swa_slots[slot])
            self._map(slot, 0)

    def evict_window(self, slots: Sequence[int], cursor: int, seq_len: int, window: int) -> int:
        """Take back the swa slots that have fallen behind the window; returns the new cursor.

        `slots` are those of the row's positions from 0 to the new cursor at least. Those below `cursor`, a multiple of
        page_size, are the tree's or lost their swa slots before. `seq_len` and `window` as in `window_cursor`.
        """
        moved = window_cursor(cursor, seq_len, window, self.page_size)
        if moved > cursor:
            self.free_swa(slots[cursor:moved])
        return moved

    def free_group_begin(self) -> None:
        self.full.free_group_begin()
        self.swa.free_group_begin()

    def free_group_end(self) -> None:
        self.full.free_group_end()
        self.swa.free_group_end()

    def _map(self, slot: int, swa_slot: int) -> None:
        self.swa_slots[slot] = swa_slot
        if self.mapped is not None:
            self.mapped.append((slot, swa_slot))

    def _pages_from(self, firsts: list[int]) -> list[int]:
        """Every slot of the pages that start at `firsts`."""
        if self.page_size == 1:
            return firsts
        return [slot for first in firsts for slot in range(first, first + self.page_size)]
