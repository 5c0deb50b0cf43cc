"""The store of a campaign: one SQLite file, which holds what was run, reached and found.

The result of a batch is written in one transaction, so that what is counted is counted once and what was found stays
found, whenever a process is killed or a disk is full. One process writes (it holds a lock on FILE.lock), any number
read meanwhile. Nothing is decided by the wall clock: the time of a batch is there to be shown.

    meta      format, specsim, campaign (the seed), created, plan (what the campaign was asked for, JSON)
    batches   one row for each batch that was run; `campaign` is the seed that it was drawn from
    coverage  runs that reached a feature, and the batch that was the first
    tapes     tapes that reached something new
    findings  one row for each signature and target; shard, number, run and cpu_seconds are those of its first hit
    seen      what each version of a target showed of a signature
    hits      each strategy that hit a signature: how often, and its own CPU time on the target until the first hit
    replays   the smallest replay files of a signature, at most `REPLAYS_MAX`

Seeds are text there: SQLite's integers end at 2**63 - 1.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import sqlite3
import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar, cast
from urllib.parse import quote

import specsim
from specsim.campaign.guided import worth_keeping
from specsim.campaign.work import Batch, BatchResult, Found, KeptTape
from specsim.errors import UsageError
from specsim.explore.chooser import Tape

FORMAT = 1
REPLAYS_MAX = 3  # of a signature on a target
TAPES_MAX = 512  # that a batch starts from: the newest
WAIT_SECONDS = 30.0  # for a reader that holds the file

Verdict = Literal["shown", "fixed", "not applicable"]
State = Literal["open", "fixed", "not applicable"]
Row = TypeVar("Row")

_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE batches(
    shard INT, number INT, first INT, count INT, target TEXT, version TEXT, tier TEXT, family TEXT, strategy TEXT,
    tapes_to INT, runs INT, events INT, seconds REAL, cpu_seconds REAL, refused TEXT, ended TEXT, at REAL,
    campaign TEXT,
    PRIMARY KEY(shard, number));
CREATE TABLE coverage(
    target TEXT, feature TEXT, runs INT, shard INT, number INT, PRIMARY KEY(target, feature)) WITHOUT ROWID;
CREATE TABLE tapes(
    id INTEGER PRIMARY KEY, digest TEXT UNIQUE, target TEXT, tape TEXT, features TEXT, cost INT, model_hash TEXT,
    origin TEXT);
CREATE INDEX tapes_of_a_target ON tapes(target, id);
CREATE TABLE findings(
    signature TEXT, target TEXT, tier TEXT, rule TEXT, title TEXT, severity TEXT, reach TEXT, "where" TEXT, count INT,
    strategy TEXT, family TEXT, shard INT, number INT, run INT, cpu_seconds REAL, first_seen TEXT, last_seen TEXT,
    state TEXT, PRIMARY KEY(signature, target));
CREATE TABLE seen(
    signature TEXT, target TEXT, version TEXT, verdict TEXT, PRIMARY KEY(signature, target, version));
CREATE TABLE hits(
    signature TEXT, target TEXT, strategy TEXT, count INT, shard INT, number INT, run INT, cpu_seconds REAL,
    PRIMARY KEY(signature, target, strategy));
CREATE TABLE replays(
    signature TEXT, target TEXT, digest TEXT, size TEXT, text TEXT, PRIMARY KEY(signature, target, digest));
"""
_GO_ON = "what was stored before is safe: specsim fuzz --resume --store {path} goes on with it"


@dataclass(frozen=True, slots=True)
class StoredBatch:
    """A batch that was run. `at` is the wall clock when it was stored, in seconds since 1970, to show only."""

    shard: int
    number: int
    first: int
    count: int
    target: str
    version: str
    tier: str
    family: str
    strategy: str
    tapes_to: int
    runs: int
    events: int
    seconds: float
    cpu_seconds: float
    refused: dict[str, int]
    ended: str
    at: float
    campaign: int


@dataclass(frozen=True, slots=True)
class Covered:
    """A feature that runs of a target reached: how many, and the batch that was the first."""

    target: str
    feature: str
    runs: int
    shard: int
    number: int


@dataclass(frozen=True, slots=True)
class StoredTape:
    """A tape that reached something new. `origin` says who found it, e.g. "campaign 7, shard 0, batch 12"."""

    id: int
    digest: str
    target: str
    tape: Tape
    features: tuple[str, ...]
    cost: int
    model_hash: str
    origin: str


