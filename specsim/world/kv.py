"""The KV of every slot, as the hash of the prefix whose last token it is of: what a model writes, and reads there.

An engine's adapter says which slots hold which positions of a request, and which of them a launch reads and writes.
What a position should hold follows from the request's tokens alone. What is not so is a record and no exception: the
schedule goes on, with tokens that are wrong as a model's would be.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import numpy as np

from specsim.world.hash_model import extended
from specsim.world.kv_events import Published
from specsim.world.ledger import Freed, Ledger
from specsim.world.scheduler import WrongContent

UNWRITTEN = -1  # KV of a slot that nobody has written since it was freed last
REJECTED = -2  # KV of a draft that was rejected
REJECTED_OF_OTHERS = -3  # of another request than the one that reads it

UNMASKED = -1  # what a grammar has read of which no masks were made

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


def wrong_content(
    phase: str, pool: str, rid: str, position: int, slot: int, actual: int, freed: Freed | None = None
) -> WrongContent:
    """The record of KV that a forward pass read, or was about to write, and that is not what the position should hold.

    `phase`    "extend", "draft", "verify", or "send" where it is handed on
    `pool`     "full", "window", or "input" where the token is wrong and not the KV
    `position` in the sequence
    `slot`     of the pool; 0 is no request's
    `actual`   hash, UNWRITTEN or REJECTED
    `freed`    who had the slot freed under it
    """
    holds = {UNWRITTEN: "nothing", REJECTED: "a rejected draft"}.get(actual, "other tokens")
    where, function = (freed.where, freed.function) if freed is not None else ("", "")
    return WrongContent(rid, phase, pool, position, slot, holds, function, where)


def content_name(names: Mapping[int, str], content: int) -> str:
    """What a slot holds, for a reader: its name of those that are known, or the first digits of the hash."""
    special = {UNWRITTEN: "", REJECTED: "a rejected draft"}
    return special[content] if content in special else names.get(content) or f"#{content:016x}"[:9]


@dataclass(frozen=True, slots=True)
class BadValue:
    """A number that the device read and that no valid schedule gives: memory that nobody had written yet."""

    phase: str
    rid: str
    name: str
    value: int


@dataclass(frozen=True, slots=True)
class BatchInput:
    """An input of a launch, or a list of a message: how many requests its batch has, and how many elements it has
    itself.
    """

    name: str
    requests: int
    elements: int


@dataclass(frozen=True, slots=True)
class Disagreement:
    """What one part of an engine has of `what`, where it should have what another one has: "" for no request of all."""

    what: str
    rid: str
    expected: str
    actual: str


@dataclass(frozen=True, slots=True)
class DraftsCounted:
    """Correct drafts of a batch, as the engine adds them to its counter."""

    drafts: int


@dataclass(frozen=True, slots=True)
class FreedTwice:
    """A slot of the full pool that was freed while it was free."""

    slot: int
    by: Freed


@dataclass(frozen=True, slots=True)
class DraftRead:
    """What the draft model read and that is not of its request's own tokens: its drafts are then worth less."""

    rid: str
    name: str  # what it is ("hidden-state", "position", "KV", ...), and in which part of the request
    position: int
    expected: int
    actual: int
    is_content: bool = True  # a hash, of KV or a hidden state; else a token, a position or a count


@dataclass(frozen=True, slots=True)
class Masked:
    """A verification of a request with a grammar: the tokens that it goes on from, those that the grammar allows, and
    those that it had read when the masks of the verification's tokens were made, UNMASKED where none were. All are
    counts, from the answer's first token on.
    """

    rid: str
    said: int
    allowed: int
    read: int


@dataclass(frozen=True, slots=True)
class BeyondRow:
    """At a launch, a request that has slots for more positions than its row has."""

    rid: str
    claimed: int
    allocated: int
    width: int


@dataclass(frozen=True, slots=True)
class NoSlot:
    """A position of a request that a pass writes, and that its row has no slot for."""

    phase: str
    rid: str
    position: int


