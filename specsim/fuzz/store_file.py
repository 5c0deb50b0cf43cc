"""The file of a store: its lock, its tables, and whether it is a store at all.

A file may come from elsewhere, damaged or made to do harm. One that has not exactly the tables of a store is refused.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from stat import S_ISREG
from urllib.parse import quote

import specsim
from specsim.errors import UsageError
from specsim.files import open_lock

FORMAT = 3
WAIT_SECONDS = 30.0  # for a reader that holds the file
TEXT_BYTES_MAX = 64 << 20  # of one text of a store

_TABLES = """
CREATE TABLE meta(key TEXT PRIMARY KEY, value TEXT NOT NULL);
CREATE TABLE batches(
    shard INT, number INT, first INT, count INT, target TEXT, version TEXT, tier TEXT, runs INT, events INT,
    seconds REAL, cpu_seconds REAL, refused TEXT, ended TEXT, at REAL, campaign TEXT,
    PRIMARY KEY(shard, number));
CREATE TABLE coverage(
    target TEXT, feature TEXT, runs INT, shard INT, number INT, PRIMARY KEY(target, feature)) WITHOUT ROWID;
CREATE TABLE findings(
    signature TEXT, target TEXT, tier TEXT, rule TEXT, title TEXT, severity TEXT, reach TEXT, "where" TEXT, count INT,
    shard INT, number INT, run INT, cpu_seconds REAL, first_seen TEXT, last_seen TEXT, state TEXT,
    PRIMARY KEY(signature, target));
CREATE TABLE seen(
    signature TEXT, target TEXT, version TEXT, verdict TEXT, PRIMARY KEY(signature, target, version));
CREATE TABLE replays(
    signature TEXT, target TEXT, digest TEXT, size TEXT, text TEXT, PRIMARY KEY(signature, target, digest));
"""
_NAMES = {"meta", "batches", "coverage", "findings", "seen", "replays"}


def locked(path: Path) -> int:
    """A file descriptor that holds the lock of the store; UsageError when another process has it."""
    if not path.name or path.name == "..":
        raise UsageError(f"{path} is a folder", "name a file for --store, such as .specsim/campaign.db")
    try:
        if not S_ISREG(path.stat().st_mode):
            raise UsageError(f"{path} is not a regular file", "name a file for --store, such as .specsim/campaign.db")
    except (FileNotFoundError, NotADirectoryError):
        pass
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot use {path} as a store ({error})", "name another --store") from error
    lock_path = path.with_name(path.name + ".lock")
    try:
        lock = open_lock(lock_path)
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
    with contextlib.suppress(OSError):  # a full disk: the second process sees less of the reason
        os.ftruncate(lock, 0)
        os.pwrite(lock, str(os.getpid()).encode(), 0)
    return lock


def writable(path: Path, campaign: int) -> sqlite3.Connection:
    """The database, to be read and written; made for the seed `campaign` when there is none. UsageError for what is no
    store.
    """
    if path.exists() and not os.access(path, os.W_OK):
        raise UsageError(f"{path} is read-only", "make it writable, or name another --store")
    with _problems(path):
        connection = _limited(sqlite3.connect(path, timeout=WAIT_SECONDS, isolation_level=None))
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


def readable(path: Path) -> sqlite3.Connection:
    """The database, to be read. UsageError for what is no store."""
    if not os.path.isfile(path):
        raise UsageError(f"there is no campaign in {path}", "write one with specsim fuzz --store FILE")
    # A file in a folder that cannot be written has no room for SQLite's index of the log; without a log it needs none.
    wal = path.with_name(path.name + "-wal")
    has_log = wal.exists() and wal.stat().st_size > 0
    mode = "mode=ro" if has_log or os.access(path.parent, os.W_OK) else "mode=ro&immutable=1"
    with _problems(path):
        connection = _limited(
            sqlite3.connect(
                f"file:{quote(os.fsencode(path.absolute()))}?{mode}",
                uri=True,
                timeout=WAIT_SECONDS,
                isolation_level=None,
            )
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
    except (sqlite3.DatabaseError, UnicodeError) as error:
        raise UsageError(f"{path} is no store of a campaign ({error})", "name another --store") from error


def _limited(connection: sqlite3.Connection) -> sqlite3.Connection:
    """The connection, with rows by name, and bounds for what a store that was made to do harm may ask for."""
    connection.row_factory = sqlite3.Row
    connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, TEXT_BYTES_MAX)
    connection.execute("PRAGMA trusted_schema = OFF")
    return connection


def _require_format(path: Path, connection: sqlite3.Connection) -> None:
    """Raise UsageError for a database that is no store of this format: its tables and index, and nothing else, such as
    a view that never ends or a trigger.
    """
    remedy = "name another --store"
    objects = {(str(kind), str(name)) for kind, name in connection.execute("SELECT type, name FROM sqlite_master")}
    if ("table", "meta") not in objects:
        raise UsageError(f"{path} is a database, but no store of a campaign", remedy)
    entries = {str(key): str(value) for key, value in connection.execute("SELECT key, value FROM meta")}
    found = entries.get("format", "")
    if found != str(FORMAT):
        of = entries.get("specsim", "")
        raise UsageError(
            f"{path} has format {found[:80]!r}, this specsim reads {FORMAT}",
            f"use specsim {of[:80]}, which wrote it, or {remedy}" if of else remedy,
        )
    if {name for kind, name in objects if kind == "table"} >= _NAMES and all(
        kind in ("table", "index") for kind, _ in objects
    ):
        return
    raise UsageError(f"the store {path} is damaged: it has not the tables of a store alone", f"restore it, or {remedy}")