@dataclass(frozen=True, slots=True)
class StoredFinding:
    """A finding of a target. Strategy, family, shard, number and run are those of its first hit; `cpu_seconds` the
    CPU time of the whole campaign until then; `first_seen` and `last_seen` versions of the target. A `count` of 0 says
    that it was found on another target, and that its replay file shows it on this one too.
    """

    signature: str
    target: str
    tier: str
    rule: str
    title: str
    severity: str
    reach: str
    where: str
    count: int
    strategy: str
    family: str
    shard: int
    number: int
    run: int
    cpu_seconds: float
    first_seen: str
    last_seen: str
    state: State


@dataclass(frozen=True, slots=True)
class Seen:
    """What a version of a target showed of a signature."""

    signature: str
    target: str
    version: str
    verdict: Verdict


@dataclass(frozen=True, slots=True)
class Hits:
    """How often a strategy hit a signature of a target, the first time in run `run`; `cpu_seconds` is the CPU time of
    that strategy's batches of the target until then.
    """

    signature: str
    target: str
    strategy: str
    count: int
    shard: int
    number: int
    run: int
    cpu_seconds: float


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
            return cls(path, _readable(path), None)
        lock = _locked(path)
        try:
            return cls(path, _writable(path, campaign), lock)
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

    # What the campaign was asked for

    @property
    def campaign(self) -> int:
        """The seed of the campaign."""
        return int(self.meta()["campaign"])

    def meta(self) -> dict[str, str]:
        return dict(self._all("SELECT key, value FROM meta ORDER BY key"))

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
            self._stored[shard] = {number for (number,) in rows}
            self._next[shard] = 0
        stored = self._stored[shard]
        while self._next[shard] in stored:
            stored.remove(self._next[shard])
            self._next[shard] += 1
        return self._next[shard]

    def add(self, result: BatchResult, model_hash: str = "") -> bool:
        """Store what became of a batch, whole or not at all; False when it was there already. Of its tapes those are
        kept that reach what no batch before did. `model_hash` is that of the code that gives the tapes their meaning.
        UsageError when the file cannot be written.
        """
        batch = result.batch
        with self._transaction() as cursor:
            before = cursor.execute("SELECT total(cpu_seconds) FROM batches").fetchone()[0]
            of_strategy = "SELECT total(cpu_seconds) FROM batches WHERE target = ? AND strategy = ?"
            before_of_it = cursor.execute(of_strategy, (batch.target, batch.strategy)).fetchone()[0]
            cursor.execute(
                f"INSERT OR IGNORE INTO batches VALUES ({', '.join('?' * 18)})",
                (
                    batch.shard,
                    batch.number,
                    batch.first,
                    batch.count,
                    batch.target,
                    result.version,
                    batch.tier,
                    batch.family,
                    batch.strategy,
                    batch.tapes_to,
                    result.runs,
                    result.events,
                    result.seconds,
                    result.cpu_seconds,
                    json.dumps(result.refused),
                    result.ended,
                    time.time(),
                    str(batch.campaign),
                ),
            )
            if cursor.rowcount == 0:
                return False
            known = {
                name
                for (name,) in cursor.execute("SELECT feature FROM coverage WHERE target = ?", (batch.target,))
                if result.tapes
            }
            cursor.executemany(
                "INSERT INTO coverage VALUES (?, ?, ?, ?, ?) "
                "ON CONFLICT(target, feature) DO UPDATE SET runs = runs + excluded.runs",
                [(batch.target, name, runs, batch.shard, batch.number) for name, runs in result.features.items()],
            )
            origin = f"campaign {batch.campaign}, shard {batch.shard}, batch {batch.number}"
            for kept in worth_keeping(result.tapes, known.__contains__):
                _put_tape(cursor, batch.target, kept, model_hash, origin)
            for found in result.findings:
                _put_finding(cursor, result, found, before)
                _put_hits(cursor, batch, found, before_of_it)
        if batch.shard in self._stored:
            self._stored[batch.shard].add(batch.number)
        return True

    def batches(self) -> list[StoredBatch]:
        """Every batch, in the order in which they were stored."""
        return [_batch(row) for row in self._all("SELECT * FROM batches ORDER BY rowid")]

    def batch_of(self, shard: int, index: int) -> StoredBatch | None:
        """The batch that run `index` of the shard is in, None when it is not stored."""
        row = self._all(
            "SELECT * FROM batches WHERE shard = ? AND first <= ? AND first + count > ?", shard, index, index
        )
        return _batch(row[0]) if row else None

    def totals(self) -> tuple[int, int, float]:
        """Runs, events and CPU seconds of all batches."""
        ((runs, events, cpu_seconds),) = self._all(
            "SELECT ifnull(sum(runs), 0), ifnull(sum(events), 0), total(cpu_seconds) FROM batches"
        )
        return runs, events, cpu_seconds

    # Coverage and tapes

    def coverage(self) -> list[Covered]:
        return self._rows(Covered, "SELECT * FROM coverage ORDER BY target, feature")

    def tapes_to(self, target: str) -> int:
        """The id of the newest tape of the target, 0 for none."""
        ((newest,),) = self._all("SELECT ifnull(max(id), 0) FROM tapes WHERE target = ?", target)
        return int(newest)

    def tape_counts(self) -> dict[str, int]:
        """Tapes of each target."""
        return dict(self._all("SELECT target, count(*) FROM tapes GROUP BY target ORDER BY target"))

    def tapes(self, target: str, upto: int, most: int = TAPES_MAX) -> list[StoredTape]:
        """The newest `most` tapes of the target with ids up to `upto`, by rising id."""
        rows = self._all(
            "SELECT * FROM tapes WHERE target = ? AND id <= ? ORDER BY id DESC LIMIT ?", target, upto, most
        )
        return [
            StoredTape(id_, digest, of, tuple(json.loads(tape)), tuple(json.loads(features)), cost, model_hash, origin)
            for id_, digest, of, tape, features, cost, model_hash, origin in reversed(rows)
        ]

    def add_tape(self, target: str, kept: KeptTape, model_hash: str = "", origin: str = "") -> bool:
        """Store a tape that came from elsewhere; False when it was there already."""
        with self._transaction() as cursor:
            return _put_tape(cursor, target, kept, model_hash, origin)

    # Findings

    def findings(self) -> list[StoredFinding]:
        """Every finding, by its target and signature."""
        return self._rows(StoredFinding, "SELECT * FROM findings ORDER BY target, signature")

    def hits(self) -> list[Hits]:
        """What each strategy hit and when, soonest first."""
        return self._rows(Hits, "SELECT * FROM hits ORDER BY cpu_seconds, signature, target, strategy")

    def seen(self) -> list[Seen]:
        return self._rows(Seen, "SELECT * FROM seen ORDER BY rowid")

    def replays(self, signature: str, target: str) -> list[StoredReplay]:
        """The replay files of a finding, smallest first."""
        found = [
            StoredReplay(of, on, digest, tuple(json.loads(size)), text)
            for of, on, digest, size, text in self._all(
                "SELECT * FROM replays WHERE signature = ? AND target = ?", signature, target
            )
        ]
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
            cursor.execute(f"INSERT OR IGNORE INTO findings VALUES ({', '.join('?' * 18)})", astuple(made))
            cursor.execute(
                "INSERT OR IGNORE INTO replays SELECT signature, ?, digest, size, text FROM replays "
                "WHERE signature = ? AND target = ?",
                (target, finding.signature, finding.target),
            )

    # SQLite

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """What is read inside is the store at one moment, whoever writes it meanwhile. For one that is read only."""
        self._connection.execute("BEGIN")
        try:
            yield
        finally:
            self._connection.execute("ROLLBACK")

    def _rows(self, kind: type[Row], query: str) -> list[Row]:
        """The rows of a table whose columns are the fields of `kind`."""
        return [kind(*row) for row in self._all(query)]

    def _all(self, query: str, *values: object) -> list[Any]:
        try:
            return self._connection.execute(query, values).fetchall()
        except sqlite3.Error as error:
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
        except sqlite3.Error as error:
            raise UsageError(f"cannot write {self.path} ({error})", remedy) from error
        finally:
            if self._connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    cursor.execute("ROLLBACK")
            cursor.close()