class Penalties(NamedTuple):
    """What a user asked for; 0, 0 and 1 are none."""

    frequency: float
    presence: float
    repetition: float

    @property
    def are_some(self) -> bool:
        return self != (0.0, 0.0, 1.0)


@dataclass(frozen=True, slots=True)
class Penalized:
    """A verification of a request beside which somebody has penalties: by token what is added to its logit, and what
    that is scaled by. `may` are tokens that may be penalized, `verifications` those since its prefill, with this one.
    """

    rid: str
    wanted: Penalties
    may: frozenset[int]
    verifications: int
    added: Mapping[int, float]
    scaled: Mapping[int, float]


OBSERVATIONS = (BatchInput, DraftsCounted, Masked, Penalized, Published)
"""Kinds of records of which a rule has to say whether they are right; the others are wrong by themselves."""


class Reports:
    """What a model saw, in the order in which it did."""

    def __init__(self) -> None:
        self.records: list[Any] = []
        self._kinds: set[tuple[str, str]] = set()

    def restart(self) -> None:
        self.records.clear()
        self._kinds.clear()

    def has(self, rid: str, kind: str) -> bool:
        return (rid, kind) in self._kinds

    def add(self, record: Any) -> None:
        self.records.append(record)

    def add_first(self, rid: str, kind: str, record: Any) -> None:
        """Of each request the first of a kind: what follows from it says no more. `rid` is "" for what is of none."""
        if not self.has(rid, kind):
            self._kinds.add((rid, kind))
            self.records.append(record)


class Kv:
    """An int64 hash for each slot of the full pool, and of a sliding window's pool; and who freed a slot when."""

    def __init__(self, reports: Reports, slots: int, window_slots: int = 0) -> None:
        self.full = np.full(slots, UNWRITTEN, np.int64)
        self.window = np.full(window_slots, UNWRITTEN, np.int64)
        self.ledger, self.window_ledger = Ledger(), Ledger()
        self.writers: dict[int, str] = {}  # by slot of the full pool, the request for which it was written last
        self._reports = reports
        self._drafted_by: dict[tuple[str, int], str] = {}  # by pool and slot who wrote the rejected draft in it

    def restart(self) -> None:
        """Forget all KV."""
        self.full.fill(UNWRITTEN)
        self.window.fill(UNWRITTEN)
        self.ledger.restart()
        self.window_ledger.restart()
        self.writers.clear()
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
        self.writers[slot] = reader.rid
        self.ledger.wrote((slot,), (kv,))
        if kv == REJECTED:
            self._drafted_by["full", slot] = reader.owner

    def write_all(self, reader: Reader, slots: Ints, kv: Ints) -> None:
        """What a request said, and no drafts."""
        self.full[slots] = kv
        numbers = slots.tolist()
        self.writers.update(dict.fromkeys(numbers, reader.rid))
        self.ledger.wrote(numbers, kv.tolist())

    def write_window(self, reader: Reader, slot: int, kv: int) -> None:
        self.window[slot] = kv
        self.window_ledger.wrote((slot,), (kv,))
        if kv == REJECTED:
            self._drafted_by["window", slot] = reader.owner

    def wrong(
        self, reader: Reader, phase: str, pool: str, position: int, slot: int, expected: int, actual: int
    ) -> None:
        """Note that a position of a request does not hold what it should."""
        if not reader.is_read or self._reports.has(reader.rid, "content"):
            return
        ledger = {"full": self.ledger, "window": self.window_ledger}.get(pool)
        freed = ledger.freed_under(slot, expected) if ledger is not None else None
        if ledger is not None and freed is None and ledger.is_unwritten(slot):
            actual = UNWRITTEN  # what is in it was left by who had it before
        if actual == REJECTED and self._drafted_by.get((pool, slot)) != reader.owner:
            actual = REJECTED_OF_OTHERS
        self._reports.add_first(
            reader.rid, "content", wrong_content(phase, pool, reader.rid, position, slot, actual, freed)
        )

    def freed_twice(self, slot: int, by: Freed) -> None:
        self._reports.add_first("", "free twice", FreedTwice(slot, by))
