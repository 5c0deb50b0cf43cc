"""The store of a campaign: one SQLite file, which holds what was run, reached and found.

The result of a batch is written in one transaction, so that what is counted is counted once and what was found stays
found, whenever a process is killed or a disk is full. One process writes (it holds a lock on FILE.lock), any number
read meanwhile. Nothing is decided by the wall clock: the time of a batch is there to be shown.

    meta      format, specsim, campaign (the seed), created, plan (what the campaign draws its batches from, JSON)
    batches   one row for each batch that was run; `campaign` is the seed that it was drawn from
    coverage  cases of an implementation that were checked, and the batch that was the first
    findings  one row for each signature and target; shard, number, run and cpu_seconds are those of its first hit
    seen      what each version of a target showed of a signature
    replays   the smallest replay files of a signature, at most `REPLAYS_MAX`

Seeds are text there: SQLite's integers end at 2**63 - 1.

A store may come from elsewhere, damaged or made to do harm: each row that is read is checked against the types below.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import msgspec

from specsim.errors import UsageError
from specsim.fuzz.store_file import locked, readable, writable
from specsim.fuzz.work import BatchResult, RunFinding

REPLAYS_MAX = 3  # of a signature on a target

Verdict = Literal["shown", "fixed", "not applicable"]
State = Literal["open", "fixed", "not applicable"]
Row = TypeVar("Row")
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, le=1e11)]
Clock = Annotated[float, msgspec.Meta(ge=-1e19, le=1e19)]  # the clock of a machine may be wrong

_GO_ON = "what was stored before is safe: specsim fuzz --resume --store {path} goes on with it"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch that was run. `at` is the wall clock when it was stored, in seconds since 1970, to show only."""

    shard: Count
    number: Count
    first: Count
    count: Count
    target: str
    version: str
    tier: str
    runs: Count
    events: Count
    seconds: Seconds
    cpu_seconds: Seconds
    refused: dict[str, Count]
    ended: str
    at: Clock
    campaign: int