def digest_of(target: str, tape: Sequence[int]) -> str:
    """What a tape of a target is known by."""
    return hashlib.blake2b(f"{target}\n{json.dumps(list(tape))}".encode(), digest_size=16).hexdigest()


def _batch(row: tuple[Any, ...]) -> StoredBatch:
    *plain, refused, ended, at, campaign = row
    fields: list[Any] = [*plain, json.loads(refused), ended, at, int(campaign)]
    return StoredBatch(*fields)


def _put_tape(cursor: sqlite3.Cursor, target: str, kept: KeptTape, model_hash: str, origin: str) -> bool:
    cursor.execute(
        "INSERT OR IGNORE INTO tapes(digest, target, tape, features, cost, model_hash, origin) "
        "VALUES (?, ?, ?, ?, ?, ?, ?)",
        (
            digest_of(target, kept.tape),
            target,
            json.dumps(list(kept.tape)),
            json.dumps(list(kept.features)),
            kept.cost,
            model_hash,
            origin,
        ),
    )
    return cursor.rowcount > 0


def _put_finding(cursor: sqlite3.Cursor, result: BatchResult, found: Found, cpu_seconds_before: float) -> None:
    """A finding of a batch, in the transaction of that batch."""
    batch = result.batch
    cursor.execute(
        f"INSERT INTO findings VALUES ({', '.join('?' * 18)}) ON CONFLICT(signature, target) DO UPDATE SET "
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
            batch.strategy,
            batch.family,
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
    by_size = sorted((json.loads(size), digest) for digest, size in kept)
    cursor.executemany(
        "DELETE FROM replays WHERE signature = ? AND target = ? AND digest = ?",
        [(found.signature, batch.target, digest) for _, digest in by_size[REPLAYS_MAX:]],
    )


def _put_hits(cursor: sqlite3.Cursor, batch: Batch, found: Found, cpu_seconds_before: float) -> None:
    if batch.strategy:
        cursor.execute(
            "INSERT INTO hits VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
            "ON CONFLICT(signature, target, strategy) DO UPDATE SET count = count + excluded.count",
            (
                found.signature,
                batch.target,
                batch.strategy,
                found.count,
                batch.shard,
                batch.number,
                found.index,
                cpu_seconds_before + found.cpu_seconds,
            ),
        )


def _locked(path: Path) -> int:
    """A file descriptor that holds the lock of the store; UsageError when another process has it."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise UsageError(
            f"cannot write beside {path} ({error.strerror})", "name a --store in a folder that can be written"
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(lock, 64).decode(errors="replace").strip()
        os.close(lock)
        who = f"process {holder}" if holder.isdigit() else "another process"
        raise UsageError(
            f"{path} is being written by a campaign in {who}",
            "let that one end, or give this one a --store of its own: specsim report --campaign merges several",
        ) from error
    with contextlib.suppress(OSError):  # a full disk: whoever comes second is told less
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def _writable(path: Path, campaign: int) -> sqlite3.Connection:
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} is read-only", "make it writable, or name another --store")
    with _problems(path):
        connection = sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None)
    try:
        with _problems(path):
            is_new = not connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0]
            if not is_new:
                _require_format(path, connection)
            connection.execute("PRAGMA journal_mode = WAL")
            # A commit is on the disk before the next batch is counted, also when the machine loses its power.
            connection.execute("PRAGMA synchronous = FULL")
            if is_new:
                _make(connection, campaign)
    except BaseException:
        connection.close()
        raise
    return connection


def _make(connection: sqlite3.Connection, campaign: int) -> None:
    connection.execute("BEGIN IMMEDIATE")
    for statement in filter(str.strip, _TABLES.split(";")):
        connection.execute(statement)
    created = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    entries = {"format": FORMAT, "specsim": specsim.__version__, "campaign": campaign, "created": created}
    connection.executemany("INSERT INTO meta VALUES (?, ?)", [(key, str(value)) for key, value in entries.items()])
    connection.execute("COMMIT")


def _readable(path: Path) -> sqlite3.Connection:
    if not path.is_file():
        raise UsageError(f"there is no campaign in {path}", "write one with specsim fuzz --store FILE")
    # A file in a folder that cannot be written has no room for SQLite's index of the log; without a log it needs none.
    wal = path.with_name(path.name + "-wal")
    has_log = wal.exists() and wal.stat().st_size > 0
    mode = "mode=ro" if has_log or os.access(path.parent, os.W_OK) else "mode=ro&immutable=1"
    with _problems(path):
        connection = sqlite3.connect(
            f"file:{quote(str(path.absolute()))}?{mode}", uri=True, timeout=WAIT_SECONDS, isolation_level=None
        )
    try:
        with _problems(path):
            _require_format(path, connection)
    except BaseException:
        connection.close()
        raise
    return connection


@contextmanager
def _problems(path: Path) -> Iterator[None]:
    try:
        yield
    except sqlite3.OperationalError as error:
        raise UsageError(f"cannot open {path} ({error})", "name another --store") from error
    except sqlite3.DatabaseError as error:
        raise UsageError(f"{path} is no store of a campaign ({error})", "name another --store") from error


def _require_format(path: Path, connection: sqlite3.Connection) -> None:
    remedy = "name another --store"
    names = {name for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
    if "meta" not in names:
        raise UsageError(f"{path} is a database, but no store of a campaign", remedy)
    entries = cast("dict[str, str]", dict(connection.execute("SELECT key, value FROM meta").fetchall()))
    found = entries.get("format", "")
    if found != str(FORMAT):
        of = entries.get("specsim", "")
        raise UsageError(
            f"{path} has format {found!r}, this specsim reads {FORMAT}",
            f"use specsim {of}, which wrote it, or {remedy}" if of else remedy,
        )
