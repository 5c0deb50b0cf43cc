"""The KV of every slot, as the hash of the prefix whose last token it is of: what a model writes, and reads there.

An engine's adapter says which slots hold which positions of a request, and which of them a launch reads and writes.
What a position should hold follows from the request's tokens alone. What is not so is a record and no exception: the
schedule goes on, with tokens that are wrong as a model's would be.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from specsim.engine.rules.launches import BatchState
from specsim.engine.rules.liveness import DeviceException
from specsim.engine.rules.sampling import GrammarState, PenaltyCounts
from specsim.engine.rules.slots import FreeSlot
from specsim.world.hash_model import extended
from specsim.world.ledger import Freed, Ledger
from specsim.world.scheduler import Broken, Seen, WrongContent

UNWRITTEN = -1  # KV of a slot that nobody has written since it was freed last
REJECTED = -2  # KV of a draft that was rejected
REJECTED_OF_OTHERS = -3  # of another request than the one that reads it

Ints = np.ndarray[Any, np.dtype[np.int64]]


class Reader(Protocol):
    """A request of a batch: `owner` is whose its KV is, its session's or its own; `is_read` says whether anybody reads
    what is computed for it.
    """

    @property
    def rid(self) -> str: ...

    @property
    def owner(self) -> str: ...

    @property
    def is_read(self) -> bool: ...


class Record(Protocol):
    """Something that the model saw and that must not be."""

    def broken(self) -> Broken: ...


@dataclass(frozen=True, slots=True)
class Content:
    """KV that a forward pass read, or was about to write, and that is not what the position should hold."""

    phase: str  # "extend", "draft" or "verify"
    pool: str  # "full", "window", or "input" where the token is wrong and not the KV
    rid: str
    position: int  # in the sequence
    slot: int  # of the pool; 0 is no request's
    expected: int  # hash
    actual: int  # hash, UNWRITTEN or REJECTED
    freed: Freed | None = None  # who had the slot freed under it

    @property
    def wrong(self) -> WrongContent:
        """As a finding has it, without hashes."""
        holds = {UNWRITTEN: "nothing", REJECTED: "a rejected draft"}.get(self.actual, "other tokens")
        where, function = (self.freed.where, self.freed.function) if self.freed is not None else ("", "")
        return WrongContent(
            rid=self.rid,
            phase=self.phase,
            pool=self.pool,
            position=self.position,
            slot=self.slot,
            holds=holds,
            where=where,
            freed_by=function,
        )


@dataclass(frozen=True, slots=True)
class BadValue:
    """A number that the device read and that no valid schedule gives: memory that nobody had written yet."""

    phase: str
    rid: str
    name: str
    value: int

    def broken(self) -> Broken:
        what = f"{self.phase}:{self.name}"
        return Broken(DeviceException.rule.id, what, "a value that was written", f"{self.value} of {self.rid}")


@dataclass(frozen=True, slots=True)
class BadBatch:
    """An input of a launch that does not have one element for each request of its batch."""

    name: str
    expected: int  # requests
    actual: int  # elements

    def broken(self) -> Broken:
        expected = f"{self.expected}, one for each request of the batch"
        return Broken(BatchState.rule.id, self.name, expected, str(self.actual))


@dataclass(frozen=True, slots=True)
class FreeTwice:
    """A slot of the full pool that was freed while it was free."""

    slot: int
    by: Freed

    def broken(self) -> Broken:
        actual = f"slot {self.slot} twice in the free list, once more by {self.by.function}"
        return Broken(FreeSlot.rule.id, "free-list", "every slot once", actual, where=self.by.where)


@dataclass(frozen=True, slots=True)
class GrammarRead:
    """A grammar that had not read what a verification goes on from when the masks of its tokens were made."""

    rid: str
    expected: int  # tokens
    actual: int

    def broken(self) -> Broken:
        expected = f"{self.expected} tokens read, of {self.rid}"
        return Broken(GrammarState.rule.id, "verify", expected, str(self.actual))


@dataclass(frozen=True, slots=True)
class Penalized:
    """Penalties of a request that are not those of what it has said, when a verification applied them."""

    rid: str
    expected: str
    actual: str

    def broken(self) -> Broken:
        return Broken(PenaltyCounts.rule.id, "verify", f"{self.expected}, of {self.rid}", self.actual)


class Reports:
    """What a model saw, of each request the first of a kind: what follows from it says no more."""

    def __init__(self) -> None:
        self.records: list[Content | Record] = []
        self._kinds: set[tuple[str, str]] = set()

    def restart(self) -> None:
        self.records.clear()
        self._kinds.clear()

    def has(self, rid: str, kind: str) -> bool:
        return (rid, kind) in self._kinds

    def add(self, rid: str, kind: str, record: Content | Record) -> None:
        """`rid` is "" for what is of no request."""
        if not self.has(rid, kind):
            self._kinds.add((rid, kind))
            self.records.append(record)


def note(seen: Seen, records: Sequence[Content | Record], iterations: Iterable[int]) -> None:
    """Put the records of a run into what it left, each with the iteration in which it was made."""
    for record, iteration in zip(records, iterations, strict=True):
        if isinstance(record, Content):
            seen.contents.append(record.wrong)
            seen.contents_by.append(iteration)
            continue
        seen.device.append(record.broken())
        seen.device_by.append(iteration)
        if isinstance(record, Penalized):
            seen.unpenalized.add(record.rid)


class Kv:
    """An int64 hash for each slot of the full pool, and of a sliding window's pool; and who freed a slot when."""

    def __init__(self, reports: Reports, slots: int, window_slots: int = 0) -> None:
        self.full = np.full(slots, UNWRITTEN, np.int64)
        self.window = np.full(window_slots, UNWRITTEN, np.int64)
        self.ledger = Ledger()
        self._reports = reports
        self._drafted_by: dict[tuple[str, int], str] = {}  # by pool and slot who wrote the rejected draft in it

    def restart(self) -> None:
        """Forget all KV."""
        self.full.fill(UNWRITTEN)
        self.window.fill(UNWRITTEN)
        self.ledger.restart()
        self._drafted_by.clear()

    def read(
        self, reader: Reader, phase: str, pool: str, slots: Ints, expected: Ints, low: int, prefix: int = -1
    ) -> int:
        """What attention makes of these slots of a pool, which hold the positions from `low` on: the hash of the
        prefix, or the one that was read before, `prefix`. Compared at every position.
        """
        read = (self.full if pool == "full" else self.window)[slots]
        if (read == expected).all():
            return int(read[-1]) if prefix < 0 else prefix
        bad = int(np.argmax(read != expected))
        self.wrong(reader, phase, pool, low + bad, int(slots[bad]), int(expected[bad]), int(read[bad]))
        return extended(int(read[bad]) & (2**62 - 1), bad)  # attention has mixed it into all that follows

    def write(self, reader: Reader, slot: int, kv: int) -> None:
        self.full[slot] = kv
        self.ledger.wrote((slot,), (kv,))
        if kv == REJECTED:
            self._drafted_by["full", slot] = reader.owner

    def write_all(self, slots: Ints, kv: Ints) -> None:
        """What requests said, and no drafts."""
        self.full[slots] = kv
        self.ledger.wrote(slots.tolist(), kv.tolist())

    def write_window(self, reader: Reader, slot: int, kv: int) -> None:
        self.window[slot] = kv
        if kv == REJECTED:
            self._drafted_by["window", slot] = reader.owner

    def wrong(
        self, reader: Reader, phase: str, pool: str, position: int, slot: int, expected: int, actual: int
    ) -> None:
        """Note that a position of a request does not hold what it should."""
        if not reader.is_read or self._reports.has(reader.rid, "content"):
            return
        freed = self.ledger.freed_under(slot, expected) if pool == "full" else None
        if pool == "full" and freed is None and self.ledger.is_unwritten(slot):
            actual = UNWRITTEN  # what is in it was left by who had it before
        if actual == REJECTED and self._drafted_by.get((pool, slot)) != reader.owner:
            actual = REJECTED_OF_OTHERS
        record = Content(phase, pool, reader.rid, position, slot, expected, actual, freed)
        self._reports.add(reader.rid, "content", record)

    def freed_twice(self, slot: int, by: Freed) -> None:
        self._reports.add("", "free twice", FreeTwice(slot, by))