@dataclass(frozen=True, slots=True)
class ReachedFeature:
    """A feature that runs of a target reached: how many, and the batch that was the first."""

    target: str
    feature: str
    runs: Count
    shard: Count
    number: Count


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding of a target. Shard, number and run are those of its first hit; `cpu_seconds` the CPU time of the whole
    campaign until then; `first_seen` and `last_seen` versions of the target. A `count` of 0 says that it was
    found on another target, and that its replay file shows it on this one too.
    """

    signature: str
    target: str
    tier: str
    rule: str
    title: str
    severity: str
    reach: str
    where: str
    count: Count
    shard: Count
    number: Count
    run: int
    cpu_seconds: Seconds
    first_seen: str
    last_seen: str
    state: State


@dataclass(frozen=True, slots=True)
class SeenFinding:
    """What a version of a target showed of a signature."""

    signature: str
    target: str
    version: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class StoredReplay:
    """The text of a replay file; `size` is what smaller ones are compared by."""

    signature: str
    target: str
    digest: str
    size: tuple[int, ...]
    text: str


class Store:
    """A store that is open. Made by `Store.open`; close it at the end. For one thread."""

    def __init__(self, path: Path, connection: sqlite3.Connection, lock: int | None) -> None:
        self.path = path
        self._connection = connection
        self._lock = lock
        self._inode = path.stat().st_ino
        self._stored: dict[int, set[int]] = {}  # numbers of batches by their shard, without those below the next one
        self._next: dict[int, int] = {}

    @classmethod
    def open(cls, path: Path, read_only: bool = False, campaign: int = 0) -> Store:
        """The store in the file, which is made when there is none: for the seed `campaign`. UsageError when the file
        cannot be used.
        """
        if read_only:
            return cls(path, readable(path), None)
        lock = locked(path)
        try:
            return cls(path, writable(path, campaign), lock)
        except BaseException:
            os.close(lock)
            raise

    def close(self) -> None:
        """Close the file, and let others write it."""
        with contextlib.suppress(sqlite3.Error):
            self._connection.close()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_error: object) -> None:
        self.close()

    # The campaign

    @property
    def campaign(self) -> int:
        """The seed of the campaign."""
        text = self.meta().get("campaign", "")
        if not (text.isascii() and text.isdigit() and len(text) <= 40):
            raise self._damaged(f"its campaign is {text[:80]!r}")
        return int(text)

    def meta(self) -> dict[str, str]:
        rows = self._all("SELECT key, value FROM meta ORDER BY key")
        return self._converted(dict[str, str], {row["key"]: row["value"] for row in rows})

    def set_meta(self, **values: str) -> None:
        with self._transaction() as cursor:
            cursor.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", list(values.items()))

    # Batches

    def next_number(self, shard: int, taken: Collection[int] = ()) -> int:
        """The lowest number of a batch of the shard that is neither stored nor `taken`: what was lost when a process
        was killed is run before anything new.
        """
        number = self._next_of(shard)
        stored = self._stored[shard]
        while number in stored or number in taken:
            number += 1
        return number

    def _next_of(self, shard: int) -> int:
        if shard not in self._stored:
            rows = self._all("SELECT number FROM batches WHERE shard = ?", shard)
            self._stored[shard] = {self._converted(int, row["number"]) for row in rows}
            self._next[shard] = 0
        stored = self._stored[shard]
        while self._next[shard] in stored:
            stored.remove(self._next[shard])
            self._next[shard] += 1
        return self._next[shard]

    def add(self, result: BatchResult) -> bool:
        """Store what became of a batch, whole or not at all; False when it was there already.
        UsageError when the file cannot be written.
        """
        batch = result.batch
        with self._transaction() as cursor:
            before = cursor.execute("SELECT total(cpu_seconds) FROM batches").fetchone()[0]
            cursor.execute(
                f"INSERT OR IGNORE INTO batches VALUES ({', '.join('?' * 15)})",
                (
                    batch.shard,
                    batch.number,
                    batch.first,
                    batch.count,
                    batch.target,
                    result.version,
                    batch.tier,
                    result.runs,
                    result.events,
                    result.seconds,
                    result.cpu_seconds,
                    json.dumps({_plain(why): count for why, count in result.refused.items()}),
                    _plain(result.ended),
                    time.time(),
                    str(batch.campaign),
                ),
            )
            if cursor.rowcount == 0:
                return False
            cursor.executemany(
                "INSERT INTO coverage VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT(target, feature) DO UPDATE SET runs = runs + excluded.runs",
                [(batch.target, name, runs, batch.shard, batch.number) for name, runs in result.features.items()],
            )
            for found in result.findings:
                _put_finding(cursor, result, found, before)
        if batch.shard in self._stored:
            self._stored[batch.shard].add(batch.number)
        return True

    def batches(self) -> list[StoredBatch]:
        """Every batch, in the order in which they were stored."""
        return self._rows(StoredBatch, "SELECT * FROM batches ORDER BY rowid")

    def batch_of(self, shard: int, index: int) -> StoredBatch | None:
        """The batch that run `index` of the shard is in, None when it is not stored."""
        query = "SELECT * FROM batches WHERE shard = ? AND first <= ? AND first + count > ?"
        found = self._rows(StoredBatch, query, shard, index, index)
        return found[0] if found else None

    def totals(self) -> tuple[int, int, float]:
        """Runs, events and CPU seconds of all batches."""
        rows = self._all("SELECT ifnull(sum(runs), 0), ifnull(sum(events), 0), total(cpu_seconds) FROM batches")
        return self._converted(tuple[int, int, float], tuple(rows[0]))

    # Coverage

    def coverage(self) -> list[ReachedFeature]:
        """Every feature that was reached."""
        return self._rows(ReachedFeature, "SELECT * FROM coverage ORDER BY target, feature")

    # Findings

    def findings(self) -> list[StoredFinding]:
        """Every finding, by its target and signature."""
        return self._rows(StoredFinding, "SELECT * FROM findings ORDER BY target, signature")

    def seen(self) -> list[SeenFinding]:
        return self._rows(SeenFinding, "SELECT * FROM seen ORDER BY rowid")

    def replays(self, signature: str, target: str) -> list[StoredReplay]:
        """The replay files of a finding, smallest first."""
        query = "SELECT * FROM replays WHERE signature = ? AND target = ?"
        found = self._rows(StoredReplay, query, signature, target)
        return sorted(found, key=lambda replay: (replay.size, replay.digest))

    def mark(self, finding: StoredFinding, target: str, version: str, verdict: Verdict) -> None:
        """Note what a version of the target shows of a finding that was found before, on it or on another target; the
        state of the target's own follows, which is made when there is none and the finding is shown.
        """
        state: State = "open" if verdict == "shown" else verdict
        of = (finding.signature, target)
        with self._transaction() as cursor:
            cursor.execute("INSERT OR REPLACE INTO seen VALUES (?, ?, ?, ?)", (*of, version, verdict))
            cursor.execute("UPDATE findings SET state = ? WHERE signature = ? AND target = ?", (state, *of))
            if verdict != "shown":
                return
            cursor.execute("UPDATE findings SET last_seen = ? WHERE signature = ? AND target = ?", (version, *of))
            made = replace(finding, target=target, count=0, first_seen=version, last_seen=version, state="open")
            cursor.execute(f"INSERT OR IGNORE INTO findings VALUES ({', '.join('?' * 16)})", astuple(made))
            cursor.execute(
                "INSERT OR IGNORE INTO replays SELECT signature, ?, digest, size, text FROM replays "
                "WHERE signature = ? AND target = ?",
                (target, finding.signature, finding.target),
            )

    # SQLite

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """What is read inside is the store at one moment, whatever writes it meanwhile. For a read-only store."""
        self._all("BEGIN")
        try:
            yield
        finally:
            with contextlib.suppress(sqlite3.Error):
                self._connection.execute("ROLLBACK")

    def _rows(self, kind: type[Row], query: str, *values: object) -> list[Row]:
        """Rows as values of `kind`, whose fields are columns; a field that is no plain value is JSON."""
        found = []
        for row in self._all(query, *values):
            columns: dict[str, Any] = dict(row)
            for name, of in _JSON_COLUMNS.get(kind, {}).items():
                columns[name] = self._json(of, columns.get(name))
            found.append(self._converted(kind, columns))
        return found

    def _json(self, kind: Any, text: object) -> Any:
        try:
            return msgspec.json.decode(self._converted(str, text), type=kind)
        except (msgspec.DecodeError, RecursionError) as error:
            raise self._damaged(str(error)) from error

    def _converted(self, kind: type[Row], value: object) -> Row:
        """`value`, which must be of the type `kind`."""
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise self._damaged(f"{error} of {getattr(kind, '__name__', kind)}") from error

    def _damaged(self, why: str) -> UsageError:
        return UsageError(f"the store {self.path} is damaged: {why}", "restore it, or leave it out")

    def _all(self, query: str, *values: object) -> list[sqlite3.Row]:
        try:
            return self._connection.execute(query, values).fetchall()
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise UsageError(f"cannot read {self.path} ({error})", "restore it, or name another --store") from error

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Cursor]:
        """All of what is done inside, or nothing."""
        remedy = _GO_ON.format(path=self.path)
        cursor = self._connection.cursor()
        try:
            if self.path.stat().st_ino != self._inode:
                raise UsageError(f"{self.path} was replaced while it was written", "name another --store")
            cursor.execute("BEGIN IMMEDIATE")
            yield cursor
            cursor.execute("COMMIT")
        except FileNotFoundError as error:
            raise UsageError(f"{self.path} was removed while it was written", "name another --store") from error
        except (sqlite3.Error, OverflowError, UnicodeError) as error:
            raise UsageError(f"cannot write {self.path} ({error})", remedy) from error
        finally:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")
            cursor.close()


_JSON_COLUMNS: dict[Any, dict[str, Any]] = {
    StoredBatch: {"refused": dict[str, Count], "campaign": Annotated[int, msgspec.Meta(ge=0)]},
    StoredReplay: {"size": tuple[int, ...]},
}


def _plain(text: str) -> str:
    """`text` as SQLite takes it: half of a surrogate pair becomes an escape."""
    return text.encode("utf-8", "backslashreplace").decode()


_TEXTS_OF_FOUND = ("signature", "tier", "rule", "title", "severity", "reach", "where", "replay")  # may quote a target


def _put_finding(cursor: sqlite3.Cursor, result: BatchResult, found: RunFinding, cpu_seconds_before: float) -> None:
    """A finding of a batch, in the transaction of that batch."""
    batch = result.batch
    texts: dict[str, Any] = {name: _plain(getattr(found, name)) for name in _TEXTS_OF_FOUND}
    found = replace(found, **texts)
    cursor.execute(
        f"INSERT INTO findings VALUES ({', '.join('?' * 16)}) ON CONFLICT(signature, target) DO UPDATE SET "
        "count = count + excluded.count, last_seen = excluded.last_seen, state = 'open'",
        (
            found.signature,
            batch.target,
            found.tier,
            found.rule,
            found.title,
            found.severity,
            found.reach,
            found.where,
            found.count,
            batch.shard,
            batch.number,
            found.index,
            cpu_seconds_before + found.cpu_seconds,
            result.version,
            result.version,
            "open",
        ),
    )
    cursor.execute(
        "INSERT OR REPLACE INTO seen VALUES (?, ?, ?, 'shown')", (found.signature, batch.target, result.version)
    )
    if not found.replay:
        return
    digest = hashlib.blake2b(found.replay.encode(), digest_size=16).hexdigest()
    cursor.execute(
        "INSERT OR IGNORE INTO replays VALUES (?, ?, ?, ?, ?)",
        (found.signature, batch.target, digest, json.dumps(list(found.size)), found.replay),
    )
    kept = cursor.execute(
        "SELECT digest, size FROM replays WHERE signature = ? AND target = ?", (found.signature, batch.target)
    ).fetchall()
    by_size = sorted((_size_of(size), str(digest)) for digest, size in kept)
    cursor.executemany(
        "DELETE FROM replays WHERE signature = ? AND target = ? AND digest = ?",
        [(found.signature, batch.target, digest) for _, digest in by_size[REPLAYS_MAX:]],
    )


def _size_of(text: object) -> tuple[int, ...]:
    """The size in a row of `replays`. One that is damaged goes first, so that it does not stay."""
    try:
        return tuple(msgspec.json.decode(str(text), type=tuple[int, ...]))
    except (msgspec.DecodeError, RecursionError):
        return (1 << 62,)
